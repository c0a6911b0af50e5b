"""The profile of this machine: measured once, by which `plan` answers for any model; renewed by `doctor --measure`. No
speed is asserted."""

import json
import os
import re

import program
from program import script_test

SCRATCH = program.scratch_folder()
CACHE = os.path.join(SCRATCH, "cache", "spillway")
os.environ["XDG_CACHE_HOME"] = os.path.dirname(CACHE)
MEASURES = "measuring this machine"


def kept(kind):
    return sorted(os.path.join(CACHE, name) for name in os.listdir(CACHE) if name.startswith(kind))


def content(path):
    with open(path, "rb") as file:
        return file.read()


def measured_once():
    """`doctor --measure` makes the profile. Plans of other models and placements do not measure, and repeat themselves."""
    problems = []
    report = json.loads(program.must("doctor", "--quick", "--measure", "--json", "--nvme", SCRATCH).out)
    found = [finding for finding in report["findings"] if finding["what"] == "profile"]
    machines, drives = kept("machine"), kept("drives")
    if len(found) != 1 or len(drives) != 1 or machines != [found[0]["facts"]["file"]]:
        return [f"doctor found {found}; kept are {machines} and {drives}"]
    before = content(machines[0])
    for arguments in ((), ("--place", "optimizer=nvme"), ("--seq", 128, "--micro-batch", 1)):
        answers = [program.run("plan", "--model", "gpt2-demo", "--nvme", SCRATCH, *arguments) for _ in range(2)]
        if any(ended.code != 0 or ended.err for ended in answers):
            problems.append(f"{arguments}: {answers[0].code}, {answers[0].err!r}")
        # Budgets follow the free memory of the moment, but the first lines tell the prediction alone.
        predictions = [re.findall("a (?:step|run) .*takes .*", ended.out) for ended in answers]
        if len(predictions[0]) != 2 or predictions[0] != predictions[1] or "by this machine's profile" not in answers[0].out:
            problems.append(f"{arguments}: {answers[0].out[:300]!r}")
    if content(machines[0]) != before or kept("machine") != machines:
        problems.append("a later plan changed the profile")
    return problems


def damaged():
    """A profile that cannot be read is measured again."""
    path = kept("machine")[0]
    program.write(path, "{")
    ended = program.run("plan", "--model", "gpt2-demo", "--nvme", SCRATCH)
    if ended.code != 0 or MEASURES not in ended.err or len(json.loads(content(path))["ops"]) < 50:
        return [f"a damaged profile: {ended.code}, {ended.err!r}"]
    return []


script_test.run(measured_once, damaged)
