"""./dev gpu [--minutes N] [--out DIR] [--continue] [--keep] [STAGE...]: tests and measures on this machine's GPU. Each
result is written before it is printed, so that whatever ends this program loses only what was running.

The parts, from the top: the results and the lines that say them; one command, with its limit and its output read; the
stages; facts of the machine and NCCL alone, which this script prints for itself as commands; the session."""

import argparse
import ctypes
import datetime
import glob
import gzip
import json
import os
import platform
import re
import resource
import selectors
import shutil
import signal
import site
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import run_tests
import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FACTS_FLAG = "--facts"
FACTS = ("python3", "tools/gpu.py", FACTS_FLAG)  # commands of this script that print lines of JSON


# The results: one JSON file, into which every command puts its own at once, and the lines that say it.

VERSION = 2
GIGA, TERA = 1e9, 1e12


def kept_name(document):
    words = re.sub(r"[^a-z0-9]+", "-", document["device"]["name"].lower()).strip("-")
    return f"{words}-{document['date']}.json"


def new_document(device, date):
    return {"spillway_gpu": VERSION, "device": device, "date": date, "stages": {}}


def load_document(path, device):
    """Returns the results that are there, of the same GPU and driver; a driver that changed in between is an error."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document.get("spillway_gpu") != VERSION or document.get("device") != device:
        raise ValueError(f"{path} is of another machine or version; move it away, or name another folder (--out)")
    return document


def put_result(document, stage, commit, name, result):
    """Takes the place of what the command had; those of others stay."""
    held = document["stages"].setdefault(stage, {"results": {}})
    held["results"][name] = {**result, "commit": commit}


def has_result(document, stage, name):
    """Tells whether a command has ended, well or badly, rather than been cut off."""
    result = document["stages"].get(stage, {"results": {}})["results"].get(name)
    return result is not None and not result.get("limit")


def is_good(document, stage, name):
    """Tells whether a command has ended well."""
    return document["stages"].get(stage, {"results": {}})["results"].get(name, {}).get("ok", False)


def save_document(path, document):
    """A reader finds the file as it was or as it is, whenever this program ends."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def value_at(value, *path):
    """Returns the value at a path of names within a document, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else value[name] if isinstance(value, list) and value else None
    return value


# One row for each bench: its name, where the figure lies, its divisor, and its goal.
STEP_ROWS = (("tokens/s", ("speed", "tokens_per_s"), 1, None),
             ("model flops of peak", ("speed", "of_peak"), 1, None),
             ("model flops of products", ("speed", "of_products"), 1, 0.75),
             ("of the speed of light", ("speed", "speed_of_light", "share"), 1, None),
             ("predicted to placed", ("steps", "predicted", "placed_ratio"), 1, None))
ROWS = {
    "copy": (("upload GB/s", ("sizes", -1, "upload", "bytes_per_s"), GIGA, None),
             ("download GB/s", ("sizes", -1, "download", "bytes_per_s"), GIGA, None),
             ("upload, both run, of alone", ("sizes", -1, "both", "of_upload"), 1, 0.9),
             ("download, both run, of alone", ("sizes", -1, "both", "of_download"), 1, 0.9)),
    "update": (("host Gparam/s", ("precisions", 0, "parameters_per_s"), GIGA, None),
               ("GPU Gparam/s", ("precisions", 0, "on_device", "parameters_per_s"), GIGA, None),
               ("GPU of copies there", ("precisions", 0, "on_device", "of_copy"), 1, 0.85)),
    "gemm": (("Tflop/s", ("totals", "all", "flops_per_s"), TERA, None),),
    "attention": (("forward Tflop/s", ("forward", "flops_per_s"), TERA, None),
                  ("backward Tflop/s", ("backward", "flops_per_s"), TERA, None)),
    "compute": (("block's products of its time", ("totals", "block", "products_share"), 1, None),
                ("all products of all time", ("totals", "all", "products_share"), 1, None)),
    "step": STEP_ROWS,
}
# Goals of single results, beside the rows above: attention at head size 128 over 8,192 tokens.
REQUIRED = {("step-7b", "tokens/s"): 14000.0, ("attention-8192", "forward Tflop/s"): 300.0,
            ("attention-8192", "backward Tflop/s"): 220.0}
RESIDENT_SHARE, PRODUCTS_SHARE = 0.95, 0.9
SHOWN_FACTS = ("gpu", "clocks", "host")


def peer_rows(values):
    for what, pair in values.get("pairs", {}).items():
        if "of_peer" in pair:
            yield f"{what}, of PyTorch's speed", pair["of_peer"], PRODUCTS_SHARE if pair["of_peer_least"] else None


def rows_of(name, values):
    """Each number of a result that is worth a line: what it is, its value, and what it must reach or None."""
    for what, path, unit, least in ROWS.get(values.get("bench"), ()):
        found = value_at(values, *path)
        if found is not None:
            yield what, found / unit, REQUIRED.get((name, what), least)
    resident = value_at(values, "steps", "resident", "placed_ratio")
    if resident:
        yield "of the resident speed", 1 / resident, RESIDENT_SHARE
    yield from peer_rows(values)


def texts_of(name, result):
    """Returns remarks beside the numbers."""
    values = result.get("values") or {}
    if "absent" in result:
        yield f"absent: {result['absent']} is not here"
    elif not result["ok"]:
        yield f"{'CUT OFF' if result.get('limit') else 'FAILED'}: {result['error']}"
    elif "counts" in result:
        yield result["counts"]
    for fact in SHOWN_FACTS:
        if isinstance(values.get(fact), dict):
            yield ", ".join(f"{key} {value}" for key, value in values[fact].items())
    for key, value in values.items():
        if key.startswith("tool "):
            yield f"{key}: {value}"
    for reason in sorted({pair["not_compared"] for pair in values.get("pairs", {}).values() if "not_compared" in pair}):
        yield f"not compared with PyTorch: {reason}"
    for finding in values.get("findings", ()):
        if finding["what"] in ("gpu", "self-test"):
            yield f"{finding['what']}: {finding['found']}"


def lines_of(stage, name, result):
    head = f"{stage:<15} {name:<24}"
    lines = [f"{head} {text}" for text in texts_of(name, result)]
    for what, value, least in rows_of(name, result.get("values") or {}):
        mark = "" if least is None else f"  {'reaches' if value >= least else 'BELOW'} {least:g}"
        lines.append(f"{head} {what:<40} {value:>10.4g}{mark}")
    return lines or [f"{head} done"]


def table_of(document):
    """A line for each number, with what it must reach, and one for whatever failed."""
    lines = [f"{document['device']['name']}, driver {document['device']['driver']}, {document['date']}"]
    for stage, held in document["stages"].items():
        for name, result in held["results"].items():
            lines += lines_of(stage, name, result)
    return lines

# One command: with its own time limit, its output in the log as it comes, and its result read from that output.

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

# The stages, in the order of what is learned for the time: stages of commands, each with its own limit, so that a
# machine that is lent for some minutes at a time can prove everything in parts.

PROGRAM = "build/spillway"
SMOKE_S, SHORT_S, BENCH_S, STEP_S = 20, 60, 120, 530


@dataclass(frozen=True)
class Command:
    """One result. kind: how its output is read (READERS)."""
    name: str
    kind: str
    arguments: tuple
    limit_s: float = SHORT_S
    made: tuple = ()  # files that it makes, and does not overwrite
    tool: str = ""  # a program without which it is left out, and named as absent
    environment: tuple = ()


@dataclass(frozen=True)
class Stage:
    name: str
    what: str
    commands: tuple
    together: int = 1  # commands that run at a time: more than one only where no speed is measured
    gate: bool = False  # where something of it fails, nothing after it is run
    alone: bool = False  # takes a call of its own, and runs where it is named


@dataclass(frozen=True)
class Scale:
    """How large the shapes are. The tests run everything with tiny ones."""
    build: str = "build"
    program: str = PROGRAM
    model: str = "qwen2.5-7b"
    others: tuple = ("qwen2.5-0.5b", "qwen2.5-1.5b")
    seq: int = 1024
    long_seq: int = 8192
    tokens: int = 8192  # of a micro-batch in yardsticks
    tests: str = "_gpu"  # how the names of tests end
    first: tuple = ("kernels_gemm", "kernels_attention")
    smoke: tuple = (  # test programs, and the tests of each: products with and without a bias; attention by warps and by
        # warpgroups; the update
        ("kernels_gemm", "products"), ("kernels_attention", "against_reference"), ("kernels_update", "same_bits_as_reference"))
    doctor: tuple = ()
    copy: tuple = ()
    update: tuple = ()
    bench: tuple = ()
    precisions: tuple = ("fp16", "fp32", "tf32")
    steps: tuple = (  # name, model, micro-batch, tokens of a step, what else
        ("step-0.5b", "step-0.5b", "qwen2.5-0.5b", 16, 131072, ("--order", "batch", "--rounds", "1")),
        ("step-7b-short", "step-7b-short", "qwen2.5-7b", 4, 65536,
         ("--order", "batch", "--rounds", "1", "--steps", "2", "--host-memory", "92GiB")),
        ("step-7b", "step-7b", "qwen2.5-7b", 4, 524288,
         ("--order", "batch", "--rounds", "1", "--steps", "2", "--host-memory", "92GiB")),
        ("more-steps", "step-0.5b-by-layer", "qwen2.5-0.5b", 8, 131072,
         ("--order", "layer", "--recompute", "all", "--rounds", "1")),
        ("more-steps", "step-1.5b", "qwen2.5-1.5b", 4, 131072, ("--order", "batch", "--rounds", "1", "--steps", "3")),
        ("more-steps", "step-1.5b-by-layer", "qwen2.5-1.5b", 8, 131072,
         ("--order", "layer", "--recompute", "all", "--rounds", "1")))


FULL = Scale()
ONCE = ("--rounds", "1")
ONE_THREAD = ("--threads", "1")
# For the tests: a program with the emulated GPU, and tests that take no time.
TINY = Scale(build=os.environ.get("SW_BUILD", ""), program=os.environ.get("SW_PROGRAM", ""), model="llama-tiny",
             others=("gpt2-tiny",), seq=16, long_seq=32, tokens=32, tests="",
             first=("kernels_rank_sum", "kernels_rotate"), smoke=(("kernels_rank_sum", "*"), ("kernels_rotate", "*")), doctor=("--quick",),
             copy=("--size", "64KiB", *ONCE, *ONE_THREAD), update=("--precision", "bf16", *ONCE, *ONE_THREAD), bench=ONCE,
             precisions=("fp32",),
             steps=tuple((name, name, "gpt2-tiny", 1, tokens, ("--steps", "1", *ONCE, *ONE_THREAD, "--chunk-grains", "2"))
                         for name, tokens in (("step-0.5b", 32), ("step-7b-short", 32), ("step-7b", 64))))
STATE_ON_HOST = "weights=device,grads=device,optimizer=host,acts=device"
ALL_ON_HOST = "weights=host,grads=host,optimizer=host,acts=device"
RATES_OF = {"qwen2.5-0.5b": "rates-0.5b.json", "qwen2.5-1.5b": "rates-1.5b.json", "qwen2.5-7b": "rates-7b.json"}
# Few, because a lent machine gives back few files.
TRACED = ("step-7b-short", "step-7b")


def bench(scale, name, *arguments, limit_s=BENCH_S, made=()):
    return Command(name, "bench", (scale.program, "bench", *arguments, "--device", "cuda", "--json"), limit_s, made)


def shaped(scale, name, what, model, seq, *more, micro_batch=None):
    return bench(scale, name, what, "--model", model, "--seq", str(seq), "--micro-batch",
                 str(micro_batch or max(1, scale.tokens // seq)), *scale.bench, *more)


def step(scale, out, name, model, micro_batch, batch_tokens, more):
    """Rates are measured once for a model and kept in the folder of results; a step is predicted by those."""
    trace = os.path.join(out, f"{name}.trace.json")
    place = ALL_ON_HOST if name.endswith("by-layer") else STATE_ON_HOST
    rates = os.path.join(out, RATES_OF.get(model, "rates.json"))
    traced = ("--trace", trace) if name in TRACED else ()
    return bench(scale, name, "step", "--model", model, "--seq", str(scale.seq), "--micro-batch", str(micro_batch),
                 "--batch-tokens", str(batch_tokens), "--place", place, "--rates", rates, *traced, *more, limit_s=STEP_S,
                 made=traced[1:])


def steps(scale, out):
    named = {}
    for stage, *arguments in scale.steps:
        named.setdefault(stage, []).append(step(scale, out, *arguments))
    return {stage: tuple(commands) for stage, commands in named.items()}


def yardsticks(scale):
    """At the shapes of the 7B: what a step is made of."""
    return (shaped(scale, "gemm", "gemm", scale.model, scale.seq),
            *(shaped(scale, f"attention-{seq}", "attention", scale.model, seq) for seq in (scale.seq, scale.long_seq)),
            bench(scale, "copy", "copy", *scale.copy), bench(scale, "update", "update", *scale.update),
            Command("machine-after", "lines", FACTS + ("clocks",)))


def more_yardsticks(scale):
    small = scale.others[0]
    return (*(shaped(scale, f"gemm-{model}", "gemm", model, scale.seq) for model in scale.others),
            *(shaped(scale, f"gemm-{precision}", "gemm", small, scale.seq, "--precision", precision)
              for precision in scale.precisions),
            *(shaped(scale, f"attention-{model}-{seq}", "attention", model, seq)
              for model in scale.others for seq in (scale.seq, scale.long_seq)))


def peers(scale):
    script = ("python3", "bench/peers/torch_pairs.py", "--program", scale.program, "--model", scale.model, "--tokens",
              str(scale.tokens), "--seqs", f"{scale.seq},{scale.long_seq}")
    return tuple(Command(f"torch-{what}", "lines", (*script, what), BENCH_S) for what in ("gemm", "attention"))


def declared(scale):
    """The build folder's tests, or none before it is built."""
    try:
        return run_tests.declared_tests(scale.build)
    except (OSError, ValueError):
        return []


