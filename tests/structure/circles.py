"""Calls go down: no files of the product call each other in a circle. Read from the symbols of the built libraries."""

import os
import re
import subprocess
import sys
from collections import defaultdict

import script_test

# An archive's path, a member and its symbol, as nm prints them: "libx.a[a_b.c.o]: name T 0 8" or "libx.a:a_b.c.o: ...".
LINE = re.compile(r"^(?P<archive>.*\.a)[\[:](?P<member>[^\]:]*)\]?: (?P<name>\S+) (?P<kind>\w)")
DEFINED = set("TDBRVW")
# Files that put functions of others into a table, and call none of them.
REGISTRATIONS = {
    "cpu_attention.c.o": {"cpu_attention_forward.c.o", "cpu_attention_backward.c.o"},
}


def symbols_of(archives):
    """For each file its defined symbols and its undefined ones."""
    defined, undefined = {}, defaultdict(set)
    for archive in archives:
        listing = subprocess.run(["nm", "-A", "-P", archive], stdout=subprocess.PIPE, check=True, text=True).stdout
        for line in listing.splitlines():
            found = LINE.match(line)
            if found is None:
                continue
            file = f"{found['archive'].split('/')[-1]}/{found['member'].split('/')[-1]}"
            if found["kind"] in DEFINED:
                defined.setdefault(found["name"], file)
            elif found["kind"] == "U":
                undefined[file].add(found["name"])
    return defined, undefined


def member(file):
    return file.split("/")[-1]


def calls_of(defined, undefined):
    """For each file the files whose functions or data it uses, but for registrations."""
    calls = {file: {defined[name] for name in names if name in defined} for file, names in undefined.items()}
    return {file: {other for other in used if other != file and member(other) not in REGISTRATIONS.get(member(file), ())}
            for file, used in calls.items()}


def reached_from(calls, start):
    reached, waiting = set(), [start]
    while waiting:
        for file in calls.get(waiting.pop(), ()):
            if file not in reached:
                reached.add(file)
                waiting.append(file)
    return reached


def circles_in(calls):
    """Sets of files that reach each other."""
    reached = {file: reached_from(calls, file) for file in calls}
    return {frozenset(other for other in reached[file] if file in reached.get(other, ())) for file in calls
            if file in reached[file]}


def no_files_call_each_other_in_a_circle():
    if not all(map(os.path.exists, sys.argv[1:])):
        raise script_test.Skip("no built libraries")
    defined, undefined = symbols_of(sys.argv[1:])
    calls = calls_of(defined, undefined)
    if len(calls) < 100:
        return [f"only {len(calls)} files were read from {len(sys.argv) - 1} archives"]
    problems = []
    for circle in circles_in(calls):
        problems.append(f"{len(circle)} files call each other in a circle:")
        for file in sorted(circle):
            problems += [f"  {file} uses {other}: {', '.join(sorted(name for name in undefined[file] if defined.get(name) == other)[:3])}"
                         for other in sorted(calls[file] & circle)]
    return problems


def a_circle_is_found():
    """The check itself."""
    found = circles_in({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})
    return [] if found == {frozenset("bc")} else [f"{found} were found instead of b and c"]


script_test.run(no_files_call_each_other_in_a_circle, a_circle_is_found)
