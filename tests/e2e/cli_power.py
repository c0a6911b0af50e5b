"""The folder of a run, its drives and its exports after the power has failed at any moment: the program finds the last
step that it had committed, or the one that was on its way, goes on to the same bits, and leaves nothing behind. It goes on with
one rank or with several, whatever the run had. With `--durability none` it may refuse to, in a sentence."""

import collections
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time

import hf_folder
import power_loss
import program
from program import script_test
from ranks_jobs import TOLERANCE, mpirun

SCRATCH = program.scratch_folder()
SEED, SEEDS = int(os.environ.get("SW_TEST_SEED", "20261122")), int(os.environ.get("SW_TEST_SEEDS", 22))
ROOT, OUT, DOUBLE = os.path.join(SCRATCH, "machine"), os.path.join(SCRATCH, "out"), 0.2
RUN, OTHER, EXPORT = os.path.join(ROOT, "runs", "run"), os.path.join(ROOT, "runs", "other"), os.path.join(ROOT, "runs", "exported")
KEPT = "config.json"
DRIVES = [os.path.join(ROOT, f"drive{number}") for number in range(3)]
MODEL, DATA = os.path.join(SCRATCH, "model"), os.path.join(SCRATCH, "data.txt")
# Two sequences a step, for one or two ranks. A file system in memory serves as well.
SHAPE = ("--seq", 16, "--micro-batch", 1, "--batch-tokens", 32, "--threads", 1, "--precision", "fp32",
         "--schedule-steps", 20, "--allow-buffered")
NVME = ("--place", "grads=host,optimizer=nvme")
WEIGHTS_AWAY = ("--place", "weights=nvme,grads=nvme,optimizer=nvme")
TRAINED_AWAY, TRAINED_NEAR = (("--place", f"{WEIGHTS_AWAY[1]},trained={tier}") for tier in ("nvme", "host"))
found = collections.Counter()


def train(steps, *more):
    return ["train", "--model", MODEL, "--init", "--data", DATA, "--run", RUN, "--steps", steps, *SHAPE, *more]


def train_from_weights(steps, *more):
    return [word for word in train(steps, *more) if word != "--init"]


def resume(steps, *more):
    return ["resume", RUN, "--steps", steps, *more]


EACH_STEP = ("--export-every", 1, "--keep", 50)
JUDGED = ("--val", "10%", "--early-stop", 9, "--eval-every")

FORM, LORA, NF4 = ("--optimizer-state", "8bit"), ("--lora", 2), ("--base-format", "nf4")
GROUP, NO_GROUP = ("--tensor", 2), ("--tensor", 1)

