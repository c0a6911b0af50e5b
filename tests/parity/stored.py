#!/usr/bin/env python3
"""Compares weights that spillway reads in fp8 and MXFP4 with the torch and transformers that are installed.

Writes small checkpoints of random codes and scales, trains each for a step at a rate of 0, exports it in fp32, and
compares each weight with the values of transformers' Fp8Dequantize and convert_moe_packed_tensors. All must be equal.
Prints a line for each kind of checkpoint; exits 1 where a weight differs.

  stored.py [--spillway build/spillway]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HIDDEN, FFN, VOCAB, HEADS, HEAD_DIM, LAYERS = 256, 384, 256, 4, 64, 2
CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
          "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
          "head_dim": HEAD_DIM, "max_position_embeddings": 64, "tie_word_embeddings": False}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
MATRICES = {"self_attn.q_proj": [HIDDEN, HIDDEN], "self_attn.k_proj": [HIDDEN, HIDDEN], "self_attn.v_proj": [HIDDEN, HIDDEN],
            "self_attn.o_proj": [HIDDEN, HIDDEN], "mlp.gate_proj": [FFN, HIDDEN], "mlp.up_proj": [FFN, HIDDEN],
            "mlp.down_proj": [HIDDEN, FFN]}
VECTORS = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN, "self_attn.q_norm": HEAD_DIM,
           "self_attn.k_norm": HEAD_DIM}


def in_fp8(name, shape, scale_type):
    codes = torch.randn(shape).mul(120).to(torch.float8_e4m3fn)
    scales = torch.rand([size // 128 for size in shape]).mul(2e-4).to(scale_type)
    values = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
    return {name: codes, name + "_scale_inv": scales}, values


def in_mxfp4(name, shape):
    codes = torch.randint(0, 256, [shape[0], shape[1] // 32, 16], dtype=torch.uint8)
    scales = torch.randint(118, 123, [shape[0], shape[1] // 32], dtype=torch.uint8)
    # transformers keeps the matrices of experts, and turns them.
    values = convert_moe_packed_tensors(codes[None], scales[None], dtype=torch.float32)[0].t().contiguous()
    return {name + "_blocks": codes, name + "_scales": scales}, values


def plain(shape, mean=0.0):
    return mean + 0.02 * torch.randn(shape)


def checkpoint(quantize):
    values = {"model.embed_tokens.weight": plain([VOCAB, HIDDEN]), "lm_head.weight": plain([VOCAB, HIDDEN]),
              "model.norm.weight": plain([HIDDEN], 1.0)}
    for layer in range(LAYERS):
        values |= {f"model.layers.{layer}.{name}.weight": plain([size], 1.0) for name, size in VECTORS.items()}
    stored = dict(values)
    for layer in range(LAYERS):
        for module, shape in MATRICES.items():
            name = f"model.layers.{layer}.{module}.weight"
            pieces, values[name] = quantize(name, shape)
            stored |= pieces
    return stored, values


def run(spillway, *arguments):
    done = subprocess.run([spillway, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"spillway {arguments[0]}: {done.stderr}")


def differing(spillway, folder, quantization, quantize):
    """The names of the weights that are not equal."""
    stored, values = checkpoint(quantize)
    model, data = folder / "model", folder / "data.txt"
    model.mkdir()
    save_file(stored, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": quantization}))
    data.write_text("to be or not to be " * 200)
    run(spillway, "train", "--model", model, "--data", data, "--run", folder / "run", "--steps", 1, "--lr", 0, "--seq", 32,
        "--batch-tokens", 64, "--precision", "fp32")
    run(spillway, "export", folder / "run", folder / "out")
    found = load_file(folder / "out" / "model.safetensors")
    return [name for name in values if not torch.equal(values[name], found[name])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", default="build/spillway")
    given = parser.parse_args()
    torch.manual_seed(43)
    kinds = {"fp8, fp32 scales": (FP8, lambda name, shape: in_fp8(name, shape, torch.float32)),
             "fp8, bf16 scales": (FP8, lambda name, shape: in_fp8(name, shape, torch.bfloat16)),
             "mxfp4": ({"quant_method": "mxfp4"}, in_mxfp4)}
    wrong = False
    for kind, (quantization, quantize) in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            names = differing(given.spillway, pathlib.Path(folder), quantization, quantize)
        wrong = wrong or bool(names)
        print(f"{kind}: {'all weights are equal' if not names else 'these differ: ' + ', '.join(names)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
