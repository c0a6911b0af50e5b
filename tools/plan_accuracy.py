#!/usr/bin/env python3
"""Compares what `spillway plan` predicts by this machine's profile with what training then measures, over configurations
that differ in what limits them. Prints a line for each: predicted and measured seconds of a step, their ratio, the
predicted bottleneck, and the busiest lane as predicted and as measured. Exits 1 where a ratio is off by more than --within.

  plan_accuracy.py [--only WORDS] [--steps N] [--within SHARE] [--nvme DIR] [--profile]

--profile leaves the kept profile alone and measures this machine anew, alone and as two ranks. A machine that does other
work meanwhile gives figures that are worth nothing; its load at the beginning is printed.
"""

import argparse
import array
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
ALL_NVME = "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme"
ALL_DEVICE = "weights=device,grads=device,optimizer=device,acts=device"
ALL_HOST = "weights=host,grads=host,optimizer=host,acts=host"
OPTIMIZER_NVME, ON_HOST = "optimizer=nvme", "optimizer=host,grads=host"
NAMES = {ALL_NVME: "all nvme", ALL_DEVICE: "all device", ALL_HOST: "all host", OPTIMIZER_NVME: "optimizer nvme",
         ON_HOST: "optimizer, gradients host"}
# Each configuration: what limits it, its ranks, and its flags.
CASES = (
    ("compute", 1, "gpt2-demo --batch-tokens 16384 --seq 256 --micro-batch 16 --place " + ALL_DEVICE),
    ("compute", 1, "gpt2-demo --batch-tokens 8192 --seq 256 --micro-batch 4 --place " + OPTIMIZER_NVME),
    ("mixed", 1, "gpt2-demo --batch-tokens 1024 --seq 256 --micro-batch 4 --place " + OPTIMIZER_NVME),
    ("mixed", 1, "gpt2-demo --batch-tokens 256 --seq 256 --micro-batch 1 --place " + ALL_NVME),
    ("compute", 1, "gpt2-demo --batch-tokens 2048 --seq 128 --micro-batch 16 --place " + ON_HOST),
    ("compute", 1, "gpt2-124m --batch-tokens 4096 --seq 1024 --micro-batch 2 --place " + ALL_DEVICE),
    ("mixed", 1, "gpt2-124m --batch-tokens 512 --seq 512 --micro-batch 1 --place " + OPTIMIZER_NVME),
    ("mixed", 1, "gpt2-124m --batch-tokens 256 --seq 256 --micro-batch 1 --place " + ALL_NVME),
    ("drive", 1, "gpt2-124m --batch-tokens 64 --seq 64 --micro-batch 1 --place " + ALL_NVME),
    ("drive", 1, "gpt2-124m --batch-tokens 16 --seq 16 --micro-batch 1 --place " + OPTIMIZER_NVME),
    ("update", 1, "gpt2-124m --batch-tokens 4 --seq 4 --micro-batch 1 --place " + ON_HOST),
    ("copies", 1, "gpt2-124m --batch-tokens 64 --seq 2 --micro-batch 1 --order batch --place " + ALL_HOST),
    ("compute", 1, "gpt2-124m --batch-tokens 1024 --seq 256 --micro-batch 4 --place " + ON_HOST),
    ("compute", 1, "gpt2-124m --batch-tokens 2048 --seq 512 --micro-batch 4 --recompute all --place " + OPTIMIZER_NVME),
    ("mixed", 1, "gpt2-355m --batch-tokens 512 --seq 512 --micro-batch 1 --place " + OPTIMIZER_NVME),
    ("compute", 1, "gpt2-355m --batch-tokens 2048 --seq 512 --micro-batch 4 --place " + ALL_NVME),
    ("drive", 1, "gpt2-1.3b --batch-tokens 256 --seq 256 --micro-batch 1 --place " + OPTIMIZER_NVME),
    ("mixed", 1, "qwen2.5-0.5b --batch-tokens 512 --seq 512 --micro-batch 1 --place " + OPTIMIZER_NVME),
    ("compute", 1, "qwen2.5-0.5b --batch-tokens 2048 --seq 1024 --micro-batch 1 --place " + ALL_NVME),
    ("drive", 1, "llama-1b --batch-tokens 512 --seq 256 --micro-batch 2 --place " + OPTIMIZER_NVME),
    ("compute", 2, "gpt2-demo --batch-tokens 16384 --seq 256 --micro-batch 8 --place " + ALL_DEVICE),
    ("mixed", 2, "gpt2-demo --batch-tokens 512 --seq 256 --micro-batch 1 --place " + ALL_NVME),
    ("mixed", 2, "gpt2-124m --batch-tokens 64 --seq 32 --micro-batch 1 --place " + ON_HOST),
    ("compute", 2, "gpt2-124m --batch-tokens 2048 --seq 256 --micro-batch 2 --zero 3 --place " + OPTIMIZER_NVME),
)
UNCOUNTED = 3
# Lanes that share a resource count as one bottleneck.
RESOURCE = {"read": "drive", "write": "drive", "upload": "copies", "download": "copies"}


