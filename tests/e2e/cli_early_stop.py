"""A run whose validation loss has stopped falling ends, with the best weights exported, wherever it was interrupted."""

import json
import os
import re
import subprocess

import program
from program import script_test
from ranks_jobs import mpirun

SCRATCH = program.scratch_folder()
# Little to learn from and other words to be judged by: soon the validation loss rises.
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(6, 3000))
HELD = program.write(os.path.join(SCRATCH, "held.txt"), program.text(77, 3000))
STEPS, EVERY, PATIENCE = 400, 5, 3
JUDGED = ("--val", HELD, "--eval-every", EVERY)
STOPS = (*JUDGED, "--early-stop", PATIENCE)
SHAPE = ("--seq", program.SEQ, "--batch-tokens", 8 * program.SEQ, "--threads", 1, "--chunk-grains", 2)


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, *more, steps=STEPS, micro_batch=4):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
            "--schedule-steps", STEPS, "--lr", "5e-3", "--precision", "fp32", "--micro-batch", micro_batch, *SHAPE, *more]


def losses(run):
    """Validation losses of --eval-every by step."""
    return {line["step"]: line["val_loss"] for line in program.log_lines(path(run))
            if "val_loss" in line and line["step"] % EVERY == 0}


def wrong_end(run, said):
    """Why a run has not ended as --early-stop says."""
    found = losses(run)
    best = min(found, key=found.get)
    last = program.steps_of(path(run))[-1]["step"]
    problems = [] if last == best + PATIENCE * EVERY < STEPS else [f"{run}: ended after step {last}: {found}"]
    folder = path(run, "exports", f"step-{best}")
    if f"least after step {best}, {found[best]:.4f}: its weights are in {folder}\n" not in said or not re.search(
            r"--early-stop has ended the run; .* resume .* --early-stop 0` continues", said):
        problems.append(f"{run}: says {said[-900:]}")
    exports = {entry["step"]: entry["val_loss"] for entry in program.read_json(path(run, "exports", "index.json"))}
    if exports.get(best) != found[best] or len(exports) != 2:
        problems.append(f"{run}: exported {exports}")
    measured = json.loads(program.must("eval", folder, "--data", HELD, "--seq", program.SEQ, "--precision", "fp32",
                                       "--json").out)["loss"]
    return problems + ([] if abs(measured - found[best]) < 1e-4 else [f"{folder} has the loss {measured}"])


def the_best_is_kept():
    said = program.must(*train("whole", *STOPS)).err
    problems = wrong_end("whole", said)
    steps = len(program.steps_of(path("whole")))
    program.must(*train("plain", *JUDGED, steps=steps))
    if program.numbers_of(path("plain")) != program.numbers_of(path("whole")):
        problems.append("--early-stop changes the training")
    again = program.must("resume", path("whole")).err
    if len(program.steps_of(path("whole"))) != steps or "--early-stop has ended the run" not in again:
        problems.append(f"a resume goes on: {again[-400:]}")
    program.must("resume", path("whole"), "--early-stop", 0, "--steps", steps + 2)
    return problems + ([] if len(program.steps_of(path("whole"))) == steps + 2 else ["--early-stop 0 does not go on"])


def interrupted():
    """Evaluations without improvement are counted across starts; those at the ends of starts do not count."""
    whole = path("whole")
    if not os.path.isdir(whole):
        program.must(*train("whole", *STOPS))
    expected = {step: loss for step, loss in losses("whole").items()}
    stop = min(expected, key=expected.get) + EVERY + 2
    program.must(*train("halves", *STOPS, steps=stop))
    said = program.must("resume", path("halves"), "--steps", STEPS).err
    first = losses("halves")
    return wrong_end("halves", said) + ([] if all(first[step] == expected[step] for step in first) else [f"{first}"])


def ranks():
    """That share the state, or compute layers together."""
    problems = []
    for name, flags in (("ranks", ("--zero", 3)), ("group", ("--tensor", 2))):
        done = program.limits.run(mpirun((2, program.command(*train(name, *STOPS, *flags, micro_batch=2)))),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        problems += wrong_end(name, done.stderr) if done.returncode == 0 else [f"{name}: status {done.returncode}: {done.stderr[-900:]}"]
    return problems


def what_was_before_it():
    """A run that gets the flag later has no export of an earlier best, and says so."""
    program.must(*train("later", *JUDGED, steps=STEPS // 4))
    said = program.must("resume", path("later"), "--early-stop", 1, "--steps", STEPS).err
    return [] if "whose weights were not exported" in said else [f"says {said[-600:]}"]


def refused():
    problems = []
    for what, more, words, status in (("no evaluations", ("--val", HELD), ("--early-stop", "--eval-every"), 2),
                                      ("no validation data", ("--eval-every", EVERY), ("--early-stop", "--val"), 1)):
        for end in ((), ("--dry-run",)):
            problems += program.refused(what, train("no", "--early-stop", 3, *more, *end), *words, status=status, watched=[SCRATCH])
    return problems


script_test.run(the_best_is_kept, interrupted, ranks, what_was_before_it, refused)
