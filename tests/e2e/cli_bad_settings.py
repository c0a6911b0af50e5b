"""Wrong flags and data: the status, one line that helps, and nothing written."""

import os
import struct

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(2, 20000))
RUN = os.path.join(SCRATCH, "run")


def train(*more, model="gpt2-tiny", data=(DATA,), shape=program.SHAPE):
    return ["train", "--model", model, "--init", "--data", *data, "--run", RUN, "--steps", 1, *shape, *more]


def file(name, content):
    return program.write(os.path.join(SCRATCH, name), content)


def refused_as(table, status):
    return program.refused_each(table, status, [SCRATCH])


def wrong_usage():
    bare = ["train", "--model", "gpt2-tiny", "--data", DATA]
    return refused_as([
        ("an unknown flag", train("--learning-rate", 1), "--learning-rate"),
        ("a flag nearly right", train("--batch-token", 1), "--batch-tokens"),
        ("no --run", bare, "--run"),
        ("no --model", ["train", "--data", DATA, "--run", RUN], "--model"),
        ("no arguments", ["train"], "--model"),
        ("a number of letters", train("--seed", "many"), "--seed", "many"),
        ("a number with a tail", train("--seed", "10x"), "10x"),
        ("a number too large", train("--seed", "99999999999999999999"), "--seed"),
        ("steps below zero", train("--eval-every", -1), "--eval-every"),
        ("a rate of letters", train("--lr", "fast"), "--lr"),
        ("a rate that is no number", train("--lr", "nan"), "--lr"),
        ("a rate without bound", train("--lr", "inf"), "--lr"),
        ("a rate beyond the bound", train("--lr", "1e30"), "--lr"),
        ("no epsilon", train("--eps", 0), "--eps", "1e-30"),
        ("a beta of one", train("--beta2", "1"), "--beta2"),
        ("a size of letters", train("--device-memory", "much"), "--device-memory"),
        ("an unknown unit", train("--device-memory", "1parsec"), "1parsec"),
        ("a negative size", train("--host-memory", "-1GiB"), "--host-memory"),
        ("a time of letters", train("--time-limit", "soon"), "--time-limit"),
        ("an unknown choice", train("--precision", "int8"), "--precision", "bf16"),
        ("a flag without its value", train("--nvme"), "--nvme"),
        ("a flag twice", train("--seed", 1, "--seed", 2), "--seed"),
        ("a placement of rubbish", train("--place", "rubbish"), "--place", "rubbish"),
        ("an unknown state", train("--place", "moments=host"), "moments", "optimizer"),
        ("an unknown tier", train("--place", "optimizer=tape"), "tape", "nvme"),
        ("a state twice", train("--place", "grads=host,grads=device"), "grads", "twice"),
        ("shares beyond the whole", train("--place", "optimizer=device:70%/host:70%"), "140%", "optimizer"),
        ("shares short of the whole", train("--place", "acts=device:20%/host:30%"), "50%", "acts"),
        ("shares out of order", train("--place", "grads=nvme:20%/host"), "order", "device, host, nvme"),
        ("a share in the middle missing", train("--place", "grads=device/host"), "last"),
        ("an order of rubbish", train("--order", "sideways"), "sideways", "layer"),
        ("an empty placement", train("--place", ""), "--place"),
        ("a validation part of more than half", train("--val", "60%"), "60%", "50%"),
        ("a negative validation part", train("--val", "-5%"), "-5%"),
        ("a validation part of letters", train("--val", "some%"), "some%"),
        ("a second argument", ["resume", RUN, "again"], "again"),
        ("no folder to resume", ["resume"], "DIR"),
        ("no prompt and no tokens", ["generate", "gpt2-tiny"], "--prompt", "--tokens"),
        ("a prompt and tokens", ["generate", "gpt2-tiny", "--prompt", "a", "--tokens", DATA], "--prompt", "--tokens"),
        ("no folder to write", ["export", RUN], "OUT"),
        ("a flag of another command", ["plan", "--model", "gpt2-tiny", "--lr", 1], "--lr"),
        ("a value for a switch", ["doctor", "--json=yes"], "--json"),
    ], 2)


def what_is_not_there_yet():
    return refused_as([
        ("a GPU", train("--device", "cuda"), "--device cpu"),
    ], 1)