def run(ranks, *arguments):
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*launcher, PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"plan_accuracy.py: spillway {arguments[0]} failed: {done.stderr.strip()[-500:]}")
    return done


def predict(ranks, flags):
    """Returns the seconds, the bottleneck and the busiest lane of a step, and whether it is speculated: it is where the
    plan may, as most steps are not clipped."""
    found = json.loads(run(ranks, "plan", "--json", *flags).stdout)["predicted"]
    step = found.get("speculated", found["plain"])
    return step["step_s"], step["bottleneck"], max(step["lane_busy_s"], key=step["lane_busy_s"].get), "speculated" in found


def measure(ranks, flags, steps, speculates, folder):
    """Returns the median seconds of a step that is not clipped, and the lane of rank 0 that was busy for most of them."""
    data, name = os.path.join(folder, "data.bin"), os.path.join(folder, "run")
    wide = not flags[1].startswith("gpt2")  # their vocabularies do not fit into 16 bits
    with open(data, "wb") as file:
        array.array("I" if wide else "H", random.Random(1).choices(range(256), k=1 << 18)).tofile(file)
    run(ranks, "train", "--init", "--data", data, "--run", name, "--steps", UNCOUNTED + steps,
        "--save-every", 1000000, "--clip", 1e6, *(["--speculate", "always"] if speculates else []), "--quiet", *flags)
    with open(os.path.join(name, "log.jsonl"), encoding="utf-8") as file:
        lines = [line for line in map(json.loads, file) if "loss" in line]
    subprocess.run(["rm", "-rf", name], check=True)
    counted = [line for line in lines[UNCOUNTED:] if not line["saved"] or lines[UNCOUNTED]["saved"]]
    busy = {lane: statistics.median(line["lanes"][lane] for line in counted) for lane in counted[0]["lanes"]}
    return statistics.median(line["seconds"] for line in counted), max(busy, key=busy.get)


def compare(case, arguments, most_ranks):
    """Prints the line of a configuration, and returns whether it was measured, is within the share, and has the
    predicted bottleneck."""
    kind, ranks, text = case
    shown = f"{ranks} {text}"
    for places, name in NAMES.items():
        shown = shown.replace("--place " + places, name)
    shown = shown.replace("--batch-tokens ", "tokens ").replace("--", "")
    if ranks > most_ranks:
        print(f"{shown:<86}no MPI", flush=True)
        return False, True, True
    with tempfile.TemporaryDirectory(prefix="spillway-accuracy-", dir=arguments.nvme) as folder:
        flags = ["--model", *shlex.split(text), "--nvme", folder]
        predicted_s, bottleneck, predicted, speculates = predict(ranks, flags)
        measured_s, measured = measure(ranks, flags, arguments.steps, speculates, folder)
    ratio = predicted_s / measured_s
    print(f"{shown:<86}{kind:<8}{predicted_s:>9.3f} s{measured_s:>8.3f} s{ratio:>7.2f}  {bottleneck:<12}{predicted:<9}{measured}",
          flush=True)
    return True, abs(ratio - 1) <= arguments.within, RESOURCE.get(predicted, predicted) == RESOURCE.get(measured, measured)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="configurations with these words, or of this kind")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--within", type=float, default=0.1)
    parser.add_argument("--nvme", default=".")
    parser.add_argument("--profile", action="store_true", help="measure this machine anew")
    arguments = parser.parse_args()
    most_ranks = 2 if shutil.which("mpirun") is not None else 1
    print(f"load of the last minute: {os.getloadavg()[0]:.2f}")
    print(f"{'ranks and configuration':<86}{'limit':<8}{'predicted':>11}{'measured':>10}{'ratio':>7}  "
          f"{'bottleneck':<12}{'busiest':<9}measured")
    cache = tempfile.TemporaryDirectory(prefix="spillway-accuracy-")
    if arguments.profile:
        os.environ["XDG_CACHE_HOME"] = cache.name
    found = [compare(case, arguments, most_ranks) for case in CASES if arguments.only in case[2] or arguments.only == case[0]]
    within = [near for measured, near, _ in found if measured]
    lanes = sum(alike for measured, _, alike in found if measured)
    print(f"{within.count(False)} of {len(within)} are off by more than {100 * arguments.within:.0f}%; the busiest lane is the "
          f"predicted one, or shares its resource, in {lanes}")
    sys.exit(1 if False in within else 0)


main()