def test_command(test):
    return Command(test["name"], "tap", tuple(test["cmd"]), test["timeout"],
                   environment=tuple(sorted({**test["env"], "SW_TEST_DEVICE": "cuda"}.items())))


def tests_of(scale, area, others=False):
    """The test programs of an area that run on the GPU, matrix products and attention first."""
    found = [test for test in declared(scale) if test["name"].endswith(scale.tests)
             and (run_tests.label_of(test).startswith("kernels/") != others)]
    if not scale.tests:
        found = [test for test in found if test["name"] in scale.first] if area == "kernels" else []
    order = {name + scale.tests: place for place, name in enumerate(scale.first)}
    return tuple(test_command(test) for test in sorted(found, key=lambda test: order.get(test["name"], len(order))))


def smoke(scale):
    """Returns the seconds that every later minute rests on. A test that was not built fails, too."""
    built = {test["name"]: test for test in declared(scale)}
    tests = []
    for name, cases in scale.smoke:
        test = built.get(name + scale.tests, {"cmd": (name + scale.tests,), "env": {}})
        environment = {**test["env"], "SW_TEST_DEVICE": "cuda", "SW_TEST_FILTER": cases}
        tests.append(Command(f"smoke-{name}", "tap", tuple(test["cmd"]), SMOKE_S, environment=tuple(sorted(environment.items()))))
    copies = (scale.program, "bench", "copy", "--size", "1MiB", "--rounds", "1", "--device", "cuda", "--json")
    return (*tests, Command("smoke-copies", "status", copies, SMOKE_S),
            Command("smoke-nccl", "lines", FACTS + ("nccl",), SMOKE_S))


