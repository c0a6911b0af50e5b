"""Checkpoints in fp8 and MXFP4 as a user has them: their values are those of the formats' definitions, worked out here,
for training, evaluation, generation and exports; a frozen base that keeps such a format has the same numbers as one of the
values; and what is wrong in checkpoints is refused by name."""

import array
import functools
import json
import os
import random
import struct
import subprocess

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 12000))
VAL = program.write(os.path.join(SCRATCH, "val.txt"), program.text(6, 3000))
KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 1, 64, 1, 256
# Hidden size, heads and inner size: matrices of whole blocks, and with parts of blocks at their ends.
EVEN, UNEVEN = (128, 2, 256), (160, 3, 192)
DIVIDED = (128, 4, 256, 2)  # with key-value heads: a half of each matrix has whole blocks
CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCAB, "num_hidden_layers": LAYERS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
          "max_position_embeddings": 256, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
       "modules_to_not_convert": ["lm_head"]}
ROWS = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
BLOCK, GROUP, STEPS = 128, 32, 3


def path(*names):
    return os.path.join(SCRATCH, *names)


def described(sizes, quantization):
    fields = dict(zip(("hidden_size", "num_attention_heads", "intermediate_size", "num_key_value_heads"), sizes))
    return {**CONFIG, **fields, "quantization_config": quantization}


def shapes(sizes):
    """The tensors of a Qwen3; those of two dimensions within layers are what checkpoints quantize."""
    hidden, heads, ffn, *kv_heads = sizes
    found = {"model.embed_tokens.weight": [VOCAB, hidden]}
    for layer in range(LAYERS):
        queries, keys = heads * HEAD_DIM, (kv_heads or [KV_HEADS])[0] * HEAD_DIM
        names = {"input_layernorm.weight": [hidden], "self_attn.q_proj.weight": [queries, hidden],
                 "self_attn.k_proj.weight": [keys, hidden], "self_attn.v_proj.weight": [keys, hidden],
                 "self_attn.q_norm.weight": [HEAD_DIM], "self_attn.k_norm.weight": [HEAD_DIM],
                 "self_attn.o_proj.weight": [hidden, queries], "post_attention_layernorm.weight": [hidden],
                 "mlp.gate_proj.weight": [ffn, hidden], "mlp.up_proj.weight": [ffn, hidden],
                 "mlp.down_proj.weight": [hidden, ffn]}
        found.update({f"model.layers.{layer}.{name}": shape for name, shape in names.items()})
    return found | {"model.norm.weight": [hidden], "lm_head.weight": [VOCAB, hidden]}


def is_matrix(name, shape):
    return len(shape) == 2 and ".layers." in name


def f32(values):
    """The numbers rounded once to fp32, to the nearest and ties to even."""
    return array.array("f", values).tolist()


