"""gpt-oss as it is published: experts in MXFP4, whose matrices lie transposed, for training, for a frozen base that keeps
them as they are, and in exports, which have them as transformers does; and what is refused by name."""

import json
import os
import random
import shutil
import struct

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(9, 12000))
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, LAYERS, VOCAB = 64, 64, 4, 2, 16, 5, 2, 256
GROUP, STEPS = 32, 3
CONFIG = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
          "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
          "head_dim": HEAD_DIM, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "max_position_embeddings": 128,
          "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"], "swiglu_limit": 7.0,
          "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                                 "original_max_position_embeddings": 32, "truncate": False}}
MXFP4 = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}}
# OCP Microscaling Formats 1.0, section 5.3.3.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
ATTENTION = ("--lora", 4, "--lora-targets", "attention")
LORA = ("--lora", 4, "--lora-alpha", 64)  # of experts, too
ADAPTED = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "gate_up_proj", "down_proj")


def path(*names):
    return os.path.join(SCRATCH, *names)


def shapes(inner=INNER):
    """The tensors as transformers has them, where a matrix of experts is [experts, in, out]."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found = {"model.embed_tokens.weight": [VOCAB, HIDDEN]}
    for layer in range(LAYERS):
        names = {"input_layernorm.weight": [HIDDEN], "self_attn.sinks": [HEADS], "post_attention_layernorm.weight": [HIDDEN],
                 "mlp.router.weight": [EXPERTS, HIDDEN], "mlp.router.bias": [EXPERTS],
                 "mlp.experts.gate_up_proj": [EXPERTS, HIDDEN, 2 * inner], "mlp.experts.gate_up_proj_bias": [EXPERTS, 2 * inner],
                 "mlp.experts.down_proj": [EXPERTS, inner, HIDDEN], "mlp.experts.down_proj_bias": [EXPERTS, HIDDEN]}
        for name, rows, cols in (("q", queries, HIDDEN), ("k", keys, HIDDEN), ("v", keys, HIDDEN), ("o", HIDDEN, queries)):
            names |= {f"self_attn.{name}_proj.weight": [rows, cols], f"self_attn.{name}_proj.bias": [rows]}
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in names.items()}
    return found | {"model.norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]}


def in_mxfp4(name, shape, draw):
    """Returns the codes and scales of a file, in rows of `in` elements, and the values as the model has them."""
    experts, inputs, outputs = shape
    count = experts * inputs * outputs
    codes, scales = draw.randbytes(count // 2), bytes(draw.randint(119, 122) for _ in range(count // GROUP))
    values = [E2M1[codes[i // 2] >> i % 2 * 4 & 15] * 2.0 ** (scales[i // GROUP] - 127) for i in range(count)]
    turned = [values[(e * outputs + o) * inputs + i] for e in range(experts) for i in range(inputs) for o in range(outputs)]
    return {name + "_blocks": ("U8", [experts, outputs, inputs // GROUP, GROUP // 2], codes),
            name + "_scales": ("U8", [experts, outputs, inputs // GROUP], scales)}, turned


def rounded(value):
    """To bf16, whose numbers are fp32's without the lower half."""
    return struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0]


def pieces(inner=INNER):
    stored, exact = {}, {}
    for name, shape in shapes(inner).items():
        draw = random.Random(name)
        if len(shape) == 3:
            found, exact[name] = in_mxfp4(name, shape, draw)
            stored |= found
            continue
        centre = 1.0 if "norm" in name else 0.0
        exact[name] = [rounded(centre + draw.gauss(0, 0.1)) for _ in range(hf_folder.count(shape))]
        stored[name] = ("BF16", shape, b"".join(struct.pack("<f", value)[2:] for value in exact[name]))
    return stored, exact


STORED, EXACT = pieces()
PUBLISHED = hf_folder.make(path("published"), CONFIG | MXFP4, hf_folder.stored(STORED))
WIDE = 96  # experts whose down matrices are not square
WIDE_STORED, WIDE_EXACT = pieces(WIDE)
WIDE_PUBLISHED = hf_folder.make(path("wide"), CONFIG | MXFP4 | {"intermediate_size": WIDE}, hf_folder.stored(WIDE_STORED))
PLAIN = hf_folder.make(path("plain"), CONFIG, hf_folder.safetensors({name: (shapes()[name], EXACT[name]) for name in EXACT}))


