"""`spillway verify`: nothing to say of a whole store, every bad grain by name, and nothing changed by looking."""

import ctypes
import json
import os
import shutil
import signal
import struct
import subprocess

import program
from program import STORE, script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 20000))
PAGE_BYTES, APART_BYTES = 4096, 64 << 10
RECORD_BYTES = 3 * 4 * 16384
FIELDS = {"step": int, "grains": int, "bytes": int, "bad": list, "bad_records": list, "bad_files": list}
RECORD_FIELDS = {"file": str, "offset": int, "loss": str, "step": int}
BAD_FIELDS = {"unit": int, "grain": int, "state": str, "file": str, "offset": int, "reason": str}


def path(*names):
    return os.path.join(SCRATCH, *names)


def trained(name, *more):
    program.must("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(name), "--steps", 3, "--schedule-steps", 5,
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
    problems += [f"a bad record lacks {name}, or it is no {kind.__name__}" for bad in report["bad_records"]
                 for name, kind in RECORD_FIELDS.items() if type(bad.get(name)) is not kind]
    if report["bytes"] != report["grains"] * RECORD_BYTES or report["grains"] < 2:
        problems.append(f"{report['grains']} grains in {report['bytes']} bytes")
    lost = [record for record in report["bad_records"] if record["loss"] != "harmless"]
    if ended.code != (1 if report["bad"] or lost else 0):
        problems.append(f"status {ended.code} with {len(report['bad'])} bad grains and {len(lost)} lost records")
    return report, problems


def flip(file, offset):
    with open(file, "r+b") as store:
        store.seek(offset)
        byte = store.read(1)[0]
        store.seek(offset)
        store.write(bytes([byte ^ 4]))


def superblocks(file):
    """Where the superblocks begin, and what follows the last."""
    with open(file, "rb") as store:
        label, superblock = struct.unpack("<qq", store.read(64)[48:])
    copy = APART_BYTES * 2
    while copy < label + APART_BYTES:
        copy *= 2
    first = copy + label + APART_BYTES + PAGE_BYTES + APART_BYTES
    return [first + i * (superblock + APART_BYTES) for i in range(3)]


def generations(file, grains):
    """Where the two generations begin, in a store of one file."""
    first = superblocks(file)[2]
    return first, first + grains * RECORD_BYTES + APART_BYTES


def whole_stores():
    run = trained("whole")
    before = program.tree(run)
    report, problems = found(run)
    if report["bad"] or report["bad_records"] or report["step"] != 3:
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


def committed_grain(run, file):
    """The place of a bit of the last commit, and of one of the commit before."""
    report, problems = found(run)
    places = [start + RECORD_BYTES + 12345 for start in generations(file, report["grains"])]
    flip(file, places[0])
    bad = bool(found(run)[0]["bad"])
    flip(file, places[0])
    return (places if bad else places[::-1]), problems


def the_commit_before():
    """A bad bit in the last commit does not end a run whose commit before is whole; where it is not, nothing changes."""
    run, expected = trained("set-back"), trained("not-set-back")
    file = os.path.join(run, STORE)
    (last, before), problems = committed_grain(run, file)
    flip(file, last)
    advice = "resume --previous goes back to step 2"
    problems += program.refused("resume, a bad grain", ["resume", run, "--steps", 5], advice)
    if advice not in program.run("verify", run).err:
        problems.append("verify of a bad grain does not tell of --previous")
    flip(file, before)
    problems += program.refused("two bad grains", ["resume", run, "--previous", "--steps", 5], "step 2 is not whole",
                                watched=[run])
    flip(file, before)
    program.must("resume", run, "--previous", "--steps", 5)
    program.must("resume", expected, "--steps", 5)
    if program.numbers_of(run) != program.numbers_of(expected):
        problems.append("the steps after the one that was given up are not those of a run that gave up none")
    only = trained("one-generation", "--durability", "none")
    return problems + program.refused("one generation", ["resume", only, "--previous", "--steps", 5], "up to step 2")


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


def records(file):
    """Where the superblocks of the newest commit and of the one before begin."""
    found = []
    with open(file, "rb") as store:
        for place in superblocks(file)[:2]:
            store.seek(place + 48)
            found.append((struct.unpack("<q", store.read(8))[0], place))
    return [place for _, place in sorted(found, reverse=True)]


def one_bit_in_a_commit_record():
    """With a bit of the newest record changed, the step before is opened, by resume too, and the lost one is named; with
    one of the other record, a word is said."""
    run = trained("recorded")
    file = os.path.join(run, STORE)
    newest, other = records(file)
    flip(file, other + 5000)
    report, problems = found(run)
    if report["step"] != 3 or [record["loss"] for record in report["bad_records"]] != ["harmless"]:
        problems.append(f"a bit of the record before: {report}")
    flip(file, other + 5000)
    flip(file, newest + 5000)
    report, wrong = found(run)
    if report["step"] != 2 or report["bad_records"] != [{"file": file, "offset": newest, "loss": "lost", "step": 3}]:
        problems.append(f"a bit of the newest record: {report}")
    lost = f"warning: {file}: a commit record at offset {newest} is damaged: step 3 is lost"
    for arguments in (["verify", run], ["export", run, path("of-recorded")], ["resume", run, "--steps", 5]):
        ended = program.run(*arguments)
        if lost not in ended.err or ended.code != (1 if arguments[0] == "verify" else 0):
            problems.append(f"{arguments[0]}: status {ended.code}, {ended.err!r}")
    expected = trained("unharmed")
    program.must("resume", expected, "--steps", 5)
    if program.numbers_of(run) != program.numbers_of(expected):
        problems.append("the steps after the one that was lost are not those of a run that lost none")
    report, more = found(run)
    if report["bad_records"] or report["step"] != 5:
        problems.append(f"after more commits: {report}")
    return problems + wrong + more


def stores_on_several_folders():
    for name in "de":
        os.mkdir(path(name))
    run = trained("striped", "--nvme", path("d"), "--nvme", path("e"))
    report, problems = found(run)
    if report["bad"]:
        problems.append(f"a striped store: {report}")
    shutil.move(path("e", STORE), path("elsewhere"))
    problems += program.refused("a file that is missing", ["verify", run], path("e", STORE), "--nvme")
    os.mkdir(path("f"))
    shutil.move(path("elsewhere"), path("f", STORE))
    ended = program.run("verify", run, "--nvme", path("f"), "--nvme", path("d"))
    if ended.code != 0 or "step 3: all" not in ended.out:
        problems.append(f"a file that was moved: {ended}")
    return problems


def what_cannot_be_verified():
    os.mkdir(path("empty"))
    problems = program.refused("an empty folder", ["verify", path("empty")], "run.json")
    return problems + program.refused("nothing", ["verify"], "DIR", status=2)


def readings(run, out):
    """Returns the commands that read a run and write nothing into it."""
    return (["verify", run], ["export", run, out], ["eval", run, "--data", DATA, "--seq", 64, "--tokens", 640],
            ["generate", run, "--prompt", "e", "--max-tokens", 4, "--temperature", 0])


def trains(run, until):
    """A training of this run up to this step, which then stands still."""
    other = program.start("resume", run, "--steps", 1000000)
    while not other.stderr.readline().startswith(f"step {until}/"):
        pass
    other.send_signal(signal.SIGSTOP)
    return other


def a_run_that_trains():
    """Its last commit is read beside it; where the run outruns the reader again and again, that is said. Never a wrong
    byte: what is read while it stands still is what a copy of its folder holds."""
    run, problems = trained("busy"), []
    other = trains(run, 10)
    try:
        shutil.copytree(run, path("copy"))
        for beside, alone in zip(readings(run, path("beside")), readings(path("copy"), path("alone"))):
            ended, expected = program.run(*beside), program.run(*alone)
            if ended.code != 0 or expected.code != 0 or ended.out.split("(")[0] != expected.out.split("(")[0]:
                problems.append(f"{beside[0]} of a run that stands still: {ended} instead of {expected}")
        if program.tree(path("beside")) != program.tree(path("alone")):
            problems.append("an export of a run that stands still is not that of a copy")
        other.send_signal(signal.SIGCONT)
        for arguments in readings(run, path("beside-running")):
            ended = program.run(*arguments)
            if ended.code != 0:
                problems += program.wrong_refusal("a run that trains", ended, 1, ["written over", "stop the run"],
                                                  arguments)
    finally:
        other.kill()
        other.wait()
        other.stderr.close()
    return problems + found(run)[1]


def a_run_without_commits():
    """--durability none commits at the end only: until then there is nothing to read, and nothing is lost either."""
    run = trained("one-generation-busy", "--durability", "none")
    other = trains(run, 10)
    try:
        return program.refused("a run without commits", ["verify", run], "no commit yet", "--durability none")
    finally:
        other.kill()
        other.wait()
        other.stderr.close()


def as_another_user(path, mode):
    """Gives a folder and its files to another user, with these bits. Returns what a command is run with so that they
    count: root has none of its rights over files then."""
    if os.geteuid() == 0:
        for name in ("", *os.listdir(path)):
            os.chown(os.path.join(path, name), 65534, 65534)
    for name in os.listdir(path):
        os.chmod(os.path.join(path, name), mode & 0o666)
    os.chmod(path, mode)
    drop, overrides = 24, (1, 2, 3)
    return {"preexec_fn": lambda: [ctypes.CDLL(None).prctl(drop, right, 0, 0, 0) for right in overrides]}


def a_folder_that_cannot_be_written():
    run, problems = trained("unwritable"), []
    before = program.tree(run)
    rights = as_another_user(run, 0o555)
    try:
        for arguments in readings(run, path("export-of-unwritable")):
            ended = program.run(*arguments, **rights)
            if ended.code != 0:
                problems.append(f"{arguments[0]} of a folder that cannot be written: {ended}")
        ended = program.run("resume", run, "--steps", 5, **rights)
        problems += program.wrong_refusal("resume there", ended, 1, ["run.lock", "for writing"], ["resume"])
    finally:
        os.chmod(run, 0o700)
    return problems + [f"{name} was changed by reading" for name in program.differences(before, program.tree(run))]


def a_folder_that_cannot_be_read():
    if os.geteuid() != 0:
        raise script_test.Skip("no root or loop device")
    run, problems = trained("secret"), []
    rights = as_another_user(run, 0o700)
    for arguments in (*readings(run, "/nowhere"), ["resume", run]):
        ended = program.run(*arguments, **rights)
        problems += program.wrong_refusal("another user's", ended, 1, ["secret/run.", "Permission denied"], arguments)
    return problems


def a_read_only_file_system():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        raise script_test.Skip("no root or loop device")
    run, problems = trained("snapshot"), []
    mounted = f"mount --bind '{run}' '{run}' && mount -o remount,bind,ro '{run}' && exec \"$@\""
    for arguments in (*readings(run, path("of-snapshot")), ["resume", run, "--steps", 5]):
        done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted, "sh", *program.command(*arguments)],
                              capture_output=True, text=True, check=False)
        refused = arguments[0] == "resume" and done.returncode == 1 and "Read-only file system" in done.stderr
        if done.returncode != 0 and not refused:
            problems.append(f"{arguments[0]} of a read-only file system: {done.returncode}, {done.stderr}")
    return problems


script_test.run(whole_stores, one_bit_in_either_generation, the_commit_before, every_grain_bad, one_bit_in_a_commit_record,
                stores_on_several_folders, what_cannot_be_verified, a_run_that_trains, a_run_without_commits,
                a_folder_that_cannot_be_written, a_folder_that_cannot_be_read, a_read_only_file_system)
