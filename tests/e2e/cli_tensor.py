"""--tensor as a user has it: what excludes it is refused by its name, a run keeps it, and plan answers for its groups."""

import json
import os
import subprocess

import program
from program import SEQ, SHAPE, command, limits, must, scratch_folder, script_test, text, write
from ranks_jobs import threads

FOLDER = scratch_folder()
STEPS = 3


def path(*names):
    return os.path.join(FOLDER, *names)


DATA = write(path("data.txt"), text(1, 60 * SEQ))


def train(name, *more):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(name), "--steps", STEPS,
            "--precision", "fp32", *SHAPE, *more]


def together(ranks, arguments):
    return limits.run(threads(ranks, command(*arguments)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def refused_together(what, ranks, arguments, *words):
    """One rank says in one line why all end, and nothing is written."""
    before = program.tree(FOLDER, program.mark)
    done = together(ranks, arguments)
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    problems = [] if done.returncode != 0 and len(said) == 1 else [f"{what}: status {done.returncode}: {done.stderr[-1500:]}"]
    problems += [f"{what}: the message lacks '{word}': {said}" for word in words if word not in "".join(said)]
    return problems + [f"{what}: {name} was changed" for name in program.differences(before, program.tree(FOLDER, program.mark))]


def flags_that_need_whole_layers_are_refused():
    table = [(" ".join(map(str, flags)), train("none", "--tensor", 2, *flags), flags[0], "--tensor 2") for flags in (
        ("--gather", "int8"), ("--reduce", "library"), ("--reduce", "int8"),
        ("--reduce", "int4"), ("--zero-secondary", "node", "--zero", 3), ("--zero-secondary", 2), ("--grads-state", "8bit"))]
    table += [("largest groups", ["plan", "--largest", 100, "--machine", "h100", "--tensor", "auto"], "--largest", "--tensor auto"),
              ("rates", ["plan", "--model", "gpt2-tiny", "--rates", path("rates"), "--tensor", "auto"], "--rates", "--tensor auto")]
    for flag in ("--sequence-parallel", "--partition-activations"):
        table += [(f"{flag} without groups", train("none", flag, "yes"), flag, "--tensor N")]
    table += [("rows and whole", train("none", "--tensor", 2, "--sequence-parallel", "yes", "--partition-activations", "no"),
               "--sequence-parallel", "--partition-activations no")]
    table += [("rows and tiles", train("none", "--tensor", 2, "--tiles", 2, "--sequence-parallel", "yes"), "--sequence-parallel yes",
               "--tiles 2", "--partition-activations yes instead")]
    table += [("none", train("none", "--tensor", 0), "--tensor"), ("half", train("none", "--tensor", 1.5), "--tensor"),
              ("largest", ["plan", "--largest", 100, "--machine", "h100", "--tensor", 2], "--largest", "--tensor 2")]
    table += [(f"plan {flag}", ["plan", "--model", "gpt2-tiny", "--ranks", 2, "--tensor", 2, flag, value], flag, "--tensor 2")
              for flag, value in (("--gather", "int8"), ("--reduce", "int8"))]
    problems = []
    for groups in (2, "auto"):
        bench = program.run("bench", "step", "--model", "gpt2-tiny", "--tensor", groups)
        if bench.code != 2 or not bench.err.startswith("spillway bench step: ") or f"--tensor {groups}" not in bench.err:
            problems.append(f"bench step: {bench}")
    return problems + program.refused_each(table, status=2, watched=[FOLDER])


def ranks_that_groups_do_not_divide_are_refused():
    problems = program.refused("alone", train("none", "--tensor", 2), "--tensor 2", "mpirun", status=2, watched=[FOLDER])
    problems += program.refused("planned", ["plan", "--model", "gpt2-tiny", "--ranks", 4, "--tensor", 3], "--tensor 3", "4",
                                status=2, watched=[FOLDER])
    return problems + refused_together("three ranks", 3, train("none", "--tensor", 2), "--tensor 2", "has 3")


def a_run_keeps_its_groups():
    done = together(2, train("two", "--tensor", 2))
    if done.returncode != 0:
        return [f"status {done.returncode}: {done.stderr[-1500:]}"]
    problems = [] if program.read_json(path("two", "run.json"))["settings"].get("tensor") == 2 else ["run.json lacks it"]
    with open(path("two", "recipe.yaml"), encoding="utf-8") as file:
        problems += [] if "tensor: 2\n" in file.read() else ["the recipe lacks it"]
    problems += [] if "1 tensor group of 2" in done.stderr else [f"the start does not name the group: {done.stderr[:1500]}"]
    problems += refused_together("ranks that make no group", 3, ["resume", path("two"), "--steps", 5], "--tensor 2", "this job has 3")
    problems += refused_together("a flag for whole layers", 2, ["resume", path("two"), "--steps", 5, "--grads-state", "8bit"],
                                 "--grads-state", "--tensor 2")
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
    problems, on_a_node = [], {"nodes": 1, "within_node_step_s": None}
    whole = json.loads(must(*described, "--ranks", 16, "--json").out)
    cut = json.loads(must(*described, "--ranks", 16, "--tensor", 4, "--json").out)
    rows = [json.loads(must(*described, "--ranks", 4, "--tensor", 4, *flags, "--json").out)
            for flags in (("--sequence-parallel", "yes"),
                          ("--sequence-parallel", "no", "--partition-activations", "yes", "--recompute", "all"))]
    one = rows[1]
    if (whole["tensor"], cut["tensor"], one["tensor"]) != (None, {"ranks": 4, "groups": 4, **on_a_node},
                                                                {"ranks": 4, "groups": 1, **on_a_node}):
        problems.append(f"tensor: {whole['tensor']}, {cut['tensor']}, {one['tensor']}")
    if (whole["ranks"], cut["ranks"], whole["zero"], cut["zero"], one["zero"]) != (16, 16, 3, 3, None):
        problems.append(f"ranks and zero: {[(plan['ranks'], plan['zero']) for plan in (whole, cut, one)]}")
    if cut["parameters"] != whole["parameters"]:
        problems.append(f"{cut['parameters']} parameters and not {whole['parameters']}")
    said = " ".join(must(*described, "--ranks", 16, "--tensor", 4).out.split())
    if "16: 4 tensor groups of 4; each rank" not in said or "mpirun -n 16 spillway train" not in said or "--tensor 4" not in said:
        problems.append(said)
    # Rows alone take less memory than whole inputs, and as much is exchanged as where all partitioned ones are gathered.
    if rows[0]["sent"] != rows[1]["sent"] or not 0 < rows[0]["predicted"]["plain"]["step_s"] < rows[1]["predicted"]["plain"]["step_s"]:
        problems.append(f"sequence parallelism: {[(plan['sent'], plan['predicted']['plain']) for plan in rows]}")
    # A rank's part in tiles takes less of the device where weights are elsewhere, and the group exchanges as much. The
    # vocabulary is small, because the head has no tiles.
    os.makedirs(path("wide"))
    program.write(path("wide", "config.json"), json.dumps(
        {"model_type": "mistral", "vocab_size": 4096, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096, "sliding_window": None}))
    wide = ("plan", "--model", path("wide"), "--machine", "h100", "--ranks", 2, "--tensor", 2, "--seq", 128, "--micro-batch", 1,
            "--batch-tokens", 1024, "--place", "weights=host,grads=host,optimizer=host,acts=host", "--recompute", "all",
            "--partition-activations", "no", "--sequence-parallel", "no", "--host-memory", "200GiB", "--chunk-grains", 64,
            "--json")
    one, tiled = (json.loads(must(*wide, "--tiles", count).out) for count in (1, 4))
    if tiled["sent"] != one["sent"] or tiled["parameters"] != one["parameters"] or not tiled["peak_bytes"]["device"] < one["peak_bytes"]["device"]:
        problems.append(f"tiles: {[(plan['sent'], plan['parameters'], plan['peak_bytes']) for plan in (one, tiled)]}")
    # Two ranks for each of the two key-value heads, and a group that fits no rule.
    small = ("plan", "--model", "qwen2.5-1.5b", "--machine", "h100", "--seq", 1024, "--batch-tokens", 65536, "--ranks", 4)
    shared = json.loads(must(*small, "--tensor", 4, "--json").out)
    if (shared["tensor"]["ranks"], shared["tensor"]["groups"]) != (4, 1) or shared["parameters"] != json.loads(must(*small, "--json").out)["parameters"]:
        problems.append(f"shared key-value heads: {shared['tensor']}, {shared['parameters']} parameters")
    problems += program.refused("no rule", [*small[:-1], 3, "--tensor", 3], "--tensor 3", "2 key-value heads", "nearest that fits is 2")
    # Ranks of this machine that are not started, with the sequences of two data ranks.
    here = json.loads(must("plan", "--model", "gpt2-tiny", "--ranks", 4, "--tensor", 2, "--seq", SEQ, "--batch-tokens", 4 * SEQ,
                           "--device", "cpu", "--json").out)
    if (here["micro_batch"], here["tensor"]) != (2, {"ranks": 2, "groups": 2, "nodes": None, "within_node_step_s": None}):
        problems.append(f"here: micro-batches of {here['micro_batch']}, {here['tensor']}")
    return problems


def planned(*flags):
    return json.loads(must("plan", "--machine", "h100", "--json", *flags).out)


def auto_takes_the_least_step():
    """A model of 8 billion parameters on eight GPUs: whole layers where a step has many sequences, of which groups save less
    than half a percent, and groups where it has fewer than ranks. Each size that was compared has its price, and what has no
    plan its reason."""
    problems, shape = [], ("--model", "llama-8b", "--ranks", 8, "--seq", 4096, "--micro-batch", 1)
    many, few = (planned(*shape, "--batch-tokens", tokens, "--tensor", "auto") for tokens in (131072, 8192))
    steps = {size["ranks"]: size["step_s"] for size in many["tensor_choice"]}
    if list(steps) != [1, 2, 4, 8] or min(steps.values()) < 0.995 * steps[1] or many["tensor"] is not None:
        problems.append(f"many sequences: {many['tensor_choice']}, {many['tensor']}")
    for size in many["tensor_choice"]:
        peak = size["peak_bytes"]
        if size["refused"] is not None or not size["bottleneck"] or not 0 < peak["device"] <= 76 << 30 or not 0 < peak["host"]:
            problems.append(f"a size that fits: {size}")
    fitting = {size["ranks"]: size["step_s"] for size in few["tensor_choice"] if size["refused"] is None}
    if list(fitting) != [4, 8] or few["tensor"]["ranks"] != min(fitting, key=fitting.get):
        problems.append(f"few sequences: {few['tensor_choice']}, {few['tensor']}")
    if abs(few["predicted"]["plain"]["step_s"] / fitting[few["tensor"]["ranks"]] - 1) > 0.1:
        problems.append(f"few sequences: {few['predicted']['plain']['step_s']} s, compared as {fitting}")
    refused = few["tensor_choice"][0]
    if "--batch-tokens 8192" not in refused["refused"] or (refused["step_s"], refused["peak_bytes"]) != (None, None):
        problems.append(f"whole layers have no reason: {refused}")
    return problems


def auto_compares_what_divides():
    """Sizes divide ranks, heads and key-value heads. A flag that groups exclude leaves whole layers."""
    problems, shape = [], ("--model", "gpt2-124m", "--ranks", 16, "--batch-tokens", 65536)
    sizes = planned(*shape, "--tensor", "auto")["tensor_choice"]
    if [size["ranks"] for size in sizes] != [1, 2, 4]:
        problems.append(f"of 16 ranks and 12 heads: {sizes}")
    if planned(*shape, "--tensor", 2)["tensor_choice"] is not None:
        problems.append("a size that was given was compared")
    alone = planned("--model", "gpt2-124m", "--tensor", "auto")
    if (alone["tensor"], alone["tensor_choice"]) != (None, None):
        problems.append(f"one rank: {alone['tensor']}, {alone['tensor_choice']}")
    exact = planned(*shape, "--zero", 3, "--gather", "int8", "--tensor", "auto")
    reasons = [size["refused"] for size in exact["tensor_choice"]]
    if exact["tensor"] is not None or reasons[0] is not None or not all("--gather int8" in reason for reason in reasons[1:]):
        problems.append(f"with --gather int8: {exact['tensor']}, {reasons}")
    tiled = planned(*shape, "--tiles", 3, "--tensor", "auto")["tensor_choice"]
    if [size["ranks"] for size in tiled if size["refused"] is None] != [1, 2, 4] or tiled == sizes:
        problems.append(f"in tiles: {tiled}")
    fused = planned("--model", "phi-4", "--ranks", 2, "--seq", 2048, "--tensor", "auto")
    if fused["tensor"] is not None or "in one matrix" not in fused["tensor_choice"][1]["refused"]:
        problems.append(f"with fused matrices: {fused['tensor']}, {fused['tensor_choice']}")
    said = must("plan", "--machine", "h100", *shape, "--tensor", "auto").out
    for words in ("--tensor auto is --tensor 1, by predicted step:", "limited by"):
        if words not in said:
            problems.append(f"the answer lacks '{words}': {said}")
    return problems + program.refused("no size", ["plan", "--machine", "h100", "--model", "llama-70b", "--ranks", 8, "--tensor", "auto",
                                                  "--device-memory", "1GiB"], "--tensor auto finds no plan", "--tensor 8", "--device-memory")


def what_is_open_is_as_fast_as_the_best_that_is_given():
    """Where the stage and the rows are open, only forms that may win are searched, and the best of all is found."""
    shape = ("--model", "gpt2-124m", "--ranks", 4, "--tensor", 2, "--seq", 256, "--batch-tokens", 4096, "--micro-batch", 2,
             "--device-memory", "400MiB", "--host-memory", "8GiB")
    forms = (("--zero", 2, "--partition-activations", "no", "--sequence-parallel", "no"), ("--zero", 3, "--partition-activations", "yes"))
    found, least, most = (planned(*shape, *form)["predicted"]["plain"]["step_s"] for form in ((), *forms))
    return [] if found <= 1.01 * least < most else [f"{found} s where all is open, {least} s and {most} s of forms that are given"]


def a_run_keeps_what_auto_chose():
    """Two ranks and the sequences of one: whole layers are refused, so all ranks take groups of 2, as does each resume."""
    shape = ["--seq", SEQ, "--micro-batch", 4, "--batch-tokens", 4 * SEQ, "--threads", 1, "--chunk-grains", 2]
    begin = ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--steps", STEPS, "--precision", "fp32", *shape]
    done = together(2, [*begin, "--run", path("auto"), "--tensor", "auto"])
    if done.returncode != 0:
        return [f"status {done.returncode}: {done.stderr[-1500:]}"]
    problems = [] if "--tensor auto is --tensor 2: a step takes " in done.stderr else [f"the choice is not said: {done.stderr[:1500]}"]
    problems += [] if "; no plan with 1" in done.stderr else [f"what was refused is not said: {done.stderr[:1500]}"]
    if program.read_json(path("auto", "run.json"))["settings"].get("tensor") != 2:
        problems.append("run.json lacks it")
    with open(path("auto", "recipe.yaml"), encoding="utf-8") as file:
        problems += [] if "tensor: 2\n" in file.read() else ["the recipe lacks it"]
    given = together(2, [*begin, "--run", path("given"), "--tensor", 2])
    if given.returncode != 0 or program.numbers_of(path("auto")) != program.numbers_of(path("given")):
        problems.append(f"other bits than where the size was given: {given.stderr[-1000:]}")
    for flags in ((), ("--tensor", "auto")):
        more = together(2, ["resume", path("auto"), "--steps", STEPS + 1 + len(flags), *flags])
        if more.returncode != 0 or program.read_json(path("auto", "run.json"))["settings"]["tensor"] != 2:
            problems.append(f"resume {flags}: status {more.returncode}: {more.stderr[-1500:]}")
    return problems


script_test.run(flags_that_need_whole_layers_are_refused, ranks_that_groups_do_not_divide_are_refused, a_run_keeps_its_groups,
                the_same_run_without_the_flag_is_no_other, plan_answers_for_groups, auto_takes_the_least_step,
                auto_compares_what_divides, what_is_open_is_as_fast_as_the_best_that_is_given, a_run_keeps_what_auto_chose)
