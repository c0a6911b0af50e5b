"""Loss masks beside the data: all ones change nothing, other masks the loss, and none is passed over at resume."""

import os
import shutil

import program
from program import script_test

SCRATCH = program.scratch_folder()
TEXT = program.text(6, 20000)
STEPS = 12


def path(*names):
    return os.path.join(SCRATCH, *names)


def data(name, mask=None):
    os.makedirs(path("data", name), exist_ok=True)
    file = program.write(path("data", name, "data.txt"), TEXT)
    if mask is not None:
        with open(file + ".mask", "wb") as beside:
            beside.write(bytes(mask))
    return file


def train(run, file, *more):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", file, "--run", path(run), "--steps", STEPS, "--val",
            "10%", "--lr", "2e-3", *program.SHAPE, *more]


def losses(run, file):
    program.must(*train(run, file))
    lines = program.log_lines(path(run))
    return [[line[field] for line in lines if field in line] for field in ("loss", "val_loss", "val_tokens")]


def ones_change_nothing():
    if losses("plain", data("none")) == losses("ones", data("all", [1] * len(TEXT))):
        return []
    return ["a mask of ones changed a loss"]


def only_masked_tokens_count():
    """Where only blanks are learnt, their loss falls below what all of the text has."""
    learnt = [character == " " for character in TEXT]
    train_loss, val_loss, val_tokens = losses("blanks", data("blanks", learnt))
    first = len(TEXT) - int(len(TEXT) * 0.1)
    problems = []
    if val_tokens[-1] != sum(learnt[first + 1:]):
        problems.append(f"{val_tokens[-1]} tokens were evaluated, the mask has {sum(learnt[first + 1:])}")
    if not val_loss[-1] < losses("whole", data("none"))[1][-1] - 0.5 or not train_loss[-1] < train_loss[0] - 0.5:
        problems.append(f"a loss of {val_loss[-1]} on blanks alone after {train_loss}")
    return problems


def a_sparse_mask_trains():
    """Steps without a token that has a loss go by."""
    ended = program.run(*train("sparse", data("sparse", [i % 1900 == 17 for i in range(len(TEXT))])))
    return [] if ended.code == 0 else [f"status {ended.code}: {ended.err}"]


def a_changed_mask_is_refused():
    file = data("changed", [1] * len(TEXT))
    program.must(*train("changing", file))
    with open(file + ".mask", "r+b") as beside:
        beside.seek(100)
        beside.write(b"\0")
    ended = program.run("resume", path("changing"), "--steps", STEPS + 1)
    shutil.rmtree(path("changing"))
    return [] if ended.code == 1 and "data" in ended.err else [f"status {ended.code}: {ended.err}"]


script_test.run(ones_change_nothing, only_masked_tokens_count, a_sparse_mask_trains, a_changed_mask_is_refused)
