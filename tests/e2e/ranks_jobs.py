"""Jobs of several ranks of the program."""

import os
import shlex
import shutil
import signal
import subprocess
import time

from program import SEQ, command, limits, log_lines, script_test

LAUNCHER = ("mpirun",)
# 24 sequences a step, for one to four ranks.
SHAPE = ("--seq", SEQ, "--batch-tokens", 24 * SEQ, "--chunk-grains", 2, "--threads", 1, "--precision", "fp32")
TOLERANCE = 1e-6


def mpirun(*parts, launcher=LAUNCHER):
    """The command that starts one: parts are (ranks, command, folder to work in) each."""
    if shutil.which("mpirun") is None or os.environ.get("SW_HAVE_MPI") != "1":
        raise script_test.Skip("no MPI")
    words = [*launcher, "--allow-run-as-root", "--oversubscribe", "-n", str(sum(ranks for ranks, *_ in parts))]
    if len(parts) == 1 and len(parts[0]) == 2:
        return [*words, *parts[0][1]]
    # One shell becomes each of the programs: mpirun of Open MPI 5.0.7 crashes when one of several that it started fails.
    cases, first = [], 0
    for ranks, arguments, *where in parts:
        numbers = "|".join(str(first + i) for i in range(ranks))
        cases.append(f"{numbers}) cd {shlex.quote(where[0] if where else os.getcwd())} && exec {shlex.join(map(str, arguments))} ;;")
        first += ranks
    return [*words, "sh", "-c", f"case $OMPI_COMM_WORLD_RANK in {' '.join(cases)} esac"]


def threads(ranks, arguments):
    """The command that does what `arguments`, a command of the program, do by ranks that are threads of one process."""
    return command(*arguments[1:], ranks=ranks)


class Job:
    """A job that trains, with the processes of its ranks."""

    def __init__(self, log, ranks, arguments, launcher=LAUNCHER):
        self.log = open(log, "w+", encoding="utf-8")
        self.arguments = [word.encode() for word in arguments]
        self.process = subprocess.Popen(mpirun((ranks, arguments), launcher=launcher), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.log, start_new_session=True)
        self.ranks = ranks

    def said(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def wait_for(self, words):
        limit = limits.Limit(root=self.process.pid)
        while words not in self.said() and self.process.poll() is None and not limit.over():
            time.sleep(0.02)
        if words not in self.said():
            raise RuntimeError(f"the job never said '{words}': {self.said()[-1500:]}")
        return self

    def processes(self):
        """By rank, as the launcher has told them in their environment."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{name}/environ", "rb") as file:
                    told = dict(word.split(b"=", 1) for word in file.read().split(b"\0") if b"=" in word)
            except OSError:
                continue
            if words[:len(self.arguments)] == self.arguments and b"OMPI_COMM_WORLD_RANK" in told:
                found[int(told[b"OMPI_COMM_WORLD_RANK"])] = int(name)
        return found

    def end(self):
        """The status, or None where the job had to be ended."""
        try:
            code = limits.wait(self.process)
        except subprocess.TimeoutExpired:
            code = None
            for process in [*self.processes().values(), self.process.pid]:
                os.kill(process, signal.SIGKILL)
            self.process.wait()
        self.log.close()
        return code


def far(what, run, other, counts=lambda line: True, tolerance=TOLERANCE):
    """Where the losses of two runs (paths), of steps and of evaluations that count, differ by more than the order of
    additions explains."""
    problems = []
    lines = [[line for line in log_lines(of) if ("loss" in line or "val_loss" in line) and counts(line)] for of in (run, other)]
    for one, two in zip(*lines, strict=True):
        for name in ("loss", "grad_norm", "val_loss"):
            if name in one and abs(one[name] - two[name]) > tolerance * abs(two[name]):
                problems.append(f"{what}: step {one['step']}: {name} {one[name]!r} and not {two[name]!r}")
        if one.get("val_tokens") != two.get("val_tokens"):
            problems.append(f"{what}: evaluated {one.get('val_tokens')} tokens and not {two.get('val_tokens')}")
    return problems