def sanitized(kernels, tool):
    return tuple(Command(f"{tool}-{one.name}", "sanitizer",
                         ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *one.arguments), STEP_S,
                         tool="compute-sanitizer", environment=one.environment) for one in kernels)


def stages(scale, out):
    """All of them. Tests are in it once they are built, so that the table is made anew for each stage."""
    kernels, step_of = tests_of(scale, "kernels"), steps(scale, out)
    return [
        Stage("machine", "driver, clocks, memory, cores, link, toolkit and tools, registers of our kernels",
              (Command("machine", "lines", FACTS + ("machine",)),)),
        Stage("build", "the program and its tests; at once where a bundle carries them",
              (Command("build", "status", ("./dev", "build", "--tests"), STEP_S),) if scale is FULL else (), gate=True),
        Stage("smoke", "in 20 seconds: products, attention, an update, copies both ways, NCCL alone; where one fails, the "
              "run ends", smoke(scale), together=5, gate=True),
        Stage("doctor", "the libraries that were found, and the self-test of every op",
              (Command("doctor", "doctor", (scale.program, "doctor", *scale.doctor, "--json")),)),
        Stage("tests", "ops against the reference, side by side", kernels, together=6),
        Stage("yardsticks", "products, attention, copies and updates at the shapes of the 7B", yardsticks(scale)),
        Stage("peers", "the same products and attention beside PyTorch's, in turn", peers(scale)),
        Stage("bits", "the same bits wherever state lives, PyTorch's numbers", tests_of(scale, "", others=True), together=2),
        Stage("compute", "a micro-batch of each unit beside its products",
              tuple(shaped(scale, f"compute-{model}", "compute", model, scale.seq, micro_batch=4)
                    for model in (scale.model, *scale.others))),
        *(Stage(name, what, step_of[name], alone=name == "step-7b") for name, what in (
            ("step-0.5b", "steps of Qwen2.5 0.5B"), ("step-7b-short", "steps of Qwen2.5 7B of 65,536 tokens"),
            ("step-7b", "steps of Qwen2.5 7B of 524,288 tokens, fp32 state on the host: in a call of its own"),
            ("more-steps", "steps offloaded whole, and of Qwen2.5 1.5B")) if name in step_of),
        Stage("more-yardsticks", "products and attention of other models and precisions", more_yardsticks(scale)),
        Stage("sanitizer", "the tests of ops under compute-sanitizer's memcheck", sanitized(kernels, "memcheck"), together=4),
        Stage("races", "the same under its racecheck", sanitized(kernels, "racecheck"), together=4),
    ]

