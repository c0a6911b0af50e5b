"""The pair `llm.c`: fp32 steps of GPT-2 124M by the CPU trainer of llm.c, whose program its owner names with --llm-c. It
reads a checkpoint and tokens of its own formats, which are written here from the pair's weights and tokens."""

import array
import json
import os
import re
import struct

import contender
from contender import Contender, Failed, Goal, Pair, Shape

# The trainer's own batch, steps and optimizer are fixed in its source: 4 sequences of 64 tokens, AdamW with (0.9, 0.999).
SEQ, BATCH, STEPS = 64, 4, 8
MODEL_MAGIC, MODEL_VERSION, TOKENS_MAGIC, TOKENS_VERSION = 20240326, 3, 20240520, 1
PAD_TO = 128  # tokens, of which its padded vocabulary is a multiple
STEP = re.compile(r"^step (\d+): train loss ([0-9.]+) \(took ([0-9.]+) ms\)", re.MULTILINE)
# Tensors in the order of its checkpoint: each is written for all blocks before the next.
BLOCK = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
         "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


class Tensors:
    """The fp32 tensors of a safetensors file by name, without the prefix of the model."""

    def __init__(self, path):
        self.file = open(path, "rb")
        length, = struct.unpack("<Q", self.file.read(8))
        entries = json.loads(self.file.read(length))
        entries.pop("__metadata__", None)
        self.entries = {name.removeprefix("transformer."): entry for name, entry in entries.items()}
        self.base = 8 + length

    def read(self, name):
        """Returns (shape, values)."""
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        self.file.seek(self.base + begin)
        values = array.array("f")
        values.fromfile(self.file, (end - begin) // 4)
        return entry["shape"], values


def transposed(shape, values):
    found = array.array("f")
    for column in range(shape[1]):
        found.extend(values[column::shape[1]])
    return found


def write_checkpoint(weights, path):
    with open(os.path.join(weights, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = Tensors(os.path.join(weights, "model.safetensors"))
    layers, hidden, vocabulary = config["n_layer"], config["n_embd"], config["vocab_size"]
    padded = -(-vocabulary // PAD_TO) * PAD_TO
    header = [MODEL_MAGIC, MODEL_VERSION, config["n_positions"], vocabulary, layers, config["n_head"], hidden, padded]
    with open(path, "wb") as file:
        array.array("i", header + [0] * (256 - len(header))).tofile(file)
        tensors.read("wte.weight")[1].tofile(file)
        array.array("f", bytes(4 * (padded - vocabulary) * hidden)).tofile(file)
        tensors.read("wpe.weight")[1].tofile(file)
        for name in BLOCK:
            for layer in range(layers):
                shape, values = tensors.read(f"h.{layer}.{name}")
                (transposed(shape, values) if name in TRANSPOSED else values).tofile(file)
        for name in ("ln_f.weight", "ln_f.bias"):
            tensors.read(name)[1].tofile(file)
    tensors.file.close()


def write_inputs(session):
    """Writes what the trainer reads in its working folder, the session's."""
    write_checkpoint(session.weights, session.path("gpt2_124M.bin"))
    folder = session.path("dev/data/tinyshakespeare")
    os.makedirs(folder, exist_ok=True)
    with open(session.tokens, "rb") as file:
        tokens = file.read()
    for part in ("train", "val"):
        with open(os.path.join(folder, f"tiny_shakespeare_{part}.bin"), "wb") as file:
            array.array("i", [TOKENS_MAGIC, TOKENS_VERSION, len(tokens) // 2] + [0] * 253).tofile(file)
            file.write(tokens)


def command(session):
    """The trainer makes 41 steps; sed ends at the last that is wanted, and the trainer with its next line."""
    if not os.path.exists(session.path("gpt2_124M.bin")):
        write_inputs(session)
    return ("sh", "-c", f"stdbuf -oL '{os.path.abspath(session.llm_c)}' | sed '/^step {STEPS - 1}:/q'")


def read(_, ended):
    steps = STEP.findall(ended.out)
    if len(steps) < STEPS:
        raise Failed(f"it printed {len(steps)} steps: {ended.out[-200:]}")
    return contender.step_fields([float(ms) / 1000 for *_, ms in steps], [float(loss) for _, loss, _ in steps], [0] * len(steps))


def pairs(quick):
    """llm.c clips no gradient."""
    shape = Shape("gpt2-tiny" if quick else "gpt2-124m", SEQ, BATCH, STEPS, "fp32")
    return [Pair("llm.c", f"Step of {shape.model} in fp32, 256 tokens", (
        contender.ours("spillway", shape, "--place", "optimizer=device", "--clip", 0, "--beta2", 0.999, settings="fp32"),
        Contender("llm.c", command, read, ("llm.c",), "train_gpt2, as its owner built it")),
        (Goal("spillway", ("llm.c",), "step_s", 1),), shape, 0.002)]
