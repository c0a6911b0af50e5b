"""The compiler's report on the CUDA kernels: on no architecture has one a stack frame or spilled registers, the tool that
reads it finds one that has, and counts the blocks that a multiprocessor holds as docs/kernels.md says."""

import json
import os
import re
import subprocess
import sys
import tempfile

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TESTS, "structure"))
import script_test  # noqa: E402

TOOL = os.path.join(os.path.dirname(TESTS), "tools", "kernel_report.py")
TABLE = os.path.join(os.path.dirname(TESTS), "docs", "kernels.md")
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5firstPf' for 'sm_90'
ptxas info    : Function properties for _Z5firstPf
    {frame} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem
ptxas info    : Compiling entry function '_Z6secondPf' for 'sm_90'
ptxas info    : Function properties for _Z6secondPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers
ptxas info    : Function properties for _Z6calleef
    {callee} bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
# Two blocks by registers, by shared memory and by warps, and none where the PTX does not say the threads.
BLOCKS = (({"arch": "80", "registers": 255, "threads": 128, "bytes": 0}, 2),
          ({"arch": "89", "registers": 32, "threads": 128, "bytes": 49 << 10}, 2),
          ({"arch": "89", "registers": 32, "threads": 128, "bytes": (49 << 10) + 1}, 1),
          ({"arch": "90a", "registers": 168, "threads": 128, "bytes": 227 << 10}, 1),
          ({"arch": "120", "registers": 16, "threads": 768, "bytes": 0}, 2),
          ({"arch": "86", "registers": 16, "threads": 32, "bytes": 0}, 16),
          ({"arch": "100", "registers": 65, "threads": 256, "bytes": 0}, 3),
          ({"arch": "90", "registers": 16, "threads": 0, "bytes": 0}, 0))
ONE_KERNEL = """ptxas info    : Compiling entry function '_Z5firstPf' for 'sm_{arch}'
ptxas info    : Function properties for _Z5firstPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
// Cuda compilation tools, release 13.0, V13.0.88
.visible .entry _Z5firstPf(
{threads}
	// dynamic shared bytes {bytes}
"""


def reported(folder, *arguments):
    return subprocess.run([sys.executable, "-B", TOOL, *arguments, folder], capture_output=True, text=True, check=False)


def report_of(text, *arguments):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        with open(os.path.join(folder, "some.ptxas.txt"), "w", encoding="utf-8") as file:
            file.write(text)
        return reported(folder, *arguments)


def planted(frame=0, spill=0, callee=0):
    return report_of(REPORT.format(frame=frame, spill=spill, callee=callee), "--json")


def frames_and_spills_are_found():
    problems = []
    for name, arguments, expected in (("none", {}, 0), ("a frame", {"frame": 8}, 1), ("a spill", {"spill": 4}, 1),
                                      ("a frame of a function that is called", {"callee": 16}, 1)):
        ended = planted(**arguments)
        if (ended.returncode, json.loads(ended.stdout)["with_stack"]) != (expected, expected):
            problems.append(f"{name}: {ended.stdout}{ended.stderr}")
    kernels = json.loads(planted().stdout)["kernels"]
    figures = [(kernel["registers"], kernel["shared_bytes"]) for kernel in kernels]
    return problems + ([] if figures == [(40, 2048), (16, 0)] else [f"figures are {figures}"])


def blocks_are_counted():
    problems = []
    for given, expected in BLOCKS:
        threads = f".maxntid {given['threads']}, 1, 1" if given["threads"] else ""
        kernel, = json.loads(report_of(ONE_KERNEL.format(**{**given, "threads": threads}), "--json").stdout)["kernels"]
        if kernel["blocks"] != expected:
            problems.append(f"{given}: {kernel}, and {expected} blocks were expected")
    table = report_of(ONE_KERNEL.format(arch="89", registers=40, threads=".maxntid 256", bytes=1024), "--table").stdout
    return problems + ([] if "CUDA 13.0" in table and "| 256 | 1024 | 40: 6 (48/48) |" in table else [table])


def a_folder_without_reports_is_named():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        ended = reported(folder)
    return [] if ended.returncode == 2 and folder in ended.stderr else [ended.stderr]


def no_kernel_has_a_stack_frame():
    folder = os.environ["SW_KERNEL_REPORTS"]
    if not folder:
        raise script_test.Skip("no nvcc")
    ended = reported(folder)
    print(ended.stdout, end="")
    return ended.stderr.splitlines() + ([] if ended.returncode == 0 else [f"exit status {ended.returncode}"])


def kernels_are_for_every_architecture():
    if not os.environ["SW_KERNEL_REPORTS"]:
        raise script_test.Skip("no nvcc")
    archs = set(os.environ["SW_KERNEL_ARCHS"].split())
    found = {}
    for kernel in json.loads(reported(os.environ["SW_KERNEL_REPORTS"], "--json").stdout)["kernels"]:
        found.setdefault((kernel["source"], kernel["name"]), set()).add(kernel["arch"])
    wrong = {name: sorted(of) for name, of in found.items() if of not in (archs, {"90a"})}
    return [] if found and not wrong else [f"these kernels are not for {sorted(archs)}: {wrong}"]


def without_registers(row):
    return re.sub(r"\d+: ", "", row)


def the_table_is_in_step():
    """Each row of docs/kernels.md has the blocks that the same compiler makes now. Registers may move by one or two with
    what else is in a file."""
    if not os.environ["SW_KERNEL_REPORTS"]:
        raise script_test.Skip("no nvcc")
    with open(TABLE, encoding="utf-8") as file:
        page = file.read().splitlines()
    table = reported(os.environ["SW_KERNEL_REPORTS"], "--table").stdout.splitlines()
    if table[0] not in page or table[2] not in page:
        raise script_test.Skip(f"docs/kernels.md is of another compiler or other architectures than {table[0]}, {table[2]}")
    made = {without_registers(line) for line in table}
    return [f"./dev kernels --table has other blocks than {line}" for line in page
            if line.startswith("| `") and without_registers(line) not in made]


script_test.run(frames_and_spills_are_found, blocks_are_counted, a_folder_without_reports_is_named,
                no_kernel_has_a_stack_frame, kernels_are_for_every_architecture, the_table_is_in_step)