# Each of (ranks, command)...: what is recorded.
LIVES = {
    "train": ((1, train(3, *NVME, "--val", "10%", "--export-every", 2, "--keep", 1)), (1, resume(5))),
    "saves": ((1, train(5, "--place", "grads=host,optimizer=host", "--save-every", 2)),),
    "drives": ((1, train(3, *NVME, "--nvme", DRIVES[0], "--nvme", DRIVES[2])), (1, ["export", RUN, EXPORT])),
    "previous": ((1, train(3, *NVME)), (1, resume(4, "--previous"))),
    "more ranks": ((1, train(2, *NVME, "--nvme", DRIVES[0], *EACH_STEP)), (2, resume(3)), (1, resume(4))),
    "fewer ranks": ((2, train(2, *NVME, *EACH_STEP)), (1, resume(3)), (2, resume(4))),
    "no durability": ((1, train(2, *NVME, "--durability", "none", *EACH_STEP)), (2, resume(3)), (1, resume(4))),
    "evaluations": ((1, train(5, *NVME, *JUDGED, 2, *FORM, "--export-every", 3, "--keep", 2)), (1, resume(7))),
    "another rate": ((1, train(6, "--place", "grads=host,optimizer=host", "--save-every", 3, *JUDGED, 1, *EACH_STEP)),),
    "frozen": ((1, train(3, *NVME, "--freeze", "embedding", *EACH_STEP)), (1, resume(4))),
    "base": ((1, train_from_weights(3, *NVME, "--freeze", "*.mlp.*", *EACH_STEP)), (1, resume(4))),
    "base on a drive": ((1, train_from_weights(2, *WEIGHTS_AWAY, "--freeze", "*.mlp.*", *EACH_STEP)), (1, resume(3)),
                        (1, resume(4, *NVME)), (1, resume(5, *WEIGHTS_AWAY))),
    "adapters": ((1, train_from_weights(3, *NVME, *LORA, *JUDGED, 1, "--export-every", 2, "--keep", 1)), (1, resume(5))),
    "adapters near": ((1, train_from_weights(2, *TRAINED_NEAR, *LORA, *NF4, *EACH_STEP)), (1, resume(3)), (1, resume(4, *TRAINED_AWAY)),
                      (1, resume(5, *NVME))),
    "adapters away": ((1, train_from_weights(2, *TRAINED_AWAY, *LORA, "--base-format", "int8", *FORM, *EACH_STEP)),
                      (1, resume(3, *TRAINED_NEAR)), (1, resume(4, *NVME))),
    "adapters of ranks": ((2, train_from_weights(2, *TRAINED_NEAR, *LORA, *NF4, *EACH_STEP)), (1, resume(3, *TRAINED_AWAY)), (2, resume(4))),
    "another form": ((1, train(3, *NVME, *EACH_STEP)), (1, resume(4, *FORM))),
    "group": ((2, train(3, *NVME, *GROUP, *JUDGED, 1, *EACH_STEP)), (2, resume(4))),
    "larger group": ((1, train(2, *NVME, *EACH_STEP)), (2, resume(3, *GROUP)), (2, resume(4, *NO_GROUP))),
    "smaller group": ((2, train(2, *NVME, *GROUP, *EACH_STEP)), (2, resume(3, *NO_GROUP)), (2, resume(4, *GROUP))),
    "group of one": ((2, train(2, *NVME, *GROUP, "--nvme", DRIVES[0], *EACH_STEP)), (1, resume(3, *NO_GROUP)), (2, resume(4, *GROUP))),
    "narrow group": ((2, train(3, *NVME, *GROUP, *FORM, *EACH_STEP)), (1, resume(4, *NO_GROUP))),
}
GROUPED = [name for name, commands in LIVES.items() if any("--tensor" in command for _, command in commands)]
# Flags by which a life goes on after a crash.
CHANGES = {"saves": ("--lr", "1e-2"), "another rate": ("--lr", "1e-2"), "another form": FORM}
# The ranks that go on after a crash, with the size of their tensor groups for runs that have some, and the words of a run
# that may be lost.
RECOVERERS, GROUP_RECOVERERS, NOT_CLEAN = (1, 1, 1, 2), ((1, 1), (2, 1), (2, 2), (2, 2)), "did not end cleanly"


def run(ranks, command, environment=None):
    words = program.command(*command)
    done = program.limits.run(mpirun((ranks, words)) if ranks > 1 else words, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)
    # The launcher's own words follow a line.
    said = done.stderr.decode(errors="replace").split("\n-----")[0]
    return program.Ended(done.returncode, done.stdout.decode(errors="replace"), said)


def must(ranks, command, environment=None):
    ended = run(ranks, command, environment)
    if ended.code != 0:
        raise RuntimeError(f"{ranks} ranks of {command}: status {ended.code}: {ended.err[-800:]}")
    return ended