def e4m3(code):
    """Micikevicius et al., arXiv 2209.05433, table 1."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 128 else magnitude


E4M3 = [e4m3(code) for code in range(256)]
# OCP Microscaling Formats 1.0, section 5.3.3.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def in_fp8(name, shape, draw, kind):
    """A matrix in fp8: what the file has, and its values. kind: "blocks" with fp32 or bf16 scales, "rows" or "whole"."""
    rows, cols = shape
    codes = bytes(code if code & 127 != 127 else 0 for code in draw.randbytes(rows * cols))
    block = {"rows": (1, cols), "whole": (rows, cols)}.get(kind, (BLOCK, BLOCK))
    grid = [-(-rows // block[0]), -(-cols // block[1])]
    narrow = kind == "bf16 blocks"
    scales = f32(draw.uniform(1e-4, 4e-4) for _ in range(grid[0] * grid[1]))
    packed = b"".join(struct.pack("<f", scale)[2 if narrow else 0:] for scale in scales)
    if narrow:
        scales = [struct.unpack("<f", b"\0\0" + packed[2 * i:2 * i + 2])[0] for i in range(len(scales))]
    values = f32(E4M3[codes[row * cols + col]] * scales[row // block[0] * grid[1] + col // block[1]]
                 for row in range(rows) for col in range(cols))
    shape_of_scales = {"whole": [], "rows": [rows, 1]}.get(kind, grid)
    ending = "_scale" if kind in ("rows", "whole") else "_scale_inv"
    return {name: ("F8_E4M3", shape, codes), name + ending: ("BF16" if narrow else "F32", shape_of_scales, packed)}, values


def in_mxfp4(name, shape, draw):
    rows, cols = shape
    codes, scales = draw.randbytes(rows * cols // 2), bytes(draw.randint(119, 122) for _ in range(rows * cols // GROUP))
    values = [E2M1[codes[i // 2] >> i % 2 * 4 & 15] * 2.0 ** (scales[i // GROUP] - 127) for i in range(rows * cols)]
    return {name + "_blocks": ("U8", [rows, cols // GROUP, GROUP // 2], codes),
            name + "_scales": ("U8", [rows, cols // GROUP], scales)}, values


@functools.cache
def pieces(kind, sizes):
    """The tensors of a checkpoint, which nobody changes: what its file has, and values by name."""
    stored, exact = {}, {}
    for name, shape in shapes(sizes).items():
        draw = random.Random(f"{kind} {name}")
        if is_matrix(name, shape):
            found, exact[name] = in_mxfp4(name, shape, draw) if kind == "mxfp4" else in_fp8(name, shape, draw, kind)
            stored |= found
            continue
        centre = 1.0 if len(shape) == 1 else 0.0
        values = f32(centre + draw.uniform(-0.05, 0.05) for _ in range(hf_folder.count(shape)))
        stored[name], exact[name] = ("F32", shape, struct.pack(f"<{len(values)}f", *values)), values
    return stored, exact


QUANTIZATION = {"blocks": FP8, "bf16 blocks": FP8, "rows": ROWS, "whole": ROWS, "mxfp4": MXFP4}


def folders_of(kind, sizes=UNEVEN):
    """A quantized folder, one that has the same values in fp32, and these values."""
    stored, exact = pieces(kind, sizes)
    name = f"{kind}-{sizes[0]}-{sizes[1]}".replace(" ", "-")
    quantized = hf_folder.make(path(name), described(sizes, QUANTIZATION[kind]), hf_folder.stored(stored))
    plain = hf_folder.make(path(name + "-plain"), described(sizes, None),
                           hf_folder.safetensors({tensor: (shapes(sizes)[tensor], exact[tensor]) for tensor in exact}))
    return quantized, plain, exact


FOLDERS = {kind: folders_of(kind) for kind in QUANTIZATION}


def train(folder, run, *more, precision="fp32", rate="1e-3", steps=STEPS):
    return ["train", "--model", folder, "--data", DATA, "--run", path(run), "--steps", steps, "--warmup", 1, "--lr", rate,
            *program.SHAPE, "--precision", precision, *more]


def tensors_of(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as content:
        header, data = hf_folder.split(content.read())
    return {name: (entry["dtype"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()
            if name != "__metadata__"}


def weights_are_the_values_of_their_codes():
    """An export at a rate of 0 has them in fp32, and a config.json that says nothing of codes."""
    problems = []
    for kind, (folder, _, exact) in FOLDERS.items():
        run = f"still-{kind}"
        said = program.must(*train(folder, run, rate=0)).err
        form = "mxfp4" if kind == "mxfp4" else "fp8"
        if f"{LAYERS * 7} tensors in {form}" not in said:
            problems.append(f"{kind}: nothing is said of what is read: {said[-300:]}")
        program.must("export", path(run), path(run + "-out"))
        found = tensors_of(path(run + "-out"))
        # An update of 0 makes -0 to 0, which compare as equal.
        problems += [f"{kind}: {name} differs" for name, values in exact.items()
                     if found[name][0] != "F32" or list(struct.unpack(f"<{len(values)}f", found[name][1])) != values]
        fields = program.read_json(path(run + "-out", "config.json"))
        if found.keys() != exact.keys() or "quantization_config" in fields or fields["torch_dtype"] != "float32":
            problems.append(f"{kind}: the export has {sorted(found)[:3]} and {fields}")
        program.must("eval", path(run + "-out"), "--data", VAL, "--seq", program.SEQ)
    return problems


def commands_compute_with_the_values():
    problems = []
    for kind in ("blocks", "mxfp4"):
        folder, plain, _ = FOLDERS[kind]
        for model in (folder, plain):
            program.must(*train(model, f"full-{os.path.basename(model)}", precision="bf16"))
        numbers = [program.numbers_of(path(f"full-{os.path.basename(model)}")) for model in (folder, plain)]
        losses = [json.loads(program.must("eval", model, "--data", VAL, "--seq", program.SEQ, "--json").out)["loss"]
                  for model in (folder, plain)]
        texts = [program.must("generate", model, "--prompt", "the ", "--max-tokens", 10, "--temperature", 0).out
                 for model in (folder, plain)]
        if numbers[0] != numbers[1] or losses[0] != losses[1] or texts[0] != texts[1]:
            problems.append(f"{kind}: {numbers}, {losses}, {texts}")
        plans = [json.loads(program.must("plan", "--model", model, *program.SHAPE, "--json").out)["parameters"]
                 for model in (folder, plain)]
        if plans[0] != plans[1]:
            problems.append(f"{kind}: plans for {plans} parameters")
    return problems


WRONG = "model.layers.0.mlp.up_proj.weight"


def changed(name, kind, change, quantization):
    """A folder whose file or quantization_config was changed."""
    stored = dict(pieces(kind, UNEVEN)[0])
    change(stored)
    fields = described(UNEVEN, quantization or QUANTIZATION[kind])
    return hf_folder.make(path("bad-" + name.replace(" ", "-")), fields, hf_folder.stored(stored))


def set_bytes(tensor, at, content):
    def change(stored):
        kind, shape, data = stored[tensor]
        stored[tensor] = (kind, shape, data[:at] + content + data[at + len(content):])
    return change


def reshape(tensor, shape, count):
    def change(stored):
        kind, _, data = stored[tensor]
        stored[tensor] = (kind, shape, data[:count])
    return change


def retype(tensor, kind):
    def change(stored):
        stored[tensor] = (kind, *stored[tensor][1:])
    return change


def nothing(_):
    """The file is right."""


def what_is_wrong_is_refused_by_name():
    infinite = struct.pack("<f", float("inf"))
    table = [
        ("NaN code", "blocks", set_bytes(WRONG, 1000, b"\x7f"), None, WRONG, "not finite at element 1000"),
        ("negative NaN code", "rows", set_bytes(WRONG, 7, b"\xff"), None, WRONG, "not finite at element 7"),
        ("infinite scale", "blocks", set_bytes(WRONG + "_scale_inv", 4, infinite), None, WRONG + "_scale_inv",
         "a scale that is not finite at element 1"),
        ("NaN exponent", "mxfp4", set_bytes(WRONG + "_scales", 2, b"\xff"), None, WRONG, "not finite at element 64"),
        ("no scales", "blocks", lambda stored: stored.pop(WRONG + "_scale_inv"), None, WRONG, "no scales"),
        ("no exponents", "mxfp4", lambda stored: stored.pop(WRONG + "_scales"), None, WRONG + "_blocks", "no scales"),
        ("no blocks", "mxfp4", lambda stored: stored.pop(WRONG + "_blocks"), None, f"no tensor '{WRONG}'"),
        ("few scales", "blocks", reshape(WRONG + "_scale_inv", [1, 1], 4), None, WRONG + "_scale_inv", "[1, 1]", "[2, 2]"),
        ("few rows", "rows", reshape(WRONG + "_scale", [191, 1], 4 * 191), None, WRONG + "_scale", "[191, 1]", "[1, 1]"),
        ("cut nibbles", "mxfp4", reshape(WRONG + "_blocks", [192, 5, 15], 192 * 75), None, WRONG + "_blocks",
         "[192, 5, 15]", "[192, 5, 16]"),
        ("few exponents", "mxfp4", reshape(WRONG + "_scales", [192, 4], 768), None, WRONG + "_scales", "[192, 5]"),
        ("e5m2", "blocks", retype(WRONG, "F8_E5M2"), None, WRONG, "F8_E5M2"),
        ("plain beside scales", "blocks", lambda stored: stored.update({WRONG: ("F32", [192, 160], bytes(122880))}), None,
         WRONG, "F32", "scales"),
        ("gptq", "blocks", nothing, {"quant_method": "gptq", "bits": 4}, "gptq", "fp8 and mxfp4"),
        ("awq", "blocks", nothing, {"quant_method": "awq"}, "awq", "fp8 and mxfp4"),
        ("bitsandbytes", "blocks", nothing, {"quant_method": "bitsandbytes"}, "bitsandbytes", "fp8 and mxfp4"),
        ("packed", "blocks", nothing, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "pack-quantized"),
        ("other fp8", "blocks", nothing, FP8 | {"fmt": "e5m2"}, "'quantization_config'"),
        ("no block", "blocks", nothing, FP8 | {"weight_block_size": [128]}, "'weight_block_size' is [128]"),
        ("other kind", "mxfp4", nothing, FP8, "_blocks", "quantization_config"),
    ]
    problems = []
    for name, kind, change, quantization, *words in table:
        folder = changed(name, kind, change, quantization)
        late = "not finite at" in words[-1] and "scale" not in words[-1]
        ended = program.run("eval", folder, "--data", VAL, "--seq", program.SEQ)
        if ended.code != 1 or [word for word in words if word not in ended.err]:
            problems.append(f"{name}: status {ended.code}, {ended.err[-400:]}")
        if not late and len(ended.err.splitlines()) != 1:
            problems.append(f"{name}: not one sentence: {ended.err}")
    return problems


# A base that keeps the format of its checkpoint: fp8 with fp32 scales of blocks, with a scale for each row, and mxfp4.
BASES = {"blocks": "fp8", "rows": "fp8", "mxfp4": "mxfp4"}
RECORD_BYTES = {"fp8": 16384 + 128 * 4, "mxfp4": 16384 // 2 + 512}
EVEN_FOLDERS = {kind: folders_of(kind, EVEN) for kind in BASES}
LORA = ("--lora", 4, "--lora-alpha", 8)
AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"


def a_stored_base_has_the_numbers_of_its_values():
    """On every tier, after a resume with another, and in bf16 and fp32, which hold the values of codes differently."""
    problems = []
    places = {"device": "weights=device", "host": "weights=host,optimizer=nvme", "nvme": AWAY}
    for kind, form in BASES.items():
        folder, plain, _ = EVEN_FOLDERS[kind]
        for precision in ("bf16", "fp32"):
            typed = f"typed-{kind}-{precision}"
            program.must(*train(plain, typed, *LORA, precision=precision))
            for name, place in list(places.items())[precision == "fp32":]:
                run = f"{kind}-{precision}-{name}"
                program.must(*train(folder, run, *LORA, "--base-format", form, "--place", place, precision=precision))
                if program.numbers_of(path(run)) != program.numbers_of(path(typed)):
                    problems.append(f"{run}: other numbers than the values' own")
        program.must(*train(folder, f"{kind}-parts", *LORA, "--base-format", form, "--place", AWAY, "--schedule-steps", STEPS,
                            precision="bf16", steps=1))
        program.must("resume", path(f"{kind}-parts"), "--steps", STEPS, "--place", "weights=host")
        if program.numbers_of(path(f"{kind}-parts")) != program.numbers_of(path(f"typed-{kind}-bf16")):
            problems.append(f"{kind}: other numbers after a resume")
    return problems


def plans_and_runs_count_the_bytes_of_records():
    problems = []
    for kind, form in BASES.items():
        folder = EVEN_FOLDERS[kind][0]
        place = ("--place", "weights=nvme,optimizer=host,grads=host,acts=host")
        plan = json.loads(program.must("plan", "--model", folder, *program.SHAPE, "--precision", "bf16", *LORA, "--base-format",
                                       form, *place, "--nvme", SCRATCH, "--json").out)
        grains = -(-sum(hf_folder.count(shape) for name, shape in shapes(EVEN).items() if is_matrix(name, shape)) // 16384)
        frozen = plan["frozen"]
        if (frozen["base_format"], frozen["base_bytes"]) != (form, LAYERS * grains * RECORD_BYTES[form]):
            problems.append(f"{kind}: {grains} grains, planned {frozen}")
        program.must(*train(folder, f"read-{kind}", *LORA, "--base-format", form, *place, precision="bf16"))
        read = program.steps_of(path(f"read-{kind}"))[-1]["bytes"]["nvme_read"]
        if read != plan["lanes"]["read"]["bytes"]:
            problems.append(f"{kind}: {read} bytes read, planned {plan['lanes']['read']['bytes']}")
    return problems


def passes_have_the_losses_of_values(kind, names=("records", "values")):
    """Evaluations by one rank and by two, of which one kind has not the groups of the run."""
    losses = {}
    for name in names:
        for ranks in (1, 2):
            words = ["eval", path(f"group-{kind}-{name}"), "--data", VAL, "--seq", program.SEQ, "--precision", "fp32", "--json"]
            ended = program.limits.run(threads(ranks, program.command(*words, *(["--tensor", ranks] if ranks > 1 else []))),
                                       capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                return [f"{kind}: {name} by {ranks}: {ended.stderr[-500:]}"]
            losses[name, ranks] = json.loads(ended.stdout)["loss"]
    least, most = min(losses.values()), max(losses.values())
    return [] if most - least < 1e-6 * most else [f"{kind}: losses {losses}"]


def groups_have_the_numbers_of_its_values():
    """Each rank of a tensor group takes its part of the records, which are whole blocks of parts of rows."""
    problems = []
    for kind, form in BASES.items():
        folder, plain, _ = folders_of(kind, DIVIDED)
        for name, model, more in (("values", plain, ()), ("records", folder, ("--base-format", form))):
            run = path(f"group-{kind}-{name}")
            for arguments in (train(model, f"group-{kind}-{name}", *LORA, *more, "--tensor", 2, "--schedule-steps", STEPS,
                                    "--place", AWAY, precision="bf16", steps=1), ["resume", run, "--steps", STEPS]):
                ended = program.limits.run(threads(2, program.command(*arguments)), stdin=subprocess.DEVNULL,
                                           capture_output=True, text=True, check=False)
                if ended.returncode != 0:
                    return problems + [f"{kind} {name}: {ended.stderr[-400:]}"]
        if program.numbers_of(path(f"group-{kind}-values")) != program.numbers_of(path(f"group-{kind}-records")):
            problems.append(f"{kind}: other numbers than the values' own")
        problems += passes_have_the_losses_of_values(kind)
        if "rounded anew" in program.must("resume", path(f"group-{kind}-records"), "--steps", STEPS + 1, "--tensor", 1).err:
            problems.append(f"{kind}: a resume says that it rounds codes")
        problems += passes_have_the_losses_of_values(kind, names=("records",))
    halves = hf_folder.make(path("halves"), described((128, 4, 128, 2), FP8), None)
    return problems + program.refused("halves of blocks", ["plan", "--model", halves, *program.SHAPE, *LORA, "--base-format", "fp8",
                                                           "--ranks", 2, "--tensor", 2], "down_proj", "parts of 64")


def other_commands_know_a_stored_base():
    """An evaluation has the loss of the training's own; verify finds nothing; a merged export is that of the values."""
    problems = []
    for kind, form in BASES.items():
        folder, plain, _ = EVEN_FOLDERS[kind]
        run = f"used-{kind}"
        program.must(*train(folder, run, *LORA, "--base-format", form, "--val", VAL, "--eval-every", STEPS, precision="bf16"))
        program.must(*train(plain, run + "-plain", *LORA, precision="bf16"))
        logged = [line["val_loss"] for line in program.log_lines(path(run)) if "val_loss" in line][-1]
        loss = json.loads(program.must("eval", path(run), "--data", VAL, "--seq", program.SEQ, "--precision", "bf16",
                                       "--json").out)["loss"]
        texts = [program.must("generate", path(name), "--prompt", "the ", "--max-tokens", 10, "--temperature", 0, "--precision",
                              "bf16").out for name in (run, run + "-plain")]
        report = json.loads(program.must("verify", path(run), "--json").out)
        for name in (run, run + "-plain"):
            program.must("export", path(name), path(name + "-out"), "--merge")
        merged = [tensors_of(path(name + "-out")) for name in (run, run + "-plain")]
        if abs(loss - logged) > 1e-9 * logged or texts[0] != texts[1] or report["bad"] != [] or merged[0] != merged[1]:
            problems.append(f"{kind}: losses {loss} and {logged}, texts {texts}, bad {report['bad']}")
    return problems


