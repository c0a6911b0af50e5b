#!/usr/bin/env python3
"""`bench zero` by 1, 2, 4 and 8 ranks, in one table of Markdown: MB that a rank holds and sends at each stage of ZeRO,
and the ratio to the formula. With --groups, tensor groups with and without partitioned activations (Pa), and the
deviation from the formula."""

import argparse
import json
import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parent.parent / "build" / "spillway"
LAUNCHER = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n")
FIGURES = ("weights", "grads", "optimizer", "states", "sent")
GROUP_FIGURES = ("weights", "grads", "optimizer", "acts", "tensor_sent", "data_sent")


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


def deviation_cell(figure):
    deviation = figure.get("deviation_percent")
    return f"{figure['bytes'] * 1e-6:.2f}" + ("" if deviation is None else f" ({deviation:+.2f}%)")


def groups_table(jobs, flags):
    """Prints the jobs, each N x D: D groups of N ranks. The stages of one group are alike, so one row stands for all."""
    row("N x D", "stage", "weights", "grads", "optimizer", "kept inputs", "sent in the group", "sent between groups", "Pa adds")
    row(*["---"] * (3 + len(GROUP_FIGURES)))
    for job in jobs:
        tensor, data = map(int, job.split("x"))
        found = report(tensor * data, ["--tensor", str(tensor), *flags])
        for kind, more in (("stages", ""), ("partitioned", " Pa")):
            for stage in found[kind][:1 if data == 1 else None]:
                share = stage.get("partition")
                added = "" if share is None else f"{100 * share['added_share']:.1f}%"
                row(f"{tensor} x {data}", ("all" if data == 1 else str(stage["stage"])) + more,
                    *(deviation_cell(stage[figure]) for figure in GROUP_FIGURES), added)


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other flags are those of bench zero.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--groups", nargs="+", metavar="NxD", help="D tensor groups of N ranks, instead of --ranks: 2x1 4x2")
    given, flags = parser.parse_known_args()
    if given.groups is not None:
        groups_table(given.groups, flags)
        return
    row("ranks", "stage", *FIGURES[:-1], "sent a step")
    row(*["---"] * (2 + len(FIGURES)))
    for ranks in given.ranks:
        for stage in report(ranks, flags)["stages"]:
            row(ranks, stage["stage"], *(cell(stage[figure]) for figure in FIGURES))


if __name__ == "__main__":
    main()
