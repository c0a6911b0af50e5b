"""The file that --trace writes: against the plan, against the log, and where it cannot be written."""

import json
import os

import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(8, 20000))
STEPS = 5
LANES = ("compute", "upload", "download", "read", "write", "update")
PLACES = {"host": "grads=host,optimizer=host", "nvme": "grads=nvme,optimizer=nvme"}
# Busy seconds and durations come from the same clock readings; what differs is how many digits are written.
TOLERANCE_S = 1e-5


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, place, *more):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", STEPS,
            *program.SHAPE, "--place", PLACES[place], "--trace", path(run + ".json"), *more]


def events_of(name):
    """The times of the ops, in the order of their starts, and the names of threads."""
    events = program.read_json(path(name))["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events
               if event["ph"] == "M" and event["name"] == "thread_name"}
    return sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"]), threads


def of(events, lane, step, kind="step"):
    return [event for event in events if event["cat"] == lane and event["args"]["step"] == step and
            event["args"]["program"] == kind]


def union_us(events):
    """The time in which at least one of the events, in order of their starts, goes on."""
    total, until = 0.0, 0.0
    for event in events:
        end = event["ts"] + event["dur"]
        total += max(0.0, end - max(until, event["ts"]))
        until = max(until, end)
    return total


def planned(place):
    """Ops and bytes of each lane in a step that applies the update of the step before."""
    report = program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--place", PLACES[place], "--json")
    return json.loads(report.out)["lanes"]


def threads_in_order(events, threads):
    """An event belongs to a thread of its lane, and the events of a thread do not overlap."""
    problems, until = [], {}
    for event in events:
        name = threads.get(event["tid"], "")
        if name.split(" (")[0] != event["cat"]:
            problems.append(f"an event of lane {event['cat']} is in the thread '{name}'")
        if name != event["cat"] and event["cat"] not in ("read", "write"):
            problems.append(f"the ops of lane {event['cat']} overlap")
        if event["ts"] < until.get(event["tid"], 0.0) - 1e-6 or event["dur"] < 0:
            problems.append(f"{event['name']} begins before its thread is free")
        until[event["tid"]] = event["ts"] + event["dur"]
    return problems


def as_planned(events, place):
    problems = []
    for lane, plan in planned(place).items():
        for step in range(2, STEPS + 1):
            found = of(events, lane, step)
            moved = sum(event["args"].get("bytes", 0) for event in found)
            if (len(found), moved) != (plan["ops"], plan["bytes"]):
                problems.append(f"step {step}, lane {lane}: {len(found)} ops and {moved} bytes instead of {plan}")
    if not of(events, "update", STEPS, "flush"):
        problems.append("the update after the last step is not there")
    return problems


def as_logged(events, run):
    problems = []
    for line in program.steps_of(path(run)):
        for lane in LANES:
            traced_s, logged_s = union_us(of(events, lane, line["step"])) * 1e-6, line["lanes"][lane]
            # Submissions and completions of other steps in between belong to the busy time of an I/O lane, not here.
            if abs(traced_s - logged_s) > TOLERANCE_S + (0.5 * logged_s if lane in ("read", "write") else 0.0):
                problems.append(f"step {line['step']}, lane {lane}: {traced_s} s traced, {logged_s} s logged")
    return problems


def args_of(event):
    args, name = event["args"], event["name"]
    problems = []
    if event["cat"] in ("read", "write") and name != "commit":
        rate = args["bytes"] / (event["dur"] * 1e3) if args.get("bytes", 0) > 0 else None
        if rate is None or abs(rate - args["GB/s"]) > 0.001:
            problems.append(f"{name}: {args} in {event['dur']} us")
    if name.startswith(("forward block", "backward block")) and not {"unit", "micro"} <= args.keys():
        problems.append(f"{name}: {args}")
    if "optimizer block" in name and name.split()[-1] != f"c{args.get('chunk')}":
        problems.append(f"{name}: {args}")
    return problems


def what_ran():
    problems = []
    for place in PLACES:
        ended = program.run(*train(place, place, "--speculate", "never"))
        events, threads = events_of(place + ".json")
        if ended.code != 0 or f"the first {STEPS} of {STEPS} steps since the start" not in ended.err:
            problems.append(f"{place}: status {ended.code}: {ended.err}")
        found = threads_in_order(events, threads) + as_planned(events, place) + as_logged(events, place)
        for event in events:
            found += args_of(event)
        names = {event["name"] for event in events}
        found += [f"no event is called '{name}'" for name in ("forward block 1 m0", "backward embedding m1", "compute norm")
                  if name not in names]
        problems += [f"{place}: {problem}" for problem in found]
    if "read optimizer block 0 c1" not in names or "commit" not in names:
        problems.append(f"what is on NVMe is not read and committed by name: {sorted(names)}")
    return problems


