#!/usr/bin/env python3
"""Measures spillway and what a user would run instead, in turn, in one run. Peers come in pinned versions into a folder of their
own; one that cannot be had is a line that says why. Every number is in the JSON; `tables.py` makes tables and pictures of it.

usage: ./dev peers [--only PAIR,...] [--rounds N] [--quick] [--json FILE] [--folder DIR] [--llm-c PROGRAM] [--data FILE]
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import contender  # noqa: E402
import drive  # noqa: E402
import inputs  # noqa: E402
import install  # noqa: E402
import llmc  # noqa: E402
import nvme  # noqa: E402
import ranks  # noqa: E402
import step  # noqa: E402
import summary  # noqa: E402
import update  # noqa: E402

TOP = os.path.dirname(os.path.dirname(contender.HERE))
MODULES = (update, step, nvme, ranks, drive, llmc)


def all_pairs(quick):
    return [pair for module in MODULES for pair in module.pairs(quick)]


def first_line(path, prefix):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(prefix)), None)
    except OSError:
        return None


def machine(threads):
    """Returns the facts that the figures depend on. Neither the machine's name nor its user's is kept."""
    return {"cpu": first_line("/proc/cpuinfo", "model name"), "cores": len(os.sched_getaffinity(0)), "threads": threads,
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "kernel": platform.release(),
            "architecture": platform.machine()}


def commit():
    said, why = install.attempt(("git", "-C", TOP, "describe", "--always", "--dirty", "--abbrev=12"), install.CHECK_S)
    return said.strip() if why is None else None


def in_turn(pair, round_number):
    """The pair's contenders that are started, each round beginning with another."""
    started = [one for one in pair.contenders if one.taken_from is None]
    first = round_number % len(started)
    return started[first:] + started[:first]


def begun(session, pair):
    """The pair's part of the results, without a run."""
    return {"name": pair.name, "title": pair.title, "loss_tolerance": pair.loss_tolerance,
            "goals": [vars(goal) for goal in pair.goals], "shape": pair.shape and vars(pair.shape), "rounds": session.rounds,
            "machine": machine(session.threads), "versions": session.installed, "commit": commit(),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "contenders": [{"name": one.name, "settings": one.settings, "missing": contender.missing(session, one), "runs": []}
                           for one in pair.contenders]}


def measure_pair(session, pair, result, say, keep):
    """Adds the runs of all rounds to the pair's result, and calls `keep` after each. A contender that fails once is left out
    of what follows."""
    found = {entry["name"]: entry for entry in result["contenders"]}
    try:
        prepare(session, pair)
    except (OSError, RuntimeError) as error:
        for entry in found.values():
            entry["missing"] = entry["missing"] or f"nothing to train: {error}"
    for number in range(session.rounds):
        for one in in_turn(pair, number):
            if found[one.name]["missing"] is None:
                measure_once(session, pair, one, number, found)
                keep()
                say(f"{pair.name}, round {number + 1} of {session.rounds}, {one.name}: {outcome_of(found[one.name])}")


def outcome_of(entry):
    if entry["missing"]:
        return entry["missing"]
    return ", ".join(summary.text_of(name, value) for name, value in entry["runs"][-1]["figures"].items())


def measure_once(session, pair, one, number, found):
    try:
        fields = contender.run(session, one)
    except contender.Failed as error:
        found[one.name]["missing"] = f"failed in round {number + 1}: {error}"
        return
    for other in pair.contenders:
        if other.taken_from == one.name and found[other.name]["missing"] is None:
            taken = fields.pop(other.name, None)
            if taken is None:
                found[other.name]["missing"] = f"{one.name}'s run did not measure it"
            else:
                found[other.name]["runs"].append({"round": number, **taken})
    found[one.name]["runs"].append({"round": number, **fields})


