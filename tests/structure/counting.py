"""The test runner's own counting: what programs print and how they end, against what must be counted."""

import argparse
import contextlib
import io
import os
import subprocess
import sys

import script_test
import sources

sys.path.insert(0, os.path.join(sources.ROOT, "tools"))
import isas  # noqa: E402
import run_tests  # noqa: E402
import tap  # noqa: E402
import test_budgets  # noqa: E402


def counted(lines, ended=""):
    reader = tap.Reader()
    for line in lines:
        reader.line(line)
    reader.finish(ended)
    return tuple(sum(case.outcome == what for case in reader.cases) for what in ("passed", "failed", "skipped"))


def wrong(table):
    found = []
    for what, expected, lines, ended in table:
        got = counted(lines, ended)
        if got != expected:
            found.append(f"{what}: counted {got} instead of {expected}")
    return found


def whole_programs():
    return wrong([
        ("all pass", (2, 0, 0), ["1..2", "ok 1 - a", "ok 2 - b", "# ok - group"], ""),
        ("one fails", (1, 1, 0), ["1..2", "not ok 1 - a", "# 1 != 2", "ok 2 - b"], "exit status 1"),
        ("a failure with status 0", (1, 1, 0), ["1..2", "not ok 1 - a", "ok 2 - b"], ""),
        ("two groups", (3, 0, 0), ["1..2", "ok 1 - a", "ok 2 - b", "# ok - one", "1..1", "ok 1 - c"], ""),
        ("output before the point", (1, 0, 0), ["1..1", "no newline ok 1 - a"], ""),
        ("output like a point", (2, 0, 0), ["1..2", "ok 1 - a", "ok 77 - not a test", "ok 2 - b"], ""),
    ])


def programs_that_end_badly():
    return wrong([
        ("a crash", (1, 2, 0), ["1..3", "ok 1 - a"], "killed by SIGSEGV"),
        ("an early exit", (1, 1, 0), ["1..2", "ok 1 - a"], ""),
        ("a bad status after all passed", (1, 1, 0), ["1..1", "ok 1 - a"], "exit status 23"),
        ("no output", (0, 1, 0), [], ""),
        ("output that is no protocol", (0, 1, 0), ["ok 1 - a"], ""),
        ("a filter that names no test", (0, 1, 0), ["1..0", "# ok - group"], ""),
        ("one that names those of a second group", (1, 0, 0), ["1..0", "# ok - one", "1..1", "ok 1 - a"], ""),
        ("a failed group set-up", (0, 3, 0), ["1..2", "not ok 0 - g [  FAILED  ] GROUP SETUP"], "exit status 1"),
        ("a failed group tear-down", (1, 1, 0), ["1..1", "ok 1 - a", "not ok 0 - g [  FAILED  ] GROUP TEARDOWN"], ""),
        ("a first group cut short", (2, 1, 0), ["1..2", "ok 1 - a", "1..1", "ok 1 - b"], ""),
    ])


def skips():
    return wrong([
        ("cmocka 1.1.5", (0, 0, 1), ["1..1", "no fio", "not ok 1 # SKIP a"], ""),
        ("later cmocka", (0, 0, 1), ["1..1", "skip: no memory cgroup", "ok 1 # SKIP a"], ""),
        ("a reason in the directive", (0, 0, 1), ["1..1", "ok 1 - a # SKIP no GPU"], ""),
        ("a whole program", (0, 0, 1), ["1..0 # SKIP no root or loop device"], ""),
        ("another reason", (0, 1, 0), ["1..1", "no patience", "not ok 1 # SKIP a"], ""),
        ("no reason", (0, 1, 0), ["1..1", "not ok 1 # SKIP a"], ""),
        ("another test's reason", (1, 1, 0), ["1..2", "no fio", "ok 1 - a", "not ok 2 # SKIP b"], ""),
    ])


def real_programs():
    """Crashes, hangs and missing programs as the operating system reports them."""
    def ran(script, cpu_s=20.0, still_s=60.0):
        test = {"cmd": ["/bin/sh", "-c", script], "workdir": None}
        return [(case.outcome, case.detail) for case in run_tests.run_program(test, dict(os.environ), set(), cpu_s, still_s)[0]]

    table = [
        ("a crash", "echo 1..2; echo ok 1 - a; kill -SEGV $$",
         [("passed", ""), ("failed", "did not end: killed by SIGSEGV")]),
        ("a hang", "echo 1..1; sleep 100 & wait", [("failed", "did not end: hung: used next to no CPU for 2 s")]),
        ("a loop", "echo 1..1; sh -c 'while :; do :; done'", [("failed", "did not end: used more than 1 s of CPU")]),
        ("one that waits", "echo 1..1; sleep 3; echo ok 1 - a", [("passed", "")]),
        ("errors on standard error", "echo ok 1 - b >&2; echo 1..1; echo ok 1 - a", [("passed", "")]),
    ]
    found = []
    for what, script, expected in table:
        got = ran(script, 1.0 if what != "a hang" else 20.0, 2.0 if what == "a hang" else 60.0)
        if got != expected:
            found.append(f"{what}: {got} instead of {expected}")
    absent, _ = run_tests.run_program({"cmd": ["/does/not/exist"], "workdir": None}, dict(os.environ), set(), 20.0)
    if [case.outcome for case in absent] != ["failed"]:
        found.append("a program that is not there did not count as failed")
    return found


