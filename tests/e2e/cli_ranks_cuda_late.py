"""Ranks whose devices are GPUs, where exchanges are the device's own work: what an emulated NCCL does arrives late, what depends on
it waits on the device, and a rank or an exchange that is lost ends the job."""

import json
import os
import re
import signal
import subprocess
import time

from program import command, limits, numbers_of, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import Job, mpirun

FOLDER = scratch_folder()
SEED = int(os.environ.get("SW_TEST_SEED", "20261127"))
STEPS, ENDLESS = 2, 100000
SEQ = 16  # short: what is late, or lost, is an exchange, whose bytes do not depend on the tokens
DEVICE = ("--place", "weights=device,acts=device,grads=device,optimizer=device")
SHAPES = {"zero": ("--zero", 3, *DEVICE), "tensor": ("--tensor", 2, *DEVICE),
          "quantized": ("--zero", 3, "--gather", "int8", "--reduce", "int4", *DEVICE),
          "away": ("--zero", 3, "--place", "weights=host,acts=host,grads=host,optimizer=nvme")}
# Exchanges that end late show who does not wait for them; a device that is late, which of them do not wait.
LATE_EXCHANGES = {"SW_EMULATED_NCCL": "late", "SW_TEST_SEED": str(SEED)}
LATE_DEVICE = {"SW_EMULATED_DELAY_NS": "200000", "SW_TEST_SEED": str(SEED)}
TIMEOUT_S = 5


def path(name):
    return os.path.join(FOLDER, name)


DATA = write(path("data.txt"), text(1, 60 * SEQ))


def train(run, *more, steps=STEPS):
    return command("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps, "--seq", SEQ,
                   "--micro-batch", 1, "--batch-tokens", 4 * SEQ, "--chunk-grains", 2, "--threads", 1, "--precision", "fp32", "--order",
                   "layer", "--device", "cuda", "--device-memory", "256MiB", "--update", "host", "--allow-shared-gpu", *more)


