#!/usr/bin/env python3
"""Prints a table of what `spillway plan` predicts for models on described machines, as Markdown: tokens a second, the
range that assumed rates leave, the part of the machine that limits them, and by how much the search of placements gains
on the usual one. With --tuning, prints what each way of training the models takes instead: all parameters, half of them,
adapters. With --write FILE, puts the table between the two marks in FILE. Predictions by assumed rates, not measurements.

usage: plan_table.py [--tuning] [--models M,M...] [--machines M,M...] [--batch-tokens N] [--write FILE]
"""

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from marked import put_between_marks

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
MODELS = ("gpt2-124m", "qwen2.5-0.5b", "llama-1b", "qwen2.5-1.5b", "gpt2-1.5b", "qwen2.5-3b", "qwen2.5-7b", "llama-8b",
          "qwen2.5-14b", "llama-70b")
MACHINES = ("rtx3090", "rtx4090", "rtx5090", "h100", "gh200")
BATCH_TOKENS = 131072
TUNINGS = {"all parameters": (), "LoRA, rank 16": ("--lora", "16"),
           "LoRA, rank 16, base in int8": ("--lora", "16", "--base-format", "int8"),
           "LoRA, rank 16, base in nf4": ("--lora", "16", "--base-format", "nf4")}
NEED = re.compile(r"needs at least (.*?) \(")


def plan_of(model, machine, batch_tokens, *more):
    """Returns the plan, or what it would need."""
    command = [PROGRAM, "plan", "--model", model, "--machine", machine, "--batch-tokens", str(batch_tokens), *more, "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout), None
    need = NEED.search(done.stderr)
    if need is None:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return None, f"does not fit: needs {need[1]}"


def cell(model, machine, batch_tokens):
    plan, need = plan_of(model, machine, batch_tokens)
    if plan is None:
        return need
    plain, bounds, placements = plan["predicted"]["plain"], plan["predicted"].get("bounds"), plan["placement_prices"]
    ends = [] if bounds is None else [f"{batch_tokens / bounds[end]:,.0f}" for end in ("slow_s", "fast_s")]
    gain = "" if placements is None else f", +{100 * (placements['usual_s'] / placements['chosen_s'] - 1):.0f}%"
    return f"{plain['tokens_per_second']:,.0f}{f' ({ends[0]} to {ends[1]})' if ends else ''}, {plain['bottleneck']}{gain}"


def table(models, machines, batch_tokens):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = {model: [pool.submit(cell, model, machine, batch_tokens) for machine in machines] for model in models}
        lines = [f"| model | {' | '.join(machines)} |", "|---" * (1 + len(machines)) + "|"]
        for model, cells in rows.items():
            lines.append(f"| {model} | {' | '.join(found.result() for found in cells)} |")
    return "\n".join(lines) + "\n"


def tuning_row(model, machine, batch_tokens, name):
    plan, need = plan_of(model, machine, batch_tokens, *TUNINGS[name])
    head = f"| {model} | {machine} | {name} |"
    if plan is None:
        return f"{head} {need} | | | | |"
    plain, gib = plan["predicted"]["plain"], lambda bytes_: f"{bytes_ / 2**30:.1f} GiB"
    return (f"{head} {plain['step_s']:.1f} s | {plain['bottleneck']} | {gib(plan['peak_bytes']['device'])} | "
            f"{gib(plan['peak_bytes']['host'])} | {gib(plan['disk_bytes'])} | {plan['writes']['step_bytes'] / 1e9:.1f} GB |")


def tuning_table(models, machines, batch_tokens):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [pool.submit(tuning_row, model, machine, batch_tokens, name)
                for model in models for machine in machines for name in TUNINGS]
        lines = ["| model | machine | what is trained | step | busiest | device | host | disk | written a step |", "|---" * 9 + "|"]
        return "\n".join(lines + [row.result() for row in rows]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    parser.add_argument("--write", metavar="FILE")
    given = parser.parse_args()
    make = tuning_table if given.tuning else table
    text = make(given.models.split(","), given.machines.split(","), given.batch_tokens)
    if given.write is None:
        print(text, end="")
    else:
        put_between_marks(given.write, "plan_table.py --tuning" if given.tuning else "plan_table.py", text)


if __name__ == "__main__":
    main()
