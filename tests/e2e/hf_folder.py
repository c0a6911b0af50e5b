"""Hugging Face folders of small GPT-2 models, right ones and wrong ones, and what export writes read back."""

import json
import os
import random
import struct

HIDDEN, LAYERS, HEADS, POSITIONS = 32, 2, 4, 64


def config(**changes):
    fields = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": POSITIONS,
              "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not ...}


def shapes(vocab=256):
    found = {"wte.weight": [vocab, HIDDEN], "wpe.weight": [POSITIONS, HIDDEN]}
    for block in range(LAYERS):
        names = {"ln_1.weight": [HIDDEN], "ln_1.bias": [HIDDEN], "ln_2.weight": [HIDDEN], "ln_2.bias": [HIDDEN],
                 "attn.c_attn.weight": [HIDDEN, 3 * HIDDEN], "attn.c_attn.bias": [3 * HIDDEN],
                 "attn.c_proj.weight": [HIDDEN, HIDDEN], "attn.c_proj.bias": [HIDDEN],
                 "mlp.c_fc.weight": [HIDDEN, 4 * HIDDEN], "mlp.c_fc.bias": [4 * HIDDEN],
                 "mlp.c_proj.weight": [4 * HIDDEN, HIDDEN], "mlp.c_proj.bias": [HIDDEN]}
        found.update({f"h.{block}.{name}": shape for name, shape in names.items()})
    found.update({"ln_f.weight": [HIDDEN], "ln_f.bias": [HIDDEN]})
    return {"transformer." + name: shape for name, shape in found.items()}


def count(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def random_values(name, shape, seed):
    draw = random.Random(f"{seed} {name}")
    centre = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
    return [centre + draw.uniform(-0.05, 0.05) for _ in range(count(shape))]


def tensors(seed, vocab=256):
    """Names to (shape, values)."""
    return {name: (shape, random_values(name, shape, seed)) for name, shape in shapes(vocab).items()}


def safetensors(named):
    header, data = {}, b""
    for name, (shape, values) in named.items():
        piece = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    return join(header, data)


def join(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def split(content):
    """The header and the data of a safetensors file."""
    length, = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length]), content[8 + length:]


def make(folder, described, weights):
    """Writes a folder; None leaves a file out, text and bytes are written as they are."""
    os.makedirs(folder)
    if described is not None:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            file.write(described if isinstance(described, str) else json.dumps(described))
    if weights is not None:
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(weights)
    return folder
