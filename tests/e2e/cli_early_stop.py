"""A run whose validation loss has stopped falling ends, with the best weights exported, wherever it was interrupted."""

import json
import os
import re
import shutil
import time

import program
import runs
from program import script_test
from runs import path

# Little to learn from and other words to be judged by: soon the validation loss rises.
HELD = runs.text_file("held.txt", seed=77, characters=3000)
STEPS, EVERY, PATIENCE = 400, 5, 3
JUDGED = ("--val", HELD, "--eval-every", EVERY)
STOPS = (*JUDGED, "--early-stop", PATIENCE)


class Run(runs.Run):
    data, steps, flags = (runs.text_file(characters=3000),), STEPS, ("--lr", "5e-3", "--precision", "fp32")

    def judged(self, every=1):
        """Validation losses by step."""
        return {line["step"]: line["val_loss"] for line in self.log() if "val_loss" in line and line["step"] % every == 0}

    def index(self):
        return program.read_json(self.path("exports", "index.json"))


def wrong_end(run, said):
    """Why a run has not ended as --early-stop says."""
    found = run.judged(EVERY)
    best = min(found, key=found.get)
    last = run.steps_done()[-1]["step"]
    problems = [] if last == best + PATIENCE * EVERY < STEPS else [f"{run.name}: ended after step {last}: {found}"]
    folder = run.path("exports", f"step-{best}")
    if f"least after step {best}, {found[best]:.4f}: its weights are in {folder}\n" not in said or not re.search(
            r"--early-stop has ended the run; .* resume .* --early-stop 0` continues", said):
        problems.append(f"{run.name}: says {said[-900:]}")
    exports = {entry["step"]: entry["val_loss"] for entry in run.index()}
    if exports.get(best) != found[best] or len(exports) != 2:
        problems.append(f"{run.name}: exported {exports}")
    measured = json.loads(program.must("eval", folder, "--data", HELD, "--seq", program.SEQ, "--precision", "fp32",
                                       "--json").out)["loss"]
    return problems + ([] if abs(measured - found[best]) < 1e-4 else [f"{folder} has the loss {measured}"])


def the_best_is_kept():
    whole = Run("whole", *STOPS)
    problems = wrong_end(whole, whole.train().said)
    steps = len(whole.steps_done())
    if Run("plain", *JUDGED, steps=steps).train().numbers() != whole.numbers():
        problems.append("--early-stop changes the training")
    again = whole.resume().err
    if len(whole.steps_done()) != steps or "--early-stop has ended the run" not in again:
        problems.append(f"a resume goes on: {again[-400:]}")
    whole.resume("--early-stop", 0, "--steps", steps + 2)
    return problems + ([] if len(whole.steps_done()) == steps + 2 else ["--early-stop 0 does not go on"])


def interrupted():
    """Evaluations without improvement are counted across starts; those at the ends of starts do not count."""
    expected = Run("whole", *STOPS).once().judged(EVERY)
    stop = min(expected, key=expected.get) + EVERY + 2
    halves = Run("halves", *STOPS, steps=stop).train()
    said = halves.resume("--steps", STEPS).err
    first = halves.judged(EVERY)
    return wrong_end(halves, said) + ([] if all(first[step] == expected[step] for step in first) else [f"{first}"])


def ranks():
    """That share the state, or compute layers together."""
    problems = []
    for name, flags in (("ranks", ("--zero", 3)), ("group", ("--tensor", 2))):
        run = Run(name, *STOPS, *flags, "--micro-batch", 2, ranks=2)
        problems += wrong_end(run, run.train().said)
    return problems


