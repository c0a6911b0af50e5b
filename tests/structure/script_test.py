"""Runs checks as test cases: a check is a function that returns what is wrong, as a list of sentences."""

import os
import sys

# The runner multiplies its own limits by this factor: a sanitizer slows down what a check waits for, too.
TIME_FACTOR = float(os.environ.get("SW_TEST_TIME_FACTOR", 1))


class Skip(Exception):
    """A check that cannot be made here raises this, with one of the reasons that the test runner accepts."""


def run(*checks):
    print(f"1..{len(checks)}", flush=True)
    failed = 0
    for number, check in enumerate(checks, 1):
        try:
            problems, skipped = check(), ""
        except Skip as reason:
            problems, skipped = [], f" # SKIP {reason}"
        failed += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {number} - {check.__name__}{skipped}")
        for problem in problems:
            print(f"# {problem}")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)
