"""The shared library shows the functions of spillway.h, versioned, and nothing else. The header compiles alone, as C99 and C++,
and so does the program of the guide."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "structure"))
import script_test  # noqa: E402

LIBRARY = os.path.abspath(sys.argv[1])
HEADER = os.path.join(ROOT, "library", "spillway.h")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def declared():
    """Functions of the header."""
    code = re.sub(r"/\*.*?\*/", "", read(HEADER), flags=re.S)
    return set(re.findall(r"\b(spillway_\w+)\(", code)) - {"spillway_log_function"}


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def the_library_shows_its_functions_alone():
    listed = run("nm", "-D", "--defined-only", LIBRARY)
    shown = {line.split()[2] for line in listed.stdout.splitlines() if line.split()[1] != "A"}
    wanted = {f"{name}@@SPILLWAY_0.1" for name in declared()}
    dynamic = run("readelf", "-d", LIBRARY).stdout
    problems = [] if "[libspillway.so.0]" in dynamic else ["the library's soname is not libspillway.so.0"]
    return problems + [f"{name} is in the header or in the library alone" for name in sorted(shown ^ wanted)]


def the_header_compiles_alone():
    problems = []
    for words in (["cc", "-std=c99", "-x", "c"], ["c++", "-std=c++11", "-x", "c++"]):
        done = run(*words, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", HEADER)
        problems += [f"{' '.join(words)}: {done.stderr}"] if done.returncode != 0 else []
    return problems


def the_man_page_has_the_functions():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "libspillway.3")
        done = run(sys.executable, "-B", os.path.join(ROOT, "tools", "library_manual.py"), HEADER, path)
        if done.returncode != 0:
            return [done.stderr]
        page = read(path)
    wanted = [f".SS {name}" for name in declared()] + [".SH DURABILITY", "SPILLWAY_ERROR_BUDGET = \\-6"]
    return [f"libspillway.3 lacks {text}" for text in wanted if text not in page]


def the_guides_program_runs():
    page = read(os.path.join(ROOT, "docs", "guide", "library.md"))
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "program.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write(re.search(r"^```c\n(.*?)^```$", page, re.M | re.S)[1])
        built = run("cc", "-std=c99", "-Wall", "-Werror", source, "-I", os.path.dirname(HEADER), LIBRARY, "-o",
                    os.path.join(folder, "program"), f"-Wl,-rpath,{os.path.dirname(LIBRARY)}")
        if built.returncode != 0:
            return [built.stderr]
        again = [run("./program", cwd=folder) for _ in range(2)]
        return [f"exit status {done.returncode}: {done.stderr}" for done in again if done.returncode != 0 or done.stderr]


def nvidias_header():
    """The folder of cuda.h, of the toolkit on this machine."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")
    if not os.path.exists(os.path.join(folder, "cuda.h")):
        raise script_test.Skip("no nvcc, whose toolkit has cuda.h")
    return folder


def the_drivers_functions_are_nvidias():
    """The functions and numbers that the library declares for libcuda.so.1 are those of NVIDIA's own header."""
    folder, own = nvidias_header(), read(os.path.join(ROOT, "library", "cuda_driver.h"))
    functions = re.findall(r'EACH\(\w+, "(\w+)", \((.*?)\)\)', own)
    numbers = re.findall(r"\b((?:CUDA|CU)_\w+) = (\d+)", own)
    lines = ["#include <cuda.h>", "#include <stddef.h>", "#include <stdint.h>"]
    for name, arguments in functions:
        arguments = arguments.replace("int attribute", "CUpointer_attribute attribute")
        lines.append(f'_Static_assert(__builtin_types_compatible_p(__typeof__(&{name}), CUresult (*)({arguments})), "{name}");')
    lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in numbers]
    sizes = re.findall(r"\bSIZE_OF_(\w+) = (\d+)", own)
    lines += [f'_Static_assert(sizeof({name}) == {value}, "{name}");' for name, value in sizes]
    lines += [f'_Static_assert(offsetof(CUmemAllocationProp, {name}) == {value}, "{name}");'
              for name, value in (("type", 0), ("requestedHandleTypes", 4), ("location", 8), ("allocFlags", 24))]
    lines += ['_Static_assert(offsetof(CUmemAccessDesc, flags) == 8 && offsetof(CUmemLocation, id) == 4, "places");']
    done = run("cc", "-I", folder, "-fsyntax-only", "-x", "c", "-", input="\n".join(lines) + "\n")
    found = [] if len(functions) > 15 and len(numbers) > 5 and len(sizes) == 2 else ["the declarations are not found in library/cuda_driver.h"]
    return found + ([done.stderr] if done.returncode != 0 else [])


script_test.run(the_drivers_functions_are_nvidias, the_library_shows_its_functions_alone, the_header_compiles_alone, the_man_page_has_the_functions, the_guides_program_runs)
