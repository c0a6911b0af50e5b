"""Runs one contender as a process of its own, and measures from outside what its whole tree of processes takes: seconds,
the most memory, and bytes written to drives."""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass

SAMPLE_S = 0.1
FIRST_SAMPLE_S = 0.005  # the time to the second sample, which doubles up to SAMPLE_S: short processes have a peak too


@dataclass
class Ended:
    """How a process ended. `peak_bytes`: the largest sum of resident memory over the tree, sampled ten times a second, or
    the kernel's own peak of one of its processes if that is more. `written_bytes`: those that the kernel sent to drives for
    the tree, counted when it has ended."""
    code: int
    out: str
    err: str
    wall_s: float
    peak_bytes: int
    written_bytes: int


def fields_of(path):
    """The lines `name: number …` of a file of /proc, as numbers by name; empty where the process has gone."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            pairs = [line.split(":", 1) for line in file if ":" in line]
    except OSError:
        return {}
    return {name: int(value.split()[0]) for name, value in pairs if value.split() and value.split()[0].isdigit()}


def children_of(pid):
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def resident_bytes(pid):
    """Returns the resident memory of a process with all its descendants, and the largest peak of one of them alone."""
    own = fields_of(f"/proc/{pid}/status")
    below = [resident_bytes(child) for child in children_of(pid)]
    return (1024 * own.get("VmRSS", 0) + sum(resident for resident, _ in below),
            max([1024 * own.get("VmHWM", 0), *(peak for _, peak in below)]))


def written_bytes():
    """Bytes written by this process and by every child that it has waited for."""
    return fields_of("/proc/self/io").get("write_bytes", 0)


class Sampler(threading.Thread):
    """Keeps the largest sum of a tree's resident memory until `stop` is set."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.peak, self.stop = pid, 0, threading.Event()

    def run(self):
        wait_s = FIRST_SAMPLE_S
        while True:
            self.peak = max(self.peak, *resident_bytes(self.pid))
            if self.stop.wait(wait_s):
                return
            wait_s = min(SAMPLE_S, 2 * wait_s)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(command, limit_s, env=None, cwd=None):
    """Runs a command to its end, or kills its group when `limit_s` has passed. Raises OSError where it cannot start."""
    before, begun = written_bytes(), time.monotonic()
    with subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", env=env, cwd=cwd,
                          start_new_session=True) as process:
        sampler = Sampler(process.pid)
        sampler.start()
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end_group(process)
            out, err = process.communicate()
            err += f"\nit took longer than {limit_s} s and was ended"
        except BaseException:
            end_group(process)
            raise
        finally:
            sampler.stop.set()
            sampler.join()
    return Ended(process.returncode, out, err, time.monotonic() - begun, sampler.peak, written_bytes() - before)
