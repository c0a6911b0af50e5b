"""The words of a pair: its contenders, what they must reach, and how one of them is run and read."""

import json
import os
import shutil
import statistics
import sys
from dataclasses import dataclass, field

import install
import measure

HERE = os.path.dirname(os.path.abspath(__file__))
LR = 1e-4
WARM_UP = 1  # steps that are not timed: they allocate and compile


class Failed(Exception):
    """A contender did not give its figures; the message says why."""


@dataclass(frozen=True)
class Shape:
    """A training step. `batch`: sequences of a step; `steps`: of a round, with those of the warm-up."""
    model: str
    seq: int
    batch: int
    steps: int
    precision: str = "bf16"

    @property
    def tokens(self):
        return self.seq * self.batch


@dataclass
class Session:
    """The settings of a run, given to every pair. `folder` is on the drive that is measured and holds only files of this run; `weights` and
    `tokens` are those of the pair under way."""
    program: str
    peers: str
    folder: str
    threads: int
    rounds: int
    llm_c: str = None
    data: str = None
    weights: str = None
    tokens: str = None
    installed: dict = field(default_factory=dict)

    def path(self, name):
        return os.path.join(self.folder, name)

    def fresh(self, name):
        """Removes what a folder of that name held, and returns its path."""
        shutil.rmtree(self.path(name), ignore_errors=True)
        return self.path(name)


@dataclass(frozen=True)
class Contender:
    """`command(session)` gives the words to start, `read(session, ended)` the fields of the run: `figures` by name, and
    where there are any `losses` and `step_written_bytes`. `needs`: peers that must be installed. `settings`: what was
    chosen for it, in words. `taken_from`: another contender, whose run has this one's fields under this one's name."""
    name: str
    command: object = None
    read: object = None
    needs: tuple = ()
    settings: str = ""
    env: tuple = ()
    taken_from: str = None
    limit_s: int = 1800


@dataclass(frozen=True)
class Goal:
    """Rounds' ratios of `figure`, `than` over `ours`, have at least the median `least`; of several in `than` the fastest
    counts. The figure `peak_bytes` is of the whole run."""
    ours: str
    than: tuple
    figure: str
    least: float


@dataclass(frozen=True)
class Pair:
    """`loss_tolerance`: how far losses of a step may lie apart, relative to the first contender's. `shape` is None where
    nothing is trained."""
    name: str
    title: str
    contenders: tuple
    goals: tuple = ()
    shape: Shape = None
    loss_tolerance: float = None


def json_line(ended):
    try:
        return json.loads(ended.out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise Failed(f"no line of JSON, but: {install.last_line(ended.out + ended.err)}") from None


def step_fields(seconds, losses, written):
    """Fields of a training: the first steps warm up."""
    if len(seconds) <= WARM_UP:
        raise Failed(f"it made {len(seconds)} steps, and the first {WARM_UP} are not timed")
    return {"figures": {"step_s": statistics.median(seconds[WARM_UP:])}, "seconds": seconds, "losses": losses,
            "step_written_bytes": statistics.median(written[WARM_UP:])}


def read_worker(_, ended):
    found = json_line(ended)
    return step_fields(found["seconds"], found["losses"], found["step_written_bytes"])


def worker_command(session, shape, script, *flags, launcher=(), threads=None):
    """A worker in the Python of the peers' folder; `launcher` are words that go between that Python and the script."""
    kind = "H" if session.tokens.endswith(".u16.bin") else "I"
    return (install.python_of(session.peers), *launcher, os.path.join(HERE, script), "--model", session.weights, "--tokens",
            session.tokens, "--type", kind, "--seq", shape.seq, "--batch", shape.batch, "--steps", shape.steps, "--lr", LR,
            "--threads", threads or session.threads, *flags)


def train_command(session, shape, *flags, threads=None, micro_batch=None):
    """Our training as a user starts it, with AdamW as the peers have it: no weight decay, a constant rate."""
    return (session.program, "train", "--model", session.weights, "--data", session.tokens, "--run", session.fresh("run"),
            "--steps", shape.steps, "--batch-tokens", shape.tokens, "--seq", shape.seq, "--micro-batch",
            micro_batch or shape.batch, "--lr", LR, "--warmup", 0, "--schedule", "constant", "--weight-decay", 0,
            "--precision", shape.precision, "--threads", threads or session.threads, "--quiet", *flags)


def read_train(session, _):
    with open(session.path("run/log.jsonl"), encoding="utf-8") as file:
        lines = [line for line in map(json.loads, file) if "loss" in line]
    return step_fields([line["seconds"] for line in lines], [line["loss"] for line in lines],
                       [line["bytes"]["nvme_write"] for line in lines])


def ours(name, shape, *flags, settings=""):
    return Contender(name, lambda session: train_command(session, shape, *flags), read_train, settings=settings)


def missing(session, contender):
    """Why the contender cannot run, or None."""
    for peer in contender.needs:
        why = session.installed.get(peer, {"missing": "not looked for"})["missing"]
        if why:
            return f"{peer} is not here: {why}"
    return None


def reason_of(ended):
    """Why a process failed: our own sentence, which a launcher's report may follow, or the last line that it printed."""
    own = [line for line in ended.err.splitlines() if line.startswith("spillway ")]
    return own[0][:300] if own else install.last_line(ended.err or ended.out)


def run(session, contender):
    """Runs a contender once and returns its fields. Raises Failed."""
    env = {**(install.environment(session.peers, session.threads) if contender.needs else os.environ), **dict(contender.env)}
    try:
        ended = measure.run(contender.command(session), contender.limit_s, env, session.folder)
        if ended.code != 0:
            print(ended.err, file=sys.stderr)
            raise Failed(f"it ended with status {ended.code}: {reason_of(ended)}")
        fields = contender.read(session, ended)
    except (OSError, KeyError) as error:
        raise Failed(f"{type(error).__name__}: {error}") from None
    return {**fields, "wall_s": ended.wall_s, "peak_bytes": ended.peak_bytes, "written_bytes": ended.written_bytes}
