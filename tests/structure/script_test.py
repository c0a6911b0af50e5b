"""Runs checks as test cases: a check is a function that returns what is wrong, as a list of sentences. SW_TEST_FILTER, a
pattern, names the checks to run."""

import fnmatch
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tools"))
from limits import TIME_FACTOR  # noqa: E402, F401


class Skip(Exception):
    """A check that cannot be made here raises this, with one of the reasons that the test runner accepts."""


# Functions that return what was wrong beside what a check looks at, since they were last asked.
observers = []


def raised(kind, words, function, *arguments, **options):
    """Returns the problems of a call that must raise an exception of a kind, with words."""
    try:
        function(*arguments, **options)
    except kind as error:
        return [] if words in str(error) else [f"{type(error).__name__} says '{error}', without '{words}'"]
    return [f"nothing was raised where {kind.__name__} with '{words}' was expected"]


def run(*checks):
    checks = [check for check in checks if fnmatch.fnmatchcase(check.__name__, os.environ.get("SW_TEST_FILTER", "*"))]
    print(f"1..{len(checks)}", flush=True)
    failed = 0
    for number, check in enumerate(checks, 1):
        try:
            problems, skipped = check(), ""
        except Skip as reason:
            problems, skipped = [], f" # SKIP {reason}"
        problems = [*problems, *(problem for observer in observers for problem in observer())]
        failed += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {number} - {check.__name__}{skipped}")
        for problem in problems:
            print(f"# {problem}")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)