def weights_of(folder):
    """The digest of an export that is whole, of a model or of adapters; None."""
    of_adapters = os.path.exists(os.path.join(folder, "adapter_config.json"))
    config, weights = ("adapter_config.json", "adapter_model.safetensors") if of_adapters else ("config.json", "model.safetensors")
    try:
        with open(os.path.join(folder, config), encoding="utf-8") as file:
            json.load(file)
        with open(os.path.join(folder, weights), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (OSError, ValueError):
        return None


def losses_of_run():
    """The validation losses by step, as the log has them."""
    lines = [line for line in program.log_lines(RUN) if "val_loss" in line]
    found = {line["step"]: line["val_loss"] for line in lines}
    if len(found) < len(lines):
        raise RuntimeError(f"a step was evaluated twice: {lines}")
    return found


def begin_machine():
    """The run's drives, and another run with its store on one of them."""
    shutil.rmtree(ROOT, ignore_errors=True)
    for folder in (os.path.join(ROOT, "runs"), *DRIVES):
        os.makedirs(folder)
    if not os.path.isdir(MODEL):
        os.mkdir(MODEL)
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 16,
                  "n_embd": 16, "n_layer": 1, "n_head": 2}
        program.write(os.path.join(MODEL, "config.json"), json.dumps(config))
        tensors = hf_folder.shapes(hidden=16, layers=1, positions=16)
        with open(os.path.join(MODEL, "model.safetensors"), "wb") as file:
            file.write(hf_folder.safetensors({name: (shape, hf_folder.random_values(name, shape, 3))
                                              for name, shape in tensors.items()}))
        program.write(DATA, program.text(3, 4000))
    other = train(1, *NVME, "--nvme", DRIVES[1])
    other[other.index(RUN)] = OTHER
    must(1, other)


class Life:
    """A recorded one, with what its steps are."""

    def __init__(self, name):
        self.name, self.commands = name, LIVES[name]
        self.ranks = max(ranks for ranks, _ in self.commands)
        self.change = CHANGES.get(name, ())
        self.last = max(command[command.index("--steps") + 1] for _, command in self.commands if "--steps" in command)
        self.ends = {}  # the weights that come of what was found
        if self.ranks == 1:
            self.live()
            self.know_steps()
        begin_machine()
        self.recording = power_loss.Recording(ROOT, os.path.join(SCRATCH, f"{name}.record"), DRIVES[1])
        for ranks, command in self.commands:
            must(ranks, command, self.recording.environment(os.environ["SW_RECORDER"]))
        self.recording.read()
        # Launchers take their time: what several ranks do is recorded with the exports of each step.
        if self.ranks > 1:
            self.know_steps()

    def live(self):
        """The same life without a crash and with an export of each step."""
        begin_machine()
        (ranks, command), *rest = self.commands
        if "--export-every" in command:
            command = command[:command.index("--export-every")]
        must(ranks, [*command, *EACH_STEP])
        for ranks, command in rest:
            must(ranks, command)

    def know_steps(self):
        self.weights = {step: weights_of(os.path.join(RUN, "exports", f"step-{step}")) for step in range(1, self.last + 1)}
        self.numbers, self.losses = program.numbers_of(RUN), losses_of_run()
        if None in self.weights.values():
            raise RuntimeError(f"{self.name}: no export of each step: {self.weights}")


class Crash:
    """A state after a failure of the power, and how it is told."""

    def __init__(self, life, recording, before, draw, known, earlier="", own=None):
        """known: the last step of which the life's own numbers are those that are expected. before, own: as
        power_loss.Recording.commits has them."""
        self.life, self.known = life, known
        all_calls, near = recording.moments()
        self.now = draw.choice(near if draw.random() < 0.6 else all_calls)
        self.mode = draw.choice((power_loss.KILLED, power_loss.JOURNAL, power_loss.STRICT, power_loss.STRICT))
        self.state = recording.state(self.now, self.mode, draw)
        self.oldest, self.newest = recording.commits(self.now, before, own)
        self.ranks, self.group, self.change = draw.choice(RECOVERERS) if has_mpi() else 1, 1, life.change
        if life.name in GROUPED:
            self.ranks, self.group = draw.choice(GROUP_RECOVERERS)
            self.change = (*life.change, "--tensor", self.group)
        self.what = (f"{earlier}{life.name}, {self.mode} at call {self.now} of {len(all_calls)}, {self.ranks} go on"
                     + (f" in groups of {self.group}" if life.name in GROUPED else ""))

    def bounds(self):
        return self.oldest, self.newest

    def layout(self):
        """Returns the ranks, the size of the tensor groups and the form of state that run.json has; None where there is none."""
        text = self.state.get(os.path.relpath(os.path.join(RUN, "run.json"), ROOT))
        if text is None:
            return None
        run_json = json.loads(text)
        form = "-8bit" if run_json["settings"]["optimizer_state"] == "8bit" else ""
        return run_json["ranks"], int(run_json["settings"]["tensor"]), form

    def goes_on_as(self):
        """The bits of the end depend on this: moments in 8 bits are rounded once more where the layout changes."""
        return self.ranks, self.group, self.layout() if "8bit" in self.life.commands[0][1] else None


