"""`bench zero --pipeline`: at each stage of ZeRO, ranks of pipeline stages hold and send what the formulas of 1F1B and ZeRO say, to
a fortieth; gathers of stage 3 to 7%, because units at which the passes meet are gathered once."""

import json
import math
import subprocess

from program import command, limits, run, script_test
from ranks_jobs import mpirun, threads

ALLOWED, ALLOWED_GATHERS = 0.025, 0.07
WIDTH, OPTIMIZER_BYTES, SUM_BYTES = 2, 12, 4  # bytes of an element in bf16, of the fp32 master and moments, and of a sum
# The model that the bench makes. Both ends have as many parameters, but for the last norm.
VOCAB, HIDDEN, LAYERS, FFN, TOKENS = 1016, 128, 32, 508, 128
BLOCK, END = HIDDEN * (4 * HIDDEN + 3 * FFN + 2), VOCAB * HIDDEN + HIDDEN


def started(ranks, *more):
    """Runs `bench zero`: two ranks by mpirun, as a user starts them; more are threads, whose bytes are counted in the same place."""
    arguments = command("bench", "zero", "--device", "cpu", "--precision", "bf16", "--threads", 1, *more)
    return limits.run(mpirun((ranks, arguments)) if ranks < 4 else threads(ranks, arguments),
                      stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def report(ranks, *more):
    done = started(ranks, "--json", *more)
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"{ranks} ranks: status {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)


def formulas(stages, data, zero):
    """Returns what a rank of the stage that has the most holds and sends in a step, in bytes: the last stage, which has the head and
    the norm, the first one's inputs, and what a stage between two others passes on."""
    part, micros, message = LAYERS // stages * BLOCK + END, 2 * stages, WIDTH * TOKENS * HIDDEN
    held = {"weights": WIDTH * part / (data if zero >= 3 else 1), "grads": WIDTH * part / (data if zero >= 2 else 1),
            "optimizer": OPTIMIZER_BYTES * part / (data if zero >= 1 else 1)}
    exchanges = (2, 2, 2, 2 * micros + 1)[zero]
    return {**held, "states": sum(held.values()), "acts": stages * LAYERS // stages * message,
            "data_sent": exchanges * (data - 1) / data * WIDTH * part, "pipeline_sent": min(2, stages - 1) * micros * message}


def wrong_figure(what, found, expected, allowed):
    problems = [] if math.isclose(found["formula_bytes"], expected, rel_tol=1e-9) else [f"{what}: not the formula's {expected}: {found}"]
    if abs(found["bytes"] - expected) > allowed * expected:
        problems.append(f"{what}: {found['bytes']} bytes for {expected}: {found}")
    return problems


def wrong_job(ranks, stages):
    found = report(ranks, "--pipeline", stages)
    expected = {"ranks": ranks, "tensor": 1, "pipeline": stages, "plus": [], "partitioned": []}
    problems = [f"{name} is {found[name]}" for name, value in expected.items() if found[name] != value]
    for zero, row in enumerate(found["stages"]):
        for name, value in formulas(stages, ranks // stages, zero).items():
            allowed = ALLOWED_GATHERS if name == "data_sent" and zero == 3 else ALLOWED
            problems += wrong_figure(f"{stages} stages, {row['name']}, {name}", row[name], value, allowed)
        if row["sent"]["bytes"] != row["planned_sent_bytes"] or "tensor_sent" in row:
            problems.append(f"{stages} stages: not what was planned: {row}")
    return problems + ([] if len(found["stages"]) == 4 else ["not four stages of ZeRO"])


def stages_hold_and_send_what_the_formulas_say():
    """Two stages of two data ranks, and four of one, of which two have two neighbours."""
    return wrong_job(4, 2) + wrong_job(4, 4)


# The table of gpt2-demo, with its positions, and its hidden state.
DEMO_TABLE, DEMO_HIDDEN, DEMO_LAYERS, DEMO_MICROS = (256 + 256) * 256, 256, 6, 4


def a_tied_table_is_sent_once_a_step():
    """As fp32 sums, in both directions."""
    message = WIDTH * TOKENS * DEMO_HIDDEN
    found = report(2, "--pipeline", 2, "--model", "gpt2-demo")
    return [problem for row in found["stages"]
            for problem in wrong_figure(row["name"], row["pipeline_sent"], SUM_BYTES * DEMO_TABLE + DEMO_MICROS * message, ALLOWED)]


def stages_of_tensor_groups_send_in_three_dimensions():
    """Two stages of one tensor group of two: it adds up the hidden state four times a block, and once at an end."""
    found = report(4, "--pipeline", 2, "--tensor", 2, "--model", "gpt2-demo")
    message = WIDTH * 128 * DEMO_HIDDEN
    passed = DEMO_MICROS * message + SUM_BYTES * DEMO_TABLE / 2
    problems = [] if found["partitioned"] == [] and found["tensor"] == 2 else [f"{found}"]
    for row in found["stages"]:
        within = DEMO_MICROS * message * (4 * DEMO_LAYERS / 2 + 1)
        for name, value in (("tensor_sent", within), ("pipeline_sent", passed), ("acts", 2 * DEMO_LAYERS * message)):
            problems += wrong_figure(f"{row['name']}, {name}", row[name], value, ALLOWED)
        if row["sent"]["bytes"] != sum(row[name]["bytes"] for name in ("tensor_sent", "data_sent", "pipeline_sent")):
            problems.append(f"the parts of what is sent do not add up: {row}")
    return problems


def a_table_is_for_people():
    done = started(2, "--pipeline", 2, "--model", "gpt2-tiny")
    words = ("pipeline of 2 stages, 4 micro-batches", "acts", "data", "pipeline")
    narrow = all(len(line) <= 80 for line in done.stdout.splitlines())
    return [] if done.returncode == 0 and narrow and all(word in done.stdout for word in words) else [str(done)]


def stages_that_do_not_fit_are_refused_once():
    problems = []
    for flags, words in ((("--pipeline", 3), ("--pipeline 3", "multiple of 3")), (("--pipeline", 2, "--tensor", 2), ("multiple of 4",)),
                         (("--pipeline", 2, "--model", "qwen1.5-moe-a2.7b"), ("experts",))):
        done = started(2, *flags)
        said = [line for line in done.stderr.splitlines() if line.startswith("spillway bench zero: ")]
        if done.returncode == 0 or done.stdout or len(said) != 1 or any(word not in said[0] for word in words):
            problems.append(f"{flags}: {done}")
    alone = run("bench", "zero", "--pipeline", 2)
    return problems + ([] if alone.code != 0 and "mpirun" in alone.err and alone.err.count("\n") == 1 else [str(alone)])


script_test.run(stages_hold_and_send_what_the_formulas_say, a_tied_table_is_sent_once_a_step,
                stages_of_tensor_groups_send_in_three_dimensions, a_table_is_for_people,
                stages_that_do_not_fit_are_refused_once)
