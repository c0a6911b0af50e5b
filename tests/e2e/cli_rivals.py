"""Processes that want one run at the same time, on one to four ranks, and are killed: one of them has it, the others
say so, and whoever comes after goes on from the last commit. A third run that wants the same drive is left alone."""

import collections
import os
import random
import shutil
import signal
import subprocess
import time

import program
from program import script_test
from ranks_jobs import mpirun

SCRATCH = program.scratch_folder()
ROUNDS, SEED = int(os.environ.get("SW_TEST_ROUNDS", 4)), int(os.environ.get("SW_TEST_SEED", "20261122"))
RUN, STRANGER, DRIVE = (os.path.join(SCRATCH, name) for name in ("run", "stranger", "drive"))
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 20000))
ENDLESS, MOST_STEPS = 1000000, 400
SHAPE = ("--seq", 16, "--micro-batch", 1, "--batch-tokens", 12 * 16, "--threads", 1, "--precision", "fp32",
         "--schedule", "constant", "--warmup", 0, "--place", "grads=host,optimizer=nvme", "--allow-buffered")
# Messages of a process that does not get the run.
REFUSALS = ("is in use by another process", "another process is beginning a run", "was removed by the process that had it",
            "is not the folder of a run", "is not empty", "exists already", "is still held by writes",
            "has an unfinished start", "is not the one that rank 0 sees")
# A launcher that is left alone may hang: it is given up after so long, and counted. Two that train at once are seen to do
# so; one that is about to end, on a busy machine, is gone before.
LAUNCHER_S, SEEN_S = 60, 5
HAS_MPI = shutil.which("mpirun") is not None and os.environ.get("SW_HAVE_MPI") == "1"
RANKS = [1, 1, 1, 2, 3, 4] if HAS_MPI else [1]
seen = collections.Counter()


def train(run, steps=ENDLESS):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", run, "--nvme", DRIVE, "--steps", steps, *SHAPE]


def resume(steps=ENDLESS):
    return ["resume", RUN, "--steps", steps]


class Rival:
    """A process, or a job of several ranks, that wants a run."""

    def __init__(self, ranks, command, name):
        words = program.command(*command)
        self.said_to = os.path.join(SCRATCH, name)
        self.what = f"{command[0]} on {ranks}"
        self.ranks, self.killed = ranks, False
        # A name of this rival alone finds its ranks again.
        self.mark = f"SW_TEST_RIVAL={time.monotonic_ns()}"
        environment = {**os.environ, **dict([self.mark.split("=")])}
        with open(self.said_to, "wb") as file:
            self.process = subprocess.Popen(mpirun((ranks, words)) if ranks > 1 else words, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=file, start_new_session=True, env=environment)

    def said(self):
        with open(self.said_to, encoding="utf-8", errors="replace") as file:
            return file.read()

    def has_run(self):
        """Tells whether the process has come to train, and may still."""
        return self.process.poll() is None and not self.killed and "device memory " in self.said()

    def processes(self):
        if self.ranks == 1:
            return [self.process.pid] if self.process.poll() is None else []
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    told = file.read().split(b"\0")
            except OSError:
                continue
            if self.mark.encode() in told and any(word.startswith(b"OMPI_COMM_WORLD_RANK=") for word in told):
                found.append(int(name))
        return found

    def kill(self, draw):
        """One of its ranks, or all and what has launched them."""
        ranks = self.processes()
        self.killed = True
        if self.ranks > 1 and ranks and draw.random() < 0.5:
            ranks = [draw.choice(ranks)]
        elif self.ranks > 1:
            ranks = [*ranks, self.process.pid]
        for rank in ranks:
            try:
                os.kill(rank, signal.SIGKILL)
            except ProcessLookupError:
                pass
        seen["kills"] += 1

    def end(self):
        """Returns the problems with the end of the process."""
        limit = program.limits.Limit(root=self.process.pid)
        # Ranks whose launcher was killed end a moment later, and so does a launcher whose rank was; some never do.
        while self.processes() and not limit.over():
            time.sleep(0.1)  # to look at all processes takes ten milliseconds
        hang = self.processes()
        for rank in hang:
            os.kill(rank, signal.SIGKILL)
        try:
            code = self.process.wait(LAUNCHER_S)
        except subprocess.TimeoutExpired:
            seen["launchers that hang"] += 1
            self.process.kill()
            code = self.process.wait()
        if hang:
            return [f"{self.what} hangs: {self.said()[-800:]}"]
        if self.killed or code == 0:
            return []
        refusal = [words for words in REFUSALS if words in self.said()]
        seen[refusal[0] if refusal else "other refusals"] += 1
        return [] if refusal else [f"{self.what}: status {code}: {self.said()[-800:]}"]


