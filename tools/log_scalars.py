"""Reads a run's log.jsonl as numbers by name, for the scripts that hand it to other tools."""

import ctypes
import json
import os
import sys

MOST = 1e100  # beyond it a number is damaged, and float() or a sum may fail


def flat(line, group=""):
    """The numbers of a line by names such as "lanes/compute"; what is not known or beyond MOST, texts and the step are left
    out."""
    found = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{group}{name}/"))
        elif isinstance(value, (bool, int, float)) and name != "step" and abs(value) <= MOST:
            found[group + name] = float(value)
    return found


def of_run(folder):
    """(step, numbers) of each line. The last line may still be in the making, and is then left out."""
    with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                line = json.loads(text)
                yield line["step"], flat(line)


def checksum(data):
    """XXH3-64 in hexadecimal, by Python's package or by the library that the program uses."""
    try:
        import xxhash
        return xxhash.xxh3_64_hexdigest(data)
    except ImportError:
        pass
    try:
        library = ctypes.CDLL("libxxhash.so.0")
    except OSError:
        sys.exit("the checksum of run.json needs the Python package xxhash, or the library libxxhash.so.0")
    library.XXH3_64bits.argtypes, library.XXH3_64bits.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint64
    return f"{library.XXH3_64bits(data, len(data)):016x}"


def settings_of(folder):
    """The settings in run.json. Ends the script where the file is damaged, as every command of the program does."""
    path = os.path.join(folder, "run.json")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        sys.exit(f"{path} cannot be read: {error.strerror}")
    try:
        run = json.loads(data)
        settings = run["settings"]
    except (ValueError, KeyError, TypeError, RecursionError):
        sys.exit(f"{path} is not that of a run, so it was damaged or edited: restore it from a copy")
    # The line of the checksum is the second, and the rest is what it is the checksum of.
    rest = data.split(b"\n", 2)[-1]
    if "checksum" in run and data != f'{{\n  "checksum": "{checksum(rest)}",\n'.encode() + rest:
        sys.exit(f"{path} does not match its checksum, so it was damaged or edited: restore it from a copy, or, if you edited "
                 'it, remove its line "checksum"')
    return settings