def going_on_after(ended):
    """The step that a resume found; 0 where it says none."""
    lines = [line for line in ended.err.splitlines() if line.startswith("continuing after step ")]
    return int(lines[0].rsplit(" ", 1)[1]) if lines else 0


def exported(crash, steps):
    """Which step an export gives, and what is wrong with that."""
    shutil.rmtree(OUT, ignore_errors=True)
    ended = run(1, ["export", RUN, OUT])
    if ended.code != 0:
        lost = [] if crash.oldest is None else [f"export: {ended.err[-500:]}"]
        return None, lost
    weights, possible = weights_of(OUT), range(crash.oldest or 0, (crash.newest or 0) + 1)
    right = [step for step in possible if steps.get(step) == weights]
    unknown = [step for step in possible if step not in steps]
    if right or len(unknown) == 1:
        steps.setdefault((right or unknown)[0], weights)
        return (right or unknown)[0], []
    return None, [] if unknown else [f"the export is of no step from {crash.oldest} to {crash.newest}"]


def begin_again(crash, environment=None):
    """Where nothing was committed, the same command begins the run again."""
    ranks, command = crash.life.commands[0]
    ended = run(ranks, command, environment)
    return [] if ended.code == 0 else [f"cannot be begun again: {ended.err[-500:]}"]


def go_on(crash, environment=None):
    """The step from which the run went on, -1 where it was begun again, None where it is lost by its own choice, and
    what is wrong."""
    last = crash.life.last + 1
    ended = run(crash.ranks, resume(last, *crash.change), environment() if environment else None)
    if ended.code == 0:
        step = going_on_after(ended)
        right = (crash.oldest or 0) <= step <= (crash.newest or 0)
        return step, [] if right else [f"went on after {step} and not {crash.oldest} to {crash.newest}"]
    if crash.oldest is not None:
        return -1, [f"the run is lost: {ended.err[-500:]}"]
    if crash.life.name == "no durability" and NOT_CLEAN in ended.err:
        changed = program.differences(crash.state, program.tree(ROOT))
        return None, [f"{name} was changed by a refusal" for name in changed if os.path.basename(name) != "run.lock"]
    problems = begin_again(crash, environment() if environment else None)
    if not problems:
        ended = run(crash.ranks, resume(last, *crash.change), environment() if environment else None)
        problems += [] if ended.code == 0 else [f"begun again, then: {ended.err[-500:]}"]
    return -1, problems


def wrong_ends(crash, history):
    """The same bits come out of the same step."""
    shutil.rmtree(OUT, ignore_errors=True)
    ended = run(1, ["export", RUN, OUT])
    weights = weights_of(OUT)
    if ended.code != 0 or weights is None:
        return [f"no export in the end: {ended.err[-500:]}"]
    return [] if crash.life.ends.setdefault(history, weights) == weights else [f"other weights in the end, after {history}"]


def wrong_log(crash, step):
    numbers, last = program.numbers_of(RUN), crash.life.last + 1
    problems = [] if list(numbers) == list(range(1, last + 1)) else [f"the log has the steps {list(numbers)}"]
    return problems + [f"the log has {numbers[s]} of step {s}" for s in numbers
                       if s <= min(step, crash.known) and numbers[s] != crash.life.numbers[s]]


def same_loss(crash, one, other):
    """An evaluation that is lost is made again, by ranks that may add in another order."""
    return one == other or (crash.life.name in GROUPED and None not in (one, other) and abs(one - other) <= TOLERANCE * other)


