"""`plan --pipeline auto`: stages of the shortest predicted step, what was compared, and what it does not work with."""

import json
import os
import re

import program
from program import must, run, script_test

FOUR_NODES = ("--model", "llama-8b", "--machine", "h100", "--ranks", 4, "--nodes", 4, "--batch-tokens", 32768, "--seq", 1024)


def planned(*flags):
    return json.loads(must("plan", *flags, "--json").out)


def least(choice):
    fitting = {size["stages"]: size["step_s"] for size in choice if size["refused"] is None}
    return min(fitting, key=fitting.get)


def auto_takes_the_least_step():
    """Stages where weights would cross a network for few tokens, as with that number by itself; and else none."""
    problems = []
    many, few = planned(*FOUR_NODES, "--pipeline", "auto"), planned("--model", "gpt2-124m", "--machine", "h100", "--ranks", 12, "--batch-tokens",
                                                                    49152, "--seq", 1024, "--pipeline", "auto")
    stages = len(many["pipeline"]["stages"]) if many["pipeline"] else 1
    if [size["stages"] for size in many["pipeline_choice"]] != [1, 2, 4] or stages == 1 or stages != least(many["pipeline_choice"]):
        problems.append(f"four nodes: {many['pipeline_choice']}, {many['pipeline']}")
    alone = planned(*FOUR_NODES, "--pipeline", stages)["pipeline"]
    compared = {size["stages"]: size for size in many["pipeline_choice"]}[stages]
    peak = max(stage["peak_bytes"]["device"] for stage in alone["stages"])
    if alone != many["pipeline"] or abs(compared["step_s"] / alone["step_s"] - 1) > 0.02 or compared["peak_bytes"]["device"] != peak:
        problems.append(f"{stages} stages by themselves: {alone}, and not {many['pipeline']}, {compared}")
    if [size["stages"] for size in few["pipeline_choice"]] != [1, 2, 3, 4, 6, 12] or few["pipeline"] is not None or least(few["pipeline_choice"]) != 1:
        problems.append(f"one node: {few['pipeline_choice']}, {few['pipeline']}")
    return problems


def auto_compares_what_divides():
    """A model of two layers has four stages at most; groups of --tensor stay whole; and a number with no plan has its reason."""
    shape = ("--machine", "h100", "--batch-tokens", 8192)
    tiny = planned("--model", "gpt2-tiny", *shape, "--ranks", 16, "--tensor", 2, "--pipeline", "auto")["pipeline_choice"]
    alone = planned("--model", "gpt2-tiny", *shape, "--pipeline", "auto")
    given = planned("--model", "gpt2-tiny", *shape, "--ranks", 2, "--pipeline", 2)
    lora, tiled = (planned("--model", "gpt2-124m", *shape, "--ranks", 2, *flags, "--pipeline", "auto")["pipeline_choice"]
                    for flags in (("--lora", 8), ("--tiles", 2)))
    problems = [] if [size["stages"] for size in tiny] == [1, 2, 4] else [f"two layers: {tiny}"]
    problems += [f"no choice: {one['pipeline_choice']}" for one in (alone, given) if one["pipeline_choice"] is not None]
    if any(size["refused"] is not None for size in lora):
        problems.append(f"adapters: {lora}")
    if tiled[0]["refused"] is not None or "--tiles" not in (tiled[1]["refused"] or ""):
        problems.append(f"tiles: {tiled}")
    return problems


def people_read_what_was_compared():
    said = must("plan", *FOUR_NODES, "--pipeline", "auto").out
    problems = [] if "--pipeline auto is --pipeline 2, by predicted step:" in said else [said]
    command = next((line for line in said.splitlines() if "spillway train" in line), "")
    problems += [] if "--pipeline 2" in command and "auto" not in command else [f"the command is {command!r}"]
    # One stage has no turns.
    for ranks, words in ((1, ""), (2, "--pipeline auto is --pipeline 1")):
        said = must("plan", "--model", "gpt2-124m", "--machine", "h100", "--ranks", ranks, "--batch-tokens", 49152, "--seq", 1024, "--pipeline", "auto",
                    "--pipeline-interleave", 2).out
        command = next((line for line in said.splitlines() if "spillway train" in line), "")
        problems += [] if words in said and "--pipeline 1" in command and "interleave" not in command else [f"one stage of {ranks} ranks: {said}"]
    return problems


