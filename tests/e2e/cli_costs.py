"""The bytes that steps write and the time that saves take: predicted by `plan`, counted in the log,
told at the start and the end. No speed
is asserted."""

import json
import math
import os
import re

import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(9, 20000))
STEPS, EVERY, ENDURANCE = 8, 3, 0.5
ON_DRIVE = "weights=nvme,grads=nvme,optimizer=nvme"
MIXED = "grads=host,optimizer=host:60%/nvme"
PLACES = {"device": "grads=device,optimizer=device", "mixed": MIXED, "mixed grads": "grads=nvme,optimizer=host",
          "nvme": "weights=nvme,grads=nvme,optimizer=nvme"}
UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
WRITES = {"start_bytes", "step_bytes", "save_bytes", "save_every", "bytes_per_1000_steps", "steps", "run_bytes",
          "endurance_tb", "share_per_1000_steps", "run_share"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def plan(place, *more, every=EVERY):
    return json.loads(program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", SCRATCH, "--place", place,
                                   "--steps", STEPS, "--save-every", every, "--json", *more).out)


def train(run, place, *more, steps=STEPS, rated=("--endurance", ENDURANCE)):
    return program.must("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
                        *program.SHAPE, "--place", place, "--save-every", EVERY, *rated, *more)


def size(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def near(found, expected, tolerance):
    return abs(found - expected) <= tolerance * expected + 1


def share_of(text):
    """The size and the share of "1.23 MB (0.1% of the rated 2 TB)"."""
    match = re.fullmatch(r"([0-9.]+ \w+) \(([0-9.e+-]+)% of the rated ([0-9.]+) TB\)", text)
    return (size(match[1]), float(match[2]) / 100, float(match[3])) if match else None


def wrong_start(err, writes):
    match = re.search(r"  written (.*) in (\d+) steps", re.sub(r"\s*\n\s{17}|(?<=written)\s+", " ", err))
    if match is None:
        return ["the start does not say what will be written"]
    run = share_of(match[1])
    right = (near(run[0], writes["run_bytes"], 0.01) and int(match[2]) == STEPS and
             abs(run[1] / writes["run_share"] - 1) < 0.01 and run[2] == ENDURANCE)
    return [] if right else [f"at the start '{match[0]}', planned {writes}"]


def wrong_end(err, writes, lines):
    match = re.search(r"written since the start: (.*); the steps wrote (.*) a thousand steps", err)
    if match is None:
        return ["the end does not say what was written"]
    written, thousand = share_of(match[1]), share_of(match[2])
    counted = sum(line["bytes"]["nvme_write"] for line in lines)
    # Labels and superblocks are not planned; of so small a model they are some percents.
    right = (near(written[0], writes["run_bytes"], 0.05) and written[0] >= 0.99 * writes["run_bytes"] and
             near(thousand[0], 1000 * counted / STEPS, 0.01))
    return [] if right else [f"at the end '{match[0]}', planned {writes}, counted {counted}"]


def what_is_planned_is_written():
    problems = []
    for name, place in PLACES.items():
        planned = plan(place, "--endurance", ENDURANCE)
        writes = planned["writes"]
        err = train(name, place).err
        lines = program.steps_of(path(name))
        saving = [line["step"] for line in lines if line["saved"]]
        every = name == "nvme"  # Every step commits, without a save beside it.
        expected = [step for step in range(1, STEPS + 1) if every or (step > 1 and (step - 1) % EVERY == 0)]
        if saving != expected or (writes["save_every"], planned["saves"] is None) != (0 if every else EVERY, every):
            problems.append(f"{name}: steps {saving} committed; planned {planned['saves']}, {writes}")
        # The first step has no update to write.
        for line in lines[1:]:
            if line["bytes"]["nvme_write"] != writes["step_bytes"] + line["saved"] * writes["save_bytes"]:
                problems.append(f"{name}: step {line['step']} wrote {line['bytes']}, planned {writes}")
        problems += [f"{name}: {problem}" for problem in wrong_start(err, writes) + wrong_end(err, writes, lines)]
        told = re.search(r"steps with a save took [0-9.]+ s, others [0-9.]+ s; a save costs -?[0-9.]+ s", err)
        if (told is None) != every or err.count("with a save  ") != (0 if every else len(expected)):
            problems.append(f"{name}: of saves it says {told and told[0]!r}: {err}")
    return problems


def the_start_writes_masters_and_weights():
    """Masters have twice the bytes of bf16 weights, which are written where they are on the drive."""
    away, here = (plan(f"weights={tier},optimizer=nvme,grads=host,acts=host") for tier in ("nvme", "host"))
    weights = away["disk_bytes"] - here["disk_bytes"]
    found = [planned["writes"]["start_bytes"] - planned["disk_bytes"] for planned in (away, here)]
    return [] if weights > 0 and found == [2 * weights] * 2 else [f"{found} bytes beside the store, {weights} of weights"]


def nothing_is_said_of_steps_that_write_nothing():
    err = train("still", PLACES["device"], steps=2, rated=()).err
    return [] if re.search("written since the start: [0-9.]+ [kM]B\n", err) else [f"the end says {err[-300:]}"]


def shares_of_the_rated_life():
    known, unknown = plan(MIXED, "--endurance", ENDURANCE)["writes"], plan(MIXED)["writes"]
    problems = [f"fields of {writes}" for writes in (known, unknown) if writes.keys() != WRITES]
    saves = 1 + (STEPS - 1) // EVERY
    run = known["start_bytes"] + STEPS * known["step_bytes"] + saves * known["save_bytes"]
    thousand = 1000 * known["step_bytes"] + 1000 / EVERY * known["save_bytes"]
    if not near(known["run_bytes"], run, 1e-9) or not near(known["bytes_per_1000_steps"], thousand, 1e-9):
        problems.append(f"{known} is not {run} bytes, {thousand} a thousand steps")
    if abs(known["run_share"] * ENDURANCE * 1e12 / run - 1) > 1e-9 or known["endurance_tb"] != ENDURANCE:
        problems.append(f"the share of the run is {known['run_share']}")
    if abs(known["share_per_1000_steps"] * ENDURANCE * 1e12 / thousand - 1) > 1e-9:
        problems.append(f"the share of a thousand steps is {known['share_per_1000_steps']}")
    if any(unknown[name] is not None for name in ("endurance_tb", "share_per_1000_steps", "run_share")):
        problems.append(f"shares of what is not known: {unknown}")
    text = program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", SCRATCH, "--place", MIXED,
                        "--endurance", 600, "--explain").out
    problems += [f"the table lacks '{words}': {text}" for words in ("every thousand steps", "of the rated 600 TB", "more every "
                                                                    "100 steps", "a save costs") if words not in text]
    return problems + program.refused("a negative life", ["plan", "--model", "gpt2-tiny", "--endurance", "-1"],
                                      "--endurance", status=2)


