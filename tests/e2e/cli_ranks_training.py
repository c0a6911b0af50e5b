"""Several ranks train: with the losses of one on the same batches, begun and ended together, whatever ends them."""

import glob
import json
import os
import random
import re
import signal
import subprocess
import time

from program import SEQ, command, limits, must, numbers_of, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import SHAPE, Job, far, mpirun, threads

FOLDER = scratch_folder()
SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 32)))
ROUNDS = int(os.environ.get("SW_TEST_ROUNDS", 4))
STEPS, EVAL_EVERY = 12, 5
NVME = "weights=host,grads=nvme,optimizer=nvme"
# Seconds on busy cores for a rank that hangs, for one that is well, and for the launcher once the ranks have ended.
TIMEOUT_S, PATIENT_S = 4, 100


def path(name):
    return os.path.join(FOLDER, name)


DATA = write(path("data.txt"), text(1, 60 * SEQ))


def train(run, *more, data=DATA, steps=STEPS, micro_batch=2, timeout_s=PATIENT_S):
    return command("train", "--model", "gpt2-tiny", "--init", "--data", data, "--run", path(run), "--steps", steps,
                   "--rank-timeout", timeout_s, "--micro-batch", micro_batch, *SHAPE, *more)


def resume(run, *more):
    return command("resume", path(run), *more)


def processes(ranks, arguments):
    return mpirun((ranks, arguments))