def what_it_does_not_work_with_is_named():
    rates = os.path.join(program.scratch_folder(), "rates.json")
    problems = []
    for flags, words in ((("--tensor", "auto"), ("--tensor auto",)), (("--expert-group", "auto"), ("--expert-group auto",)),
                         (("--rates", rates), ("--rates",)), (("--smallest-machine",), ("--smallest-machine",)),
                         (("--pipeline-split", "6,6"), ("--pipeline-split",))):
        ended = run("plan", "--model", "gpt2-124m", "--ranks", 2, "--pipeline", "auto", *flags)
        if ended.code == 0 or ended.out or any(word not in ended.err for word in words):
            problems.append(f"{flags}: {ended}")
    return problems


def a_run_keeps_what_auto_chose():
    """Two data ranks cannot share three sequences, so all ranks take two stages, as does each resume; one that names a split alone
    has its stages."""
    folder = program.scratch_folder()
    begin = ("--model", "gpt2-tiny", "--init", "--data", program.write(os.path.join(folder, "text.txt"), program.text(1, 20000)), "--steps", 2,
             "--seq", 64, "--micro-batch", 1, "--batch-tokens", 3 * 64, "--threads", 1, "--precision", "fp32")
    auto, given = (os.path.join(folder, name) for name in ("auto", "given"))
    said = " ".join(must("train", *begin, "--run", auto, "--pipeline", "auto", ranks=2).err.split())
    must("train", *begin, "--run", given, "--pipeline", 2, ranks=2)
    problems = [] if re.search(r"--pipeline auto is --pipeline 2: a step takes [^,]*; no plan with 1 ", said) else [f"the choice is not said: {said[:1500]}"]
    with open(os.path.join(auto, "recipe.yaml"), encoding="utf-8") as file:
        problems += [] if "pipeline: 2\n" in file.read() else ["the recipe lacks it"]
    if program.numbers_of(auto) != program.numbers_of(given):
        problems.append("other bits than where the number was given")
    for step, (flags, split) in enumerate((((), "1,1"), (("--pipeline", "auto"), "1,1"), (("--pipeline-split", "0,2"), "0,2"), ((), "0,2")), 3):
        must("resume", auto, "--steps", step, *flags, ranks=2)
        kept = program.read_json(os.path.join(auto, "run.json"))["settings"]
        if (kept["pipeline"], kept["pipeline_split"]) != (2, split):
            problems.append(f"resume {flags}: {kept}")
    must("train", *begin, "--run", os.path.join(folder, "alone"), "--pipeline", "auto", "--pipeline-interleave", 2)
    with open(os.path.join(folder, "alone", "recipe.yaml"), encoding="utf-8") as file:
        recipe = file.read()
    problems += [f"the recipe of one rank: {recipe}"] if "pipeline" in recipe else []
    must("resume", os.path.join(folder, "alone"), "--pipeline-split", "2,0", "--steps", 3, ranks=2)
    for flags, words in ((("--pipeline-split", "2"), "has one stage"), (("--pipeline", 1, "--pipeline-split", "1,1"), "--pipeline 2 too"),
                         (("--pipeline-split", "one"), "'one'"), (("--pipeline", "auto", "--pipeline-split", "1,1"), "--pipeline auto")):
        ended = run("resume", auto, *flags, ranks=2)
        problems += [] if ended.code == 2 and words in ended.err else [f"{flags}: {ended}"]
    return problems


script_test.run(auto_takes_the_least_step, auto_compares_what_divides, people_read_what_was_compared,
                what_it_does_not_work_with_is_named, a_run_keeps_what_auto_chose)
