"""Training by the kernels as nvcc compiled them, interpreted: the losses are the CPU's but for rounding, the same whenever
asynchronous work lands, and near where sums are cut off as tensor cores do."""

import os

import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(2, 6000))
STEPS = 2
ROUNDING = 2e-3  # relative, of a bf16 loss by another device


def losses(name, device, **env):
    run = os.path.join(SCRATCH, name)
    ended = program.run("train", "--model", "llama-tiny", "--init", "--data", DATA, "--run", run, "--steps", STEPS, "--seq", 32,
                        "--micro-batch", 1, "--batch-tokens", 64, "--threads", 1, "--precision", "bf16", "--device", device,
                        env={**os.environ, **env})
    if ended.code != 0:
        raise AssertionError(f"{name}: {ended.err}")
    return [step["loss"] for step in program.steps_of(run)]


def near(found, expected):
    return len(found) == STEPS and all(abs(x - y) <= ROUNDING * abs(y) for x, y in zip(found, expected))


def trains_as_the_cpu_does():
    """Other bits than the CPU's show that it was the GPU which computed."""
    cpu, exact = losses("cpu", "cpu"), losses("interpreted", "cuda")
    late, cut = losses("another order", "cuda", SW_PTX_SEED="2"), losses("cut sums", "cuda", SW_PTX_SUMS="cut")
    problems = [] if near(exact, cpu) and exact != cpu else [f"{exact}, and the CPU's are {cpu}"]
    problems += [] if late == exact else [f"{late} where asynchronous work lands at other times than for {exact}"]
    return problems + ([] if near(cut, exact) else [f"{cut} where sums are cut off, and not {exact}"])


script_test.run(trains_as_the_cpu_does)
