"""A build on a machine that has nvcc: with CUDA, or without where that was asked for, and else an end that names what is
missing. The nvcc is a text that answers as NVIDIA's does."""

import os
import re
import shutil
import subprocess
import tempfile

import script_test
import sources

SCRATCH = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
NVCC = """#!/bin/sh
case "$1" in
--version) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
--list-gpu-arch) printf 'compute_80\\ncompute_90\\n' ;;
*) exit 1 ;;
esac
"""
HEADERS = ("cuda_runtime_api.h", "cublasLt.h")


def toolkit(name, version, *headers):
    root = os.path.join(SCRATCH, name)
    for folder in ("bin", "include", "lib64"):
        os.makedirs(os.path.join(root, folder))
    with open(os.path.join(root, "bin", "nvcc"), "w", encoding="utf-8") as file:
        file.write(NVCC.format(version=version))
    os.chmod(os.path.join(root, "bin", "nvcc"), 0o700)
    for header in headers:
        with open(os.path.join(root, "include", header), "w", encoding="utf-8") as file:
            file.write("")
    return root


def compiler_without_cuda():
    """The compiler of this machine, blind for folders in which CUDA's headers may be beside others."""
    said = subprocess.run(["gcc", "-E", "-v", "-x", "c", "/dev/null"], capture_output=True, text=True, check=True).stderr
    folders = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", said, re.DOTALL)[1].split()
    kept = [folder for folder in folders if not os.path.exists(os.path.join(folder, "cublasLt.h"))]
    return " ".join(["gcc", "-nostdinc", *(f"-isystem {folder}" for folder in kept)])


def configure(root, *options):
    """Meson's exit status and what it printed, with this toolkit on the path."""
    folder = os.path.join(root, "build")
    # A python3 without wheels, so that only the toolkit has headers.
    environment = {**os.environ, "PATH": os.path.join(root, "bin") + ":" + os.environ["PATH"], "CC": compiler_without_cuda(),
                   "PYTHONNOUSERSITE": "1"}
    ended = subprocess.run(["meson", "setup", folder, sources.ROOT, "-Dtests=disabled", *options], capture_output=True, text=True,
                           check=False, env=environment)
    return ended.returncode, ended.stdout + ended.stderr


def wrong_end(what, ended, *words):
    code, text = ended
    return [f"{what}: status {code}, no '{word}' in {text[-600:]}" for word in (*words, "-Dcuda=disabled")
            if code == 0 or word not in text]


def what_is_missing_ends_the_build():
    problems = wrong_end("no header", configure(toolkit("bare", "13.0")), HEADERS[0] + " is not in the CUDA Toolkit of")
    problems += wrong_end("one header", configure(toolkit("half", "13.0", HEADERS[0])), HEADERS[1] + " is not in")
    return problems + wrong_end("an old one", configure(toolkit("old", "11.8")), "CUDA 11.8", "12 or newer")


def without_cuda_where_that_is_wanted():
    code, text = configure(toolkit("unwanted", "13.0"), "-Dcuda=disabled")
    said = "built without the CUDA device" in text
    return [] if code == 0 and said else [f"status {code}: {text[-600:]}"]


try:
    script_test.run(what_is_missing_ends_the_build, without_cuda_where_that_is_wanted)
finally:
    shutil.rmtree(SCRATCH, ignore_errors=True)
