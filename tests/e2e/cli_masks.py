"""Loss masks beside the data: all ones change nothing, other masks the loss, and none is passed over at resume."""

import os
import re
import shutil
import struct

import program
import runs
from program import script_test
from runs import path

TEXT = program.text(6, 20000)


def data(name, mask=None):
    os.makedirs(path("data", name), exist_ok=True)
    file = program.write(path("data", name, "data.txt"), TEXT)
    if mask is not None:
        with open(file + ".mask", "wb") as beside:
            beside.write(bytes(mask))
    return file


class Run(runs.Run):
    flags = ("--val", "10%", "--lr", "2e-3")

    def __init__(self, name, file):
        super().__init__(name, data=(file,))


def losses(run, file):
    lines = Run(run, file).train().log()
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
    """Steps without a token that has a loss go by: warned of once, counted, and shown without a number."""
    run = Run("sparse", data("sparse", [i % 1900 == 17 for i in range(len(TEXT))])).train()
    steps = run.steps_done()
    empty = [line["step"] for line in steps if line["loss_tokens"] == 0]
    problems = [f"step {line['step']} has the loss {line['loss']} over {line['loss_tokens']} tokens" for line in steps
                if (line["loss"] is None) != (line["loss_tokens"] == 0)]
    shown = [int(step) for step in re.findall(r"step (\d+)/\d+  loss -  ", run.said)]
    if not empty or shown != empty:
        problems.append(f"the steps {empty} are empty, and the lines show {shown}")
    warned = re.findall("warning: .*no token with a loss", run.said)
    if len(warned) != 2 or f"warning: {len(empty)} of {Run.steps} steps had no token" not in run.said:
        problems.append(f"not said once at the first and once at the end: {run.said}")
    program.must("report", run.path(), "--out", path("sparse.html"))
    if f'"empty":{len(empty)},' not in open(path("sparse.html"), encoding="utf-8").read():
        problems.append("the report does not count the empty steps")
    return problems


def a_changed_mask_is_refused():
    file = data("changed", [1] * len(TEXT))
    run = Run("changing", file).train()
    with open(file + ".mask", "r+b") as beside:
        beside.seek(100)
        beside.write(b"\0")
    ended = program.run("resume", run.path(), "--steps", Run.steps + 1)
    shutil.rmtree(run.path())
    return [] if ended.code == 1 and "data" in ended.err else [f"status {ended.code}: {ended.err}"]


def files_beside_the_data_are_told_and_remembered():
    """Which of them were found is said by train and eval; a resume refuses data that were moved without them."""
    file, problems = data("beside", [i % 4 != 0 for i in range(len(TEXT))]), []
    program.write(file + ".doc", struct.pack("<3Q", 0, 5000, 9000))
    told = Run("beside", file).train().said
    tokens = len(TEXT) - int(len(TEXT) * 0.1)
    line = next((line for line in told.splitlines() if line.startswith("data: ")), "")
    epochs = Run.steps * 8 / ((tokens - 1) // program.SEQ)
    for words in (f"data: {tokens} tokens in 3 documents, 75% of them with a loss", "data.txt.mask, data.txt.doc",
                  f"{Run.steps} steps are {epochs:.3g} epochs"):
        if words not in line:
            problems.append(f"'{words}' is not in {line!r}")
    for name in (".mask", ".doc"):
        os.rename(file + name, path("away"))
        problems += program.refused(f"without {name}", ["resume", path("beside"), "--steps", Run.steps + 1], file + name,
                                    "not there")
        evaluation = program.must("eval", path("beside"), "--data", file, "--seq", program.SEQ).err
        other = ".doc" if name == ".mask" else ".mask"
        if f"data.txt{other}" not in evaluation or f"data.txt{name}" in evaluation:
            problems.append(f"eval without {name} says {evaluation!r}")
        os.rename(path("away"), file + name)
    plain = data("bare")
    told = Run("bare", plain).train().said
    if "100% of them with a loss; no .mask and no .doc beside them" not in told:
        problems.append(f"without files beside the data: {told!r}")
    program.write(plain + ".mask", bytes([1] * len(TEXT)))
    problems += program.refused("a new mask", ["resume", path("bare"), "--steps", Run.steps + 1], "began without")
    return problems


script_test.run(ones_change_nothing, only_masked_tokens_count, a_sparse_mask_trains, a_changed_mask_is_refused,
                files_beside_the_data_are_told_and_remembered)
