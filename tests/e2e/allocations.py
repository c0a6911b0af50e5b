"""A step allocates nothing: between the lines of step 3 and the last, no code of ours calls malloc, calloc, realloc,
aligned allocation or mmap, itself or by way of the C library; what oneDNN and OpenMP allocate for themselves is told.
"""

import os
import shutil
import subprocess

import program
from program import script_test

COUNTER = os.environ["SW_COUNTER"]
FIRST, LAST, STEPS = 3, 23, 25
SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(4, 50000))
RUN, REPORT = os.path.join(SCRATCH, "run"), os.path.join(SCRATCH, "report")
EVERYWHERE = ",".join(f"{state}=device:30%/host:30%/nvme" for state in ("weights", "grads", "optimizer", "acts"))
ALL_ON_NVME = "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme"
# Each step clips, so that every speculation is redone.
REDONE = ("--speculate", "always", "--clip", "1e-6")


def place_in_source(offset):
    """The function that made a call, where binutils can tell."""
    if shutil.which("addr2line") is None:
        return offset
    # A return address belongs to the instruction after the call.
    done = subprocess.run(["addr2line", "-f", "-s", "-e", program.PROGRAM, hex(int(offset, 16) - 1)],
                          capture_output=True, text=True, check=False)
    return " at ".join(done.stdout.split())


def counted():
    """(calls, what, who, offset) of each caller, and whether the steps were seen at all."""
    with open(REPORT, encoding="utf-8") as file:
        _, before, _, window, _, lost = next(file).split()
        callers = [line.split() for line in file]
    return callers, int(before) > 0 and window == "1" and lost == "0"


def steps_allocate_nothing(what, *more):
    shutil.rmtree(RUN, ignore_errors=True)
    environment = {**os.environ, "LD_PRELOAD": COUNTER, "SW_ALLOCATIONS": REPORT, "SW_ALLOCATIONS_FIRST": str(FIRST),
                   "SW_ALLOCATIONS_LAST": str(LAST)}
    ended = program.run("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", RUN, "--steps", STEPS,
                        "--seq", 64, "--micro-batch", 2, "--batch-tokens", 3 * 2 * 64, "--threads", 2,
                        "--chunk-grains", 1, "--ring-chunks", 2, *more, env=environment)
    if ended.code != 0:
        return [f"{what}: ended with {ended.code}: {ended.err[-300:]}"]
    callers, seen = counted()
    libraries = {}
    for calls, _, who, _ in callers:
        if who != "program":
            name = os.path.basename(who)
            libraries[name] = libraries.get(name, 0) + int(calls)
    told = ", ".join(f"{name} {calls}" for name, calls in sorted(libraries.items())) or "none"
    print(f"# {what}: allocations by libraries for themselves in {LAST - FIRST} steps: {told}")
    problems = [] if seen else [f"{what}: the counter did not see the steps"]
    return problems + [f"{what}: {calls} calls of {call} from {place_in_source(offset)}"
                       for calls, call, who, offset in callers if who == "program"]


def updates_under_forward():
    return (steps_allocate_nothing("all on the device", "--place", "auto")
            + steps_allocate_nothing("updates from host", "--place", "optimizer=host,grads=host,weights=host,acts=host")
            + steps_allocate_nothing("updates on the device", "--place", EVERYWHERE, "--update", "device")
            + steps_allocate_nothing("on every tier, fp32", "--place", EVERYWHERE, "--precision", "fp32", "--order", 2)
            + steps_allocate_nothing("on every tier, fp16", "--place", EVERYWHERE, "--precision", "fp16"))


def written_bytes():
    return program.steps_of(RUN)[STEPS // 2]["bytes"]["nvme_write"]


def updates_from_nvme():
    problems = steps_allocate_nothing("not speculated", "--place", ALL_ON_NVME, "--speculate", "never")
    once = written_bytes()
    problems += steps_allocate_nothing("speculated", "--place", ALL_ON_NVME, "--speculate", "always", "--clip", 0)
    problems += steps_allocate_nothing("speculated and redone", "--place", ALL_ON_NVME, *REDONE)
    if written_bytes() <= once:
        problems.append("nothing was redone")
    return problems + steps_allocate_nothing("redone, by batch", "--place", ALL_ON_NVME, "--order", "batch", *REDONE)


def saves_and_traces():
    return (steps_allocate_nothing("saved between steps", "--place", EVERYWHERE, "--save-every", 4)
            + steps_allocate_nothing("traced", "--place", ALL_ON_NVME, "--trace", os.path.join(SCRATCH, "trace.json"),
                                     *REDONE))


script_test.run(updates_under_forward, updates_from_nvme, saves_and_traces)
