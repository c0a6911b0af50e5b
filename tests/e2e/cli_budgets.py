"""Budgets and placements that cannot work: refused in one line, with nothing written, and with the least that works."""

import json
import os
import random
import re

import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(2, 20000))
RUN = os.path.join(SCRATCH, "run")
SEED, CASES = 1, 16
FLAGS = ("--device-memory", "--host-memory")
STATES = ("weights", "grads", "optimizer", "acts")
FIXED = [",".join(f"{state}={tier}" for state in STATES) for tier in ("device", "host", "nvme")]
MACHINE = os.path.join(os.path.dirname(os.path.dirname(program.HERE)), "bench", "machines", "rtx4090.json")


def flat(budgets):
    return [part for flag in FLAGS for part in (flag, budgets[flag])]


def train(*more):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", RUN, "--steps", 1, *program.SHAPE,
            *more]


def size_bytes(size):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(size)).groups()
    return int(number) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[unit]


def sizes_named(message):
    """The sizes that a refusal asks for, by flag."""
    return dict(re.findall(r"(--(?:device|host)-memory) (\S+)", message))


def refused(what, budgets, more):
    """Refused by train and in the same words by plan, with nothing written; gives the sizes it names too."""
    arguments = train(*flat(budgets), *more)
    problems = program.refused(what, arguments, "does not fit", "the budget is", watched=[SCRATCH])
    trained = program.run(*arguments)
    planned = program.run("plan", "--model", "gpt2-tiny", *program.SHAPE, *flat(budgets), *more)
    if planned.err.split(":", 1)[1:] != trained.err.split(":", 1)[1:]:
        problems.append(f"{what}: plan says {planned.err!r} and train {trained.err!r}")
    named = sizes_named(trained.err)
    if not named:
        problems.append(f"{what}: names no size: {trained.err}")
    return problems, named


def judge_refusal(what, budgets, more):
    """The named budget works, with the other budgets as they were; a twentieth less of it does not."""
    problems, named = refused(what, budgets, more)
    enough = {**budgets, **named}
    for flag, size in named.items():
        less = {**enough, flag: size_bytes(size) * 19 // 20}
        problems += refused(f"{what}, less {flag} than {size}", less, more)[0]
    ended = program.run(*train(*flat(enough), *more))
    program.shutil.rmtree(RUN, ignore_errors=True)
    if ended.code != 0:
        problems.append(f"{what}: {named} were asked for and do not work: {ended.err}")
    return problems


def advice_holds():
    """The smaller settings that a refusal names fit in the budget that was refused."""
    problems = []
    large = ["plan", "--machine", MACHINE, "--model", "qwen2.5-0.5b", "--batch-tokens", 65536, "--host-memory", "40GiB"]
    for device, changed in (("1500MiB", 3), ("2GiB", 2), ("14GiB", 1)):
        shape = {"--seq": "4096", "--micro-batch": "8", "--recompute": "none"}
        flat_shape = [word for pair in shape.items() for word in pair]
        ended = program.run(*large, "--device-memory", device, *flat_shape)
        found = re.search(r", most of it for saved .*; with( --.*) it fits\n$", ended.err)
        if ended.code != 1 or found is None or len(found[1].split()) != 2 * changed:
            problems.append(f"{device}: {ended.err}")
            continue
        flags = found[1].split()
        shape.update(zip(flags[::2], flags[1::2]))
        again = program.run(*large, "--device-memory", device, *[word for pair in shape.items() for word in pair])
        problems += [] if again.code == 0 else [f"{device}: {flags} do not fit: {again.err}"]
    return problems


def an_open_micro_batch_fits():
    """Without --micro-batch, `plan` and `train` take a smaller one where the usual does not fit: the largest divisor of a
    step's sequences that does."""
    usual = ["--model", "gpt2-tiny", "--seq", 32, "--batch-tokens", 6 * 32]
    wide = json.loads(program.must("plan", *usual, "--json").out)
    budget = sizes_named(program.run("plan", *usual, "--micro-batch", 2, "--device-memory", "64KiB").err)["--device-memory"]
    less = json.loads(program.must("plan", *usual, "--device-memory", budget, "--json").out)
    program.must("train", *usual, "--device-memory", budget, "--init", "--data", DATA, "--run", RUN, "--steps", 1)
    trained = program.read_json(os.path.join(RUN, "run.json"))
    program.shutil.rmtree(RUN)
    found = wide["micro_batch"], less["micro_batch"], trained["settings"]["micro_batch"]
    return [] if found == (6, 2, 2) else [f"micro-batches of {found} instead of 6, and twice 2 in {budget}"]


def draw_state(draw, state):
    first, second = draw.randint(0, 60), draw.randint(0, 40)
    shares = f"device:{first}%/host:{second}%/nvme"
    return f"{state}={draw.choice(['auto', 'device', 'host', 'nvme', shares])}"


def draw_setting(draw):
    place = ",".join(draw_state(draw, state) for state in STATES)
    return ["--place", place, "--order", draw.choice(["layer", "batch"]), "--precision", draw.choice(["bf16", "fp32"]),
            "--recompute", draw.choice(["auto", "all", "none"])]


def budgets_too_small():
    """Either budget or both are short, whatever the placement fixes."""
    draw, problems, judged = random.Random(SEED), [], 0
    settings = [["--place", place] for place in (*FIXED, "auto")] + [draw_setting(draw) for _ in range(CASES)]
    for number, more in enumerate(settings):
        short = [{flag: "64KiB" for flag in FLAGS}, {FLAGS[0]: "64KiB", FLAGS[1]: "1GiB"},
                 {FLAGS[0]: "1GiB", FLAGS[1]: "64KiB"}][number % 3]
        if program.run("plan", "--model", "gpt2-tiny", *program.SHAPE, *flat(short), *more).code != 0:
            problems += judge_refusal(f"seed {SEED}, {flat(short)} {more}", short, more)
            judged += 1
    return problems + ([f"only {judged} budgets were too small"] if judged < CASES else [])


def a_budget_that_suffices_is_not_named():
    problems = []
    for short, ample in (FLAGS, FLAGS[::-1]):
        for place in (*FIXED, "auto"):
            named = refused(place, {short: "16KiB", ample: "1GiB"}, ["--place", place])[1]
            if set(named) != {short}:
                problems.append(f"{place} with too little {short} names {named}")
    return problems


def a_run_is_not_touched():
    """A refused resume leaves the run as it was, and it still goes on."""
    problems = []
    program.must(*train())
    device = "needs at least --device-memory"
    table = [("budgets", 1, device, "--device-memory", "64KiB", "--host-memory", "64KiB"),
             ("a placement beyond a budget", 1, device, "--device-memory", "1MiB", "--place", FIXED[0]),
             ("shares beyond the whole", 2, "140%", "--place", "optimizer=device:70%/host:70%"),
             ("shares short of the whole", 2, "50%", "--place", "weights=device:20%/host:30%"),
             ("a share that is no number", 2, "nan%", "--place", "grads=device:nan%/host")]
    for what, status, word, *more in table:
        problems += program.refused(what, ["resume", RUN, "--steps", 2, *more], word, status=status, watched=[SCRATCH])
    program.must("resume", RUN, "--steps", 2)
    program.shutil.rmtree(RUN, ignore_errors=True)
    return problems


script_test.run(budgets_too_small, advice_holds, an_open_micro_batch_fits, a_budget_that_suffices_is_not_named,
                a_run_is_not_touched)
