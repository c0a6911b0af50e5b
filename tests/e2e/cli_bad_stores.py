"""Runs and stores that cannot be begun or resumed are refused, stay as they are, and resume once the cause is gone."""

import json
import os
import random
import shutil
import subprocess

import program
from program import STORE, script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 20000))
FLIPS, FLIP_SEED = 24, 20260801
LABEL_BYTE, COPY_OFFSET = 80, 128 << 10  # a byte that both labels have, and where the second of a small store begins


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, *more):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", run, "--steps", 3, *program.SHAPE,
            "--place", "optimizer=nvme", *more]


def trained(name, *more):
    program.must(*train(path(name), *more))
    return path(name)


def copy_of(run, name):
    shutil.rmtree(path(name), ignore_errors=True)
    return shutil.copytree(run, path(name))


def refused_as(table):
    return program.refused_each(table, watched=[SCRATCH])


def resumes(what, run, steps):
    ended = program.run("resume", run, "--steps", steps)
    return [] if ended.code == 0 else [f"{what}: cannot be resumed: {ended.err}"]


def folders_that_cannot_hold_a_run():
    file = program.write(path("file"), "")
    os.mkdir(path("used"))
    program.write(path("used", "note"), "mine")
    return refused_as([("a folder in use", train(path("used")), "used", "not empty"),
                       ("a file", train(file), file),
                       ("a folder below a file", train(path("file", "run")), path("file", "run"))])


def folders_that_cannot_hold_a_store():
    os.mkdir(path("disk"))
    run, disk, missing = path("run"), path("disk"), path("missing")
    problems = refused_as([("a missing folder", train(run, "--nvme", missing), missing),
                           ("a file", train(run, "--nvme", path("data.txt")), "data.txt"),
                           ("one folder twice", train(run, "--nvme", disk, "--nvme", disk + "/."), disk),
                           ("one right, one missing", train(run, "--nvme", disk, "--nvme", missing), missing)])
    problems += program.refused("too many", train(run, *["--nvme", disk] * 65), "65", "64", status=2, watched=[SCRATCH])
    first = trained("first", "--nvme", disk)
    problems += refused_as([("another run's store", train(run, "--nvme", disk), disk, STORE)])
    return problems + resumes("the run whose store it is", first, 4)


def what_is_no_run():
    os.mkdir(path("empty"))
    return refused_as([("a missing folder", ["resume", path("nothing")], "nothing"),
                       ("an empty folder", ["resume", path("empty")], "is not the folder of a run", "run.json"),
                       ("a file", ["resume", DATA], "data.txt"),
                       ("export of nothing", ["export", path("nothing"), path("out")], "nothing"),
                       ("generate from nothing", ["generate", path("nothing"), "--prompt", "a"], "nothing")])


def damaged_descriptions():
    run = trained("described")
    right = program.read_json(os.path.join(run, "run.json"))

    def with_text(name, text):
        broken = copy_of(run, name)
        program.write(os.path.join(broken, "run.json"), text)
        return broken

    def with_settings(name, **changes):
        return with_text(name, json.dumps({**right, "settings": {**right["settings"], **changes}}))

    cut = with_text("cut", json.dumps(right)[:100])
    problems = refused_as([
        ("run.json cut", ["resume", cut], "run.json", "JSON"),
        ("run.json of a later version", ["resume", with_text("later", json.dumps({**right, "version": 99}))], "99"),
        ("run.json of more ranks than there can be",
         ["resume", with_text("many", json.dumps({**right, "ranks": 4097, "stores": 4097 * right["stores"]}))],
         "the number of ranks"),
        ("run.json without settings", ["resume", with_text("bare", '{"version": 1}')], "run.json", "settings"),
        ("a setting of another type", ["resume", with_settings("typed", seq="long")], "run.json", "seq"),
        *((f"no {name}", ["resume", with_settings(f"null-{name}", **{name: None})], "run.json", name)
          for name in ("model", "order", "val", "place")),
        ("no data", ["resume", with_settings("no-data", data=[])], "run.json", "gives no value for --data"),
        ("data left out", ["resume", with_text("dataless", json.dumps({**right, "settings": {
            name: value for name, value in right["settings"].items() if name != "data"}}))], "run.json", "--data"),
        ("an unknown setting", ["resume", with_settings("odd", colour="red")], "run.json", "colour"),
        ("run.json cut, exported", ["export", cut, path("out")], "run.json"),
    ])
    other = with_text("other", json.dumps({**right, "config": {**right["config"], "n_layer": 3}}))
    problems += refused_as([(f"another model: {command}", [command, other, *more], "model than")
                            for command, *more in (("resume",), ("export", path("out")))])
    ended = program.limits.run(threads(2, program.command("resume", other, "--steps", 4)), stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, check=False)
    if ended.returncode != 1 or "another model than run.json" not in ended.stderr or os.path.exists(os.path.join(other, "rank-0-of-2")):
        problems.append(f"another model on two ranks: status {ended.returncode}: {ended.stderr[-800:]}")
    return problems + resumes("the run itself", run, 4)


def label_changed(content, start=0):
    place = start + LABEL_BYTE
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1:]


def labels_changed(content):
    return label_changed(label_changed(content), COPY_OFFSET)


