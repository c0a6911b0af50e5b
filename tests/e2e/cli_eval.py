"""Loss and perplexity of a run or a folder on a file: what training's own validation measures, and bad input."""

import json
import math
import os
import struct

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
TEXT = program.text(8, 30000)
DATA = program.write(os.path.join(SCRATCH, "data.txt"), TEXT[:28000])
# More than one pass, and a last window that is short.
HELD = TEXT[28000:29001].encode()
FILE = program.write(os.path.join(SCRATCH, "held.txt"), HELD)
RUN = os.path.join(SCRATCH, "run")
FIELDS = {"loss": float, "perplexity": float, "bits_per_token": float, "bits_per_byte": float, "tokens": int, "seq": int, "seconds": float,
          "tokens_per_second": float}
ROUNDING = 1e-5  # relative, of sums and products in another order, in fp32
SHAPE = ["--seq", program.SEQ]


def path(*names):
    return os.path.join(SCRATCH, *names)


def run(precision="fp32"):
    """A run with a validation file, made once for each precision."""
    folder = f"{RUN}-{precision}"
    if not os.path.isdir(folder):
        program.must("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--val", FILE, "--run", folder, "--steps",
                     8, "--lr", "2e-3", "--precision", precision, *program.SHAPE)
    return folder


def evaluated(model, *more, data=FILE, precision="fp32"):
    return json.loads(program.must("eval", model, "--data", data, "--precision", precision, "--json", *SHAPE,
                                   *more).out)


def far(a, b, allowed=ROUNDING):
    return abs(a - b) > allowed * abs(b)


def what_training_measured():
    """The weights are the same bits, and so are the passes of as many windows."""
    problems = []
    for precision in ("fp32", "bf16"):
        logged = [line for line in program.log_lines(run(precision)) if "val_loss" in line][-1]
        found = evaluated(run(precision), "--micro-batch", 4, "--threads", 1, precision=precision)
        if far(found["loss"], logged["val_loss"], 1e-9) or found["tokens"] != logged["val_tokens"]:
            problems.append(f"{precision}: {found} instead of {logged}")
    return problems


def fields():
    found = evaluated(run())
    problems = [f"{name} is {found.get(name)!r}" for name, kind in FIELDS.items() if not isinstance(found.get(name),
                                                                                                  kind)]
    if found.keys() != FIELDS.keys():
        problems.append(f"the fields are {sorted(found)}")
    if far(found["perplexity"], math.exp(found["loss"]), 1e-12) or far(found["bits_per_token"] * math.log(2),
                                                                      found["loss"], 1e-12):
        problems.append(f"{found} do not belong together")
    if found["bits_per_byte"] != found["bits_per_token"]:
        problems.append(f"a byte is a token, and {found} differ")
    if (found["tokens"], found["seq"]) != (len(HELD) - 1, program.SEQ):
        problems.append(f"{found['tokens']} tokens in windows of {found['seq']}")
    line = program.must("eval", run(), "--data", FILE, "--precision", "fp32", *SHAPE)
    if not line.out.startswith(f"loss {found['loss']:.6f}  perplexity ") or line.out.count("\n") != 1 or (
            line.err != f"{FILE}: {len(HELD)} tokens, 100% of them with a loss; no .mask and no .doc beside them\n"):
        problems.append(f"the line is {line.out!r}, {line.err!r}")
    return problems


def ways_to_the_same_loss():
    """Losses of the run and of its export, whole and in shards, by text and tokens, are equal, however many windows at once."""
    program.must("export", run(), path("whole"))
    program.must("export", run(), path("shards"), "--shard-size", "30KiB")
    program.write(path("held.bin"), struct.pack(f"<{len(HELD)}H", *HELD))
    expected = evaluated(run())
    problems = []
    for what, model, more, data in (("the export", path("whole"), (), FILE), ("shards", path("shards"), (), FILE),
                                    ("tokens", run(), (), path("held.bin")),
                                    ("one thread", run(), ("--threads", 1), FILE),
                                    ("one window at once", run(), ("--micro-batch", 1), FILE),
                                    ("more windows than there are", run(), ("--micro-batch", 40), FILE)):
        found = evaluated(model, *more, data=data)
        if far(found["loss"], expected["loss"]) or found["tokens"] != expected["tokens"]:
            problems.append(f"{what}: {found} instead of {expected}")
    return problems