# Facts of the machine, and NCCL alone.

QUESTION_S = 30
GPU_FIELDS = ("name", "driver_version", "vbios_version", "memory.total", "memory.free", "ecc.mode.current", "mig.mode.current",
              "compute_mode", "power.limit", "pcie.link.gen.max", "pcie.link.width.max")
CLOCK_FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "clocks_event_reasons.active", "temperature.gpu",
                "power.draw", "pcie.link.gen.current", "pcie.link.width.current")
TOOLS = ("nvcc", "cuobjdump", "ncu", "nsys", "compute-sanitizer", "gcc", "meson", "ninja")
ABSENT = "absent"


def say(**facts):
    print(json.dumps(facts), flush=True)


def output_of(*arguments):
    """Returns a program's output; None: it is absent, or fails."""
    try:
        return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=QUESTION_S).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def ask_gpu(fields):
    """nvidia-smi refuses a whole question for one field that it does not know, so each is asked alone where that is so."""
    said = output_of("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader")
    if said is None and len(fields) > 1:
        found = {}
        for field in fields:
            found.update(ask_gpu([field]))
        return found
    values = [value.strip() for value in (said or "").splitlines()[0].split(",")] if said else []
    return dict(zip(fields, values)) if len(values) == len(fields) else {field: ABSENT for field in fields}


