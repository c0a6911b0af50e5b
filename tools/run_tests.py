#!/usr/bin/env python3
"""Runs the tests that a Meson build folder declares and counts single test cases from what they printed.

The last line is "N passed, N failed, N skipped", of all runs together. A program that crashes, stops early, runs out of time or skips for a
reason that is not in the list counts as failed.
"""

import argparse
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import isas
import limits
import tap
import test_budgets

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHOWN_LINES = 60
OUTCOMES = ("passed", "failed", "skipped")
# The suite of tests whose programs spend most of their time waiting: for drives, launchers, time limits.
WAITING_SUITE = "waits"
# A test that awaits something by tools/limits.py ends what hangs before the runner does, and says more.
STILL_S = 2 * limits.STILL_S
# A test may use this many times the seconds of its declaration, as CPU time: limits only end what never would, and a
# slow processor is no fault.
SLOWEST = 4
# The tests whose results depend on the instruction set: `--also-isa` runs them by a second one, with the environment that
# leaves out the cases in which no arithmetic is new (tests/README.md says what proves the rest). Keys are labels, or an
# area with its slash. What runs on an emulated GPU does not depend on it.
ARITHMETIC = {
    **{"kernels/kernels_" + name: {"SW_TEST_DEVICE": "cpu"} for name in (
        "attention", "described", "device", "fp8", "gemm", "gemm_gaps", "layernorm", "moments", "op_times", "rmsnorm")},
    "parity/models": {"SW_TEST_FILTER": "*_in_????"}, "parity/moments_golden": {}, "model/head": {}, "model/head_tiles": {}, "model/tiles": {}, "run/decoder": {}, "bench/peak": {},
    "e2e/same_bits": {"SW_TEST_FILTER": "placements_*"}, "e2e/tiled": {}, "e2e/documents": {},
    "e2e/freeze": {"SW_TEST_FILTER": "*_have_the_*"},
    "e2e/memory": {"SW_TEST_FILTER": "automatic_*"},
}
NO_ARITHMETIC = ("cuda", "_gpu", "ptx")
# A launcher of ranks looks up this machine's name. Where nobody knows it, as without /etc/hosts, it waits no longer.
# A thread of OpenMP that waits by turning takes the core from the one that it waits for, tenfold where others run.
# MPI looks for networks that no test needs, which takes half of a start, and Open MPI 5 reports what it does not find.
# One library that looks for them reads the names of all functions of the kernel, by every rank.
# No test needs good rates of this machine, which take half a minute of all cores to measure.
# Plugins of hwloc, which look for GPUs and displays, and oneDNN's news for profilers take a third of a program's start. A
# third of a launcher's goes to reading the registers of all PCI devices, which hwloc does for it.
ENVIRONMENT = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_WAIT_POLICY": "passive", "OMPI_MCA_pml": "ob1",
               "OMPI_MCA_btl": "^tcp,ofi,openib,usnic", "SW_MEASURE_SHARE": "0.04", "HWLOC_PLUGINS_PATH": "/nonexistent",
               "HWLOC_COMPONENTS": "-linuxio", "DNNL_JIT_PROFILE": "0"}


@dataclass
class Result:
    label: str
    cases: list
    seconds: float
    cpu_seconds: float

    def count(self, outcome):
        return sum(case.outcome == outcome for case in self.cases)


def declared_tests(build):
    """As Meson lists them. Where a bundle carries the build folder, there is no Meson, and paths begin with @ROOT@."""
    with open(os.path.join(build, "meson-info", "intro-tests.json"), encoding="utf-8") as file:
        return json.loads(file.read().replace("@ROOT@", ROOT))


def label_of(test):
    """area/name for programs and scripts below tests/, so that a whole area can be asked for."""
    suffix = f" ({test['isa']})" if test.get("isa") else ""
    for argument in test["cmd"]:
        _, found, below = argument.rpartition("/tests/")
        if found:
            return below.split("/")[0] + "/" + test["name"] + suffix
    return test["name"] + suffix


def arithmetic_cases(test):
    """The environment of its cases in which a second instruction set has arithmetic of its own; None: there are none."""
    label = label_of(test)
    return ARITHMETIC.get(label, ARITHMETIC.get(label.partition("/")[0] + "/"))


