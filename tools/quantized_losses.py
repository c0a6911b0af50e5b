#!/usr/bin/env python3
"""Trains the demo's model on several ranks with exact and with quantized exchange, from three seeds, and prints the
validation losses side by side. The text is any file of some megabytes; other flags are train's."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile

SEEDS = (1, 2, 3)
WAYS = {"exact": (),
        "gather int8": ("--gather", "int8"),
        "reduce int8": ("--reduce", "int8"),
        "reduce int4": ("--reduce", "int4"),
        "both int8": ("--gather", "int8", "--reduce", "int8"),
        "int8 and int4": ("--gather", "int8", "--reduce", "int4")}


def train(asked, seed, flags, run):
    """Returns the validation loss at the end, and the bytes that a rank gives to others in a step."""
    shape = ("--seq", 128, "--micro-batch", 2, "--batch-tokens", 1024, "--threads", 1, "--zero", 3)
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", asked.ranks, asked.program, "train", "--model",
               "gpt2-demo", "--init", "--data", asked.text, "--run", run, "--steps", asked.steps, "--seed", seed, "--val", "5%",
               "--lr", 1e-3, "--warmup", 10, "--save-every", asked.steps, *shape, *flags, *asked.flags]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    shutil.rmtree(run)
    return ([line["val_loss"] for line in lines if "val_loss" in line][-1],
            [line["bytes"]["comm"] for line in lines if "loss" in line][-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--program", default="build/spillway")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="the first is what others are compared with")
    asked, asked.flags = parser.parse_known_args()  # the rest are flags of train
    first = []
    print(f"gpt2-demo, {asked.ranks} ranks, {asked.steps} steps of 1024 tokens, --zero 3: validation loss of seeds 1, 2 and 3")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for way in asked.ways:
            ended = [train(asked, seed, WAYS[way], os.path.join(folder, "run")) for seed in SEEDS]
            losses = [loss for loss, _ in ended]
            first = first or losses
            off = statistics.mean(100 * (loss / other - 1) for loss, other in zip(losses, first, strict=True))
            print(f"{way:14} {' '.join(f'{loss:.4f}' for loss in losses)}  mean {statistics.mean(losses):.4f} ({off:+.2f} %)"
                  f"  {ended[0][1] / 1e6:.1f} MB a step of each rank", flush=True)


main()