def cpu_seconds():
    """Processor seconds are those of a program and of the processes that it waited for; one that sleeps takes next to none."""
    busy = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.3: pass'"
    found = []
    for command, least in ((f"{busy}; {busy}", 0.6), ("sleep 0.7", 0.0)):
        test = {"cmd": ["/bin/sh", "-c", command], "workdir": None}
        _, seconds = run_tests.run_program(test, dict(os.environ), set(), 60.0)
        if not least <= seconds < 10.0 * least + 0.5:
            found.append(f"{command} took {seconds} s of CPU instead of {least}")
    return found


def budgets():
    """Every test has a budget of CPU seconds, which a second instruction set may use again, and none fails above it."""
    def told(*costs):
        results = [run_tests.Result(label, [], 0.0, seconds) for label, seconds in costs]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            run_tests.report_cpu(results)
        return out.getvalue()

    kept, test_budgets.BUDGETS = test_budgets.BUDGETS, {"e2e/long": 20}
    try:
        table = [
            ((("e2e/long", 20.0), ("core/a", 5.0)), "25 s of CPU in all; above their budget (tools/test_budgets.py): none\n"),
            ((("e2e/long (avx2)", 21.0), ("core/a", 5.5), ("core/b", 30.0)),
             "56 s of CPU in all; above their budget (tools/test_budgets.py): 3\n    core/b: 30.0 s of 5 s\n"
             "    e2e/long (avx2): 21.0 s of 20 s\n    core/a: 5.5 s of 5 s\n"),
        ]
        return [f"{costs}: {told(*costs)}" for costs, wanted in table if told(*costs) != wanted]
    finally:
        test_budgets.BUDGETS = kept


def instruction_sets():
    """The best one by the flags of a processor, and wrong ones, which are refused before anything runs."""
    avx2, avx512 = set(isas.FLAGS["avx2"]), set(isas.FLAGS["avx512"])
    found = [f"{sorted(flags)}: {isas.best(flags)} instead of {wanted}" for flags, wanted in (
        ({"sse2"}, "baseline"), (avx2, "avx2"), (avx512, "baseline"), (avx2 | avx512, "avx512"), (avx2 - {"fma"}, "baseline"),
        (avx2 | avx512 | {"avx512_bf16"}, "avx512_bf16")) if isas.best(flags) != wanted]
    above = isas.NAMES[isas.NAMES.index(isas.best()) + 1:]
    for flag, names in (("--isa", ["avx9", *above]), ("--also-isa", ["avx9"])):
        for name in names:
            done = subprocess.run([sys.executable, "-B", os.path.join(sources.ROOT, "tools", "run_tests.py"), "build", flag, name,
                                   "--check-only"], capture_output=True, text=True, check=False)
            if done.returncode != 2 or done.stdout or f"{name}" not in done.stderr:
                found.append(f"{flag} {name}: {done}")
    return found


def second_runs():
    """The tests of arithmetic run once more by a lower instruction set, in the same count and with a cache of their own.
    Those of kernels have no other device then than the one that obeys the variable."""
    def runs(best, isa, also):
        options = argparse.Namespace(build="build", names=["kernels/", "structure/", "model/head", "e2e/"], isa=isa, also_isa=also)
        tests = [{"name": name, "cmd": [f"/x/tests/{name}"], "env": {"XDG_CACHE_HOME": "/c"}, "priority": 0, "timeout": 60}
                 for name in ("kernels/kernels_gemm", "kernels/kernels_gemm_gpu", "structure/counting", "model/head")]
        for test in tests:
            test["name"] = test["name"].split("/")[1]
        kept = run_tests.declared_tests, isas.best
        run_tests.declared_tests, isas.best = lambda build: tests, lambda: best
        try:
            return [(run_tests.label_of(test), test["env"].get(isas.VARIABLE), test["env"]["XDG_CACHE_HOME"],
                     test["env"].get("SW_TEST_DEVICE"))
                    for test in run_tests.chosen_tests(options)]
        finally:
            run_tests.declared_tests, isas.best = kept

    names = ["kernels/kernels_gemm", "kernels/kernels_gemm_gpu", "structure/counting", "model/head"]
    plain = [(name, None, "/c", None) for name in names]
    again = [(f"{name} (avx2)", "avx2", "/c-avx2", None) for name in names]
    brief = (*again[0][:3], "cpu")
    table = [("avx512", None, None, plain), ("avx512", None, "avx2", plain + [brief, again[3]]), ("avx2", None, "avx2", plain),
             ("baseline", None, "avx2", plain), ("avx512", "avx2", None, again), ("avx512", "avx2", "avx2", again)]
    return [f"{row[:3]}: {runs(*row[:3])}" for row in table if runs(*row[:3]) != row[3]]


os.environ.pop(isas.VARIABLE, None)
script_test.run(whole_programs, programs_that_end_badly, skips, real_programs, cpu_seconds, budgets, instruction_sets,
                second_runs)
