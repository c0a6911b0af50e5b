"""`./dev gpu` where there is no GPU: its sentence, its table and its one file, with results of the shape that the benches
and the runner write, made here; and small programs that end well, badly, late and not at all."""

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile

import script_test
import sources

TOOLS = os.path.join(sources.ROOT, "tools")
sys.path.insert(0, TOOLS)
import gpu  # noqa: E402
from gpu import FULL, Command, Stage, stages  # noqa: E402

DEVICE = {"name": "NVIDIA Made-Up 80GB", "driver": "1.2.3", "memory": "81559 MiB"}
DATE = "2026-01-02"
COPY = {"bench": "copy", "sizes": [{"bytes": 65536, "upload": {"bytes_per_s": 1e9}},
                                   {"bytes": 67108864, "upload": {"bytes_per_s": 5e10}, "download": {"bytes_per_s": 4e10},
                                    "both": {"of_upload": 0.95, "of_download": 0.5}}]}
STEP = {"bench": "step", "steps": {"placed": {"step_s": 40.0}, "resident": {"placed_ratio": 1.25},
                                   "predicted": {"placed_ratio": 1.02}},
        "speed": {"tokens_per_s": 13107.2, "of_peak": None, "of_products": 0.8, "speed_of_light": {"share": 0.6}}}


NO_GPU = {"what": "gpu", "found": "1 from NVIDIA, but no driver", "facts": {"cuda_works": False}}
GPU = {"what": "gpu", "found": "NVIDIA", "facts": {"cuda_works": True}}
TESTED = {"what": "self-test", "found": "all correct", "facts": {"passed": True}}
WRONG = {"what": "self-test", "found": "its products failed", "facts": {"passed": False}}
UNTESTED = {"what": "self-test", "found": "the self-test has not run", "facts": {}}


def doctor(*findings):
    return gpu.read_doctor(0, json.dumps({"findings": findings}), "")


def shell(name, text, kind="status", limit_s=20.0, made=(), tool=""):
    return Command(name, kind, ("/bin/sh", "-c", text), limit_s, made, tool)


def run(command, keep_part=lambda result: None):
    """A command's result and what it left in the log."""
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
    path = os.path.join(folder, "log.txt")
    result = gpu.run_command(command, command.limit_s, gpu.Log(path), gpu.Running(), keep_part)
    with open(path, encoding="utf-8") as file:
        log = file.read()
    shutil.rmtree(folder)
    return result, log


def one_sentence_without_a_gpu():
    empty = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
    problems = []
    for arguments, words in (([], ("no GPU works here", "./dev bundle", "./dev test")), (["yardsticks"], ("no GPU works here",)),
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
        ("a doctor", doctor(GPU, TESTED), True), ("a quick doctor", doctor(GPU, UNTESTED), True),
        ("a doctor without a GPU", doctor(NO_GPU), False), ("a doctor of a wrong GPU", doctor(GPU, WRONG), False),
        ("a doctor that did not test", doctor(GPU), False),
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
        ("lines", gpu.read_lines(0, '{"a": 1}\n{"b": 2}\n', ""), True),
        ("no lines", gpu.read_lines(0, "", ""), False), ("bad lines", gpu.read_lines(0, '{"a": 1}\ntext\n', ""), False),
        ("lines of a failure", gpu.read_lines(1, '{"a": 1}\n', "no"), False),
        ("an absent peer", gpu.read_lines(0, '{"absent": "PyTorch"}\n', ""), True),
        ("a test program", gpu.read_tap(0, "1..1\nok 1 - a\n", ""), True),
        ("a failed test", gpu.read_tap(1, "1..2\nok 1 - a\nnot ok 2 - b\n", ""), False),
        ("a skipped test", gpu.read_tap(0, "1..1\nok 1 # SKIP no GPU\n", ""), False),
        ("a crash", gpu.read_tap(-11, "1..2\nok 1 - a\n", ""), False),
        ("a refusal", gpu.read_sanitizer(0, "Device not supported\n", ""), False)]
    problems = [f"{what}: {found}" for what, found, good in table if found["ok"] != good]
    failed = gpu.read_tests(1, "failed in: a/b\n1 passed, 2 failed, 0 skipped\n", "")
    return problems + ([] if "a/b" in failed["error"] else [f"{failed}"])


