"""The files that a run keeps in its folder: log, exports and their modes; and that nothing outside the folder is touched."""

import json
import os
import shutil

import program
from program import STORE, script_test
from small_runs import SCRATCH, STEPS, exported, path, reference, train, validation


def parents_of_the_folder():
    """Parents of the run folder are made with it, and are removed again when the start fails."""
    program.must(*train("new/deeper/run", "nvme", steps=1))
    problems = [] if os.path.isfile(path("new", "deeper", "run", "run.json")) else ["there is no run"]
    ended = program.run(*train("failed/deeper/run", "nvme", "--nvme", SCRATCH + ":1KiB", steps=1))
    if ended.code != 1 or os.path.exists(path("failed")):
        problems.append(f"a start that failed: status {ended.code}, {ended.err}, left {program.tree(path('failed')).keys()}")
    return problems


def the_log_is_flushed_at_commits():
    """Each commit flushes the log. A link in the log's place is not followed, so the flush fails: one warning says so,
    and the run goes on."""
    program.must(*train("log-lost", "nvme", steps=2))
    log, kept = path("log-lost", "log.jsonl"), path("log-kept.jsonl")
    other = program.start("resume", path("log-lost"), "--steps", 1000000)
    try:
        while not other.stderr.readline().startswith("step 5/"):
            pass
        os.rename(log, kept)
        os.symlink(kept, log)
        said = [other.stderr.readline() for _ in range(200)]
    finally:
        other.kill()
        other.wait()
        other.stderr.close()
    warnings = [line for line in said if "after a power loss the log may lack steps" in line]
    return [] if len(warnings) == 1 and said[-1].startswith("step ") else [f"{warnings}, and then {said[-1]!r}"]


def the_log_is_restored():
    """The commit holds the end of the log, so a resume restores lines that a power loss removed or tore."""
    program.must(*train("log-torn", "nvme", steps=40))
    log, before = path("log-torn", "log.jsonl"), program.numbers_of(path("log-torn"))
    with open(log, encoding="utf-8") as file:
        lines = file.readlines()
    program.write(log, "".join(lines[:14]) + lines[14][:30])
    program.must("resume", path("log-torn"), "--steps", 42)
    after = program.numbers_of(path("log-torn"))
    if list(after) != list(range(1, 43)) or any(after[step] != before[step] for step in before):
        return [f"the log has the steps {list(after)}, not those that were trained, or other numbers"]
    return []


def wrong_exports(run, kept, losses):
    """The list and the folders beside it are those of the steps `kept`, with these losses."""
    index = program.read_json(path(run, "exports", "index.json"))
    problems = []
    if sorted((entry["step"], entry["val_loss"]) for entry in index) != [(step, losses.get(step)) for step in kept]:
        problems.append(f"{run}: the list is {index}")
    if sorted(os.listdir(path(run, "exports"))) != sorted(["index.json", *(f"step-{step}" for step in kept)]):
        problems.append(f"{run}: there are {os.listdir(path(run, 'exports'))}")
    return problems


def exports_while_it_goes_on():
    """The best exports by validation loss are kept, or the newest. Exports do not change the training, and a resume
    makes lost ones again."""
    every = ("--export-every", 3, "--keep", 2)
    program.must(*train("best", "nvme", *every))
    losses = {line["step"]: line["val_loss"] for line in validation("best")}
    problems = wrong_exports("best", sorted(sorted(losses, key=losses.get)[:2]), losses)
    with open(path("best", "exports", f"step-{STEPS}", "model.safetensors"), "rb") as file:
        if STEPS in sorted(losses, key=losses.get)[:2] and file.read() != exported(reference(), "at-the-end"):
            problems.append("the last export is not the weights of a run without exports")
    program.must(*train("newest", "host", *every, "--save-every", 2, val="0%"))
    problems += wrong_exports("newest", [STEPS - 3, STEPS], {})
    shutil.rmtree(path("newest", "exports"))
    program.must("resume", path("newest"))
    problems += wrong_exports("newest", [STEPS], {})
    # A kill between the list and what it lists: the list says what is to go.
    index, step = path("newest", "exports", "index.json"), path("newest", "exports", "step-3")
    program.write(index, json.dumps([*program.read_json(index), {"step": 3, "val_loss": None, "unlisted": True}]))
    for folder in (step, step + ".partial"):
        os.mkdir(folder)
        program.write(os.path.join(folder, "config.json"), "{}")
    # A kill while files are replaced that a start without steps does not write.
    unfinished = [path("newest", *names) for names in (("timeline.json.partial",), ("exports", "index.json.partial"))]
    for name in unfinished:
        program.write(name, "{")
    program.must("resume", path("newest"))
    problems += [f"{name} is left" for name in unfinished if os.path.exists(name)]
    return problems + wrong_exports("newest", [STEPS], {})


