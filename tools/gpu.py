"""./dev gpu [--minutes N] [--out DIR] [--continue] [--keep] [STAGE...]: tests and measures on this machine's GPU. Each
result is written before it is printed, so that whatever ends this program loses only what was running."""

import argparse
import datetime
import gzip
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gpu_report
from gpu_run import ROOT, SCRATCH, Log, Running, run_command
from gpu_stages import FULL, TINY, stages

OUT = os.path.join("build", "gpu")
MINUTE_S = 60
MARGIN_S = 15  # for ending programs, the table, and copying the results away
LEAST_S = 5  # below which no command is begun
DRIVER_LIMIT_S = 60
WAKE_S = 0.5
SMOKE = "smoke"
BEFORE_SMOKE = {"machine", "build", SMOKE}


def fail(text):
    print(f"dev gpu: {text}", file=sys.stderr)
    sys.exit(1)


def ask_driver():
    """The first GPU, as nvidia-smi names it; None: there is none that works."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                               capture_output=True, text=True, check=True, timeout=DRIVER_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    words = [word.strip() for word in asked.stdout.splitlines()[0].split(",")] if asked.stdout.strip() else []
    return dict(zip(("name", "driver", "memory"), words)) if len(words) == 3 else None


def commit():
    """The sources' name in git; a bundle carries it in a file."""
    path = os.path.join(ROOT, "COMMIT")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    try:
        described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=ROOT,
                                   capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return described.stdout.strip() or "unknown"


class Session:
    """The commands that run, and the results that are kept. Results come from several threads."""

    def __init__(self, options, document):
        self.options, self.document = options, document
        self.path = os.path.join(options.out, "results.json")
        self.deadline = time.monotonic() + options.minutes * MINUTE_S - MARGIN_S if options.minutes else float("inf")
        self.log, self.running, self.lock = Log(os.path.join(options.out, "log.txt")), Running(), threading.Lock()
        self.commit, self.left, self.good, self.closed = commit(), [], True, ""  # closed: the gate that failed

    def keep(self, stage, name, result):
        """Written first, then printed: what was read is in the file."""
        with self.lock:
            gpu_report.put(self.document, stage, self.commit, name, result)
            gpu_report.save(self.path, self.document)
            print("\n".join(gpu_report.lines_of(stage, name, result)), flush=True)

    def keep_part(self, stage, name, result):
        """Saves the result so far of a command that still runs; its lines are printed when it ends."""
        with self.lock:
            gpu_report.put(self.document, stage, self.commit, name, {**result, "limit": True})
            gpu_report.save(self.path, self.document)

    def run(self, stage, command):
        left_s = self.deadline - time.monotonic()
        if self.running.stopped or left_s < LEAST_S:
            self.left.append(f"{stage.name}: {command.name}")
            return
        began = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        result = run_command(command, min(command.limit_s, left_s), self.log, self.running,
                             lambda part: self.keep_part(stage.name, command.name, part))
        if self.running.stopped or (result.get("limit") and left_s < command.limit_s):
            self.left.append(f"{stage.name}: {command.name}")
            result = {**result, "ok": False, "limit": True, "error": "it was ended before it was done"}
        else:
            # A command that hangs would hang again: its own limit is a result.
            result.pop("limit", None)
        self.good &= result["ok"]
        pack(command.made)
        self.keep(stage.name, command.name, {"began": began, **result})

    def done(self, stage, command):
        """Tells whether a command needs no run. One that failed at a gate is tried again."""
        has = gpu_report.is_good if stage.gate else gpu_report.has
        return has(self.document, stage.name, command.name)

    def failed(self, stage, command):
        """Tells whether a command ended badly. One that was cut off has not failed."""
        return (gpu_report.has(self.document, stage.name, command.name) and
                not gpu_report.is_good(self.document, stage.name, command.name))

    def run_stage(self, stage):
        commands = [one for one in stage.commands if not (self.options.go_on and self.done(stage, one))]
        with ThreadPoolExecutor(stage.together) as pool:
            for future in [pool.submit(self.run, stage, command) for command in commands]:
                future.result()

    def leave(self, stage):
        """Lists a stage that is not run."""
        self.left += [f"{stage.name}: {one.name}" for one in stage.commands
                      if not (self.options.go_on and self.done(stage, one))]


def pack(paths):
    """Traces are large text."""
    for path in filter(os.path.exists, paths):
        with open(path, "rb") as file, gzip.open(path + ".gz.new", "wb") as packed:
            shutil.copyfileobj(file, packed)
        os.replace(path + ".gz.new", path + ".gz")
        os.remove(path)