def shapes_that_do_not_fit_the_model():
    return refused_as([
        ("a long sequence", train(shape=["--seq", 128]), "128", "64 positions"),
        ("a micro-batch beyond memory", train(shape=["--seq", 64, "--micro-batch", 1 << 20]), "--device-memory"),
    ], 1) + refused_as([
        ("a batch that does not divide", train(shape=["--seq", 64, "--batch-tokens", 1000]), "--batch-tokens 1000"),
        ("a batch below a micro-batch", train(shape=["--seq", 64, "--micro-batch", 8, "--batch-tokens", 64]),
         "--batch-tokens 64", "--micro-batch 8"),
        ("a batch beyond 64 bits", train(shape=["--micro-batch", 1 << 20, "--batch-tokens", (1 << 63) - 1]),
         "--batch-tokens"),
        ("a decay beyond the schedule", train("--schedule", "wsd", "--decay-steps", 50), "decay", "50 steps does not fit in 1 step "),
        ("a warm-up beyond the schedule", train("--warmup", 50), "50 steps does not fit in 1 step;"),
    ], 2)


def data_files():
    narrow = hf_folder.make(os.path.join(SCRATCH, "narrow"), hf_folder.config(vocab_size=100), None)
    wide = hf_folder.make(os.path.join(SCRATCH, "wide"), hf_folder.config(vocab_size=70000), None)

    def on(name, content, **other):
        return train(data=[file(name, content)], **other)

    tokens = [struct.pack("<500H", *([5] * 499 + [last])) for last in (99, 100, 256)]
    table = [("no file", train(data=["none.txt"]), "none.txt"),
             ("a folder", train(data=[SCRATCH]), SCRATCH, "/*.txt"),
             ("a packed file", on("data.txt.gz", "x"), "gunzip -k", "data.txt.gz"),
             ("an unknown kind", on("data.unknown", "x"), "data.unknown", ".txt", ".bin"),
             ("an empty file", on("empty.txt", ""), "empty.txt", "empty"),
             ("too short a text", on("short.txt", "x" * 64), "64 tokens", "65"),
             ("half a token", on("odd.bin", b"abc" * 333), "odd.bin", "999 bytes", "2-byte"),
             ("half a wide token", on("odd4.bin", b"abcd" * 300 + b"ab", model=wide), "odd4.bin", "4-byte"),
             ("a token outside", on("large.bin", tokens[2]), "large.bin", "256", "499"),
             ("a token just outside", on("hundred.bin", tokens[1], model=narrow), "hundred.bin", "100", "499"),
             ("text for 100 tokens", train(model=narrow), "data.txt", "100", "256"),
             ("text for more tokens than bytes", train(model=wide), "data.txt", "70000", "256", "spillway tokenize"),
             ("a second file of another kind", train(data=[DATA, SCRATCH + "/wide/config.json"]), "config.json"),
             ("a validation part too short", train("--val", "0.1%"), "validation", "65"),
             ("no validation file", train("--val", "none.txt"), "none.txt"),
             ("a validation file of another kind", train("--val", "nonsense"), "nonsense"),
             ("training data too short beside validation", train("--val", "50%", data=[file("half.txt", "x" * 100)]),
              "50 tokens")]
    problems = refused_as(table, 1)
    inside = on("inside.bin", tokens[0], model=narrow)
    if program.run(*inside).code != 0:
        problems.append("tokens just inside the vocabulary are refused")
    program.shutil.rmtree(RUN, ignore_errors=True)
    return problems


def names_that_are_not_utf_8():
    """run.json could not hold them, by themselves or with the folder that they are in."""
    strange = os.path.join(SCRATCH, os.fsdecode(b"strange\xff"))
    os.mkdir(strange)
    inside = program.write(os.path.join(strange, "data.txt"), program.text(3, 2000))
    return refused_as([("a drive", train("--nvme", strange), "--nvme", "UTF-8", "rename it"),
                       ("a drive and a limit", train("--nvme", strange + ":1GiB"), "--nvme", "UTF-8"),
                       ("data in such a folder", train(data=[inside]), "--data", "UTF-8"),
                       ("a validation file", train("--val", inside), "--val", "UTF-8")], 1)


script_test.run(wrong_usage, what_is_not_there_yet, shapes_that_do_not_fit_the_model, data_files,
                names_that_are_not_utf_8)
