"""`./dev gpu` from one end to the other on the emulated GPU, with tiny shapes: killed at random seconds, after each of
which the results hold all that was printed; told to end; without time; and at last to its end."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import program
from program import script_test

ROOT = os.path.dirname(os.path.dirname(program.HERE))
TOOLS = os.path.join(ROOT, "tools")
sys.path.insert(0, TOOLS)
os.environ["SW_GPU_SCALE"] = "tiny"
from gpu import TINY, lines_of, stages  # noqa: E402

KILLS = int(os.environ.get("SW_TEST_ROUNDS", 2))
SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 30)))
LONGEST_S = 8  # until a kill
MINUTES = 60
SCRATCH = program.scratch_folder()
OUT = os.path.join(SCRATCH, "out")
RESULTS = os.path.join(OUT, "results.json")
SMI = """#!/bin/sh
case "$*" in
*query-gpu=name,driver_version,memory.total\\ *) echo "Emulated GPU, 580.1, 1024 MiB" ;;
*) exit 9 ;;
esac
"""


def environment():
    """A nvidia-smi that names the emulated GPU, and a mark by which whatever is started is known again."""
    folder = os.path.join(SCRATCH, "bin")
    os.makedirs(folder, exist_ok=True)
    os.chmod(program.write(os.path.join(folder, "nvidia-smi"), SMI), 0o700)
    return {**os.environ, "PATH": folder + ":" + os.environ["PATH"], "SW_GPU_FLOW": SCRATCH}


def start(*flags, minutes=MINUTES, out=OUT):
    printed = open(os.path.join(SCRATCH, "printed"), "w+", encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-B", os.path.join(TOOLS, "gpu.py"), "--minutes", str(minutes), "--out", out,
                                *flags], stdout=printed, stderr=subprocess.STDOUT, env=environment())
    return process, printed


def said(printed):
    """Whole lines: the last may be cut."""
    printed.seek(0)
    return [line.rstrip("\n") for line in printed if line.endswith("\n")]


def still_running():
    """Processes with the mark."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = f"SW_GPU_FLOW={SCRATCH}\0".encode() in file.read()
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                marked &= file.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            continue
        found += [pid] if marked else []
    return found


def wrong_ends():
    """Returns programs that hold the GPU, of which an ended flow must leave none."""
    limit = program.limits.Limit()
    while still_running() and not limit.over():
        time.sleep(0.05)
    return [f"process {pid} goes on" for pid in still_running()]


def document():
    return program.read_json(RESULTS) if os.path.exists(RESULTS) else {"device": {}, "date": "", "stages": {}}


def ended(results):
    return {(stage, name) for stage, held in results["stages"].items() for name, result in held["results"].items()
            if not result.get("limit")}


def wrong_results(lines):
    """Each line of a result must be made of what the file holds."""
    try:
        results = document()
    except ValueError as error:
        return [f"{RESULTS} is no JSON: {error}"]
    held = {line for stage, of in results["stages"].items() for name, result in of["results"].items()
            for line in lines_of(stage, name, result)}
    return [f"printed and not kept: {line}" for line in lines if line not in held]


def kills_lose_only_what_was_running():
    draw, problems = random.Random(SEED), []
    for round_number in range(KILLS):
        before = ended(document())
        process, printed = start(*(["--continue"] if os.path.exists(RESULTS) else []))
        time.sleep(draw.uniform(0.1, LONGEST_S))
        process.kill()
        process.wait()
        lines = said(printed)
        problems += wrong_ends() + wrong_results(lines)
        problems += [f"{stage}: {name} has a result and is run again" for stage, name in before
                     if any(line.startswith(f"{stage:<15} {name:<24} ") for line in lines)]
        if problems:
            return [f"kill {round_number + 1} of seed {SEED}", *problems]
    return problems


def a_signal_ends_with_the_table():
    """Signals are taken from the first result on."""
    out = os.path.join(SCRATCH, "signalled")
    process, printed = start(out=out)
    while not said(printed) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    program.limits.wait(process)
    text = "\n".join(said(printed))
    problems = wrong_ends()
    wanted = ("go on with: ./dev gpu --minutes", "--continue", os.path.join(out, "results.json"), "left: ")
    if process.returncode != 1 or not all(word in text for word in wanted):
        problems.append(f"status {process.returncode}: {text[-1500:]}")
    return problems


def without_time_all_is_left():
    process, printed = start("--continue", minutes=0.1)
    program.limits.wait(process)
    text = "\n".join(said(printed))
    wanted = [f"{stage}: {name}" for stage, name in missing()]
    problems = [f"{what} is not listed as left" for what in wanted if what not in text]
    return problems if process.returncode == 1 and "go on with: ./dev gpu --minutes 0.1" in text else [*problems, text[-1500:]]


def missing(alone=False):
    """Returns the stages that have no result yet, with those that take a call of their own or without."""
    have = ended(document())
    return [(stage.name, command.name) for stage in stages(TINY, OUT) for command in stage.commands
            if (stage.name, command.name) not in have and (alone or not stage.alone)]


def what_is_left_is_done():
    process, printed = start("--continue")
    program.limits.wait(process)
    lines = said(printed)
    problems = [line for line in lines if "FAILED" in line or "CUT OFF" in line or line.startswith("left")]
    problems += [f"{stage}: {name} has no result" for stage, name in missing()]
    problems += [] if any(line.startswith("in a call of its own: ./dev gpu") and line.endswith(" step-7b") for line in lines) else lines[-3:]
    alone, printed = start("--continue", "step-7b")
    program.limits.wait(alone)
    problems += [f"{stage}: {name} has no result" for stage, name in missing(alone=True)]
    for name in ("results.json", "log.txt", "step-7b.trace.json.gz"):
        problems += [] if os.path.exists(os.path.join(OUT, name)) else [f"{name} is not in the folder"]
    files = os.listdir(OUT)
    problems += [f"{files} are more files than come back from a lent machine"] if len(files) > 8 else []
    seconds = {name: result.get("seconds") for held in document()["stages"].values() for name, result in held["results"].items()}
    print("# seconds: " + json.dumps(seconds))
    # A finished folder is not begun anew by a slip.
    again = subprocess.run([sys.executable, "-B", os.path.join(TOOLS, "gpu.py"), "--out", OUT], capture_output=True, text=True,
                           check=False, env=environment())
    if again.returncode != 1 or "--continue" not in again.stderr or again.stderr.count("\n") != 1:
        problems.append(f"begun anew: {again.returncode}, {again.stderr!r}")
    return problems if process.returncode == 0 else [*problems, f"status {process.returncode}: {lines[-5:]}"]


script_test.run(kills_lose_only_what_was_running, a_signal_ends_with_the_table, without_time_all_is_left, what_is_left_is_done)
