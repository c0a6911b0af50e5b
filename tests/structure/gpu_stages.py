"""`./dev gpu` where there is no GPU: its sentence, its table and its one file, with results of the shape that the benches
and the runner write, made here; and stages of small programs that end well, badly, late and not at all."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import script_test
import sources

TOOLS = os.path.join(sources.ROOT, "tools")
sys.path.insert(0, TOOLS)
import gpu  # noqa: E402
import gpu_report  # noqa: E402
from gpu_stages import LIMIT_S, STAGES, Command, Stage  # noqa: E402

DEVICE = {"name": "NVIDIA Made-Up 80GB", "driver": "1.2.3", "memory": "81559 MiB"}
DATE = "2026-01-02"
COPY = {"bench": "copy", "sizes": [{"bytes": 65536, "upload": {"bytes_per_s": 1e9}},
                                   {"bytes": 67108864, "upload": {"bytes_per_s": 5e10}, "download": {"bytes_per_s": 4e10},
                                    "both": {"of_upload": 0.95, "of_download": 0.5}}]}
STEP = {"bench": "step", "steps": {"placed": {"step_s": 40.0}, "resident": {"placed_ratio": 1.25},
                                   "predicted": {"placed_ratio": 1.02}},
        "speed": {"tokens_per_s": 13107.2, "of_peak": None, "of_products": 0.8, "speed_of_light": {"share": 0.6}}}


def shell(name, text, kind="status"):
    return Command(name, kind, ("/bin/sh", "-c", text))


def run_quietly(stage, limit_s, keep):
    """A stage's results and what keep was called with; what it prints is not this test's output."""
    said, sys.stdout = sys.stdout, open(os.devnull, "w", encoding="utf-8")
    try:
        return gpu.run_stage(stage, limit_s, lambda results: keep.append(json.loads(json.dumps(results))))
    finally:
        sys.stdout.close()
        sys.stdout = said


def one_sentence_without_a_gpu():
    empty = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
    problems = []
    for arguments, words in (([], ("no GPU works here", "./dev bundle", "./dev test")), (["copy"], ("no GPU works here",)),
                             (["nothing"], ("'nothing'", "step-7b"))):
        ended = subprocess.run([sys.executable, "-B", os.path.join(TOOLS, "gpu.py"), *arguments], capture_output=True,
                               text=True, check=False, env={**os.environ, "PATH": empty})
        if ended.returncode != 1 or ended.stdout or ended.stderr.count("\n") != 1 or not all(word in ended.stderr for word in words):
            problems.append(f"{arguments}: {ended.stdout!r}, {ended.stderr!r}")
    shutil.rmtree(empty)
    return problems


def outputs_are_read():
    table = [
        ("a bench", gpu.read_bench(0, '{"bench": "copy"}', ""), True), ("a bad bench", gpu.read_bench(1, "", "no"), False),
        ("no JSON", gpu.read_bench(0, "text", ""), False),
        ("tests", gpu.read_tests(0, "x\n12 passed, 0 failed, 0 skipped\n", ""), True),
        ("skipped tests", gpu.read_tests(0, "12 passed, 0 failed, 1 skipped\n", ""), False),
        ("no tests", gpu.read_tests(1, "0 passed, 0 failed, 0 skipped\n", ""), False),
        ("failed tests", gpu.read_tests(1, "failed in: a/b\n1 passed, 2 failed, 0 skipped\n", ""), False),
        ("memcheck", gpu.read_sanitizer(0, "========= ERROR SUMMARY: 0 errors\n", ""), True),
        ("its errors", gpu.read_sanitizer(9, "========= ERROR SUMMARY: 3 errors\n", ""), False),
        ("racecheck", gpu.read_sanitizer(0, "= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", ""),
         True),
        ("its hazards", gpu.read_sanitizer(0, "= RACECHECK SUMMARY: 2 hazards displayed (2 errors)\n", ""), False),
        ("a skipped program", gpu.read_sanitizer(0, "1..0 # SKIP no GPU\n= ERROR SUMMARY: 0 errors\n", ""), False),
        ("a refusal", gpu.read_sanitizer(0, "Device not supported\n", ""), False)]
    problems = [f"{what}: {found}" for what, found, good in table if found["ok"] != good]
    failed = gpu.read_tests(1, "failed in: a/b\n1 passed, 2 failed, 0 skipped\n", "")
    return problems + ([] if "a/b" in failed["error"] else [f"{failed}"])


def stages_keep_what_they_have():
    """A failure, a program that is not there and one that hangs lose nothing but their own."""
    made = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TMPDIR", ".")), "made")
    with open(made, "w", encoding="utf-8") as file:
        file.write("old")
    stage = Stage("s", "", (Command("fresh", "status", ("/bin/sh", "-c", f"test ! -e {made}"), (made,)),
                            shell("bad", "echo why >&2; exit 3"), Command("absent", "status", ("/does/not/exist",)),
                            shell("good", "echo '{\"bench\": \"x\"}'", "bench"), shell("hangs", "sleep 100 & wait"),
                            shell("late", "true")))
    kept, started = [], time.monotonic()
    good = run_quietly(stage, 4.0, kept)
    shutil.rmtree(os.path.dirname(made))
    last, problems = kept[-1], []
    if good or time.monotonic() - started > 60 or [len(one) for one in kept] != [1, 2, 3, 4, 5, 6]:
        problems.append(f"{good}, {kept}")
    expected = {"fresh": True, "bad": False, "absent": False, "good": True, "hangs": False, "late": False}
    if {name: one["ok"] for name, one in last.items()} != expected:
        problems.append(f"{last}")
    for name, word in (("bad", "why"), ("absent", "cannot be started"), ("hangs", "limit"), ("late", "used up")):
        if word not in last[name].get("error", ""):
            problems.append(f"{name}: {last[name]}")
    kept = []
    both = Stage("t", "", (shell("a", "sleep 0.5"), shell("b", "sleep 0.5")), together=2)
    return problems + ([] if run_quietly(both, 20, kept) and len(kept[-1]) == 2 else [f"{kept}"])


def one_file_of_parts():
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
    path = os.path.join(folder, "results", gpu_report.file_name(DEVICE, DATE))
    problems = [] if os.path.basename(path) == "nvidia-made-up-80gb-2026-01-02.json" else [path]
    for stage, commit, results in (("copy", "a", {"copy": {"ok": True, "values": COPY}}),
                                   ("tests", "a", {"tests": {"ok": False, "error": "old"}}),
                                   ("step-7b", "b", {"step-7b": {"ok": True, "values": STEP}}),
                                   ("tests", "b", {"tests": {"ok": True, "counts": "9 passed, 0 failed, 0 skipped"}}),
                                   ("gemm", "b", {"x": {"ok": True, "values": {}}, "y": {"ok": False, "error": "why"}})):
        document = gpu_report.load(path, DEVICE, DATE)
        gpu_report.save(path, gpu_report.merge(document, stage, commit, results))
    document = gpu_report.load(path, DEVICE, DATE)
    found = {name: (stage["commit"], stage["ok"]) for name, stage in document["stages"].items()}
    if found != {"copy": ("a", True), "tests": ("b", True), "step-7b": ("b", True), "gemm": ("b", False)}:
        problems.append(f"{found}")
    for other in ({**DEVICE, "driver": "4"}, {**DEVICE, "name": "Other"}):
        try:
            problems.append(f"merged with {gpu_report.load(path, other, DATE)['device']}")
        except ValueError:
            pass
    shutil.rmtree(folder)
    return problems + wrong_table(gpu_report.table(document))


def wrong_table(lines):
    expected = [("copy", "upload GB/s", "50"), ("copy", "upload, both run", "reaches 0.9"),
                ("copy", "download, both run", "BELOW 0.9"), ("step-7b", "tokens/s", "BELOW 14000"),
                ("step-7b", "flops of products", "reaches 0.75"), ("step-7b", "of the resident speed", "BELOW 0.95"),
                ("tests", "9 passed", ""), ("gemm", "FAILED: why", "")]
    problems = [f"no line of {words}: {lines}" for words in expected
                if not any(line.startswith(words[0]) and words[1] in line and words[2] in line for line in lines)]
    if DEVICE["name"] not in lines[0] or any("of peak" in line for line in lines):
        problems.append(f"{lines}")
    return problems


def stages_are_what_exists():
    """Every program and flag that a stage names, so that a day with a GPU is not lost to a slip."""
    with open(os.path.join(sources.ROOT, "tests", "kernels", "meson.build"), encoding="utf-8") as file:
        declared = file.read()
    problems = [] if LIMIT_S < 9 * 60 else [f"stages of {LIMIT_S} s"]
    names = [command.name for stage in STAGES for command in stage.commands]
    if len(names) != len(set(names)):
        problems.append("two commands have one name")
    for stage in STAGES:
        for command in stage.commands:
            if command.kind == "sanitizer":
                op = os.path.basename(command.arguments[-1])[len("kernels_"):-len("_gpu")]
                problems += [] if f"'{op}'" in declared else [f"there are no tests of {op}"]
            elif command.kind == "bench" and stage.together != 1:
                problems.append(f"{stage.name} measures several things at once")
    return problems


script_test.run(one_sentence_without_a_gpu, outputs_are_read, stages_keep_what_they_have, one_file_of_parts,
                stages_are_what_exists)