def prepare(session, pair):
    """Writes the pair's tokens and initial weights."""
    if pair.shape is None:
        return
    model, kind = pair.shape.model, "u16" if inputs.token_type(pair.shape.model) == "H" else "u32"
    session.tokens = inputs.write_tokens(session.path(f"{model}-{pair.shape.tokens}.{kind}.bin"), model, pair.shape.tokens,
                                         session.data)
    session.weights = inputs.write_weights(session.program, model, session.folder, session.tokens)


def merged(path, pairs):
    """The pairs, with those of an earlier file that this run did not measure, in the order in which all are measured."""
    measured = {pair["name"] for pair in pairs}
    kept = [pair for pair in read_pairs(path) if pair["name"] not in measured]
    order = [pair.name for module in MODULES for quick in (False, True) for pair in module.pairs(quick)]
    return {"pairs": sorted(kept + pairs, key=lambda pair: order.index(pair["name"]) if pair["name"] in order else len(order))}


def read_pairs(path):
    """The pairs of an earlier file; none where there is no file. Other content is an error, because it would be lost."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)["pairs"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        sys.exit(f"peers: {path} holds no results of ./dev peers ({error!r}); name another file by --json")


def write(path, results):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def chosen(options):
    pairs = all_pairs(options.quick)
    names = options.only.split(",") if options.only else [pair.name for pair in pairs]
    unknown = [name for name in names if not any(pair.name.startswith(name) for pair in pairs)]
    if unknown:
        sys.exit(f"peers: there is no pair {unknown[0]}; the pairs are {', '.join(pair.name for pair in pairs)}")
    return [pair for pair in pairs if any(pair.name.startswith(name) for name in names)]


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev peers", description=__doc__.split("\n\nusage")[0])
    parser.add_argument("--only", metavar="PAIR,...", help="these pairs, or those whose names begin so; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in each of which all contenders run in turn (default: 5)")
    parser.add_argument("--quick", action="store_true", help="tiny models: shows that everything works, and no speed")
    parser.add_argument("--json", default="peers.json", metavar="FILE",
                        help="file of the results; pairs that it has already and that are not measured stay (default: peers.json)")
    parser.add_argument("--folder", default=".", metavar="DIR", help="folder on the drive to measure (default: the current one)")
    parser.add_argument("--peers", default=install.default_folder(), metavar="DIR", help="folder of the installed peers")
    parser.add_argument("--no-install", action="store_true", help="install nothing: measure the peers that are there")
    parser.add_argument("--install-only", action="store_true", help="install, tell what is there, and measure nothing")
    parser.add_argument("--llm-c", metavar="PROGRAM", help="a built train_gpt2 of llm.c")
    parser.add_argument("--data", metavar="FILE", help="train on the bytes of this file; default: tokens made from a seed")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every contender")
    parser.add_argument("--program", default=os.path.join(TOP, "build", "spillway"))
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    return options


def installed(options, say):
    say("looking at the peers" if options.no_install else f"installing the peers into {options.peers}, which may take minutes")
    found = install.outcomes(options.peers, not options.no_install)
    found["llm.c"] = (install.outcome("named by --llm-c") if options.llm_c else
                      install.outcome(missing="give --llm-c PROGRAM, a built train_gpt2"))
    for name, outcome in found.items():
        say(f"  {name}: {outcome['missing'] or outcome['version']}")
    return found


def main():
    def say(text):
        print(text, file=sys.stderr, flush=True)

    options = parse_arguments()
    pairs = chosen(options)
    read_pairs(options.json)  # before minutes are spent on what could not be kept
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the contender under way ends too, and the folder goes
    found = installed(options, say)
    if options.install_only:
        return 0
    folder = tempfile.mkdtemp(prefix="spillway-peers-", dir=options.folder)
    session = contender.Session(os.path.abspath(options.program), os.path.abspath(options.peers), os.path.abspath(folder),
                                options.threads, options.rounds, options.llm_c, options.data, installed=found)
    results = []

    def keep():
        write(options.json, merged(options.json, results))

    try:
        for pair in pairs:
            results.append(begun(session, pair))
            measure_pair(session, pair, results[-1], say, keep)
            keep()
            print("\n".join(summary.lines_of(results[-1])), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
