"""Time limits that a busy machine cannot break: they count the CPU seconds of a process and of all that it started, and
end besides only what hangs, which is what uses next to no CPU for many minutes."""

import contextlib
import os
import subprocess
import threading
import time

# The runner multiplies its own limits by this factor: a sanitizer slows down what a test waits for, too.
TIME_FACTOR = float(os.environ.get("SW_TEST_TIME_FACTOR", 1))
LIMIT_S = 480 * TIME_FACTOR
# A tree of processes that uses less than STILL_CPU_S in STILL_S hangs. Even one of a hundred programs on a core gets three seconds of it.
STILL_S, STILL_CPU_S = 300, 1
# The seconds between two looks at the processes, each of which takes ten milliseconds and more on a busy machine.
LOOK_S = 3
TICKS = os.sysconf("SC_CLK_TCK")


def processes():
    """Returns the parent, the session, the CPU seconds and those of waited-for children of each process, by its number."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                words = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        times = [int(word) / TICKS for word in words[11:15]]
        found[int(name)] = (int(words[1]), int(words[3]), times[0] + times[1], times[2] + times[3])
    return found


def cpu_seconds(root):
    """Returns the CPU seconds of a process' descendants, living and waited for, and of its session if it leads one. The
    process itself counts unless it is this one, whose waiting is no progress."""
    found, below = processes(), {}
    for number, (parent, session, _, _) in found.items():
        below.setdefault(parent, []).append(number)
        if session == root:
            below.setdefault(root, []).append(number)
    members, new = set(), [root]
    while new:
        number = new.pop()
        if number not in members:
            members.add(number)
            new += below.get(number, [])
    return sum((0 if number == os.getpid() else found[number][2]) + found[number][3] for number in members if number in found)


class Limit:
    """A limit that begins now, of the CPU seconds of process `root` with all that it started; by default, of what this
    process starts."""

    def __init__(self, cpu_s=None, root=None, still_s=None):
        self.cpu_s, self.still_s, self.root = cpu_s or LIMIT_S, still_s or STILL_S, root or os.getpid()
        self.total, self.used, self.marked = cpu_seconds(self.root), 0.0, 0.0
        self.looked = self.marked_at = time.monotonic()

    def over(self):
        """Tells whether the limit has been reached. Cheap enough to be asked in a loop."""
        now = time.monotonic()
        if now - self.looked >= LOOK_S:
            self.looked, before, self.total = now, self.total, cpu_seconds(self.root)
            # Whom another process than its parent waited for leaves the sum.
            self.used += max(0.0, self.total - before)
            if self.used - self.marked >= STILL_CPU_S:
                self.marked, self.marked_at = self.used, now
        return self.used > self.cpu_s or now - self.marked_at > self.still_s

    def why(self):
        """Says how the limit was reached."""
        if self.used > self.cpu_s:
            return f"used more than {self.cpu_s:g} s of CPU"
        return f"hung: used next to no CPU for {self.still_s:g} s"


def feed(pipe, data):
    """Writes to a process, which may end before it has read all, and closes its input."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError), pipe:
        pipe.write(data)


def communicate(process, data=None, limit=None):
    """As the method of the process. Kills it and raises TimeoutExpired where the limit is reached. A thread writes the
    input: Python's own method loses what is left of it where it is called again after a timeout."""
    if process.stdin is not None and data:
        threading.Thread(target=feed, args=(process.stdin, data), daemon=True).start()
        process.stdin = None
    while True:
        try:
            return process.communicate(timeout=LOOK_S)
        except subprocess.TimeoutExpired:
            limit = limit or Limit(root=process.pid)
            if limit.over():
                process.kill()
                process.wait()
                raise


def wait(process, limit=None):
    """As the method of the process. Raises TimeoutExpired where the limit is reached, and leaves the process."""
    while True:
        try:
            return process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            limit = limit or Limit(root=process.pid)
            if limit.over():
                raise


def run(command, *, input=None, capture_output=False, check=False, **options):  # noqa: A002
    """As subprocess.run, with a limit of CPU seconds."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with subprocess.Popen(command, **options) as process:
        out, err = communicate(process, input)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
