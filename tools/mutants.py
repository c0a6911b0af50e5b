#!/usr/bin/env python3
"""Forces every condition of an `if` (those of SW_TRY too) in io/store, run/folder and run/stores to true and to false, one at a time,
and tells which of the tests notice.

The build has all mutants in it (tests/equipment/mutants.h), so it is made once. A first run of each case of a test records which
conditions the case reaches, with which values: a condition is forced against what a case has seen, in those cases alone. All mutants
get some seconds each before any gets more. Quick cases come first, and where these were not enough, those that are most about the
file: that reach what few cases reach there, or caught other mutants of it. A mutant that survived is "open" where some cases that
reach it were not tried.

A condition that only a failing call reaches is judged by tests/e2e/faults (--faults, tools/fault_mutants.py).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import fault_mutants
import run_tests

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build-mutants")
WORDS = (" if (", "SW_TRY(", "SW_TRY_GOTO(")
FOLDERS = ("io/store/", "run/folder/", "run/stores/")
# Programs whose whole subject is what these folders do, and which need no more than this machine.
TESTS = ("io:store", "io:layout", "run:rank_stores", "run:departure", "job:room", "fuzz:superblock", "fuzz:run", "fuzz:start",
         "e2e:crash", "e2e:cli_run_folder", "e2e:cli_run_model", "e2e:cli_removed", "e2e:cli_bad_stores", "e2e:cli_verify",
         "e2e:cli_durability", "e2e:cli_interrupted", "e2e:cli_runs", "e2e:cli_freeze", "e2e:cli_export", "e2e:cli_power",
         "e2e:cli_ranks_elastic", "e2e:cli_small_disks", "e2e:cli_optimizer_state", "e2e:cli_loading", "e2e:cli_room",
         "e2e:cli_early_stop", "e2e:cli_generate", "e2e:cli_tensor", "e2e:cli_ranks_tensor", "run:run_json", "run:store_reader",
         "e2e:cli_adapters", "e2e:cli_base", "e2e:cli_dpo", "e2e:cli_lora", "e2e:cli_stored", "e2e:cli_bad_models", "run:frozen")
SLOWER = 3  # a mutant's case may take so many times its seconds, and STILL_S more
STILL_S = 10
FIRST_S = 4  # the seconds that each mutant gets first; MORE times as many in each further round
MORE = 4
WRITE_S = 60
OUTCOMES = ("caught", "survived", "open", "not reached", "late")
FAULTS = "e2e:faults"
LOOK_S = 0.02  # between two looks at what a test has printed


def described(what):
    """Returns a part of the description that Meson made of the build."""
    with open(os.path.join(BUILD, "meson-info", f"intro-{what}.json"), encoding="utf-8") as file:
        return json.load(file)


def declared(names, among=TESTS):
    """Returns the tests among these that have cases whose labels begin so, by label."""
    labels = {f"{test['suite'][0].split(':')[-1]}:{test['name']}": test for test in described("tests")}
    return {label: test for label, test in labels.items()
            if label.startswith(among) and (label.startswith(names) or any(name.startswith(f"{label}:") for name in names))}


def build(tests):
    """Builds what the tests need."""
    files = {target["id"]: target["filename"] for target in described("targets")}
    needed = {path for test in tests for target in test["depends"] for path in files[target]}
    subprocess.run(["ninja", "-C", BUILD, "spillway", *sorted(os.path.relpath(path, BUILD) for path in needed)], check=True,
                   stdout=subprocess.DEVNULL)


def case_names(label, test):
    """Returns the names of a test's cases, from its source; none where the whole test is one."""
    area, name = label.split(":")
    scripts = [argument for argument in test["cmd"] if argument.endswith(".py")]
    path = scripts[0] if scripts else os.path.join(ROOT, "tests", area, name + ".c")
    if area == "fuzz" or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if not scripts:
        return re.findall(r"^static void (\w+)\(void \*\*\w+\) \{", text, re.MULTILINE)
    listed = re.findall(r"^script_test\.run\(([\w, \n]*)\)", text, re.MULTILINE)
    return re.findall(r"\w+", listed[-1]) if listed else []


def cases_of(tests):
    """Returns each case's test and the name of the case, or None where the whole test is one, by label."""
    cases = {}
    for label, test in tests:
        names = case_names(label, test)
        cases |= {f"{label}:{name}": (test, name) for name in names} if names else {label: (test, None)}
    return cases


def passes(output, ended):
    """Reads what a test prints, until it has ended or a case has failed. Returns whether a case came and none has failed."""
    unfinished, came = "", False
    while True:
        last = ended()
        unfinished += output.read()
        lines = unfinished.split("\n")
        unfinished = lines.pop()
        came = came or any(line.startswith("ok") for line in lines)
        if any(line.startswith(("not ok", "Bail out")) for line in lines):
            return False
        if last:
            return came
        time.sleep(LOOK_S)


def end_all_in(folder):
    """Ends every process that was started with this folder for its files, whatever session it is in."""
    wanted = f"TMPDIR={folder}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            pass


