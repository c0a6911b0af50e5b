"""Runs of several ranks, with tensor groups and without, that lose one rank or all of them to kill -9 at any moment: in a start, in
a step, in an export, and while a resume lays the state out for other ranks or groups. What goes on has the losses, weights,
exports and evaluations of a run that nothing has killed, bit for bit, and leaves nothing else behind."""

import collections
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import program
from program import limits, script_test
from ranks_jobs import mpirun

SCRATCH = program.scratch_folder()
SEED, SEEDS = int(os.environ.get("SW_TEST_SEED", "20261126")), int(os.environ.get("SW_TEST_SEEDS", 2))
DATA, HELD = (program.write(os.path.join(SCRATCH, f"{name}.txt"), program.text(seed, 6000)) for name, seed in (("data", 6), ("held", 77)))
RUN, PLAIN, OUT = (os.path.join(SCRATCH, name) for name in ("run", "plain", "out"))
MOST_KILLS, ALL_RANKS, TIMEOUT_S, LAUNCHER_S = 3, 0.5, 20, 20
BEGIN_AGAIN, LAST = "start it again with train", 9
SHAPE = ("--seq", 32, "--micro-batch", 1, "--batch-tokens", 4 * 32, "--threads", 1, "--precision", "fp32", "--chunk-grains", 2,
         "--lr", "1e-2", "--schedule", "constant", "--warmup", 0, "--rank-timeout", TIMEOUT_S, "--val", HELD, "--eval-every", 1)
NVME = ("--place", "weights=host,grads=nvme,optimizer=nvme")
EXPORTS = ("--export-every", 2, "--keep", 3)
# Each: the flags of the start, then phases of (ranks, size of tensor groups, last step). The state is laid out anew between them. The
# seeds of the default draw "dissolved" and "adapters", which take least time.
LIVES = {
    "8-bit state": ((*NVME, *EXPORTS, "--optimizer-state", "8bit"), ((2, 2, 3), (1, 1, 6), (2, 2, LAST))),
    "saves": (("--place", "optimizer=host", "--save-every", 3, *EXPORTS), ((2, 2, 4), (2, 1, 6), (2, 2, LAST))),
    "early stop": ((*NVME, *EXPORTS, "--early-stop", 2), ((2, 2, 3), (1, 1, 5), (2, 2, 40))),
    "four ranks": ((*NVME, *EXPORTS, "--zero", 3), ((4, 2, 3), (2, 2, 6), (4, 4, LAST))),
    "dissolved": ((*NVME, *EXPORTS), ((2, 2, 3), (2, 1, 6), (1, 1, LAST))),
    "adapters": (("--place", "weights=nvme,grads=nvme,optimizer=nvme,trained=host", *EXPORTS, "--lora", 2, "--base-format", "nf4"),
                 ((2, 1, 3), (1, 1, 6), (2, 1, LAST))),
    "joined": ((*NVME, *EXPORTS), ((1, 1, 3), (2, 2, 6), (2, 1, LAST))),
}
found = collections.Counter()


def train(run, life):
    flags, ((_, group, steps), *_) = LIVES[life]
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", run, "--steps", steps, "--tensor", group, *SHAPE, *flags]


def resume(run, phase):
    _, group, steps = phase
    return ["resume", run, "--steps", steps, "--tensor", group]


def names_in(run):
    return sorted(os.path.relpath(os.path.join(where, name), run) for where, folders, files in os.walk(run) for name in (*folders, *files))


def stamp(path):
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def seen(run):
    """Returns what differs once a name in the run's folder has come or gone, or its log has grown. The folder's time says so, and
    takes less to read than its names."""
    exports = os.path.join(run, "exports")
    try:
        names = os.listdir(exports)
    except OSError:
        names = []
    return [stamp(path) for path in (run, os.path.join(run, "log.jsonl"), exports, *(os.path.join(exports, name) for name in names))]


def is_program(number, program_file):
    try:
        return os.readlink(f"/proc/{number}/exe") == program_file
    except OSError:
        return False


