"""kill -9 of a program that trains by the library, at random instants: it resumes at the last committed step, and ends with
the weights of one that was left alone."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "structure"))
import script_test  # noqa: E402

PROGRAM, LAYERS, PROCESSES = sys.argv[1:]
STEPS, KILLS, SEED = 60, 24, 7


def start(program, folder, memory_mib):
    return subprocess.Popen([program, os.path.join(folder, "store"), str(STEPS), str(memory_mib), os.path.join(folder, "weights")],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def weights_of(folder):
    with open(os.path.join(folder, "weights"), "rb") as file:
        return file.read()


def step_of(line):
    """The number of a line `step N ...` or `from step N ...`."""
    return int(line.split("step ")[1].split()[0])


def kill_at_random(program, folder, memory_mib, seconds, source):
    """Starts the program again and again, kills it, and lets the last one end. Returns what was wrong."""
    problems, committed, killed, training = [], 0, 0, 0
    while True:
        process, text = start(program, folder, memory_mib), ""
        if killed < KILLS:
            # However slow the machine is, some kills meet a process that has begun to train.
            while killed % 4 == 3 and not text.startswith("step ") and "\nstep " not in text:
                line = process.stdout.readline()
                text += line
                if not line:
                    break
            time.sleep(source.random() * seconds)
            process.kill()
            killed += 1
        lines = (text + process.stdout.read()).splitlines()
        process.wait()
        training += process.returncode == -9 and any(line.startswith("step ") for line in lines)
        begun = [line for line in lines if line.startswith("from step ")]
        if begun and step_of(begun[0]) < committed:
            problems.append(f"step {committed} was committed, and the next process began at {step_of(begun[0])}")
        committed = max([committed, *(step_of(line) for line in lines if line.endswith(" committed"))])
        if process.returncode == 0:
            return problems + (["no kill met a process that trained"] if training == 0 else [])
        if process.returncode != -9:
            return problems + [f"exit status {process.returncode}: {lines[-1:]}"]


def resumes_at_the_last_committed_step(program, memory_mib, each_step_commits):
    source = random.Random(SEED + memory_mib)
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as killed:
        began = time.monotonic()
        output = start(program, alone, memory_mib).communicate()[0]
        if f"step {STEPS} " not in output:
            return [f"the program did not end: {output[-200:]}"]
        steps = [line for line in output.splitlines() if line.startswith("step ")]
        if all(line.endswith(" committed") for line in steps) != each_step_commits:
            return ["the state does not live where this test wants it"]
        problems = kill_at_random(program, killed, memory_mib, (time.monotonic() - began) / 3, source)
        if not problems and weights_of(alone) != weights_of(killed):
            problems.append("the weights differ from those of a program that was left alone")
        return problems


def in_host_memory():
    return resumes_at_the_last_committed_step(PROGRAM, 64, False)


def on_the_drive():
    return resumes_at_the_last_committed_step(PROGRAM, 8, True)


def while_steps_overlap():
    return resumes_at_the_last_committed_step(LAYERS, 8, True)


def start_processes(folder, processes):
    return subprocess.Popen([PROCESSES, os.path.join(folder, "store"), str(STEPS), str(processes), os.path.join(folder, "weights")],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def processes_whose_number_changes():
    """Each start has another number of processes, so that kills also meet the change of a store from one number to another."""
    problems, committed, killed, source = [], 0, 0, random.Random(SEED)
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as together:
        began = time.monotonic()
        start_processes(alone, 1).communicate()
        seconds = max(0.2, time.monotonic() - began) / 2
        while not problems:
            numbers = (2, 3, 1)[killed % 3]
            job = start_processes(together, numbers)
            if killed < KILLS:
                time.sleep(source.random() * seconds)
                os.killpg(job.pid, signal.SIGKILL)
                killed += 1
            lines = job.communicate()[0].splitlines()
            begun = [line for line in lines if line.startswith("from step ")]
            if begun and step_of(begun[0]) < committed:
                problems.append(f"step {committed} was committed, and the next processes began at {step_of(begun[0])}")
            committed = max([committed, *(step_of(line) for line in lines if line.endswith(" committed"))])
            if job.returncode == 0:
                break
            if job.returncode != -9:
                problems.append(f"exit status {job.returncode} of {numbers} processes: {lines[-3:]}")
        if not problems and weights_of(together) != numbers * weights_of(alone):
            problems.append("the weights differ from those of a process that was left alone")
    return problems


script_test.run(in_host_memory, on_the_drive, while_steps_overlap, processes_whose_number_changes)
