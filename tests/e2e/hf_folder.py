"""Hugging Face folders of small GPT-2 models, right ones and wrong ones, and what export writes read back."""

import array
import json
import os
import random
import struct
import sys

HIDDEN, LAYERS, HEADS, POSITIONS = 32, 2, 4, 64


def config(**changes):
    fields = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": POSITIONS,
              "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not ...}


def byte_tokenizer(**changes):
    """A tokenizer.json whose tokens are the 256 bytes, each by its own number, in the spelling of GPT-2's table."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in prints]
    spelled = {byte: chr(byte) for byte in prints} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    fields = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
              "pre_tokenizer": byte_level, "decoder": byte_level,
              "model": {"type": "BPE", "vocab": {spelled[byte]: byte for byte in range(256)}, "merges": []}}
    return json.dumps({**fields, **changes})


CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def write_chat_tokenizer(folder, template=CHATML, first=1):
    """The files of a byte tokenizer with the special tokens of ChatML, of the ids `first` and the next, and a chat
    template. Ids from 1 are bytes, too, but no text has them."""
    rules = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    added = [{"id": first + i, "content": content, **rules}
             for i, content in enumerate(("<|im_start|>", "<|im_end|>"))]
    for name, content in (("tokenizer.json", byte_tokenizer(added_tokens=added)),
                          ("tokenizer_config.json", json.dumps({"chat_template": template}))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content)


def chat(*contents):
    """A line of JSON: turns of user and assistant, one after the other."""
    roles = ("user", "assistant")
    return json.dumps({"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]}) + "\n"


def shapes(vocab=256, hidden=HIDDEN, layers=LAYERS, positions=POSITIONS):
    found = {"wte.weight": [vocab, hidden], "wpe.weight": [positions, hidden]}
    for block in range(layers):
        names = {"ln_1.weight": [hidden], "ln_1.bias": [hidden], "ln_2.weight": [hidden], "ln_2.bias": [hidden],
                 "attn.c_attn.weight": [hidden, 3 * hidden], "attn.c_attn.bias": [3 * hidden],
                 "attn.c_proj.weight": [hidden, hidden], "attn.c_proj.bias": [hidden],
                 "mlp.c_fc.weight": [hidden, 4 * hidden], "mlp.c_fc.bias": [4 * hidden],
                 "mlp.c_proj.weight": [4 * hidden, hidden], "mlp.c_proj.bias": [hidden]}
        found.update({f"h.{block}.{name}": shape for name, shape in names.items()})
    found.update({"ln_f.weight": [hidden], "ln_f.bias": [hidden]})
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


def packed(values, kind):
    """Their bytes in fp32 or in bf16, cut off."""
    floats = array.array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    whole = floats.tobytes()
    return whole if kind == "F32" else b"".join(whole[at + 2:at + 4] for at in range(0, len(whole), 4))


def safetensors(named, kind_of=lambda name: "F32"):
    header, pieces, end = {}, [], 0
    for name, (shape, values) in named.items():
        pieces.append(packed(values, kind_of(name)))
        header[name] = {"dtype": kind_of(name), "shape": shape, "data_offsets": [end, end + len(pieces[-1])]}
        end += len(pieces[-1])
    return join(header, b"".join(pieces))


def join(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def stored(tensors_of):
    """A safetensors file of tensors as they are stored: by name, the type, the shape and the bytes."""
    header, data = {}, b""
    for name, (kind, shape, content) in tensors_of.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return join(header, data)


def write_zeros(path, named_shapes):
    """A safetensors file of zeros, which takes no room on the drive. Returns its bytes."""
    header, end = {}, 0
    for name, shape in named_shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + 4 * count(shape)]}
        end += 4 * count(shape)
    front = join(header, b"")
    with open(path, "wb") as file:
        file.write(front)
        file.truncate(len(front) + end)
    return len(front) + end


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
