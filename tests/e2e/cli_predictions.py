"""Predictions of `spillway plan`: by which rates, kept in which file, and their trace. No speed is asserted."""

import json
import os
import xml.etree.ElementTree

import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 20000))
ON_DEVICE = "weights=device,grads=device,optimizer=device,acts=device"
ON_NVME = "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme"
NUMBERS = "cores compute_cores read_write_slowdown io_latency_s commit_s op_s queued_op_s".split()
MOVES = "upload download update update_on_device finish zero read write".split()
ARRAYS = "forward_s backward_s recompute_s derive_s last_product_s first_product_s".split()
UNITS, MICROS = 4, 2
SVG = "{http://www.w3.org/2000/svg}"
LANES = {"compute", "upload", "download", "read", "write", "update", "comm"}
SIMULATION_FIELDS = {"step_s", "tokens_per_second", "bottleneck", "bottleneck_share", "lane_busy_s"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def plan(place, rates, *more):
    return ["plan", "--model", "gpt2-tiny", *program.SHAPE, "--recompute", "none", "--nvme", SCRATCH, "--place", place,
            "--rates", path(rates), *more]


def predicted(place, rates, *more):
    return json.loads(program.must(*plan(place, rates, "--json", *more)).out)["predicted"]


def rates_file():
    """The name of a file of rates, measured once for all checks."""
    if not os.path.exists(path("rates.json")):
        program.must(*plan(ON_DEVICE, "rates.json"))
    return "rates.json"


def changed(name, **numbers):
    """A copy of the rates with some of them changed."""
    rates = program.read_json(path(rates_file()))
    rates.update(numbers)
    program.write(path(name), json.dumps(rates))
    return name


def made_and_used_again():
    first = program.must(*plan(ON_NVME, "made.json", "--json"))
    rates, was = program.read_json(path("made.json")), program.tree(SCRATCH)
    problems = [f"'{name}' is {rates.get(name)!r}" for name in NUMBERS
                if not isinstance(rates.get(name), (int, float))]
    problems += [f"'{name}' is {rates.get(name)!r}" for name in MOVES if rates[name].keys() != {"bytes_per_s", "cores"}]
    problems += [f"'{name}' has {len(rates[name])} units" for name in ARRAYS if len(rates[name]) != UNITS]
    if rates["cores"] != len(os.sched_getaffinity(0)):
        problems.append(f"{rates['cores']} cores share the work, however few threads compute")
    second = program.must(*plan(ON_NVME, "made.json", "--json"))
    problems += [f"{name} was changed, made or removed" for name in program.differences(was, program.tree(SCRATCH))]
    if first.out != second.out:
        problems.append("the same rates give another prediction")
    if first.err or second.err:
        problems.append(f"standard error: {first.err!r}, {second.err!r}")
    return problems


def as_the_rates_say():
    """With moving for nothing, a step on the device is its arithmetic; what is twice as slow takes twice as long."""
    free = {name: {"bytes_per_s": 1e18, "cores": 0} for name in MOVES}
    forward, backward = [0.5, 1, 2, 64], [4, 8, 16, 32]
    changed("free.json", **free, op_s=0, queued_op_s=0, compute_cores=0, forward_s=forward, backward_s=backward)
    found = predicted(ON_DEVICE, "free.json")["plain"]
    expected = MICROS * (sum(forward[:-1]) + sum(backward))
    problems = []
    if abs(found["step_s"] / expected - 1) > 1e-6 or found["bottleneck"] != "compute":
        problems.append(f"{found} instead of {expected} s of compute")
    if found.keys() != SIMULATION_FIELDS or found["lane_busy_s"].keys() != LANES:
        problems.append(f"the fields are {found}")
    if abs(found["tokens_per_second"] * found["step_s"] / (MICROS * 4 * program.SEQ) - 1) > 1e-9:
        problems.append(f"{found['tokens_per_second']} tokens a second")
    changed("drive.json", **{**free, "read": {"bytes_per_s": 1e6, "cores": 0}}, op_s=0, queued_op_s=0, forward_s=[0] * UNITS, backward_s=[0] * UNITS, io_latency_s=0, commit_s=0,
            read_write_slowdown=3)
    lanes = json.loads(program.must(*plan(ON_NVME, "drive.json", "--json")).out)
    ways, read_s = lanes["predicted"], lanes["lanes"]["read"]["bytes"] / 1e6
    if abs(ways["plain"]["step_s"] / read_s - 1) > 0.02 or ways["plain"]["bottleneck"] != "drive":
        problems.append(f"reading takes {read_s} s, and a step {ways['plain']}")
    if ways.keys() != {"plain", "speculated", "redone"} or ways["redone"]["step_s"] < ways["speculated"]["step_s"]:
        problems.append(f"the ways of a step are {ways}")
    return problems


def files_refused():
    rates_file()
    broken = program.read_json(path("rates.json"))
    without = {name: value for name, value in broken.items() if name != "read"}
    table = [
        ("other tiles", "rates.json", ["--tiles", 2], ["was measured for", "name a new file"]),
        ("another precision", "rates.json", ["--precision", "fp16"], ["was measured for"]),
        ("no JSON", program.write(path("text"), "{"), [], ["line 1"]),
        ("other JSON", program.write(path("other"), "{\"a\": 1}"), [], ["not a file of rates"]),
        ("another version", changed("version", spillway_rates=99), [], ["not a file of rates"]),
        ("no reads", program.write(path("without"), json.dumps(without)), [], ["bytes_per_s"]),
        ("a rate of nothing", changed("nothing", write={"bytes_per_s": 0, "cores": 0}), [], ["bytes_per_s"]),
        ("a negative time", changed("negative", commit_s=-1), [], ["commit_s"]),
        ("a word for a number", changed("word", op_s="fast"), [], ["op_s"]),
        ("no cores", changed("cores", cores=0), [], ["cores"]),
        ("too few units", changed("few", forward_s=[1]), [], ["forward_s", str(UNITS)]),
        ("a word for a unit", changed("unit", backward_s=[1, "2", 3, 4]), [], ["backward_s", "unit 1"]),
        ("an endless step", changed("endless", forward_s=[1e300] * UNITS), [], ["seconds"]),
        ("an endless transfer", changed("slow", read={"bytes_per_s": 1e-300, "cores": 0}), [], ["seconds"]),
        ("a folder", SCRATCH, [], [SCRATCH]),
        ("no such folder", "nowhere/rates.json", [], ["nowhere"]),
    ]
    problems = []
    for what, rates, more, words in table:
        problems += program.refused(what, plan(ON_NVME, rates, *more), *words, watched=[SCRATCH])
    return problems


def step_of(events, step):
    return [event for event in events if event["args"]["step"] == step]


def predicted_trace():
    problems = []
    for place, speculate, kind in ((ON_DEVICE, "auto", "plain"), (ON_NVME, "never", "plain"),
                                   (ON_NVME, "auto", "speculated")):
        name = f"trace {len(os.listdir(SCRATCH))}.json"
        arguments = plan(place, rates_file(), "--trace", path(name), "--speculate", speculate)
        report = json.loads(program.must(*arguments, "--json").out)
        events = program.read_json(path(name))["traceEvents"]
        names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
        if names != ["spillway, predicted"]:
            problems.append(f"the process is called {names}")
        timed = sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"])
        free = {}
        for event in timed:
            if event["ts"] < free.get(event["cat"], 0) - 1e-3:
                problems.append(f"{place}: {event['name']} begins before its lane is free")
            free[event["cat"]] = event["ts"] + event["dur"]
        steps = sorted({event["args"]["step"] for event in timed})
        # The last step but one is the answer.
        ends = [max(event["ts"] + event["dur"] for event in step_of(timed, step)) for step in steps]
        if len(steps) < 4 or abs((ends[-2] - ends[-3]) * 1e-6 / report["predicted"][kind]["step_s"] - 1) > 1e-3:
            problems.append(f"{place}: steps {steps} end at {ends}, predicted {report['predicted'][kind]}")
        for lane, ops in report["lanes"].items():
            found = len([event for event in step_of(timed, steps[-2]) if event["cat"] == lane])
            if kind == "plain" and found != ops["ops"]:
                problems.append(f"{place}: {found} ops of lane {lane} instead of {ops['ops']}")
        problems += program.refused("a trace that is there", arguments, "exists", watched=[SCRATCH])
    return problems


def peaks_are_what_a_run_takes():
    """A run's store has labels and superblocks too, and is there as the checkpoint where nothing lives on it."""
    problems = []
    for number, place in enumerate((ON_DEVICE, ON_NVME, "optimizer=host")):
        shape = ["--model", "gpt2-tiny", *program.SHAPE, "--place", place]
        foreseen = json.loads(program.must("plan", *shape, "--nvme", SCRATCH, "--json").out)["peak_bytes"]
        program.must("train", *shape, "--init", "--data", DATA, "--run", path(f"run{number}"), "--steps", 2)
        taken = program.steps_of(path(f"run{number}"))[-1]["peak"]
        if any(foreseen[tier] != taken[tier] for tier in ("device", "host")) or foreseen["nvme"] > taken["nvme"]:
            problems.append(f"{place}: {foreseen} planned, {taken} taken")
    return problems


def the_image_of_a_step():
    """--svg draws the lanes that work, in the kinds of work that --explain prices, and keeps its file small."""
    problems = []
    os.mkdir(path("a<&b"))
    named = program.write(path("a<&b", "config.json"), json.dumps(
        {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}))
    large = ("--model", "llama-8b", "--batch-tokens", 131072)
    for file, model, lanes in (("large.svg", large, ("compute", "upload", "download", "read", "write", "update")),
                               ("small.svg", ("--model", os.path.dirname(named), "--place", ON_DEVICE), ("compute",))):
        program.must("plan", "--machine", "rtx4090", *model, "--svg", path(file))
        size = os.path.getsize(path(file))
        root = xml.etree.ElementTree.parse(path(file)).getroot()
        texts = [text.text for text in root.findall(SVG + "text")]
        bars = [bar for bar in root.findall(SVG + "rect") if bar.find(SVG + "title") is not None]
        missing = [word for word in (*lanes, "seconds", "forward", "backward", "head") if word not in texts]
        if missing or not bars or size >= 1000000 or "prefers-color-scheme: dark" not in root.find(SVG + "style").text:
            problems.append(f"{file}: {size} bytes, {len(bars)} bars, lacks {missing} in {texts}")
        if "predicted" not in texts[0] or not texts[0].startswith(str(model[1])):
            problems.append(f"{file}: its title is {texts[0]!r}")
        if any(float(bar.get("x")) < 79.9 or float(bar.get("x")) + float(bar.get("width")) > 1061 for bar in bars):
            problems.append(f"{file}: a bar leaves the image")
    given = ("plan", "--model", "gpt2-tiny", "--machine", "rtx4090")
    problems += program.refused("a file that exists", [*given, "--svg", path("small.svg")], "small.svg", watched=[SCRATCH])
    problems += program.refused("no such folder", [*given, "--svg", path("none", "a.svg")], "a.svg", watched=[SCRATCH])
    for more in (("--largest", 9), ("--smallest-machine",)):
        problems += program.refused("many plans", [*given, *more, "--svg", path("many.svg")], "--svg", status=2,
                                    watched=[SCRATCH])
    return problems


script_test.run(made_and_used_again, as_the_rates_say, files_refused, predicted_trace, peaks_are_what_a_run_takes,
                the_image_of_a_step)
