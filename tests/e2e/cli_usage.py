"""Help, versions and reports: every flag is explained, results go to standard output and nothing else does."""

import json
import os
import re
import subprocess

import program
from program import script_test

COMMANDS = {
    "train": """--model --data --run --steps --schedule-steps --batch-tokens --seq --micro-batch --precision --device
        --order --recompute --zero --lr --warmup --schedule --decay-steps --min-lr --weight-decay --beta1 --beta2 --eps
        --clip --seed --init --tokens --durability --val --device-memory --host-memory --update --place --nvme --eval-every --save-every
        --export-every --keep
        --endurance --time-limit --rank-timeout --reduce --allow-shared-gpu --allow-buffered""",
    "resume": """DIR --steps --tokens --data --val --schedule-steps --lr --min-lr --device-memory --host-memory --zero --rank-timeout --update --place --nvme --eval-every --save-every --export-every --keep
        --endurance --time-limit
        --allow-buffered""",
    "plan": """--model --ranks --batch-tokens --seq --micro-batch --precision --durability --device --order --recompute
        --zero --device-memory --host-memory --update --place --nvme --steps --save-every --endurance --allow-buffered --rates --trace --explain --json""",
    "generate": "DIR|MODEL --prompt --tokens --max-tokens --temperature --top-k --top-p --seed --precision",
    "eval": "DIR|MODEL --data --seq --tokens --token-type --micro-batch --precision --threads --json",
    "export": "DIR|MODEL OUT --dtype --shard-size",
    "verify": "DIR --json",
    "report": "RUN --out --watch --port",
    "doctor": "--nvme --quick --measure --json",
}
# Their flags are those of their own tests.
BENCHES = ("copy", "comm", "update", "gemm", "attention", "compute", "load", "step", "zero", "io")
PLAN_FIELDS = {"model": str, "parameters": int, "batch_tokens": int, "micro_batch": int, "seq": int, "precision": str,
               "optimizer_state": str, "grads_state": str,
               "recompute": list, "commit_every_step": bool, "store_bytes": int, "disk_bytes": int, "peak_bytes": dict,
               "placement": dict, "updates": list, "frozen": type(None), "group": int, "order_prices": list, "update_prices": (dict, type(None)), "placement_prices": (dict, type(None)), "lanes": dict, "ops": int, "waits": int, "predicted": dict,
               "saves": (dict, type(None)), "writes": dict, "data": (dict, type(None)), "would_help": type(None),
               "ranks": int, "zero": (int, type(None)), "tensor": (dict, type(None)), "tensor_choice": (list, type(None)), "nodes": (dict, type(None)), "secondary": (dict, type(None)), "sent": dict, "quantized": (dict, type(None))}
SIMULATION_FIELDS = {"step_s": float, "tokens_per_second": float, "bottleneck": str, "bottleneck_share": float,
                     "lane_busy_s": dict}


def shape_of_help(command, text):
    """Every help fits 80 columns, has its flags in groups, the output last, and ends in three examples."""
    problems = [f"{command} --help is too wide: {line!r}" for line in text.splitlines() if len(line) > 80]
    headings = re.findall(r"^(\S[^:\n]*):$", text, re.MULTILINE)
    if len(headings) != len(set(headings)) or headings[-1] != "Examples":
        problems.append(f"{command} --help has the headings {headings}")
    examples = text.partition("\nExamples:\n")[2]
    if len(re.findall(rf"^  (?:mpirun -n \d+ )?spillway {command}\b", examples, re.MULTILINE)) != 3:
        problems.append(f"{command} --help has not three examples")
    if "preset" in text and "gpt2-124m  " not in text:
        problems.append(f"{command} --help speaks of presets and does not list them")
    return problems


def help_explains_every_flag():
    problems = []
    for command, flags in COMMANDS.items():
        ended = program.run(command, "--help")
        if ended.code != 0 or ended.err:
            problems.append(f"{command} --help: status {ended.code}, {ended.err!r}")
        for flag in flags.split():
            line = re.search(rf"^  {re.escape(flag)}(\.\.\.)?[ \n].*", ended.out, re.MULTILINE)
            if line is None:
                problems.append(f"{command} --help does not explain {flag}")
        if "--quiet" not in ended.out:
            problems.append(f"{command} --help does not explain --quiet")
        problems += shape_of_help(command, ended.out)
    if not re.search(r"--place [^-]*\(default: as before\)", " ".join(program.run("resume", "--help").out.split())):
        problems.append("resume --help does not say that what is not given stays as before")
    return problems


