"""Jobs whose ranks are on two hosts."""

import os
import random
import re
import signal
import time

from jobs import DEATH, PATIENT_MS, ROUNDS, SEED, TIMEOUT_MS, VERDICT, Job, judged, limits, passed, script_test
from two_hosts import FAR_RANKS, HOSTS


def collectives_between_hosts_give_the_serial_bits():
    return passed(4, "collectives", SEED, 40, launcher=HOSTS.launcher())


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def begun(timeout_ms):
    return Job(4, "go_on", timeout_ms, -1, -1, launcher=HOSTS.launcher()).begin()


def a_rank_lost_on_the_other_host_ends_the_job():
    draw = random.Random(SEED)
    wrong = []
    for _ in range(ROUNDS):
        job, victim = begun(PATIENT_MS), draw.choice(FAR_RANKS)
        time.sleep(draw.random() * 0.3)
        os.kill(job.processes[victim], signal.SIGKILL)
        wrong += judged(f"rank {victim}", job.end(), rf"^rank {victim} \(process \d+ on {HOSTS.names[1]}\) {DEATH}")
    return wrong


def a_cut_wire_ends_the_ranks_on_both_sides():
    """mpirun itself waits for the other host for as long as TCP does."""
    job = begun(TIMEOUT_MS)
    HOSTS.cut()
    try:
        limit = limits.Limit(root=job.process.pid)
        while any(is_running(process) for process in job.processes.values()) and not limit.over():
            time.sleep(0.05)
        left = [rank for rank, process in job.processes.items() if is_running(process)]
        _, _, err = job.end(wait=False)
        said = VERDICT.findall(err)
        right = not left and len(said) == 1 and re.search(r"^rank [23] .* has not answered for \d+\.\d s", said[0])
        return [] if right else [f"still running: ranks {left}; {err[-1500:]}"]
    finally:
        HOSTS.join()


script_test.run(collectives_between_hosts_give_the_serial_bits, a_rank_lost_on_the_other_host_ends_the_job,
                a_cut_wire_ends_the_ranks_on_both_sides)
