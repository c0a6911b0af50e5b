"""The compiler's report on the CUDA kernels: none has a stack frame or spilled registers, and the tool that reads it
finds one that has."""

import json
import os
import subprocess
import sys
import tempfile

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TESTS, "structure"))
import script_test  # noqa: E402

TOOL = os.path.join(os.path.dirname(TESTS), "tools", "kernel_report.py")
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


def reported(folder, *arguments):
    return subprocess.run([sys.executable, "-B", TOOL, *arguments, folder], capture_output=True, text=True, check=False)


def planted(frame=0, spill=0, callee=0):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        with open(os.path.join(folder, "some.ptxas.txt"), "w", encoding="utf-8") as file:
            file.write(REPORT.format(frame=frame, spill=spill, callee=callee))
        return reported(folder, "--json")


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


script_test.run(frames_and_spills_are_found, a_folder_without_reports_is_named, no_kernel_has_a_stack_frame)
