"""`./dev peers`: a peer that is not there, fails or lies leaves everything else measured, and the tables say what is missing.
The peers here are stand-ins; no speed is asserted."""

import filecmp
import json
import os
import shutil
import subprocess
import sys

import program
from program import script_test

ROOT = os.path.dirname(os.path.dirname(program.HERE))
PEERS = os.path.join(ROOT, "bench", "peers")
sys.path.insert(0, PEERS)
import install  # noqa: E402
import summary  # noqa: E402

SCRATCH = program.scratch_folder()
# A Python in whose folder torch and transformers are, and DeepSpeed is not. As a worker it makes three steps.
STAND_IN = """#!/bin/sh
case "$*" in
*deepspeed*) echo 'No module named deepspeed' >&2; exit 1 ;;
*import*torch*) echo 2.15.0 ;;
*import*) echo 5.24.0 ;;
*--compile*) echo 'no compiler' >&2; exit 3 ;;
*torch_step*) echo '{"seconds": [9.0, 0.5, 0.5], "losses": [5.0, 4.0, 3.0], "step_written_bytes": [0, 0, 0]}' ;;
*) echo 'never heard of it' ;;
esac
"""


def stand_in(name):
    folder = os.path.join(SCRATCH, name)
    os.makedirs(os.path.join(folder, "venv", "bin"))
    path = os.path.join(folder, "venv", "bin", "python")
    with open(path, "w", encoding="utf-8") as file:
        file.write(STAND_IN)
    os.chmod(path, 0o755)
    return folder


def peers(*flags):
    return program.limits.run([sys.executable, "-B", os.path.join(PEERS, "peers.py"), "--quick", "--no-install", "--program",
                           program.PROGRAM, "--folder", SCRATCH, "--threads", "1", *flags], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)


def results(name, *flags):
    path = os.path.join(SCRATCH, name)
    ended = peers("--json", path, *flags)
    if ended.returncode != 0:
        raise AssertionError(f"status {ended.returncode}: {ended.stderr[-800:]}")
    with open(path, encoding="utf-8") as file:
        return json.load(file), path


def outcomes(pair):
    """Returns for each contender how many runs it has, and whether it is missing."""
    return {one["name"]: (len(one["runs"]), one["missing"] is not None) for one in pair["contenders"]}


def contender(found, pair, name):
    return summary.contender_named(next(one for one in found["pairs"] if one["name"] == pair), name)


def what_runs_is_measured_and_what_fails_is_named():
    found, _ = results("some.json", "--peers", stand_in("some"), "--only", "step,nvme", "--rounds", "2")
    step, nvme = found["pairs"]
    problems = []
    wanted = {"spillway": (2, False), "spillway, fp32": (2, False), "torch eager, fp32": (2, False),
              "torch compiled, fp32": (0, True)}
    if not wanted.items() <= outcomes(step).items():
        problems.append(f"step: {outcomes(step)}")
    if [one[0] for one in outcomes(nvme).values()] != [2, 2, 0, 0, 2, 0]:
        problems.append(f"nvme: {outcomes(nvme)}")
    if "no compiler" not in contender(found, "step-tiny", "torch compiled, fp32")["missing"]:
        problems.append("the failed worker's words are lost")
    if "deepspeed is not here" not in contender(found, "nvme-tiny", "DeepSpeed, both on NVMe")["missing"]:
        problems.append("the peer that is not installed is not named")
    run = contender(found, "step-tiny", "torch eager, fp32")["runs"][0]
    if run["figures"] != {"step_s": 0.5} or run["losses"] != [5.0, 4.0, 3.0]:
        problems.append(f"the stand-in's numbers became {run}")
    own = contender(found, "nvme-tiny", "optimizer on NVMe")["runs"][0]
    if not (own["peak_bytes"] > 0 and own["step_written_bytes"] > 0 and len(own["losses"]) == 3):
        problems.append(f"ours lacks numbers: {own}")
    return problems


def without_any_peer_ours_is_measured():
    found, _ = results("none.json", "--peers", os.path.join(SCRATCH, "nothing"), "--only", "step,llm.c", "--rounds", "1")
    problems = [f"{pair['name']}: {outcomes(pair)}" for pair in found["pairs"]
                if [one[0] for one in outcomes(pair).values()] != [int(name.startswith("spillway")) for name in outcomes(pair)]]
    if "give --llm-c PROGRAM" not in contender(found, "llm.c", "llm.c")["missing"]:
        problems.append("llm.c is missing without a word")
    return problems


def tables(path, *flags):
    return program.limits.run([sys.executable, "-B", os.path.join(PEERS, "tables.py"), path, *flags], capture_output=True, text=True, check=False)


def tables_are_the_same_and_say_what_is_missing():
    found, path = results("tables.json", "--peers", stand_in("tables"), "--only", "step", "--rounds", "1")
    evidence, pictures = os.path.join(SCRATCH, "evidence.md"), os.path.join(SCRATCH, "pictures")
    marks = "<!-- bench/peers/tables.py: begin -->\nold\n<!-- bench/peers/tables.py: end -->\n"
    texts = []
    for _ in range(2):
        with open(evidence, "w", encoding="utf-8") as file:
            file.write(f"# before\n{marks}after\n")
        ended = tables(path, "--evidence", evidence, "--pictures", pictures)
        if ended.returncode != 0:
            return [ended.stderr]
        with open(evidence, encoding="utf-8") as file:
            texts.append(file.read())
    with open(os.path.join(pictures, "peers-step-tiny.svg"), encoding="utf-8") as file:
        picture = file.read()
    wanted = ["# before\n", "after\n", "no compiler", "| torch eager, fp32 |", "pictures/peers-step-tiny.svg", "| 3 |", "deepspeed: ",
              "too far"]
    problems = [f"the tables lack {one!r}" for one in wanted if one not in texts[0]]
    problems += [] if texts[0] == texts[1] and "old" not in texts[0] else ["the tables are not made anew each time"]
    measured = sum(runs > 0 for runs, _ in outcomes(found["pairs"][0]).values())
    problems += [] if picture.count("<rect") == measured + 1 else ["the picture has not one bar for each contender that ran"]
    return problems + ([] if found["pairs"][0]["machine"]["threads"] == 1 else ["the machine's threads are not told"])


