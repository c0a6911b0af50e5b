"""A run on a real file system that goes down at any moment, as by a failing power (EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN),
also while the run goes on after the time before: no saved step is lost, and the same weights come out in the end."""

import collections
import fcntl
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import time

import disks
import program
from program import script_test
from ranks_jobs import mpirun

SCRATCH = program.scratch_folder()
SEED, SEEDS = int(os.environ.get("SW_TEST_SEED", "20261126")), int(os.environ.get("SW_TEST_SEEDS", 8))
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 20000))
DISK = os.path.join(SCRATCH, "disk")
RUN, PLAIN, OUT = os.path.join(DISK, "run"), os.path.join(SCRATCH, "plain"), os.path.join(SCRATCH, "out")
STEPS, MOST_LIVES, UNMOUNT_S = 24, 3, 20
SHUTDOWN = 0x8004587D  # of both file systems
WITHOUT_THE_LOG = struct.pack("I", 2)  # what their journal has not on the disk yet is lost
KINDS = {"ext4": 48, "xfs": 320}  # MiB of an image
SHAPE = ("--seq", 32, "--micro-batch", 2, "--batch-tokens", 128, "--threads", 1, "--precision", "fp32", "--schedule", "constant",
         "--warmup", 0)
NVME = ("--place", "optimizer=nvme")
EVALUATES = ("--val", "5%", "--eval-every", 2)
LIVES = {
    "nvme": (1, NVME),
    "8-bit state": (1, (*NVME, "--optimizer-state", "8bit")),
    "frozen": (1, (*NVME, "--freeze", "embedding")),
    "early stop": (1, (*NVME, *EVALUATES, "--early-stop", 20, "--keep", 2)),
    "saves": (1, ("--place", "optimizer=host", *EVALUATES, "--export-every", 4, "--keep", 2, "--save-every", 5)),
    "ranks": (2, (*NVME, *EVALUATES)),
    "tensor": (2, (*NVME, "--tensor", 2)),
}
found = collections.Counter()


def train(run, more):
    return program.command("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", run, "--steps", STEPS, *SHAPE, *more)


def start(ranks, words):
    return subprocess.Popen(mpirun((ranks, words)) if ranks > 1 else words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def finish(ranks, words):
    process = start(ranks, words)
    said = process.communicate()[1]
    return process.returncode, said


def weights_of(run):
    shutil.rmtree(OUT, ignore_errors=True)
    program.must("export", run, OUT)
    with open(os.path.join(OUT, "model.safetensors"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def decisions_of(run):
    """The evaluations of the log, and the exports that are kept with what they were kept for."""
    evaluations = {line["step"]: line["val_loss"] for line in program.log_lines(run) if "val_loss" in line}
    index = os.path.join(run, "exports", "index.json")
    if not os.path.exists(index):
        return evaluations, []
    kept = program.read_json(index)
    return evaluations, sorted((entry["step"], entry.get("val_loss")) for entry in kept if not entry.get("given_up"))


def saved_step(run):
    """The last step that must be there: a step that the log calls saved carried the commit of the one before."""
    try:
        with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file.read().split("\n")[:-1]]
    except (OSError, ValueError):
        return 0
    return max((line["step"] - 1 for line in lines if line.get("saved")), default=0)


def take_down(process, draw):
    """Lets the program go on for a while, then takes its file system down. Returns the last step that it had saved, or
    None where the program had ended before."""
    begun = time.monotonic()
    at = draw.randrange(STEPS) if draw.random() < 0.8 else None
    while at is not None and process.poll() is None and saved_step(RUN) < at:
        time.sleep(0.001)
    time.sleep(draw.random() * (0.01 if at is not None else max(0.1, time.monotonic() - begun)))
    saved = saved_step(RUN)
    folder = os.open(DISK, os.O_RDONLY)
    fcntl.ioctl(folder, SHUTDOWN, WITHOUT_THE_LOG)
    os.close(folder)
    return saved


def unmount():
    """The kernel lets go of the files of a ring a moment after its process."""
    deadline = time.monotonic() + UNMOUNT_S
    while subprocess.run(["umount", DISK], capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{DISK} cannot be unmounted")
        time.sleep(0.02)


def wrong_end(ended, said):
    """A program that loses its drive says so in a sentence, and no signal ends it."""
    if ended < 0 or ended > 2 or (ended != 0 and "spillway " not in said):
        return [f"the program ended with {ended}: {said[-600:]}"]
    return []


def go_on(ranks, first):
    """The command that a user gives now: to begin, or to go on where there is a run."""
    return program.command("resume", RUN) if os.path.exists(os.path.join(RUN, "run.json")) else first


def live(kind, name, draw, wanted):
    ranks, more = LIVES[name]
    image, first, problems, saved = os.path.join(SCRATCH, "image"), train(RUN, more), [], 0
    problems += disks.make_image(image, KINDS[kind], kind)
    disks.mount("-o", "loop", image, DISK)
    for number in range(draw.randint(1, MOST_LIVES)):
        process = start(ranks, go_on(ranks, first))
        now = take_down(process, draw)
        said = process.communicate()[1]
        problems += wrong_end(process.returncode, said)
        unmount()
        subprocess.run(["mount", "-o", "loop", image, DISK], check=True)
        saved = max(saved, now)
        found["lives"] += 1
    ended, said = finish(ranks, go_on(ranks, first))
    after = [int(line.rsplit(" ", 1)[1]) for line in said.splitlines() if line.startswith("continuing after step ")]
    if ended != 0:
        problems.append(f"cannot go on: {said[-600:]}")
    elif saved > 0 and "of the run are done" not in said and (not after or after[0] < saved):
        problems.append(f"step {saved} was saved, and the run went on after {after}: {said[-600:]}")
    else:
        problems += [] if weights_of(RUN) == wanted[0] else ["other weights in the end"]
        problems += [] if decisions_of(RUN) == wanted[1] else [f"{decisions_of(RUN)} instead of {wanted[1]}"]
        verified = program.run("verify", RUN)
        problems += [] if verified.code == 0 else [f"verify: {verified.err[-500:]}"]
    unmount()
    return [f"{kind}, {name}: {problem}" for problem in problems]


def can_make(kind):
    path = disks.WITH_SBIN["PATH"]
    return shutil.which(f"mkfs.{kind}", path=path) is not None


def a_file_system_that_goes_down():
    wanted, problems = {}, []
    names = [name for name, (ranks, _) in LIVES.items() if ranks == 1 or shutil.which("mpirun") and os.environ.get("SW_HAVE_MPI") == "1"]
    kinds = [kind for kind in KINDS if can_make(kind)]
    os.mkdir(DISK)
    for seed in range(SEED, SEED + SEEDS):
        draw, name = random.Random(seed), names[seed % len(names)]
        if name not in wanted:
            shutil.rmtree(PLAIN, ignore_errors=True)
            ranks, more = LIVES[name]
            ended, said = finish(ranks, train(PLAIN, more))
            if ended != 0:
                raise RuntimeError(f"{name}: {said[-500:]}")
            wanted[name] = weights_of(PLAIN), decisions_of(PLAIN)
        problems += [f"seed {seed}: {problem}" for problem in live(draw.choice(kinds), name, draw, wanted[name])]
    print(f"# {SEEDS} seeds, {dict(found)}, {len(problems)} problems", flush=True)
    return problems


script_test.run(a_file_system_that_goes_down)
