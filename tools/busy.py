#!/usr/bin/env python3
"""Measures how much longer a training step takes beside another program: a loop that keeps one core busy.

  busy.py [--rounds N] [--steps N] [--nice N] [--json FILE] [-- FLAGS OF TRAIN...]

One training runs through phases: alone, beside a loop that is bound to the first core, alone, beside a loop that the
system may move. The steps in which a loop starts or ends are not counted. With C cores a loop leaves C - 1/2 by a
fair share, so a step that loses no more takes C / (C - 1/2) times as long. --nice is the training's own niceness.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
WORKLOAD = ("--model", "gpt2-124m", "--batch-tokens", "1024", "--seq", "512", "--micro-batch", "2")
PHASES = ("alone", "bound to a core", "alone", "not bound")
DATA_BYTES, VOCAB = 1 << 20, 256
WARM_UP, POLL_S, LIMIT_S = 2, 0.02, 120


def parse(words):
    own, train = (words[:words.index("--")], words[words.index("--") + 1:]) if "--" in words else (words, WORKLOAD)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times through all phases")
    parser.add_argument("--steps", type=int, default=4, help="steps of a phase that count")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--json")
    return parser.parse_args(own), list(train)


def start_loop(phase):
    """Returns a running loop, or None where the training is alone."""
    if phase == "alone":
        return None
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
    if phase == "bound to a core":
        os.sched_setaffinity(loop.pid, {min(os.sched_getaffinity(0))})
    return loop


def stop(child):
    if child is not None and child.poll() is None:
        child.terminate()
        child.wait()


def steps_of(log):
    """Returns the seconds of all steps that the log has whole lines of."""
    if not os.path.exists(log):
        return []
    with open(log, encoding="utf-8") as file:
        lines = [line for line in file if line.endswith("\n")]
    return [line["seconds"] for line in map(json.loads, lines) if "loss" in line]


def wait_for(training, log, count):
    """Waits until the training has made so many steps, and returns the seconds of all."""
    made, limit = 0, time.monotonic() + LIMIT_S
    while len(steps := steps_of(log)) < count:
        if len(steps) > made:
            made, limit = len(steps), time.monotonic() + LIMIT_S
        if training.poll() is not None:
            sys.exit(f"busy.py: the training ended with status {training.returncode} after {made} steps")
        if time.monotonic() > limit:
            sys.exit(f"busy.py: step {made + 1} took more than {LIMIT_S} s")
        time.sleep(POLL_S)
    return steps


def run_phases(given, training, log):
    """Returns a list of seconds for each kind of phase."""
    found = {phase: [] for phase in PHASES}
    wait_for(training, log, WARM_UP)
    for phase in PHASES * given.rounds:
        loop = start_loop(phase)
        try:
            began = len(steps_of(log))
            steps = wait_for(training, log, began + 1 + given.steps)
        finally:
            stop(loop)
        found[phase] += steps[began + 1:began + 1 + given.steps]
    return found


def measure(given, flags):
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data.bin")
        with open(data, "wb") as file:
            file.write(b"".join((i * 7919 % VOCAB).to_bytes(2, "little") for i in range(DATA_BYTES // 2)))
        run = os.path.join(folder, "run")
        command = [PROGRAM, "train", "--init", "--data", data, "--run", run, "--steps", "100000", "--place", "optimizer=device",
                   "--durability", "none", "--quiet", *flags]
        training = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: os.nice(given.nice))
        try:
            return run_phases(given, training, os.path.join(run, "log.jsonl"))
        finally:
            stop(training)


def main():
    given, flags = parse(sys.argv[1:])
    found = measure(given, flags)
    alone = statistics.median(found["alone"])
    print(f"{'the loop':16} {'a step':>8} {'least':>8} {'most':>8} {'to alone':>9}  steps")
    for phase, seconds in found.items():
        median = statistics.median(seconds)
        print(f"{phase:16} {median:7.2f}s {min(seconds):7.2f}s {max(seconds):7.2f}s {median / alone:9.2f}  {len(seconds)}")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"cores": os.cpu_count(), "nice": given.nice, "flags": flags, "seconds": found}, file, indent=1)


if __name__ == "__main__":
    main()