def is_arithmetic(test):
    on_gpu = test["env"].get("SW_TEST_DEVICE") == "cuda"
    return arithmetic_cases(test) is not None and not on_gpu and not any(word in label_of(test) for word in NO_ARITHMETIC)


def tests_by(isa, tests, brief=False):
    """The tests as they run by an instruction set, which stands behind their names. What they keep of the machine, they
    keep apart. Brief ones run the cases of ARITHMETIC alone."""
    found = []
    for test in tests:
        cache = {name: f"{value}-{isa}" for name, value in test["env"].items() if name == "XDG_CACHE_HOME"}
        cases = arithmetic_cases(test) if brief else None
        found.append({**test, "isa": isa, "env": {**test["env"], **cache, isas.VARIABLE: isa, **(cases or {})}})
    return found


def waits(test):
    return any(suite.rpartition(":")[2] == WAITING_SUITE for suite in test["suite"])


def terminate(process):
    """Ends the program with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self, take):
        self.take = take
        self.rest = b""

    def feed(self, data):
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            self.take(line.decode(errors="replace").rstrip("\r"))

    def close(self):
        if self.rest:
            self.feed(b"\n")


def collect(process, reader, limit):
    """Feeds both streams to the reader until they close; False where the limit was reached first."""
    streams = {process.stdout: Lines(reader.line), process.stderr: Lines(reader.note)}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(limits.LOOK_S)
            if limit.over():
                return False
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                streams[key.fileobj].feed(data)
                if not data:
                    streams[key.fileobj].close()
                    selector.unregister(key.fileobj)
    return True


def how_it_ended(code):
    if code == 0:
        return ""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def reap(process, flags=0):
    """Takes the exit status of a program, and the CPU seconds of the program and of all processes that it waited for.

    Returns None where `flags` is os.WNOHANG and the program has not ended.
    """
    pid, status, usage = os.wait4(process.pid, flags)
    if pid == 0:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def reap_within(process, limit):
    """As reap(); None where the limit was reached first."""
    cpu_seconds = reap(process, os.WNOHANG)
    while cpu_seconds is None and not limit.over():
        time.sleep(0.01)
        cpu_seconds = reap(process, os.WNOHANG)
    return cpu_seconds


def run_program(test, environment, running, cpu_s, still_s=STILL_S):
    """Runs one program, which is in the set `running` meanwhile; returns its cases and its CPU seconds. It is ended when it
    has used cpu_s seconds of CPU, or next to none for still_s seconds."""
    reader = tap.Reader()
    try:
        process = subprocess.Popen(test["cmd"], env=environment, cwd=test["workdir"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        reader.finish(f"cannot be started: {error}")
        return reader.cases, 0.0
    running.add(process)
    limit, cpu_seconds = limits.Limit(cpu_s, process.pid, still_s), None
    try:
        if collect(process, reader, limit):
            cpu_seconds = reap_within(process, limit)
        ended = limit.why() if cpu_seconds is None else how_it_ended(process.returncode)
    finally:
        terminate(process)
        if cpu_seconds is None:
            cpu_seconds = reap(process)
        running.discard(process)
        process.stdout.close()
        process.stderr.close()
    reader.finish(ended)
    return reader.cases, cpu_seconds


def run_test(test, options, scratch):
    environment = {**ENVIRONMENT, **os.environ, **test["env"], "SW_TEST_TIME_FACTOR": str(options.time_factor)}
    started = time.monotonic()
    # A folder of its own: launchers of ranks that share one remove each other's files.
    with tempfile.TemporaryDirectory(dir=scratch, prefix="", ignore_cleanup_errors=True) as environment["TMPDIR"]:
        cases, cpu_seconds = run_program(test, environment, options.running,
                                         test["timeout"] * SLOWEST * options.time_factor)
    result = Result(label_of(test), cases, time.monotonic() - started, cpu_seconds)
    report(result)
    return result


def report(result):
    counts = ", ".join(f"{result.count(what)} {what}" for what in OUTCOMES if result.count(what))
    text = [f"{result.label:<32} {counts} ({result.seconds:.1f} s, {result.cpu_seconds:.1f} s of CPU of"
            f" {test_budgets.of(result.label):g} s)"]
    for case in result.cases:
        if case.outcome == "skipped":
            text.append(f"    skipped: {case.name}: {case.detail}")
        elif case.outcome == "failed":
            text.append(f"    FAILED: {case.name}" + (f": {case.detail}" if case.detail else ""))
            text += ["        | " + line for line in case.output[-SHOWN_LINES:]]
    print("\n".join(text), flush=True)


def report_cpu(results):
    """Prints what the tests cost, and lists those above their budget: figures of this machine, and no failures."""
    above = [(result.cpu_seconds, test_budgets.of(result.label), result.label) for result in results
             if result.cpu_seconds > test_budgets.of(result.label)]
    print(f"{sum(result.cpu_seconds for result in results):.0f} s of CPU in all; above their budget"
          f" (tools/test_budgets.py): {len(above) or 'none'}")
    for seconds, budget, label in sorted(above, reverse=True):
        print(f"    {label}: {seconds:.1f} s of {budget:g} s")


def run_all(tests, options):
    # On a disk rather than in /tmp, which may be in memory and know no direct I/O.
    scratch = tempfile.mkdtemp(prefix="test-files-", dir=options.build)
    alone = [test for test in tests if not test["is_parallel"]]
    together = [test for test in tests if test["is_parallel"]]
    # Tests that wait leave the cores to those that compute, so that both kinds run side by side.
    pools = [ThreadPoolExecutor(options.jobs) for _ in (False, True)]
    try:
        started = [pools[waits(test)].submit(run_test, test, options, scratch) for test in together]
        return [one.result() for one in started] + [run_test(test, options, scratch) for test in alone]
    finally:
        # Where the runner is interrupted, what has not started never does, and what runs is ended.
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for process in list(options.running):
            terminate(process)
        for pool in pools:
            pool.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Runs the tests of a build folder.")
    parser.add_argument("build", help="the Meson build folder")
    parser.add_argument("names", nargs="*", help="run the tests whose name contains one of these (default: all)")
    parser.add_argument("--jobs", type=int, default=max(2, (os.cpu_count() or 1) // 2),
                        help="programs at a time, and as many that only wait (default: half the cores, because tests use "
                             "threads, and at least 2, because most use one)")
    parser.add_argument("--isa", help=f"run by this instruction set: {', '.join(isas.NAMES)} (default: the best)")
    parser.add_argument("--also-isa", metavar="ISA", help="run the tests of arithmetic by this instruction set too, where "
                                                          "this machine has a better one")
    parser.add_argument("--check-only", action="store_true", help="check the flags, and run nothing")
    parser.add_argument("--time-factor", type=float, default=1.0, help="multiplies every time limit (default: 1)")
    options = parser.parse_intermixed_args()
    # The second instruction set may be beyond this machine: all tests then run by the best that there is.
    refused = [isas.why_not(isa) for isa in (options.isa, os.environ.get(isas.VARIABLE)) if isa]
    if options.also_isa not in (None, *isas.NAMES):
        refused.append(isas.why_not(options.also_isa))
    for why in filter(None, refused):
        parser.exit(2, f"run_tests: {why}\n")
    options.build = os.path.abspath(options.build)
    options.running = set()
    return options


def chosen_tests(options):
    """The tests to run, in the order in which they begin."""
    # The programs that may take longest begin first, so that short ones fill the cores at the end.
    tests = sorted(declared_tests(options.build), key=lambda test: (-test["priority"], -test["timeout"]))
    if options.names:
        tests = [test for test in tests if any(name in label_of(test) for name in options.names)]
    used = options.isa or os.environ.get(isas.VARIABLE) or isas.best()
    more = []
    if options.also_isa and isas.NAMES.index(options.also_isa) < isas.NAMES.index(used):
        more = tests_by(options.also_isa, filter(is_arithmetic, tests), brief=True)
    elif options.also_isa:
        print(f"all tests run by {used}, so none is run again by {options.also_isa}")
    return (tests_by(options.isa, tests) if options.isa else tests) + more


def main():
    options = parse_arguments()
    if options.check_only:
        return 0
    results = run_all(chosen_tests(options), options)
    passed, failed, skipped = (sum(result.count(what) for result in results) for what in OUTCOMES)
    report_cpu(results)
    bad = [result.label for result in results if result.count("failed")]
    if bad:
        print("failed in: " + ", ".join(bad))
    if not results:
        print("no test has such a name")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not results else 0


if __name__ == "__main__":
    # Being told to end ends the programs too, as Ctrl-C does, which a shell's background would have all of them ignore.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
