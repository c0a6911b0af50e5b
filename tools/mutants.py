#!/usr/bin/env python3
"""Forces every condition of an `if` (those of SW_TRY too) in io/store, run/folder and run/stores to true and to false, one at a time,
and tells which of the tests notice.

The build has all mutants in it (tests/equipment/mutants.h), so it is made once. A first run of each test records which conditions it
reaches, with which values: a condition is forced against what a test has seen, in those tests alone, the quickest first.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build-mutants")
FOLDERS = ("io/store/", "run/folder/", "run/stores/")
# Programs whose whole subject is what these folders do, and which need no more than this machine.
TESTS = ("io:store", "io:layout", "run:rank_stores", "run:departure", "job:room", "fuzz:superblock", "fuzz:run", "fuzz:start",
         "e2e:crash", "e2e:cli_run_folder", "e2e:cli_run_model", "e2e:cli_removed", "e2e:cli_bad_stores", "e2e:cli_verify",
         "e2e:cli_durability", "e2e:cli_interrupted", "e2e:cli_runs", "e2e:cli_freeze", "e2e:cli_export", "e2e:cli_power",
         "e2e:cli_ranks_elastic", "e2e:cli_small_disks", "e2e:cli_optimizer_state")
SLOWER = 3  # a mutant's test may take so many times its seconds, and STILL_S more
STILL_S = 10
WRITE_S = 60
OUTCOMES = ("caught", "survived", "not reached", "late")
LOOK_S = 0.02  # between two looks at what a test has printed


def described(what):
    """Returns a part of the description that Meson made of the build."""
    with open(os.path.join(BUILD, "meson-info", f"intro-{what}.json"), encoding="utf-8") as file:
        return json.load(file)


def declared():
    for test in described("tests"):
        label = f"{test['suite'][0].split(':')[-1]}:{test['name']}"
        if label.startswith(TESTS):
            yield label, test


def build(tests):
    """Builds what the tests need."""
    files = {target["id"]: target["filename"] for target in described("targets")}
    needed = {path for test in tests for target in test["depends"] for path in files[target]}
    subprocess.run(["ninja", "-C", BUILD, "spillway", *sorted(os.path.relpath(path, BUILD) for path in needed)], check=True,
                   stdout=subprocess.DEVNULL)


def passes(output, ended):
    """Reads what a test prints, until it has ended or a case has failed. Returns whether none has."""
    unfinished = ""
    while True:
        last = ended()
        unfinished += output.read()
        lines = unfinished.split("\n")
        unfinished = lines.pop()
        if any(line.startswith(("not ok", "Bail out")) for line in lines):
            return False
        if last:
            return True
        time.sleep(LOOK_S)


def run(test, more, limit_s):
    """Returns "passed", "failed", or "late" where the test had to be ended after limit_s. It has a folder of its own, and ends with all
    that it started when its first case has failed."""
    with tempfile.TemporaryDirectory(prefix="spillway-mutant-", ignore_cleanup_errors=True) as folder:
        env = os.environ | test["env"] | {"PYTHONUNBUFFERED": "1"} | more
        path, work = os.path.join(folder, "output"), os.path.join(folder, "work")
        os.mkdir(work)
        with open(path, "wb") as output:
            program = subprocess.Popen(test["cmd"], cwd=test["workdir"] or work, env=env, stdout=output, stderr=subprocess.DEVNULL,
                                       stdin=subprocess.DEVNULL, start_new_session=True)
        limit = time.monotonic() + limit_s
        with open(path, encoding="utf-8", errors="replace") as output:
            right = passes(output, lambda: program.poll() is not None or time.monotonic() > limit)
        status = program.poll()
        try:
            os.killpg(program.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        program.wait()
        if right and status is None:
            return "late"
        return "passed" if right and status == 0 else "failed"


def record(tests, most_s):
    """Returns the seconds of each test that passes within most_s, and the values that conditions had in it."""
    seconds, seen = {}, {}
    for label, test in tests:
        with tempfile.NamedTemporaryFile("r", prefix="spillway-seen-") as notes:
            os.chmod(notes.name, 0o666)  # some tests go on as another user
            begun = time.monotonic()
            if run(test, {"SW_MUTANTS_SEEN": notes.name}, most_s) != "passed":
                print(f"{label} is left out: it fails or takes more than {most_s} s", flush=True)
                continue
            seconds[label] = time.monotonic() - begun
            seen[label] = {line.strip() for line in notes if line.startswith(FOLDERS)}
        print(f"{label}: {seconds[label]:.1f} s, {len(seen[label])} values", flush=True)
    return seconds, seen


def conditions():
    """Every line of the folders that has an `if` or a SW_TRY."""
    for folder in FOLDERS:
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith(".c"):
                with open(os.path.join(ROOT, folder, name), encoding="utf-8") as file:
                    for number, line in enumerate(file, 1):
                        if " if (" in line or "SW_TRY(" in line:
                            yield f"{folder}{name}:{number}"


def text_of(condition):
    path, number = condition.split(":")
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read().splitlines()[int(number) - 1].strip()


def known(path, chosen):
    """Reads which mutants an earlier run caught. A condition that has moved since is found by its file and its text, where these tell it
    apart. The others are judged again, as this run may have more tests."""
    def named(condition, text):
        return condition.split(":")[0], text

    times = collections.Counter(named(condition, text_of(condition)) for condition in conditions())
    with open(path, encoding="utf-8") as file:
        results = {named(result["condition"], result["text"]) + (result["forced"],): result for result in json.load(file)["mutants"]}
    found = {}
    for condition in chosen:
        name = named(condition, text_of(condition))
        for forced in (True, False):
            result = results.get(name + (forced,), {"outcome": "late"})
            if times[name] == 1 and result["outcome"] == "caught":
                found[condition, forced] = result | {"condition": condition}
    return found


def judge(condition, forced, tests, seconds, seen):
    """Returns what became of a mutant, and the test that noticed it. "Late" is a test that took too long: the mutant may hang, or the
    machine was busy."""
    against = f"{condition}:{1 - forced}"
    reached = sorted((label for label in seen if against in seen[label]), key=seconds.get)
    for label in reached:
        ended = run(tests[label], {"SW_MUTANT": f"{condition}:{forced}"}, SLOWER * seconds[label] + STILL_S)
        if ended != "passed":
            return {"failed": "caught", "late": "late"}[ended], label
    return ("survived" if reached else "not reached"), None


def write(path, seed, conditions_count, results):
    counts = collections.Counter(result["outcome"] for result in results)
    if path:
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump({"seed": seed, "conditions": conditions_count, "counts": counts, "mutants": results}, file, indent=1)
            file.write("\n")
        os.replace(path + ".new", path)
    return counts


def options_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="conditions whose path begins so, such as io/store/commit.c")
    parser.add_argument("--tests", default="", help="only those whose AREA:NAME begins so, such as io:")
    parser.add_argument("--share", type=float, default=1.0, help="of the conditions, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=60.0, help="tests that take longer are left out")
    parser.add_argument("--minutes", type=float, default=0, help="begin no mutant after so many; 0: no limit")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants that are judged at a time")
    parser.add_argument("--json", metavar="FILE", help="write all results, and every minute those that are there")
    parser.add_argument("--go-on", metavar="FILE", help="judge only what this file of --json has not as caught")
    return parser.parse_args()


def main():
    options = options_of()
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    tests = {label: test for label, test in declared() if label.startswith(options.tests)}
    build(tests.values())
    seconds, seen = record(tests.items(), options.most_seconds)
    chosen = [c for c in dict.fromkeys(conditions()) if c.startswith(options.only)]
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[:round(options.share * len(chosen))]
    judged = known(options.go_on, chosen) if options.go_on else {}
    results = list(judged.values())

    def result_of(mutant):
        condition, forced = mutant
        if time.monotonic() >= end:
            return None
        outcome, by = judge(condition, forced, tests, seconds, seen)
        if outcome != "caught":
            print(f"{condition} always {bool(forced)}: {outcome}: {text_of(condition)}", flush=True)
        return {"condition": condition, "text": text_of(condition), "forced": bool(forced), "outcome": outcome, "by": by}

    written = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        mutants = [(condition, forced) for condition in chosen for forced in (1, 0) if (condition, bool(forced)) not in judged]
        for result in pool.map(result_of, mutants):
            if result is not None:
                results.append(result)
            if time.monotonic() > written + WRITE_S:
                write(options.json, options.seed, len(chosen), results)
                written = time.monotonic()
    counts = write(options.json, options.seed, len(chosen), results)
    print(f"{len(results)} mutants: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