def the_documents_hold_what_the_tables_print():
    """README, the page of the peers and its pictures are those of the measured results, and README's table is narrow enough."""
    documents = os.path.join(SCRATCH, "documents")
    kept = ["README.md", os.path.join("docs", "evidence", "peers.md")]
    for name in kept:
        os.makedirs(os.path.dirname(os.path.join(documents, name)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), os.path.join(documents, name))
    readme, evidence = (os.path.join(documents, name) for name in kept)
    ended = tables(os.path.join(ROOT, "docs", "measurements", "peers.json"), "--readme", readme, "--evidence", evidence,
                   "--pictures", os.path.join(documents, "docs", "pictures"))
    if ended.returncode != 0:
        return [ended.stderr]
    kept += [os.path.join("docs", "pictures", name) for name in os.listdir(os.path.join(documents, "docs", "pictures"))]
    problems = [f"{name} is not what bench/peers/tables.py makes" for name in kept
                if not filecmp.cmp(os.path.join(ROOT, name), os.path.join(documents, name), shallow=False)]
    with open(readme, encoding="utf-8") as file:
        rows = file.read().partition("tables.py: begin -->\n")[2].partition("<!--")[0].splitlines()
    problems += [f"wider than 100 columns: {row}" for row in rows if len(row) > 100]
    slower = sum(row.endswith("% slower |") for row in rows)
    return problems + ([] if 0 < slower < len(rows) - 2 else [f"{slower} of {len(rows) - 2} rows are slower"])


def a_pair_measured_again_takes_the_place_of_its_first():
    folder = stand_in("again")
    results("again.json", "--peers", folder, "--only", "step", "--rounds", "2")
    results("again.json", "--peers", folder, "--only", "llm.c", "--rounds", "1", "--llm-c", shutil.which("false"))
    found, _ = results("again.json", "--peers", folder, "--only", "step", "--rounds", "1")
    rounds = [(pair["name"], pair["rounds"]) for pair in found["pairs"]]
    problems = [] if rounds == [("step-tiny", 1), ("llm.c", 1)] else [f"the file has {rounds}"]
    if "printed 0 steps" not in (contender(found, "llm.c", "llm.c")["missing"] or ""):
        problems.append("a program that is not llm.c's passes for it")
    return problems


def pairs_of_another_machine_stay():
    _, path = results("moved.json", "--peers", stand_in("moved"), "--only", "step", "--rounds", "1")
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    found["pairs"][0]["machine"]["kernel"] = "1.2.3-other"
    program.write(path, json.dumps(found))
    found, _ = results("moved.json", "--peers", os.path.join(SCRATCH, "nothing"), "--only", "llm.c", "--rounds", "1")
    kernels = {pair["name"]: pair["machine"]["kernel"] for pair in found["pairs"]}
    problems = [] if kernels.pop("step-tiny", None) == "1.2.3-other" and list(kernels) == ["llm.c"] else [f"the file has {kernels}"]
    text = tables(path).stdout
    wanted = ["- `step-tiny`: ", "- `llm.c`: ", "Linux 1.2.3-other.", "torch 2.15.0"]
    return problems + [f"the tables of two machines lack {one!r}" for one in wanted if one not in text]


def a_file_of_something_else_is_left_alone():
    path = os.path.join(SCRATCH, "other.json")
    problems = []
    for content in ("[1, 2]", '{"name": "mine"}', "not JSON"):
        program.write(path, content)
        ended = peers("--json", path, "--peers", os.path.join(SCRATCH, "nothing"), "--only", "step", "--rounds", "1")
        with open(path, encoding="utf-8") as file:
            kept = file.read()
        if ended.returncode == 0 or kept != content or "name another file by --json" not in ended.stderr:
            problems.append(f"{content} became {kept}: {ended.stderr[-300:]}")
    return problems


def no_space_and_no_pip_are_reasons():
    problems = []
    usage = shutil.disk_usage
    shutil.disk_usage = lambda folder: usage(folder)._replace(free=1 << 20)
    try:
        why = install.install_package(SCRATCH, install.PACKAGES[0])
    finally:
        shutil.disk_usage = usage
    if "GiB free" not in (why or ""):
        problems.append(f"a full disk is told as {why}")
    blocked = os.path.join(SCRATCH, "a file")
    with open(blocked, "w", encoding="utf-8"):
        pass
    found = install.outcomes(os.path.join(blocked, "peers"))
    if any(found[package.name]["missing"] is None for package in install.PACKAGES):
        problems.append(f"without a virtual environment there are {found}")
    return problems


def wrong_flags_are_refused():
    wrong = (("--only", "nonesuch"), ("--rounds", "0"), ("--threads", "0"))
    return [f"{flags} is taken" for flags in wrong if peers(*flags).returncode == 0]


script_test.run(what_runs_is_measured_and_what_fails_is_named, without_any_peer_ours_is_measured,
                tables_are_the_same_and_say_what_is_missing, the_documents_hold_what_the_tables_print,
                a_pair_measured_again_takes_the_place_of_its_first, pairs_of_another_machine_stay,
                a_file_of_something_else_is_left_alone, no_space_and_no_pip_are_reasons, wrong_flags_are_refused)
