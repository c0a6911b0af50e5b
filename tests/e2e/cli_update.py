"""Where updates run, by --update: it changes no number of a training, is kept and changed by resume, shown by the trace,
and auto follows the prices."""

import json
import os

import program
import runs
from program import script_test
from runs import path

PLACES = {
    "host": ["--place", "grads=host,optimizer=host"],
    "mixed": ["--place", "weights=host,grads=device,optimizer=device:30%/host:30%/nvme", "--save-every", 2],
    "nvme": ["--place", "grads=nvme,optimizer=nvme", "--speculate", "always", "--clip", 0.5],
    "undurable": ["--place", "weights=nvme,grads=host,optimizer=nvme", "--durability", "none"],
}
MOVES = "upload download update update_on_device finish zero read write".split()
UNITS = 4
FAST, SLOW = {"bytes_per_s": 1e15, "cores": 0}, {"bytes_per_s": 1e8, "cores": 0}


class Run(runs.Run):
    data, steps = (runs.text_file(seed=5, characters=20000),), 6

    def __init__(self, name, place, side, *flags, **members):
        super().__init__(name, *PLACES[place], "--update", side, *flags, **members)


def plan(place, *more):
    return json.loads(program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", runs.FOLDER, *PLACES[place],
                                   "--json", *more).out)


def changes_no_number():
    problems = []
    for place in PLACES:
        host, device = (Run(f"{place} {side}", place, side).train().numbers() for side in ("host", "device"))
        if len(host) != Run.steps or host != device:
            problems.append(f"{place}: updates on the host give {host}, on the device {device}")
    return problems


def resume_keeps_and_changes():
    problems = []
    for place in ("mixed", "nvme"):
        whole, parts = Run(f"{place} host", place, "host").once(), Run(f"{place} parts", place, "device", steps=2).train()
        steps = ((3, [], "device"), (4, ["--update", "host"], "host"), (Run.steps, ["--update", "auto"], "auto"))
        for last, more, side in steps:
            parts.resume("--steps", last, *more)
            if parts.settings()["update"] != side:
                problems.append(f"{place}: run.json has {parts.settings()['update']} instead of {side}")
        if parts.numbers() != whole.numbers():
            problems.append(f"{place}: a resumed run has other numbers")
    return problems


def shown_in_its_lanes():
    Run("traced", "undurable", "device", "--trace", path("trace.json")).train()
    events = [event for event in program.read_json(path("trace.json"))["traceEvents"]
              if event["ph"] == "X" and event["args"]["step"] == Run.steps - 1]
    lanes = {}
    for event in events:
        lanes.setdefault(event["cat"], set()).add(event["name"].split(" block")[0])
    wanted = {"compute": "update", "upload": "upload optimizer", "download": "download optimizer",
              "read": "read optimizer", "write": "write optimizer"}
    problems = [f"lane {lane} has {sorted(lanes[lane])}, not '{name}'" for lane, name in wanted.items()
                if not any(found.startswith(name) for found in lanes[lane])]
    if lanes["update"] != {"compute norm"}:
        problems.append(f"the update lane has {sorted(lanes['update'])}")
    return problems


def planned_as_asked():
    problems = []
    for side in ("host", "device", "auto"):
        report = plan("host", "--update", side)
        # On a CPU both sides are the same cores, so that nothing is left to price.
        expected = "host" if side == "auto" else side
        if report["updates"] != [expected] * UNITS or report["update_prices"] is not None:
            problems.append(f"--update {side}: {report['updates']}, {report['update_prices']}")
        if (report["lanes"]["update"]["bytes"] == 0) != (expected == "device"):
            problems.append(f"--update {side}: the update lane moves {report['lanes']['update']['bytes']} bytes")
    if plan("mixed", "--update", "host")["updates"].count("device") in (0, UNITS):
        problems.append("what lives on the device is not said to be updated there")
    return problems


def changed(name, **numbers):
    """A copy of measured rates with moving for nothing but what is named."""
    if not os.path.exists(path("rates.json")):
        plan("host", "--rates", path("rates.json"))
    rates = program.read_json(path("rates.json"))
    rates.update({move: FAST for move in MOVES}, op_s=0, queued_op_s=0, compute_cores=0, forward_s=[1e-3] * UNITS,
                 backward_s=[1e-3] * UNITS)
    rates.update(numbers)
    return program.write(path(name), json.dumps(rates))


def auto_follows_the_prices():
    table = [
        ("a slow host", changed("host.json", update=SLOW), lambda sides: "host" not in sides),
        ("a slow link", changed("link.json", upload=SLOW, download=SLOW), lambda sides: "device" not in sides),
        ("both slow", changed("both.json", update=SLOW, upload=SLOW, download=SLOW),
         lambda sides: {"host", "device"} == set(sides)),
        ("all for nothing", changed("same.json"), lambda sides: "device" not in sides),
    ]
    problems = []
    for what, rates, right in table:
        report = plan("host", "--rates", rates)
        prices, step_s = report["update_prices"], report["predicted"]["plain"]["step_s"]
        if not right(report["updates"]):
            problems.append(f"{what}: updates run on {report['updates']} by {prices}")
        if abs(prices["chosen_s"] - step_s) > 1e-9 or prices["chosen_s"] > min(prices["host_s"], prices["device_s"]):
            problems.append(f"{what}: {prices} and a step of {step_s} s")
    text = program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, *PLACES["host"], "--nvme", runs.FOLDER, "--rates",
                        path("both.json"), "--explain").out
    if "updates by predicted step" not in text or "updates run" not in text:
        problems.append(f"the plan does not say why:\n{text}")
    return problems


def chunks_need_room():
    """A device that is full without them updates on the host, however slow that is; to ask for more is refused."""
    rates = changed("host.json", update=SLOW)
    full = plan("host", "--update", "host", "--recompute", "none")["peak_bytes"]["device"]
    most = ["--recompute", "none", "--device-memory", full]
    report = plan("host", "--rates", rates, *most)
    problems = []
    if "device" in report["updates"] or report["update_prices"]["device_s"] is not None:
        problems.append(f"a full device updates {report['updates']} by {report['update_prices']}")
    return problems + program.refused("no room", ["plan", "--model", "gpt2-tiny", *program.SHAPE, *PLACES["host"],
                                                  "--update", "device", *most], "--device-memory")


script_test.run(changes_no_number, resume_keeps_and_changes, shown_in_its_lanes, planned_as_asked,
                auto_follows_the_prices, chunks_need_room)
