"""The profile of this machine: measured once, by which `plan` answers for any model and `train` predicts its steps;
renewed by `doctor --measure`. No speed is asserted."""

import json
import os
import re
import signal

import program
from program import command, script_test
from ranks_jobs import mpirun

SCRATCH = program.scratch_folder()
CACHE = os.path.join(SCRATCH, "cache", "spillway")
os.environ["XDG_CACHE_HOME"] = os.path.dirname(CACHE)
MEASURES = "measuring this machine"
STEPS = 4
TRAINING = ("--model", "gpt2-demo", "--seq", 64, "--micro-batch", 2, "--batch-tokens", 256)
NVME = ("--place", "optimizer=nvme")
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 20000))


def kept(kind):
    return sorted(os.path.join(CACHE, name) for name in os.listdir(CACHE) if name.startswith(kind))


def content(path):
    with open(path, "rb") as file:
        return file.read()


def measurements():
    """The kept measurements of the machine and its drives, by file, without the doubt of runs: on a busy machine, steps depart from
    any profile. The doubt is taken away."""
    found = {}
    for path in kept("machine") + kept("drives"):
        found[path] = json.loads(content(path))
        if found[path].pop("departed", None) is not None:
            program.write(path, json.dumps(found[path]))
    return found


def measured_once():
    """`doctor --measure` makes the profile. Plans of other models and placements do not measure, and repeat themselves."""
    problems = []
    report = json.loads(program.must("doctor", "--quick", "--measure", "--json", "--nvme", SCRATCH).out)
    found = [finding for finding in report["findings"] if finding["what"] == "profile"]
    machines, drives = kept("machine"), kept("drives")
    if len(found) != 1 or len(drives) != 1 or machines != [found[0]["facts"]["file"]]:
        return [f"doctor found {found}; kept are {machines} and {drives}"]
    before = content(machines[0])
    for arguments in ((), ("--place", "optimizer=nvme"), ("--seq", 128, "--micro-batch", 1)):
        answers = [program.run("plan", "--model", "gpt2-demo", "--nvme", SCRATCH, *arguments) for _ in range(2)]
        if any(ended.code != 0 or ended.err for ended in answers):
            problems.append(f"{arguments}: {answers[0].code}, {answers[0].err!r}")
        # Budgets follow the free memory of the moment, but the first lines tell the prediction alone.
        predictions = [re.findall("a (?:step|run) .*takes .*", ended.out) for ended in answers]
        if len(predictions[0]) != 2 or predictions[0] != predictions[1] or "by this machine's profile" not in answers[0].out:
            problems.append(f"{arguments}: {answers[0].out[:300]!r}")
    if content(machines[0]) != before or kept("machine") != machines:
        problems.append("a later plan changed the profile")
    return problems


def train(run, *more):
    """Trains, and returns what it says, what it predicts of its steps, and its results."""
    run = os.path.join(SCRATCH, run)
    ended = program.must("train", *TRAINING, "--init", "--data", DATA, "--run", run, "--steps", STEPS, *more)
    return ended.err, program.read_json(os.path.join(run, "run.json"))["prediction"], program.numbers_of(run)


def predicts_training():
    """`train` predicts by the profile what `plan` predicts, and measures nothing."""
    problems, before = [], measurements()
    for name, more in (("memory", ()), ("drives", NVME)):
        planned = json.loads(program.must("plan", *TRAINING, "--nvme", SCRATCH, *more, "--json").out)["predicted"]["plain"]
        said, made, _ = train(name, *more)
        if measurements() != before:
            problems.append(f"{name}: training changed the profile")
        if MEASURES in said or made["step_seconds"] != planned["step_s"] or made["lanes"] != planned["lane_busy_s"]:
            problems.append(f"{name}: {made} instead of {planned}; {said[:300]!r}")
    timeline = program.read_json(os.path.join(SCRATCH, "memory", "timeline.json"))
    if timeline["predicted"] is None:
        problems.append("the timeline of the run lacks the prediction")
    return problems


def trains_without_one():
    """Without a profile, or without the drives that a plan uses, `train` predicts and measures nothing. Its results are
    the same."""
    problems, numbers = [], {more: train(f"with {len(more)}", *more)[2] for more in ((), NVME)}
    away = kept("drives")[0] + ".away"
    os.rename(away.removesuffix(".away"), away)
    found = [(train("no drives", *NVME), NVME)]
    os.environ["XDG_CACHE_HOME"] = os.path.join(SCRATCH, "empty")
    found += [(train(f"none {len(more)}", *more), more) for more in ((), NVME)]
    os.environ["XDG_CACHE_HOME"] = os.path.dirname(CACHE)
    os.rename(away, away.removesuffix(".away"))
    for (said, made, results), more in found:
        if MEASURES in said or made["step_seconds"] is not None or results != numbers[more]:
            problems.append(f"{more}: {made}, {results} instead of {numbers[more]}: {said[:300]!r}")
    if any(name.startswith("machine") for _, _, names in os.walk(os.path.join(SCRATCH, "empty")) for name in names):
        problems.append("a profile was made")
    return problems


