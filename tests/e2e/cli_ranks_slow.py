"""Ranks that are slow, or stopped before anything has begun: what is only slow in a start goes on, what hangs is named."""

import os
import subprocess
import time

from program import SEQ, command, limits, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import SHAPE, mpirun

FOLDER = scratch_folder()
# Far beyond what a flush takes on a drive that others use too.
TIMEOUT_S = 4
# The making of a store flushes twice, its first commit twice too.
IN_THE_START, IN_A_STEP = 3, 9
LONGER_MS = 10000


def path(name):
    return os.path.join(FOLDER, name)


def train(run, *more):
    data = write(path("data.txt"), text(1, 40 * SEQ))
    return command("train", "--model", "gpt2-tiny", "--init", "--data", data, "--run", path(run), "--steps", 4,
                   "--rank-timeout", TIMEOUT_S, "--place", "grads=nvme,optimizer=nvme", *SHAPE, *more)


def troubled(run, trouble, wish):
    """Two ranks that train, and the trouble that one of them has."""
    environment = {**os.environ, "LD_PRELOAD": os.environ["SW_RANK_TROUBLE"], trouble: wish}
    return limits.run(mpirun((2, train(run))), env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)


def slow(run, number):
    return troubled(run, "SW_SLOW_FLUSH", f"1:{number}:{LONGER_MS}")


def named(done, *words):
    """The job has ended by itself, and one rank has said why."""
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    right = done.returncode != 0 and len(said) == 1 and all(word in said[0] for word in words)
    return [] if right else [f"status {done.returncode}: {done.stderr[-1500:]}"]


def a_slow_flush_does_not_end_a_start():
    begun = time.monotonic()
    done = slow("start", IN_THE_START)
    seconds = time.monotonic() - begun
    right = done.returncode == 0 and len(steps_of(path("start"))) == 4 and seconds >= LONGER_MS / 1000
    return [] if right else [f"status {done.returncode} after {seconds:.1f} s: {done.stderr[-1500:]}"]


def a_slow_flush_in_a_step_is_named_with_what_helps():
    return named(slow("step", IN_A_STEP), "rank 1 ", "has done nothing for ", "'commit ",
                 "if that is only slow, give a longer --rank-timeout")


def a_rank_that_is_stopped_as_it_starts_is_found():
    """As it looks for its model, before anything is agreed on."""
    return named(troubled("stopped", "SW_STOP_AT", "0:gpt2-tiny"), "rank 0 ", "has not answered")


script_test.run(a_slow_flush_does_not_end_a_start, a_slow_flush_in_a_step_is_named_with_what_helps,
                a_rank_that_is_stopped_as_it_starts_is_found)
