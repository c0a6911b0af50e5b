"""`spillway verify`: nothing to say of a whole store, every bad grain by name, and nothing changed by looking."""

import json
import os
import shutil
import struct

import program
from program import STORE, script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 20000))
RECORD_BYTES = 3 * 4 * 16384
FIELDS = {"step": int, "grains": int, "bytes": int, "bad": list}
BAD_FIELDS = {"unit": int, "grain": int, "state": str, "file": str, "offset": int, "reason": str}


def path(*names):
    return os.path.join(SCRATCH, *names)


def trained(name, *more):
    program.must("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(name), "--steps", 3,
                 *program.SHAPE, "--place", "optimizer=nvme", *more)
    return path(name)


def found(run):
    """The report on a run, with the exit status and its wrong fields."""
    ended = program.run("verify", run, "--json")
    report = json.loads(ended.out)
    problems = [f"--json lacks {name}, or it is no {kind.__name__}" for name, kind in FIELDS.items()
                if type(report.get(name)) is not kind]
    problems += [f"a bad grain lacks {name}, or it is no {kind.__name__}" for bad in report["bad"]
                 for name, kind in BAD_FIELDS.items() if type(bad.get(name)) is not kind]
    if report["bytes"] != report["grains"] * RECORD_BYTES or report["grains"] < 2:
        problems.append(f"{report['grains']} grains in {report['bytes']} bytes")
    if ended.code != (1 if report["bad"] else 0):
        problems.append(f"status {ended.code} with {len(report['bad'])} bad grains")
    return report, problems


def flip(file, offset):
    with open(file, "r+b") as store:
        store.seek(offset)
        byte = store.read(1)[0]
        store.seek(offset)
        store.write(bytes([byte ^ 4]))


def generations(file, grains):
    """Where the two generations begin, in a store of one file."""
    with open(file, "rb") as store:
        label, superblock = struct.unpack("<qq", store.read(64)[48:])
    first = label + 2 * superblock
    return first, first + grains * RECORD_BYTES


def whole_stores():
    run = trained("whole")
    before = program.tree(run)
    report, problems = found(run)
    if report["bad"] or report["step"] != 3:
        problems.append(f"a whole store: {report}")
    ended = program.run("verify", run)
    if ended.code != 0 or ended.err or f"step 3: all {report['grains']} grains" not in ended.out:
        problems.append(f"a whole store: status {ended.code}, {ended.out!r}, {ended.err!r}")
    return problems + [f"{name} was changed by verify" for name in program.differences(before, program.tree(run))]


def one_bit_in_either_generation():
    run = trained("flipped")
    file = os.path.join(run, STORE)
    report, problems = found(run)
    reports = []
    for start in generations(file, report["grains"]):
        place = start + RECORD_BYTES + 12345
        flip(file, place)
        report, wrong = found(run)
        problems += wrong
        reports.append(report["bad"])
        for bad in report["bad"]:
            if bad["offset"] != start + RECORD_BYTES or bad["file"] != file or bad["state"] != "optimizer":
                problems.append(f"byte {place} is reported as {bad}")
        flip(file, place)
    if sorted(map(len, reports)) != [0, 1]:
        problems.append(f"one of two generations is committed, and the findings are {reports}")
    return problems


def every_grain_bad():
    run = trained("bad")
    file = os.path.join(run, STORE)
    report, problems = found(run)
    for start in generations(file, report["grains"]):
        for grain in range(report["grains"]):
            flip(file, start + grain * RECORD_BYTES + grain)
    worse, wrong = found(run)
    places = {(bad["unit"], bad["grain"]) for bad in worse["bad"]}
    if len(places) != report["grains"] or len(worse["bad"]) != report["grains"]:
        problems.append(f"{report['grains']} grains are bad, and {len(places)} were found")
    ended = program.run("verify", run)
    lines = ended.out.splitlines()
    if ended.code != 1 or len(lines) != report["grains"] or any(file not in line for line in lines):
        problems.append(f"as text: status {ended.code}, {ended.out!r}")
    if f"{report['grains']} of the {report['grains']} grains" not in ended.err or ended.err.count("\n") != 1:
        problems.append(f"as text, the end: {ended.err!r}")
    return problems + wrong


def stores_on_several_folders():
    for name in "de":
        os.mkdir(path(name))
    run = trained("striped", "--nvme", path("d"), "--nvme", path("e"))
    report, problems = found(run)
    if report["bad"]:
        problems.append(f"a striped store: {report}")
    shutil.move(path("e", STORE), path("elsewhere"))
    return problems + program.refused("a file that is missing", ["verify", run], path("e", STORE))


def what_cannot_be_verified():
    os.mkdir(path("empty"))
    problems = program.refused("an empty folder", ["verify", path("empty")], "run.json")
    problems += program.refused("nothing", ["verify"], "DIR", status=2)
    run = trained("busy")
    other = program.start("resume", run, "--steps", 1000000)
    try:
        while not other.stderr.readline().startswith("step 10/"):
            pass
        problems += program.wrong_refusal("a running run", program.run("verify", run), 1, ["in use", STORE], ["verify"])
    finally:
        other.kill()
        other.wait()
        other.stderr.close()
    return problems + found(run)[1]


script_test.run(whole_stores, one_bit_in_either_generation, every_grain_bad, stores_on_several_folders,
                what_cannot_be_verified)
