#!/usr/bin/env python3
"""Compares what `spillway plan` predicts by this machine's profile with what training then measures, over configurations
that differ in what limits them. Prints a line for each: predicted and measured seconds of a step, their ratio, and the
busiest lane of both. Exits 1 where a ratio is off by more than --within.

  plan_accuracy.py [--only WORDS] [--steps N] [--within SHARE] [--nvme DIR]
"""

import argparse
import array
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
ALL_NVME = "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme"
ALL_DEVICE = "weights=device,grads=device,optimizer=device,acts=device"
# The flags of each configuration, and the steps at its beginning that do not count.
CASES = (
    "gpt2-demo --batch-tokens 16384 --seq 256 --micro-batch 16 --place " + ALL_DEVICE,
    "gpt2-demo --batch-tokens 8192 --seq 256 --micro-batch 4 --place optimizer=nvme",
    "gpt2-demo --batch-tokens 1024 --seq 256 --micro-batch 4 --place optimizer=nvme",
    "gpt2-demo --batch-tokens 256 --seq 256 --micro-batch 1 --place " + ALL_NVME,
    "gpt2-demo --batch-tokens 2048 --seq 128 --micro-batch 16 --place optimizer=host,grads=host",
    "gpt2-124m --batch-tokens 4096 --seq 1024 --micro-batch 2 --place " + ALL_DEVICE,
    "gpt2-124m --batch-tokens 512 --seq 512 --micro-batch 1 --place optimizer=nvme",
    "gpt2-124m --batch-tokens 256 --seq 256 --micro-batch 1 --place " + ALL_NVME,
    "gpt2-124m --batch-tokens 1024 --seq 256 --micro-batch 4 --place optimizer=host,grads=host",
    "gpt2-124m --batch-tokens 2048 --seq 512 --micro-batch 4 --recompute all --place optimizer=nvme",
    "gpt2-355m --batch-tokens 512 --seq 512 --micro-batch 1 --place optimizer=nvme",
    "gpt2-355m --batch-tokens 2048 --seq 512 --micro-batch 4 --place " + ALL_NVME,
    "gpt2-1.3b --batch-tokens 256 --seq 256 --micro-batch 1 --place optimizer=nvme",
    "qwen2.5-0.5b --batch-tokens 512 --seq 512 --micro-batch 1 --place optimizer=nvme",
    "qwen2.5-0.5b --batch-tokens 2048 --seq 1024 --micro-batch 1 --place " + ALL_NVME,
    "llama-1b --batch-tokens 512 --seq 256 --micro-batch 2 --place optimizer=nvme",
)
UNCOUNTED = 3


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"plan_accuracy.py: spillway {arguments[0]} failed: {done.stderr.strip()[-500:]}")
    return done


def predict(flags):
    """Returns the seconds and the bottleneck of a step, speculated where the plan may: most steps are not clipped."""
    found = json.loads(run("plan", "--json", *flags).stdout)["predicted"]
    step = found.get("speculated", found["plain"])
    return step["step_s"], step["bottleneck"]


def measure(flags, steps, folder):
    """Returns the median seconds of a step, and the lane that was busy for most of them."""
    data, name = os.path.join(folder, "data.bin"), os.path.join(folder, "run")
    wide = not flags[1].startswith("gpt2")  # their vocabularies do not fit into 16 bits
    with open(data, "wb") as file:
        array.array("I" if wide else "H", random.Random(1).choices(range(256), k=1 << 18)).tofile(file)
    run("train", "--init", "--data", data, "--run", name, "--steps", UNCOUNTED + steps,
        "--save-every", 1000000, "--quiet", *flags)
    with open(os.path.join(name, "log.jsonl"), encoding="utf-8") as file:
        lines = [line for line in map(json.loads, file) if "loss" in line]
    subprocess.run(["rm", "-rf", name], check=True)
    counted = [line for line in lines[UNCOUNTED:] if not line["saved"] or lines[UNCOUNTED]["saved"]]
    busy = {lane: statistics.median(line["lanes"][lane] for line in counted) for lane in counted[0]["lanes"]}
    return statistics.median(line["seconds"] for line in counted), max(busy, key=busy.get)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="configurations with these words")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--within", type=float, default=0.1)
    parser.add_argument("--nvme", default=".")
    arguments, far = parser.parse_args(), 0
    print(f"{'configuration':<86}{'predicted':>11}{'measured':>10}{'ratio':>7}  busiest, predicted and measured")
    for case in CASES:
        if arguments.only not in case:
            continue
        with tempfile.TemporaryDirectory(prefix="spillway-accuracy-", dir=arguments.nvme) as folder:
            flags = ["--model", *shlex.split(case), "--nvme", folder]
            predicted_s, predicted = predict(flags)
            measured_s, measured = measure(flags, arguments.steps, folder)
        ratio = predicted_s / measured_s
        far += abs(ratio - 1) > arguments.within
        shown = case.replace("weights=", "").replace("grads=", "").replace("optimizer=", "").replace("acts=", "")
        print(f"{shown:<86}{predicted_s:>9.3f} s{measured_s:>8.3f} s{ratio:>7.2f}  {predicted}, {measured}", flush=True)
    print(f"{far} of them are off by more than {100 * arguments.within:.0f}%")
    sys.exit(1 if far else 0)


main()