def wrong_evaluations(crash, step):
    """--early-stop goes by those in the log, and --keep by those in the index, which are the same."""
    _, command = crash.life.commands[0]
    if "--eval-every" not in command:
        return []
    found, every = losses_of_run(), command[command.index("--eval-every") + 1]
    due = range(every, crash.life.last + 2, every)
    problems = [f"the log lacks the evaluation after step {s}: {found}" for s in due if s not in found]
    problems += [f"the log has {found[s]} after step {s}" for s in found
                 if s <= min(step, crash.known) and not same_loss(crash, found[s], crash.life.losses[s])]
    entries = program.read_json(os.path.join(RUN, "exports", "index.json"))
    return problems + [f"the index has {entry}, and the log {found}" for entry in entries
                       if "given_up" not in entry and not same_loss(crash, entry["val_loss"], found.get(entry["step"]))]


def wrong_exports(crash, steps, step):
    problems, kept, folder = [], [], os.path.join(RUN, "exports")
    if os.path.exists(os.path.join(folder, "index.json")):
        kept = [entry["step"] for entry in program.read_json(os.path.join(folder, "index.json"))]
        problems += [f"exports holds {name}" for name in os.listdir(folder)
                     if name not in ("index.json", *(f"step-{step}" for step in kept))]
    elif os.path.exists(folder):
        problems += [f"exports holds {name}" for name in os.listdir(folder)]
    for number in kept:
        weights = weights_of(os.path.join(folder, f"step-{number}"))
        if weights is None or (number <= step and steps.get(number, weights) != weights):
            problems.append(f"the export of step {number} is not whole")
    if os.path.exists(EXPORT):
        problems += [] if weights_of(EXPORT) in steps.values() else ["the user's export is not whole"]
    elif crash.life.name == "drives":
        ended = run(1, ["export", RUN, EXPORT])
        problems += [] if ended.code == 0 else [f"cannot be exported again: {ended.err[-500:]}"]
    return problems


def left_behind(crash):
    """Returns the problems with files that are neither of the run with so many ranks, nor of the other run, nor exports."""
    ranks, group = crash.ranks, f"-tensor-{crash.group}" if crash.group > 1 else ""
    form = "-8bit" if "8bit" in (*crash.life.commands[0][1], *crash.life.change) else ""
    wanted = {os.path.join(RUN, name) for name in ("run.json", "recipe.yaml", "run.lock", "log.jsonl", "timeline.json", "frozen.spillway",
                                                KEPT)}
    own = [f"rank-{rank}-of-{ranks}{group}{form}" if ranks > 1 or form else "" for rank in range(ranks)]
    possible = [{os.path.join(place, name, power_loss.STORE) for place in places for name in own}
                for places in ([RUN], [DRIVES[0]], [DRIVES[0], DRIVES[2]])]
    stores = {store for each in possible for store in each if os.path.exists(store)}
    problems = [] if stores in possible else [f"stores are {sorted(stores)}"]
    problems += [] if program.read_json(os.path.join(RUN, KEPT)) == program.read_json(os.path.join(MODEL, "config.json")) else [
        f"{KEPT} is not that of the model"]
    folders_of_ranks = {os.path.dirname(store) for store in stores if ranks > 1 or form}
    for where, folders, files in os.walk(ROOT):
        if where.startswith((OTHER, EXPORT, os.path.join(RUN, "exports"), DRIVES[1])):
            continue
        problems += [f"{os.path.join(where, name)} is left" for name in files
                     if os.path.join(where, name) not in wanted | stores]
        problems += [f"{os.path.join(where, name)} is left" for name in folders
                     if name.startswith("rank-") and os.path.join(where, name) not in folders_of_ranks]
    run_json = program.read_json(os.path.join(RUN, "run.json"))
    return problems + ([f"run.json still lists {run_json['left']}"] if run_json["left"] else [])


