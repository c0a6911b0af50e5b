"""Packed documents beside the data: each is evaluated as if it were alone, and none is passed over at resume."""

import json
import os
import struct

import program
from program import script_test

SCRATCH = program.scratch_folder()
TEXT = program.text(9, 20000)
STEPS = 10
DOCUMENT, PACKED = 17, 3  # tokens of a document, and documents of a window: it begins where one of them does
ROUNDING = 1e-5  # relative, of sums in another order, in fp32


def path(*names):
    return os.path.join(SCRATCH, *names)


def starts_of(tokens, length):
    return list(range(0, tokens, length))


def data(name, starts=None, text=TEXT):
    os.makedirs(path("data", name), exist_ok=True)
    file = program.write(path("data", name, "data.txt"), text)
    if starts is not None:
        program.write(file + ".doc", struct.pack(f"<{len(starts)}Q", *starts))
    return file


def train(run, file, *more):
    program.must("train", "--model", "gpt2-tiny", "--init", "--data", file, "--run", path(run), "--val", "10%", "--lr",
                 "2e-3", "--precision", "fp32", *program.SHAPE, *more)
    return path(run)


def trained():
    """A run over documents of 100 characters, made once."""
    if os.path.isdir(path("packed")):
        return path("packed")
    return train("packed", data("packed", starts_of(len(TEXT), 100)), "--steps", STEPS)


def logged(run):
    return [[line[field] for line in program.log_lines(run) if field in line]
            for field in ("loss", "grad_norm", "val_loss", "val_tokens")]


def evaluated(file, seq):
    return json.loads(program.must("eval", trained(), "--data", file, "--precision", "fp32", "--json", "--seq", seq).out)


def one_document_changes_nothing():
    plain = logged(train("plain", data("none"), "--steps", STEPS))
    if plain != logged(train("one", data("one", [0]), "--steps", STEPS)):
        return ["a single document changed a number"]
    return [] if plain[0] != logged(trained())[0] else ["many documents changed no loss"]


def each_as_if_alone():
    text = TEXT[:9 * DOCUMENT]
    starts = starts_of(len(text), DOCUMENT)
    packed = evaluated(data("nine", starts, text), PACKED * DOCUMENT)
    alone = [evaluated(data(f"alone{start}", text=text[start:start + DOCUMENT]), DOCUMENT - 1) for start in starts]
    loss = sum(one["loss"] for one in alone) / len(alone)
    problems = []
    if packed["tokens"] != sum(one["tokens"] for one in alone) or abs(packed["loss"] - loss) > ROUNDING * loss:
        problems.append(f"packed {packed}, alone {alone}")
    whole = evaluated(data("whole", text=text), PACKED * DOCUMENT)
    if abs(whole["loss"] - loss) < 100 * ROUNDING * loss:
        problems.append("documents make no difference, so this shows nothing")
    return problems


def a_resumed_run_goes_on():
    run = train("resumed", data("resumed", starts_of(len(TEXT), 100)), "--steps", 4, "--schedule", "constant")
    whole = train("whole", data("whole-run", starts_of(len(TEXT), 100)), "--steps", 8, "--schedule", "constant")
    program.must("resume", run, "--steps", 8)
    if program.numbers_of(run) == program.numbers_of(whole):
        return []
    return [f"resumed {program.numbers_of(run)}, in one {program.numbers_of(whole)}"]


def changed_documents_are_refused():
    starts = starts_of(len(TEXT), 100)
    file = data("changed", starts)
    run = train("changing", file, "--steps", 2)
    changes = {"moved": starts[:-1] + [starts[-1] + 1], "missing": None, "bad": starts[::-1]}
    problems = []
    for name, now in changes.items():
        os.remove(file + ".doc") if now is None else data("changed", now)
        words = {"bad": ("data.txt.doc: the first document",), "missing": ("data.txt.doc, which the run began with,",),
                 "moved": ("not those that the run began with",)}[name]
        problems += program.refused(name, ["resume", run, "--steps", 3], *words, watched=[run])
    return problems


def bad_documents_are_refused():
    file = data("beyond", [0, len(TEXT)])
    problems = program.refused("train", ["train", "--model", "gpt2-tiny", "--init", "--data", file, "--run",
                                         path("refused"), "--steps", 1, *program.SHAPE], "document 2 begins at token",
                               "beyond the", watched=[path("data")])
    return problems + program.refused("eval", ["eval", trained(), "--data", file], "document 2 begins at token")


script_test.run(one_document_changes_nothing, each_as_if_alone, a_resumed_run_goes_on, changed_documents_are_refused,
                bad_documents_are_refused)
