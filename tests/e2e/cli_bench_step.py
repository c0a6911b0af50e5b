"""`spillway bench step`: its report agrees with itself and with the plan, it leaves nothing behind however it ends, and
misuse is refused. No speed is asserted."""

import json
import os
import re
import signal
import subprocess
import time

import program
from program import script_test
from ranks_jobs import mpirun

SCRATCH = program.scratch_folder()
RATES = os.path.join(SCRATCH, "rates.json")  # measured by the first that needs them
STEPS, ROUNDS, RANKS = 2, 3, 2
FLAGS = """--model --batch-tokens --seq --micro-batch --precision --device --order --tiles --expert-group --recompute --zero
           --device-memory --host-memory --speculate --update --place --threads --chunk-grains --ring-chunks --nvme
           --allow-buffered --rates --steps --rounds --trace --json"""
FIELDS = {"bench": str, "device": str, "rounds": int, "model": str, "precision": str, "batch_tokens": int,
          "micro_batch": int, "seq": int, "threads": int, "place": str, "speculated": bool, "peak_bytes": dict,
          "steps": dict, "speed": dict, "busiest": str, "lanes": dict, "exchange": type(None)}
LANES = {"compute", "upload", "download", "read", "write", "update", "comm"}
PLACES = [("weights=device,grads=device,optimizer=device,acts=device", "auto"),
          ("weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", "never"),
          ("weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", "always"), ("optimizer=host", "auto"),
          ("weights=host,optimizer=device:50%/nvme,acts=host", "auto")]


def bench(folder, *more):
    """The flags in `more` instead of those of the same name."""
    words = ["--model", "gpt2-tiny", *program.SHAPE, "--nvme", folder]
    kept = [word for i in range(0, len(words), 2) if words[i] not in more for word in words[i:i + 2]]
    return ["bench", "step", *kept, *more]


def folder(name):
    os.makedirs(os.path.join(SCRATCH, name), exist_ok=True)
    return os.path.join(SCRATCH, name)


def wrong_times(found, on_nvme):
    problems, steps = [], found["steps"]
    if steps.keys() != {"resident", "placed", "predicted"} | ({"io_alone"} if on_nvme else set()):
        problems.append(f"times of {sorted(steps)}")
    for name, one in steps.items():
        if abs(one["placed_ratio"] * one["step_s"] / steps["placed"]["step_s"] - 1) > 1e-9 or one["step_s"] <= 0:
            problems.append(f"{name}: {one}")
        if name != "predicted" and one["steps"] != STEPS * ROUNDS:
            problems.append(f"{name}: {one['steps']} steps instead of {STEPS * ROUNDS}")
    return problems


def wrong_lanes(found, planned):
    problems = [] if found["lanes"].keys() == LANES else [f"lanes {sorted(found['lanes'])}"]
    for name, lane in found["lanes"].items():
        if lane["busy_s"] < 0 or lane["busy_share"] < 0 or ("bytes" in lane) != (name != "compute"):
            problems.append(f"{name}: {lane}")
        if name == "compute":
            continue
        if lane["bytes"] < lane["least_bytes"]:
            problems.append(f"{name}: less than the least: {lane}")
        if not found["speculated"] and lane["bytes"] != planned["lanes"][name]["bytes"]:
            problems.append(f"{name}: {lane['bytes']} bytes moved, {planned['lanes'][name]} planned")
    busiest = max(found["lanes"], key=lambda name: found["lanes"][name]["busy_s"])
    return problems if found["busiest"] == busiest else problems + [f"{found['busiest']} is not the busiest"]


def wrong_speed(found):
    """Each number follows from others."""
    speed, step_s = found["speed"], found["steps"]["placed"]["step_s"]
    light, rate = speed["speed_of_light"], speed["products_flops_per_s"]
    expected = {"tokens_per_s": found["batch_tokens"] / step_s, "of_products": speed["model_flops_per_s"] / rate}
    problems = [f"{name}: {speed[name]} instead of {value}" for name, value in expected.items()
                if abs(speed[name] / value - 1) > 1e-9]
    if abs(light["share"] * step_s / light["step_s"] - 1) > 1e-9 or light["lane"] not in found["lanes"]:
        problems.append(f"speed of light: {light}")
    if light["step_s"] * rate < speed["model_flops_per_s"] * step_s * (1 - 1e-9):
        problems.append(f"less than the arithmetic takes: {speed}")
    if found["device"] == "cpu" and (speed["peak_flops_per_s"], speed["of_peak"]) != (None, None):
        problems.append(f"the peak of a CPU: {speed}")
    return problems