def touched(state):
    """Returns the changes to the other run."""
    below = [os.path.relpath(path, ROOT) + "/" for path in (OTHER, DRIVES[1])]
    before = {path: content for path, content in state.items() if path.startswith(tuple(below))}
    now = {below[i] + name: content for i, folder in enumerate((OTHER, DRIVES[1]))
           for name, content in program.tree(folder).items()}
    return [f"{name} of another run was changed" for name in program.differences(before, now)]


def examine(crash, steps, history=()):
    """Goes on from a state as a user does, and returns what is wrong."""
    step, problems = exported(crash, steps)
    went_on, more = go_on(crash)
    problems += more
    count(crash, went_on)
    if went_on is None:
        problems += [] if step is None else [f"exported step {step} and refused to go on"]
        problems += touched(crash.state)
    elif not problems:
        if step is not None and went_on not in (step, -1):
            problems.append(f"exported step {step} and went on after {went_on}")
        problems += (wrong_ends(crash, (*history, (*crash.goes_on_as(), went_on))) + wrong_log(crash, went_on)
                     + wrong_evaluations(crash, went_on) + wrong_exports(crash, steps, went_on) + left_behind(crash) + touched(crash.state))
    return problems


def count(crash, went_on):
    if went_on is None:
        outcome = "refused as not ended cleanly"
    elif went_on < 0:
        outcome = "begun again"
    else:
        outcome = "the newest step" if went_on == crash.newest else "the last step that lasts"
    found[outcome] += 1
    found[f"{crash.life.name}, {crash.ranks} go on" + (f" in groups of {crash.group}" if crash.group > 1 else "")] += 1


def fail_twice(crash, draw):
    """The power fails once more while the run goes on."""
    recording = power_loss.Recording(ROOT, os.path.join(SCRATCH, "again.record"), DRIVES[1])
    step, problems = go_on(crash, lambda: recording.environment(os.environ["SW_RECORDER"]))
    if problems or step is None:
        count(crash, step)
        return [f"{crash.what}, recorded: {problem}" for problem in problems]
    life = crash.life
    # Other ranks add in another order, and another rate leads elsewhere.
    known = life.last if life.ranks == 1 and crash.ranks == 1 and not life.change else max(step, 0)
    steps = {number: weights for number, weights in life.weights.items() if number <= known}
    again = Crash(life, recording.read(), crash.bounds(), draw, known, crash.what + ", then ",
                  crash.layout())
    power_loss.write(ROOT, again.state)
    found["failed twice"] += 1
    return [f"{again.what}: {problem}" for problem in examine(again, steps, ((*crash.goes_on_as(), step),))]


def fail_once(life, seed, seen):
    draw = random.Random(seed)
    crash = Crash(life, life.recording, (None, None), draw, life.last)
    twice = draw.random() < DOUBLE
    digest = (power_loss.digest(crash.state), crash.bounds())
    if digest in seen and not twice:
        found["seen before"] += 1
        return []
    seen.add(digest)
    power_loss.write(ROOT, crash.state)
    problems = fail_twice(crash, draw) if twice else [f"{crash.what}: {problem}" for problem in
                                                     examine(crash, crash.life.weights)]
    return [f"seed {seed}: {problem}" for problem in problems]


def has_mpi():
    return shutil.which("mpirun") is not None and os.environ.get("SW_HAVE_MPI") == "1"


def a_failing_power_costs_no_step():
    problems, seen, lives = [], set(), {}
    names = sys.argv[1:] or [name for name, commands in LIVES.items() if has_mpi() or all(ranks == 1 for ranks, _ in commands)]
    begin = time.monotonic()
    for seed in range(SEED, SEED + SEEDS):
        name = names[seed % len(names)]
        if name not in lives:
            lives[name] = Life(name)
        wrong = fail_once(lives[name], seed, seen)
        problems += wrong
        if wrong and SEEDS > 100:
            print("\n".join(wrong), file=sys.stderr, flush=True)
    print(f"# {SEEDS} seeds in {time.monotonic() - begin:.0f} s: {dict(found)}, {len(problems)} problems", flush=True)
    return problems


script_test.run(a_failing_power_costs_no_step)
