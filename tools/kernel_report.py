"""Prints the registers and shared memory of every CUDA kernel, as the assembler reported them when the kernels were
compiled, and how many blocks of it a multiprocessor holds. A kernel with a stack frame or spilled registers is named,
and fails.

usage: kernel_report.py [--json | --table] [FOLDER]

--table: Markdown, a column for each architecture (docs/kernels.md). FOLDER holds the reports; by default
build/kernels/cuda
"""

import glob
import json
import math
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
BLOCK_ENTRY = re.compile(r"\.entry (\w+)")
THREADS = re.compile(r"\.maxntid (\d+)(?:, (\d+), (\d+))?")
DYNAMIC = re.compile(r"// dynamic shared bytes (\d+)")
RELEASE = re.compile(r"// Cuda compilation tools, release ([\d.]+)")
ENDING = ".ptxas.txt"
NAMESPACE = "(anonymous namespace)::"
# Limits of a multiprocessor by compute capability: KB of shared memory, warps and blocks (CUDA C++ Programming Guide,
# Technical Specifications per Compute Capability). Each block costs a KB of shared memory besides its own; registers
# are given to a warp by 256, and to four warps at once.
MULTIPROCESSORS = {"80": (164, 64, 32), "86": (100, 48, 16), "89": (100, 48, 24), "90": (228, 64, 32),
                   "90a": (228, 64, 32), "100": (228, 64, 32), "120": (100, 48, 24)}
LANES, REGISTERS, REGISTER_UNIT, WARP_UNIT = 32, 65536, 256, 4


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
    blocks = blocks_of(text)
    for kernel in kernels:
        kernel.update(blocks.get(kernel["name"], {"threads": 0, "dynamic_bytes": 0}))
        kernel["blocks"] = blocks_at_once(kernel)
    return kernels


def blocks_of(text):
    """The threads and the dynamic shared memory of the kernels' blocks, by the PTX."""
    blocks, block = {}, None
    for line in text.splitlines():
        entry, threads, dynamic = BLOCK_ENTRY.search(line), THREADS.search(line), DYNAMIC.search(line)
        if entry:
            block = blocks.setdefault(entry[1], {"threads": 0, "dynamic_bytes": 0})
        elif threads and block is not None:
            block["threads"] = math.prod(int(count or 1) for count in threads.groups())
        elif dynamic and block is not None:
            block["dynamic_bytes"] = int(dynamic[1])
    return blocks


def blocks_at_once(kernel):
    """How many blocks of a kernel a multiprocessor holds; 0: the block or the architecture is not known."""
    if kernel["arch"] not in MULTIPROCESSORS or kernel["threads"] == 0:
        return 0
    shared_kb, most_warps, most_blocks = MULTIPROCESSORS[kernel["arch"]]
    warps = -(-kernel["threads"] // LANES)
    warp_registers = -(-kernel["registers"] * LANES // REGISTER_UNIT) * REGISTER_UNIT
    warps_by_registers = REGISTERS // warp_registers // WARP_UNIT * WARP_UNIT
    block_bytes = kernel["shared_bytes"] + kernel["dynamic_bytes"] + 1024
    return min(most_blocks, most_warps // warps, warps_by_registers // warps, shared_kb * 1024 // block_bytes)


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
    """The kernels of all reports, and the release of the compiler."""
    kernels, releases = [], set()
    for path in sorted(glob.glob(os.path.join(folder, "*" + ENDING))):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        kernels += kernels_of(text, os.path.basename(path).removesuffix(ENDING) + ".cu")
        releases |= set(RELEASE.findall(text))
    for kernel, name in zip(kernels, readable([kernel["name"] for kernel in kernels])):
        kernel["name"] = name
    return kernels, " and ".join(sorted(releases)) or "unknown"


def print_lines(kernels):
    print(f"{'registers':>9} {'threads':>7} {'shared':>7} {'blocks':>6} {'stack':>6} {'spilled':>7}  kernel")
    for kernel in kernels:
        print(f"{kernel['registers']:>9} {kernel['threads']:>7} {kernel['shared_bytes'] + kernel['dynamic_bytes']:>7} "
              f"{kernel['blocks']:>6} {kernel['stack_bytes']:>6} {kernel['spill_bytes']:>7}  {kernel['source']}: "
              f"{kernel['name']} (sm_{kernel['arch']})")


def cell(kernel):
    warps = kernel["blocks"] * -(-kernel["threads"] // LANES)
    return f"{kernel['registers']}: {kernel['blocks']} ({warps}/{MULTIPROCESSORS[kernel['arch']][1]})"


def print_table(kernels, release):
    """A row for each kernel, a column for each architecture. Code of 9.0 alone is in the column of 9.0."""
    archs = sorted({kernel["arch"].rstrip("a") for kernel in kernels} & MULTIPROCESSORS.keys(), key=int)
    rows = {}
    for kernel in kernels:
        key = (kernel["source"], kernel["name"], kernel["threads"], kernel["shared_bytes"] + kernel["dynamic_bytes"])
        rows.setdefault(key, {})[kernel["arch"].rstrip("a")] = cell(kernel)
    print(f"CUDA {release}\n")
    print("| kernel | threads | shared bytes | " + " | ".join(archs) + " |")
    print("|---" * (len(archs) + 3) + "|")
    for (source, name, threads, shared), cells in sorted(rows.items()):
        print(f"| `{source.removesuffix('.cu')}: {name}` | {threads} | {shared} | " +
              " | ".join(cells.get(arch, "") for arch in archs) + " |")


def main(arguments):
    as_json, as_table = "--json" in arguments, "--table" in arguments
    folders = [argument for argument in arguments if argument not in ("--json", "--table")] or ["build/kernels/cuda"]
    kernels, release = read(folders[0])
    if len(folders) > 1 or not kernels:
        print(f"kernel_report: {folders[0]} holds no report of nvcc's; build where nvcc is, with ./dev build",
              file=sys.stderr)
        return 2
    bad = [kernel for kernel in kernels if kernel["stack_bytes"] or kernel["spill_bytes"]]
    if as_json:
        print(json.dumps({"cuda": release, "kernels": kernels, "with_stack": len(bad)}, indent=1))
    elif as_table:
        print_table(kernels, release)
    else:
        print_lines(kernels)
    for kernel in bad:
        print(f"kernel_report: {kernel['name']} of {kernel['source']} (sm_{kernel['arch']}) keeps "
              f"{kernel['stack_bytes']} bytes on the stack, {kernel['spill_bytes']} of them spilled", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
