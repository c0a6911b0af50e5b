#!/usr/bin/env python3
"""Prints what the sanitizers have reported into a folder; fails where there is anything that is spillway's.

Reports are files because of many a process no test sees the end: a rank of a job that is to fail, a program that is
killed. Libraries keep memory until their process ends: leaks that OpenMP's took itself are not spillway's, nor is, in a
rank, what no function of spillway was found to take, because MPI has unloaded by then what it had loaded.
"""

import os
import re
import sys

SHOWN_LINES = 60
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Address, function, place; of a place with a line the source is known.
FRAME = re.compile(r"^ +#(\d+) 0x\w+ (.*)$", re.MULTILINE)
OWN = re.compile(re.escape(ROOT) + r"/\S+\.\w+:\d+")
LEAK = re.compile(r"^(?:Direct|Indirect) leak of .*?(?=^\s*$)", re.MULTILINE | re.DOTALL)
OPENMP = re.compile(r"/lib(omp|gomp)[.\d-]*\.so")
# The line with which a report ends whose process was killed while it looked for names.
CUT_OFF = re.compile(r"^==\d+==WARNING: .* symbolizer .*$", re.MULTILINE)
MPI = re.compile(r"/lib(mpi|open-pal|open-rte|pmix)\.so")


def is_own(leak, of_rank):
    frames = [text for _, text in FRAME.findall(leak)]
    if len(frames) > 1 and OPENMP.search(frames[1]):
        return False
    return not of_rank or any(OWN.search(frame) for frame in frames)


def own_part(report):
    """Returns a report without the leaks of libraries; empty where nothing is left."""
    report = CUT_OFF.sub("", report)
    leaks = LEAK.findall(report)
    if not leaks:
        return report
    of_rank = MPI.search(report) is not None
    return "\n".join(leak for leak in leaks if is_own(leak, of_rank))


def main():
    folder, count = sys.argv[1], 0
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8", errors="replace") as file:
            part = own_part(file.read())
        if part.strip():
            count += 1
            print("\n".join([f"== {path}", *part.splitlines()[:SHOWN_LINES]]))
    print(f"{count} reports of the sanitizers")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