def two_have_it(rivals):
    """Tells whether two processes go on training side by side."""
    until = time.monotonic() + SEEN_S
    while sum(rival.has_run() for rival in rivals) > 1:
        if time.monotonic() > until:
            return [f"{' and '.join(rival.what for rival in rivals)} both train"]
        time.sleep(0.05)
    return []


def begun():
    return os.path.exists(os.path.join(RUN, "run.json")) and not os.path.exists(os.path.join(RUN, "starting.json"))


def start_rivals(draw):
    """Two of them, and now and then a stranger; a new run is trained by both."""
    rivals = []
    for number in range(3 if draw.random() < 0.3 else 2):
        ranks = draw.choice(RANKS)
        command = train(STRANGER) if number == 2 else resume() if begun() and draw.random() < 0.9 else train(RUN)
        rivals.append(Rival(1 if number == 2 else ranks, command, f"said-{number}"))
        time.sleep(draw.choice([0.0, 0.05, draw.uniform(0.0, 1.5)]))
    return rivals


def go_on(last):
    """The run is taken up from what was committed, or begun again where nothing was."""
    ended = program.run(*resume(1))
    if ended.code != 0 and any(words in ended.err for words in ("start it again with train", "has no finished commit")):
        seen["begun again"] += 1
        ended = program.run(*train(RUN, 1))
    if ended.code != 0:
        return [f"cannot go on after step {last}: {ended.err[-800:]}"], last
    steps = [line["step"] for line in program.steps_of(RUN)]
    problems = [] if steps == list(range(1, len(steps) + 1)) else [f"the log has the steps {steps}"]
    problems += [] if len(steps) >= last else [f"there were {last} steps and now {len(steps)}"]
    store = program.run("verify", RUN)
    return problems + ([] if store.code == 0 else [f"verify: {store.err[-800:]}"]), len(steps)


def the_stranger_is_whole():
    """It has its store, or has none and never had."""
    problems = []
    if os.path.exists(os.path.join(STRANGER, "log.jsonl")):
        seen["strangers"] += 1
        ended = program.run("verify", STRANGER)
        problems += [] if ended.code == 0 else [f"the stranger: {ended.err[-800:]}"]
    elif os.path.exists(STRANGER):
        ended = program.run(*train(STRANGER, 1))
        problems += [] if ended.code == 0 or "exists already" in ended.err else [f"the stranger begins: {ended.err[-800:]}"]
    mine = os.path.exists(os.path.join(STRANGER, "run.json"))
    shutil.rmtree(STRANGER, ignore_errors=True)
    if mine:
        os.unlink(os.path.join(DRIVE, "store.spillway"))
    return problems


def begin_anew():
    for folder in (RUN, STRANGER, DRIVE):
        shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(DRIVE)


def fight(number, last):
    draw = random.Random(SEED + number)
    rivals = start_rivals(draw)
    problems = []
    for _ in range(draw.choice([1, 2, 2])):
        time.sleep(draw.uniform(0.0, draw.choice([0.3, 1.0, 4.0])))
        problems += two_have_it(rivals[:2])
        alive = [rival for rival in rivals if rival.process.poll() is None and not rival.killed]
        if alive:
            draw.choice(alive).kill(draw)
    # Who waits for the run gives up, or gets it and is killed then.
    limit = program.limits.Limit()
    while any(rival.process.poll() is None and not rival.killed for rival in rivals) and not limit.over():
        for rival in rivals:
            if rival.has_run():
                rival.kill(draw)
        time.sleep(0.02)
    for rival in rivals:
        problems += rival.end()
    problems += the_stranger_is_whole()
    more, last = go_on(last)
    return [f"seed {SEED + number}: {problem}" for problem in problems + more], last


def one_has_the_run_whoever_is_killed():
    problems, last = [], 0
    begin_anew()
    begin = time.monotonic()
    for number in range(ROUNDS):
        found, last = fight(number, last)
        problems += found
        if ROUNDS > 50 and (found or number % 20 == 19):
            print("\n".join([f"# {number + 1} rounds: {dict(seen)}", *found]), flush=True)
        if found or last > MOST_STEPS or number % 8 == 7:
            begin_anew()
            last = 0
    print(f"# {ROUNDS} rounds in {time.monotonic() - begin:.0f} s: {dict(seen)}, {len(problems)} problems", flush=True)
    return problems


script_test.run(one_has_the_run_whoever_is_killed)
