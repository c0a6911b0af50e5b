"""bench io: its reports have the documented fields and agree with themselves, it writes no more than it may and leaves
nothing behind, however it ends, and it refuses drives in use. No speed is asserted."""

import atexit
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time

import program
from program import script_test

SCRATCH = program.scratch_folder()
MIB = 1 << 20
SMALL = ("--size", "16MiB", "--seconds", "0.01", "--rounds", 1)
CELL = ("--block", "64KiB", "--depth", 2)
SUSTAIN = ("--sustain", "--size", "16MiB", "--depth", 2, "--time-limit", 4, "--most", "64MiB")
WAYS = ("read", "write", "both")
FLAGS = ("--nvme --size --block --depth --thorough --random --seconds --rounds --no-fio --sustain --time-limit --most "
         "--yes-overwrite --allow-buffered --json").split()
FIELDS = {"bench": str, "files": int, "file_bytes": int, "direct": bool, "random": bool, "thorough": bool, "seconds": float,
          "rounds": int, "fio_fixed_buffers": bool, "written_bytes": int, "cells": list, "best": list}
RATE_FIELDS = {"read_bytes_per_s": float, "write_bytes_per_s": float}
CELL_FIELDS = {"way": str, "block_bytes": int, "depth": int, "bytes_per_s": float, "cores": float, **RATE_FIELDS}
BEST_FIELDS = {"way": str, "block_bytes": int, "depth": int, "bytes_per_s": float, "cores": float,
               "core_s_per_gb": float}
FIO_FIELDS = {"bytes_per_s": float, "cores": float, "core_s_per_gb": float, "ours_of_fio": float,
              "best_block_bytes": int, "best_depth": int, "best_bytes_per_s": float, "ours_of_fio_best": float,
              "ours_of_fio_interval": list, "ours_of_fio_best_interval": list}
SUSTAIN_FIELDS = {"bench": str, "files": int, "file_bytes": int, "direct": bool, "block_bytes": int, "depth": int,
                  "burst_bytes_per_s": float, "settled_bytes_per_s": float, "settled": bool, "fell": bool,
                  "bytes_before_fall": float, "both_read_bytes_per_s": float, "both_write_bytes_per_s": float,
                  "written_bytes": int, "rates": dict, "samples": dict}


def folder(name):
    path = os.path.join(SCRATCH, name)
    os.mkdir(path)
    return path


def wrong_fields(what, found, fields, more=()):
    problems = [f"{what}: '{name}' is {found.get(name)!r}" for name, kind in fields.items()
                if not isinstance(found.get(name), kind)]
    problems += [f"{what}: '{name}' is new" for name in found.keys() - fields - set(more)]
    return problems + [f"{what}: '{name}' is {value}" for name, value in found.items()
                       if isinstance(value, float) and not 0 <= value < math.inf]


def unequal(what, found, expected):
    return [] if math.isclose(found, expected, rel_tol=1e-6) else [f"{what} is {found} instead of {expected}"]


def report(where, *arguments, fields, more=()):
    """The one object on standard output, and what is wrong with its own fields and with what is left behind."""
    ended = program.run("bench", "io", "--nvme", where, *arguments, "--json")
    if ended.code != 0 or program.said(ended):
        return None, [f"bench io {arguments}: status {ended.code}, {ended.err!r}"]
    found = json.loads(ended.out)
    problems = wrong_fields("report", found, fields, more)
    if os.path.isdir(where):
        problems += [f"{arguments}: left {name}" for name in os.listdir(where)]
    return found, problems


def wrong_rates(cell):
    parts = {"read": (True, False), "write": (False, True), "both": (True, True)}[cell["way"]]
    problems = wrong_fields(cell["way"], cell, CELL_FIELDS, ["fio_bytes_per_s"])
    problems += unequal(cell["way"], cell["read_bytes_per_s"] + cell["write_bytes_per_s"], cell["bytes_per_s"])
    if ((cell["read_bytes_per_s"] > 0), (cell["write_bytes_per_s"] > 0)) != parts:
        problems.append(f"{cell['way']}: {cell}")
    return problems