def the_first_tokens_only():
    """N predictions are those of a file of N+1 tokens."""
    problems = []
    for count in (1, program.SEQ, program.SEQ + 5, 500, len(HELD) - 1, 10 ** 6):
        found = evaluated(run(), "--tokens", count, "--micro-batch", 2)
        kept = min(count, len(HELD) - 1)
        if found["tokens"] != kept:
            problems.append(f"--tokens {count}: {found['tokens']} were predicted")
        if kept >= program.SEQ:
            program.write(path("first.txt"), HELD[:kept + 1])
            expected = evaluated(run(), data=path("first.txt"))
            if far(found["loss"], expected["loss"]):
                problems.append(f"--tokens {count}: {found['loss']} instead of {expected['loss']}")
    return problems


def masks_take_tokens_out():
    """Two masks that take out what the other leaves give together the loss of the whole."""
    expected, sums, tokens = evaluated(run()), 0.0, 0
    for name, kept in (("odd", 1), ("even", 0)):
        data = program.write(path(f"{name}.txt"), HELD)
        program.write(data + ".mask", bytes(place % 2 == kept for place in range(len(HELD))))
        found = evaluated(run(), data=data)
        sums, tokens = sums + found["loss"] * found["tokens"], tokens + found["tokens"]
    both = (tokens, expected["tokens"])
    return [] if both[0] == both[1] and not far(sums / tokens, expected["loss"]) else [f"{sums / tokens} over {both}"]


def a_model_that_knows_nothing():
    """Weights of zero give every token the same probability."""
    named = {name: (shape, [0.0] * len(values)) for name, (shape, values) in hf_folder.tensors(1).items()}
    folder = hf_folder.make(path("zeros"), hf_folder.config(), hf_folder.safetensors(named))
    found = evaluated(folder)
    return [] if not far(found["perplexity"], 256) and found["seq"] == program.SEQ else [f"{found}"]


def refused():
    def wrong(what, *words, model=run(), data=FILE, more=(), status=1):
        return program.refused(what, ["eval", model, "--data", data, *more], *words, status=status, watched=[SCRATCH])

    program.write(path("short.txt"), HELD[:program.SEQ])
    program.write(path("empty.txt"), "")
    program.write(path("foreign.bin"), struct.pack("<200H", *HELD[:199], 256))
    program.write(path("odd.bin"), b"123")
    program.write(path("data.json"), "{}")
    diverged = hf_folder.tensors(2)
    for name in ("transformer.wte.weight", "transformer.ln_f.bias"):
        diverged[name] = (diverged[name][0], [1e30] * len(diverged[name][1]))
    huge = hf_folder.make(path("diverged"), hf_folder.config(), hf_folder.safetensors(diverged))
    seq = ("--seq", program.SEQ)
    problems = wrong("no such model", "nothing-here", model=path("nothing-here"))
    problems += wrong("no such data", "none.txt", data=path("none.txt"))
    problems += wrong("an empty file", "empty.txt", data=path("empty.txt"))
    problems += wrong("less than a window", "64 tokens", "65", data=path("short.txt"), more=seq)
    problems += wrong("a foreign token", "foreign.bin", "256", "199", data=path("foreign.bin"), more=seq)
    problems += wrong("half a token", "odd.bin", data=path("odd.bin"))
    problems += wrong("another kind of file", "data.json", data=path("data.json"))
    problems += wrong("longer than the positions", "--seq", "100000", more=("--seq", 100000))
    problems += wrong("weights that diverged", "diverged", model=huge, more=seq)
    for flag, value in (("--tokens", 0), ("--seq", 0), ("--micro-batch", 0), ("--precision", "fp8")):
        problems += wrong(f"{flag} {value}", flag, more=(flag, value), status=2)
    return problems + program.refused("no data", ["eval", run()], "--data", status=2, watched=[SCRATCH])


script_test.run(what_training_measured, fields, ways_to_the_same_loss, the_first_tokens_only, masks_take_tokens_out,
                a_model_that_knows_nothing, refused)