def children(number):
    """The processes that a process has started and that live. To read what all processes are takes ten milliseconds."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{number}/task"):
            with open(f"/proc/{number}/task/{thread}/children", encoding="utf-8") as file:
                found += map(int, file.read().split())
    return found


def is_dead(number):
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def kill(processes):
    for number in processes:
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass


class Job:
    """A command under way, by one rank or several."""

    def __init__(self, ranks, command, run):
        words = program.command(*command)
        self.ranks, self.run, self.changes, self.processes, self.hit = ranks, run, 0, [], False
        self.said = open(os.path.join(SCRATCH, "said"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(mpirun((ranks, words)) if ranks > 1 else words, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.said)
        self.limit = limits.Limit(root=self.process.pid)
        self.last, self.begun = seen(run), time.monotonic()

    def running(self):
        return self.process.poll() is None and not self.limit.over()

    def find_ranks(self):
        """The processes of its ranks, which the launcher may not have started yet."""
        if self.ranks == 1:
            return [self.process.pid]
        below, program_file = [self.process.pid], os.path.realpath(program.PROGRAM)
        for number in below:
            below += children(number)
        return [number for number in below if is_program(number, program_file)]

    def wait_for_ranks(self):
        while self.running() and len(self.processes) < self.ranks:
            self.processes = self.find_ranks()
            time.sleep(0.005)
        self.begun = time.monotonic()

    def look(self):
        """Counts the changes to the run that can be seen."""
        now = seen(self.run)
        self.changes += now != self.last
        self.last = now
        time.sleep(0.003)

    def lose_ranks(self, draw):
        victims = self.processes if draw.random() < ALL_RANKS else [draw.choice(self.processes)]
        kill(victims)
        self.hit = True
        found["all ranks killed" if len(victims) == self.ranks else "one rank killed"] += 1

    def end(self):
        """The status, and what was said. mpirun of Open MPI 4.1.4 may wait for ever for ranks that were killed at once."""
        dead_since = None
        while self.running():
            dead_since = (dead_since or time.monotonic()) if self.hit and all(map(is_dead, self.processes)) else None
            if dead_since is not None and time.monotonic() > dead_since + LAUNCHER_S:
                found["launchers ended"] += 1
                break
            time.sleep(0.01)
        if self.process.poll() is None:
            kill({*self.processes, self.process.pid})
        code = self.process.wait()
        self.said.seek(0)
        said = self.said.read()
        self.said.close()
        return code, said


def weights_of(folder):
    """The digest of an export, of a model or of adapters."""
    names = [name for name in ("model.safetensors", "adapter_model.safetensors") if os.path.exists(os.path.join(folder, name))]
    with open(os.path.join(folder, *names), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def exported(run):
    shutil.rmtree(OUT, ignore_errors=True)
    program.must("export", run, OUT)
    if os.path.exists(OUT + ".partial"):
        raise RuntimeError("an export leaves what the one before had begun")
    return weights_of(OUT)


def outcome(run):
    """All that a run has come to; the names of what is in its folder, too."""
    lines = program.log_lines(run)
    index = program.read_json(os.path.join(run, "exports", "index.json"))
    kept = [(entry["step"], entry["val_loss"], entry.get("given_up"), weights_of(os.path.join(run, "exports", f"step-{entry['step']}")))
            for entry in index]
    return {"steps": [(line["step"], line["loss"], line["grad_norm"], line["lr"]) for line in lines if "loss" in line],
            "evaluations": [(line["step"], line["val_loss"], line["val_tokens"]) for line in lines if "val_loss" in line],
            "exports": sorted(kept), "weights": exported(run), "names": names_in(run)}


class Life:
    """One that nothing has killed: how long each phase takes, in seconds and in changes that can be seen, and its outcome."""

    def __init__(self, name):
        self.name, self.phases, self.spans = name, LIVES[name][1], []
        shutil.rmtree(PLAIN, ignore_errors=True)
        for number, phase in enumerate(self.phases):
            job = Job(phase[0], resume(PLAIN, phase) if number else train(PLAIN, name), PLAIN)
            job.wait_for_ranks()
            while job.running():
                job.look()
            self.spans.append((time.monotonic() - job.begun, job.changes))
            code, said = job.end()
            if code != 0:
                raise RuntimeError(f"{name}, {phase}: status {code}: {said[-1500:]}")
        self.outcome = outcome(PLAIN)


def kill_at_random(job, span, draw):
    """By the clock, or by what is to be seen of the run: starts, conversions and exports are short."""
    job.wait_for_ranks()
    seconds, changes = span
    if draw.random() < 0.3:
        at = draw.uniform(0, seconds)
        while job.running() and time.monotonic() < job.begun + at:
            time.sleep(0.001)
    else:
        at = draw.randint(0, changes)
        while job.running() and job.changes < at:
            job.look()
        time.sleep(draw.choice((0, draw.uniform(0, 0.004), draw.uniform(0, 0.05))))
    if job.running():
        job.lose_ranks(draw)


def saved_step():
    """The last step that must be there: a step that the log calls saved carried the commit of the one before."""
    try:
        lines = program.log_lines(RUN)
    except OSError:
        return 0
    return max((line["step"] - 1 for line in lines if line.get("saved")), default=0)


def verified(first):
    """The step that the run is at, None where it is to be begun again, and what is wrong."""
    ended = program.run("verify", RUN, "--json")
    if ended.code == 0:
        step = json.loads(ended.out)["step"]
        return step, [] if step >= saved_step() else [f"step {saved_step()} was saved, and verify finds {step}"]
    if not first:
        return None, [f"verify: {ended.err[-800:]}"]
    again = program.run("resume", RUN)
    right = again.code == 1 and ("there is no" in again.err or BEGIN_AGAIN in again.err)
    return None, [] if right else [f"verify: {ended.err[-500:]} resume: {again.code} {again.err[-500:]}"]


def live_phase(life, number, draw):
    """Kills a phase some times, then lets it end."""
    phase, problems, kills = life.phases[number], [], draw.randint(1, MOST_KILLS)
    while not problems:
        step, problems = verified(number == 0) if number or os.path.exists(RUN) else (None, [])
        if problems:
            break
        found["begun again"] += step is None and os.path.exists(RUN)
        job = Job(phase[0], train(RUN, life.name) if step is None else resume(RUN, phase), RUN)
        if kills > 0:
            kill_at_random(job, life.spans[number], draw)
        code, said = job.end()
        after = re.search(r"^continuing after step (\d+)$", said, re.MULTILINE)
        if after and int(after[1]) != (step or 0):
            problems.append(f"verify finds step {step}, and the run goes on after {after[1]}")
        if code == 0:
            break
        kills -= 1
        if job.hit:
            found["killed before a conversion ended"] += bool(number and step == life.phases[number - 1][2] and not after)
        else:
            problems.append(f"cannot go on: status {code}: {said[-1500:]}")
    return [f"phase {number}, {phase}: {problem}" for problem in problems]


def export_killed(draw):
    """The user's own export: the next one takes its place."""
    shutil.rmtree(OUT, ignore_errors=True)
    process = program.start("export", RUN, OUT)
    time.sleep(draw.uniform(0, 0.06))
    process.kill()
    process.wait()
    process.stderr.close()
    shutil.rmtree(OUT, ignore_errors=True)
    found["exports killed"] += 1


def live(life, draw):
    shutil.rmtree(RUN, ignore_errors=True)
    for number in range(len(life.phases)):
        problems = live_phase(life, number, draw)
        if problems:
            return problems
        export_killed(draw)
    now = outcome(RUN)
    return [f"other {what}: {now[what]} instead of {life.outcome[what]}" for what in now if now[what] != life.outcome[what]]


def kills_at_any_moment():
    names, lives, problems, begin = sys.argv[1:] or list(LIVES), {}, [], time.monotonic()
    for seed in range(SEED, SEED + SEEDS):
        draw, name = random.Random(seed), names[seed % len(names)]
        if name not in lives:
            lives[name] = Life(name)
        wrong = [f"seed {seed}, {name}: {problem}" for problem in live(lives[name], draw)]
        problems += wrong
        if wrong and SEEDS > 100:
            print("\n".join(wrong), file=sys.stderr, flush=True)
    print(f"# {SEEDS} seeds in {time.monotonic() - begin:.0f} s: {dict(found)}, {len(problems)} problems", flush=True)
    return problems


script_test.run(kills_at_any_moment)
