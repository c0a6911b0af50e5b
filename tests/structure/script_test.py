"""Runs checks as test cases: a check is a function that returns what is wrong, as a list of sentences."""

import sys


def run(*checks):
    print(f"1..{len(checks)}")
    failed = 0
    for number, check in enumerate(checks, 1):
        problems = check()
        failed += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {number} - {check.__name__}")
        for problem in problems:
            print(f"# {problem}")
    sys.exit(1 if failed else 0)
