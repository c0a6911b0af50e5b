#!/usr/bin/env python3
"""Trains a model several times with each of several sets of flags, and compares the validation losses: what a narrower
state, or a narrower exchange between ranks, costs. Prints for each set the final loss of each seed, their mean, its
difference from that of the first set, and the spread of the seeds. --svg FILE draws the mean curves.

  quality.py --data FILE [--model M] [--steps N] [--seeds N] [--ranks N] [--svg FILE] [--common FLAGS] SET...

A SET is a string of flags of `train`, or "" for none: quality.py --data text.bin "" "--optimizer-state 8bit"
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
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP_MARGIN, RIGHT = 720, 400, 60, 40, 20, 20


def train(given, flags, seed, folder):
    """Returns the validation losses of a run, by step."""
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(given.ranks)] if given.ranks > 1 else []
    name = os.path.join(folder, "run")
    command = [*launcher, PROGRAM, "train", "--init", "--model", given.model, "--data", given.data, "--val", "2%", "--run", name,
               "--seed", str(seed), "--steps", str(given.steps), "--eval-every", str(max(1, given.steps // 10)), "--quiet",
               *shlex.split(given.common), *shlex.split(flags)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"quality.py: {shlex.join(command)}: {done.stderr.strip()[-500:]}")
    with open(os.path.join(name, "log.jsonl"), encoding="utf-8") as file:
        losses = {line["step"]: line["val_loss"] for line in map(json.loads, file) if "val_loss" in line}
    subprocess.run(["rm", "-rf", name], check=True)
    return losses


def curves_svg(curves):
    """Draws the mean loss of each set over the steps."""
    steps = [step for curve in curves.values() for step in curve]
    losses = [loss for curve in curves.values() for loss in curve.values()]
    low, high, last = min(losses), max(losses), max(steps)
    across = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last
    down = lambda loss: TOP_MARGIN + (HEIGHT - TOP_MARGIN - BOTTOM) * (high - loss) / max(high - low, 1e-9)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for loss in (low, (low + high) / 2, high):
        parts.append(f'<text x="{LEFT - 8}" y="{down(loss) + 4:.0f}" text-anchor="end">{loss:.2f}</text>'
                     f'<path d="M{LEFT} {down(loss):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 12}" text-anchor="end">step {last}</text>'
                 f'<text x="{LEFT}" y="{HEIGHT - 12}">validation loss, mean of the seeds</text>')
    for number, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{across(step):.1f},{down(loss):.1f}" for step, loss in sorted(curve.items()))
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
                     f'<text x="{WIDTH - RIGHT}" y="{TOP_MARGIN + 16 * (number + 1)}" text-anchor="end" fill="{colour}">'
                     f'{name or "as it is"}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="gpt2-demo")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--svg")
    parser.add_argument("--common", default="", help="flags of all sets")
    parser.add_argument("sets", nargs="+", metavar="SET")
    given = parser.parse_args()
    found = {flags: [] for flags in given.sets}
    with tempfile.TemporaryDirectory(prefix="spillway-quality-", dir=".") as folder:
        for seed in range(1, given.seeds + 1):
            for flags in given.sets:
                found[flags].append(train(given, flags, seed, folder))
                print(f"{flags or 'as it is':<60} seed {seed}  {found[flags][-1][given.steps]:.4f}", flush=True)
    first = statistics.mean(run[given.steps] for run in found[given.sets[0]])
    print(f"{'set':<60}{'mean':>9}{'difference':>12}{'spread':>9}")
    for flags, runs in found.items():
        last = [run[given.steps] for run in runs]
        mean, spread = statistics.mean(last), max(last) - min(last)
        print(f"{flags or 'as it is':<60}{mean:>9.4f}{100 * (mean / first - 1):>11.2f}%{spread:>9.4f}")
    if given.svg is not None:
        curves = {flags: {step: statistics.mean(run[step] for run in runs) for step in runs[0]} for flags, runs in found.items()}
        with open(given.svg, "w", encoding="utf-8") as file:
            file.write(curves_svg(curves))


main()
