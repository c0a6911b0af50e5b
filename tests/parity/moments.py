#!/usr/bin/env python3
"""Makes tests/data/moments.json: bitsandbytes' map, the nearest codes of drawn blocks, and torch.optim.AdamW on moments
that are quantized between the steps, for moments_golden.c.

Needs torch and bitsandbytes. The nearest numbers are searched in fp64: the kernel of bitsandbytes for the CPU is coarser
for small numbers, and the share of its codes that are the nearest is printed. Everything follows from hashes of step and
index, as in tests/parity/README.md, so a second run writes the same bytes.
"""

import json
import pathlib
import sys

import bitsandbytes
import bitsandbytes.functional
import numpy
import torch

BLOCK, BLOCKS, STEPS = 256, 16, 50
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
SIGNED = bitsandbytes.functional.create_dynamic_map(signed=True)
UNSIGNED = bitsandbytes.functional.create_dynamic_map(signed=False)


def hashes(step, count):
    z = (numpy.uint64(step) << numpy.uint64(32)) + numpy.arange(count, dtype=numpy.uint64)
    z = z + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def values(step, count, octaves):
    """Returns numbers of either sign, spread over some powers of two below 1; all are exact in fp32."""
    bits = hashes(step, count)
    size = (bits >> numpy.uint64(40)).astype(numpy.float64) * 2.0**-24
    sign = numpy.where(bits & numpy.uint64(1), -1.0, 1.0)
    scale = 2.0 ** -((bits >> numpy.uint64(8)) % numpy.uint64(octaves)).astype(numpy.float64)
    return torch.tensor(sign * size * scale, dtype=torch.float32)


def quantize(tensor, code):
    """Returns the nearest codes of the map, and the scales; a value above 0 of the unsigned map has at least code 1."""
    blocks = tensor.double().reshape(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True)
    middles = (code[1:].double() + code[:-1].double()) / 2
    codes = torch.bucketize(blocks / scales, middles)
    if code[0] == 0:
        codes = torch.where((codes == 0) & (blocks > 0), 1, codes)
    return codes, scales.float()


def widen(codes, scales, code):
    return (code[codes] * scales).reshape(-1)


def kernel_share(tensor, code):
    """Returns the share of the codes of bitsandbytes' kernel for the CPU that are the nearest ones."""
    codes, _ = bitsandbytes.functional.quantize_blockwise(tensor, code=code, blocksize=BLOCK)
    return (codes == quantize(tensor, code)[0].reshape(-1)).float().mean().item()


def run_steps(count):
    """AdamW of torch on moments that are quantized between the steps."""
    parameter = torch.nn.Parameter(values(0, count, 4))
    adamw = torch.optim.AdamW([parameter], lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"],
                              weight_decay=ADAMW["weight_decay"])
    for step in range(1, STEPS + 1):
        parameter.grad = values(step, count, 6)
        adamw.step()
        state = adamw.state[parameter]
        state["exp_avg"] = widen(*quantize(state["exp_avg"], SIGNED), SIGNED)
        state["exp_avg_sq"] = widen(*quantize(state["exp_avg_sq"], UNSIGNED), UNSIGNED)
    return parameter.detach(), state["exp_avg"], state["exp_avg_sq"]


def main():
    moments = values(1000, BLOCK * BLOCKS, 22)
    m, m_scales = quantize(moments, SIGNED)
    v, v_scales = quantize(moments.abs(), UNSIGNED)
    p, exp_avg, exp_avg_sq = run_steps(2 * BLOCK)
    content = {"versions": {"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__}, "steps": STEPS,
               **ADAMW, "signed": SIGNED, "unsigned": UNSIGNED, "m_codes": m.reshape(-1),
               "v_codes": v.reshape(-1), "m_scales": m_scales.reshape(-1), "v_scales": v_scales.reshape(-1), "p": p, "m": exp_avg, "v": exp_avg_sq}

    def text(value):
        if not isinstance(value, torch.Tensor):
            return json.dumps(value)
        floats = value.is_floating_point()
        return "[" + ",".join(f"{x:.9g}" if floats else str(x) for x in value.tolist()) + "]"

    path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data") / "moments.json"
    path.write_text("{\n" + ",\n".join(f"{json.dumps(k)}:{text(x)}" for k, x in content.items()) + "\n}\n")
    large = values(2000, BLOCK * BLOCKS, 4)
    print(f"codes of bitsandbytes' kernel that are the nearest: {kernel_share(moments, SIGNED):.4f} of m and "
          f"{kernel_share(moments.abs(), UNSIGNED):.4f} of v over 22 octaves, {kernel_share(large, SIGNED):.4f} and "
          f"{kernel_share(large.abs(), UNSIGNED):.4f} over 4")
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
