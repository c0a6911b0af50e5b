"""Training whose ranks are on two hosts: it loses one, and goes on."""

import os
import random
import re
import signal
import subprocess
import sys
import time

from program import SEQ, command, limits, numbers_of, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import Job, mpirun

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "core"))
from two_hosts import FAR_RANKS, HOSTS  # noqa: E402

FOLDER = scratch_folder()
SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 32)))
RANKS, STEPS = 4, 100000
DATA = write(os.path.join(FOLDER, "data.txt"), text(1, 60 * SEQ))


def path(name):
    return os.path.join(FOLDER, name)


def train(run, steps):
    return command("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
                   "--schedule-steps", STEPS, "--warmup", 100, "--rank-timeout", 10, "--seq", SEQ, "--micro-batch", 1,
                   "--batch-tokens", 8 * SEQ, "--chunk-grains", 2, "--threads", 1, "--place",
                   "weights=host,grads=nvme,optimizer=nvme")


def together(arguments, **options):
    done = limits.run(mpirun((RANKS, arguments), **options), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: status {done.returncode}: {done.stderr[-1500:]}")


def a_rank_lost_on_the_other_host_ends_a_training_that_goes_on():
    draw = random.Random(SEED)
    launcher = HOSTS.launcher()
    job = Job(path("job.log"), RANKS, train("lost", STEPS), launcher=launcher).wait_for("step 5/")
    time.sleep(draw.random())
    victim = draw.choice(FAR_RANKS)
    os.kill(job.processes()[victim], signal.SIGKILL)
    code = job.end()
    said = [line for line in job.said().splitlines() if line.startswith("spillway ")]
    problems = []
    if code in (None, 0) or len(said) != 1 or not re.search(rf"rank {victim} .* on {HOSTS.names[1]}\) has died", said[0]):
        problems.append(f"rank {victim}, seed {SEED}: status {code}: {job.said()[-1500:]}")
    last = steps_of(path("lost"))[-1]["step"] + 3
    together(command("resume", path("lost"), "--steps", last), launcher=launcher)
    together(train("unbroken", last))
    if numbers_of(path("lost")) != numbers_of(path("unbroken")):
        problems.append(f"seed {SEED}: other bits than on one host, with nothing lost")
    return problems


script_test.run(a_rank_lost_on_the_other_host_ends_a_training_that_goes_on)