def parse_arguments(names):
    parser = argparse.ArgumentParser(prog="./dev gpu", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Tests and measures on this machine's GPU.",
                                     epilog="stages, in order:\n" + "\n".join(f"  {name:<16} {what}" for name, what in names.items()))
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="those to run (default: all but those that take a call of their own)")
    parser.add_argument("--minutes", type=float, default=0, metavar="N", help="end before N minutes are over (default: no limit)")
    parser.add_argument("--out", default=OUT, metavar="DIR", help=f"folder of results.json, log.txt and traces (default: {OUT})")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="go on in DIR: what has a result is not run again")
    parser.add_argument("--keep", action="store_true", help="put the results into bench/results too, by GPU and day")
    options = parser.parse_args()
    unknown = [name for name in options.stages if name not in names]
    if unknown:
        fail(f"there is no stage '{unknown[0]}'; there are: {' '.join(names)}")
    options.out = os.path.abspath(options.out)
    return options


def open_document(options, device):
    path = os.path.join(options.out, "results.json")
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    if not os.path.exists(path):
        return gpu_report.new(device, date)
    if not options.go_on and not options.stages:
        fail(f"{path} has results; --continue runs what is left, names of stages run those again, --out names another folder")
    try:
        return gpu_report.load(path, device)
    except ValueError as error:
        fail(str(error))


def how_to_go_on(options, names=None):
    words = ["./dev gpu", *(["--minutes", f"{options.minutes:g}"] if options.minutes else []), "--out",
             os.path.relpath(options.out, ROOT) if options.out.startswith(ROOT + os.sep) else options.out, "--continue",
             *(names or options.stages)]
    return " ".join(words)


def finish(session):
    print("\n" + "\n".join(gpu_report.table(session.document)))
    print(f"all results: {session.path}")
    if session.closed:
        print(f"the stage {session.closed} failed, and so nothing after it was run: {session.path} and log.txt beside it say why")
    for name in session.alone:
        print(f"in a call of its own: {how_to_go_on(session.options, [name])}")
    if session.left:
        print(f"left: {', '.join(session.left)}\ngo on with: {how_to_go_on(session.options)}")
    if session.options.keep:
        kept = os.path.join(ROOT, "bench", "results", gpu_report.kept_name(session.document))
        gpu_report.save(kept, session.document)
        print(f"kept: {os.path.relpath(kept, ROOT)}")
    sys.stdout.flush()


def main():
    scale = TINY if os.environ.get("SW_GPU_SCALE") == "tiny" else FULL
    os.chdir(ROOT)
    table = stages(scale, OUT)
    options = parse_arguments({stage.name: stage.what for stage in table})
    device = ask_driver()
    if device is None and options.stages != ["build"]:
        fail("no GPU works here: nvidia-smi is missing or names none; run this where one does (./dev bundle makes the "
             "archive for a machine without network), or ./dev test, which needs none")
    os.makedirs(options.out, exist_ok=True)
    session = Session(options, open_document(options, device or {"name": "none", "driver": "none", "memory": "0"}))
    session.alone = [] if options.stages else [stage.name for stage in table if stage.alone and not all(
        session.done(stage, one) for one in stage.commands)]
    worker = threading.Thread(target=lambda: run_stages(session, scale, stages_to_run(session, table)))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: session.running.end())
    os.makedirs(SCRATCH, exist_ok=True)
    worker.start()
    # A signal that another thread gets is handled by this one, when it wakes.
    while worker.is_alive():
        worker.join(WAKE_S)
    shutil.rmtree(SCRATCH, ignore_errors=True)
    finish(session)
    return 0 if session.good and not session.left else 1


def stages_to_run(session, table):
    """Returns the names of stages that were asked for, after the smoke stage where it has not passed here; or of all."""
    named = session.options.stages
    if not named:
        return [stage.name for stage in table if not stage.alone]
    smoke = next(stage for stage in table if stage.name == SMOKE)
    passed = all(gpu_report.is_good(session.document, SMOKE, one.name) for one in smoke.commands)
    before = [] if passed or SMOKE in named or set(named) <= BEFORE_SMOKE else [SMOKE]
    return before + named


def run_stages(session, scale, names):
    """The build makes the tests of later stages, so the table is read anew for each."""
    for name in names:
        stage = next(stage for stage in stages(scale, session.options.out) if stage.name == name)
        if session.closed:
            session.leave(stage)
            continue
        session.run_stage(stage)
        if stage.gate and any(session.failed(stage, one) for one in stage.commands):
            session.closed = name


if __name__ == "__main__":
    sys.exit(main())