def benches_have_help_of_the_same_shape():
    wide = [f"bench --help is too wide: {line!r}" for line in program.run("bench", "--help").out.splitlines()
            if len(line) > 80]
    return wide + [problem for name in BENCHES for problem in
                   shape_of_help(f"bench {name}", program.run("bench", name, "--help").out)]


def the_program_itself():
    problems = []
    overview = program.run("--help")
    if overview.code != 0 or any(f"\n  {command} " not in overview.out for command in COMMANDS):
        problems.append(f"--help: status {overview.code}, {overview.out!r}")
    version = program.run("--version")
    if version.code != 0 or not re.fullmatch(r"spillway \d+\.\d+\.\d+\n", version.out):
        problems.append(f"--version: status {version.code}, {version.out!r}")
    for word in ("version", "-V"):
        if program.run(word).out != version.out:
            problems.append(f"{word}: {program.run(word)}")
    for words in (("train",), ("bench", "io")):
        explained = program.run("help", *words)
        if explained.code != 0 or explained.out != program.run(*words, "--help").out or not explained.out:
            problems.append(f"help {words}: status {explained.code}, {explained.out[:200]!r}")
    for arguments in ([], ["trian"], ["help", "trian"]):
        ended = program.run(*arguments)
        if ended.code != 2 or ended.out or not ended.err:
            problems.append(f"{arguments}: status {ended.code}, {ended.out!r}")
    return problems


def wrong_fields(what, found, fields):
    return [f"{what}: '{name}' is {found.get(name)!r}" for name, kind in fields.items()
            if not isinstance(found.get(name), kind)] + [f"{what}: '{name}' is new" for name in found.keys() - fields]


def plans():
    ended = program.run("plan", "--model", "gpt2-tiny", "--json", *program.SHAPE, "--place",
                        "grads=host,optimizer=nvme")
    if ended.code != 0 or ended.err:
        return [f"plan: status {ended.code}, {ended.err!r}"]
    plan = json.loads(ended.out)
    problems = wrong_fields("plan", plan, PLAN_FIELDS)
    if plan["peak_bytes"].keys() != {"device", "host", "nvme"}:
        problems.append(f"plan: peaks of {sorted(plan['peak_bytes'])}")
    expected = {"weights": "device", "grads": "host", "optimizer": "nvme", "acts": "device"}
    if {state: set(tiers) for state, tiers in plan["placement"].items()} != {s: {t} for s, t in expected.items()}:
        problems.append(f"plan: placement {plan['placement']}")
    for lane in ("compute", "upload", "download", "read", "write", "update"):
        problems += wrong_fields(f"lane {lane}", plan["lanes"].get(lane, {}), {"ops": int, "bytes": int})
    if plan["predicted"].keys() != {"plain", "speculated", "redone"}:
        problems.append(f"plan: predicts {sorted(plan['predicted'])}")
    for way, found in plan["predicted"].items():
        problems += wrong_fields(f"predicted {way}", found, SIMULATION_FIELDS)
    readable = program.run("plan", "--model", "gpt2-124m", "--batch-tokens", 64, "--seq", 64, "--explain")
    if readable.code != 0 or "checked" not in readable.out or "a step takes" not in readable.out:
        problems.append(f"plan without --json: status {readable.code}, {readable.out!r}")
    return problems


def results_that_cannot_be_written():
    problems = []
    for arguments in (["plan", "--model", "gpt2-tiny"], ["plan", "--model", "gpt2-tiny", "--json"],
                      ["doctor", "--quick"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(program.command(*arguments), stdout=full, stderr=subprocess.PIPE, check=False)
        if done.returncode != 1 or b"standard output" not in done.stderr:
            problems.append(f"{arguments} to a full disk: status {done.returncode}, {done.stderr!r}")
    return problems


script_test.run(help_explains_every_flag, benches_have_help_of_the_same_shape, the_program_itself, plans,
                results_that_cannot_be_written)