def commands_end_within_their_limits():
    """A failure, a program that is not there and one that hangs lose nothing but their own."""
    made = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TMPDIR", ".")), "made")
    with open(made, "w", encoding="utf-8") as file:
        file.write("old")
    table = [(shell("fresh", f"test ! -e {made}", made=(made,)), True, ""), (shell("bad", "echo why >&2; exit 3"), False, "why"),
             (Command("absent", "status", ("/does/not/exist",)), False, "cannot be started"),
             (shell("good", "echo '{\"bench\": \"x\"}'", "bench"), True, ""),
             (shell("hangs", "echo said; sleep 100000 & wait", limit_s=1), False, "limit"),
             (shell("tool", "exit 1", tool="spillway-has-no-such-tool"), True, "")]
    problems = []
    for command, good, word in table:
        result, log = run(command)
        if result["ok"] != good or word not in result.get("error", ""):
            problems.append(f"{command.name}: {result}")
        if command.name == "hangs" and (not result.get("limit") or "hangs: said" not in log):
            problems.append(f"{result}, {log!r}")
        if command.name == "tool" and "absent: spillway-has-no-such-tool" not in gpu.lines_of("s", "tool", result)[0]:
            problems.append(f"{result}")
    shutil.rmtree(os.path.dirname(made))
    return problems


def parts_are_kept_while_a_command_runs():
    parts = []
    said = "echo '{\"first\": 1}'; echo '{\"second\": 2}'; sleep 100"
    result, _ = run(shell("slow", said, "lines", limit_s=2), lambda part: parts.append(dict(part)))
    if not parts or parts[-1]["values"] != {"first": 1, "second": 2} or any(part["ok"] for part in parts):
        return [f"{parts}"]
    return [] if not result["ok"] and result["values"] == {"first": 1, "second": 2} else [f"{result}"]


def one_file_of_parts():
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
    path = os.path.join(folder, "results", "results.json")
    gpu.save_document(path, gpu.new_document(DEVICE, DATE))
    for stage, commit, name, result in (
            ("yardsticks", "a", "copy", {"ok": True, "values": COPY}), ("tests", "a", "tests", {"ok": False, "error": "old"}),
            ("step-7b", "b", "step-7b", {"ok": True, "values": STEP}),
            ("tests", "b", "tests", {"ok": True, "counts": "9 passed, 0 failed, 0 skipped"}),
            ("yardsticks", "b", "x", {"ok": True, "values": {}}), ("yardsticks", "b", "y", {"ok": False, "error": "why"}),
            ("peers", "b", "torch", {"ok": False, "error": "cut", "limit": True, "values": {
                "pairs": {"all products": {"of_peer": 0.8, "of_peer_least": True},
                          "qkv": {"ours_s": 1.0, "peer_s": 2.0, "not_compared": "at 900 MHz"}}}})):
        document = gpu.load_document(path, DEVICE)
        gpu.put_result(document, stage, commit, name, result)
        gpu.save_document(path, document)
    document = gpu.load_document(path, DEVICE)
    found = {name: [(key, one["commit"], one["ok"]) for key, one in stage["results"].items()]
             for name, stage in document["stages"].items()}
    problems = [] if found == {"yardsticks": [("copy", "a", True), ("x", "b", True), ("y", "b", False)],
                               "tests": [("tests", "b", True)], "step-7b": [("step-7b", "b", True)],
                               "peers": [("torch", "b", False)]} else [f"{found}"]
    for stage, name, has in (("tests", "tests", True), ("tests", "more", False), ("none", "tests", False), ("peers", "torch", False)):
        problems += [] if gpu.has_result(document, stage, name) == has else [f"{stage}: {name}: {not has}"]
    if gpu.kept_name(document) != "nvidia-made-up-80gb-2026-01-02.json":
        problems.append(gpu.kept_name(document))
    for other in ({**DEVICE, "driver": "4"}, {**DEVICE, "name": "Other"}):
        try:
            problems.append(f"merged with {gpu.load_document(path, other)['device']}")
        except ValueError:
            pass
    shutil.rmtree(folder)
    return problems + wrong_table(gpu.table_of(document))


def wrong_table(lines):
    expected = [("yardsticks", "upload GB/s", "50"), ("yardsticks", "upload, both run", "reaches 0.9"),
                ("yardsticks", "download, both run", "BELOW 0.9"), ("peers", "CUT OFF", ""), ("peers", "of PyTorch", "BELOW 0.9"),
                ("peers", "not compared with PyTorch: at 900 MHz", ""), ("step-7b", "tokens/s", "BELOW 14000"),
                ("step-7b", "flops of products", "reaches 0.75"), ("step-7b", "of the resident speed", "BELOW 0.95"),
                ("tests", "9 passed", ""), ("yardsticks", "FAILED: why", "")]
    problems = [f"no line of {words}: {lines}" for words in expected
                if not any(line.startswith(words[0]) and words[1] in line and words[2] in line for line in lines)]
    if DEVICE["name"] not in lines[0] or any("of peak" in line for line in lines):
        problems.append(f"{lines}")
    return problems


