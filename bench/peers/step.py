"""The pairs `step-124m` and `step-0.5b`: a training step with all state in memory."""

from dataclasses import replace

import contender
from contender import Contender, Goal, Pair, Shape

PEERS = ("torch", "transformers")
NARROW, WIDE = "bf16 autocast, fp32 masters, SDPA, fused AdamW", "fp32, SDPA, fused AdamW"
COMPILED = "the same; forward and loss under torch.compile"


def torch_step(name, shape, precision, settings, *flags):
    needs = PEERS + (("a device for bf16",) if precision == "bf16" else ())
    return Contender(name, lambda session: contender.worker_command(session, shape, "torch_step.py", "--precision", precision,
                                                                    *flags), contender.read_worker, needs, settings)


def pair(name, title, shape):
    """Both precisions: which of them is faster depends on the processor, and a user of either program would take that one."""
    wide = replace(shape, precision="fp32")
    torch = (torch_step("torch eager", shape, "bf16", NARROW),
             torch_step("torch compiled", shape, "bf16", COMPILED, "--compile"),
             torch_step("torch eager, fp32", shape, "fp32", WIDE),
             torch_step("torch compiled, fp32", shape, "fp32", COMPILED, "--compile"))
    return Pair(name, title, (
        contender.ours("spillway", shape, "--place", "optimizer=device", settings="all state in memory"),
        contender.ours("spillway, fp32", wide, "--place", "optimizer=device", settings="the same"), *torch),
        (Goal("spillway", tuple(one.name for one in torch), "step_s", 1.5), Goal("spillway", ("spillway, fp32",), "step_s", 1.0)),
        shape, 0.02)


def pairs(quick):
    if quick:
        return [pair("step-tiny", "Step of a tiny GPT-2, 128 tokens", Shape("gpt2-tiny", 64, 2, 3))]
    return [pair("step-124m", "Step of GPT-2 124M, 2,048 tokens", Shape("gpt2-124m", 1024, 2, 4)),
            pair("step-0.5b", "Step of Qwen2.5-0.5B's shape, 1,024 tokens", Shape("qwen2.5-0.5b", 1024, 1, 3))]
