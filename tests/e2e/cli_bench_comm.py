"""`bench comm` reports on several ranks and on one alone; other benches are for one process. No speed is asserted."""

import json
import math
import subprocess

from program import command, limits, run, script_test
from ranks_jobs import mpirun

QUICK = ("--device", "cpu", "--rounds", 1, "--json")
REPORT = {"bench": "comm", "device": "cpu", "precision": "fp32", "rounds": 1, "nodes": 1}
WAYS = ("gather", "reduce", "library")


def with_ranks(ranks, *arguments):
    return limits.run(mpirun((ranks, command(*arguments))), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def unequal(what, found, expected):
    return [] if math.isclose(found, expected, rel_tol=1e-9) else [f"{what} is {found} instead of {expected}"]


def wrong_size(size, expected_bytes):
    memory, plain = size.pop("memcpy_bytes_per_s"), size.pop("plain_bytes_per_s")
    problems = unequal("bytes", size.pop("bytes"), expected_bytes)
    for way in WAYS:
        found = size.pop(way)
        rate = found.pop("bytes_per_s")
        problems += [] if 0 < rate < math.inf else [f"{way} has a rate of {rate}"]
        problems += unequal(way, found.pop("of_memcpy"), rate / memory)
        problems += unequal(way, found.pop("of_plain"), rate / plain) + [f"{way}: new '{name}'" for name in found]
    return problems + [f"size: new '{name}'" for name in size]


def ranks_report_what_they_exchange():
    done = with_ranks(3, "bench", "comm", "--size", "4KiB", "300KiB", "--precision", "fp32", *QUICK)
    if done.returncode != 0 or done.stderr:
        return [f"status {done.returncode}: {done.stderr}"]
    found = json.loads(done.stdout)
    sizes, latency = found.pop("sizes"), found.pop("latency_s")
    problems = [] if found == {**REPORT, "ranks": 3, "transport": "MPI"} else [f"the report is {found}"]
    problems += [] if 0 < latency < math.inf else [f"the latency is {latency}"]
    problems += [] if len(sizes) == 2 else [f"{len(sizes)} sizes"]
    return problems + [problem for size, expected in zip(sizes, (4096, 300 * 1024)) for problem in
                       wrong_size(size, expected)]


def one_rank_has_nothing_to_report():
    ended = run("bench", "comm", "--precision", "fp32", *QUICK)
    expected = {**REPORT, "ranks": 1, "transport": "self", "latency_s": 0.0, "sizes": []}
    said = run("bench", "comm", "--device", "cpu").out
    return [] if ended.code == 0 and json.loads(ended.out) == expected and "mpirun" in said else [str(ended) + said]


def other_benches_are_for_one_process():
    done = with_ranks(2, "bench", "copy")
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway bench: ")]
    return [] if done.returncode != 0 and not done.stdout and len(said) == 1 and "2 ranks" in said[0] else [str(done)]


def wrong_sizes_are_refused_once():
    problems = [str(ended) for text in ("1KiB", "1GiB") for ended in [run("bench", "comm", "--size", text)]
                if ended.code != 2 or "--size" not in ended.err]
    done = with_ranks(2, "bench", "comm", "--size", "1GiB")
    return problems + ([] if done.returncode != 0 and done.stderr.count("--size 1GiB is not") == 1 else [str(done)])


script_test.run(ranks_report_what_they_exchange, one_rank_has_nothing_to_report, other_benches_are_for_one_process,
                wrong_sizes_are_refused_once)
