"""Tensor groups of ranks whose devices are GPUs: emulated ones, that an emulated NCCL joins."""

import array
import json
import os
import subprocess

from program import command, limits, must, numbers_of, scratch_folder, script_test, text, write
from ranks_jobs import far, mpirun

FOLDER = scratch_folder()
STEPS = 3
TOLERANCE = 1e-5
EVERYTHING_AWAY = ("--place", "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme")
# Rows of the vocabulary, of the positions and of the hidden state that no number of ranks here divides.
VOCAB, SEQ, POSITIONS, SEQUENCES = 259, 17, 19, 4
SHARED = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
          "intermediate_size": 176, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "hidden_act": "silu", "tie_word_embeddings": False}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": POSITIONS, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "llama": {"model_type": "llama", **SHARED},
    # One key-value head, whose weights both ranks of a group have.
    "qwen3": {"model_type": "qwen3", **SHARED, "head_dim": 8, "num_key_value_heads": 1, "tie_word_embeddings": True},
}
# Nothing is left open that would have the emulated GPU measured, for half a minute.
CLOSED = {"--place": "weights=device,acts=device,grads=device,optimizer=device", "--order": "layer", "--update": "host"}
ROWS = ("--partition-activations", "yes")
SEQUENCE = ("--sequence-parallel", "yes")


def path(*names):
    return os.path.join(FOLDER, *names)


# Tokens of 16 bits: the vocabulary is larger than that of bytes.
DATA = write(path("data.bin"), array.array("H", list(text(1, 120 * SEQ).encode())).tobytes())
RATED = write(path("rated.bin"), array.array("H", list(text(2, 12 * SEQ).encode())).tobytes())
PROMPT = write(path("prompt.bin"), array.array("H", list(b"the text")).tobytes())
for family, fields in CONFIGS.items():
    os.mkdir(path(family))
    write(path(family, "config.json"), json.dumps(fields))


def train(name, *more, model="llama", steps=STEPS, device="cuda", precision="fp32"):
    gpu = ("--device-memory", "256MiB", "--allow-shared-gpu") if device == "cuda" else ()
    closed = (word for flag, value in CLOSED.items() if flag not in more for word in (flag, value))
    return command("train", "--model", path(model), "--init", "--data", DATA, "--val", "5%", "--eval-every", STEPS, "--run", path(name),
                   "--steps", steps, "--schedule-steps", 2 * STEPS, "--warmup", 1, "--seq", SEQ, "--micro-batch", 1, "--batch-tokens",
                   SEQUENCES * SEQ, "--chunk-grains", 1, "--threads", 1, "--precision", precision, "--device", device, *gpu, *closed, *more)


