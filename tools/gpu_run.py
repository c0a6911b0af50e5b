"""Runs one command of `./dev gpu`: with its own time limit, its output in the log as it comes, and its result read from
that output."""

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time

import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEPT_CHARS = 2000
CHUNK_BYTES = 65536
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
FAILED_IN = re.compile(r"^failed in: (.*)$", re.MULTILINE)
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
# Becomes the program that its arguments name. Whatever ends this program ends that one too (1 is PR_SET_PDEATHSIG), so that nothing
# holds the GPU.
# A process that threads start may run nothing of Python before it becomes another program.
BECOME = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")
"""
# Where tests write: on a disk, and removed at the end.
SCRATCH = os.path.join(ROOT, "build", f"gpu-files-{os.getpid()}")


def environment():
    """CUDA's tools are beside nvcc, and tests find their data as under the runner."""
    return {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/local/cuda/bin", "SW_TEST_DEVICE": "cuda",
            "SW_TEST_DATA": os.path.join(ROOT, "tests", "data"), "CMOCKA_MESSAGE_OUTPUT": "TAP",
            "TMPDIR": SCRATCH, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


def end_of(text):
    return " | ".join(text.strip().splitlines()[-3:])[-KEPT_CHARS:] or "it said nothing"


def read_bench(code, out, err):
    if code != 0:
        return {"ok": False, "error": end_of(err or out)}
    try:
        return {"ok": True, "values": json.loads(out)}
    except json.JSONDecodeError:
        return {"ok": False, "error": f"no JSON: {end_of(out)}"}


def read_doctor(code, out, err):
    """The report of a machine without a GPU that works is as good as any, and no reason to go on."""
    result = read_bench(code, out, err)
    found = {finding["what"]: finding for finding in result.get("values", {}).get("findings", ())}
    for what, flag in (("gpu", "cuda_works"), ("self-test", "passed")):
        finding = found.get(what, {"found": f"the report has no {what}"})
        # A quick report has no self-test where none was kept.
        unknown = what == "self-test" and not finding.get("facts") and what in found
        if result["ok"] and not unknown and not (finding.get("facts") or {}).get(flag):
            return {**result, "ok": False, "error": finding["found"]}
    return result


def read_lines(code, out, err):
    """An object a line, whose fields add up; a field `absent` is what the command would need and has not."""
    values, good = {}, code == 0
    for line in out.splitlines():
        try:
            values.update(json.loads(line))
        except (ValueError, TypeError):
            good = False
    if "absent" in values:
        return {"ok": True, "absent": values["absent"]}
    return {"ok": good and bool(values), "values": values, "error": end_of(err or out)}


def counted(passed, failed, skipped, code, where):
    """A skipped test has not run on the GPU."""
    text = f"{passed} passed, {failed} failed, {skipped} skipped"
    if code == 0 and passed and not skipped and not failed:
        return {"ok": True, "counts": text}
    return {"ok": False, "counts": text, "error": text + (f"; failed in {where}" if where else "")}


def read_tests(code, out, _err):
    counts = COUNTS.findall(out)
    if not counts:
        return {"ok": False, "error": end_of(out)}
    where = FAILED_IN.findall(out)
    return counted(*map(int, counts[-1]), code, where[-1] if where else "")


def read_tap(code, out, err):
    """One test program. What a failed test says is in the log."""
    reader = tap.Reader()
    for line in out.splitlines():
        reader.line(line)
    reader.finish("" if code == 0 else f"status {code}: {end_of(err)}")
    cases = [case for case in reader.cases if case.outcome == "failed"]
    numbers = [sum(case.outcome == what for case in reader.cases) for what in ("passed", "failed", "skipped")]
    # cmocka's status is the number of tests that failed or were skipped.
    return counted(*numbers, 0, ", ".join(f"{case.name} {case.detail}".strip() for case in cases))


def read_sanitizer(code, out, err):
    found = ERRORS.search(out + err)
    if found is None:
        return {"ok": False, "error": end_of(err or out)}
    errors = int(found[1] or found[2] or 0)
    return {"ok": code == 0 and errors == 0 and "# SKIP" not in out, "counts": f"{errors} errors",
            "error": f"{errors} errors, status {code}: {end_of(out)}"}


def read_status(code, out, err):
    return {"ok": code == 0, "counts": "done", "error": end_of(err or out)}


READERS = {"bench": read_bench, "doctor": read_doctor, "lines": read_lines, "tests": read_tests, "tap": read_tap, "sanitizer": read_sanitizer,
           "status": read_status}


class Log:
    """One file, to which each line is written as it comes."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8", errors="replace")

    def write(self, name, text):
        self.file.write("".join(f"{name}: {line}\n" for line in text.splitlines()))
        self.file.flush()


class Running:
    """The processes that run now, so that one signal ends them all."""

    def __init__(self):
        self.processes, self.stopped = set(), False

    def add(self, process):
        self.processes.add(process)
        if self.stopped:
            end_group(process)

    def end(self):
        self.stopped = True
        for process in list(self.processes):
            end_group(process)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def collect(process, deadline, take):
    """Both outputs until they close, each piece given to `take` as it comes; None where the deadline was first."""
    pieces = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in pieces:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0, deadline - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                data = os.read(key.fd, CHUNK_BYTES)
                pieces[key.fileobj] += data
                take(key.fileobj is process.stdout, data, bytes(pieces[key.fileobj]))
                if not data:
                    selector.unregister(key.fileobj)
    return [bytes(piece).decode(errors="replace") for piece in pieces.values()]


def run_program(command, limit_s, log, running, keep_part):
    """The result of a program, or what `keep_part` has had of one that was ended."""
    process = subprocess.Popen([sys.executable, "-c", BECOME, str(os.getpid()), *command.arguments], cwd=ROOT,
                               env={**environment(), **dict(command.environment)}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    running.add(process)

    def take(is_out, data, so_far):
        log.write(command.name, data.decode(errors="replace"))
        # A line is whole when its end is there.
        if is_out and command.kind == "lines" and b"\n" in data:
            keep_part(read_lines(0, so_far[:so_far.rindex(b"\n")].decode(errors="replace"), ""))

    try:
        deadline = time.monotonic() + limit_s
        ended = collect(process, deadline, take)
        if ended is None:
            return {"ok": False, "error": f"ended at its limit, after {limit_s:.0f} s", "limit": True}
        return READERS[command.kind](process.wait(max(1, deadline - time.monotonic())), *ended)
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"ended at its limit, after {limit_s:.0f} s", "limit": True}
    finally:
        end_group(process)
        process.wait()
        running.processes.discard(process)
        process.stdout.close()
        process.stderr.close()


def run_command(command, limit_s, log, running, keep_part=lambda result: None):
    """One result, with the seconds that it took. `keep_part` gets what is known while the command still runs."""
    started = time.monotonic()
    if command.tool and shutil.which(command.tool, path=environment()["PATH"]) is None:
        return {"ok": True, "absent": command.tool}
    for path in filter(os.path.exists, command.made):
        os.remove(path)
    part = {}

    def keep(result):
        part.update(result.get("values", {}))
        keep_part({**result, "ok": False, "error": "it had not ended"})

    result = run_program(command, limit_s, log, running, keep)
    if part and "values" not in result:
        result["values"] = part
    if result["ok"]:
        result.pop("error", None)
    return {**result, "seconds": round(time.monotonic() - started, 1), "command": " ".join(command.arguments)}
