"""Budgets are promises: in a memory cgroup of both budgets and 120 MiB, with much larger state on NVMe, the program
trains, evaluates and resumes, wherever state lives; and its resident memory does not grow from step to step."""

import atexit
import itertools
import json
import os
import re
import signal
import subprocess
import threading

import hf_folder
import program
import ranks_jobs
from program import script_test

MIB = 1 << 20
BESIDE_BUDGETS_BYTES = 120 * MIB
BUDGETS_BYTES = {"device": 115 * MIB, "host": 160 * MIB}
# Bytes that the program reads of itself, of its libraries and of small files; the store is not among them.
CACHE_BESIDE_DATA_BYTES = 64 * MIB
USED_SHARE = 0.9  # of each budget, at least
STATE_TO_LIMIT = 1.8  # bytes of the store to the cgroup's limit, at least
SAMPLE_SECONDS = 0.01
GROWTH_BYTES = MIB // 4
STEADY_FROM, STEADY_STEPS = 3, 48
STAGES, STAGE_SHARE = 3, 0.02

# 35 million parameters: 397 MiB of optimizer, twice on NVMe. That alone is STATE_TO_LIMIT, even of budgets used to the end, so
# that it does not matter what else an automatic placement has there.
MODEL = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 64,
         "n_embd": 640, "n_layer": 7, "n_head": 10}
SHAPE = ["--seq", 32, "--micro-batch", 1, "--batch-tokens", 2 * 32]

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 30000))
RUN = os.path.join(SCRATCH, "run")


def model_folder():
    folder = os.path.join(SCRATCH, "model")
    os.makedirs(folder, exist_ok=True)
    program.write(os.path.join(folder, "config.json"), json.dumps(MODEL))
    return folder


