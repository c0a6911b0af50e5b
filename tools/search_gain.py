#!/usr/bin/env python3
"""Measures what the search of placements gains on this machine: steps with the usual placement, which fills the fastest tier
first, and with the one that the search finds by this machine's rates, in memory that is too small for all state. Prints a line
for each configuration: seconds of both as measured in turn, their ratio, and the ratio that was predicted.

  search_gain.py [--only WORDS] [--rounds N] [--nvme DIR]

A CPU is its own host, so `train` does not search there unless rates are given; this tool gives them.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
SHORT = "--seq 256 --micro-batch 1 --batch-tokens"
CASES = (
    f"gpt2-demo {SHORT} 1024 --device-memory 48MiB --host-memory 48MiB",
    f"gpt2-demo {SHORT} 256 --device-memory 48MiB --host-memory 48MiB",
    f"gpt2-124m {SHORT} 256 --device-memory 700MiB --host-memory 300MiB",
    f"gpt2-124m {SHORT} 256 --device-memory 700MiB --host-memory 800MiB",
    f"gpt2-124m {SHORT} 512 --device-memory 600MiB --host-memory 500MiB",
    f"gpt2-124m {SHORT} 1024 --device-memory 700MiB --host-memory 300MiB",
    f"gpt2-124m {SHORT} 2048 --device-memory 1200MiB --host-memory 500MiB",
    f"gpt2-124m {SHORT} 4096 --device-memory 1000MiB --host-memory 200MiB",
    f"gpt2-355m {SHORT} 256 --device-memory 1500MiB --host-memory 1500MiB",
    f"gpt2-355m {SHORT} 1024 --device-memory 2GiB --host-memory 1GiB",
    f"qwen2.5-0.5b {SHORT} 256 --device-memory 2GiB --host-memory 2GiB",
    f"qwen2.5-0.5b {SHORT} 1024 --device-memory 3GiB --host-memory 1GiB",
)


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"search_gain.py: spillway {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def placed_s(flags, *more):
    found = run("bench", "step", *flags, *more, "--steps", "3", "--rounds", "1", "--json")
    return found["steps"]["placed"]["step_s"]


def compare(case, rounds, folder):
    flags = ["--model", *shlex.split(case), "--nvme", folder]
    rates = os.path.join(folder, "rates.json")
    prices = run("plan", *flags, "--rates", rates, "--json")["placement_prices"]
    predicted = 1.0 if prices is None else prices["usual_s"] / prices["chosen_s"]
    pairs = [(placed_s(flags), placed_s(flags, "--rates", rates)) for _ in range(rounds)]
    os.remove(rates)
    usual, searched = (statistics.median(times) for times in zip(*pairs))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{case:<88}{usual:>8.3f} s{searched:>8.3f} s{ratio:>8.2f}{predicted:>11.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="configurations with these words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nvme", default=".")
    arguments = parser.parse_args()
    print(f"{'configuration':<88}{'usual':>10}{'searched':>10}{'ratio':>8}{'predicted':>11}")
    with tempfile.TemporaryDirectory(prefix="spillway-search-", dir=arguments.nvme) as folder:
        for case in CASES:
            if arguments.only in case:
                compare(case, arguments.rounds, folder)


main()