def what_was_before_it():
    """A run that gets the flag later has no export of an earlier best, and says so."""
    said = Run("later", *JUDGED, steps=STEPS // 4).train().resume("--early-stop", 1, "--steps", STEPS).err
    return [] if "of whose weights there is no export" in said else [f"says {said[-600:]}"]


def refused():
    return [problem for what, more, words, status in (("no evaluations", ("--val", HELD), ("--early-stop", "--eval-every"), 2),
                                                      ("no validation data", ("--eval-every", EVERY), ("--early-stop", "--val"), 1))
            for end in ((), ("--dry-run",))
            for problem in Run("no", "--early-stop", 3, *more, *end).refused(*words, what=what, status=status)]


# Its weights are on the drive once it has ended, so a kill costs every step of a start.
SAVES_LAST = ("--place", "optimizer=host", "--save-every", STEPS, "--schedule", "constant", "--warmup", 0, "--eval-every", 2,
              "--export-every", 2)


def short(name, *more, steps=6, keep=9):
    return Run(name, "--val", HELD, *SAVES_LAST, "--keep", keep, "--micro-batch", 8, *more, steps=steps)


def killed_after(run, step, command):
    process = program.start(*command)
    while process.poll() is None:
        time.sleep(0.01)
        if os.path.exists(run.path("exports", "index.json")) and any(
                entry["step"] >= step and "unlisted" not in entry and "given_up" not in entry for entry in run.index()):
            process.kill()
    _, said = process.communicate()
    if process.returncode != -9:
        raise RuntimeError(f"{run.name}: ended by itself: {said[-500:]}")


def wrong_index(run, given_up):
    """Why the exports that count are not of the run's own evaluations, or others were given up."""
    index, found = run.index(), run.judged()
    problems = [f"{run.name}: {entry} is not of {found}" for entry in index
                if "given_up" not in entry and entry["val_loss"] != found.get(entry["step"])]
    marked = sorted(entry["step"] for entry in index if "given_up" in entry)
    return problems + ([] if marked == given_up else [f"{run.name}: given up are {marked} instead of {given_up}"])


def an_export_that_the_run_went_back_from_counts_no_more():
    """A kill before the first save; then another rate from step 0 on, which writes the same steps anew."""
    back = short("back", "--early-stop", 9, steps=STEPS)
    killed_after(back, 6, back.words())
    beyond = [entry["step"] for entry in back.index() if entry["step"] > 4 and "unlisted" not in entry]
    said = back.resume("--steps", 4, "--lr", "1e-3").err
    problems = [] if "the run goes on from step 0, so " in said and "no longer count" in said else [f"says {said[-900:]}"]
    problems += wrong_index(back, beyond)
    same = program.tree(back.exported()) == program.tree(back.path("exports", "step-4"))
    problems += [] if same else ["exports/step-4 has not the weights of step 4"]
    back.resume("--steps", 8)
    return problems + wrong_index(back, [step for step in beyond if step > 8])


def an_export_belongs_to_the_starts_of_its_run():
    """A backup of the run comes back beside exports that later starts wrote for steps that it comes to by itself."""
    backup = short("backup").train()
    copy = backup.copy("copy")
    killed_after(backup, 10, ["resume", backup.path(), "--steps", STEPS])
    backup.resume("--steps", 10, "--lr", "1e-3")
    copy.resume("--steps", 9)
    shutil.rmtree(copy.path("exports"))
    shutil.copytree(backup.path("exports"), copy.path("exports"))
    copy.resume()
    problems = wrong_index(copy, [8, 10])
    copy.resume("--steps", 10)
    return problems + wrong_index(copy, [])


def a_run_with_many_starts_keeps_its_exports():
    """run.json forgets the oldest."""
    run = short("starts", steps=2).train()
    for step in range(3, 23):
        run.resume("--steps", step, "--export-every", 0)
    return wrong_index(run, [])


def exports_of_an_older_version():
    """It named no start. What the log contradicts is given up."""
    older = short("older").train()
    entries = [{name: entry[name] for name in ("step", "val_loss")} for entry in older.index()]
    entries[0]["val_loss"] += 0.1
    entries[1]["val_loss"] *= 1 + 1e-6
    shutil.copytree(older.path("exports", "step-6"), older.path("exports", "step-8"))
    program.write(older.path("exports", "index.json"), json.dumps(entries + [{"step": 8, "val_loss": 1.5}]))
    older.resume("--steps", 7)
    now = {entry["step"]: entry for entry in older.index()}
    problems = [f"{now}" for step in (2, 8) if not now[step].get("given_up")]
    return problems + [f"{now}" for step in (4, 6) if "given_up" in now[step] or "start" not in now[step]]


def removed_exports_take_no_place():
    """The removed one has the least loss, so that it would be kept for good, and any other be removed."""
    removed = short("removed", steps=7, keep=1).train()
    shutil.rmtree(removed.path("exports", "step-6"))
    said = removed.resume("--steps", 8, "--lr", "0.5", "--early-stop", 9).err
    problems = [] if "after step 6" in said and "of whose weights there is no export" in said else [f"says {said[-600:]}"]
    kept = [entry["step"] for entry in removed.index()]
    return problems + ([] if kept == [8] and os.path.isdir(removed.path("exports", "step-8")) else [f"kept are {kept}"])


def what_the_run_has_not_written_stays():
    """A folder under the name of an export ends the run, saved, and the next start does not take it for what a kill left."""
    run, problems = short("mine", steps=2).train(), []
    for name in ("step-4", "step-4.partial"):
        os.mkdir(run.path("exports", name))
        mine = program.write(run.path("exports", name, "mine.txt"), "mine")
        for _ in range(2):
            ended = program.run("resume", run.path(), "--steps", 4)
            if ended.code != 1 or f"exports/{name} is in the way of an export of step 4: move it away" not in ended.err:
                problems.append(f"{name}: status {ended.code}: {ended.err[-300:]}")
        problems += [] if os.path.exists(mine) else [f"{name} was removed"]
        shutil.rmtree(run.path("exports", name), ignore_errors=True)
    run.resume("--steps", 4)
    return problems + wrong_index(run, [])


def links_are_no_exports():
    """Exports that were moved away, with a link or a file in their place, are neither counted nor followed nor removed."""
    linked = short("linked", steps=7, keep=5).train()
    exports, entries = linked.path("exports"), linked.index()
    places = {2: lambda: os.symlink(path("moved-2"), os.path.join(exports, "step-2")),
              4: lambda: os.symlink(path("nothing"), os.path.join(exports, "step-4")),
              6: lambda: program.write(os.path.join(exports, "step-6"), "mine")}
    for step, place in places.items():
        shutil.move(os.path.join(exports, f"step-{step}"), path(f"moved-{step}"))
        place()
    entries[0]["unlisted"] = True
    program.write(os.path.join(exports, "index.json"), json.dumps(entries))
    moved = {step: program.tree(path(f"moved-{step}")) for step in places}
    said = linked.resume("--steps", 9, "--keep", 1).err
    problems = [f"says {said[-600:]}"] if "cannot be removed" in said else []
    problems += [f"step-{step} was changed" for step in places if program.tree(path(f"moved-{step}")) != moved[step]]
    left = [os.path.islink(os.path.join(exports, "step-2")), os.path.islink(os.path.join(exports, "step-4")),
            os.path.isfile(os.path.join(exports, "step-6"))]
    listed = [entry["step"] for entry in linked.index()]
    return problems + ([] if (left, listed) == ([True] * 3, [8]) else [f"left are {left}, listed {listed}"])


def indices_of_any_kind():
    """Anything but a list of exports is refused in a sentence, before a step; a large list is read as it is written."""
    run, problems = short("indices", steps=2).train(), []
    at, good = run.path("exports", "index.json"), run.index()
    entries = [1, None, "step", [], {}, {"step": "2"}, {"step": 0}, {"step": -2}, {"step": 2.0}, {"step": 10**30}, {"step": None},
               {"step": 2, "val_loss": "low"}, {"step": 2, "val_loss": [1]}, {"step": 2, "start": 7}, {"step": 2, "start": "a" * 33},
               {"step": 2, "unlisted": 1}, {"step": 2, "given_up": "no"}, {"step": 2, "given_up": {}}]
    texts = [json.dumps(value) for value in [{"step": 2}, "exports", *([*good, value] for value in entries)]]
    texts += ["", "[", json.dumps(good)[:-1], json.dumps([{"step": step} for step in range(1, 2002)])]
    for text in texts:
        program.write(at, text)
        before = program.tree(run.path("exports"))
        ended = program.run("resume", run.path(), "--steps", 3)
        last = ended.err.splitlines()[-1]
        if ended.code != 1 or "the run's exports; move" not in last or program.tree(run.path("exports")) != before:
            problems.append(f"{text[-60:]}: status {ended.code}: {last}")
    # The last entry of a step counts: what it lists is not removed.
    program.write(at, json.dumps([{"step": 2, "unlisted": True}, *good]))
    run.resume("--steps", 3)
    problems += [] if os.path.isdir(run.path("exports", "step-2")) else ["a listed export was removed"]
    program.write(at, json.dumps(good) + " " * (2 << 20))
    run.resume("--steps", 4)
    return problems + ([] if os.path.isdir(run.path("exports", "step-4")) else ["no export"])


script_test.run(the_best_is_kept, interrupted, ranks, what_was_before_it, refused,
                an_export_that_the_run_went_back_from_counts_no_more, an_export_belongs_to_the_starts_of_its_run,
                a_run_with_many_starts_keeps_its_exports, exports_of_an_older_version,
                removed_exports_take_no_place, what_the_run_has_not_written_stays, links_are_no_exports, indices_of_any_kind)