def a_save_by_the_rates():
    """Where only writing takes time, a save costs what it writes, whether or not it runs apart."""
    program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", SCRATCH, "--rates", path("rates.json"))
    rates = program.read_json(path("rates.json"))
    free = {"bytes_per_s": 1e18, "cores": 0}
    rates.update({name: free for name in "upload download update update_on_device finish zero read".split()})
    rates.update({name: [1e-6] * len(rates[name]) for name in ("forward_s", "backward_s", "recompute_s", "derive_s")})
    rates.update(op_s=0, queued_op_s=0, commit_s=0, io_latency_s=0, write={"bytes_per_s": 1e6, "cores": 0})
    program.write(path("rates.json"), json.dumps(rates))
    problems = []
    for every in (1, 50):
        found = plan(PLACES["device"], "--rates", path("rates.json"), every=every)
        save_s = found["writes"]["save_bytes"] / 1e6
        if not near(found["predicted"]["saving"]["step_s"] * 1e6, save_s * 1e6, 0.01):
            problems.append(f"every {every} steps: {found['predicted']}, not {save_s} s")
        saves, plain_s = found["saves"], found["predicted"]["plain"]["step_s"]
        if saves.keys() != {"every_steps", "cost_s", "share"} or saves["every_steps"] != every or not near(
                saves["cost_s"] * 1e6, save_s * 1e6, 0.01) or not near(saves["share"], saves["cost_s"] / every /
                                                                       plain_s, 1e-6):
            problems.append(f"every {every} steps: {saves}")
    return problems


def narrow_state_that_doubles_the_speed_is_named():
    """Where only the drive takes time, and fp32 moments alone have no room beside it. With all state on the drive, narrow moments save
    less than half of it."""
    shape = ("plan", "--model", "gpt2-demo", *program.SHAPE, "--nvme", SCRATCH, "--rates", path("slow.json"))
    program.must(*shape)
    rates = program.read_json(path("slow.json"))
    free, slow = {"bytes_per_s": 1e18, "cores": 0}, {"bytes_per_s": 1e6, "cores": 0}
    rates.update({name: free for name in "upload download update update_on_device finish zero".split()})
    rates.update({name: [1e-6] * len(rates[name]) for name in ("forward_s", "backward_s", "recompute_s", "derive_s")})
    rates.update(op_s=0, queued_op_s=0, commit_s=0, io_latency_s=0, read=slow, write=slow)
    program.write(path("slow.json"), json.dumps(rates))
    problems = []
    for flags, named in (((), True), (("--place", ON_DRIVE), False), (("--optimizer-state", "8bit"), False)):
        err = program.must(*shape, "--device-memory", "64MiB", "--host-memory", "8MiB", "--json", *flags).err
        if ("warning: with --optimizer-state 8bit a step is predicted to take" in err) != named:
            problems.append(f"{flags}: {err}")
    return problems


