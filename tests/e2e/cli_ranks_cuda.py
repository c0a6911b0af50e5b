"""Ranks whose devices are GPUs: emulated ones, that an emulated NCCL joins."""

import os
import subprocess

from program import command, limits, must, numbers_of, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import mpirun

FOLDER = scratch_folder()
# Short: what ranks exchange does not depend on the tokens. What is not named is on the device, so that nothing is left to choose.
STEPS, SEQ = 2, 16
CLOSED = {"weights": "device", "acts": "device", "grads": "device", "optimizer": "device"}
TOLERANCE, QUANTIZED_TOLERANCE = 1e-6, 1e-2


def place(**states):
    return "--place", ",".join(map("=".join, (CLOSED | states).items()))


AWAY = place(weights="host", grads="host", optimizer="nvme")
PLACES = (("--zero", 2, *place()), ("--zero", 3, *AWAY), ("--zero", 3, *place(optimizer="nvme"), "--zero-secondary", "node"))


def path(name):
    return os.path.join(FOLDER, name)


DATA = write(path("data.txt"), text(1, 60 * SEQ))


def train(run, *more):
    more = more if "--place" in more else (*more, *place())
    return command("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", STEPS,
                   "--seq", SEQ, "--micro-batch", 1, "--batch-tokens", 4 * SEQ, "--chunk-grains", 2, "--threads", 1,
                   "--precision", "fp32", "--order", "batch", "--device", "cuda", "--device-memory", "256MiB", "--update", "host", *more)


def job(arguments, **environment):
    return limits.run(mpirun((2, arguments)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=os.environ | environment)


def two_ranks_on_one_gpu_are_refused():
    done = job(train("shared"))
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    right = done.returncode != 0 and len(said) == 1 and "ranks 0 and 1 have the same GPU" in said[0]
    return [] if right and not os.path.exists(path("shared")) else [f"status {done.returncode}: {done.stderr[-1500:]}"]


def sharing_is_refused_where_nccl_cannot():
    done = job(train("cannot-share", "--allow-shared-gpu"), SW_EMULATED_NCCL_ONE_RANK_A_GPU="1")
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    right = done.returncode != 0 and len(said) == 1 and "two ranks share a GPU" in said[0] and "--device cpu" in said[0]
    return [] if right and not os.path.exists(path("cannot-share")) else [f"status {done.returncode}: {done.stderr[-1500:]}"]


def gpus_train_as_one_does():
    must(*train("one")[1:])
    problems, numbers = [], []
    for number, flags in enumerate(PLACES):
        run = f"two-{number}"
        done = job(train(run, "--allow-shared-gpu", *flags))
        if done.returncode != 0:
            return [f"{flags}: status {done.returncode}: {done.stderr[-1500:]}"]
        if "NCCL" not in done.stderr:
            problems.append(f"{flags}: not by NCCL: {done.stderr[-1500:]}")
        numbers.append(numbers_of(path(run)))
        problems += [f"{flags}: step {one['step']}: loss {two['loss']!r} and not {one['loss']!r}"
                     for one, two in zip(steps_of(path("one")), steps_of(path(run)), strict=True)
                     if abs(two["loss"] - one["loss"]) > TOLERANCE * one["loss"]]
    return problems + ([] if all(found == numbers[0] for found in numbers) else [f"the bits depend on the stage: {numbers}"])


def quantized_exchange_has_the_same_bits_for_every_placement():
    """Near the training of one, and the state's placement changes nothing."""
    problems, numbers = [], []
    for number, flags in enumerate((place(), AWAY)):
        run = f"quantized-{number}"
        done = job(train(run, "--allow-shared-gpu", "--zero", 3, "--gather", "int8", "--reduce", "int4", *flags))
        if done.returncode != 0:
            return [f"{flags}: status {done.returncode}: {done.stderr[-1500:]}"]
        numbers.append(numbers_of(path(run)))
        problems += [f"{flags}: step {one['step']}: loss {two['loss']!r} and not near {one['loss']!r}"
                     for one, two in zip(steps_of(path("one")), steps_of(path(run)), strict=True)
                     if abs(two["loss"] - one["loss"]) > QUANTIZED_TOLERANCE * one["loss"]]
    if numbers[0] == numbers_of(path("one")):
        problems.append("nothing was quantized")
    return problems + ([] if numbers[0] == numbers[1] else [f"the bits depend on the placement: {numbers}"])


def nccl_that_errs_is_refused():
    """Before anything is made of it, by the collective's name."""
    done = job(train("wrong", "--allow-shared-gpu"), SW_EMULATED_NCCL="wrong")
    right = done.returncode != 0 and "NCCL's all-gather" in done.stderr and "wrong results" in done.stderr
    return [] if right and not os.path.exists(path("wrong")) else [f"status {done.returncode}: {done.stderr[-1500:]}"]


script_test.run(two_ranks_on_one_gpu_are_refused, sharing_is_refused_where_nccl_cannot, gpus_train_as_one_does,
                quantized_exchange_has_the_same_bits_for_every_placement, nccl_that_errs_is_refused)
