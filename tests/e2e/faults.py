"""One call after the other fails: allocations, opens, writes, flushes, renames and the like of a start, a resume, a
conversion, an export and tokenize. The command says so in a sentence or copes, leaves what was there or all of what it
makes, and no temporary file; and what was begun goes on without the fault as if it had not been.

SW_TEST_FAULTS is how many places of each kind and command fail, drawn from SW_TEST_SEED, or `places` for the first call
from each place, told apart by all their callers, or `all` for every call. By default two places of the kinds in TWICE
fail, and one of the others. Arguments name commands and kinds of calls to go through alone."""

import array
import errno
import json
import os
import random
import shutil
import struct
import subprocess
import sys

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

# Kinds as in faults.c, each with the errors that it fails with in turn.
KINDS = {"memory": ("ENOMEM",), "map": ("ENOMEM",), "open": ("EMFILE", "EIO"), "read": ("EIO",), "write": ("ENOSPC", "EIO"),
         "size": ("ENOSPC", "EIO"), "flush": ("EIO", "ENOSPC"), "name": ("EIO", "ENOSPC"), "remove": ("EIO",),
         "ring": ("ENOMEM", "EIO"), "drive": ("EBADF",), "thread": ("EAGAIN",)}
# A call of these kinds that failed may have lost bytes or names, even where all looks right; those of a cache may.
NEVER_SILENT, CACHE = ("flush", "size", "write"), "cache.c"
REPORT = struct.Struct(f"{len(KINDS) + 1}Q32s24Q")
MOST_PLACES = 16384
MARK, KEPT_WORK = "spillway.partial", "what is done is kept"
# These fail in most places, and their failures have most ends.
TWICE = ("memory", "open", "write", "flush", "name")
SAMPLE, SEED = os.environ.get("SW_TEST_FAULTS"), int(os.environ.get("SW_TEST_SEED", "20261126"))
ALONE = sys.argv[1:]
SCRATCH = program.scratch_folder()
MODEL, WIDE, DATA, PAIRS = (os.path.join(SCRATCH, name) for name in ("model", "wide", "chats.jsonl", "pairs.jsonl"))
# The folder that commands change, and a copy of it from before the command that is tried.
WORK, BASE = os.path.join(SCRATCH, "work"), os.path.join(SCRATCH, "base")
RUN, OUT, TOKENS = (os.path.join(WORK, name) for name in ("run", "out", "tokens.bin"))
FAULTS = os.path.join(SCRATCH, "faults")
CLEAN = {**os.environ, "TMPDIR": os.path.join(WORK, "tmp"), "XDG_CACHE_HOME": os.path.join(WORK, "cache")}


def start(data, sequences=1, place="grads=host,optimizer=nvme", model="model"):
    """A run on a file of the scratch folder with so many sequences a step, which evaluates, exports and samples."""
    return ("train", "--model", model, "--data", data, "--steps", 2, "--seq", 64, "--micro-batch", sequences, "--batch-tokens",
            64 * sequences, "--threads", 1, "--precision", "fp32", "--allow-buffered", "--schedule-steps", 20, "--place",
            place, "--run", "work/run", "--val", "10%", "--eval-every", 1, "--export-every", 1, "--keep", 1,
            "--sample-every", 2, "--sample-tokens", 2, "--sample-prompt", "a")


STARTS, RESUMES = start("chats.jsonl"), ("resume", RUN, "--steps", 3)


def run(arguments, environment):
    done = program.limits.run(program.command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, check=False,
                              env=environment, cwd=SCRATCH)
    return program.Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def places(kind, count):
    """Returns the numbers of the first calls from each place in the program, with all that called it."""
    with open(FAULTS, "rb") as file:
        file.seek(REPORT.size + 4 * MOST_PLACES * list(KINDS).index(kind))
        hashes = array.array("I", file.read(4 * min(count, MOST_PLACES)))
    return sorted({place: number for number, place in reversed(list(enumerate(hashes, 1)))}.values())


