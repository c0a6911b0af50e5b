"""kill -9 of a training loop of spillway.AdamW at random instants, from before the store is made to the last step. Each resume is at
or behind the last step that was committed, with the bits that this step has in a loop that was left alone. In some steps some gradients are missing. Needs PyTorch.

usage: torch_kills.py LIBRARY [--kills N]    as a test few kills are made"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch_support as support  # noqa: E402
from torch_support import needs, script_test, spillway  # noqa: E402

torch = support.torch
SEED, STEPS_BEYOND, SECONDS = 11, 3, 0.5
OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("library")
OPTIONS.add_argument("--kills", type=int, default=9)
CHOSEN = OPTIONS.parse_args()
STORES = {"on the drive": {"host_memory": "6MiB", "clip": 1.0},
          "on the drive, overlapping": {"host_memory": "6MiB", "clip": 1.0, "overlap": True},
          "in host memory, 8 bits": {"host_memory": "64MiB", "state": "8bit", "save_every": 3}}


def bits_of(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def train(folder, options, say, last_step):
    """The loop of a user. Tells the step that it begins at and each committed one, with the bits of the weights."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(33, 257), torch.nn.Tanh(), torch.nn.Linear(257, 65))
    options = {**options, "overlap": model if options.get("overlap") else None}
    optimizer = spillway.AdamW(model.named_parameters(), lr=1e-3, store=folder, threads=1, allow_buffered=True, **options)
    say(f"from {optimizer.last_step} {bits_of(model)}")

    def tell():
        optimizer.wait()
        if optimizer.last_result is not None and optimizer.last_result.committed:
            say(f"committed {optimizer.last_step} {bits_of(model)}")
    while optimizer.last_step < last_step:
        source = torch.Generator().manual_seed(optimizer.last_step)
        optimizer.zero_grad()
        model(torch.randn(8, 33, generator=source)).pow(2).mean().backward()
        for number, parameter in enumerate(model.parameters()):
            if (7 * optimizer.last_step + number) % 5 == 0:
                parameter.grad = None
        tell()
        optimizer.step()
    tell()
    optimizer.close()


def start(folder, options, last_step):
    """Runs the loop in a process of its own, which has nothing of the optimizers of others. Returns its id and what it says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            train(folder, options, lambda line: os.write(writing, f"{line}\n".encode()), last_step)
            os._exit(0)
        except BaseException as error:
            os.write(writing, f"failed: {error}\n".encode())
            os._exit(1)
    os.close(writing)
    return child, open(reading, encoding="utf-8")


def end(child, said, first=""):
    """Waits for the process; returns its exit status and its whole lines as words, with those that were read before."""
    with said:
        lines = [line.split() for line in (first + said.read()).splitlines(keepends=True) if line.endswith("\n")]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lines


class Watcher:
    """Compares the lines of the processes on one store."""

    def __init__(self):
        self.committed, self.bits, self.problems, self.found = 0, {}, [], {"before its store": 0, "while it trained": 0}

    def take(self, status, lines):
        if status not in (0, -signal.SIGKILL):
            self.problems.append(f"a process ended with {status}: {lines[-1:]}")
        self.found["while it trained" if lines else "before its store"] += 1
        for word, step, bits in (line for line in lines if len(line) == 3):
            if word == "from" and int(step) < self.committed:
                self.problems.append(f"step {self.committed} was committed, and the next process began at {step}")
            if self.bits.setdefault(int(step), bits) != bits:
                self.problems.append(f"step {step} has other bits than in an earlier process")
            self.committed = max(self.committed, int(step))


def kill_and_compare(folder, options, kills, source):
    watcher = Watcher()
    for number in range(kills):
        child, said = start(folder, options, 10**9)
        # Most kills meet a loop that trains.
        first = said.readline() if number % 3 > 0 else ""
        time.sleep(source.random() * SECONDS)
        os.kill(child, signal.SIGKILL)
        watcher.take(*end(child, said, first))
    last_step = watcher.committed + STEPS_BEYOND
    watcher.take(*end(*start(folder, options, last_step)))
    shutil.rmtree(folder)
    status, lines = end(*start(folder, {**options, "overlap": False}, last_step))
    alone = {int(step): bits for _, step, bits in (line for line in lines if len(line) == 3)}
    compared = sorted(set(alone) & set(watcher.bits))
    wrong = [step for step in compared if alone[step] != watcher.bits[step]]
    watcher.problems += [f"steps {wrong[:5]} have other bits than in a loop that was left alone"] if wrong else []
    if status != 0 or max(compared) < last_step - options.get("save_every", 1) or len(compared) < 2:
        watcher.problems.append(f"the loop that was left alone ended with {status} at {compared[-1:]}")
    return watcher, compared


@needs("torch")
def killed_loops_resume_with_the_same_bits(folder):
    source, problems = random.Random(SEED), []
    for name, options in STORES.items():
        kills = CHOSEN.kills // len(STORES)
        watcher, compared = kill_and_compare(folder, options, kills, source)
        shutil.rmtree(folder)
        print(f"# {name}: {kills} kills, {watcher.found['before its store']} of them before the store was open; {compared[-1]} steps, "
              f"{len(compared)} compared", flush=True)
        problems += [f"{name}: {problem}" for problem in watcher.problems]
        if watcher.found["while it trained"] < 2:
            problems.append(f"{name}: no kill met a process that trained")
    return problems


script_test.run(killed_loops_resume_with_the_same_bits)