def train(folder, run, *more, precision="bf16", rate="1e-3", steps=STEPS):
    return ["train", "--model", folder, "--data", DATA, "--run", path(run), "--steps", steps, "--warmup", 1, "--lr", rate,
            *(program.SHAPE[:-4] if "--threads" in more else program.SHAPE), "--precision", precision, *more]


def numbers_in(kind, data):
    if kind == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return [value for value, in struct.iter_unpack("<f", data)]


def values_of(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as content:
        header, data = hf_folder.split(content.read())
    return {name: (entry["shape"], numbers_in(entry["dtype"], data[slice(*entry["data_offsets"])]))
            for name, entry in header.items() if name != "__metadata__"}


def experts_are_read_as_transformers_has_them():
    """An export at a rate of 0 has the values, in transformers' shapes. On every tier, loaded by several threads, and frozen."""
    problems = []
    for number, (folder, inner, exact, *flags) in enumerate((
            (PUBLISHED, INNER, EXACT, "--place", "optimizer=host"),
            (PUBLISHED, INNER, EXACT, "--place", "weights=nvme,grads=nvme,optimizer=nvme"),
            (WIDE_PUBLISHED, WIDE, WIDE_EXACT, "--threads", 2, "--chunk-grains", 4),
            (WIDE_PUBLISHED, WIDE, WIDE_EXACT, "--freeze", "*.experts.*"),
            (PUBLISHED, INNER, EXACT, "--freeze", "*.experts.*_proj", "--place", "weights=nvme"))):
        run = f"still-{number}"
        program.must(*train(folder, run, *flags, precision="fp32", rate=0, steps=1))
        program.must("export", path(run), path(run + "-out"))
        found = values_of(path(run + "-out"))
        problems += [f"{flags}: {name} differs" for name, shape in shapes(inner).items() if found.get(name) != (shape, exact[name])]
        fields = program.read_json(path(run + "-out", "config.json"))
        if len(found) != len(EXACT) or "quantization_config" in fields:
            problems.append(f"{flags}: the export has {sorted(found)[:3]} and {fields}")
    return problems


def commands_compute_with_the_values():
    for folder in (PUBLISHED, PLAIN):
        program.must(*train(folder, f"full-{os.path.basename(folder)}"))
    numbers = [program.numbers_of(path(f"full-{os.path.basename(folder)}")) for folder in (PUBLISHED, PLAIN)]
    losses = [json.loads(program.must("eval", folder, "--data", DATA, "--seq", program.SEQ, "--json").out)["loss"]
              for folder in (PUBLISHED, PLAIN)]
    texts = [program.must("generate", folder, "--prompt", "the ", "--max-tokens", 20, "--temperature", 0).out
             for folder in (PUBLISHED, PLAIN)]
    problems = [] if all(of[0] == of[1] for of in (numbers, losses, texts)) else [f"{numbers}, {losses}, {texts}"]
    # A device that does not hold the weights fetches the experts that a token chooses.
    small = program.must("generate", PLAIN, "--prompt", "the ", "--max-tokens", 20, "--temperature", 0, "--device-memory",
                         "3MiB", "--host-memory", "64MiB").out
    return problems + ([] if small == texts[1] else [f"with little memory: {small!r} instead of {texts[1]!r}"])


def a_base_stays_in_mxfp4():
    """Adapters beside experts that are kept as they are stored: the losses of the values, on every tier and resumed."""
    problems = []
    program.must(*train(PLAIN, "typed", *LORA, precision="fp32"))
    wanted = [line["loss"] for line in program.steps_of(path("typed"))]
    runs = []
    for place in ("weights=device", "weights=host", "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"):
        run = f"base-{place[8]}"
        program.must(*train(PUBLISHED, run, *LORA, "--base-format", "mxfp4", "--place", place, precision="fp32"))
        runs.append(program.numbers_of(path(run)))
        losses = [line["loss"] for line in program.steps_of(path(run))]
        if any(abs(loss - value) > 1e-6 * value for loss, value in zip(losses, wanted, strict=True)):
            problems.append(f"{place}: losses {losses}, those of the values {wanted}")
    program.must(*train(PUBLISHED, "parts", *LORA, "--base-format", "mxfp4", "--schedule-steps", STEPS, precision="fp32", steps=1))
    program.must("resume", path("parts"), "--steps", STEPS)
    runs.append(program.numbers_of(path("parts")))
    if any(run != runs[0] for run in runs):
        problems.append(f"places differ: {runs}")
    plan = json.loads(program.must("plan", "--model", PUBLISHED, *program.SHAPE, *LORA, "--base-format", "mxfp4", "--json").out)
    grains = LAYERS * -(-3 * EXPERTS * HIDDEN * INNER // 16384)
    if (plan["frozen"]["base_format"], plan["frozen"]["base_bytes"]) != ("mxfp4", grains * (16384 // 2 + 512)):
        problems.append(f"planned {plan['frozen']}, and the experts have {grains} grains")
    texts = [program.must("generate", path(run), "--prompt", "the ", "--max-tokens", 10, "--temperature", 0, "--precision",
                          "fp32").out for run in ("base-d", "typed")]
    if texts[0] != texts[1]:
        problems.append(f"texts {texts}")
    program.must("export", path("base-d"), path("adapter"))
    program.must("export", PUBLISHED, path("merged-apart"), "--adapter", path("adapter"), "--merge")
    found = values_of(path("merged-apart"))
    problems += [f"merged: {name} is {found.get(name)[0]}, changed: {found[name][1] != EXACT[name]}" for name, shape in shapes().items()
                 if found[name][0] != shape or (found[name][1] != EXACT[name]) != name.endswith(ADAPTED)]
    losses = [json.loads(program.must("eval", *flags, "--data", DATA, "--seq", program.SEQ, "--precision", "fp32", "--json").out)["loss"]
              for flags in ((path("merged-apart"),), (PUBLISHED, "--adapter", path("adapter")), (path("base-n"),), (PUBLISHED,))]
    # The merged weights are rounded to bf16.
    if losses[1] != losses[2] or abs(losses[0] - losses[1]) > 1e-3 * losses[1] or not losses[1] < 0.99 * losses[3]:
        problems.append(f"losses merged, with the adapter, of the run, and without: {losses}")
    # Adapters of experts have no dropout: these are none.
    program.must("plan", "--machine", "h100", "--model", "gpt-oss-20b", *ATTENTION, "--lora-dropout", 0.1)
    return problems + program.refused("a merged export", ["export", path("base-d"), path("merged"), "--merge"], "--base-format mxfp4",
                                      "leave out --merge")


def folder_with(name, **changes):
    stored = dict(STORED)
    for tensor, entry in changes.items():
        stored["model.layers.0.mlp.experts." + tensor] = entry
    return hf_folder.make(path(name), CONFIG | MXFP4, hf_folder.stored({key: entry for key, entry in stored.items() if entry is not None}))


def experts_are_a_base_that_is_rounded():
    """From either folder the same numbers, those of the values nearly, and a merged export with the experts of the base."""
    problems = []
    program.must(*train(PLAIN, "typed-attention", *ATTENTION, precision="fp32"))
    for form, most in (("int8", 2e-3), ("nf4", 2e-2)):
        for folder, name in ((PUBLISHED, f"{form}-published"), (PLAIN, f"{form}-plain")):
            program.must(*train(folder, name, *ATTENTION, "--base-format", form, precision="fp32"))
            program.must("export", path(name), path(name + "-out"), "--merge")
        if program.numbers_of(path(f"{form}-published")) != program.numbers_of(path(f"{form}-plain")):
            problems.append(f"{form}: MXFP4 and plain weights train differently")
        losses = [[line["loss"] for line in program.steps_of(path(run))] for run in (f"{form}-plain", "typed-attention")]
        if any(abs(loss - value) > most * value for loss, value in zip(*losses, strict=True)) or losses[0] == losses[1]:
            problems.append(f"{form}: losses {losses[0]}, those of the values {losses[1]}")
        found = values_of(path(f"{form}-published-out"))
        if found != values_of(path(f"{form}-plain-out")):
            problems.append(f"{form}: MXFP4 and plain weights are merged differently")
        problems += [f"{form}: merged {name} differs" for name, shape in shapes().items() if ".experts." in name and
                     (found[name][0] != shape or max(abs(a - b) for a, b in zip(found[name][1], EXACT[name], strict=True)) > 0.02)]
    return problems


def experts_that_are_units_train_alike():
    """Frozen in place, and beside adapters with the codes of the file: the losses and exports of whole blocks."""
    problems = []
    for name, flags in (("frozen", ("--freeze", "*.experts.*", "--place", "weights=nvme")),
                        ("lora", (*LORA, "--base-format", "mxfp4", "--place", "weights=nvme"))):
        numbers, exports = [], []
        for group in ((), ("--expert-group", 1)):
            run = f"units-{name}-{len(group)}"
            program.must(*train(PUBLISHED, run, *flags, *group, "--clip", 1000, precision="fp32", steps=2))
            program.must("export", path(run), path(run + "-out"))
            numbers.append([line["loss"] for line in program.steps_of(path(run))])
            exports.append(program.tree(path(run + "-out")))
        if numbers[0] != numbers[1] or exports[0] != exports[1]:
            problems.append(f"{name}: losses {numbers}, exports {exports[0] == exports[1]}")
    return problems


def verify_finds_a_changed_code():
    """Frozen experts are read from the model's folder: verify names the tensor, and the place of its first code in the grain."""
    folder, name = path("changing"), "model.layers.1.mlp.experts.gate_up_proj"
    shutil.copytree(WIDE_PUBLISHED, folder)
    program.must(*train(folder, "checked", "--freeze", "*.experts.*", steps=1))
    clean = json.loads(program.must("verify", path("checked"), "--json").out)["bad"]
    file = os.path.join(folder, "model.safetensors")
    with open(file, "rb") as content:
        header, data = hf_folder.split(content.read())
    base = os.path.getsize(file) - len(data)
    expert, group = 3, 1  # of elements [3, 32 and 33, 191] of the model's [5, 64, 192]
    at = header[name + "_blocks"]["data_offsets"][0] + ((expert * 2 * WIDE + 2 * WIDE - 1) * HIDDEN + group * GROUP) // 2
    stat = os.stat(file)
    with open(file, "r+b") as opened:
        opened.seek(base + at)
        opened.write(bytes([data[at] ^ 0x11]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    bad = json.loads(program.run("verify", path("checked"), "--json").out)["bad"]
    # The experts are the first tensors of the block, and the changed codes stand for elements of this grain.
    grain = (expert * HIDDEN + group * GROUP) * 2 * WIDE // 16384
    of, within = divmod(grain * 16384, HIDDEN * 2 * WIDE)
    column, row = divmod(within, 2 * WIDE)
    offset = base + header[name + "_blocks"]["data_offsets"][0] + ((of * 2 * WIDE + row) * HIDDEN + column) // 2
    found = [(entry["grain"], entry["tensor"], entry["offset"]) for entry in bad]
    return [] if clean == [] and found == [(grain, name + "_blocks", offset)] else [f"clean: {clean}, changed: {bad}, not {offset}"]


def what_is_wrong_is_refused():
    turned = folder_with("turned", gate_up_proj_blocks=("U8", [EXPERTS, HIDDEN, 2 * INNER // GROUP, 16],
                                                        bytes(EXPERTS * HIDDEN * INNER)))
    scaleless = folder_with("scaleless", down_proj_scales=None)
    short = folder_with("short", gate_up_proj_bias=("BF16", [2 * INNER], bytes(4 * INNER)))
    uneven = hf_folder.make(path("uneven"), CONFIG | MXFP4 | {"intermediate_size": 96}, hf_folder.stored(STORED))
    problems = program.refused_each([
        ("a transposed matrix", train(turned, "none"), "gate_up_proj_blocks", "by config.json it is [5, 128, 2, 16]"),
        ("no scales", train(scaleless, "none"), "down_proj_blocks", "no scales"),
        ("one bias for all", train(short, "none"), "gate_up_proj_bias", "by config.json it is [5, 128]"),
        ("another width", train(uneven, "none"), "gate_up_proj"),
        ("a base of plain weights", train(PLAIN, "none", *LORA, "--base-format", "mxfp4"), "--base-format mxfp4",
         "is stored as F32"),
        ("a base that no adapters train on", train(PUBLISHED, "none", "--freeze", "*.experts.*", "--base-format", "mxfp4"),
         "--base-format mxfp4", "--lora"),
        ("experts that are trained and a base", train(PUBLISHED, "none", *LORA, "--base-format", "mxfp4", "--modules-to-save", "experts"),
         "--modules-to-save", "gate_up_proj", "--base-format mxfp4")])
    for flags in (("--tiles", 2), ("--precision", "fp8", "--optimizer-state", "bf16")):
        problems += program.refused(flags[0], ["plan", "--model", "gpt-oss-20b", *flags], flags[0], "gpt_oss")
    return problems + program.refused("dropout", ["plan", "--model", "gpt-oss-20b", "--lora", 4, "--lora-dropout", 0.1], "--lora-dropout")


script_test.run(experts_are_read_as_transformers_has_them, commands_compute_with_the_values, a_base_stays_in_mxfp4,
                experts_are_a_base_that_is_rounded, experts_that_are_units_train_alike,
                verify_finds_a_changed_code, what_is_wrong_is_refused)