def job(arguments, **environment):
    return limits.run(mpirun((2, arguments)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                      env=os.environ | environment)


def late_exchanges_give_the_same_bits():
    problems = []
    for name, flags in SHAPES.items():
        numbers = []
        for what, environment in (("plain", {}), ("late-exchanges", LATE_EXCHANGES), ("late-device", LATE_DEVICE)):
            done = job(train(f"{name}-{what}", *flags), **environment)
            numbers.append(numbers_of(path(f"{name}-{what}")) if done.returncode == 0 else done.stderr[-1500:])
        if numbers != [numbers[0]] * len(numbers):
            problems.append(f"{name}, seed {SEED}: other bits, or none: {numbers}")
    return problems


def a_missing_wait_would_be_seen():
    """Where the emulated device forgets waits, of exchanges or for them, the bits are others, or nothing works at all."""
    problems = []
    for name, flags in SHAPES.items():
        for what, environment in (("unawaited", {**LATE_EXCHANGES, "SW_EMULATED_NCCL": "late,unawaited"}),
                                  ("early", {**LATE_DEVICE, "SW_EMULATED_NCCL": "early"})):
            done = job(train(f"{name}-{what}", *flags), **environment)
            if done.returncode == 0 and numbers_of(path(f"{name}-{what}")) == numbers_of(path(f"{name}-plain")):
                problems.append(f"{name}, seed {SEED}: nobody noticed exchanges that are {what}")
    return problems


def only_the_summary_of_a_step_waits_for_the_host():
    """The update and the head's loss do too, but for the norm of the step before, which is computed there."""
    problems = []
    for name in ("zero", "tensor"):
        trace = path(f"{name}.json")
        done = job(train(f"{name}-traced", *SHAPES[name], "--trace", trace, steps=4))
        if done.returncode != 0:
            return [f"{name}: status {done.returncode}: {done.stderr[-1500:]}"]
        with open(trace, encoding="utf-8") as file:
            ops = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X" and event["args"]["step"] == 3]
        waits = [op for op in ops if op["args"].get("host_wait")]
        exchanges = [op["name"] for op in waits if op["cat"] == "comm"]
        others = {re.sub(" (block|embedding|head| [cm]).*", "", op["name"]) for op in waits if op["cat"] == "compute"}
        print(f"# {name}: of {sum(op['cat'] == 'comm' for op in ops)} exchanges of a step, {len(exchanges)} waited for the host, and "
              f"{sum(op['cat'] == 'compute' for op in waits)} of {sum(op['cat'] == 'compute' for op in ops)} ops of compute")
        if exchanges != ["exchange summary"] or others != {"update on device", "forward and backward"}:
            problems.append(f"{name}: {exchanges} and {others} wait for the host")
    return problems


def said_by(done):
    return [line for line in done.splitlines() if line.startswith("spillway ")]


def ends_by_nccl(what, arguments, words, sentence):
    done = job(arguments, SW_EMULATED_NCCL=words)
    said = said_by(done.stderr)
    if done.returncode != 0 and len(said) == 1 and re.search(rf"NCCL cannot {sentence}: .*while running \S+.* in step \d", said[0]):
        return []
    return [f"{what}, {words}: status {done.returncode}: {done.stderr[-1500:]}"]


def an_error_of_nccl_ends_the_run():
    """It may come asynchronously or at what is given next, and what was given before never ends by itself."""
    problems = []
    for name, words, sentence in (("zero", "errs", "go on"), ("tensor", "errs", "go on"),
                                  ("tensor", "errs,refuses", "(go on|start a round)")):
        problems += ends_by_nccl(name, train(f"{name}-{words}", *SHAPES[name], steps=ENDLESS), words, sentence)
    return problems


def an_error_of_nccl_ends_an_evaluation():
    """It closes its engine, with all that hangs in it, before it says why."""
    arguments = command("eval", path("tensor-plain"), "--data", DATA, "--seq", SEQ, "--precision", "fp32", "--threads", 1, "--tensor", 2,
                        "--device", "cuda", "--device-memory", "256MiB")
    return ends_by_nccl("eval", arguments, "errs", "go on")


def a_lost_rank_ends_the_job():
    problems = []
    for name, how, what in (("zero", signal.SIGKILL, "has died"), ("tensor", signal.SIGKILL, "has died"),
                            ("tensor", signal.SIGSTOP, "has not answered")):
        run = f"{name}-{how.name}"
        running = Job(path("job.log"), 2, train(run, *SHAPES[name], "--rank-timeout", TIMEOUT_S, steps=ENDLESS)).wait_for("  loss ")
        os.kill(running.processes()[1], how)
        begun = time.monotonic()
        code, said = running.end(), said_by(running.said())
        if code in (None, 0) or len(said) != 1 or not re.search(rf"rank 1 .*{what}", said[0]) or time.monotonic() - begun > 60:
            problems.append(f"{run}: status {code} after {time.monotonic() - begun:.0f} s: {running.said()[-1500:]}")
    return problems


def a_gpu_that_hangs_is_named():
    """Though its host has given it the collective that the other rank waits in: it has not begun it. A lane is named if one was in an op
    then; the host may have given all of them to the device before."""
    problems = []
    for name in ("zero", "tensor"):
        run = f"{name}-hangs"
        done = job(train(run, *SHAPES[name], "--rank-timeout", TIMEOUT_S, steps=ENDLESS), SW_EMULATED_GPU="hangs",
                   SW_EMULATED_FAULT_RANK="1", SW_EMULATED_FAULT_WHEN=path(f"{run}/log.jsonl"))
        said = said_by(done.stderr)
        if done.returncode == 0 or len(said) != 1 or not re.search(
                r"rank 1 .* has done nothing for .* it has not entered '.*', where rank 0 waits; (its lane \S+ was in '|if that)", said[0]):
            problems.append(f"{name}: status {done.returncode}: {done.stderr[-1500:]}")
    return problems


def a_wish_to_stop_ends_all_ranks():
    running = Job(path("job.log"), 2, train("stopped", *SHAPES["away"], steps=ENDLESS)).wait_for("  loss ")
    os.kill(running.processes()[1], signal.SIGUSR1)
    code = running.end()
    steps = [line["step"] for line in steps_of(path("stopped"))]
    right = code == 130 and "stopped on request" in running.said() and steps == list(range(1, len(steps) + 1))
    return [] if right else [f"status {code}, steps {steps}: {running.said()[-1500:]}"]


script_test.run(late_exchanges_give_the_same_bits, a_missing_wait_would_be_seen, only_the_summary_of_a_step_waits_for_the_host,
                an_error_of_nccl_ends_the_run, an_error_of_nccl_ends_an_evaluation, a_lost_rank_ends_the_job, a_gpu_that_hangs_is_named,
                a_wish_to_stop_ends_all_ranks)
