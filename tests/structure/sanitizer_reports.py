"""Which reports of `./dev sanitize` count: all but leaks of libraries."""

import os
import subprocess
import sys
import tempfile

import script_test
import sources

TOOL = os.path.join(sources.ROOT, "tools", "sanitizer_reports.py")
MALLOC = "    #0 0x55d0 in __interceptor_malloc (/b/spillway+0xba4ce) (BuildId: 90)\n"
OWN_FRAME = f"    #2 0x55d2 in load {sources.ROOT}/build-asan/../run/data/data.c:17:5\n"
RANK_FRAME = "    #1 0x7f29 in opal_argv_append (/lib/x86_64-linux-gnu/libopen-pal.so.40+0x5e) (BuildId: 85)\n"
UNLOADED_FRAME = "    #1 0x7f29  (<unknown module>)\n"
LIBRARY_FRAME = "    #1 0x7f29 in json_loads (/lib/x86_64-linux-gnu/libjansson.so.4+0x5e) (BuildId: 85)\n"
OPENMP_FRAME = "    #1 0x7f29 in ___kmp_allocate (/lib/x86_64-linux-gnu/libomp.so.5+0x5e) (BuildId: 85)\n"
RACE = "==================\nWARNING: ThreadSanitizer: data race (pid=1)\n  Write of size 4 at 0x55 by main thread:\n"


def leaks(*stacks):
    text = "==1==ERROR: LeakSanitizer: detected memory leaks\n\n"
    text += "".join(f"Direct leak of 9 byte(s) in 1 object(s) allocated from:\n{MALLOC}{stack}\n" for stack in stacks)
    return text + "SUMMARY: AddressSanitizer: 9 byte(s) leaked in 1 allocation(s).\n"


def counted(*reports):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for number, report in enumerate(reports):
            with open(os.path.join(folder, f"report.{number}"), "w", encoding="utf-8") as file:
                file.write(report)
        ended = subprocess.run([sys.executable, "-B", TOOL, folder], capture_output=True, text=True, check=False)
    return ended.returncode, int(ended.stdout.splitlines()[-1].split()[0])


def only_what_is_ours_counts():
    cases = [
        ("nothing", [], 0),
        ("a race", [RACE], 1),
        ("a leak of ours", [leaks(LIBRARY_FRAME + OWN_FRAME)], 1),
        ("a leak by way of a library", [leaks(LIBRARY_FRAME)], 1),
        ("OpenMP's, with another", [leaks(OPENMP_FRAME + OWN_FRAME, LIBRARY_FRAME)], 1),
        ("OpenMP's alone", [leaks(OPENMP_FRAME + OWN_FRAME)], 0),
        ("a rank's own", [leaks(RANK_FRAME, LIBRARY_FRAME + OWN_FRAME)], 1),
        ("MPI's", [leaks(RANK_FRAME, UNLOADED_FRAME)], 0),
        ("one that was cut off", ["==5667==WARNING: Can't write to symbolizer at fd 7\n"], 0),
        ("several", [RACE, leaks(RANK_FRAME), leaks(OWN_FRAME)], 2),
    ]
    problems = []
    for name, reports, expected in cases:
        found = counted(*reports)
        if found != (int(expected > 0), expected):
            problems.append(f"{name}: {found} instead of {expected}")
    return problems


script_test.run(only_what_is_ours_counts)
