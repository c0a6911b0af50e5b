"""--tensor as a user has it: what excludes it is refused by its name, a run keeps it, and plan answers for its groups."""

import json
import os
import subprocess

import program
from program import LIMIT_S, SEQ, SHAPE, command, must, scratch_folder, script_test, text, write
from ranks_jobs import mpirun

FOLDER = scratch_folder()
STEPS = 3


def path(*names):
    return os.path.join(FOLDER, *names)


DATA = write(path("data.txt"), text(1, 60 * SEQ))


def train(name, *more):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(name), "--steps", STEPS,
            "--precision", "fp32", *SHAPE, *more]


def together(ranks, arguments):
    return subprocess.run(mpirun((ranks, command(*arguments))), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)


def refused_together(what, ranks, arguments, *words):
    """One rank says in one line why all end, and nothing is written."""
    before = program.tree(FOLDER)
    done = together(ranks, arguments)
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    problems = [] if done.returncode != 0 and len(said) == 1 else [f"{what}: status {done.returncode}: {done.stderr[-1500:]}"]
    problems += [f"{what}: the message lacks '{word}': {said}" for word in words if word not in "".join(said)]
    return problems + [f"{what}: {name} was changed" for name in program.differences(before, program.tree(FOLDER))]


def flags_that_need_whole_layers_are_refused():
    table = [(" ".join(map(str, flags)), train("none", "--tensor", 2, *flags), flags[0], "--tensor 2") for flags in (
        ("--tiles", 2), ("--freeze", "embedding"), ("--gather", "int8"), ("--reduce", "library"), ("--reduce", "int8"),
        ("--reduce", "int4"), ("--zero-secondary", "node", "--zero", 3), ("--zero-secondary", 2), ("--sample-every", 1),
        ("--export-every", 1), ("--early-stop", 1, "--eval-every", 1), ("--grads-state", "8bit"))]
    for flag in ("--sequence-parallel", "--partition-activations"):
        table += [(f"{flag} without groups", train("none", flag, "yes"), flag, "--tensor N")]
    table += [("rows and whole", train("none", "--tensor", 2, "--sequence-parallel", "yes", "--partition-activations", "no"),
               "--sequence-parallel", "--partition-activations no")]
    table += [("none", train("none", "--tensor", 0), "--tensor"), ("half", train("none", "--tensor", 1.5), "--tensor"),
              ("largest", ["plan", "--largest", 100, "--machine", "h100", "--tensor", 2], "--largest", "--tensor 2")]
    table += [(f"plan {flag}", ["plan", "--model", "gpt2-tiny", "--ranks", 2, "--tensor", 2, flag, value], flag, "--tensor 2")
              for flag, value in (("--tiles", 2), ("--freeze", "embedding"), ("--gather", "int8"))]
    bench = program.run("bench", "step", "--model", "gpt2-tiny", "--tensor", 2)
    problems = [] if bench.code == 2 and bench.err.startswith("spillway bench step: ") and "--tensor 2" in bench.err else [f"bench step: {bench}"]
    return problems + program.refused_each(table, status=2, watched=[FOLDER])


def ranks_that_groups_do_not_divide_are_refused():
    problems = program.refused("alone", train("none", "--tensor", 2), "--tensor 2", "mpirun", watched=[FOLDER])
    problems += program.refused("planned", ["plan", "--model", "gpt2-tiny", "--ranks", 4, "--tensor", 3], "--tensor 3", "4",
                                watched=[FOLDER])
    return problems + refused_together("three ranks", 3, train("none", "--tensor", 2), "--tensor 2", "has 3")


def a_run_keeps_its_groups():
    done = together(2, train("two", "--tensor", 2))
    if done.returncode != 0:
        return [f"status {done.returncode}: {done.stderr[-1500:]}"]
    problems = [] if program.read_json(path("two", "run.json"))["settings"].get("tensor") == 2 else ["run.json lacks it"]
    with open(path("two", "recipe.yaml"), encoding="utf-8") as file:
        problems += [] if "tensor: 2\n" in file.read() else ["the recipe lacks it"]
    problems += [] if "1 tensor group of 2" in done.stderr else [f"the start does not name the group: {done.stderr[:1500]}"]
    problems += refused_together("other groups", 2, ["resume", path("two"), "--steps", 5, "--tensor", 1], "--tensor 2", "to 1")
    for ranks in (1, 4):
        problems += refused_together(f"{ranks} ranks", ranks, ["resume", path("two"), "--steps", 5], "--tensor 2", "start 2",
                                     f"not {ranks}")
    for flags in (("--optimizer-state", "bf16"), ("--sample-every", 1), ("--export-every", 1)):
        problems += refused_together(flags[0], 2, ["resume", path("two"), "--steps", 5, *flags], flags[0], "--tensor 2")
    must(*train("one"))
    problems += refused_together("groups of a run without", 2, ["resume", path("one"), "--tensor", 2], "--tensor 1", "to 2")
    return problems