def departs():
    """Steps that depart from a profile, here of a machine that computes ten thousand times faster, are told once, and the
    profile is in doubt: `train` says so, and `plan` measures again. Without a prediction nothing departs."""
    path, problems = kept("machine")[0], []
    entry = measurements()[path]
    for op in entry["ops"]:
        op["seconds"] /= 10000
    program.write(path, json.dumps(entry))
    process = program.start("train", *TRAINING, "--init", "--data", DATA, "--run", os.path.join(SCRATCH, "departs"), "--steps", 1000000)
    said = next((line for line in process.stderr if "not the predicted" in line), "")
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    if process.wait() != 130 or "spillway doctor --measure" not in said or "another program" not in said or "not the predicted" in rest:
        problems.append(f"status {process.returncode}: {said!r}, then {rest[-300:]!r}")
    if "a run has departed" in said or not json.loads(content(path))["departed"]:
        problems.append("the profile is not in doubt")
    said = " ".join(train("doubtful")[0].split())
    if "from which an earlier run has departed" not in said or MEASURES in said:
        problems.append(f"train with a doubtful profile: {said[:900]!r}")
    again = program.run("plan", *TRAINING, "--nvme", SCRATCH)
    now = json.loads(content(path))
    if again.code != 0 or "as a run has departed" not in again.err or "departed" in now or now["ops"] == entry["ops"]:
        problems.append(f"plan with a doubtful profile: {again.code}, {again.err!r}")
    drives = kept("drives")[0]
    program.write(drives, json.dumps({**json.loads(content(drives)), "departed": True}))
    again = program.run("plan", *TRAINING, "--nvme", SCRATCH)
    if again.code != 0 or MEASURES in again.err or "as a run has departed" not in again.err or "departed" in json.loads(content(drives)):
        problems.append(f"plan with doubtful drives: {again.code}, {again.err!r}")
    return problems


def ranks_measure_together():
    """Ranks that plan together measure at once and keep that beside the profile of a process alone. `train` by as many
    predicts by it."""
    before, problems, plan = kept("machine"), [], command("plan", *TRAINING, "--nvme", SCRATCH)
    answers = [program.limits.run(mpirun((2, plan)), capture_output=True, text=True, check=True) for _ in range(2)]
    times = [re.findall("a step takes .*", ended.stdout) for ended in answers]
    made = set(kept("machine")) - set(before)
    if [MEASURES in ended.stderr for ended in answers] != [True, False] or len(times[0]) != 1 or times[0] != times[1] or len(made) != 1:
        problems.append(f"{made}: {answers}")
    if " ".join(f"to renew it, remove {made.pop()}".split()) not in " ".join(answers[0].stdout.split()):
        problems.append(f"the profile of ranks is not named: {answers[0].stdout}")
    run = command("train", *TRAINING, "--init", "--data", DATA, "--run", os.path.join(SCRATCH, "ranks"), "--steps", STEPS)
    ended = program.limits.run(mpirun((2, run)), capture_output=True, text=True, check=True)
    if times[0][0] not in ended.stderr or MEASURES in ended.stderr:
        problems.append(f"a training does not predict {times[0]}: {ended.stderr[:900]!r}")
    ended = program.limits.run(mpirun((2, plan + ["--ranks", "3"])), capture_output=True, text=True, check=False)
    return problems + ([] if ended.returncode == 2 and "--ranks 3 is not the 2 ranks" in ended.stderr else [f"--ranks 3: {ended}"])


def of_another_build():
    """A profile that another build of the program has measured predicts no training, and is measured again by `plan`, here for
    pairs: its models take other batches than the job's."""
    path = kept("machine")[0]
    entry = json.loads(content(path))
    program.write(path, json.dumps({**entry, "program": "0" * len(entry["program"])}))
    said, made, _ = train("another build")
    problems = [] if MEASURES not in said and made["step_seconds"] is None else [f"train: {made}, {said[:300]!r}"]
    ended = program.run("plan", "--model", "gpt2-demo", "--nvme", SCRATCH, "--dpo")
    if ended.code != 0 or "another build" not in ended.err or json.loads(content(path))["program"] != entry["program"] or not json.loads(content(path))["ops"]:
        problems.append(f"plan: {ended.code}, {ended.err!r}")
    return problems


def damaged():
    """A profile that cannot be read, or cannot be right, is measured again with one sentence: here the drives', which take
    least. tests/job/profile.c has the rest."""
    problems, file = [], kept("drives")[0]
    entry = json.loads(content(file))
    for what, text in (("damaged", "{"), ("absurd", json.dumps({**entry, "read": {"bytes_per_s": 1e30, "cores": 0}})),
                       ("negative", json.dumps({**entry, "commit_s": -1})), ("NaN", json.dumps({**entry, "io_latency_s": float("nan")}))):
        program.write(file, text)
        ended = program.run("plan", "--model", "gpt2-demo", "--nvme", SCRATCH)
        if ended.code != 0 or ended.err.count("\n") != 1 or "cannot be right" not in ended.err or "drives" not in ended.err:
            problems.append(f"a {what} profile of the drives: {ended.code}, {ended.err!r}")
    return problems


def narrow_state_is_named():
    """By a profile of drives that are a thousand times slower, where only moments in 8 bits have room beside them."""
    file = kept("drives")[0]
    entry, before = json.loads(content(file)), content(file)
    for way in ("read", "write"):
        entry[way]["bytes_per_s"] /= 1000
    program.write(file, json.dumps(entry))
    budgets, problems = ("--device-memory", "80MiB", "--host-memory", "8MiB", "--chunk-grains", 2), []
    for name, more, named in (("fp32", (), True), ("8bit", ("--optimizer-state", "8bit"), False)):
        said = train(name, *budgets, *more)[0]
        if ("warning: with --optimizer-state 8bit a step is predicted to take" in said) != named:
            problems.append(f"{name}: {said}")
    program.write(file, before)
    return problems


script_test.run(measured_once, predicts_training, narrow_state_is_named, trains_without_one, departs, of_another_build, damaged, ranks_measure_together)
