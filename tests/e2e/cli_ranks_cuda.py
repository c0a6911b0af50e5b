"""Ranks whose devices are GPUs: emulated ones, that an emulated NCCL joins."""

import json
import os
import subprocess

from program import command, limits, must, numbers_of, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import far, mpirun

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


def train(run, *more, model="gpt2-tiny", update="host"):
    more = more if "--place" in more else (*more, *place())
    return command("train", "--model", model, "--init", "--data", DATA, "--run", path(run), "--steps", STEPS,
                   "--seq", SEQ, "--micro-batch", 1, "--batch-tokens", 4 * SEQ, "--chunk-grains", 2, "--threads", 1,
                   "--precision", "fp32", "--order", "batch", "--device", "cuda", "--device-memory", "256MiB", "--update", update, *more)


def job(arguments, ranks=2, **environment):
    return limits.run(mpirun((ranks, arguments)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=os.environ | environment)


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


def gpus_share_out_experts():
    """With the losses of one GPU but for the order of sums, and the same bits for every stage and placement of four."""
    os.mkdir(path("experts"))
    write(os.path.join(path("experts"), "config.json"), json.dumps(
        {"model_type": "mixtral", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": SEQ, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2}))
    must(*train("experts-one", model=path("experts"))[1:])
    problems, numbers = [], []
    for number, (ranks, *flags) in enumerate(((2,), (4, "--zero", 1), (4, "--zero", 3, *AWAY))):
        run = f"experts-{number}"
        done = job(train(run, "--allow-shared-gpu", "--experts", 2, *flags, model=path("experts")), ranks=ranks)
        if done.returncode != 0 or "NCCL" not in done.stderr:
            return [f"{ranks} ranks {flags}: status {done.returncode}: {done.stderr[-1500:]}"]
        problems += far(run, path(run), path("experts-one"), tolerance=1e-5)
        numbers.append(numbers_of(path(run)))
    return problems + ([] if numbers[1] == numbers[2] else [f"the bits depend on the stage: {numbers[1:]}"])


def gpus_are_stages_of_a_pipeline():
    """With the losses of one GPU but for the order of sums, and the same bits for every stage of ZeRO below 2 and placement."""
    problems, numbers = [], []
    for number, (ranks, *flags) in enumerate(((2,), (2, *AWAY), (4, "--zero", 0), (4, "--zero", 1, *AWAY))):
        run = f"stages-{number}"
        done = job(train(run, "--allow-shared-gpu", "--pipeline", 2, *flags), ranks=ranks)
        if done.returncode != 0 or "NCCL" not in done.stderr:
            return [f"{ranks} ranks {flags}: status {done.returncode}: {done.stderr[-1500:]}"]
        problems += far(run, path(run), path("one"), tolerance=1e-5)
        numbers.append(numbers_of(path(run)))
    return problems + ([] if numbers[0] == numbers[1] and numbers[2] == numbers[3] else [f"the bits depend on the placement: {numbers}"])


def gpus_share_whole_matrices():
    """Muon's: each GPU has some, with the same bits for both stages and placements, near those of one GPU, which then takes their state
    over."""
    problems, ends = [], []
    must(*train("muon-one", "--optimizer", "muon", update="device")[1:])
    for number, flags in enumerate((("--zero", 2, *place()), ("--zero", 3, *AWAY))):
        run = f"muon-{number}"
        done = job(train(run, "--allow-shared-gpu", "--optimizer", "muon", *flags, update="device"))
        if done.returncode != 0 or "NCCL" not in done.stderr:
            return [f"{flags}: status {done.returncode}: {done.stderr[-1500:]}"]
        ends.append(numbers_of(path(run)))
    must("resume", path("muon-1"), "--steps", STEPS + 1)
    problems += far("muon", path("muon-0"), path("muon-one"), tolerance=1e-4)
    return problems + ([] if ends[0] == ends[1] else [f"the bits depend on the stage: {ends}"])


def nccl_that_errs_is_refused():
    """Before anything is made of it, by the collective's name."""
    done = job(train("wrong", "--allow-shared-gpu"), SW_EMULATED_NCCL="wrong")
    right = done.returncode != 0 and "NCCL's all-gather" in done.stderr and "wrong results" in done.stderr
    return [] if right and not os.path.exists(path("wrong")) else [f"status {done.returncode}: {done.stderr[-1500:]}"]


script_test.run(two_ranks_on_one_gpu_are_refused, sharing_is_refused_where_nccl_cannot, gpus_train_as_one_does,
                quantized_exchange_has_the_same_bits_for_every_placement, gpus_share_out_experts, gpus_are_stages_of_a_pipeline,
                gpus_share_whole_matrices, nccl_that_errs_is_refused)