def two_ranks_have_the_numbers_of_one():
    problems = []
    folder = EVEN_FOLDERS["blocks"][0]
    for stage in (0, 3):
        run = f"ranks-{stage}"
        done = program.limits.run(threads(2, program.command(*train(folder, run, *LORA, "--base-format", "fp8", "--zero", stage,
                                                                    precision="bf16"))),
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problems.append(f"stage {stage}: {done.stderr[-400:]}")
    return problems or ([] if program.numbers_of(path("ranks-0")) == program.numbers_of(path("ranks-3")) else ["other numbers"])


def bases_that_are_not_stored_so_are_refused():
    even, uneven, plain = EVEN_FOLDERS["blocks"][0], FOLDERS["blocks"][0], EVEN_FOLDERS["blocks"][1]
    mixed = dict(pieces("mxfp4", EVEN)[0])
    name = "model.layers.0.self_attn.o_proj.weight"
    shape = shapes(EVEN)[name]
    del mixed[name + "_blocks"], mixed[name + "_scales"]
    mixed[name] = ("BF16", shape, bytes(2 * hf_folder.count(shape)))
    part = hf_folder.make(path("mixed"), described(EVEN, MXFP4), hf_folder.stored(mixed))

    def base(folder, form, *more):
        return train(folder, "none", *more, "--base-format", form)

    rows = [("plain weights", base(plain, "fp8", *LORA), "--base-format fp8", "is stored as F32"),
            ("another format", base(even, "mxfp4", *LORA), "--base-format mxfp4", "is stored as F8_E4M3"),
            ("one matrix in bf16", base(part, "mxfp4", *LORA), name, "is stored as BF16"),
            ("rows of parts of blocks", base(uneven, "fp8", *LORA), "blocks of 128 weights", "160"),
            ("a plan of plain weights", ["plan", "--model", plain, *program.SHAPE, *LORA, "--base-format", "fp8"],
             "is stored as F32")]
    problems = program.refused_each(rows)
    return problems + program.refused_each(
        [("nothing frozen", base(even, "fp8"), "--lora or --freeze"),
         ("random weights", base("llama-tiny", "fp8", "--init", *LORA), "--init"),
         ("fp8 twice", train(even, "none", *LORA, "--base-format", "fp8", precision="fp8"), "--precision fp8")], status=2)


def a_base_that_changed_is_refused():
    """A code or a scale that changed in the folder since the run began is named."""
    problems = []
    for kind, form, tensor in (("blocks", "fp8", WRONG), ("blocks", "fp8", WRONG + "_scale_inv"),
                               ("mxfp4", "mxfp4", WRONG + "_scales")):
        stored = dict(pieces(kind, EVEN)[0])
        name = f"moved-{tensor.rsplit('.', 1)[-1]}-{form}"
        folder = hf_folder.make(path(name), described(EVEN, QUANTIZATION[kind]), hf_folder.stored(stored))
        program.must(*train(folder, name + "-run", *LORA, "--base-format", form))
        entry = stored[tensor]
        set_bytes(tensor, 2, bytes([entry[2][2] ^ 1]))(stored)
        program.write(os.path.join(folder, "model.safetensors"), hf_folder.stored(stored))
        problems += program.refused(f"{form}, {tensor}", ["resume", path(name + "-run"), "--steps", STEPS + 1], "has changed since",
                                    "up_proj.weight")
    return problems


script_test.run(a_stored_base_has_the_numbers_of_its_values, plans_and_runs_count_the_bytes_of_records,
                groups_have_the_numbers_of_its_values, other_commands_know_a_stored_base, two_ranks_have_the_numbers_of_one, bases_that_are_not_stored_so_are_refused,
                a_base_that_changed_is_refused, weights_are_the_values_of_their_codes, commands_compute_with_the_values,
                what_is_wrong_is_refused_by_name)
