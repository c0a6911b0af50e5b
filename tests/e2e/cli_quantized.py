"""Ranks that exchange quantized weights and gradients: near the training without, with the same bits however the state is
placed and whatever ends the run, and refused where nothing is quantized."""

import json
import os
import signal
import subprocess

from program import SEQ, command, limits, must, numbers_of, read_json, refused, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import SHAPE, Job, threads

FOLDER = scratch_folder()
STEPS = 8
NVME = ("--place", "weights=host,grads=nvme,optimizer=nvme")
HOST = ("--place", "weights=host,grads=host,optimizer=host")
OTHER_SHAPE = ("--seq", SEQ, "--batch-tokens", 24 * SEQ, "--chunk-grains", 1, "--threads", 2, "--precision", "fp32")
INT8, INT4 = ("--gather", "int8", "--reduce", "int8"), ("--gather", "int8", "--reduce", "int4")
# The most by which losses may differ from those without, as a share: some times what was seen.
NEAR = 1e-2


def path(name):
    return os.path.join(FOLDER, name)


DATA = write(path("data.txt"), text(1, 60 * SEQ))


def train(run, *more, steps=STEPS, zero=3, shape=SHAPE):
    return command("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
                   "--schedule-steps", 1000, "--warmup", 2, "--micro-batch", 2, *shape, "--zero", zero, *more)


def together(ranks, arguments):
    done = limits.run(threads(ranks, arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks of {' '.join(arguments)}: status {done.returncode}: {done.stderr[-1500:]}")
    return done


def flags_of(run):
    settings = read_json(os.path.join(path(run), "run.json"))["settings"]
    return settings["gather"], settings["reduce"]


def what_is_not_exchanged_is_refused():
    problems = []
    for what, flags, words in (("one rank", ("--gather", "int8"), "one rank exchanges nothing"),
                               ("one rank", ("--reduce", "int4"), "give --reduce ordered"),
                               ("stage 2", ("--ranks", 4, "--zero", 2, "--gather", "int8"), "give --zero 3 or --gather exact"),
                               ("stage 0", ("--ranks", 4, "--zero", 0, "--reduce", "int8"), "--zero 1 to 3")):
        problems += refused(what, ["plan", "--model", "gpt2-tiny", *flags], words, status=2)
    done = must("plan", "--model", "gpt2-tiny", "--ranks", 4, "--gather", "int8", "--json")
    return problems + ([] if json.loads(done.out)["zero"] == 3 else [f"--zero auto: {done.out}"])


def quantized_trainings_are_near_and_repeat():
    """At stages 1 to 3, on 2 and 4 ranks, with fewer bytes."""
    problems = []
    for ranks in (2, 4):
        together(ranks, train(f"exact-{ranks}"))
        for flags in (INT8, INT4):
            runs = [(f"{flags[3]}-{ranks}", (), SHAPE), (f"{flags[3]}-{ranks}-host", HOST, OTHER_SHAPE)]
            for run, place, shape in runs:
                together(ranks, train(run, *flags, *place, shape=shape))
            differ = [abs(one["loss"] / two["loss"] - 1) for one, two in
                      zip(steps_of(path(runs[0][0])), steps_of(path(f"exact-{ranks}")), strict=True)]
            print(f"# {ranks} ranks, {flags}: losses differ by {max(differ):.2e} at most")
            problems += [] if max(differ) < NEAR else [f"{ranks} ranks, {flags}: losses differ by {differ}"]
            numbers, exact = numbers_of(path(runs[0][0])), numbers_of(path(f"exact-{ranks}"))
            if numbers != numbers_of(path(runs[1][0])):
                problems.append(f"{ranks} ranks, {flags}: the bits depend on the placement")
            if numbers == exact:
                problems.append(f"{ranks} ranks, {flags}: nothing was quantized")
            sent = [steps_of(path(name))[-1]["bytes"]["comm"] for name in (runs[0][0], f"exact-{ranks}")]
            if sent[0] > 0.3 * sent[1]:
                problems.append(f"{ranks} ranks, {flags}: {sent[0]} bytes are sent, and {sent[1]} without")
    nodes = {}
    for name, zero, more in (("all at once", 2, ()), ("nodes of two", 2, ("--ranks-per-node", 2)),
                             ("nodes of two, on NVMe", 3, ("--ranks-per-node", 2, *NVME))):
        run = "nodes-" + str(len(nodes))
        together(4, train(run, "--reduce", "int4", *more, zero=zero))
        nodes[name] = numbers_of(path(run))
    if nodes["all at once"] == nodes["nodes of two"] or nodes["nodes of two"] != nodes["nodes of two, on NVMe"]:
        problems.append(f"nodes change nothing, or the bits depend on more than they: {nodes}")
    for reduce in ("int8", "int4"):
        for zero in (1, 2, 3):
            together(2, train(f"stage-{zero}-{reduce}", "--reduce", reduce, zero=zero))
        numbers = [numbers_of(path(f"stage-{zero}-{reduce}")) for zero in (1, 2, 3)]
        problems += [] if numbers[0] == numbers[1] == numbers[2] else [f"--reduce {reduce}: other bits at another stage"]
    return problems


def a_run_that_is_killed_goes_on_with_the_same_bits():
    job = Job(path("job.log"), 2, train("killed", *INT4, *NVME, steps=1000)).wait_for("step 3/")
    for process in job.processes().values():
        os.kill(process, signal.SIGKILL)
    job.end()
    last = steps_of(path("killed"))[-1]["step"]
    together(2, command("resume", path("killed"), "--steps", last + 3))
    together(2, train("unbroken", *INT4, *NVME, steps=last + 3))
    same = numbers_of(path("killed")) == numbers_of(path("unbroken"))
    problems = [] if same else ["a run that was killed has other bits than one that was not"]
    if flags_of("killed") != ("int8", "int4"):
        problems.append(f"run.json has {flags_of('killed')}")
    together(2, command("resume", path("killed"), "--steps", last + 4, "--gather", "exact", "--reduce", "int8"))
    problems += [] if flags_of("killed") == ("exact", "int8") else [f"after a change run.json has {flags_of('killed')}"]
    problems += refused("one rank", ["resume", path("killed"), "--steps", last + 5], "give --reduce ordered")
    must("resume", path("killed"), "--steps", last + 5, "--reduce", "ordered")
    return problems


script_test.run(what_is_not_exchanged_is_refused, quantized_trainings_are_near_and_repeat,
                a_run_that_is_killed_goes_on_with_the_same_bits)
