"""Reads the Test Anything Protocol as cmocka (1.1.5 and later) and our script tests print it.

cmocka prints a plan for each group of tests, then a line for each test as it ends, numbered from 1 in each group. What
a test itself prints may stand before its line, even on the same line. A skipped test is "not ok N # SKIP" in cmocka 1.1
and "ok N # SKIP" elsewhere; the reason is in the directive or in what the test printed before it. A failed group
fixture is "not ok 0".
"""

import re
from dataclasses import dataclass, field

SKIP_REASONS = ("no GPU", "no root or loop device", "no memory cgroup", "no blkio cgroup", "no fio", "no MPI",
                "no network namespaces", "no mount namespaces", "one core", "no nvcc", "no built libraries", "no chromium",
                "no git", "no strace", "no torch", "no transformers",
                "no accelerate", "no lightning")

PLAN = re.compile(r"^1\.\.(\d+)(?:\s*#\s*skip\b(.*))?$", re.IGNORECASE)
POINT = re.compile(r"(not ok|ok) (\d+)(?: - | (?=#))(.*)$")
DIRECTIVE = re.compile(r"^(.*?)#\s*skip\b:?\s*(.*)$", re.IGNORECASE)
GROUP_END = re.compile(r"^# (not )?ok - ")
REASON = re.compile(r"\b(" + "|".join(SKIP_REASONS) + r")\b")


@dataclass
class Case:
    name: str
    outcome: str  # "passed", "failed" or "skipped"
    detail: str = ""  # why it was skipped, or why it counts as failed
    output: list = field(default_factory=list)


class Reader:
    """Takes the lines of one program; `cases` is what ran, and `finish` adds what should have run and did not."""

    def __init__(self):
        self.cases = []
        self.planned = None
        self.seen = 0
        self.pending = []

    def note(self, line):
        """A line that belongs to the output of the running test but is not protocol."""
        self.pending.append(line)

    def line(self, line):
        plan = PLAN.match(line)
        if plan:
            self._close_group()
            self.planned = int(plan[1])
            self.seen = 0
            if self.planned == 0 and plan[2] is not None:
                self._skipped("all tests", plan[2])
            return
        if GROUP_END.match(line):
            return
        point = POINT.search(line)
        if not point or self.planned is None or int(point[2]) not in (0, self.seen + 1):
            self.note(line)
            return
        if point.start() > 0:
            self.note(line[: point.start()])
        self._point(point[1] == "ok", int(point[2]), point[3].strip())

    def finish(self, ended):
        """`ended` says how the program ended where that was not as it should be, and is empty otherwise."""
        if self.planned is None:
            self._add("start", "failed", ended or "printed no test plan")
            return
        missing = self._close_group(ended)
        if not self.cases:
            self._add("start", "failed", ended or "ran no test: a filter may name none")
            return
        # cmocka exits with the number of failed tests; another bad end (a leak found at exit) is a failure of its own.
        if ended and not missing and not any(case.outcome == "failed" for case in self.cases):
            self._add("exit", "failed", ended)
        # The text that cmocka prints about a failed test follows the test's line.
        if self.pending and self.cases:
            self.cases[-1].output += self.pending
        self.pending = []

    def _point(self, ok, number, text):
        if number > 0:
            self.seen += 1
        directive = DIRECTIVE.match(text)
        if directive:
            before, after = directive[1].strip(" -"), directive[2]
            self._skipped(before or after, after)
        else:
            self._add(text, "passed" if ok else "failed")

    def _skipped(self, name, directive):
        reason = REASON.search("\n".join([directive, *self.pending]))
        if reason:
            self._add(name, "skipped", reason[1])
        else:
            self._add(name, "failed", "skipped without one of the reasons: " + ", ".join(SKIP_REASONS))

    def _add(self, name, outcome, detail=""):
        # The lines after a failed test and before the next are its error message, and may be the next one's output.
        if self.cases and self.cases[-1].outcome == "failed":
            self.cases[-1].output += self.pending
        self.cases.append(Case(name, outcome, detail, self.pending))
        self.pending = []

    def _close_group(self, ended=""):
        missing = 0 if self.planned is None else self.planned - self.seen
        for number in range(self.seen + 1, self.seen + missing + 1):
            self._add(f"test {number} of its group", "failed", f"did not end: {ended}" if ended else "did not run")
        return missing > 0