def whole_sweep():
    """The settings of each effort, but those that do not fit into the file."""
    usual = ((MIB // 4, MIB, 4 * MIB), (1, 4, 16, 64))
    thorough = ((MIB // 16, MIB // 4, MIB, 4 * MIB), (1, 2, 4, 8, 16, 32, 64))
    return wrong_sweep(usual, "usual") + wrong_sweep(thorough, "thorough", "--thorough")


def wrong_sweep(grid, name, *more):
    found, problems = report(folder(name), *SMALL, "--no-fio", *more, fields=FIELDS, more=["fio"])
    if problems:
        return problems
    cells = [(cell["way"], cell["block_bytes"], cell["depth"]) for cell in found["cells"]]
    expected = [(way, block, depth) for way in WAYS for block in grid[0] for depth in grid[1] if block * depth <= 16 * MIB]
    if cells != expected or found["thorough"] != bool(more):
        problems.append(f"{name}: the cells are {cells}")
    for cell in found["cells"]:
        problems += wrong_rates(cell)
    for best in found["best"]:
        problems += wrong_fields("best", best, BEST_FIELDS, ["fio"])
        if (best["way"], best["block_bytes"], best["depth"]) not in cells or best["fio"] is not None:
            problems.append(f"best: {best}")
    if [best["way"] for best in found["best"]] != list(WAYS) or found["fio"] is not None:
        problems.append(f"ways of {found['best']}, fio {found['fio']!r}")
    if (found["files"], found["file_bytes"], found["random"]) != (1, 16 * MIB, False):
        problems.append(f"{found['files']} files of {found['file_bytes']}, random {found['random']}")
    return problems


def wrong_intervals(fio):
    """One round has one ratio, so that the interval is nothing but that."""
    problems = []
    for name in ("ours_of_fio", "ours_of_fio_best"):
        low, high = fio[name + "_interval"]
        problems += unequal(name, low, fio[name]) + unequal(name, high, fio[name])
    return problems


def fio_stands_beside_in_print():
    """Its version in the verdict, and a line a way in two tables, with ratios in their intervals."""
    if shutil.which("fio") is None:
        raise script_test.Skip("no fio")
    ended = program.run("bench", "io", "--nvme", folder("printed"), *SMALL, *CELL)
    lines = ended.out.splitlines()
    problems = [] if "fio-" in "".join(lines[:2]) else [f"{ended.code}: {ended.out!r}"]
    for words, ratios in (("in turn with it at the same settings", 1), ("at its own best settings", 1)):
        start = next((i for i, line in enumerate(lines) if words in line), len(lines))
        for way, line in zip(WAYS, lines[start + 2:start + 5] or [""]):
            spans = re.findall(r"([0-9.]+) \(([0-9.]+)-([0-9.]+)\)", line)
            if not line.startswith(way) or len(spans) != ratios:
                problems.append(f"{way}: {line!r}")
            problems += [f"{way}: {middle} lies outside {low}-{high}" for middle, low, high in spans
                         if not float(low) <= float(middle) <= float(high)]
    return problems


def beside_fio():
    if shutil.which("fio") is None:
        raise script_test.Skip("no fio")
    found, problems = report(folder("fio"), *SMALL, *CELL, fields=FIELDS, more=["fio"])
    if problems:
        return problems
    if not str(found["fio"]).startswith("fio-"):
        problems.append(f"fio is {found['fio']!r}")
    problems += [f"{cell['way']}: no rate of fio's" for cell in found["cells"] if not cell.get("fio_bytes_per_s", 0) > 0]
    for best in found["best"]:
        fio = best["fio"]
        problems += wrong_fields("fio", fio, FIO_FIELDS)
        problems += unequal("ours_of_fio", fio["ours_of_fio"], best["bytes_per_s"] / fio["bytes_per_s"])
        problems += unequal("ours_of_fio_best", fio["ours_of_fio_best"], best["bytes_per_s"] / fio["best_bytes_per_s"])
        if (fio["best_block_bytes"], fio["best_depth"]) != (64 << 10, 2):
            problems.append(f"fio's best is {fio}")
        problems += wrong_intervals(fio)
    return problems


def without_fio():
    """Where it is not installed, the report says so and has all the rest."""
    where = folder("without")
    empty = dict(os.environ, PATH=where)
    ended = program.run("bench", "io", "--nvme", where, *SMALL, *CELL, env=empty)
    if ended.code != 0 or program.said(ended) or "fio is not installed" not in ended.out:
        return [f"status {ended.code}, {ended.err!r}, {ended.out!r}"]
    return []


def several_folders_and_random_order():
    first, second = folder("first"), folder("second")
    found, problems = report(first, "--nvme", second, *SMALL, *CELL, "--random", "--no-fio", fields=FIELDS,
                             more=["fio"])
    if not problems and (found["files"], found["file_bytes"], found["random"]) != (2, 8 * MIB, True):
        problems.append(f"{found['files']} files of {found['file_bytes']}, random {found['random']}")
    return problems + [f"left {name}" for name in os.listdir(second)]


def readable_reports():
    """The verdict first; then the best and all settings, in columns with headings, 80 wide."""
    where = folder("readable")
    ended = program.run("bench", "io", "--nvme", where, *SMALL, *CELL, "--no-fio")
    problems = []
    parts = [part.splitlines() for part in ended.out.split("\n\n")]
    if ended.code != 0 or program.said(ended) or [len(part) for part in parts] != [2, 2 + 3, 2 + 3]:
        problems.append(f"status {ended.code}, {ended.err!r}, {ended.out!r}")
    if not re.match(r"The drive reads [0-9.]+ GB/s, writes [0-9.]+ GB/s, and moves [0-9.]+ GB/s", ended.out):
        problems.append(f"the verdict is {ended.out[:200]!r}")
    problems += [f"wider than 80 columns: {line!r}" for line in ended.out.splitlines() if len(line) > 80]
    ended = program.run("bench", "io", "--nvme", where, *SUSTAIN)
    if ended.code != 0 or program.said(ended) or not re.search("^each is .* times slower", ended.out, re.MULTILINE):
        problems.append(f"--sustain: status {ended.code}, {ended.err!r}, {ended.out!r}")
    return problems


def least_written(found):
    """Returns the bytes by the file and the rates of the cells, on a drive so slow that --most stops none of them."""
    rates = [cell["write_bytes_per_s"] for cell in found["cells"]]
    rates += [cell.get("fio_bytes_per_s", 0) for cell in found["cells"] if cell["way"] == "write"]
    return found["file_bytes"] + sum(rates) * found["seconds"]


def bounded_writing():
    """fio's part is counted too."""
    problems = []
    for arguments in ((*CELL, "--seconds", 0.05, "--rounds", 1), (*CELL, "--seconds", 0.05, "--rounds", 3, "--no-fio")):
        found, wrong = report(folder(f"bounded{len(arguments)}"), "--size", "16MiB", "--most", "512MiB", *arguments,
                              fields=FIELDS, more=["fio"])
        problems += wrong
        if not wrong and not min(64 * MIB, least_written(found)) < found["written_bytes"] <= 512 * MIB:
            problems.append(f"{arguments}: wrote {found['written_bytes']}")
    return problems


def what_is_sustained():
    where = folder("sustained")
    found, problems = report(where, *SUSTAIN, fields=SUSTAIN_FIELDS)
    if problems:
        return problems
    if not 0 < found["written_bytes"] <= 64 * MIB:
        problems.append(f"wrote {found['written_bytes']}")
    rates = found["rates"]
    for way in ("read", "write"):
        problems += wrong_fields(way, rates[way], {"bytes_per_s": float, "cores": float})
    slower = 0.5 * (rates["read"]["bytes_per_s"] / found["both_read_bytes_per_s"]
                    + rates["write"]["bytes_per_s"] / found["both_write_bytes_per_s"])
    problems += unequal("read_write_slowdown", rates["read_write_slowdown"], max(1.0, slower))
    problems += unequal("write", rates["write"]["bytes_per_s"], found["settled_bytes_per_s"])
    for name in ("write", "both_read", "both_write", "read"):
        times = [at for at, rate in found["samples"][name] if rate > 0]
        if not times or times != sorted(times):
            problems.append(f"samples of {name}: {found['samples'][name]}")
    return problems


def sustained_rates_for_a_plan():
    """The three names are those of a file of plan's: put in there, the plan is made with them."""
    kept = os.path.join(folder("kept"), "rates.json")
    plan = ("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", folder("planned"), "--rates", kept, "--json")
    program.must(*plan)
    rates = program.read_json(kept)
    found, problems = report(folder("for_plan"), *SUSTAIN, fields=SUSTAIN_FIELDS)
    if problems:
        return problems
    missing = found["rates"].keys() - rates.keys()
    program.write(kept, json.dumps({**rates, **found["rates"]}))
    ended = program.run(*plan)
    if missing or ended.code != 0:
        problems.append(f"names {missing} are none of the file's; plan: {ended.code}, {ended.err!r}")
    return problems


def death_leaves_nothing():
    """Killed while it measures: its file has no name. It would go on for much longer than the test does."""
    problems = []
    for number in (signal.SIGKILL, signal.SIGINT):
        where = folder(f"killed{int(number)}")
        process = program.start("bench", "io", "--nvme", where, "--size", "16MiB", *CELL, "--seconds", 30, "--no-fio")
        limit = program.limits.Limit()
        while not program.has_unnamed_file(process, where) and not limit.over() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.1)
        if process.poll() is not None:
            problems.append(f"ended by itself: {process.stderr.read()}")
        process.send_signal(number)
        process.wait()
        problems += [f"{number.name} left {name}" for name in os.listdir(where)]
    return problems


def loop_device():
    backing = os.path.join(SCRATCH, "drive")
    with open(backing, "wb") as file:
        file.truncate(32 * MIB)
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        raise script_test.Skip("no root or loop device")
    made = subprocess.run(["losetup", "--find", "--show", backing], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise script_test.Skip("no root or loop device")
    device = made.stdout.strip()
    atexit.register(subprocess.run, ["losetup", "--detach", device], check=False)
    return backing, device


def block_devices():
    """Only with leave, never one in use, and nothing behind the bytes that were named."""
    backing, device = loop_device()
    small = ("--nvme", device, *SMALL, *CELL)
    ended = program.run("bench", "io", *small)
    problems = program.wrong_refusal("without leave", ended, 1, ["--yes-overwrite", device], ["bench io"])
    held = os.open(device, os.O_RDWR | os.O_EXCL)
    ended = program.run("bench", "io", *small, "--yes-overwrite")
    os.close(held)
    problems += program.wrong_refusal("in use", ended, 1, ["in use", device], ["bench io"])
    with open(device, "rb") as file:
        if any(file.read()):
            problems.append("a refused drive was written to")
    found, wrong = report(device, *SMALL, *CELL, "--yes-overwrite", fields=FIELDS, more=["fio"])
    with open(device, "rb") as file:
        content = file.read()
    if not wrong and (found["file_bytes"] != 16 * MIB or not any(content[:16 * MIB]) or any(content[16 * MIB:])):
        problems.append(f"{found['file_bytes']} bytes of {backing} were to be written, no more and no less")
    return problems + wrong


def help_explains_every_flag():
    ended = program.run("bench", "io", "--help")
    problems = [] if ended.code == 0 and not ended.err else [f"status {ended.code}, {ended.err!r}"]
    if "\n  io " not in program.run("bench", "--help").out:
        problems.append("bench --help does not list io")
    return problems + [f"--help does not explain {flag}" for flag in FLAGS
                       if not re.search(rf"^  {flag}(\.\.\.)?[ \n].*", ended.out, re.MULTILINE)]


def misuse():
    where = folder("misuse")
    file = program.write(os.path.join(SCRATCH, "file"), "")
    here = ("--nvme", where)
    table = [(2, (*here, "--block", "5000"), "--block", "4096"), (2, (*here, "--block", "128MiB"), "--block"),
             (2, (*here, "--depth", 0), "--depth"), (2, (*here, "--depth", 2000), "--depth"),
             (2, (*here, "--block", "64MiB", "--depth", 64), "--block", "--depth"), (2, (*here, "--size", "1MiB"), "--size"),
             (2, (*here, "--sustain", "--random"), "--random"),
             (2, (*here, "--sustain", "--thorough"), "--thorough"), (2, (*here, "--rounds", 100), "--rounds"),
             (2, (where,), where),
             (1, (*here, "--size", "16MiB", "--block", "32MiB"), "--size", "--block"),
             (2, (*here, *SMALL, "--most", "17MiB"), "--most"), (1, ("--nvme", os.path.join(where, "no")), "no"),
             (1, (*here, *here), "same directory"), (1, ("--nvme", file), file),
             (1, (*here, "--size", "1000000GiB"), "room")]
    problems = []
    for status, arguments, *words in table:
        ended = program.run("bench", "io", *arguments)
        problems += program.wrong_refusal(str(arguments), ended, status, words, ["bench io"])
    return problems + [f"left {name}" for name in os.listdir(where)]


script_test.run(whole_sweep, beside_fio, fio_stands_beside_in_print, without_fio, several_folders_and_random_order, readable_reports,
                bounded_writing, what_is_sustained, sustained_rates_for_a_plan, death_leaves_nothing, block_devices,
                help_explains_every_flag, misuse)