def the_same_run_without_the_flag_is_no_other():
    """A run.json without the setting, as an older version wrote it, has no groups."""
    must(*train("older"))
    run = program.read_json(path("older", "run.json"))
    if run["settings"].pop("tensor") != 1:
        return ["a run without groups has others than 1"]
    write(path("older", "run.json"), json.dumps(run))
    must("resume", path("older"), "--steps", STEPS + 1)
    return []


def plan_answers_for_groups():
    described = ("plan", "--model", "qwen2.5-7b", "--machine", "h100", "--zero", 3, "--seq", 1024, "--batch-tokens", 65536)
    problems = []
    whole = json.loads(must(*described, "--ranks", 16, "--json").out)
    cut = json.loads(must(*described, "--ranks", 16, "--tensor", 4, "--json").out)
    one = json.loads(must(*described, "--ranks", 4, "--tensor", 4, "--json").out)
    if (whole["tensor"], cut["tensor"], one["tensor"]) != (None, {"ranks": 4, "groups": 4}, {"ranks": 4, "groups": 1}):
        problems.append(f"tensor: {whole['tensor']}, {cut['tensor']}, {one['tensor']}")
    if (whole["ranks"], cut["ranks"], whole["zero"], cut["zero"], one["zero"]) != (16, 16, 3, 3, None):
        problems.append(f"ranks and zero: {[(plan['ranks'], plan['zero']) for plan in (whole, cut, one)]}")
    if cut["parameters"] != whole["parameters"]:
        problems.append(f"{cut['parameters']} parameters and not {whole['parameters']}")
    said = " ".join(must(*described, "--ranks", 16, "--tensor", 4).out.split())
    if "16: 4 tensor groups of 4; each rank" not in said or "mpirun -n 16 spillway train" not in said or "--tensor 4" not in said:
        problems.append(said)
    # Rows alone take less memory than whole inputs, and as much is exchanged as with partitioned ones.
    rows = [json.loads(must(*described, "--ranks", 4, "--tensor", 4, *flags, "--json").out)
            for flags in (("--sequence-parallel", "yes"), ("--sequence-parallel", "no", "--partition-activations", "yes"))]
    if rows[0]["sent"] != rows[1]["sent"] or not 0 < rows[0]["predicted"]["plain"]["step_s"] < rows[1]["predicted"]["plain"]["step_s"]:
        problems.append(f"sequence parallelism: {[(plan['sent'], plan['predicted']['plain']) for plan in rows]}")
    # Two ranks for each of the two key-value heads, and a group that fits no rule.
    small = ("plan", "--model", "qwen2.5-1.5b", "--machine", "h100", "--seq", 1024, "--batch-tokens", 65536, "--ranks", 4)
    shared = json.loads(must(*small, "--tensor", 4, "--json").out)
    if shared["tensor"] != {"ranks": 4, "groups": 1} or shared["parameters"] != json.loads(must(*small, "--json").out)["parameters"]:
        problems.append(f"shared key-value heads: {shared['tensor']}, {shared['parameters']} parameters")
    problems += program.refused("no rule", [*small[:-1], 3, "--tensor", 3], "--tensor 3", "2 key-value heads", "nearest that fits is 2")
    # Ranks of this machine that are not started, with the sequences of two data ranks.
    here = json.loads(must("plan", "--model", "gpt2-tiny", "--ranks", 4, "--tensor", 2, "--seq", SEQ, "--batch-tokens", 4 * SEQ,
                           "--device", "cpu", "--json").out)
    if (here["micro_batch"], here["tensor"]) != (2, {"ranks": 2, "groups": 2}):
        problems.append(f"here: micro-batches of {here['micro_batch']}, {here['tensor']}")
    return problems


script_test.run(flags_that_need_whole_layers_are_refused, ranks_that_groups_do_not_divide_are_refused, a_run_keeps_its_groups,
                the_same_run_without_the_flag_is_no_other, plan_answers_for_groups)
