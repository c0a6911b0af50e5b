"""A build folder that a bundle carries is taken by `./dev` as it is where its program starts, else built. Packing one
takes less than a gibibyte of memory."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import script_test
import sources

sys.path.insert(0, os.path.join(sources.ROOT, "tools"))
import run_tests  # noqa: E402

SCRATCH = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))
# In Meson's and Ninja's place: they say that they were called.
TOOL = "#!/bin/sh\necho called $(basename $0) $1\n"


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o700)


def unpacked(name, program):
    """A folder as it is where an archive was unpacked, with a program of this text."""
    root = os.path.join(SCRATCH, name)
    for path in ("dev", "tools/packages.sh", "tools/offline.sh"):
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        shutil.copy(os.path.join(sources.ROOT, path), os.path.join(root, path))
    os.makedirs(os.path.join(root, "libraries", "usr", "bin"))
    write(os.path.join(root, "build", "spillway"), program)
    write(os.path.join(root, "build", "CARRIED"), "")
    for tool in ("meson", "ninja"):
        write(os.path.join(root, "bin", tool), TOOL)
    return root


def build(root):
    return subprocess.run(["bash", os.path.join(root, "dev"), "build"], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": os.path.join(root, "bin") + ":" + os.environ["PATH"]})


def carried_programs_are_taken():
    ended = build(unpacked("good", "#!/bin/sh\nexit 0\n"))
    return [] if ended.returncode == 0 and "called" not in ended.stdout and "the program is" in ended.stdout else [f"{ended}"]


def others_are_built_here():
    root = unpacked("bad", "#!/bin/sh\necho needs GLIBC_9.99 >&2\nexit 1\n")
    ended = build(root)
    problems = [f"no '{word}' in {ended}" for word in ("does not start", "GLIBC_9.99", "called meson setup", "called ninja -C")
                if word not in ended.stdout]
    return problems + (["the build folder is left"] if os.path.exists(os.path.join(root, "build")) else [])


def lists_of_tests_travel():
    folder = os.path.join(SCRATCH, "list")
    write(os.path.join(folder, "meson-info", "intro-tests.json"),
          json.dumps([{"name": "a", "cmd": ["@ROOT@/build/tests/core/a"], "env": {"DATA": "@ROOT@/tests"}}]))
    found = run_tests.declared_tests(folder)
    good = found == [{"name": "a", "cmd": [f"{sources.ROOT}/build/tests/core/a"], "env": {"DATA": f"{sources.ROOT}/tests"}}]
    return [] if good else [f"{found}"]


def packing_takes_little_memory():
    """xz itself says how much memory its arguments take."""
    with open(os.path.join(sources.ROOT, "tools", "bundle.sh"), encoding="utf-8") as file:
        arguments = re.search(r"^readonly xz_args='(.*)'$", file.read(), re.MULTILINE)[1].split()
    if shutil.which("xz") is None:
        return []
    said = subprocess.run(["xz", "-vv", *arguments, "-c"], input=b"", capture_output=True, check=True).stderr.decode()
    mebibytes = int(re.search(r"([\d,]+) MiB of memory is required", said)[1].replace(",", ""))
    return [] if mebibytes <= 1024 else [f"{arguments} take {mebibytes} MiB"]


try:
    script_test.run(packing_takes_little_memory, carried_programs_are_taken, others_are_built_here, lists_of_tests_travel)
finally:
    shutil.rmtree(SCRATCH, ignore_errors=True)
