"""The pairs `nvme-128` and `nvme-2048`: a training step of GPT-2 124M with the optimizer, then also the weights, on NVMe."""

import contender
from contender import Contender, Goal, Pair, Shape

PEERS = ("torch", "transformers", "deepspeed")
SETTINGS = ("ZeRO stage 3, CPU accelerator, pipeline_read, aio block_size 1 MiB, queue_depth 32, overlap_events, "
            "sub_group_size 4e7, buffer_count 8")
DEEPSPEED, DEEPSPEED_WRITE = "DeepSpeed, optimizer on NVMe", "DeepSpeed, the same with pipeline_write"


def deepspeed(name, shape, settings, *flags):
    def command(session):
        return contender.worker_command(session, shape, "deepspeed_step.py", "--nvme", session.fresh("deepspeed"), *flags)
    return Contender(name, command, contender.read_worker, PEERS, settings)


def placed(name, shape, place, settings):
    return contender.ours(name, shape, "--place", place, settings=settings)


def pair(name, title, shape, least):
    goals = (Goal("optimizer on NVMe", (DEEPSPEED, DEEPSPEED_WRITE), "step_s", least),
             Goal("optimizer on NVMe", (DEEPSPEED, DEEPSPEED_WRITE), "peak_bytes", 1))
    if shape.tokens >= 2048:
        goals += (Goal("optimizer on NVMe", ("all in memory",), "step_s", 1 / 1.05),)
    return Pair(name, title, (
        placed("all in memory", shape, "optimizer=device", "spillway, for the cost of placing"),
        placed("optimizer on NVMe", shape, "optimizer=nvme", "spillway; every step commits and is flushed"),
        deepspeed(DEEPSPEED, shape, SETTINGS + "; nothing is flushed"),
        deepspeed(DEEPSPEED_WRITE, shape, SETTINGS + " and 12, pipeline_write", "--pipeline-write"),
        placed("optimizer and weights on NVMe", shape, "optimizer=nvme,weights=nvme", "spillway"),
        deepspeed("DeepSpeed, both on NVMe", shape, SETTINGS + "; 16 buffers for parameters, max_in_cpu 0, max_reuse_distance 0", "--params")), goals, shape, 0.02)


def pairs(quick):
    if quick:
        return [pair("nvme-tiny", "Step of a tiny GPT-2, optimizer on NVMe", Shape("gpt2-tiny", 64, 2, 3), 1)]
    return [pair("nvme-128", "Step of GPT-2 124M on NVMe, 128 tokens", Shape("gpt2-124m", 128, 1, 6), 3),
            pair("nvme-2048", "Step of GPT-2 124M on NVMe, 2,048 tokens", Shape("gpt2-124m", 1024, 2, 4), 2.5)]