def text_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def host_facts():
    memory = dict(re.findall(r"^(\w+): +(\d+) kB", text_of("/proc/meminfo"), re.MULTILINE))
    model = re.search(r"^model name\s*: (.*)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    return {"cpu": model[1] if model else "unknown", "cores": len(os.sched_getaffinity(0)), "all_cores": os.cpu_count(),
            "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")),
            "memory_total_kib": int(memory.get("MemTotal", -1)), "memory_available_kib": int(memory.get("MemAvailable", -1)),
            "memory_limit": text_of("/sys/fs/cgroup/memory.max").strip() or "unknown",
            "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], "kernel": platform.release(),
            "libc": " ".join(platform.libc_ver()), "python": platform.python_version(),
            "free_disk_mib": shutil.disk_usage(".").free >> 20}


def version_of(name):
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    if path is None:
        return ABSENT
    numbered = [line for line in (output_of(path, "--version") or "").splitlines() if re.search(r"\d\.\d", line)]
    return f"{path}: {numbered[0].strip() if numbered else 'it does not say its version'}"


def kernel_report():
    """The registers and stack frames of our kernels, where the tree has the report of them."""
    script = os.path.join(ROOT, "tools", "kernel_report.py")
    if not os.path.exists(script):
        return ABSENT
    try:
        # A report of a kernel that spills ends badly, and is a report.
        ended = subprocess.run([sys.executable, "-B", script, "--json"], capture_output=True, text=True, check=False,
                               timeout=QUESTION_S)
        return json.loads(ended.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ABSENT


def say_machine(what):
    """Prints the facts of a machine with a GPU: an object a line, each as soon as it is known. Changes no setting of the GPU."""
    say(gpu=ask_gpu(GPU_FIELDS))
    say(clocks=ask_gpu(CLOCK_FIELDS))
    if what == "clocks":
        return
    say(host=host_facts())
    say(links=output_of("nvidia-smi", "topo", "-m") or ABSENT)
    for name in TOOLS:
        say(**{"tool " + name: version_of(name)})
    say(kernels=kernel_report())


SUMMED = 1024  # numbers
FLOAT, SUM, UNIQUE_ID_BYTES = 7, 0, 128
DRIVER, LIBRARY = "libcuda.so.1", "libnccl.so.2"


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * UNIQUE_ID_BYTES)]


class Failure(Exception):
    pass