def counted_flops():
    """Without recomputation, a step's operations are those that the field counts for it: 6 a multiplying parameter and
    token, and 6 a layer, hidden element and position for causal attention."""
    program.must(*train("counted", "host", "--recompute", "none"))
    config = program.read_json(path("counted", "run.json"))["config"]
    hidden, layers, vocab = config["n_embd"], config["n_layer"], config["vocab_size"]
    tokens = program.steps_of(path("counted"))[0]["tokens"]
    expected = 6 * tokens * (layers * hidden * (12 * hidden + program.SEQ) + vocab * hidden)
    events = [event for event in events_of("counted.json")[0] if "GFLOP/s" in event["args"]]
    problems = []
    for step in range(1, STEPS + 1):
        counted = sum(event["args"]["GFLOP/s"] * event["dur"] * 1e3 for event in of(events, "compute", step))
        if abs(counted / expected - 1) > 1e-3:
            problems.append(f"step {step}: {counted} operations instead of {expected}")
    return problems


def a_redo_only_where_it_ran():
    """Every step clips, so that each speculation is redone; without clipping none is."""
    problems = []
    for run, clip in (("redone", "1e-3"), ("kept", "0")):
        program.must(*train(run, "nvme", "--speculate", "always", "--clip", clip))
        events, threads = events_of(run + ".json")
        problems += threads_in_order(events, threads)
        names = [event["name"] for event in events]
        if not any(name.startswith("speculative update") for name in names):
            problems.append(f"{run}: no update is speculative")
        if any(name.startswith("redo update") for name in names) != (run == "redone"):
            problems.append(f"{run}: the redone ops are {[name for name in names if name.startswith('redo')]}")
    return problems


def of_one_start():
    """The flag is not kept in the run: resume traces what it is asked to, and only its own steps."""
    program.must(*train("first", "nvme"))
    traced = os.stat(path("first.json")).st_mtime_ns
    program.must("resume", path("first"), "--steps", STEPS + 1)
    problems = [] if os.stat(path("first.json")).st_mtime_ns == traced else ["resume wrote the trace again"]
    program.must("resume", path("first"), "--steps", STEPS + 3, "--trace", path("second.json"))
    steps = {event["args"]["step"] for event in events_of("second.json")[0]}
    if steps != {STEPS + 2, STEPS + 3}:
        problems.append(f"a resumed run's trace has the steps {sorted(steps)}")
    return problems


def same_numbers():
    program.must(*train("traced", "nvme"))
    program.must(*[word for word in train("untraced", "nvme") if word not in ("--trace", path("untraced.json"))])
    same = program.numbers_of(path("traced")) == program.numbers_of(path("untraced"))
    return [] if same else ["a traced run has other losses"]


def paths_refused():
    """Before anything is written: one line, and all as it was."""
    program.must(*train("there", "host"))
    program.write(path("file"), "mine")
    table = [("a folder that is not there", path("nowhere", "trace.json"), "No such file"),
             ("a folder", SCRATCH, "exists"), ("a file that is there", path("file"), "exists"),
             ("a device", "/dev/null", "exists"), ("what the run has itself", None, "exists"),
             ("a name too long", path("x" * 300), "too long"), ("a path too long", path("x" * 5000), "too long")]
    problems = []
    for what, trace, *words in table:
        arguments = ["--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path("new"), "--trace",
                     path("new", program.STORE) if trace is None else trace]
        problems += program.refused(what, ["train", *arguments, *program.SHAPE], *words, watched=[SCRATCH])
        resumed = ["resume", path("there"), "--steps", STEPS + 1, "--trace",
                   path("there", program.STORE) if trace is None else trace]
        problems += program.refused(f"{what}, resumed", resumed, *words, watched=[SCRATCH])
    return problems


def inside_the_run():
    """The run's own folder is a place for it."""
    arguments = [path("inside", "trace.json") if word == path("inside.json") else word
                 for word in train("inside", "host")]
    program.must(*arguments)
    problems = [] if events_of(os.path.join("inside", "trace.json"))[0] else ["the trace is empty"]
    left = [name for name in os.listdir(path("inside")) if "partial" in name]
    return problems + [f"{name} is left" for name in left]


def taken_meanwhile():
    """A file that came to be at the path during the run stays; the run is saved."""
    arguments = [path("late", "log.jsonl") if word == path("late.json") else word for word in train("late", "host")]
    ended = program.run(*arguments)
    problems = [] if ended.code == 1 and "exists" in ended.err else [f"status {ended.code}: {ended.err}"]
    if len(program.steps_of(path("late"))) != STEPS or any("partial" in name for name in os.listdir(path("late"))):
        problems.append(f"the run's folder is not as it was: {os.listdir(path('late'))}")
    program.must("resume", path("late"), "--steps", STEPS + 1)
    return problems


script_test.run(what_ran, counted_flops, a_redo_only_where_it_ran, of_one_start, same_numbers, paths_refused,
                inside_the_run, taken_meanwhile)
