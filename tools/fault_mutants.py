"""Judges mutants (tools/mutants.py) by tests/e2e/faults: conditions that only a failing call reaches.

Each command of that test runs once and writes who called each call that may fail. Calls that are made on the lines of a
mutant's condition, or in those before it, which may have made what it asks for, then fail without the mutant. Such a
fault counts if the condition has the value that the mutant denies, and if the checks of the test find nothing: the
command ends as it should, and what was begun goes on. With the mutant, these checks judge it.
"""

import collections
import importlib
import os
import re
import struct
import subprocess
import sys
import tempfile

MOST_FAULTS = 4  # of each command that a mutant is tried with
MOST_LOOKS = 16  # faults of each command that are looked at for a mutant
LINES_BEFORE = 8  # a condition may ask for what was made so many lines before
# A mutant hangs that takes more CPU seconds than this, or uses next to none for so long.
LIMIT_S, STILL_S = 20, 40
ELSEWHERE = "tokenize"  # commands whose names begin so have nothing to do with a run
CHAIN = struct.Struct("26Q")  # struct chain of faults.c


def imported(test, folder):
    """Returns tests/e2e/faults.py as a module, in the environment that the test has."""
    script = next(argument for argument in test["cmd"] if argument.endswith(".py"))
    os.environ.update(test["env"], TMPDIR=folder)
    sys.path.insert(0, os.path.dirname(script))
    faults = importlib.import_module("faults")
    faults.program.limits.LIMIT_S, faults.program.limits.STILL_S = LIMIT_S, STILL_S
    # A note is an open and a write, which count as calls: each run writes the same ones, so that numbers stay.
    faults.CLEAN["SW_MUTANTS_SEEN"] = os.devnull
    return faults


def lines_of(program, addresses):
    """Returns the lines, as "FILE:LINE", of each address and of what is inlined there."""
    asked = "".join(f"{address - 1:#x}\n" for address in addresses)
    told = subprocess.run(["addr2line", "-a", "-i", "-e", program], input=asked, capture_output=True, text=True, check=True).stdout
    found, lines = {}, []
    for line in told.split("\n"):
        if line.startswith("0x"):
            lines = found[int(line, 16) + 1] = []
        else:
            lines.append(re.sub(r"^.*/\.\./| \(discriminator .*", "", line))
    return found


def places_of(faults, command):
    """Returns each place of a call that may fail: its kind, its first number, and the lines of all its callers. The notes of the
    build with mutants are no such calls."""
    chains = {}
    with tempfile.NamedTemporaryFile("rb", prefix="spillway-chains-") as file:
        faults.CLEAN["SW_FAULT_CHAINS"] = file.name
        command.end_with(None)
        del faults.CLEAN["SW_FAULT_CHAINS"]
        for kind, number, *addresses in CHAIN.iter_unpack(file.read()):
            chains.setdefault((list(faults.KINDS)[kind], *filter(None, addresses)), number)
    lines = lines_of(faults.program.PROGRAM, {address for _, *chain in chains for address in chain})
    places = [(kind, number, [line for address in chain for line in lines[address]]) for (kind, *chain), number in chains.items()]
    return [place for place in places if not any("mutants.h:" in line for line in place[2])]


def last_line(root, path, first):
    """Returns the line on which the parentheses of a condition end."""
    depth = 0
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if number >= first:
                depth += line.count("(") - line.count(")")
                if depth <= 0:
                    return number
    return first


def candidates(places, path, first, last):
    """Returns the calls by which a condition may get another value, kind and number: the likeliest of each kind, then the
    next of each."""
    found = collections.defaultdict(list)
    for kind, number, lines in places:
        here = [int(line.rsplit(":", 1)[1]) for line in lines if line.startswith(path + ":") and line.rsplit(":", 1)[1].isdigit()]
        far = [0 if first <= line <= last else first - line for line in here if first - LINES_BEFORE <= line <= last]
        if far:
            found[kind].append((min(far), number))
    ranked = [(turn, far, kind, number) for kind, calls in found.items() for turn, (far, number) in enumerate(sorted(calls))]
    return [(kind, number) for _, _, kind, number in sorted(ranked)]


def fails(command, fault):
    """Tells whether the checks of the test find something wrong, or a mutant does not even let them be made."""
    try:
        return bool(command.fail(fault)[1])
    except Exception as error:  # noqa: BLE001: whatever a mutant does to the test
        print(f"# {fault}: {error!r}"[:300], flush=True)
        return True


def looked(faults, command, fault):
    """Returns whether the checks find something wrong, and the values that conditions have meanwhile."""
    with tempfile.NamedTemporaryFile("r", prefix="spillway-seen-") as notes:
        faults.CLEAN["SW_MUTANTS_SEEN"] = notes.name
        wrong = fails(command, fault)
        faults.CLEAN["SW_MUTANTS_SEEN"] = os.devnull
        return wrong, {line.strip() for line in notes}


class Looks:
    """The faults of a command, and the values that conditions have with each, without a mutant."""

    def __init__(self, faults, command):
        self.faults, self.command, self.found = faults, command, {}

    def values(self, fault):
        """There are none where the checks find something wrong."""
        if fault not in self.found:
            wrong, values = looked(self.faults, self.command, fault)
            self.found[fault] = set() if wrong else values
        return self.found[fault]


def judge_by(faults, command, mutants, root, done=lambda: None):
    """Judges mutants by one command. done() is called after each. Returns how many of them a fault reached."""
    places, looks, reached = places_of(faults, command), Looks(faults, command), 0
    for mutant in mutants:
        done()
        path, first = mutant.path(), int(mutant.condition.split(":")[1])
        against = f"{mutant.condition}:{int(not mutant.forced)}"
        likely = candidates(places, path, first, last_line(root, path, first))[:MOST_LOOKS]
        giving = [fault for fault in ((kind, number, faults.KINDS[kind][0]) for kind, number in likely) if against in looks.values(fault)]
        tried = len(mutant.tried)
        for fault in giving[:MOST_FAULTS]:
            faults.CLEAN["SW_MUTANT"] = f"{mutant.condition}:{int(mutant.forced)}"
            wrong, values = looked(faults, command, fault)
            del faults.CLEAN["SW_MUTANT"]
            if against not in values:  # threads have shifted the number of the call
                continue
            mutant.tried.add((command.name, fault))
            mutant.reached += 1
            mutant.outcome = "survived" if mutant.outcome in (None, "not reached") else mutant.outcome
            if wrong:
                mutant.outcome, mutant.by = "caught", f"e2e:faults:{command.name} {':'.join(map(str, fault))}"
                break
        reached += len(mutant.tried) > tried
    return reached


def judge(test, folder, mutants, write):
    """Judges mutants by each command of the test in turn. write() keeps what is known so far."""
    with tempfile.TemporaryDirectory(prefix="mutant-faults-", dir=folder, ignore_cleanup_errors=True) as work:
        faults = imported(test, work)
        for name in (name for name in faults.COMMANDS if not name.startswith(ELSEWHERE)):
            left = [mutant for mutant in mutants if mutant.outcome != "caught"]
            reached = judge_by(faults, faults.made(name), left, os.path.dirname(folder))
            print(f"{name}: reached {reached} of {len(left)}, caught {sum(mutant.outcome == 'caught' for mutant in left)}", flush=True)
            write()
