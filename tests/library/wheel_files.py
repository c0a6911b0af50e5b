"""A wheel, taken apart: the package in it finds the library and the program of the wheel, and these find what they need there.
`python -m spillway` becomes the program."""

import os
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), os.path.join(ROOT, "tools")]
import script_test  # noqa: E402
import wheel  # noqa: E402

LIBRARY, PROGRAM = map(os.path.abspath, sys.argv[1:3])
MODULE = [sys.executable, "-B", "-m", "spillway"]
# Prints its process, its arguments and the signals that it ignores.
TELLS = """#!/bin/sh
echo "$$ $*"
sed -n 's/^SigIgn:.//p' /proc/$$/status
exit 7
"""
SIGPIPE, SIGXFSZ = 1 << 12, 1 << 24


def installed(folder):
    """Makes a wheel and puts its files into a folder, as an installer does. Returns its path."""
    path = wheel.make(LIBRARY, PROGRAM, folder, level=0)
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            os.chmod(archive.extract(entry, folder), entry.external_attr >> 16 or 0o644)
    return path


def run(words, package, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPILLWAY_")}
    return subprocess.run(words, env={**environment, "PYTHONPATH": package, **variables}, capture_output=True, text=True, check=False)


def names_in(folder):
    with open(os.path.join(folder, "spillway", "lib", "order.txt"), encoding="utf-8") as order:
        return order.read().split()


def library_problems(folder):
    code = "import spillway; print(spillway.__version__); print(open('/proc/self/maps').read())"
    done = run([sys.executable, "-B", "-c", code], folder)
    mapped = set(re.findall(r"\S+/spillway/lib/(\S+)", done.stdout))
    problems = [f"{name} was not taken from the wheel" for name in names_in(folder) if name not in mapped]
    return problems + ([] if done.stdout.startswith("0.1.0") else [f"the library says {done.stdout[:40]} {done.stderr}"])


def program_problems(folder):
    """The program starts by each way, and its libraries, and theirs, are those of the wheel; MPI's, which no wheel of `./dev wheel`
    has, is found first where it was built."""
    program = os.path.join(folder, "spillway", "bin", "spillway")
    ours = run([*MODULE, "--version"], folder)
    problems = [] if ours.stdout == "spillway 0.1.0\n" and ours.returncode == 0 else [f"the program says {ours.stdout} {ours.stderr}"]
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", run(["ldd", program], folder).stdout, re.M))
    bundled = os.path.join(os.path.realpath(folder), "spillway", "lib")
    hwloc = next(path for name, path in found.items() if name.startswith("libhwloc."))
    needed = {name for file in (program, hwloc) for name in wheel.needed_by(file)}
    problems += [f"{name} is that of {found.get(name)}" for name in needed if not wheel.SYSTEM.match(name) and "mpi" not in name and
                 os.path.dirname(os.path.realpath(found.get(name, ""))) != bundled]
    code = "import spillway; print(spillway.plan('gpt2-tiny', 'rtx4090')['parameters'])"
    asked = run([sys.executable, "-B", "-c", code], folder, PATH="/nowhere")
    return problems + ([] if asked.stdout.strip().isdigit() else [f"spillway.plan says {asked.stdout} {asked.stderr}"])


def a_wheel_has_all_that_it_needs():
    with tempfile.TemporaryDirectory() as folder:
        path = installed(folder)
        problems = [] if re.search(r"-py3-none-manylinux_2_\d+_\w+\.whl$", path) else [f"the wheel is named {path}"]
        with open(os.path.join(folder, "spillway-0.1.0.dist-info", "METADATA"), encoding="utf-8") as file:
            said = file.read()
        problems += [f"the wheel does not say {words!r}" for words in ("\n\n# spillway: ", "optimizer = spillway.AdamW(") if words not in said]
        return problems + library_problems(folder) + program_problems(folder)


def script_in(folder, text):
    path = os.path.join(folder, "spillway")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)
    return path


def the_module_becomes_the_program():
    with tempfile.TemporaryDirectory() as folder:
        tells = script_in(folder, TELLS)
        package = os.path.join(ROOT, "python")
        child = subprocess.Popen([*MODULE, "plan", "a b", "--json"], env={**os.environ, "PYTHONPATH": package, "SPILLWAY_PROGRAM": tells},
                                 stdout=subprocess.PIPE, text=True)
        said = child.communicate()[0].splitlines()
        ignored = int(said[1], 16) if len(said) == 2 else -1
        right = said[:1] == [f"{child.pid} plan a b --json"] and child.returncode == 7 and not ignored & (SIGPIPE | SIGXFSZ)
        problems = [] if right else [f"process {child.pid} ended with {child.returncode} and said {said}"]
        on_path = run(MODULE, package, PATH=f"/nowhere:{folder}:{os.environ['PATH']}")
        return problems + ([] if on_path.returncode == 7 else [f"the program on the PATH is not found: {on_path.stderr}"])


def a_missing_program_is_said():
    """A script that an installer made starts the package, so it is not the program, even if it is named so."""
    package = os.path.join(ROOT, "python")
    with tempfile.TemporaryDirectory() as folder:
        script_in(folder, f"#!{sys.executable}\nfrom spillway._program import main\nmain()\n")
        none = run(MODULE, package, PATH=folder)
    wrong = run(MODULE, package, SPILLWAY_PROGRAM="/nowhere/spillway")
    problems = [] if none.returncode == 1 and "is not found: install spillway's wheel" in none.stderr else [none.stderr]
    return problems + ([] if wrong.returncode == 1 and wrong.stderr == "spillway: the program /nowhere/spillway does not start: "
                       "No such file or directory\n" else [wrong.stderr])


script_test.run(a_wheel_has_all_that_it_needs, the_module_becomes_the_program, a_missing_program_is_said)