def stages_are_in_order():
    """Results have one name each, what is measured runs alone, and what tells most for its time comes first."""
    table = stages(FULL, "out")
    names = [(stage.name, command.name) for stage in table for command in stage.commands]
    problems = [] if len(names) == len(set(names)) else ["two commands have one name"]
    for stage in table:
        problems += [f"{stage.name} measures several things at once" for command in stage.commands
                     if command.kind == "bench" and stage.together != 1]
        problems += [f"{command.name} has no limit" for command in stage.commands if not 0 < command.limit_s < 600]
    order = [stage.name for stage in table]
    wanted = ["machine", "build", "smoke", "doctor", "tests", "yardsticks", "peers", "bits", "compute", "step-0.5b", "step-7b-short",
              "step-7b", "sanitizer", "races"]
    marked = [(stage.name, stage.gate, stage.alone) for stage in table if stage.gate or stage.alone]
    if marked != [("build", True, False), ("smoke", True, False), ("step-7b", False, True)]:
        problems.append(f"{marked}")
    smoke = next(stage for stage in table if stage.name == "smoke")
    if smoke.together < len(smoke.commands) or any(command.limit_s > 20 for command in smoke.commands):
        problems.append(f"{smoke}")
    return problems if [name for name in order if name in wanted] == wanted else [*problems, f"{order}"]


def run_stages(session, table):
    """The names that are left, and what was printed."""
    gpu.stages, printed = lambda scale, out: table, io.StringIO()
    with contextlib.redirect_stdout(printed):
        gpu.run_stages(session, None, [stage.name for stage in table])
        gpu.finish(session)
    return printed.getvalue()


def a_failed_smoke_ends_the_run():
    """Nothing after it is run; once it is mended, only what failed of it is run again, and then the rest."""
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
    fine, mark, mended = (os.path.join(folder, name) for name in ("fine", "mark", "mended"))
    table = [Stage("smoke", "", (shell("fine", f"echo x >> {fine}"), shell("bad", f"test -e {mended}")), together=2, gate=True),
             Stage("later", "", (shell("never", f"touch {mark}"),))]
    options = argparse.Namespace(out=folder, minutes=0, go_on=False, stages=[], keep=False)
    session = gpu.Session(options, gpu.new_document(DEVICE, DATE))
    session.alone = ["own"]
    printed = run_stages(session, table)
    problems = [] if session.closed == "smoke" and not session.good and session.left == ["later: never"] and not os.path.exists(mark) else [
        f"{session.closed}, {session.left}, {os.listdir(folder)}"]
    problems += [f"'{words}' is not in {printed}" for words in ("the stage smoke failed", "--continue", "a call of its own", " own\n")
                 if words not in printed]
    with open(mended, "w", encoding="utf-8"):
        options.go_on = True
    again = gpu.Session(options, session.document)
    again.alone = []
    printed = run_stages(again, table)
    with open(fine, encoding="utf-8") as file:
        times = file.read().count("x")
    if again.closed or not again.good or again.left or not os.path.exists(mark) or times != 1 or "failed" in printed:
        problems.append(f"mended: {again.closed}, {again.left}, {os.listdir(folder)}, {times}, {printed}")
    shutil.rmtree(folder)
    return problems


class Fake:
    """In the place of the driver and of NCCL: memory is a dictionary, and the sum copies, or does not."""

    def __init__(self, sums=True, broken=""):
        self.sums, self.broken, self.called, self.memory = sums, broken, [], {}

    def __getattr__(self, name):
        def call(*arguments):
            self.called.append(name)
            if name == "cuMemAlloc_v2":
                arguments[0]._obj.value = 4096
            if name == "cuMemcpyHtoD_v2":
                self.memory[arguments[0].value] = arguments[1]
            if name == "ncclAllReduce" and self.sums:
                self.memory[arguments[1].value] = self.memory[arguments[0].value]
            if name == "cuMemcpyDtoH_v2" and arguments[1].value in self.memory:
                arguments[0].value = self.memory[arguments[1].value]
            return 3 if name == self.broken else 0
        return call


def nccl_alone():
    """Each call's failure is named, and a sum that does not come back is one."""
    problems = []
    for fake, words in ((Fake(), ""), (Fake(sums=False), "not these numbers"), (Fake(broken="ncclCommInitRank"), "ncclCommInitRank failed with 3"),
                        (Fake(broken="cuInit"), "cuInit failed with 3")):
        try:
            gpu.join_and_sum(fake, fake)
            said = ""
        except gpu.Failure as failure:
            said = str(failure)
        problems += [] if words in said and bool(words) == bool(said) else [f"{words!r}: {said!r}"]
    return problems if gpu.load_library(["libspillway-has-no-such.so"]) is None else [*problems, "a library that is not there was loaded"]


script_test.run(one_sentence_without_a_gpu, outputs_are_read, commands_end_within_their_limits,
                parts_are_kept_while_a_command_runs, one_file_of_parts, stages_are_in_order, a_failed_smoke_ends_the_run,
                nccl_alone)
