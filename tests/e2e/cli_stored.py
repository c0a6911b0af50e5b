"""Checkpoints in fp8 and MXFP4 as a user has them: their values are those of the formats' definitions, worked out here,
for training, evaluation, generation and exports; and what is wrong in them is refused by name."""

import json
import os
import random
import struct

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 12000))
VAL = program.write(os.path.join(SCRATCH, "val.txt"), program.text(6, 3000))
KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 1, 64, 1, 256
# Hidden size, heads and inner size: matrices of whole blocks, and with parts of blocks at their ends.
EVEN, UNEVEN = (128, 2, 256), (160, 3, 192)
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
    fields = dict(zip(("hidden_size", "num_attention_heads", "intermediate_size"), sizes))
    return {**CONFIG, **fields, "quantization_config": quantization}


def shapes(sizes):
    """The tensors of a Qwen3; those of two dimensions within layers are what checkpoints quantize."""
    hidden, heads, ffn = sizes
    found = {"model.embed_tokens.weight": [VOCAB, hidden]}
    for layer in range(LAYERS):
        queries, keys = heads * HEAD_DIM, KV_HEADS * HEAD_DIM
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


def f32(value):
    """The number rounded once to fp32, to the nearest and ties to even."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def e4m3(code):
    """Micikevicius et al., arXiv 2209.05433, table 1."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 128 else magnitude


# OCP Microscaling Formats 1.0, section 5.3.3.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def in_fp8(name, shape, draw, kind):
    """A matrix in fp8: what the file has, and its values. kind: "blocks" with fp32 or bf16 scales, "rows" or "whole"."""
    rows, cols = shape
    codes = bytes(code if code & 127 != 127 else 0 for code in draw.randbytes(rows * cols))
    block = {"rows": (1, cols), "whole": (rows, cols)}.get(kind, (BLOCK, BLOCK))
    grid = [-(-rows // block[0]), -(-cols // block[1])]
    narrow = kind == "bf16 blocks"
    scales = [f32(draw.uniform(1e-4, 4e-4)) for _ in range(grid[0] * grid[1])]
    packed = b"".join(struct.pack("<f", scale)[2 if narrow else 0:] for scale in scales)
    if narrow:
        scales = [struct.unpack("<f", b"\0\0" + packed[2 * i:2 * i + 2])[0] for i in range(len(scales))]
    values = [f32(e4m3(codes[row * cols + col]) * scales[row // block[0] * grid[1] + col // block[1]])
              for row in range(rows) for col in range(cols)]
    shape_of_scales = {"whole": [], "rows": [rows, 1]}.get(kind, grid)
    ending = "_scale" if kind in ("rows", "whole") else "_scale_inv"
    return {name: ("F8_E4M3", shape, codes), name + ending: ("BF16" if narrow else "F32", shape_of_scales, packed)}, values


def in_mxfp4(name, shape, draw):
    rows, cols = shape
    codes, scales = draw.randbytes(rows * cols // 2), bytes(draw.randint(119, 122) for _ in range(rows * cols // GROUP))
    values = [E2M1[codes[i // 2] >> i % 2 * 4 & 15] * 2.0 ** (scales[i // GROUP] - 127) for i in range(rows * cols)]
    return {name + "_blocks": ("U8", [rows, cols // GROUP, GROUP // 2], codes),
            name + "_scales": ("U8", [rows, cols // GROUP], scales)}, values


def pieces(kind, sizes):
    """The tensors of a checkpoint: what its file has, and values by name."""
    stored, exact = {}, {}
    for name, shape in shapes(sizes).items():
        draw = random.Random(f"{kind} {name}")
        if is_matrix(name, shape):
            found, exact[name] = in_mxfp4(name, shape, draw) if kind == "mxfp4" else in_fp8(name, shape, draw, kind)
            stored |= found
            continue
        values = [f32((1.0 if len(shape) == 1 else 0.0) + draw.gauss(0, 0.03)) for _ in range(hf_folder.count(shape))]
        stored[name], exact[name] = ("F32", shape, struct.pack(f"<{len(values)}f", *values)), values
    return stored, exact


def file_of(stored):
    header, data = {}, b""
    for name, (kind, shape, content) in stored.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return hf_folder.join(header, data)


QUANTIZATION = {"blocks": FP8, "bf16 blocks": FP8, "rows": ROWS, "whole": ROWS, "mxfp4": MXFP4}


def folders_of(kind, sizes=UNEVEN):
    """A quantized folder, one that has the same values in fp32, and these values."""
    stored, exact = pieces(kind, sizes)
    name = f"{kind}-{sizes[0]}".replace(" ", "-")
    quantized = hf_folder.make(path(name), described(sizes, QUANTIZATION[kind]), file_of(stored))
    plain = hf_folder.make(path(name + "-plain"), described(sizes, None),
                           hf_folder.safetensors({tensor: (shapes(sizes)[tensor], exact[tensor]) for tensor in exact}))
    return quantized, plain, exact


FOLDERS = {kind: folders_of(kind) for kind in QUANTIZATION}


def train(folder, run, *more, precision="fp32", rate="1e-3"):
    return ["train", "--model", folder, "--data", DATA, "--run", path(run), "--steps", STEPS, "--warmup", 1, "--lr", rate,
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
    stored, _ = pieces(kind, UNEVEN)
    change(stored)
    fields = described(UNEVEN, quantization or QUANTIZATION[kind])
    return hf_folder.make(path("bad-" + name.replace(" ", "-")), fields, file_of(stored))


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


script_test.run(weights_are_the_values_of_their_codes, commands_compute_with_the_values, what_is_wrong_is_refused_by_name)
