#!/usr/bin/env python3
"""`bench zero` by 1, 2, 4 and 8 ranks, in one table of Markdown: MB that a rank holds and sends at each stage of ZeRO,
and the ratio to the formula."""

import argparse
import json
import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parent.parent / "build" / "spillway"
LAUNCHER = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n")
FIGURES = ("weights", "grads", "optimizer", "states", "sent")


def report(ranks, flags):
    command = [str(PROGRAM), "bench", "zero", "--json", *flags]
    done = subprocess.run([*LAUNCHER, str(ranks), *command] if ranks > 1 else command, stdout=subprocess.PIPE,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"bench zero by {ranks} ranks ended with status {done.returncode}")
    return json.loads(done.stdout)


def cell(figure):
    ratio = "" if figure["ratio"] is None else f" ({figure['ratio']:.4f})"
    return f"{figure['bytes'] * 1e-6:.2f}{ratio}"


def row(*cells):
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other flags are those of bench zero.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    given, flags = parser.parse_known_args()
    row("ranks", "stage", *FIGURES[:-1], "sent a step")
    row(*["---"] * (2 + len(FIGURES)))
    for ranks in given.ranks:
        for stage in report(ranks, flags)["stages"]:
            row(ranks, stage["stage"], *(cell(stage[figure]) for figure in FIGURES))


if __name__ == "__main__":
    main()
