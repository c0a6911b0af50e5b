"""`bench zero --tensor`: at each stage of ZeRO, with and without partitioned activations, ranks of tensor groups hold and send
what ZeRO's table 1 and sections 7 and 8 say, to a fiftieth."""

import json
import math
import subprocess

from program import command, limits, run, script_test
from ranks_jobs import mpirun, threads

ALLOWED = 0.02
WIDTH, OPTIMIZER_BYTES = 2, 12  # bytes of an element in bf16, and of the fp32 master and moments
# The model that the bench makes for groups of two.
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, TOKENS = 448, 512, 8, 16, 4, 120, 2112, 128
PARAMETERS = (2 * VOCAB + 1) * HIDDEN + LAYERS * HIDDEN * (2 * (HEADS + KV_HEADS) * HEAD_DIM + 3 * FFN + 2)


def started(ranks, *more):
    """Runs `bench zero`: two or three ranks by mpirun, as a user starts them; more are threads, whose bytes are counted in the same
    place."""
    arguments = command("bench", "zero", "--device", "cpu", "--precision", "bf16", "--threads", 1, *more)
    return limits.run(mpirun((ranks, arguments)) if ranks < 4 else threads(ranks, arguments),
                      stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def report(ranks, tensor, *more):
    done = started(ranks, "--tensor", tensor, "--json", *more)
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"{ranks} ranks: status {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)


def formulas(tensor, data, stage, partitioned):
    """Returns what a rank holds and sends in a step, in bytes. An all-reduce moves twice its message, a gather once."""
    part, message = PARAMETERS / tensor, WIDTH * TOKENS * HIDDEN
    others = (tensor - 1) / tensor * message
    within = others * (2 * (4 * LAYERS + 2) + (2 * LAYERS if partitioned else 0))
    among = (data - 1) / data * WIDTH * part * (3 if stage == 3 else 2)
    held = {"weights": WIDTH * part / (data if stage >= 3 else 1),
            "grads": WIDTH * part / (data if stage >= 2 else 1),
            "optimizer": OPTIMIZER_BYTES * part / (data if stage >= 1 else 1)}
    return {**held, "states": sum(held.values()), "acts": 2 * LAYERS * message / (tensor if partitioned else 1),
            "tensor_sent": within, "data_sent": among, "sent": within + among}


def wrong_figure(what, found, expected):
    away = found["bytes"] / expected - 1
    problems = [] if math.isclose(found["formula_bytes"], expected, rel_tol=1e-9) else [f"{what}: not the formula's {expected}: {found}"]
    if abs(away) > ALLOWED or not math.isclose(found["deviation_percent"], 100 * away, abs_tol=1e-6):
        problems.append(f"{what}: {found['bytes']} bytes for {expected}: {found}")
    return problems


def wrong_row(what, row, tensor, data, partitioned):
    problems = [problem for name, expected in formulas(tensor, data, row["stage"], partitioned).items()
                for problem in wrong_figure(f"{what}, {name}", row[name], expected)]
    if row["sent"]["bytes"] != row["tensor_sent"]["bytes"] + row["data_sent"]["bytes"]:
        problems.append(f"{what}: the parts of what is sent do not add up: {row}")
    # The paper's account: one kept input for each block, 12 hidden states moved for one, and one more where they are partitioned.
    message = WIDTH * TOKENS * HIDDEN * LAYERS
    paper = message / (tensor if partitioned else 1), (13 if partitioned else 12) * message * (tensor - 1) / tensor
    if (row["acts"]["paper_bytes"], row["tensor_sent"]["paper_bytes"]) != paper:
        problems.append(f"{what}: the paper has {paper}, not {row}")
    return problems


def wrong_shares(what, whole, rows):
    """Partitioned activations add 2 gathers for each block to the group's all-reduces: 4 for each block, and 2 more."""
    measured = rows["tensor_sent"]["bytes"] / whole["tensor_sent"]["bytes"] - 1
    expected = 2 * LAYERS / (2 * (4 * LAYERS + 2))
    shares = {"added_share": measured, "formula_share": expected, "paper_share": 1 / 12}
    close = all(math.isclose(rows["partition"][name], share, rel_tol=1e-6) for name, share in shares.items())
    return [] if close and abs(measured - expected) <= ALLOWED * expected else [f"{what}: {rows['partition']}, not {shares}"]


def wrong_job(ranks, tensor):
    found = report(ranks, tensor)
    problems = [f"{name} is {found[name]}" for name, value in (("parameters", PARAMETERS), ("ranks", ranks), ("tensor", tensor), ("plus", []))
                if found[name] != value]
    for kind, partitioned in (("stages", False), ("partitioned", True)):
        names = [f"{stage} Pa" if partitioned else str(stage) for stage in range(4)]
        problems += [] if [row["name"] for row in found[kind]] == names else [f"{kind} are not {names}"]
        for row in found[kind]:
            problems += wrong_row(f"{ranks} ranks, {row['name']}", row, tensor, ranks // tensor, partitioned)
    for whole, rows in zip(found["stages"], found["partitioned"], strict=True):
        problems += wrong_shares(f"{ranks} ranks, {rows['name']}", whole, rows)
    return problems


def two_groups_hold_and_send_what_the_formulas_say():
    return wrong_job(4, 2)


def partitioned_inputs_are_not_gathered_where_nothing_is_computed_again():
    """In one group, which has no other to send to."""
    found = report(2, 2, "--recompute", "none", "--model", "gpt2-tiny")
    nothing = {"bytes": 0, "formula_bytes": 0.0}
    problems = [f"{row['name']}: {row['data_sent']}" for row in (*found["stages"], *found["partitioned"]) if row["data_sent"] != nothing]
    for whole, rows in zip(found["stages"], found["partitioned"], strict=True):
        sent = rows["tensor_sent"]["bytes"] == whole["tensor_sent"]["bytes"] and rows["partition"]["formula_share"] == 0.0
        if not sent or 2 * rows["acts"]["bytes"] != whole["acts"]["bytes"]:
            problems.append(f"{rows['name']}: {rows} beside {whole}")
    return problems


def a_table_is_for_people():
    done = started(2, "--tensor", 2, "--model", "gpt2-tiny")
    words = ("tensor groups of 2 ranks", "acts", "paper", "Pa adds %", "3 Pa")
    narrow = all(len(line) <= 80 for line in done.stdout.splitlines())
    return [] if done.returncode == 0 and narrow and all(word in done.stdout for word in words) else [str(done)]


def groups_that_do_not_fit_are_refused_once():
    problems = []
    for what, ranks, flags, words in (("ranks", 3, (), ("--tensor 2", "3")), ("model", 2, ("--model", "nowhere"), ("nowhere",))):
        done = started(ranks, "--tensor", 2, *flags)
        said = [line for line in done.stderr.splitlines() if line.startswith("spillway bench zero: ")]
        if done.returncode == 0 or done.stdout or len(said) != 1 or any(word not in said[0] for word in words):
            problems.append(f"{what}: {done}")
    alone = run("bench", "zero", "--tensor", 2)
    return problems + ([] if alone.code != 0 and "mpirun" in alone.err and alone.err.count("\n") == 1 else [str(alone)])


script_test.run(two_groups_hold_and_send_what_the_formulas_say,
                partitioned_inputs_are_not_gathered_where_nothing_is_computed_again, a_table_is_for_people,
                groups_that_do_not_fit_are_refused_once)
