"""Installs the peers in pinned versions into a folder of their own, and tells of each peer which version is there or why it
is not. A peer that cannot be had is a sentence, never an error: the others are measured without it.

usage: install.py [--folder DIR]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

GIB = 1 << 30
CHECK_S, INSTALL_S = 300, 1800


@dataclass(frozen=True)
class Package:
    """A Python package with what it needs beside it. `space_bytes` is the free space that its installation takes."""
    name: str
    pinned: tuple
    space_bytes: int
    needs: tuple = ()


# Order of installation: DeepSpeed's own installer imports torch.
PACKAGES = (
    Package("torch", ("torch==2.15.0", "numpy==2.4.6", "setuptools==84.2.1", "wheel==0.48.0", "ninja==1.13.2"), 9 * GIB),
    Package("transformers", ("transformers==5.24.0", "safetensors==0.8.0"), GIB, ("torch",)),
    Package("deepspeed", ("deepspeed==0.19.8", "accelerate==1.15.0"), GIB, ("torch", "transformers")),
)
PROGRAMS = {"a GPU": ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"), "fio": ("fio", "--version"),
            "mpirun": ("mpirun", "--version")}


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "spillway", "peers")


def python_of(folder):
    return os.path.join(folder, "venv", "bin", "python")


def environment(folder, threads):
    """The environment of every peer: its programs first, its compiled extensions in the peers' folder, all with as many
    threads, and no access to a network."""
    return {**os.environ, "PATH": os.path.join(folder, "venv", "bin") + os.pathsep + os.environ.get("PATH", os.defpath),
            "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": "1", "MAX_JOBS": str(threads),
            "TORCH_EXTENSIONS_DIR": os.path.join(folder, "extensions"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor")}


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def attempt(command, limit_s, env=None):
    """Returns (what the command printed, None), or (None, why it failed)."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False,
                              env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)[:300]
    if done.returncode != 0:
        return None, last_line(done.stderr or done.stdout)
    return done.stdout, None


def version_of_package(folder, name):
    """The version that imports in the peers' folder, or None and why it does not."""
    code = f"import importlib.metadata as m, {name}; print(m.version('{name}'))"
    said, why = attempt((python_of(folder), "-c", code), CHECK_S, {**environment(folder, 2), "DS_ACCELERATOR": "cpu"})
    return (last_line(said), None) if why is None else (None, why)


def make_environment(folder):
    """Makes the virtual environment where it is not there. Returns why it could not, or None."""
    if attempt((python_of(folder), "-m", "pip", "--version"), CHECK_S)[1] is None:
        return None
    maker = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        return str(error)
    return attempt((maker, "-m", "venv", "--clear", os.path.join(folder, "venv")), INSTALL_S)[1]


def install_package(folder, package):
    """Returns why the package cannot be installed, or None."""
    free = shutil.disk_usage(folder).free
    if free < package.space_bytes:
        return (f"its installation needs {package.space_bytes / GIB:.3g} GiB, and {folder} has {free / GIB:.3g} GiB free: "
                "free space or name another --peers folder")
    command = (python_of(folder), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-build-isolation", *package.pinned)
    why = attempt(command, INSTALL_S, {**environment(folder, 2), "DS_ACCELERATOR": "cpu"})[1]
    return why and f"pip could not install {package.pinned[0]}: {why}"


def outcome(version=None, missing=None):
    return {"version": version, "missing": missing}


def pinned_version(package):
    return package.pinned[0].split("==")[1]


def python_outcomes(folder, may_install):
    """Outcomes of all Python packages, each installed where the pinned version is not there and `may_install`."""
    why = make_environment(folder) if may_install else None
    found = {}
    for package in PACKAGES:
        lacking = [name for name in package.needs if found[name]["missing"]]
        if why or lacking:
            found[package.name] = outcome(missing=f"no virtual environment: {why}" if why else f"it needs {lacking[0]}")
            continue
        version, reason = version_of_package(folder, package.name)
        if may_install and version != pinned_version(package):
            failed = install_package(folder, package)
            version, reason = (None, failed) if failed else version_of_package(folder, package.name)
        found[package.name] = outcome(version, reason)
    return found


def program_outcomes():
    found = {}
    for name, command in PROGRAMS.items():
        said, why = attempt(command, CHECK_S)
        found[name] = outcome(missing=f"not found: {why}") if why else outcome(said.strip().splitlines()[0][:60])
    return found


def bf16_outcome(gpu):
    """Tells whether torch has fast products of bf16 here. Without them its autocast takes minutes for a step that takes
    seconds in fp32."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        has_avx512 = "avx512bw" in file.read().split()
    by = "the GPU" if gpu["missing"] is None else "AVX-512" if has_avx512 else None
    return outcome(by) if by else outcome(missing="torch multiplies bf16 fast on GPUs and by AVX-512 only")


def outcomes(folder, may_install=True):
    programs = program_outcomes()
    return {**python_outcomes(folder, may_install), **programs, "a device for bf16": bf16_outcome(programs["a GPU"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\nusage")[0])
    parser.add_argument("--folder", default=default_folder())
    print(json.dumps(outcomes(parser.parse_args().folder), indent=2))


if __name__ == "__main__":
    main()