def report():
    with open(FAULTS, "rb") as file:
        numbers = REPORT.unpack(file.read(REPORT.size))
    counts, (failed, what, *addresses) = numbers[:len(KINDS)], numbers[len(KINDS):]
    return dict(zip(KINDS, counts)), failed, what.split(b"\0")[0].decode(), addresses


def run_with(arguments, fault=None, and_later=""):
    """Runs a command with a fault, (kind, number, error). and_later ":on": each later call of the kind fails, too."""
    with open(FAULTS, "wb") as file:
        file.truncate(REPORT.size + 4 * MOST_PLACES * len(KINDS))
    environment = {**CLEAN, "LD_PRELOAD": os.environ["SW_FAULT_LIBRARY"], "SW_FAULTS": FAULTS}
    if fault is not None:
        kind, number, error = fault
        environment["SW_FAULT"] = f"{kind}:{number}:{getattr(errno, error)}{and_later}"
    return run(arguments, environment)


def must(arguments):
    ended = run(arguments, CLEAN)
    if ended.code != 0:
        raise RuntimeError(f"{arguments}: status {ended.code}: {ended.err[-800:]}")


def place_in_source(addresses):
    """The functions that led to the call, where binutils can tell."""
    found = [hex(address - 1) for address in addresses if address]
    if shutil.which("addr2line") is None or not found:
        return ""
    done = subprocess.run(["addr2line", "-s", "-e", program.PROGRAM, *found], capture_output=True, text=True, check=False)
    return " < ".join(line.split(" ")[0] for line in done.stdout.split("\n")[:5])


def without_marks(tree):
    return {name: content for name, content in tree.items() if os.path.basename(name) != MARK}


def begin_work():
    shutil.rmtree(WORK, ignore_errors=True)
    for folder in ("", "tmp", "cache"):
        os.mkdir(os.path.join(WORK, folder))


def is_kept(name):
    """Tells whether a name is one of a cache's, which is in TMPDIR where there is no other place, or the mark of an
    unfinished export, with which a finished one is whole, too."""
    is_mark = os.path.basename(name) == MARK and not name.startswith("out.partial") and ".partial/" not in name
    return is_mark or (name.startswith(("cache", "tmp/spillway-")) and ".partial" not in name)


def names():
    """Returns every name below the folder that commands change, but for those that a cache keeps."""
    found = set()
    for where, folders, files in os.walk(WORK):
        found |= {os.path.relpath(os.path.join(where, name), WORK) for name in folders + files}
    return {name for name in found if not is_kept(name)}


def weights():
    shutil.rmtree(os.path.join(SCRATCH, "exported"), ignore_errors=True)
    ended = run(("export", RUN, os.path.join(SCRATCH, "exported")), CLEAN)
    return program.tree(os.path.join(SCRATCH, "exported")) if ended.code == 0 else f"no export: {ended.err[-300:]}"


