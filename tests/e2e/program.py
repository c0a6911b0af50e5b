"""Runs the program `spillway` as a user does and looks at what it leaves behind."""

import atexit
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "structure"))
import script_test  # noqa: E402, F401
import limits  # noqa: E402

PROGRAM = os.environ.get("SW_PROGRAM", "spillway")
SEQ = 64
# A step of the smallest preset with two micro-batches: some milliseconds.
SHAPE = ("--seq", SEQ, "--micro-batch", 4, "--batch-tokens", 2 * 4 * SEQ, "--threads", 1, "--chunk-grains", 2)
STORE = "store.spillway"
LARGE_BYTES = 1 << 16


# Every program that a test starts is watched by a preloaded library (watcher.c), where the build has one.
WATCHER = os.environ.get("SW_WATCHER")


def watch():
    """Has all programs from now on write to a file where they named something before it was flushed."""
    handle, path = tempfile.mkstemp(prefix="spillway-watched-", dir=os.environ.get("TMPDIR", "."))
    os.close(handle)
    atexit.register(os.remove, path)
    os.environ.update(LD_PRELOAD=WATCHER, SW_WATCHED=os.path.abspath(path))

    def violations():
        with open(path, "r+", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
            file.truncate(0)
        return [f"not durable: {line}" for line in sorted(set(lines))]

    script_test.observers.append(violations)


if WATCHER:
    watch()


@dataclass
class Ended:
    code: int
    out: str
    err: str


def scratch_folder():
    """A folder of this test, removed at its end. On a disk where TMPDIR is: direct I/O is refused in memory."""
    folder = tempfile.mkdtemp(prefix="spillway-cli-", dir=os.environ.get("TMPDIR", "."))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.path.abspath(folder)


def command(*arguments, ranks=1):
    """Several ranks are threads of one process: the same as by a launcher but for what moves bytes and watches. They need no
    MPI and a fraction of the time of mpirun, so they are how matrices are run."""
    return [*([PROGRAM] if ranks == 1 else [os.environ["SW_THREAD_RANKS"], str(ranks)]), *map(str, arguments)]


def run(*arguments, stdin=b"", ranks=1, **options):
    done = limits.run(command(*arguments, ranks=ranks), input=stdin, capture_output=True, check=False, **options)
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def start(*arguments):
    """A program that goes on running, at most until this test ends; its standard error is read line by line."""
    process = subprocess.Popen(command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def has_unnamed_file(process, where):
    """Tells whether a process holds a file in the folder that has no name."""
    fds = f"/proc/{process.pid}/fd"
    try:
        targets = [os.readlink(os.path.join(fds, fd)) for fd in os.listdir(fds)]
    except OSError:
        return False
    return any(target.startswith(where + "/") and target.endswith(" (deleted)") for target in targets)


def must(*arguments, ranks=1):
    """Runs what has to succeed for the test to go on."""
    ended = run(*arguments, ranks=ranks)
    if ended.code != 0:
        raise RuntimeError(f"spillway {' '.join(map(str, arguments))}, ranks {ranks}: status {ended.code}: {ended.err[-1500:]}")
    return ended


def time_text(seconds):
    """A time of less than ten minutes as the program writes it."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"
    return f"{seconds:.{2 if seconds < 9.995 else 1 if seconds < 99.95 else 0}f} s"


def said(ended):
    """Returns the lines of standard error but those that a slow machine causes."""
    return [line for line in ended.err.splitlines() if not line.startswith("measuring the drive: ") and
            "is still discarding deleted files" not in line]


def text(seed, characters):
    """Words drawn from a seed, frequent ones first, so that there is something to learn."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("etaoinshrdlu") for _ in range(draw.randint(2, 8))) for _ in range(100)]
    pieces, length = [], 0
    while length < characters:
        pieces.append(words[min(int(draw.expovariate(0.1)), 99)])
        length += len(pieces[-1]) + 1
    return " ".join(pieces)[:characters]


def write(path, content):
    with open(path, "wb" if isinstance(content, bytes) else "w", encoding=None if isinstance(content, bytes) else
              "utf-8") as file:
        file.write(content)
    return path


def read_json(path):
    """The checksum of a run.json is left out, as by who edits one."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if os.path.basename(path) == "run.json":
        found.pop("checksum", None)
    return found


def log_lines(folder):
    """The whole lines of a run's log; one without its end is what a sudden death or a full disk leaves."""
    with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def steps_of(folder):
    return [line for line in log_lines(folder) if "loss" in line]


def numbers_of(folder):
    """Returns the results of each step's arithmetic, as the log has them: equal texts are equal bits."""
    return {line["step"]: (line["loss"], line["grad_norm"], line["lr"]) for line in steps_of(folder)}


def content(path):
    with open(path, "rb") as file:
        return file.read()


def tree(folder, what=content):
    """Every file below a folder, with its bytes, or what else is asked for."""
    found, folders = {}, [(folder, "")]
    for where, above in folders:
        for entry in os.scandir(where) if os.path.isdir(where) else ():
            name = above + entry.name
            if entry.is_dir():
                found[name] = None
            elif entry.is_file():
                found[name] = what(entry.path)
            if entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, name + "/"))
    return found


def mark(path):
    """Returns a file's bytes, or the size and time of a large one, such as a store: these differ once it was written to."""
    found = os.stat(path)
    return content(path) if found.st_size <= LARGE_BYTES else (found.st_ino, found.st_size, found.st_mtime_ns)


def differences(before, after):
    return sorted(name for name in before.keys() | after.keys() if before.get(name, ...) != after.get(name, ...))


def wrong_refusal(what, ended, status, words, arguments):
    """Why a refusal is not as every refusal should be: its status, one line, the words that help."""
    problems = []
    head = f"spillway {arguments[0]}: "
    if ended.code != status:
        problems.append(f"{what}: ended with {ended.code} instead of {status}")
    # Lines before the refusal are none: an ordinary user's limit of locked memory, fields without effect.
    lines = [line for line in said(ended) if not line.startswith("io_uring did not register")
             and "these fields have no effect here:" not in line]
    if len(lines) != 1 or not lines[0].startswith(head) or not ended.err.endswith("\n"):
        problems.append(f"{what}: standard error is not one line that begins with '{head}': {ended.err[-400:]!r}")
    if ended.out:
        problems.append(f"{what}: wrote to standard output: {ended.out[:100]!r}")
    return problems + [f"{what}: the message lacks '{word}': {ended.err.strip()}" for word in words
                       if word not in ended.err]


def refused(what, arguments, *words, status=1, watched=(), ranks=1):
    """Runs what must be refused; the watched folders must stay as they are. Of several ranks one says why all end."""
    before = [tree(folder, mark) for folder in watched]
    ended = run(*arguments, ranks=ranks)
    problems = wrong_refusal(what, ended, status, words, arguments)
    for folder, was in zip(watched, before):
        problems += [f"{what}: {name} was changed, made or removed" for name in differences(was, tree(folder, mark))]
    return problems


def refused_each(table, status=1, watched=()):
    """Runs each row of a table, (what it is, arguments, words of the refusal...), all of which must be refused."""
    return [problem for what, arguments, *words in table
            for problem in refused(what, arguments, *words, status=status, watched=watched)]