def library_paths():
    """Where the loader looks, and the wheel that PyTorch brings."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return [LIBRARY, *(path for folder in folders for path in glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", LIBRARY)))]


def load_library(paths):
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def check(what, code):
    if code != 0:
        raise Failure(f"{what} failed with {code}")


def join_and_sum(cuda, nccl):
    """Returns NCCL's version, once the sum over the only rank has come back as it was."""
    version, gpu, context, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    comm, unique = ctypes.c_void_p(), UniqueId()
    numbers = struct.pack(f"<{SUMMED}f", *range(SUMMED))
    back = ctypes.create_string_buffer(len(numbers))
    check("cuInit", cuda.cuInit(0))
    check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(gpu), 0))
    check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu))
    check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    check("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 * len(numbers))))
    out = ctypes.c_uint64(memory.value + len(numbers))
    check("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(memory, numbers, ctypes.c_size_t(len(numbers))))
    check("cuMemsetD8", cuda.cuMemsetD8_v2(out, ctypes.c_ubyte(0), ctypes.c_size_t(len(numbers))))
    check("ncclGetVersion", nccl.ncclGetVersion(ctypes.byref(version)))
    check("ncclGetUniqueId", nccl.ncclGetUniqueId(ctypes.byref(unique)))
    check("ncclCommInitRank", nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0))
    check("ncclAllReduce", nccl.ncclAllReduce(memory, out, ctypes.c_size_t(SUMMED), FLOAT, SUM, comm, None))
    check("cuCtxSynchronize", cuda.cuCtxSynchronize())
    check("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(back, out, ctypes.c_size_t(len(numbers))))
    check("ncclCommDestroy", nccl.ncclCommDestroy(comm))
    if back.raw[:len(numbers)] != numbers:
        raise Failure("the sum of one rank's numbers is not these numbers")
    return version.value


def say_nccl():
    """One process joins itself and sums some numbers on the GPU by NCCL, without the program. Prints a line of JSON: the library's
    version, or what is absent; fails where NCCL or the driver does."""
    cuda, nccl = load_library([DRIVER]), load_library(library_paths())
    if cuda is None or nccl is None:
        print(json.dumps({"absent": "NVIDIA's driver" if cuda is None else "NCCL"}))
        return 0
    try:
        print(json.dumps({"nccl": join_and_sum(cuda, nccl)}))
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0

# The session.

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
            put_result(self.document, stage, self.commit, name, result)
            save_document(self.path, self.document)
            print("\n".join(lines_of(stage, name, result)), flush=True)

    def keep_part(self, stage, name, result):
        """Saves the result so far of a command that still runs; its lines are printed when it ends."""
        with self.lock:
            put_result(self.document, stage, self.commit, name, {**result, "limit": True})
            save_document(self.path, self.document)

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
        has = is_good if stage.gate else has_result
        return has(self.document, stage.name, command.name)

    def failed(self, stage, command):
        """Tells whether a command ended badly. One that was cut off has not failed."""
        return (has_result(self.document, stage.name, command.name) and
                not is_good(self.document, stage.name, command.name))

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
        return new_document(device, date)
    if not options.go_on and not options.stages:
        fail(f"{path} has results; --continue runs what is left, names of stages run those again, --out names another folder")
    try:
        return load_document(path, device)
    except ValueError as error:
        fail(str(error))


def how_to_go_on(options, names=None):
    words = ["./dev gpu", *(["--minutes", f"{options.minutes:g}"] if options.minutes else []), "--out",
             os.path.relpath(options.out, ROOT) if options.out.startswith(ROOT + os.sep) else options.out, "--continue",
             *(names or options.stages)]
    return " ".join(words)


def finish(session):
    print("\n" + "\n".join(table_of(session.document)))
    print(f"all results: {session.path}")
    if session.closed:
        print(f"the stage {session.closed} failed, and so nothing after it was run: {session.path} and log.txt beside it say why")
    for name in session.alone:
        print(f"in a call of its own: {how_to_go_on(session.options, [name])}")
    if session.left:
        print(f"left: {', '.join(session.left)}\ngo on with: {how_to_go_on(session.options)}")
    if session.options.keep:
        kept = os.path.join(ROOT, "bench", "results", kept_name(session.document))
        save_document(kept, session.document)
        print(f"kept: {os.path.relpath(kept, ROOT)}")
    sys.stdout.flush()


def main():
    facts = {"clocks": lambda: say_machine("clocks"), "machine": lambda: say_machine("all"), "nccl": say_nccl}
    if sys.argv[1:2] == [FACTS_FLAG]:
        return facts[sys.argv[2]]()
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
    passed = all(is_good(session.document, SMOKE, one.name) for one in smoke.commands)
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
