"""The C sources of the tree and the folders that they belong to."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Which folders a folder may include, beside itself.
MAY_INCLUDE = {
    "core": set(),
    "io": {"core"},
    "kernels": {"core"},
    "offload": {"core", "io", "kernels"},
    "train": {"core", "io", "kernels", "offload"},
    "bench": {"core", "io", "kernels", "offload", "train"},
    "tests": {"core", "io", "kernels", "offload", "train", "bench"},
}


def folders():
    """The folders of the order that exist and are not empty."""
    return [name for name in MAY_INCLUDE if any(files_of(name))]


def files_of(folder, endings=""):
    """Paths from the root of a folder's files."""
    for where, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.relpath(os.path.join(where, name), ROOT)


def c_sources():
    for folder in MAY_INCLUDE:
        yield from files_of(folder, (".c", ".h", ".cpp", ".cu", ".cuh"))


def lines_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read().splitlines()
