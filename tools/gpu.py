"""./dev gpu [STAGE...]: builds, tests and measures on this machine's GPU. `all`, or nothing, is every stage; results
are kept after each command, so that a stage that fails or a machine that goes away loses only its own."""

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import gpu_report
from gpu_stages import LIMIT_S, STAGES

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEPT_CHARS = 2000
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
FAILED_IN = re.compile(r"^failed in: (.*)$", re.MULTILINE)
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


def fail(text):
    print(f"dev gpu: {text}", file=sys.stderr)
    sys.exit(1)


def environment():
    """CUDA's tools are beside nvcc, and tests find their data as under the runner."""
    return {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/local/cuda/bin", "SW_TEST_DEVICE": "cuda",
            "SW_TEST_DATA": os.path.join(ROOT, "tests", "data"), "CMOCKA_MESSAGE_OUTPUT": "TAP"}


def ask_driver():
    """The first GPU, as nvidia-smi names it; None: there is none that works."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                               capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    words = [word.strip() for word in asked.stdout.splitlines()[0].split(",")] if asked.stdout.strip() else []
    return dict(zip(("name", "driver", "memory"), words)) if len(words) == 3 else None


def commit():
    """Of the sources; a bundle carries it in a file."""
    described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=ROOT,
                               capture_output=True, text=True, check=False)
    if described.returncode == 0:
        return described.stdout.strip()
    path = os.path.join(ROOT, "COMMIT")
    if not os.path.exists(path):
        return "unknown"
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def end_of(text):
    return " | ".join(text.strip().splitlines()[-3:])[-KEPT_CHARS:] or "it said nothing"


def read_bench(code, out, err):
    if code != 0:
        return {"ok": False, "error": end_of(err or out)}
    try:
        return {"ok": True, "values": json.loads(out)}
    except json.JSONDecodeError:
        return {"ok": False, "error": f"no JSON: {end_of(out)}"}


def read_tests(code, out, _err):
    """A skipped test has not run on the GPU."""
    counts = COUNTS.findall(out)
    if not counts:
        return {"ok": False, "error": end_of(out)}
    passed, failed, skipped = map(int, counts[-1])
    text = f"{passed} passed, {failed} failed, {skipped} skipped"
    if code == 0 and passed and not skipped:
        return {"ok": True, "counts": text}
    where = FAILED_IN.findall(out)
    return {"ok": False, "counts": text, "error": text + (f"; failed in {where[-1]}" if where else "")}


def read_sanitizer(code, out, err):
    found = ERRORS.search(out + err)
    if found is None:
        return {"ok": False, "error": end_of(err or out)}
    errors = int(found[1] or found[2] or 0)
    return {"ok": code == 0 and errors == 0 and "# SKIP" not in out, "counts": f"{errors} errors",
            "error": f"{errors} errors, status {code}: {end_of(out)}"}


def read_status(code, out, err):
    return {"ok": code == 0, "counts": "done", "error": end_of(err or out)}


READERS = {"bench": read_bench, "tests": read_tests, "sanitizer": read_sanitizer, "status": read_status}


def run_command(command, deadline):
    """One result, which says after how many seconds it came."""
    started = time.monotonic()
    left_s = deadline - started
    result = {"ok": False, "error": "the stage's time was used up before it began"}
    if left_s > 0:
        for path in filter(os.path.exists, command.made):
            os.remove(path)
        try:
            process = subprocess.Popen(command.arguments, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                       start_new_session=True)
        except OSError as error:
            return {"ok": False, "error": f"{command.arguments[0]} cannot be started: {error.strerror}"}
        try:
            result = READERS[command.kind](*finish(process, left_s))
        except subprocess.TimeoutExpired:
            result = {"ok": False, "error": f"ended at the stage's limit, after {left_s:.0f} s"}
    if result["ok"]:
        result.pop("error", None)
    return {**result, "seconds": round(time.monotonic() - started, 1), "command": " ".join(command.arguments)}


def finish(process, left_s):
    try:
        out, err = process.communicate(timeout=left_s)
        return process.returncode, out, err
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def run_stage(stage, limit_s, keep):
    """Runs the commands and calls keep with all results so far after each."""
    deadline, results = time.monotonic() + limit_s, {}
    with ThreadPoolExecutor(stage.together) as pool:
        begun = [(command.name, pool.submit(run_command, command, deadline)) for command in stage.commands]
        for name, future in begun:
            results[name] = future.result()
            print(f"{stage.name}: {name}: {'ok' if results[name]['ok'] else results[name]['error']} "
                  f"({results[name].get('seconds', 0)} s)", flush=True)
            keep(results)
    return all(result["ok"] for result in results.values())


def chosen(words):
    names = [stage.name for stage in STAGES]
    unknown = [word for word in words if word not in names + ["all"]]
    if unknown:
        fail(f"there is no stage '{unknown[0]}'; there are: all {' '.join(names)}")
    return [stage for stage in STAGES if not words or "all" in words or stage.name in words]


def print_help():
    print("usage: ./dev gpu [STAGE...]\n\n  all         every stage in turn; so does no stage")
    for stage in STAGES:
        print(f"  {stage.name:<11} {stage.what}")
    print(f"\nEach ends within {LIMIT_S} s and can be run apart; results go into one file of bench/results, by GPU and day.")


def main():
    words = sys.argv[1:]
    if "--help" in words or "-h" in words:
        print_help()
        return 0
    stages, device = chosen(words), ask_driver()
    if device is None and any(stage.needs_gpu for stage in stages):
        fail("no GPU works here: nvidia-smi is missing or names none; run this where one does (./dev bundle makes the "
             "archive for a machine without network), or ./dev test, which needs none")
    os.chdir(ROOT)
    os.makedirs("build/gpu", exist_ok=True)
    if device is None:
        return 0 if all([run_stage(stage, LIMIT_S, lambda results: None) for stage in stages]) else 1
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    path = os.path.join(ROOT, "bench", "results", gpu_report.file_name(device, date))
    try:
        document = gpu_report.load(path, device, date)
    except ValueError as error:
        fail(str(error))
    source, good = commit(), True
    for stage in stages:
        good &= run_stage(stage, LIMIT_S,
                          lambda results, name=stage.name: gpu_report.save(
                              path, gpu_report.merge(document, name, source, results)))
    print("\n".join(gpu_report.table(document)))
    print(f"all results: {os.path.relpath(path, ROOT)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