def reports():
    problems = []
    for place, speculate in PLACES:
        where, on_nvme = folder("reports"), "nvme" in place
        shape = ["--place", place, "--speculate", speculate, "--rates", RATES]
        ended = program.run(*bench(where, *shape, "--steps", STEPS, "--json"))
        if ended.code != 0 or ended.err:
            problems.append(f"{place}: status {ended.code}: {ended.err}")
            continue
        found = json.loads(ended.out)
        wrong = [f"'{name}' is {found.get(name)!r}" for name, kind in FIELDS.items()
                 if not isinstance(found.get(name), kind)]
        wrong += [f"'{name}' is new" for name in found.keys() - FIELDS]
        planned = json.loads(program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", where, *shape,
                                          "--json").out)
        if found["peak_bytes"] != planned["peak_bytes"] or (found["bench"], found["rounds"]) != ("step", ROUNDS):
            wrong.append(f"{found['bench']}, {found['rounds']} rounds, peaks {found['peak_bytes']}")
        if speculate != "auto" and found["speculated"] != (speculate == "always"):
            wrong.append(f"speculated: {found['speculated']}")
        wrong += wrong_times(found, on_nvme) + wrong_lanes(found, planned) + wrong_speed(found)
        wrong += [f"{name} is left" for name in os.listdir(where)]
        problems += [f"{place}, {speculate}: {problem}" for problem in wrong]
    return problems


def muon_beside_adamw():
    """The same step with AdamW is measured in turn, and predicted; its state is larger."""
    ended = program.run(*bench(folder("muon"), "--optimizer", "muon", "--place", PLACES[1][0], "--steps", STEPS, "--rates", RATES,
                               "--json"))
    if ended.code != 0 or ended.err:
        return [f"status {ended.code}: {ended.err}"]
    found = json.loads(ended.out)
    steps = found["steps"]
    problems = wrong_times({**found, "steps": {name: one for name, one in steps.items() if "adamw" not in name}}, True)
    if steps.keys() - {"resident", "placed", "io_alone", "predicted"} != {"adamw", "adamw_predicted"}:
        return problems + [f"times of {sorted(steps)}"]
    other = steps["adamw"]
    if other["steps"] != STEPS * ROUNDS or abs(other["placed_ratio"] * other["step_s"] / steps["placed"]["step_s"] - 1) > 1e-9:
        problems.append(f"with AdamW: {other}")
    if not 0 < steps["adamw_predicted"]["step_s"]:
        problems.append(f"predicted with AdamW: {steps['adamw_predicted']}")
    readable = program.must(*bench(folder("muon"), "--optimizer", "muon", "--steps", 1, "--rates", RATES)).out
    return problems + [f"the report lacks '{word}': {readable}" for word in ("with AdamW ", "with AdamW, predicted")
                       if word not in readable]


def shared_inputs():
    """Tiles of a block share inputs, which leave the device once."""
    ended = program.must(*bench(folder("tiles"), "--tiles", 2, "--place", "acts=host", "--steps", 1, "--json"))
    return [f"{name}: {lane}" for name, lane in json.loads(ended.out)["lanes"].items()
            if name != "compute" and not 0 <= lane["least_bytes"] <= lane["bytes"]]


def readable_report():
    where = folder("readable")
    ended = program.run(*bench(where, "--place", PLACES[1][0], "--steps", 1, "--rates", RATES))
    words = ("resident", "as placed", "its own I/O alone", "predicted", "least", "busiest", "peaks:")
    problems = [f"the report lacks '{word}': {ended.out}" for word in words if word not in ended.out]
    problems += [f"wider than 80 columns: {line!r}" for line in ended.out.splitlines() if len(line) > 80]
    said = f"predicted by the rates kept in {RATES}; "
    right = ended.code == 0 and ended.err.startswith(said) and ended.err.count("\n") == 1
    return problems + ([] if right else [f"status {ended.code}: {ended.err}"])


def kept_rates():
    """The second bench with a file of rates measures nothing of the machine again, its products included."""
    where, rates = folder("kept"), os.path.join(SCRATCH, "kept.json")
    shape = ("--place", PLACES[1][0], "--steps", 1, "--rates", rates, "--json")
    found = [json.loads(program.must(*bench(where, *shape)).out) for _ in range(2)]
    with open(rates, encoding="utf-8") as file:
        kept = json.load(file)
    measured = [one["speed"]["products_flops_per_s"] for one in found] + [kept["products_flops_per_s"]]
    problems = [] if len(set(measured)) == 1 else [f"the products are measured again: {measured}"]
    kept["products_flops_per_s"] *= 2
    program.write(rates, json.dumps(kept))
    again = json.loads(program.must(*bench(where, *shape)).out)["speed"]["products_flops_per_s"]
    return problems + ([] if again == kept["products_flops_per_s"] else [f"{again} and not what the file says: {kept}"])