def what_is_written_is_private():
    """The files of a run are for the user alone, whatever the umask, and still are after a resume."""
    problems, run = [], path("private")
    for mask, arguments in ((0o000, train("private", "nvme", "--export-every", 5, steps=5)),
                            (0o777, ["resume", run, "--steps", 10])):
        before = os.umask(mask)
        try:
            program.must(*arguments)
        finally:
            os.umask(before)
        wanted = {STORE: 0o600, "log.jsonl": 0o600, "run.json": 0o600, "recipe.yaml": 0o600, "run.lock": 0o600, ".": 0o700,
                  "exports": 0o700,
                  "exports/index.json": 0o600}
        found = {name: os.stat(os.path.join(run, name)).st_mode & 0o777 for name in wanted}
        problems += [f"{arguments[0]}: {name} has the mode {found[name]:o}" for name in wanted if found[name] != wanted[name]]
    return problems


def a_run_folder_does_not_reach_outside():
    """The program follows no links that others have put into the folder, waits for no FIFOs and writes to no
    hard links."""
    run, victim = path("foreign"), program.write(path("victim"), "mine")
    program.must(*train("foreign", "nvme", steps=2))
    problems = []

    def with_instead(name, make, words=None):
        """Resumes with `make(name)` in the place of a file of the run. `words` are in the refusal; None: the resume
        goes on without touching what is linked."""
        at, kept = os.path.join(run, name), path("kept")
        there = os.path.lexists(at)
        if there:
            shutil.move(at, kept)
        make(at)
        what = f"{make.__name__} as {name}"
        if words is None:
            ended = program.run("resume", run, "--steps", 3)
            found = [] if ended.code == 0 else [f"{what}: {ended.err}"]
        else:
            ended = program.run("resume", run, "--steps", 3)
            last = ended.err.strip().split("\n")[-1]
            found = [] if ended.code == 1 and all(word in last for word in ("spillway resume: ", *words)) else [
                f"{what}: status {ended.code}, {last!r}"]
        if os.path.lexists(at) and (there or words is not None):
            os.remove(at)
        if there:
            shutil.move(kept, at)
        with open(victim, encoding="utf-8") as file:
            return found + ([] if file.read() == "mine" else [f"{what}: the link was followed"])

    def link(at):
        os.symlink(victim, at)

    def second_name(at):
        os.link(victim, at)

    for make in (link, os.mkfifo):
        problems += with_instead("run.json", make, ["run.json", "regular file"])
        problems += with_instead("log.jsonl", make, ["log.jsonl"])
        problems += with_instead("run.lock", make, ["run.lock"])
        problems += with_instead("run.json.partial", make)
    problems += with_instead(STORE, link, [STORE, "link", "--nvme"])
    problems += with_instead("log.jsonl", second_name, ["log.jsonl"])
    problems += with_instead("run.json.partial", second_name)
    os.mkdir(path("elsewhere-exports"))
    os.symlink(path("elsewhere-exports"), os.path.join(run, "exports"))
    ended = program.run("resume", run, "--steps", 6, "--export-every", 3)
    if ended.code != 1 or "exports is not a folder" not in ended.err or os.listdir(path("elsewhere-exports")):
        problems.append(f"exports is a link: {ended.code}, {ended.err[-300:]}")
    os.remove(os.path.join(run, "exports"))
    return problems + a_forged_list_removes_nothing(run)


def a_forged_list_removes_nothing(run):
    """A run.json that names the store of another run as one to be removed, by ways out of the folder."""
    program.must(*train("robbed", "nvme", steps=2))
    os.symlink(path("robbed"), os.path.join(run, "rank-0-of-2"))
    forged, stores = os.path.join(run, "run.json"), program.read_json(path("robbed", "run.json"))["stores"]
    for place in ("rank-0-of-2", "../robbed", "log.jsonl/../../robbed"):
        text = program.read_json(forged)
        text["left"] = [{"id": stores[0]["id"], "last_step": 2, "places": [place]}]
        program.write(forged, json.dumps(text))
        program.must("resume", run, "--steps", 3)
        if not os.path.exists(path("robbed", STORE)):
            return [f"the store of another run was removed by way of {place}"]
        if ".." in place and program.read_json(forged)["left"] != text["left"]:
            return [f"what cannot be removed is forgotten: {place}"]
    return []


def places_are_named_by_way_of_the_run():
    """A user may name places by way of the run folder: it exists once the run has begun."""
    os.mkdir(path("beside"))
    program.must(*train("by-way", "nvme", "--nvme", path("by-way", "..", "beside"), "--trace",
                        path("by-way", "..", "by-way.trace"), steps=2))
    program.must("resume", path("by-way"), "--steps", 3)
    wanted = [path("beside", STORE), path("by-way.trace")]
    return [f"there is no {name}" for name in wanted if not os.path.isfile(name)]


script_test.run(parents_of_the_folder, the_log_is_flushed_at_commits, the_log_is_restored, exports_while_it_goes_on,
                what_is_written_is_private, a_run_folder_does_not_reach_outside, places_are_named_by_way_of_the_run)