def together(ranks, arguments):
    done = limits.run(mpirun((ranks, arguments)) if ranks > 1 else arguments, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks of {' '.join(map(str, arguments))}: status {done.returncode}: {done.stderr[-1500:]}")
    return done


def groups_of_gpus_train_as_one_rank_does():
    """As one CPU does."""
    problems = []
    for model in CONFIGS:
        together(1, train(f"{model}-cpu", model=model, device="cpu"))
        done = together(2, train(f"{model}-2", "--tensor", 2, model=model))
        if "NCCL" not in done.stderr or "1 tensor group of 2" not in done.stderr:
            problems.append(f"{model}: no group by NCCL: {done.stderr[-1500:]}")
        problems += far(model, path(f"{model}-2"), path(f"{model}-cpu"), tolerance=TOLERANCE)
    return problems


def stages_and_placements_of_gpus_give_the_same_bits():
    """In one group, and in two groups at stages 1 to 3 of ZeRO, each with other flags: cli_ranks_tensor has every pair of them."""
    table = [(2, name, flags) for name, flags in (
        ("device", ()), ("away", EVERYTHING_AWAY), ("host", ("--place", "weights=host,grads=host,optimizer=host", "--update", "device")),
        ("rows-again", (*ROWS, "--recompute", "all")),
        ("sequence-away", (*SEQUENCE, *EVERYTHING_AWAY)), ("batch", ("--order", "batch", *SEQUENCE)))]
    table += [(4, f"{name}-{zero}", ("--zero", zero, *flags))
              for zero, name, flags in ((1, "rows", ROWS), (2, "plain", ()), (3, "sequence", (*SEQUENCE, *EVERYTHING_AWAY)))]
    problems, numbers = [], {}
    for ranks, what, flags in table:
        name = f"bits-{ranks}-{what}"
        together(ranks, train(name, "--tensor", 2, *flags))
        if numbers.setdefault(ranks, numbers_of(path(name))) != numbers_of(path(name)):
            problems.append(f"{name}: other bits than another stage or placement")
        problems += far(name, path(name), path("llama-cpu"), tolerance=TOLERANCE)
    return problems


def narrow_gpus_give_the_same_bits():
    """In bf16, as GPUs train: with weights and inputs that are rounded, and the state in bf16 too."""
    numbers = []
    for number, flags in enumerate(((), (*SEQUENCE, *EVERYTHING_AWAY), (*ROWS, "--recompute", "all"))):
        name = f"narrow-{number}"
        together(2, train(name, "--tensor", 2, *flags, "--optimizer-state", "bf16", model="qwen3", precision="bf16"))
        numbers.append(numbers_of(path(name)))
    return [] if all(found == numbers[0] for found in numbers) else [f"other bits: {numbers}"]


def runs_of_gpus_go_on():
    """With the same bits, and in other groups and on one GPU with the losses of a run that nothing has changed."""
    together(1, train("steady", steps=STEPS + 2, device="cpu"))
    together(4, train("unbroken", "--tensor", 2, "--zero", 2))
    together(4, train("moved", "--tensor", 2, "--zero", 2, steps=STEPS - 1))
    together(4, command("resume", path("moved"), "--steps", STEPS, "--allow-shared-gpu", "--tensor", 2, "--zero", 3, *SEQUENCE))
    problems = [] if numbers_of(path("moved")) == numbers_of(path("unbroken")) else ["a resume has other bits"]
    for steps, (ranks, *flags) in enumerate(((2, "--tensor", 2, "--allow-shared-gpu"), (1, "--tensor", 1)), STEPS + 1):
        together(ranks, command("resume", path("moved"), "--steps", steps, *flags))
    return problems + far("groups that change", path("moved"), path("steady"), lambda line: "loss" in line, tolerance=TOLERANCE)


def gpus_evaluate_and_generate_together():
    """As one CPU does with the same weights."""
    problems = []
    mpirun((2, ["true"]))  # without MPI the runs that are read are not there
    for model, jobs in (("llama", ((2, ("--tensor", 2)), (4, ("--tensor", 2)))), ("qwen3", ((2, ()),))):
        run = path(f"{model}-2")
        rate = ("eval", run, "--data", RATED, "--seq", SEQ, "--precision", "fp32", "--threads", 1, "--json")
        say = ("generate", run, "--tokens", PROMPT, "--max-tokens", 16, "--temperature", 0, "--repetition-penalty", 1.3, "--precision",
               "fp32", "--threads", 1)
        gpu = ("--device", "cuda", "--device-memory", "256MiB")
        loss = json.loads(must(*rate, "--device", "cpu").out)
        words = must(*say, "--device", "cpu").out
        for ranks, flags in jobs:
            found = json.loads(together(ranks, command(*rate, *gpu, *flags)).stdout)
            if found["tokens"] != loss["tokens"] or abs(found["loss"] - loss["loss"]) > TOLERANCE * loss["loss"]:
                problems.append(f"{model}, {ranks} ranks {flags}: {found} instead of {loss}")
        said = together(2, command(*say, *gpu)).stdout
        problems += [] if said == words and len(words.split()) > 16 else [f"{model}: {said!r} instead of {words!r}"]
    return problems


script_test.run(groups_of_gpus_train_as_one_rank_does, stages_and_placements_of_gpus_give_the_same_bits,
                narrow_gpus_give_the_same_bits, runs_of_gpus_go_on, gpus_evaluate_and_generate_together)