class Group:
    """A memory cgroup of its own, version 1 or 2, below this process's or the nearest that may have one."""

    # Version: limit, peak, of memory.stat what is not page cache, page cache, how often the limit was met.
    FILES = {1: ("memory.limit_in_bytes", "memory.max_usage_in_bytes", ("rss",), "cache"),
             2: ("memory.max", "memory.peak", ("anon", "kernel"), "file")}
    numbers = itertools.count()

    def __init__(self, limit_bytes):
        self.folder, self.version = next(self.candidates(), (None, 0))
        if self.folder is None:
            raise script_test.Skip("no memory cgroup")
        atexit.register(self.remove)
        self.limit_file, self.peak_file, self.resident_keys, self.cache_key = self.FILES[self.version]
        program.write(os.path.join(self.folder, self.limit_file), str(limit_bytes))
        self.forbid_swap(limit_bytes)

    def candidates(self):
        with open("/proc/self/cgroup", encoding="ascii") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        for _, controllers, path in lines:
            if controllers in ("", "memory"):
                version = 2 if controllers == "" else 1
                root = "/sys/fs/cgroup" if version == 2 else "/sys/fs/cgroup/memory"
                yield from ((folder, version) for folder in self.made_below(root, path, self.FILES[version][0]))

    def made_below(self, root, path, limit_file):
        """A group that may limit memory; in version 2 the groups of running processes have no such children."""
        while True:
            folder = f"{root}{path.rstrip('/')}/spillway-test-{os.getpid()}-{next(self.numbers)}"
            try:
                os.mkdir(folder)
                if os.access(os.path.join(folder, limit_file), os.W_OK):
                    yield folder
                os.rmdir(folder)
            except OSError:
                pass
            if path in ("", "/"):
                return
            path = os.path.dirname(path)

    def forbid_swap(self, limit_bytes):
        """Limits swap too, so that memory beyond the limit is seen; a kernel without accounting of swap has no such file."""
        name, value = ("memory.swap.max", 0) if self.version == 2 else ("memory.memsw.limit_in_bytes", limit_bytes)
        try:
            program.write(os.path.join(self.folder, name), str(value))
        except OSError:
            pass

    def remove(self):
        try:
            os.rmdir(self.folder)
        except OSError:
            pass

    def number(self, name):
        try:
            with open(os.path.join(self.folder, name), encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def stat(self):
        with open(os.path.join(self.folder, "memory.stat"), encoding="ascii") as file:
            return {name: int(value) for name, value in (line.split() for line in file)}

    def enter(self, command):
        """The command, which joins the group before it becomes the program."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', os.path.join(self.folder, "cgroup.procs"), *command]


class Peaks:
    """The highest of what a group holds, sampled while a program runs in it."""

    def __init__(self, group):
        self.group, self.resident, self.cache, self.over = group, 0, 0, threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self):
        while not self.over.wait(SAMPLE_SECONDS):
            stat = self.group.stat()
            self.resident = max(self.resident, sum(stat.get(key, 0) for key in self.group.resident_keys))
            self.cache = max(self.cache, stat.get(self.group.cache_key, 0))

    def end(self):
        self.over.set()
        self.thread.join()


def forget_data():
    """Page cache counts in the group of who reads a file first; this test has just written the data."""
    file = os.open(DATA, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def mib(count_bytes):
    return f"{count_bytes / MIB:.0f} MiB"


def run_in_group(what, arguments, budgets, cache_bytes=0, beside_bytes=BESIDE_BUDGETS_BYTES):
    """Returns the problems with the memory of a run, with its end, or with its page cache beyond some bytes."""
    limit = sum(budgets.values()) + beside_bytes
    group = Group(limit)
    forget_data()
    with subprocess.Popen(group.enter(program.command(*arguments)), stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        peaks = Peaks(group)
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peaks.end()
    highest = usage.ru_maxrss * 1024
    peak = group.number(group.peak_file)
    group.remove()
    print(f"# {what}: budgets {mib(budgets['device'])} and {mib(budgets['host'])}; resident at most {mib(highest)}, "
          f"the group without page cache {mib(peaks.resident)}, page cache {mib(peaks.cache)}, all {mib(peak)} of "
          f"{mib(limit)}")
    problems = []
    if process.returncode != 0:
        killed = process.returncode == -signal.SIGKILL
        problems.append(f"{what}: ended with {process.returncode}{' (out of memory?)' if killed else ''}: "
                        f"{errors[-300:]}")
    if max(highest, peaks.resident) > limit:
        problems.append(f"{what}: {mib(highest)} resident, {mib(peaks.resident)} in the group, of {mib(limit)}")
    if peaks.cache > cache_bytes + CACHE_BESIDE_DATA_BYTES:
        problems.append(f"{what}: {mib(peaks.cache)} of page cache: the store is not read or written directly")
    return problems


def flags_of(case):
    return [*SHAPE, "--place", case["place"], "--order", case["order"], "--precision", case["precision"],
            *case.get("more", ())]


def budget_flags(budgets):
    return ["--device-memory", budgets["device"], "--host-memory", budgets["host"]]


def peaks_planned(model, case, budgets):
    planned = program.must("plan", "--model", model, *flags_of(case), *budget_flags(budgets), "--json")
    peaks = json.loads(planned.out)["peak_bytes"]
    return {tier: peaks[tier] for tier in budgets}


def budgets_used_up(model, case):
    """The budgets that the plan uses up: what it takes of generous ones."""
    peaks = peaks_planned(model, case, BUDGETS_BYTES)
    budgets = {tier: (peak + MIB - 1) // MIB * MIB for tier, peak in peaks.items()}
    used = peaks_planned(model, case, budgets)
    unused = [tier for tier in budgets if used[tier] < USED_SHARE * budgets[tier]]
    return budgets, [f"{case['place']}: {mib(used[tier])} of {mib(budgets[tier])} {tier}" for tier in unused]


def trains_within(case):
    program.shutil.rmtree(RUN, ignore_errors=True)
    model = model_folder()
    budgets, problems = budgets_used_up(model, case)
    what = f"{case['place']}, by {case['order']}, {case['precision']}"
    problems += run_in_group(f"train {what}", ["train", "--model", model, "--init", "--data", DATA, "--val", "1%",
                                               "--run", RUN, "--steps", 3, "--eval-every", 2, *flags_of(case),
                                               *budget_flags(budgets)], budgets)
    if problems:
        return problems
    limit = sum(budgets.values()) + BESIDE_BUDGETS_BYTES
    stored = os.path.getsize(os.path.join(RUN, program.STORE))
    if stored < STATE_TO_LIMIT * limit:
        problems.append(f"{what}: the store has only {mib(stored)}")
    if case.get("resumes"):
        problems += run_in_group(f"resume {what}", ["resume", RUN, "--steps", 4], budgets)
    evaluations = sum("val_loss" in line for line in program.log_lines(RUN))
    if evaluations != (3 if case.get("resumes") else 2):
        problems.append(f"{what}: {evaluations} evaluations")
    program.shutil.rmtree(RUN, ignore_errors=True)
    return problems


def automatic_placement_keeps_its_budgets():
    return trains_within({"place": "auto", "order": "layer", "precision": "bf16", "resumes": True,
                          "more": ["--chunk-grains", 32]})


def everything_on_nvme_keeps_its_budgets():
    return trains_within({"place": "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", "order": "batch",
                          "precision": "bf16", "resumes": True,
                          "more": ["--chunk-grains", 32, "--speculate", "always"]})


def shares_of_every_tier_keep_their_budgets():
    return trains_within({"place": "weights=host:20%/nvme,grads=host:10%/nvme,optimizer=host:8%/nvme,acts=host",
                          "order": "layer", "precision": "fp32", "more": ["--update", "device"]})


def weights_larger_than_the_group():
    """A checkpoint goes through in small pieces and past the page cache, into a store and out of it, and from folder to
    folder."""
    hidden, layers, beside = 512, 18, 80 * MIB
    folder = os.path.join(SCRATCH, "large")
    hf_folder.make(folder, {**MODEL, "n_embd": hidden, "n_layer": layers, "n_head": 8}, None)
    weights = hf_folder.write_zeros(os.path.join(folder, "model.safetensors"),
                                    hf_folder.shapes(hidden=hidden, layers=layers))
    case = {"place": "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", "order": "layer", "precision": "bf16",
            "more": ["--chunk-grains", 8, "--durability", "none"]}
    budgets = dict.fromkeys(BUDGETS_BYTES, 64 * MIB)
    none = dict.fromkeys(budgets, 0)
    problems = [] if weights > sum(budgets.values()) + beside else [f"only {mib(weights)} of weights"]
    problems += run_in_group(f"loading {mib(weights)}", ["train", "--model", folder, "--data", DATA, "--run", RUN,
                                                         "--steps", 1, *flags_of(case), *budget_flags(budgets)],
                             budgets, 0, beside)
    for what, source, more in (("a run", RUN, ()), ("a folder", folder, ("--dtype", "bf16", "--shard-size", "64MiB"))):
        out = os.path.join(SCRATCH, "out")
        problems += run_in_group(f"exporting {what}", ["export", source, out, *more], none, 0, beside)
        program.shutil.rmtree(out, ignore_errors=True)
    problems += inference_within(weights, RUN) + inference_within(weights, folder, "--scratch", SCRATCH)
    program.shutil.rmtree(RUN, ignore_errors=True)
    return problems


def inference_within(weights, source, *more):
    """Passes over weights of more than the group may hold, which come from a drive."""
    budgets, beside = dict.fromkeys(BUDGETS_BYTES, 48 * MIB), 80 * MIB
    common = [source, "--precision", "fp32", *budget_flags(budgets), *more]
    problems = [] if weights > sum(budgets.values()) + beside else [f"only {mib(weights)} of weights"]
    for command, given in (("generate", ["--prompt", "a text", "--max-tokens", 2]),
                           ("eval", ["--data", DATA, "--tokens", 100, "--micro-batch", 2])):
        problems += run_in_group(f"{command} {mib(weights)}", [command, *common, *given], budgets, weights, beside)
    return problems


def data_larger_than_the_group_is_read():
    """Data goes through the page cache, which the kernel takes back; it does not need to fit."""
    budgets = {"device": 16 * MIB, "host": 16 * MIB}
    data_bytes = 2 * (sum(budgets.values()) + BESIDE_BUDGETS_BYTES)
    data = os.path.join(SCRATCH, "zeros.bin")
    with open(data, "wb") as file:
        file.truncate(data_bytes)
    return run_in_group("data of " + mib(data_bytes), ["train", "--model", "gpt2-tiny", "--init", "--data", data,
                                                       "--run", RUN, "--steps", 3, *program.SHAPE,
                                                       *budget_flags(budgets)], budgets, data_bytes)


def resident_bytes(pid):
    """Exact, unlike VmRSS, which counts late by up to some pages for each thread. None where the program has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            found = re.search(r"^Rss:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def anonymous_bytes(pid):
    """Memory that only a process has, without the pages of files and of memory that processes share to exchange bytes."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return int(re.search(r"^Anonymous:\s+(\d+) kB", file.read(), re.MULTILINE).group(1)) * 1024
    except OSError:
        return 0


def stages_beside_their_plans(hidden, *flags):
    """Each stage's process in the midst of a training: the bytes that it has, and those of device and host in its plan."""
    folder, run = os.path.join(SCRATCH, f"piped-{hidden}"), os.path.join(SCRATCH, "piped")
    os.makedirs(folder, exist_ok=True)
    program.write(os.path.join(folder, "config.json"), json.dumps({**MODEL, "n_embd": hidden, "n_layer": 2 * STAGES, "n_head": 8}))
    program.shutil.rmtree(run, ignore_errors=True)
    shape = ["--seq", 32, "--micro-batch", 1, "--batch-tokens", 2 * STAGES * 32, "--threads", 1, "--device", "cpu", "--pipeline", STAGES, *flags]
    planned = json.loads(program.must("plan", "--model", folder, "--ranks", STAGES, *shape, "--json").out)["pipeline"]["stages"]
    job = ranks_jobs.Job(os.path.join(SCRATCH, "piped.log"), STAGES,
                         program.command("train", "--model", folder, "--init", "--data", DATA, "--run", run, "--steps", 100000, *shape))
    job.wait_for("step 3/")
    has = {rank: anonymous_bytes(pid) for rank, pid in job.processes().items()}
    job.process.send_signal(signal.SIGTERM)
    if job.end() is None or set(has) != set(range(STAGES)):
        raise RuntimeError(f"of ranks {sorted(has)}: {job.said()[-1500:]}")
    return [(has[rank], planned[rank]["peak_bytes"]["device"] + planned[rank]["peak_bytes"]["host"]) for rank in range(STAGES)]


def stages_take_what_their_plans_say():
    """Each stage's process, but for what that of a tiny model takes beside its plan: libraries, threads, MPI."""
    problems, beside = [], max(has - plan for has, plan in stages_beside_their_plans(64, "--precision", "fp32", "--place", "optimizer=device"))
    for precision, place in (("fp32", "device"), ("bf16", "device"), ("fp32", "host"), ("bf16", "nvme")):
        every = ",".join(f"{state}={place}" for state in ("weights", "grads", "optimizer", "acts"))
        found = stages_beside_their_plans(512, "--precision", precision, "--place", every)
        shares = [(has - beside) / plan - 1.0 for has, plan in found]
        print(f"# {precision}, all on {place}: plans of {', '.join(mib(plan) for _, plan in found)}; the stages take "
              f"{', '.join(f'{share:+.1%}' for share in shares)} beside {mib(beside)}")
        problems += [f"{precision} {place}: stage {stage} has {share:+.1%}" for stage, share in enumerate(shares) if abs(share) > STAGE_SHARE]
    return problems


def resident_by_step(*more):
    """Resident memory as each step's line arrives."""
    program.shutil.rmtree(RUN, ignore_errors=True)
    process = program.start("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", RUN, "--steps",
                            STEADY_STEPS, "--seq", 16, "--micro-batch", 2, "--batch-tokens", 4 * 16, *more)
    resident = {}
    for line in process.stderr:
        step = re.match(r"step (\d+)/", line)
        # The last step's line may come from a program that is already cleaning up; on busy cores, others too.
        found = resident_bytes(process.pid) if step and int(step.group(1)) < STEADY_STEPS else None
        if found is not None:
            resident[int(step.group(1))] = found
    program.limits.wait(process)
    program.shutil.rmtree(RUN, ignore_errors=True)
    return process.returncode, resident


def steady(what, *more):
    code, resident = resident_by_step(*more)
    later = [resident[step] for step in sorted(resident) if step > STEADY_FROM]
    if code != 0 or STEADY_FROM not in resident or len(later) < 40:
        return [f"{what}: ended with {code} after the lines of steps {sorted(resident)}"]
    growth = max(later) - resident[STEADY_FROM]
    print(f"# {what}: {mib(resident[STEADY_FROM])} resident after step {STEADY_FROM}, at most {growth // 1024} KiB "
          f"more in {len(later)} steps after it")
    return [f"{what}: resident memory grew by {growth} bytes"] if growth > GROWTH_BYTES else []


def resident_memory_is_steady():
    """Updates under the next forward; speculated ones, redone because every step is clipped; saves between steps."""
    return (steady("updates under forward", "--place", "optimizer=host,grads=host")
            + steady("speculated updates, each redone", "--place", "optimizer=nvme,grads=nvme,weights=nvme,acts=nvme",
                     "--speculate", "always", "--clip", "1e-6")
            + steady("saves between steps", "--place", "optimizer=host:50%/nvme", "--save-every", 5))


script_test.run(automatic_placement_keeps_its_budgets, everything_on_nvme_keeps_its_budgets,
                shares_of_every_tier_keep_their_budgets, weights_larger_than_the_group, data_larger_than_the_group_is_read,
                resident_memory_is_steady, stages_take_what_their_plans_say)