def together(ranks, arguments, status=0, launch=threads):
    """Runs what has to end with this status on so many ranks."""
    done = limits.run(launch(ranks, arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != status:
        raise RuntimeError(f"{ranks} ranks of {' '.join(arguments)}: status {done.returncode}: {done.stderr[-1500:]}")
    return done


def counts(line):
    """Without the evaluations at the ends of starts that went on later."""
    return "loss" in line or line["step"] % EVAL_EVERY == 0 or line["step"] == STEPS


def stages_train_as_one_rank_does():
    more = ("--val", "45%", "--eval-every", EVAL_EVERY)
    must(*train("one", *more)[1:])
    problems, numbers = [], {}
    for name, ranks, flags in (("two", 2, ("--zero", 0)), ("two-1", 2, ("--zero", 1, "--place", NVME)),
                               ("two-2", 2, ("--zero", 2, "--place", "grads=host,optimizer=host")),
                               ("two-3", 2, ("--zero", 3, "--place", NVME)), ("four", 4, ()),
                               ("two-processes", 2, ("--zero", 1)), ("four-processes", 4, ("--zero", 3, "--place", NVME)),
                               ("library", 3, ("--reduce", "library"))):
        # The library's sums are those of MPI.
        together(ranks, train(name, *more, *flags), launch=processes if "processes" in name or name == "library" else threads)
        problems += far(f"{ranks} ranks, {' '.join(map(str, flags))}", path(name), path("one"), counts)
        if "library" in flags:
            continue
        numbers.setdefault(ranks, numbers_of(path(name)))
        if numbers[ranks] != numbers_of(path(name)):
            problems.append(f"{name}: other bits than at another stage")
    said = steps_of(path("four"))[-1]
    if said["ranks"] != 4 or said["bytes"]["comm"] <= 0 or said["lanes"]["comm"] <= 0:
        problems.append(f"the log says of four ranks: {said}")
    return problems


def tokens_without_loss_count_for_all_ranks():
    """Ranks whose parts have fewer targets than others'."""
    draw = random.Random(SEED)
    data = write(path("masked.txt"), text(2, 60 * SEQ))
    write(data + ".mask", bytes(draw.random() < 0.5 * (i // (4 * SEQ) % 2) + 0.05 for i in range(60 * SEQ)))
    more = ("--val", "45%")
    must(*train("one-masked", *more, data=data)[1:])
    together(3, train("three-masked", *more, data=data))
    return far(f"three ranks, seed {SEED}", path("three-masked"), path("one-masked"), counts)


def a_time_limit_ends_all_ranks_at_once():
    # One rank would come to speculate here that nothing is clipped.
    done = together(2, train("limited", "--time-limit", "6s", "--clip", 0, "--place", NVME, steps=100000), status=3)
    right = "--time-limit is reached" in done.stderr and 0 < len(steps_of(path("limited"))) < 100000
    together(2, resume("limited", "--steps", len(steps_of(path("limited"))) + 3))
    return [] if right else [done.stderr[-1500:]]


def saves_by_time_are_agreed_on():
    """By the clock of rank 0, in the same steps of all ranks, and with the same bits as without."""
    flags = ("--place", "optimizer=host")
    job = Job(path("job.log"), 2, train("timed", *flags, "--save-every", "1s", steps=100000)).wait_for("with a save")
    limit = limits.Limit()
    while not limit.over():
        saving = [line["step"] for line in steps_of(path("timed")) if line["saved"]]
        if len(saving) >= 2:
            break
        time.sleep(1)
    for process in job.processes().values():
        os.kill(process, signal.SIGKILL)
    job.end()
    # More may have been saved before the kill reached the ranks, and the line of the last save may be missing.
    saving = [line["step"] for line in steps_of(path("timed")) if line["saved"]]
    saved = json.loads(must("verify", path("timed"), "--json").out)["step"]
    done = together(2, resume("timed", "--steps", saved + 2))
    after = int(re.search(r"continuing after step (\d+)", done.stderr)[1])
    together(2, train("counted", *flags, "--schedule-steps", 100000, "--warmup", 100, steps=saved + 2))
    problems = [] if after == saved >= saving[-1] - 1 else [f"after saves in {saving}, the last of {saved}, it went on after step {after}"]
    return problems + ([] if numbers_of(path("timed")) == numbers_of(path("counted")) else ["other bits than without"])


def a_wish_to_stop_saves_and_ends_all_ranks():
    """By way of the launcher, which forwards it to all, or of a rank that alone knows."""
    problems = []
    for name, whom in (("all", lambda job: job.process.pid), ("one", lambda job: job.processes()[1])):
        job = Job(path("job.log"), 2, train(name + "-stopped", "--place", NVME, steps=100000)).wait_for("step 3/")
        os.kill(whom(job), signal.SIGUSR1)
        code = job.end()
        if code != 130 or "stopped on request" not in job.said():
            problems.append(f"{name}: status {code}: {job.said()[-1500:]}")
        steps = [line["step"] for line in steps_of(path(name + "-stopped"))]
        if steps != list(range(1, len(steps) + 1)):
            problems.append(f"{name}: the log has steps {steps}")
    return problems


def long_job():
    """Begins or goes on with a long training, and is somewhere in it."""
    begun = os.path.exists(path("lost"))
    arguments = resume("lost") if begun else train("lost", "--place", NVME, steps=100000, timeout_s=TIMEOUT_S)
    return Job(path("job.log"), 3, arguments).wait_for("  loss ")


def launcher_told(how, draw):
    """Ends a job as its user would: mpirun gives its ranks a second or so."""
    job = long_job()
    time.sleep(draw.random())
    job.process.send_signal(how)
    code = job.end()
    said = [line for line in job.said().splitlines() if line.startswith("spillway ")]
    return [] if code is not None and len(said) <= 1 else [f"{how.name}, seed {SEED}: status {code}: {job.said()[-1500:]}"]


def lost(how, draw):
    """Loses a rank."""
    job = long_job()
    time.sleep(draw.random())
    victim = draw.randrange(3)
    processes = job.processes()
    if len(processes) < 3:
        return [f"seed {SEED}: {processes} of a job that has ended too early: {job.end()} {job.said()[-1500:]}"]
    os.kill(processes[victim], how)
    code = job.end()
    said = [line for line in job.said().splitlines() if line.startswith("spillway ")]
    what = "has died" if how == signal.SIGKILL else "has not answered"
    if code not in (None, 0) and len(said) == 1 and re.search(rf"rank {victim} .*{what}", said[0]):
        return []
    return [f"rank {victim}, {how.name}, seed {SEED}: status {code}: {job.said()[-1500:]}"]


def a_rank_that_is_lost_ends_all_and_nothing_is_lost():
    draw = random.Random(SEED)
    problems = []
    for _ in range(ROUNDS):
        problems += lost(draw.choice((signal.SIGKILL, signal.SIGSTOP)), draw)
    for how in (signal.SIGTERM, signal.SIGINT):
        problems += launcher_told(how, draw)
    last = steps_of(path("lost"))[-1]["step"]
    together(3, resume("lost", "--steps", last + 2))
    together(3, train("unbroken", "--place", NVME, "--schedule-steps", 100000, "--warmup", 100, steps=last + 2))
    if numbers_of(path("lost")) != numbers_of(path("unbroken")):
        problems.append(f"seed {SEED}: other bits than a run that nothing has ended")
    return problems


def any_number_of_ranks_goes_on():
    """With other micro-batches where the parts of a step ask for it."""
    more = ("--val", "45%", "--eval-every", EVAL_EVERY, "--schedule-steps", STEPS)
    together(2, train("moving", *more, steps=3, micro_batch=3))
    for ranks, steps in ((3, 6), (1, 8), (4, STEPS)):
        together(ranks, resume("moving", "--steps", steps))
    done = limits.run(threads(5, resume("moving", "--steps", STEPS + 1)), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    refused = done.returncode != 0 and "5 ranks cannot share the 24 sequences" in done.stderr
    return far("2, 3, 1 and 4 ranks", path("moving"), path("one"), counts) + ([] if refused else [f"5 ranks: {done.stderr[-1500:]}"])


def bad_bytes_on_one_rank_end_all_with_its_message():
    together(2, train("bad", "--place", NVME, steps=2))
    store, = glob.glob(path("bad/rank-1*/store.spillway"))
    with open(store, "r+b") as file:
        file.seek(os.path.getsize(store) // 8)
        file.write(os.urandom(os.path.getsize(store) // 4 * 3))
    problems = []
    for launch in (processes, threads):
        done = limits.run(launch(2, resume("bad", "--steps", 4)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
        if done.returncode == 0 or len(said) != 1 or "rank 1: " not in said[0] or "store.spillway" not in said[0]:
            problems.append(f"{launch.__name__}: status {done.returncode}: {done.stderr[-1500:]}")
    return problems


script_test.run(stages_train_as_one_rank_does, any_number_of_ranks_goes_on, tokens_without_loss_count_for_all_ranks,
                a_time_limit_ends_all_ranks_at_once, a_wish_to_stop_saves_and_ends_all_ranks, saves_by_time_are_agreed_on,
                bad_bytes_on_one_rank_end_all_with_its_message,
                a_rank_that_is_lost_ends_all_and_nothing_is_lost)