def wrong_exchange(exchange, step_s):
    problems = []
    courses = {name: exchange.pop(name, None) for name in ("placed", "predicted", "predicted_one_core_more")}
    if exchange != {"ranks": RANKS, "transport": "MPI", "zero": 3}:
        problems.append(f"the exchange of {exchange}")
    for name, course in courses.items():
        if not 0 < course["comm_s"] or not 0 <= course["hidden_share"] <= 1 + 1e-9 or not 0 < course["step_s"]:
            problems.append(f"{name}: {course}")
        # A lane does one thing at a time: what it takes of steps is no more than these, however they overlap.
        if name != "placed" and course["comm_s"] > course["step_s"] * (1 + 1e-6):
            problems.append(f"{name}: exchanges for longer than a step: {course}")
    if courses["placed"]["step_s"] != step_s["placed"] or courses["predicted"]["step_s"] != step_s["predicted"]:
        problems.append(f"steps of {courses}, which took {step_s}")
    return problems


def ranks_measure_together():
    """Weights are gathered, so that something is exchanged in both passes; a trace is of rank 0."""
    where = folder("ranks")
    shape = ["--zero", 3, "--place", "optimizer=nvme,grads=host"]
    trace = os.path.join(SCRATCH, "ranks-trace.json")
    words = mpirun((RANKS, program.command(*bench(where, *shape, "--steps", STEPS, "--trace", trace, "--json"))))
    done = program.limits.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0 or done.stderr:
        return [f"status {done.returncode}: {done.stderr[-1000:]}"]
    found = json.loads(done.stdout)
    problems = wrong_exchange(found["exchange"], {name: one["step_s"] for name, one in found["steps"].items()})
    sent = found["lanes"]["comm"]["bytes"]
    planned = json.loads(program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", where, *shape,
                                      "--ranks", RANKS, "--rates", RATES, "--json").out)["lanes"]["comm"]["bytes"]
    names = {event.get("name") for event in program.read_json(trace)["traceEvents"]}
    problems += [] if any("all-gather" in name for name in names) else [f"the trace has {sorted(names)}"]
    problems += [f"{name} is left" for name in os.listdir(where)]
    return problems + ([] if 0 < sent == planned else [f"{sent} bytes were sent, {planned} planned"])


def gone_however_it_ends():
    """Also while the drive is measured: its files never have a name, so that nothing can remove them too late."""
    problems = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        for name, wait_s, rates in (("while measuring", 0.0, ()), ("while training", 0.3, ("--rates", RATES))):
            where = folder("killed")
            process = program.start(*bench(where, "--place", PLACES[1][0], "--steps", 10000, *rates))
            limit = program.limits.Limit()
            while not program.has_unnamed_file(process, where) and process.poll() is None and not limit.over():
                time.sleep(0.002)
            time.sleep(wait_s)
            during, alive = os.listdir(where), process.poll() is None
            process.send_signal(number)
            program.limits.wait(process)
            if not alive or during or os.listdir(where):
                problems.append(f"{number.name} {name}: alive {alive}, {during} before, {os.listdir(where)} after, "
                                f"status {process.returncode}")
    return problems


def others_are_left_alone():
    where = folder("others")
    program.write(os.path.join(where, program.STORE), b"mine")
    was = program.tree(where)
    program.must(*bench(where, "--place", "optimizer=nvme", "--steps", 1))
    return [f"{name} was changed, made or removed" for name in program.differences(was, program.tree(where))]


def misuse():
    where = folder("misuse")
    broken = program.write(os.path.join(where, "broken"), "{")
    table = [(2, ("--steps", 0), "--steps"), (2, ("--steps", 10001), "--steps", "10000"), (2, ("--stesp", 1), "--steps"),
             (2, ("here",), "here"), (2, ("--place", "optimizer=tape"), "tape"), (1, ("--rates", broken), "line 1"),
             (1, ("--model", "gpt5"), "gpt5"), (1, ("--seq", 65), "--seq 65"),
             (1, ("--device-memory", "1MiB"), "--device-memory")]
    problems = []
    for place, word in ((os.path.join(where, "none"), "none"), (broken, "not an existing directory")):
        ended = program.run(*bench(where, "--nvme", place, "--place", "optimizer=nvme"))
        last = ended.err.rstrip("\n").split("\n")[-1]  # after what is said of the measuring
        if ended.code != 1 or not last.startswith("spillway bench step: ") or word not in last:
            problems.append(f"--nvme {place}: status {ended.code}: {ended.err}")
    for status, arguments, *words in table:
        place = () if "--place" in arguments else ("--place", "optimizer=nvme")
        ended = program.run(*bench(where, *arguments, *place))
        problems += program.wrong_refusal(str(arguments), ended, status, words, ["bench step"])
    return problems + [f"{name} is left" for name in os.listdir(where) if name != "broken"]


def help_explains_every_flag():
    ended = program.run("bench", "step", "--help")
    return [f"bench step --help does not explain {flag}" for flag in FLAGS.split()
            if not re.search(rf"^  {flag}(\.\.\.)?[ \n].*", ended.out, re.MULTILINE)]


script_test.run(reports, muon_beside_adamw, shared_inputs, readable_report, kept_rates, ranks_measure_together, gone_however_it_ends,
                others_are_left_alone, misuse, help_explains_every_flag)
