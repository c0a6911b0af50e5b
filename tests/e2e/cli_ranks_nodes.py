"""Ranks on nodes: a second shard of the weights within a node changes no bit and less goes between nodes."""

import json
import os
import random
import signal
import subprocess

import runs
from program import SEQ, command, limits, run, script_test, write
from ranks_jobs import SHAPE, Job, mpirun
from runs import path

SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 32)))
NVME = "weights=host,grads=nvme,optimizer=nvme"
NODE = ("--zero", 3, "--ranks-per-node", 2, "--zero-secondary", "node")


class Run(runs.Run):
    data, steps, planned, shape, ranks = (runs.text_file(seed=1, characters=60 * SEQ),), 6, 100, SHAPE, 4
    flags = ("--micro-batch", 1, "--warmup", 10)


def secondary_shards_change_no_bit():
    """Two nodes of two, one of four in halves, and two of four; also with all states elsewhere, and in groups."""
    problems, plain = [], {}
    for ranks, name, flags in (
            (4, "four", ("--zero", 3)), (4, "four-nodes", NODE), (4, "four-nvme", (*NODE, "--place", NVME)),
            (4, "four-part", ("--zero", 3, "--zero-secondary", 2)),
            (8, "eight", ("--zero", 3)),
            (8, "eight-nodes", ("--zero", 3, "--ranks-per-node", 4, "--zero-secondary", "node"))):
        one = Run(name, *flags, ranks=ranks).train()
        sent = one.steps_done()[-1]["bytes"]["comm"]
        numbers, least = plain.setdefault(ranks, (one.numbers(), sent))
        if one.numbers() != numbers:
            problems.append(f"{name}: other bits than without secondary shards")
        if "--zero-secondary" in flags and (sent >= least or "a second shard of the weights is kept" not in one.said):
            problems.append(f"{name}: {sent} bytes were sent, and {least} without")
    return problems


def quantized_exchanges_change_no_bit_of_it():
    """Secondary shards are of the weights that were gathered in 8 bits, so both gathers bring the same."""
    quantized = ("--gather", "int8", "--reduce", "int4")
    plain, nodes = Run("int8", "--zero", 3, "--ranks-per-node", 2, *quantized).train(), Run("int8-nodes", *NODE, *quantized).train()
    return [] if plain.numbers() == nodes.numbers() else ["other bits than without secondary shards"]


def a_killed_run_goes_on_with_the_same_bits():
    draw = random.Random(SEED)
    killed = Run("killed", *NODE, "--place", NVME, steps=100000)
    job = Job(path("killed.log"), 4, command(*killed.words()))
    job.wait_for("step 3/")
    os.kill(job.processes()[draw.randrange(4)], signal.SIGKILL)
    if job.end() in (None, 0):
        return ["the job outlives one of its ranks"]
    last = killed.steps_done()[-1]["step"]
    killed.resume("--steps", last + 3, ranks=4)
    unbroken = Run("unbroken", "--zero", 3, "--place", NVME, steps=last + 3).train()
    return [] if killed.numbers() == unbroken.numbers() else [f"seed {SEED}: other bits than unbroken"]


def a_resume_may_change_it():
    changing = Run("changing", *NODE, steps=2).train()
    changing.resume("--steps", 3, "--zero-secondary", "none", ranks=4)
    changing.resume("--steps", 4, "--zero-secondary", 4, "--ranks-per-node", "auto", ranks=4)
    problems = [] if changing.settings()["zero_secondary"] == "4" else [f"run.json has {changing.settings()}"]
    told = changing.resume("--steps", 5).err
    return problems + ([] if "one rank keeps no second shard of weights" in told else [f"one rank: {told}"])


def what_cannot_be_is_refused_by_a_sentence():
    problems = []
    for ranks, flags, words in (
            (4, ("--zero", 2, "--zero-secondary", "node"), "this is --zero 2; give --zero 3"),
            (4, ("--zero-secondary", "node"), "give --zero 3"),
            (4, ("--zero", 3, "--zero-secondary", "node", "--ranks-per-node", 3), "4 ranks do not fill nodes evenly"),
            (4, ("--zero", 3, "--zero-secondary", "node", "--ranks-per-node", 1), "is one rank, which would keep all"),
            (4, ("--zero", 3, "--zero-secondary", 4, "--ranks-per-node", 2), "does not divide the 2 ranks of a node"),
            (4, ("--zero", 3, "--zero-secondary", "six"), "must be none, node or a number of ranks"),
            (1, ("--zero", 3, "--zero-secondary", "node"), "is for several ranks, and this is one")):
        problems += Run("refused", *flags, ranks=ranks).refused(words, status=2)
    return problems


def a_plan_says_what_goes_between_nodes():
    def plan(*more):
        return run("plan", "--model", "gpt2-demo", "--ranks", 4, "--zero", 3, "--ranks-per-node", 2, "--device", "cpu", "--json",
                   "--device-memory", "64GiB", "--host-memory", "8GiB", "--rates", path("rates.json"), *more)
    plain, kept = (json.loads(plan(*more).out) for more in ((), ("--zero-secondary", "node")))
    ratio = kept["sent"]["between_bytes"] / plain["sent"]["between_bytes"]
    right = plain["secondary"] is None and kept["secondary"]["ranks"] == 2 and kept["secondary"]["tier"] == "device"
    # Gathers, which are halved, leave a node once, and the one reduction once for each of its two ranks.
    return [] if right and 0.7 < ratio < 0.9 else [f"{plain['sent']}, {kept['sent']}, {kept['secondary']}"]


def groups_are_priced_by_the_links_of_their_node():
    """The profile of ranks on nodes keeps the rates within one: with slower ones there, the same plan of groups is slower."""
    cache, found = path("cache"), []
    arguments = command("plan", "--model", "gpt2-tiny", "--seq", SEQ, "--micro-batch", 1, "--batch-tokens", 8 * SEQ, "--threads", 1,
                        "--device", "cpu", "--ranks-per-node", 2, "--tensor", 2, "--json")
    for _ in range(2):
        done = limits.run(mpirun((4, arguments)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, env=os.environ | {"XDG_CACHE_HOME": cache})
        if done.returncode != 0:
            return [f"status {done.returncode}: {done.stderr[-1500:]}"]
        found.append(json.loads(done.stdout)["predicted"]["plain"]["step_s"])
        kept = [os.path.join(where, name) for where, _, names in os.walk(cache) for name in names if name.startswith("machine")]
        with open(kept[0], encoding="utf-8") as file:
            entry = json.load(file)
        if len(kept) != 1 or "in_node" not in entry:
            return [f"the profile keeps no rates within a node: {kept}"]
        for kind in ("gather", "reduce"):
            entry["in_node"][kind]["bytes_per_s"] = 1e4
        write(kept[0], json.dumps(entry))
    return [] if found[1] > 10 * found[0] else [f"steps of {found}"]


script_test.run(secondary_shards_change_no_bit, quantized_exchanges_change_no_bit_of_it, a_killed_run_goes_on_with_the_same_bits, a_resume_may_change_it,
                what_cannot_be_is_refused_by_a_sentence, a_plan_says_what_goes_between_nodes,
                groups_are_priced_by_the_links_of_their_node)
