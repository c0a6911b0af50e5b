"""The C sources of the tree and the folders that they belong to."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# The rooms of the tree, one line a folder. A room may include itself, what stands left of it in its line, and all rooms of
# the lines above, but for APART.
ORDER = (
    "core/text core core/files core/ranks",
    "io/queue io/safetensors io/store",
    "kernels",
    "offload/plan offload/engine offload/simulate",
    "library",
    "text text/jinja text/documents",
    "model/hf model",
    "report",
    "job/machine job/settings job",
    "run/data run/folder run/stores run/inference run",
    "cli",
    "bench bench/kernels bench/io bench/step bench/comm",
    "tests",
)
APART = {("kernels", "io"), ("report", "model")}
ROOMS = [room for line in ORDER for room in line.split()]


def top_of(path):
    return path.split("/")[0]


def room_of(path):
    """The room that a file lies in: the longest that its path begins with. None: it lies in no room."""
    return max((room for room in ROOMS if path.startswith(room + "/")), key=len, default=None)


def may_include(room, other):
    if (top_of(room), top_of(other)) in APART:
        return False
    return ROOMS.index(other) <= ROOMS.index(room)


def folders():
    """The rooms, and the folders that hold them."""
    return sorted({*ROOMS, *map(top_of, ROOMS)})


def files_of(folder, endings=""):
    """Paths from the root of a folder's files."""
    for where, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.relpath(os.path.join(where, name), ROOT)


def c_sources():
    for folder in dict.fromkeys(map(top_of, ROOMS)):
        yield from files_of(folder, (".c", ".h", ".cpp", ".cu", ".cuh"))


def lines_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read().splitlines()