class Command:
    """A command, what there is before it, and what it leaves where nothing fails."""

    def __init__(self, name, arguments, *before):
        self.name, self.arguments = name, arguments
        begin_work()
        for each in before:
            each() if callable(each) else must(each)
        shutil.rmtree(BASE, ignore_errors=True)
        shutil.copytree(WORK, BASE)
        self.before = program.tree(WORK)
        ended = run_with(arguments)
        if ended.code != 0:
            raise RuntimeError(f"{name}: status {ended.code}: {ended.err[-800:]}")
        self.calls, self.names, self.said = report()[0], names(), ended.err
        if self.calls["memory"] == 0:
            raise RuntimeError("the library saw no call")
        self.places = {kind: places(kind, count) for kind, count in self.calls.items()}
        self.made = self.results()

    def results(self):
        """Returns the results of a command, in so far as they are the same each time."""
        if self.arguments[0] == "tokenize":
            return {name: content for name, content in program.tree(WORK).items() if name.startswith("tokens.bin")}
        if self.arguments[0] == "export":
            return without_marks(program.tree(OUT)) if os.path.exists(OUT) else "no export"
        exports = without_marks(program.tree(os.path.join(RUN, "exports")))
        index = json.loads(exports.pop("index.json", "[]"))
        return program.numbers_of(RUN), weights(), exports, [(entry["step"], entry["val_loss"]) for entry in index]

    def is_undone(self):
        """Tells whether everything is as before. A cache may have grown."""
        changed = program.differences(self.before, program.tree(WORK))
        return all(map(is_kept, changed))

    def has_kept_work(self, ended):
        """Tells whether a full disk left only work that the same command goes on from. Slow machines save some."""
        changed = program.differences(self.before, program.tree(WORK))
        return KEPT_WORK in ended.err and all(is_kept(name) or name.endswith((".journal", ".partial")) for name in changed)

    def repeat(self):
        """The same command without a fault, or where a run came about or has gone back, its resume."""
        ended = run(self.arguments, CLEAN)
        if ended.code != 0 and (self.arguments[0] == "train" or BACK[-1] in self.arguments):
            again = run(("resume", RUN, *self.arguments[2:-1]) if self.arguments[0] == "resume" else ("resume", RUN), CLEAN)
            return again if again.code == 0 else program.Ended(ended.code, "", ended.err + again.err)
        return ended

    def end_with(self, fault):
        """Runs the command with a fault. Returns how it ended; None if the call that was to fail did not come."""
        shutil.rmtree(WORK)
        shutil.copytree(BASE, WORK)
        ended = run_with(self.arguments, fault)
        return None if report()[1] == 0 else ended

    def fail(self, fault):
        """Returns whether the call that was to fail came, and what is wrong."""
        ended = self.end_with(fault)
        if ended is None:
            return False, []
        _, _, what, addresses = report()
        problems = wrong_end(ended, self.arguments[0], fault)
        if ended.code < 0:
            return True, [f"{self.name} {':'.join(map(str, fault))} {what} [{place_in_source(addresses)}]: {problem}" for problem in problems]
        removal = fault[0] == "remove"
        if ended.code == 0:
            told = any(ended.err.count(word) > self.said.count(word) for word in reasons(fault[2]))
            problems += [] if told or removal or self.results() == self.made else ["succeeded with other results and said nothing"]
            # A stream may be closed whose content was flushed before.
            where = place_in_source(addresses) if fault[0] in NEVER_SILENT and what != "fclose" and not told else ""
            problems += ["succeeded and said nothing"] if where and CACHE not in where else []
            # Files that cannot be removed stay, and but for unfinished ones the command says so.
            told |= removal and "cannot be removed" in ended.err
            problems += [f"left or lacks {name}" for name in sorted(names() ^ self.names)
                         if not told and not (removal and name.endswith(".partial"))]
        elif not self.is_undone():
            problems += [] if removal or self.has_kept_work(ended) else self.left()
            problems += self.gone_on(removal)
        if SAMPLE in ("all", "places") or problems:
            where = place_in_source(addresses)
            said = "; ".join(ended.err.strip().split("\n")[-1 if ended.code else 0:])[-400:]
            print(f"# {self.name} {':'.join(map(str, fault))} {what} [{where}]: status {ended.code}: {said}", flush=True)
        return True, [f"{self.name} {':'.join(map(str, fault))} {what}: {problem}" for problem in problems]

    def left(self):
        """Returns the problems with files that a failed command leaves. A run tidies up when it goes on."""
        whole = not self.arguments[0] in ("tokenize", "export") or self.results() == self.made
        kept = set(self.before) | self.names
        problems = [f"left {name}" for name in sorted(names())
                    if (name not in kept and not name.startswith("run/")) or (not whole and name not in self.before)]
        problems += [f"left {os.path.relpath(os.path.join(where, name), WORK)}" for where, folders, files in os.walk(os.path.join(RUN, "exports"))
                     for name in folders + files if name.endswith(".partial")]
        # Old tokens are put back.
        if self.arguments[0] == "tokenize" and not whole:
            problems += [f"lost {name}" for name in sorted(set(self.before) - names()) if name.startswith("tokens.bin")]
        if self.arguments[0] == "tokenize" and not whole and os.path.exists(TOKENS):
            problems.append("left tokens beside documents or a mask of others")
        return problems

    def gone_on(self, removal):
        """Returns the problems of the next attempt, which has no fault."""
        ended = self.repeat()
        if ended.code != 0:
            done = self.arguments[0] == "export" and self.results() == self.made
            return [] if done else [f"again, without a fault: status {ended.code}: {ended.err[-500:]}"]
        problems = [] if self.results() == self.made else ["again, without a fault: other results"]
        return problems + [f"again, without a fault: left or lacks {name}" for name in sorted(names() ^ self.names) if not removal]


