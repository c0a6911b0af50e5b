"""Prints the registers and shared memory of every CUDA kernel, as the assembler reported them when the kernels were
compiled. A kernel with a stack frame or spilled registers is named, and fails.

usage: kernel_report.py [--json] [FOLDER]    FOLDER holds the reports; by default build/kernels/cuda
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

ENTRY = re.compile(r"ptxas info +: Compiling entry function '([^']+)' for 'sm_(\w+)'")
PROPERTIES = re.compile(r"ptxas info +: Function properties for (\S+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info +: Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
ENDING = ".ptxas.txt"
NAMESPACE = "(anonymous namespace)::"


def kernels_of(text, source):
    """The kernels of one report. `stack_bytes`: the largest frame of the kernel and of the functions that it calls;
    `shared_bytes`: static shared memory, without what a launch adds."""
    kernels = []
    for line in text.splitlines():
        entry, stack, used = ENTRY.search(line), STACK.search(line), USED.search(line)
        if entry:
            kernels.append({"source": source, "name": entry[1], "arch": entry[2], "registers": 0, "shared_bytes": 0,
                            "stack_bytes": 0, "spill_bytes": 0})
        elif stack and kernels:
            kernel, (frame, stores, loads) = kernels[-1], map(int, stack.groups())
            kernel["stack_bytes"] = max(kernel["stack_bytes"], frame)
            kernel["spill_bytes"] = max(kernel["spill_bytes"], stores, loads)
        elif used and kernels:
            shared = SHARED.search(line)
            kernels[-1].update(registers=int(used[1]), shared_bytes=int(shared[1]) if shared else 0)
    return kernels


def readable(names):
    """Returns the readable forms of the compiler's names, without arguments and namespaces; unchanged without c++filt."""
    if shutil.which("c++filt") is None:
        return names
    shown = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [short(name) for name in shown.splitlines()]


def short(name):
    name = re.sub(r"\((?:sw_\w+)\)(\d+)", r"\1", name.replace(NAMESPACE, "")).removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at].replace("sw_cuda_", "")
    return name.replace("sw_cuda_", "")


def read(folder):
    kernels = []
    for path in sorted(glob.glob(os.path.join(folder, "*" + ENDING))):
        with open(path, encoding="utf-8") as file:
            kernels += kernels_of(file.read(), os.path.basename(path).removesuffix(ENDING) + ".cu")
    for kernel, name in zip(kernels, readable([kernel["name"] for kernel in kernels])):
        kernel["name"] = name
    return kernels


def print_table(kernels):
    print(f"{'registers':>9} {'shared':>7} {'stack':>6} {'spilled':>7}  kernel")
    for kernel in kernels:
        print(f"{kernel['registers']:>9} {kernel['shared_bytes']:>7} {kernel['stack_bytes']:>6} "
              f"{kernel['spill_bytes']:>7}  {kernel['source']}: {kernel['name']} (sm_{kernel['arch']})")


def main(arguments):
    as_json = "--json" in arguments
    folders = [argument for argument in arguments if argument != "--json"] or ["build/kernels/cuda"]
    kernels = read(folders[0])
    if len(folders) > 1 or not kernels:
        print(f"kernel_report: {folders[0]} holds no report of nvcc's; build where nvcc is, with ./dev build",
              file=sys.stderr)
        return 2
    bad = [kernel for kernel in kernels if kernel["stack_bytes"] or kernel["spill_bytes"]]
    if as_json:
        print(json.dumps({"kernels": kernels, "with_stack": len(bad)}, indent=1))
    else:
        print_table(kernels)
    for kernel in bad:
        print(f"kernel_report: {kernel['name']} of {kernel['source']} (sm_{kernel['arch']}) keeps "
              f"{kernel['stack_bytes']} bytes on the stack, {kernel['spill_bytes']} of them spilled", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
