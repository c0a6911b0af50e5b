"""Ranks that exchange quantized weights and gradients: near the training without, with the same bits however the state is
placed and whatever ends the run, and refused where nothing is quantized."""

import json
import os
import signal

import runs
from program import SEQ, command, must, refused, script_test
from ranks_jobs import SHAPE, Job
from runs import path

NVME = ("--place", "weights=host,grads=nvme,optimizer=nvme")
HOST = ("--place", "weights=host,grads=host,optimizer=host")
OTHER_SHAPE = ("--seq", SEQ, "--batch-tokens", 24 * SEQ, "--chunk-grains", 1, "--threads", 2, "--precision", "fp32")
INT8, INT4 = ("--gather", "int8", "--reduce", "int8"), ("--gather", "int8", "--reduce", "int4")
# The most by which losses may differ from those without, as a share: some times what was seen.
NEAR = 1e-2


class Run(runs.Run):
    data, steps, planned, shape, ranks = (runs.text_file(seed=1, characters=60 * SEQ),), 8, 1000, SHAPE, 2
    flags = ("--warmup", 2, "--micro-batch", 2, "--zero", 3)

    def exchange(self):
        return self.settings()["gather"], self.settings()["reduce"]


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
        exact = Run(f"exact-{ranks}", ranks=ranks).train()
        for flags in (INT8, INT4):
            one = Run(f"{flags[3]}-{ranks}", *flags, ranks=ranks).train()
            host = Run(f"{flags[3]}-{ranks}-host", *flags, *HOST, shape=OTHER_SHAPE, ranks=ranks).train()
            differ = [abs(a / b - 1) for a, b in zip(one.losses(), exact.losses(), strict=True)]
            print(f"# {ranks} ranks, {flags}: losses differ by {max(differ):.2e} at most")
            problems += [] if max(differ) < NEAR else [f"{ranks} ranks, {flags}: losses differ by {differ}"]
            if one.numbers() != host.numbers():
                problems.append(f"{ranks} ranks, {flags}: the bits depend on the placement")
            if one.numbers() == exact.numbers():
                problems.append(f"{ranks} ranks, {flags}: nothing was quantized")
            sent = [run.steps_done()[-1]["bytes"]["comm"] for run in (one, exact)]
            if sent[0] > 0.3 * sent[1]:
                problems.append(f"{ranks} ranks, {flags}: {sent[0]} bytes are sent, and {sent[1]} without")
    nodes = {}
    for name, zero, more in (("all at once", 2, ()), ("nodes of two", 2, ("--ranks-per-node", 2)),
                             ("nodes of two, on NVMe", 3, ("--ranks-per-node", 2, *NVME))):
        nodes[name] = Run(f"nodes-{len(nodes)}", "--reduce", "int4", *more, "--zero", zero, ranks=4).train().numbers()
    if nodes["all at once"] == nodes["nodes of two"] or nodes["nodes of two"] != nodes["nodes of two, on NVMe"]:
        problems.append(f"nodes change nothing, or the bits depend on more than they: {nodes}")
    for reduce in ("int8", "int4"):
        numbers = [Run(f"stage-{zero}-{reduce}", "--reduce", reduce, "--zero", zero).train().numbers() for zero in (1, 2, 3)]
        problems += [] if numbers[0] == numbers[1] == numbers[2] else [f"--reduce {reduce}: other bits at another stage"]
    return problems


def a_run_that_is_killed_goes_on_with_the_same_bits():
    killed = Run("killed", *INT4, *NVME, steps=1000)
    job = Job(path("job.log"), 2, command(*killed.words())).wait_for("step 3/")
    for process in job.processes().values():
        os.kill(process, signal.SIGKILL)
    job.end()
    last = killed.steps_done()[-1]["step"]
    killed.resume("--steps", last + 3, ranks=2)
    unbroken = Run("unbroken", *INT4, *NVME, steps=last + 3).train()
    problems = [] if killed.numbers() == unbroken.numbers() else ["a run that was killed has other bits than one that was not"]
    problems += [] if killed.exchange() == ("int8", "int4") else [f"run.json has {killed.exchange()}"]
    killed.resume("--steps", last + 4, "--gather", "exact", "--reduce", "int8", ranks=2)
    problems += [] if killed.exchange() == ("exact", "int8") else [f"after a change run.json has {killed.exchange()}"]
    problems += refused("one rank", ["resume", killed.path(), "--steps", last + 5], "give --reduce ordered")
    killed.resume("--steps", last + 5, "--reduce", "ordered")
    return problems


script_test.run(what_is_not_exchanged_is_refused, quantized_trainings_are_near_and_repeat,
                a_run_that_is_killed_goes_on_with_the_same_bits)