def run(case, more, limit_s):
    """Returns "passed", "failed", or "late" where the case had to be ended after limit_s. It has a folder of its own, and ends with
    all that it started as soon as it has failed."""
    test, name = case
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=BUILD, ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # some tests go on as another user
        env = {**run_tests.ENVIRONMENT, **os.environ, **test["env"], "PYTHONUNBUFFERED": "1", "TMPDIR": folder, **more}
        if name:
            env["SW_TEST_FILTER"] = name
        path, work = os.path.join(folder, "output"), os.path.join(folder, "work")
        os.mkdir(work)
        with open(path, "wb") as output:
            program = subprocess.Popen(test["cmd"], cwd=test["workdir"] or work, env=env, stdout=output, stderr=subprocess.DEVNULL,
                                       stdin=subprocess.DEVNULL, start_new_session=True)
        limit = time.monotonic() + limit_s
        with open(path, encoding="utf-8", errors="replace") as output:
            right = passes(output, lambda: program.poll() is not None or time.monotonic() > limit)
        status = program.poll()
        end_all_in(folder)
        program.wait()
        if status is None and time.monotonic() > limit:
            return "late"
        return "passed" if right and status == 0 else "failed"


def record(cases, most_s, notes_path):
    """Returns for each case that passes within most_s its seconds, and the values that conditions had in it. They stay in the file
    notes_path, for the next time, which takes them from there."""
    seen = {}
    if notes_path and os.path.exists(notes_path):
        with open(notes_path, encoding="utf-8") as file:
            seen = json.load(file)
    for label in [label for label in cases if label not in seen]:
        with tempfile.NamedTemporaryFile("r", prefix="spillway-seen-") as notes:
            os.chmod(notes.name, 0o666)  # some tests go on as another user
            begun = time.monotonic()
            ended = run(cases[label], {"SW_MUTANTS_SEEN": notes.name}, most_s)
            values = sorted({line.strip() for line in notes if line.startswith(FOLDERS)})
            seen[label] = {"ended": ended, "seconds": time.monotonic() - begun, "values": values}
        print(f"{label}: {ended}, {seen[label]['seconds']:.1f} s, {len(values)} values", flush=True)
        if notes_path:
            write_json(notes_path, seen)
    return {label: seen[label] | {"values": set(seen[label]["values"])} for label in cases if seen[label]["ended"] == "passed"}


def conditions():
    """Every line of the folders that has an `if`, a SW_TRY or a SW_TRY_GOTO."""
    for folder in FOLDERS:
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith(".c"):
                with open(os.path.join(ROOT, folder, name), encoding="utf-8") as file:
                    for number, line in enumerate(file, 1):
                        if any(word in line for word in WORDS):
                            yield f"{folder}{name}:{number}"


def texts():
    """Returns the line of each condition."""
    found = {}
    for condition in conditions():
        path, number = condition.split(":")
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            found[condition] = file.read().splitlines()[int(number) - 1].strip()
    return found


def numbered(lines):
    """Returns for each condition how many with its text are before it in its file."""
    times, found = collections.Counter(), {}
    for condition, text in lines.items():
        found[condition] = times[condition.split(":")[0], text]
        times[condition.split(":")[0], text] += 1
    return found


class Mutant:
    """A condition that is forced, and what became of it. "Late" is a case that took too long, though not without the mutant."""

    def __init__(self, condition, text, forced, nth):
        self.condition, self.text, self.forced = condition, text, forced
        self.nth = nth  # of those with this text in the file
        self.outcome, self.by, self.tried, self.reached = None, None, set(), 0

    def told(self):
        outcome = "open" if self.outcome == "survived" and len(self.tried) < self.reached else self.outcome
        return {"condition": self.condition, "text": self.text, "nth": self.nth, "forced": self.forced, "outcome": outcome, "by": self.by,
                "tried": len(self.tried), "reached": self.reached}

    def name(self):
        """Identifies the mutant where lines have moved."""
        return self.path(), self.text, self.nth, self.forced

    def path(self):
        return self.condition.split(":")[0]

    def is_open(self):
        return self.outcome not in ("caught", "late") and (self.outcome is None or len(self.tried) < self.reached)