def reasons(error):
    """Returns the words of messages that say why. A thread without memory is to be tried again."""
    return ("memory", os.strerror(errno.EAGAIN)) if error == "ENOMEM" else (os.strerror(getattr(errno, error)),)


def wrong_end(ended, name, fault):
    problems = []
    lines = ended.err.strip().split("\n")
    # A file that could not be removed may be in the way later, after a warning that says why.
    telling = [lines[-1], *(line for line in lines if fault[0] == "remove" and line.startswith("warning: "))]
    if ended.code not in (0, 1):
        problems.append(f"status {ended.code}: {ended.err[-500:]}")
    elif ended.code == 1 and not lines[-1].startswith(f"spillway {name}: "):
        problems.append(f"no sentence says what failed: {ended.err[-500:]!r}")
    elif ended.code == 1 and not any(word in line for word in reasons(fault[2]) for line in telling):
        problems.append(f"does not say why: {ended.err[-500:]!r}")
    return problems


def make_inputs():
    """A model with random weights and a tokenizer of bytes, and chats, so that a start makes tokens first. And a wider
    model without weights, whose MLP has more than the MiB that is written at once."""
    begin_work()
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 260, "n_positions": 64, "n_embd": 16,
              "n_layer": 1, "n_head": 2, "eos_token_id": 257}
    for folder, width in ((MODEL, 16), (WIDE, 192)):
        os.mkdir(folder)
        program.write(os.path.join(folder, "config.json"), json.dumps({**config, "n_embd": width}))
        hf_folder.write_chat_tokenizer(folder, first=256)
    program.write(DATA, "".join(hf_folder.chat(program.text(i, 4), program.text(i + 100, 6)) for i in range(30)))
    program.write(PAIRS, "".join(json.dumps({"prompt": f"{i}+{i}=", "chosen": str(2 * i), "rejected": "none"}) + "\n" for i in range(30)))
    must((*STARTS[:STARTS.index("--run")], "--init", "--run", os.path.join(SCRATCH, "first")))
    must(("export", os.path.join(SCRATCH, "first"), os.path.join(SCRATCH, "weights")))
    shutil.copy(os.path.join(SCRATCH, "weights", "model.safetensors"), MODEL)
    shutil.copytree(MODEL, os.path.join(SCRATCH, "moved"))
    must(WITH_ADAPTERS)
    must(("export", RUN, os.path.join(SCRATCH, "adapter")))


def start_by_two():
    """A start by one tensor group of two ranks."""
    done = program.limits.run(threads(2, program.command(*STARTS, "--tensor", 2)), stdin=subprocess.DEVNULL, capture_output=True,
                              check=False, env=CLEAN, cwd=SCRATCH)
    if done.returncode != 0:
        raise RuntimeError(f"two ranks: status {done.returncode}: {done.stderr.decode(errors='replace')[-800:]}")


def start_on_a_drive():
    """A start whose drive is then mounted elsewhere."""
    os.mkdir(os.path.join(WORK, "drive"))
    must((*STARTS, "--nvme", "work/drive"))
    os.rename(os.path.join(WORK, "drive"), os.path.join(WORK, "mounted"))


def start_that_is_cut_off():
    """A start that can neither remove what announces it nor anything else."""
    run_with(STARTS, ("remove", 1, "EIO"), ":on")
    if not os.path.exists(os.path.join(RUN, "starting.json")):
        raise RuntimeError("the start left nothing")


