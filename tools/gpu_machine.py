"""The facts of a machine with a GPU, for `./dev gpu`: an object a line, each printed as soon as it is known. Nothing of
the GPU's settings is touched."""

import glob
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 30
GPU_FIELDS = ("name", "driver_version", "vbios_version", "memory.total", "memory.free", "ecc.mode.current", "mig.mode.current",
              "compute_mode", "power.limit", "pcie.link.gen.max", "pcie.link.width.max")
CLOCK_FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "clocks_event_reasons.active", "temperature.gpu",
                "power.draw", "pcie.link.gen.current", "pcie.link.width.current")
TOOLS = ("nvcc", "cuobjdump", "ncu", "nsys", "compute-sanitizer", "gcc", "meson", "ninja")
ABSENT = "absent"


def say(**facts):
    print(json.dumps(facts), flush=True)


def run(*arguments):
    """Returns a program's output; None: it is absent, or fails."""
    try:
        return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def ask_gpu(fields):
    """nvidia-smi refuses a whole question for one field that it does not know, so each is asked alone where that is so."""
    said = run("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader")
    if said is None and len(fields) > 1:
        found = {}
        for field in fields:
            found.update(ask_gpu([field]))
        return found
    values = [value.strip() for value in (said or "").splitlines()[0].split(",")] if said else []
    return dict(zip(fields, values)) if len(values) == len(fields) else {field: ABSENT for field in fields}


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def host():
    memory = dict(re.findall(r"^(\w+): +(\d+) kB", read("/proc/meminfo"), re.MULTILINE))
    model = re.search(r"^model name\s*: (.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return {"cpu": model[1] if model else "unknown", "cores": len(os.sched_getaffinity(0)), "all_cores": os.cpu_count(),
            "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")),
            "memory_total_kib": int(memory.get("MemTotal", -1)), "memory_available_kib": int(memory.get("MemAvailable", -1)),
            "memory_limit": read("/sys/fs/cgroup/memory.max").strip() or "unknown",
            "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], "kernel": platform.release(),
            "libc": " ".join(platform.libc_ver()), "python": platform.python_version(),
            "free_disk_mib": shutil.disk_usage(".").free >> 20}


def tool(name):
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    if path is None:
        return ABSENT
    numbered = [line for line in (run(path, "--version") or "").splitlines() if re.search(r"\d\.\d", line)]
    return f"{path}: {numbered[0].strip() if numbered else 'it does not say its version'}"


def kernels():
    """The registers and stack frames of our kernels, where the tree has the report of them."""
    script = os.path.join(HERE, "kernel_report.py")
    if not os.path.exists(script):
        return ABSENT
    try:
        # A report of a kernel that spills ends badly, and is a report.
        ended = subprocess.run([sys.executable, "-B", script, "--json"], capture_output=True, text=True, check=False,
                               timeout=LIMIT_S)
        return json.loads(ended.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ABSENT


def main():
    say(gpu=ask_gpu(GPU_FIELDS))
    say(clocks=ask_gpu(CLOCK_FIELDS))
    if sys.argv[1:] == ["clocks"]:
        return
    say(host=host())
    say(links=run("nvidia-smi", "topo", "-m") or ABSENT)
    for name in TOOLS:
        say(**{"tool " + name: tool(name)})
    say(kernels=kernels())


main()
