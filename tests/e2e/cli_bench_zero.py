"""`bench zero` at each stage: ranks hold and send what the formulas of ZeRO say, to a fiftieth."""

import json
import math
import subprocess

from program import command, limits, run, script_test
from ranks_jobs import mpirun, threads

ALLOWED = 0.02
STAGES = range(4)
OPTIMIZER_BYTES = 12
LAYERS, HIDDEN, TOKENS = 32, 128, 16  # of the model that the bench makes, and of a rank's step


def report(ranks, *more):
    """Returns the report of `bench zero` with that many ranks. One runs without a launcher and two by mpirun, as a user
    starts them; more are threads, whose bytes are counted in the same place."""
    arguments = command("bench", "zero", "--device", "cpu", "--precision", "bf16", "--threads", 1, "--json", *more)
    words = mpirun((ranks, arguments)) if ranks == 2 else threads(ranks, arguments)
    done = limits.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"{ranks} ranks: status {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)


def formulas(parameters, ranks, stage):
    """Returns a rank's bytes of bf16 weights and gradients and of an fp32 optimizer, and the bytes it sends in a step."""
    weights = 2 * parameters / (ranks if stage >= 3 else 1)
    grads = 2 * parameters / (ranks if stage >= 2 else 1)
    optimizer = OPTIMIZER_BYTES * parameters / (ranks if stage >= 1 else 1)
    sent = 2 * parameters * (3 if stage == 3 else 2) * (ranks - 1) / ranks
    acts = 2 * LAYERS * TOKENS * HIDDEN
    return {"weights": weights, "grads": grads, "optimizer": optimizer, "states": weights + grads + optimizer,
            "acts": acts, "sent": sent}


def wrong_figure(what, found, expected):
    """Compares one figure with its formula. A rank alone sends nothing, so that figure has no ratio."""
    if expected == 0:
        return [] if found == {"bytes": 0, "formula_bytes": 0.0, "ratio": None, "deviation_percent": None} else [f"{what}: {found}"]
    problems = []
    if not math.isclose(found["formula_bytes"], expected, rel_tol=1e-9):
        problems.append(f"{what}: the formula gives {expected}, not {found['formula_bytes']}")
    if not math.isclose(found["ratio"], found["bytes"] / expected, rel_tol=1e-9) or abs(found["ratio"] - 1) > ALLOWED:
        problems.append(f"{what}: {found['bytes']} bytes for {expected}, a ratio of {found['ratio']}")
    return problems


def wrong_stage(what, found, expected):
    problems = [problem for figure, value in expected.items() for problem in
                wrong_figure(f"{what}, {figure}", found.pop(figure), value)]
    return problems + [f"{what}: no buffers in {tier}" for tier, buffers in found.pop("buffers").items()
                       if sum(buffers.values()) <= 0]


def wrong_report(ranks):
    found = report(ranks)
    parameters, stages, plus, partitioned = (found.pop(name) for name in ("parameters", "stages", "plus", "partitioned"))
    expected = {"bench": "zero", "device": "cpu", "model": "made", "precision": "bf16", "ranks": ranks, "tensor": 1, "pipeline": 1, "nodes": 1,
                "transport": {1: "self", 2: "MPI"}.get(ranks, "threads")}
    problems = [] if found == expected else [f"the report is {found}"]
    problems += [] if plus == [] and partitioned == [] else [f"one node has {plus}, and jobs without groups {partitioned}"]
    sent = [stage["sent"]["bytes"] for stage in stages]
    planned = [stage.pop("planned_sent_bytes") for stage in stages]
    problems += [] if sent == planned else [f"{ranks} ranks: {planned} bytes were planned to be sent, {sent} were"]
    problems += [] if sent[3] <= 1.5 * sent[0] else [f"{ranks} ranks: stage 3 sends {sent[3]} bytes, 0 {sent[0]}"]
    problems += [] if [stage.pop("stage") for stage in stages] == list(STAGES) else ["not the four stages in order"]
    return problems + [problem for stage in STAGES for problem in
                       wrong_stage(f"{ranks} ranks, stage {stage}", stages[stage], formulas(parameters, ranks, stage))]


