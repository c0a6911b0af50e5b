"""The room that a store may take: limits by --nvme DIR:SIZE, all the room known before it is made, and stopping while it
is made.
And a store that has moved, for every command that reads it."""

import hashlib
import json
import os
import shutil
import signal
import time

import program
from program import STORE, script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 20000))
# Large enough that making the store and filling it take a while: 21 million parameters.
MODEL = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 64,
         "n_embd": 768, "n_layer": 3, "n_head": 12}
MOST_ATTEMPTS = 10
ALL = "optimizer=nvme,grads=nvme,weights=nvme,acts=nvme"


def path(*names):
    return os.path.join(SCRATCH, *names)


def folder(name):
    os.mkdir(path(name))
    return path(name)


def train(run, *more, place=ALL, steps=2):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
            "--schedule-steps", 50, *program.SHAPE, "--place", place, *more]


def size_of(where):
    return os.stat(os.path.join(where, STORE)).st_size


def limits_of_a_new_run():
    """The optimizer alone fits, the scratch beside it does not: refused with both numbers, and nothing is made."""
    records, everything = folder("records"), folder("everything")
    program.must(*train("of-records", "--nvme", records, place="optimizer=nvme"))
    program.must(*train("of-all", "--nvme", everything))
    least, most = size_of(records), size_of(everything)
    where = folder("limited")
    problems = [] if least < most else [f"{least} and {most} bytes are to differ"]
    for limit in (least, most - 1):
        problems += program.refused(f"{limit} bytes", train("limited-run", "--nvme", f"{where}:{limit}"), where, str(most),
                                    "divided evenly", watched=[SCRATCH])
    problems += program.refused("a plan", ["plan", "--model", "gpt2-tiny", *program.SHAPE, "--place", ALL, "--nvme",
                                           f"{where}:{most - 1}"], where, str(most), watched=[SCRATCH])
    problems += program.refused("nothing", train("limited-run", "--nvme", f"{where}:0"), "allows the store nothing",
                                status=2, watched=[SCRATCH])
    program.must(*train("limited-run", "--nvme", f"{where}:{most}"))
    return problems + ([] if size_of(where) == most else [f"it took {size_of(where)} of {most} bytes"])


def limits_of_several():
    """The least of them bounds the store, which has as much in each."""
    first, second = folder("first"), folder("second")
    program.must(*train("even", "--nvme", first, "--nvme", second))
    least = min(size_of(first), size_of(second))
    third, fourth = folder("third"), folder("fourth")
    problems = program.refused("the second", train("uneven", "--nvme", f"{third}:1GiB", "--nvme", f"{fourth}:{least - 1}"),
                               watched=[SCRATCH])
    program.must(*train("uneven", "--nvme", f"{third}:1GiB", "--nvme", f"{fourth}:{max(size_of(first), size_of(second))}"))
    return problems


def limits_when_it_goes_on():
    """They are kept with the run, hold for scratch that comes later, and change with --nvme."""
    where = folder("grows")
    program.must(*train("grows-run", "--nvme", where, place="optimizer=nvme"))
    limit = size_of(where)
    program.must("resume", path("grows-run"), "--steps", 3, "--nvme", f"{where}:{limit}")
    before = program.tree(where)
    more = ("resume", path("grows-run"), "--steps", 5, "--place", ALL)
    ended = program.run(*more)
    problems = program.wrong_refusal("more scratch", ended, 1, ["may have", where], more)
    problems += [f"{name} changed" for name in program.differences(before, program.tree(where))]
    program.must("resume", path("grows-run"), "--steps", 5, "--place", ALL, "--nvme", f"{where}:1GiB")
    return problems


def names_with_colons():
    """A text behind a colon that is no size is part of the name; a name that ends like a size is given with a slash."""
    for name, given in (("by:path", "by:path"), ("lun:0x", "lun:0x"), ("pci:5", "pci:5/")):
        folder(name)
        program.must(*train(f"run-of-{name}", "--nvme", path(given)))
        program.must("resume", path(f"run-of-{name}"), "--steps", 3)
    return [f"{name} holds no store" for name in ("by:path", "lun:0x", "pci:5") if not size_of(path(name))]


def wait_until(process, condition):
    limit = program.limits.Limit()
    while process.poll() is None and not condition() and not limit.over():
        time.sleep(0.002)


def stopped_once(model, run, condition):
    """The status and the last line on standard error of a run that gets one signal when the condition holds."""
    process = program.start("train", "--model", model, "--init", "--data", DATA, "--run", run, "--seq", 64,
                            "--batch-tokens", 256, "--micro-batch", 4, "--steps", 1, "--place", ALL)
    wait_until(process, condition)
    process.send_signal(signal.SIGINT)
    code, said = program.limits.wait(process), process.stderr.read()
    process.stderr.close()
    return code, said.strip().split("\n")[-1]


def stopping_before_the_first_commit():
    """One signal while the store is made, or while memory is taken and the first weights go into both: nothing is left. On
    busy cores it may come too late, so that it is tried until it does not."""
    problems = []
    model = folder("model")
    program.write(os.path.join(model, "config.json"), json.dumps(MODEL))
    places = {"making of the store": lambda run: os.path.exists(os.path.join(run, STORE)),
              "spillway train: stopped ": lambda run: os.path.exists(os.path.join(run, "run.json"))}
    for what, condition in places.items():
        for attempt in range(MOST_ATTEMPTS):
            run = path(f"{what} {attempt}")
            code, said = stopped_once(model, run, lambda: condition(run))
            if code != 0 and os.path.exists(run):
                problems.append(f"{what}: left {os.listdir(run)}")
            shutil.rmtree(run, ignore_errors=True)
            if what in said:
                break
        if code != 1 or what not in said:
            problems.append(f"{what}, after {attempt + 1} attempts: status {code}, {said[-300:]!r}")
    return problems


def a_store_that_moved():
    """Every command that reads it takes --nvme, finds it there, and refuses one of another run or of none."""
    here, there = folder("here"), path("there")
    program.must(*train("moved", "--nvme", here))
    program.must("export", path("moved"), path("before"))
    os.rename(here, there)
    where = ("--nvme", there)
    commands = {"verify": ("verify", path("moved")), "export": ("export", path("moved"), path("after")),
                "eval": ("eval", path("moved"), "--data", DATA, "--seq", 64, "--tokens", 640),
                "generate": ("generate", path("moved"), "--prompt", "a", "--max-tokens", 2)}
    problems = []
    for name, command in commands.items():
        problems += program.refused(f"{name} without", command, here, watched=[path("moved")])
        ended = program.run(*command, *where)
        if ended.code != 0:
            problems.append(f"{name}: {ended.err[-300:]}")
    sums = [hashlib.sha256(open(path(out, "model.safetensors"), "rb").read()).hexdigest() for out in ("before", "after")]
    if sums[0] != sums[1]:
        problems.append("other weights were exported")
    shutil.rmtree(path("after"))
    program.must(*train("other", "--nvme", folder("others")))
    problems += program.refused("another's", (*commands["export"], "--nvme", path("others")), "another run's")
    problems += program.refused("of no run", ("export", path("before"), path("none"), *where), "not the folder of a run")
    program.must("resume", path("moved"), "--steps", 3, *where)
    return problems


script_test.run(limits_of_a_new_run, limits_of_several, limits_when_it_goes_on, names_with_colons,
                stopping_before_the_first_commit, a_store_that_moved)