def resume_keeps_the_rated_life():
    train("halves", MIXED, steps=STEPS // 2)
    err = program.must("resume", path("halves"), "--steps", STEPS).err
    if f"of the rated {ENDURANCE} TB" not in err:
        return [f"resume forgets the endurance: {err}"]
    err = program.must("resume", path("halves"), "--steps", STEPS + 1, "--endurance", 7).err
    return [] if "of the rated 7 TB" in err else [f"resume does not take --endurance: {err}"]


def pauses_are_counted():
    """Each evaluation, sample and export says how long it took, in the log and as text, and the end sums them up."""
    err = train("pauses", MIXED, "--val", "10%", "--eval-every", 4, "--sample-every", 4, "--export-every", 4).err
    lines, problems = program.log_lines(path("pauses")), []
    for kind, key, word, field in (("evaluations", "val_loss", "validation loss", "val_seconds"),
                                   ("samples", "sample", "  sample in", "sample_seconds"),
                                   ("exports", "export", "wrote .*exports/step-", "export_seconds")):
        seconds = [line[field] for line in lines if key in line]
        said = re.findall(word + r".* in ([0-9.e+-]+) s\b" if key != "sample" else word + r" ([0-9.e+-]+) s:", err)
        summed = re.search(r"of the ([0-9.e+-]+) s since the start:.* " + kind + r" ([0-9.e+-]+) s \(([0-9.]+)%\)", err)
        if len(seconds) != 2 or len(said) != 2 or summed is None or min(seconds) <= 0:
            problems.append(f"{kind}: {seconds} in the log; said {said}; summed up {summed}")
        elif not (abs(float(summed[2]) - sum(seconds)) < 0.5 * sum(seconds) + 0.02 and
                  abs(float(summed[3]) - 100 * float(summed[2]) / float(summed[1])) < 0.6):
            problems.append(f"{kind}: {seconds} summed up as {summed[0]}")
    return problems + ([] if [line["export"] for line in lines if "export" in line] == ["exports/step-4", "exports/step-8"]
                       else [f"the exports are {lines}"])


def writes_that_wear_a_drive_are_warned_of():
    """Whatever begins or continues a run counts the bytes that it will write, against common drives or the given rating."""
    problems, writes = [], plan(PLACES["nvme"])["writes"]
    enough = math.ceil((60e12 - writes["start_bytes"]) / writes["step_bytes"]) + 1
    two = ("--nvme", path("a"), "--nvme", path("b"))
    for drive in two[1::2]:
        os.mkdir(drive)
    one = ("--nvme", SCRATCH)
    for flags, warned, words in (((*one, "--steps", enough), True, ("60.0 TB", "600 TB that a common drive of 1 TB", "--endurance",
                                                                    "--optimizer-state 8bit", "--host-memory", "--batch-tokens")),
                                 ((*one, "--steps", enough - 2), False, ()),
                                 ((*one, "--steps", enough, "--endurance", 601), False, ()),
                                 ((*one, "--steps", enough, "--endurance", 599), True, ("the 599 TB that --endurance says",)),
                                 ((*two, "--steps", enough), False, ()),
                                 ((*two, "--steps", 2 * enough), True, ("1200 TB that 2 common drives",)),
                                 ((*one, "--steps", 3 * enough, "--optimizer-state", "8bit"), True, ("--host-memory",))):
        err = program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--place", PLACES["nvme"], *flags).err
        if ("over a tenth" in err) != warned or any(word not in err for word in words) or (
                "8bit" in flags and "8bit writes" in err):
            problems.append(f"{flags}: {err}")
    rated, found = ("--endurance", 1e-6), []
    for more in (("--dry-run",), ()):
        found.append(train("worn", PLACES["nvme"], *more, rated=rated).err)
    found.append(program.must("resume", path("worn"), "--steps", 2 * STEPS).err)
    for err, begins in zip(found, (True, True, False)):
        match = re.search(r"warning: the (run writes|steps that are left write) ([0-9.]+ \w+), over a tenth of the 1e-06 TB", err)
        expected = writes["run_bytes"] if begins else writes["run_bytes"] - writes["start_bytes"]
        if match is None or (match[1] == "run writes") != begins or not near(size(match[2]), expected, 0.02) or (
                "--batch-tokens" in err) != begins:
            problems.append(f"{match and match[0]}, not {expected}: {err}")
    saved = train("saved", PLACES["device"], rated=rated).err
    return problems + ([] if "--save-every saves more rarely" in saved else [f"saves: {saved}"])


script_test.run(writes_that_wear_a_drive_are_warned_of, pauses_are_counted, what_is_planned_is_written,
                the_start_writes_masters_and_weights, nothing_is_said_of_steps_that_write_nothing,
                shares_of_the_rated_life, a_save_by_the_rates, narrow_state_that_doubles_the_speed_is_named,
                resume_keeps_the_rated_life)