def a_rank_alone_holds_everything():
    return wrong_report(1)


def ranks_hold_and_send_what_the_formulas_say():
    return [problem for ranks in (2, 4) for problem in wrong_report(ranks)]


# Bytes of weights in int8 and of gradients in int4 with an fp32 scale for each 256, over those in bf16.
INT8, INT4 = (1 + 4 / 256) / 2, (0.5 + 4 / 256) / 2
# Bytes over those of all weights that each row gathers among all ranks, in two levels, and reduces, in one; reductions in
# int4 have two.
GATHERS = {"0": 1, "1": 1, "2": 1, "3": 2, "3 hpZ": 1, "3 qwZ": 2 * INT8, "3 qgZ": 2, "3 all": INT8}
SECONDARY, TWO_LEVELS = ("3 hpZ", "3 all"), ("3 qgZ", "3 all")


def nodes_formulas(parameters, ranks, node, row):
    """Returns a rank's bytes of bf16 sent within its node and to other nodes."""
    weights, levels = 2 * parameters, GATHERS[row] + (INT4 if row in TWO_LEVELS else 0)
    inside, between = levels * weights * (node - 1) / node, levels * weights * (ranks / node - 1) / ranks
    if row not in TWO_LEVELS:
        inside, between = inside + weights * (node - 1) / ranks, between + weights * (ranks - node) / ranks
    return inside + (weights * (node - 1) / node if row in SECONDARY else 0), between


def wrong_row(row, found, parameters, ranks, node):
    problems = []
    for name, expected in zip(("inside", "between"), nodes_formulas(parameters, ranks, node, row), strict=True):
        problems += wrong_figure(f"{ranks} ranks, {node} a node, {row}, {name}", found[name], expected)
    times = GATHERS[row] / node + (INT4 / node if row in TWO_LEVELS else 1)
    if abs(found["between_times"] / times - 1) > ALLOWED or (row == "3 all" and times > 0.75 / node + 0.1):
        problems.append(f"{row}: {found['between_times']} times the weights between nodes, not {times}")
    if abs(found["planned_between_bytes"] / found["between"]["bytes"] - 1) > ALLOWED:
        problems.append(f"{row}: {found['planned_between_bytes']} bytes were planned between nodes, {found['between']}")
    return problems + (wrong_figure(row, found["secondary"], 2 * parameters / node) if row in SECONDARY else [])


def nodes_send_what_the_formulas_say():
    """Two nodes of two ranks; between nodes ZeRO++ sends a quarter of what stage 3 sends."""
    ranks, node = 4, 2
    found = report(ranks, "--ranks-per-node", node)
    rows = [*found["stages"], *found["plus"]]
    names = [row["name"] for row in rows]
    problems = [] if found["nodes"] == 2 and names == list(GATHERS) else [f"{ranks} ranks: {found['nodes']} nodes, {names}"]
    return problems + [problem for row in rows for problem in wrong_row(row["name"], row, found["parameters"], ranks, node)]


def a_table_is_for_people():
    ended = run("bench", "zero", "--model", "llama-tiny", "--threads", 1)
    words = ("stage", "llama-tiny", "optimizer", "accumulator")
    narrow = all(len(line) <= 80 for line in ended.out.splitlines())
    return [] if ended.code == 0 and narrow and all(word in ended.out for word in words) else [str(ended)]


def a_model_that_is_not_there_is_refused_once():
    done = limits.run(mpirun((2, command("bench", "zero", "--model", "nowhere"))), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway bench zero: ")]
    return [] if done.returncode != 0 and not done.stdout and len(said) == 1 and "nowhere" in said[0] else [str(done)]


script_test.run(a_rank_alone_holds_everything, ranks_hold_and_send_what_the_formulas_say,
                nodes_send_what_the_formulas_say, a_table_is_for_people,
                a_model_that_is_not_there_is_refused_once)