def stores_that_are_not_whole():
    run = trained("whole")
    content = program.tree(run)[STORE]

    def with_store(name, change):
        broken = copy_of(run, name)
        if change is None:
            os.remove(os.path.join(broken, STORE))
        else:
            program.write(os.path.join(broken, STORE), change(content))
        return broken

    problems = []
    for command, *more in (("resume",), ("export", path("out")), ("generate", "--prompt", "a")):
        problems += refused_as([
            (f"{command}, no store", [command, with_store("gone", None), *more], STORE),
            (f"{command}, an empty store", [command, with_store("none", lambda c: b""), *more], STORE),
            (f"{command}, a store cut", [command, with_store("half", lambda c: c[:len(c) // 2]), *more], STORE,
             "truncated"),
            (f"{command}, rubbish", [command, with_store("rubbish", lambda c: b"?" * len(c)), *more], STORE),
            (f"{command}, both labels changed", [command, with_store("label", labels_changed), *more], STORE, "label"),
        ])
    problems += resumes("the first label changed", with_store("first", label_changed), 4)
    problems += resumes("the second label changed", with_store("second", lambda c: label_changed(c, COPY_OFFSET)), 4)
    return problems + resumes("the run itself", run, 4)


def flipped_bytes_are_found_or_do_not_matter():
    """One byte changed anywhere in the store: refused by name, or it was not in the last commit."""
    run = trained("flipped")
    with open(os.path.join(run, STORE), "rb") as file:
        content = file.read()
    expected = copy_of(run, "expected")
    program.must("resume", expected, "--steps", 6)
    draw = random.Random(FLIP_SEED)
    problems, found = [], 0
    for _ in range(FLIPS):
        place = draw.randrange(len(content))
        broken = copy_of(run, "broken")
        program.write(os.path.join(broken, STORE), content[:place] + bytes([content[place] ^ 0x10]) +
                      content[place + 1:])
        what = f"byte {place} of {len(content)}, seed {FLIP_SEED}"
        ended = program.run("resume", broken, "--steps", 6)
        if ended.code == 0 and program.numbers_of(broken) != program.numbers_of(expected):
            problems.append(f"{what}: went on with other numbers")
        if ended.code != 0:
            found += 1
            words = ("unit", "grain") if "grain" in ended.err else (STORE,)
            problems += program.wrong_refusal(what, ended, 1, words, ["resume"])
    if not 0 < found < FLIPS:
        problems.append(f"{found} of {FLIPS} flips were found; half of the store is the last commit")
    return problems


def a_store_in_use():
    run = trained("busy")
    other = program.start("resume", run, "--steps", 1000000)
    try:
        while not other.stderr.readline().startswith("step 10/"):
            pass
        copied = copy_of(run, "busy-store")
        problems = refused_in_use(["resume", run], run)
        problems += refused_in_use(["resume", run, "--nvme", copied], run)
    finally:
        other.kill()
        other.wait()
        other.stderr.close()
    return problems + resumes("after the other process was killed", run, program.steps_of(run)[-1]["step"] + 2)


def refused_in_use(arguments, what):
    return program.wrong_refusal(" ".join(arguments), program.run(*arguments), 1, ["in use", what], arguments)


def a_copy_that_shares_the_store():
    """A run and a copy of its folder share a store that lies outside; only the one that trained last goes on."""
    drive = path("shared-drive")
    os.mkdir(drive)
    run = trained("original", "--nvme", drive)
    copy = copy_of(run, "copied-folder")
    problems = resumes("the copy", copy, 4) + resumes("the copy again", copy, 5)
    problems += refused_as([(f"the original to {arguments[0]}", [arguments[0], run, *arguments[1:]], "another copy", "step 5")
                            for arguments in (("resume", "--steps", 6), ("verify",), ("export", path("of-a-copy")))])
    shutil.copy(os.path.join(copy, "run.json"), run)
    problems += resumes("the original with its run.json", run, 6)
    return problems + program.refused("the copy", ["resume", copy, "--steps", 7], "another copy", watched=[SCRATCH])


def other_data():
    run = trained("learnt")
    changed = program.text(4, 20000)
    problems = []
    original = program.tree(SCRATCH)["data.txt"]
    for what, content, words in (("other data", changed, ["data"]), ("longer data", original + b"x", ["data"]),
                                 ("no data", None, ["data.txt"])):
        os.remove(DATA)
        if content is not None:
            program.write(DATA, content)
        problems += program.refused(what, ["resume", run, "--steps", 4], *words, watched=[SCRATCH])
        program.write(DATA, original)
    return problems + resumes("the right data", run, 4)


def changes_that_cannot_be():
    """A resume that is refused leaves the run as it was, its description included."""
    run = trained("kept")
    os.mkdir(path("storeless"))
    return refused_as([
        ("a budget too small", ["resume", run, "--device-memory", "1KiB"], "--device-memory"),
        ("a folder without the store", ["resume", run, "--nvme", path("storeless")], STORE),
        ("two folders for one", ["resume", run, "--nvme", run, "--nvme", path("storeless")], STORE),
        ("a folder that is missing", ["resume", run, "--nvme", path("missing")], "missing"),
    ]) + resumes("the run itself", run, 4)


def exports_that_cannot_be():
    run = trained("exported")
    os.mkdir(path("taken"))
    program.write(path("taken", "note"), "mine")
    return refused_as([("a folder in use", ["export", run, path("taken")], "taken", "not empty"),
                       ("a folder below a missing one", ["export", run, path("missing", "out")], "missing"),
                       ("a file", ["export", run, DATA], "data.txt")])


script_test.run(folders_that_cannot_hold_a_run, folders_that_cannot_hold_a_store, what_is_no_run, damaged_descriptions,
                stores_that_are_not_whole, flipped_bytes_are_found_or_do_not_matter, a_store_in_use, a_copy_that_shares_the_store, other_data,
                changes_that_cannot_be, exports_that_cannot_be)
