"""The pairs `step-124m` and `step-0.5b`: a training step with all state in memory."""

import contender
from contender import Contender, Goal, Pair, Shape

PEERS = ("torch", "transformers")


def torch_step(name, shape, settings, *flags):
    return Contender(name, lambda session: contender.worker_command(session, shape, "torch_step.py", *flags),
                     contender.read_worker, PEERS, settings)


def pair(name, title, shape):
    return Pair(name, title, (
        contender.ours("spillway", shape, "--place", "optimizer=device", settings="all state in memory"),
        torch_step("torch eager", shape, "bf16 autocast, fp32 masters, SDPA, fused AdamW"),
        torch_step("torch compiled", shape, "the same; forward and loss under torch.compile", "--compile")),
        (Goal("spillway", ("torch eager", "torch compiled"), "step_s", 1.5),), shape, 0.02)


def pairs(quick):
    if quick:
        return [pair("step-tiny", "Step of a tiny GPT-2, 128 tokens", Shape("gpt2-tiny", 64, 2, 3))]
    return [pair("step-124m", "Step of GPT-2 124M, 2,048 tokens", Shape("gpt2-124m", 1024, 2, 4)),
            pair("step-0.5b", "Step of Qwen2.5-0.5B's shape, 1,024 tokens", Shape("qwen2.5-0.5b", 1024, 1, 3))]