TOKENIZES = ("tokenize", "--model", MODEL, "--data", DATA, "--out", TOKENS, "--threads", 1)
ON_A_BASE = (*STARTS, "--freeze", "*.mlp.*")  # frozen weights stay in the model's folder
WITH_ADAPTERS = (*STARTS, "--lora", 2)
AWAY = "weights=nvme,grads=nvme,optimizer=nvme,trained="
# Adapters on the host beside a base in nf4 on a drive; then both on the drive.
OVER_A_DRIVE = (*start("chats.jsonl", place=AWAY + "host"), "--lora", 2, "--base-format", "nf4")
ON_PAIRS = (*start("pairs.jsonl", 2), "--dpo")
BACK = (*RESUMES, "--previous")
# Each command, and those before it.
COMMANDS = {"train": (STARTS,), "resume": (RESUMES, STARTS), "conversion": ((*RESUMES, "--optimizer-state", "bf16"), STARTS),
            "export": (("export", RUN, OUT, "--dtype", "bf16"), STARTS), "tokenize": (TOKENIZES,),
            "tokenize anew": ((*TOKENIZES, "--pack", 64), TOKENIZES), "train on a base": (ON_A_BASE,),
            "resume on a base": ((*RESUMES, "--model", os.path.join(SCRATCH, "moved")), ON_A_BASE),
            "export of a base": (("export", RUN, OUT, "--model", os.path.join(SCRATCH, "moved")), ON_A_BASE), "export of adapters": (("export", RUN, OUT), WITH_ADAPTERS),
            "train over a drive": (OVER_A_DRIVE,), "resume over a drive": ((*RESUMES, "--place", AWAY + "nvme"), OVER_A_DRIVE),
            "train on pairs": (ON_PAIRS,),
            "export merged": (("export", RUN, OUT, "--merge"), WITH_ADAPTERS),
            "train on an adapter": ((*STARTS, "--adapter", "adapter"),),
            "train with frozen weights": ((*start("chats.jsonl", model="wide"), "--init", "--freeze", "*.mlp.*"),),  # kept in the run's folder
            "verify": (("verify", RUN), ON_A_BASE), "train again": (STARTS, start_that_is_cut_off), "go back": (BACK, STARTS),
            "export of a group": (("export", RUN, OUT), start_by_two), "resume of a group": ((*RESUMES, "--tensor", 1), start_by_two),
            "conversion elsewhere": ((*RESUMES, "--optimizer-state", "bf16", "--nvme", "work/mounted"), start_on_a_drive)}


def numbers(kind, places, draw):
    """Which calls fail: all until none is left, or the first from each place, or a sample of these."""
    if SAMPLE == "all":
        return range(1, sys.maxsize)
    count = int(SAMPLE) if SAMPLE and SAMPLE != "places" else 2 if kind in TWICE else 1
    return places if SAMPLE == "places" else sorted(draw.sample(places, min(len(places), count)))


def made(name):
    if not os.path.isdir(MODEL):
        make_inputs()
    arguments, *before = COMMANDS[name]
    return Command(name, arguments, *before)


def each_call(name):
    command, problems, tried, draw = made(name), [], {}, random.Random(f"{SEED} {name}")
    for kind, errors in KINDS.items():
        for error in errors if SAMPLE in ("all", "places") else (draw.choice(errors),):
            for number in numbers(kind, command.places[kind], draw) if not set(ALONE) & set(KINDS) or kind in ALONE else ():
                came, wrong = command.fail((kind, number, error))
                tried[kind] = tried.get(kind, 0) + came
                problems += wrong
                if not came:
                    break
    print(f"# {name}: failed {tried} of {command.calls}")
    return problems


def check_of(name):
    def check():
        return each_call(name)
    check.__name__ = f"each_call_of_{name.replace(' ', '_')}"
    return check


if __name__ == "__main__":
    script_test.run(*(check_of(name) for name in COMMANDS if not set(ALONE) & set(COMMANDS) or name in ALONE))