class Judge:
    def __init__(self, cases, seen, first):
        self.cases, self.seen = cases, seen
        self.first = first  # by a mutant's path and text, the cases that caught such a one before
        self.caught = collections.Counter()
        # How much a case is about a file: each value of the file counts the more, the fewer cases have it.
        self.about = collections.Counter()
        times = collections.Counter(value for case in seen.values() for value in case["values"])
        for label, case in seen.items():
            for value in case["values"]:
                self.about[value.split(":")[0], label] += 1 / times[value]

    def judge(self, mutant, budget_s):
        """Runs cases that reach the mutant until one fails or the seconds are used."""
        against = f"{mutant.condition}:{int(not mutant.forced)}"
        reached = [label for label in self.seen if against in self.seen[label]["values"]]
        is_new = mutant.outcome is None
        mutant.reached = len(reached)
        if reached or mutant.outcome is None:
            mutant.outcome = "survived" if reached else "not reached"
        end = time.monotonic() + budget_s

        def cost(label):
            about = self.about[mutant.path(), label] * (1 + self.caught[mutant.path(), label])
            return (self.seen[label]["seconds"] if is_new else 1) / about

        likely = self.first[mutant.path(), mutant.text] if is_new else ()
        for label in sorted(set(reached) - mutant.tried, key=lambda label: (label not in likely, cost(label))):
            if time.monotonic() >= end:
                return
            mutant.tried.add(label)
            limit_s = SLOWER * self.seen[label]["seconds"] + STILL_S
            ended = run(self.cases[label], {"SW_MUTANT": f"{mutant.condition}:{int(mutant.forced)}"}, limit_s)
            if ended == "late" and run(self.cases[label], {}, limit_s) != "passed":
                continue  # the machine is busy
            if ended != "passed":
                mutant.outcome, mutant.by = {"failed": "caught", "late": "late"}[ended], label
                self.caught[mutant.path(), label] += 1
                return


def read_results(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)["mutants"]


def take_known(path, mutants):
    """Takes over what an earlier run found. A condition that has moved since is found by its file, its text, and its place among
    those of this text. All but those that were caught are judged again, as this run may have more tests."""
    results = {(result["condition"].split(":")[0], result["text"], result["nth"], result["forced"]): result for result in read_results(path)}
    for mutant in mutants:
        result = results.get(mutant.name())
        if result and result["outcome"] in ("caught", "survived", "open"):
            mutant.outcome = "caught" if result["outcome"] == "caught" else "survived"
            mutant.by = result["by"]


def write_json(path, value):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def write(path, seed, mutants):
    judged = [mutant.told() for mutant in mutants if mutant.outcome]
    counts = collections.Counter(mutant["outcome"] for mutant in judged)
    if path:
        write_json(path, {"seed": seed, "conditions": len(mutants) // 2, "counts": counts, "mutants": judged})
    return counts


def options_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="conditions whose path begins so, such as io/store/open.c")
    parser.add_argument("--tests", default="", help="only cases whose AREA:NAME:CASE begins with one of these, separated by commas")
    parser.add_argument("--share", type=float, default=1.0, help="of the conditions, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=60.0, help="cases that take longer are left out")
    parser.add_argument("--seen", metavar="FILE", help="keep here what cases reach, or take it from here while no source has changed")
    parser.add_argument("--minutes", type=float, default=0, help="begin nothing after so many; 0: no limit")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants that are judged at a time")
    parser.add_argument("--json", metavar="FILE", help="write all results, and every minute those that are there")
    parser.add_argument("--go-on", metavar="FILE", help="judge only what this file of --json does not have as caught")
    parser.add_argument("--first", metavar="FILE", help="try first the cases that caught such a mutant in this file of --json")
    parser.add_argument("--faults", action="store_true", help="judge by failing calls, too, what no case catches")
    return parser.parse_args()


def main():
    options = options_of()
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    names = tuple(options.tests.split(","))
    tests = declared(names)
    faults = declared(FAULTS, FAULTS)[FAULTS]
    build([*tests.values(), faults])
    lines = texts()
    chosen = [condition for condition in lines if condition.startswith(options.only)]
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[:round(options.share * len(chosen))]
    places = numbered(lines)
    mutants = [Mutant(condition, lines[condition], forced, places[condition]) for condition in chosen for forced in (True, False)]
    if options.go_on:
        take_known(options.go_on, mutants)
    cases = {label: case for label, case in cases_of(tests.items()).items() if label.startswith(names)}
    first = collections.defaultdict(set)
    for result in read_results(options.first) if options.first else ():
        first[result["condition"].split(":")[0], result["text"]].add(result["by"])
    judge = Judge(cases, record(cases, options.most_seconds, options.seen), first)
    budget_s = FIRST_S

    def judged(mutant):
        if time.monotonic() < end:
            judge.judge(mutant, budget_s)
        if mutant.outcome not in (None, "caught", "not reached"):
            print(f"{mutant.condition} always {mutant.forced}: {mutant.outcome} ({len(mutant.tried)} of {mutant.reached} cases): {mutant.text}",
                  flush=True)

    # Mutants that an earlier run has not judged come first.
    left = sorted((mutant for mutant in mutants if mutant.outcome != "caught"), key=lambda mutant: mutant.outcome is not None)
    written = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        while left and time.monotonic() < end:
            for _ in pool.map(judged, left):
                if time.monotonic() > written + WRITE_S:
                    write(options.json, options.seed, mutants)
                    written = time.monotonic()
            print(f"each mutant that is not caught had {budget_s} s more", flush=True)
            left, budget_s = [mutant for mutant in left if mutant.is_open()], MORE * budget_s
    if options.faults:
        left = [mutant for mutant in mutants if mutant.outcome not in ("caught", "late")]
        fault_mutants.judge(faults, BUILD, left, lambda: write(options.json, options.seed, mutants))
    counts = write(options.json, options.seed, mutants)
    print(f"{sum(counts.values())} mutants: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
