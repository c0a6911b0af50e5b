"""Starts the test program tests/core/ranks.c as a job of several ranks and looks at how it ends."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "structure"))
import script_test  # noqa: E402
import limits  # noqa: E402

PROGRAM = os.environ.get("SW_RANKS_PROGRAM")
SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 32)))
ROUNDS = int(os.environ.get("SW_TEST_ROUNDS", 2))
# A silent or still rank is found after the first; where none may be found, however busy the cores are, the second counts.
TIMEOUT_MS, PATIENT_MS = int(2000 * script_test.TIME_FACTOR), 60000
# The end of a verdict about a rank that died, with what it was last seen to do; it may not have begun anything.
DEATH = r"has died( in '\w+ \d+')?(; it has not entered '\w+ \d+', where rank \d waits)?(; its lane \w+ was in '\w+ \d+')?$"
VERDICT = re.compile(r"^verdict: (.*)$", re.MULTILINE)


THREADS = "threads"


def command(ranks, *arguments, program=PROGRAM, launcher=("mpirun",)):
    """launcher: mpirun, what it is started by and how it is to reach its hosts; or THREADS of one process, where one rank is alone."""
    if launcher == THREADS:
        return [program, *((THREADS, str(ranks)) if ranks > 1 else ()), *map(str, arguments)]
    if shutil.which("mpirun") is None or os.environ.get("SW_HAVE_MPI") != "1":
        raise script_test.Skip("no MPI")
    return [*launcher, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), program, *map(str, arguments)]


def run(ranks, *arguments, **options):
    """Status, or None where it hung, and what was printed."""
    job = Job(ranks, *arguments, **options)
    _, code, err = job.end()
    return code, job.printed(), err


def passed(ranks, *arguments, **options):
    code, out, err = run(ranks, *arguments, **options)
    if code == 0 and out.split() == ["ok"]:
        return []
    return [f"{ranks} ranks, {' '.join(map(str, arguments))}: status {code}, {out!r}, {err[-1500:]}"]


class Job:
    """A job that runs, with what it prints in files: what a launcher leaves behind could hold pipes open for ever."""

    def __init__(self, ranks, *arguments, **options):
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            self.process = subprocess.Popen(command(ranks, *arguments, **options), stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, start_new_session=True)
            self.out, self.err = os.dup(out.fileno()), os.dup(err.fileno())
        self.ranks = ranks
        self.processes = {}

    def printed(self):
        return read_all(self.out)

    def begin(self):
        """Waits until every rank has said its process."""
        limit = limits.Limit(root=self.process.pid)
        while len(self.processes) < self.ranks and self.process.poll() is None and not limit.over():
            time.sleep(0.01)
            said = re.findall(r"rank (\d+) is process (\d+)\n", self.printed())
            self.processes = {int(rank): int(process) for rank, process in said}
        if len(self.processes) < self.ranks:
            raise RuntimeError(f"the job has not begun: {self.end(wait=False)}")
        return self

    def kill(self):
        """The launcher with all that it started here, and the ranks, wherever they are."""
        os.killpg(self.process.pid, signal.SIGKILL)
        for process in self.processes.values():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def end(self, wait=True):
        """Seconds until the job had ended by itself, its status (None: it has not, or was not awaited) and its standard error."""
        started = time.monotonic()
        try:
            code = limits.wait(self.process) if wait else self.process.wait(0.1)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
            code = None
        return time.monotonic() - started, code, read_all(self.err)


def read_all(file):
    return os.pread(file, 1 << 20, 0).decode(errors="replace")


def judged(what, ended, expected):
    """The job has ended by itself, and said why once."""
    seconds, code, err = ended
    said = VERDICT.findall(err)
    if code not in (None, 0) and len(said) == 1 and re.search(expected, said[0]):
        return []
    return [f"{what}: status {code} after {seconds:.1f} s, expected /{expected}/, seed {SEED}: {err[-1500:]}"]
