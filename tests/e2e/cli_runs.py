"""A run from its first step to what is made of it: log, resume, export, fine-tuning, generated text."""

import fcntl
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import termios

import hf_folder
import program
from program import STORE, script_test
from small_runs import DATA, HALF, PLACES, STEPS, exported, path, reference, train, validation

STEP_FIELDS = {"step", "time", "loss", "loss_tokens", "grad_norm", "clipped", "clipped_share", "lr", "tokens", "seconds",
               "tokens_per_second", "mfu", "skipped", "saved", "ranks", "zero", "eta_seconds", "lanes", "bytes", "peak"}
PARTS = {"lanes": {"compute", "upload", "download", "read", "write", "update", "comm"},
         "bytes": {"nvme_read", "nvme_write", "upload", "download", "comm"}, "peak": {"device", "host", "nvme"}}


def the_log():
    ended = program.run(*train("logged", "host", "--eval-every", 5))
    problems = [] if ended.code == 0 and not ended.out else [f"status {ended.code}, standard output {ended.out!r}"]
    lines = program.steps_of(path("logged"))
    if [line["step"] for line in lines] != list(range(1, STEPS + 1)):
        problems.append(f"the steps are {[line['step'] for line in lines]}")
    for line in lines:
        problems += wrong_step(line)
    clipped = [line["grad_norm"] > 1 for line in lines]
    if [line["clipped"] for line in lines] != clipped or [line["clipped_share"] for line in lines] != [
            sum(clipped[:count]) / count for count in range(1, STEPS + 1)]:
        problems.append(f"clipped are {[(line['grad_norm'], line['clipped'], line['clipped_share']) for line in lines]}")
    losses = [line["loss"] for line in lines]
    if not losses[-1] < losses[0] - 0.5:
        problems.append(f"the loss went from {losses[0]} to {losses[-1]}")
    evaluations = validation("logged")
    if [(line["step"], line.keys()) for line in evaluations] != [(step, {"step", "val_loss", "val_tokens"})
                                                                 for step in (5, 10, 12)]:
        problems.append(f"the evaluations are {evaluations}")
    return problems + wrong_ending(ended.err)


def wrong_step(line):
    names = line.keys() - {"skipped", "saved", "mfu", "time", *PARTS}
    right = (line.keys() == STEP_FIELDS and all(line[part].keys() == names for part, names in PARTS.items()) and
             all(isinstance(line[name], (int, float)) and math.isfinite(line[name]) for name in names) and
             all(value >= 0 for part in PARTS for value in line[part].values()) and line["skipped"] is False and line["saved"] is False and
             re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"]) is not None and line["tokens"] == 512 and line["seconds"] > 0)
    return [] if right else [f"a wrong line: {line}"]


def wrong_ending(text):
    last = text.strip().split("\n")[-1]
    return [] if "everything is saved" in last and "spillway resume" in last else [f"the last line is {last!r}"]


def placements_make_no_difference():
    """And neither does a stop in the middle, nor another placement after it."""
    expected = program.numbers_of(path(reference()))
    weights = exported("reference", "reference-weights")
    problems = []
    for first, then in (("device", "device"), ("host", "host"), ("nvme", "nvme"), ("device", "nvme"),
                        ("nvme", "host"), ("host", "device")):
        run = f"{first}-{then}"
        program.must(*train(run, first, steps=HALF))
        program.must("resume", path(run), "--steps", STEPS, "--place", PLACES[then])
        if program.numbers_of(path(run)) != expected:
            problems.append(f"{run}: {program.numbers_of(path(run))} instead of {expected}")
        if exported(run, run + "-weights") != weights:
            problems.append(f"{run}: other weights")
        if validation(run)[-1] != validation("reference")[-1]:
            problems.append(f"{run}: validation {validation(run)}")
    return problems


def resuming_what_is_done():
    """Nothing more is trained, and the log does not grow by what it has already."""
    program.must(*train("done", "nvme"))
    before = program.log_lines(path("done"))
    ended = program.run("resume", path("done"))
    after = program.log_lines(path("done"))
    return [] if ended.code == 0 and after == before else [f"status {ended.code}; the log had {len(before)} lines and "
                                                           f"has {len(after)}"]


def fewer_cores():
    """A resume keeps the run's threads, and says so where there are fewer cores for them, and by run.json whether
    another number changes its bits."""
    for run, steps in (("whole", STEPS), ("fewer", HALF)):
        arguments = train(run, "host", steps=steps)
        arguments[arguments.index("--threads") + 1] = 2
        program.must(*arguments)
    cores = os.sched_getaffinity(0)
    ended = program.run("resume", path("fewer"), "--steps", STEPS,
                        preexec_fn=lambda: os.sched_setaffinity(0, {min(cores)}))
    kept = program.read_json(os.path.join(path("fewer"), "run.json"))
    said = ("2 threads on 1 core, as before; --threads 1 may be faster and changes no bit"
            if kept["settings"]["precision"] in kept["machine"]["same_bits_for_all_threads"] else
            "2 threads on 1 core, as the last bits of a product depend on them; --threads 1 may be faster")
    problems = [] if ended.code == 0 and said in " ".join(ended.err.split()) else [f"status {ended.code}: {ended.err}"]
    return problems + ([] if program.numbers_of(path("fewer")) == program.numbers_of(path("whole")) else ["other numbers"])


def chunks_that_are_too_small_now():
    """A run that an earlier version began with more operations than a plan may have goes on in larger chunks; a flag
    that asks for such chunks is refused."""
    micros, run = 600, path("small-chunks")
    program.must("train", "--model", "gpt2-demo", "--init", "--data", DATA, "--run", run, "--steps", 1, "--seq", 2,
                 "--micro-batch", 1, "--batch-tokens", 2 * micros, "--order", "layer", "--place",
                 "weights=host,grads=nvme,optimizer=nvme,acts=host", "--device", "cpu", "--threads", 1)
    settings = program.read_json(os.path.join(run, "run.json"))
    before = json.dumps(settings)
    after = re.sub(r'"chunk_grains": [^,}]*', '"chunk_grains": 1', before).replace('"order": "layer"', '"order": "batch"')
    program.write(os.path.join(run, "run.json"), after)
    problems = [] if after != before else ["run.json names neither chunks nor the order"]
    ended = program.run("resume", run)
    if ended.code != 0 or "chunks have 2 grains, as chunks of 1 make more operations" not in ended.err:
        problems.append(f"status {ended.code}: {ended.err}")
    return problems + program.refused("chunks that are named", ("resume", run, "--chunk-grains", 1), "larger --chunk-grains")


def going_on_beyond_the_schedule():
    """The schedule goes on with the run and one line says so. Where its end is asked for, more steps change nothing, and
    the user is told."""
    problems, on = [], ("--steps", STEPS + 2)
    for name in ("ended", "asked", "kept"):
        program.must(*train(name, "nvme"))
    before = exported("kept", "kept-before")
    longer = program.must("resume", path("ended"), *on)
    lengthened = f"--schedule-steps {STEPS + 2} (was {STEPS})"
    if lengthened not in longer.err or "learning rate of 0" in longer.err:
        problems.append(f"the schedule does not go on, or nothing says it: {longer.err}")
    asked = program.must("resume", path("asked"), *on, "--schedule-steps", STEPS + 2)
    if program.numbers_of(path("asked")) != program.numbers_of(path("ended")):
        problems.append("a schedule that goes on is not the one that can be asked for")
    kept = program.must("resume", path("kept"), *on, "--schedule-steps", STEPS)
    if "learning rate of 0" not in kept.err or exported("kept", "kept-after") != before:
        problems.append(f"no warning, or the weights changed: {kept.err}")
    # This run was told to go on beyond its schedule, so a resume leaves the schedule alone.
    again = program.must("resume", path("kept"), "--steps", STEPS + 3)
    if "learning rate of 0" not in again.err or "the schedule from here on" in again.err:
        problems.append(f"the schedule that was asked for is lengthened: {again.err}")
    return problems


def moving():
    """A run's folder, the folder of its store, and the place where the user stands."""
    expected = program.numbers_of(path(reference()))
    program.must(*train("stays", "nvme", steps=HALF))
    shutil.move(path("stays"), path("moved"))
    program.must("resume", path("moved"), "--steps", STEPS)
    os.mkdir(path("disk-a"))
    os.mkdir(path("disk-b"))
    program.must(*train("striped", "nvme", "--nvme", path("disk-a"), "--nvme", path("disk-b"), steps=HALF))
    shutil.move(path("disk-a"), path("disk-c"))
    program.must("resume", path("striped"), "--steps", STEPS, "--nvme", path("disk-b"), "--nvme", path("disk-c"))
    os.mkdir(path("elsewhere"))
    here = program.run(*train("near", "here", data=["../data.txt"], steps=HALF), cwd=path("elsewhere"))
    problems = [] if here.code == 0 else [f"from another folder: {here.err}"]
    again = program.run("resume", path("elsewhere", "near"), "--steps", STEPS, cwd="/")
    problems += [] if again.code == 0 else [f"resumed from another folder: {again.err}"]
    return problems + [f"{run}: other numbers" for run in ("moved", "striped", "elsewhere/near")
                       if program.numbers_of(path(run)) != expected]


def data_that_moved():
    """A resume finds data where --data and --val say, and refuses other data."""
    data, held = path("data-first.txt"), path("held-first.txt")
    shutil.copy(DATA, data)
    program.write(held, program.text(61, 4000))
    program.must(*train("data-moved", "nvme", data=[data], val=held, steps=HALF))
    os.rename(data, path("data-then.txt"))
    os.rename(held, path("held-then.txt"))
    problems = program.refused("data that are gone", ["resume", path("data-moved"), "--steps", STEPS], data, "--data")
    problems += program.refused("other data", ["resume", path("data-moved"), "--steps", STEPS, "--data", path("held-then.txt"),
                                               "--val", path("held-then.txt")], "not those that the run began with")
    program.must("resume", path("data-moved"), "--steps", STEPS - 1, "--data", path("data-then.txt"), "--val",
                 path("held-then.txt"))
    program.must("resume", path("data-moved"), "--steps", STEPS)
    settings = program.read_json(path("data-moved", "run.json"))["settings"]
    if settings["data"] != [path("data-then.txt")] or settings["val"] != path("held-then.txt"):
        problems.append(f"run.json has {settings['data']} and {settings['val']}")
    return problems


def another_schedule():
    """A resume may change the rate and the length of the schedule: run.json has it, and one line says it."""
    program.must(*train("rescheduled", "nvme", steps=HALF))
    ended = program.must("resume", path("rescheduled"), "--steps", STEPS, "--lr", "1e-3", "--schedule-steps", 2 * STEPS,
                         "--min-lr", "1e-4")
    problems = []
    said = [line for line in ended.err.splitlines() if "the schedule" in line]
    if len(said) != 1 or any(word not in said[0] for word in ("--lr 0.001 (was 0.002)", "--min-lr 0.0001 (was 0)",
                                                             f"--schedule-steps {2 * STEPS} (was {STEPS})")):
        problems.append(f"it is not said in one line: {said}")
    settings = program.read_json(path("rescheduled", "run.json"))["settings"]
    if (settings["lr"], settings["min_lr"], settings["schedule_steps"]) != (1e-3, 1e-4, 2 * STEPS):
        problems.append(f"run.json has {settings}")
    for line in program.steps_of(path("rescheduled")):
        if (line["lr"] <= 1e-3) != (line["step"] > HALF) or line["lr"] < 1e-4:
            problems.append(f"step {line['step']} has the rate {line['lr']}")
    if "the schedule" in program.must("resume", path("rescheduled"), "--steps", STEPS + 1).err:
        problems.append("a schedule that stays is said")
    return problems


def old_schedules_stay():
    """A run.json without a version of the schedule is of a run whose last step had the least rate, and goes on so."""
    program.must(*train("old-schedule", "nvme", steps=HALF))
    file = path("old-schedule", "run.json")
    kept = program.read_json(file)
    problems = [] if kept.pop("schedule_version", None) == 2 else ["run.json lacks schedule_version 2"]
    program.write(file, json.dumps(kept))
    program.must("resume", path("old-schedule"), "--steps", STEPS - 1)
    program.must("resume", path("old-schedule"), "--steps", STEPS)
    last = program.steps_of(path("old-schedule"))[-1]["lr"]
    if last != 0 or program.read_json(file).get("schedule_version") != 1:
        problems.append(f"its last step has the rate {last}")
    if not 0 < program.steps_of(path(reference()))[-1]["lr"] < 1e-4:
        problems.append("the last step of a new run trains nothing")
    return problems


def on_terminal(arguments, stop_after):
    """Returns the bytes that a terminal of 80 columns is sent by a run that is asked to stop once it has shown some steps."""
    terminal, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(program.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=side, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(side)
        shown, asked = b"", False
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # The other side is closed.
                break
            if not asked and shown.count(b"\rstep ") >= stop_after:
                asked = True
                process.send_signal(signal.SIGINT)
    os.close(terminal)
    return shown.decode()


def the_line_on_a_terminal():
    """It holds loss, norm, rate, speed and the time left in 80 columns, and no message runs into it, nor past them."""
    name = "terminal-whose-name-" + "is-long-" * 8
    shown = on_terminal(train(name, "nvme", "--trace", path("terminal.json"), steps=10000), 5)
    problems = []
    lines = [part.split("\033[K")[0] for part in shown.replace("\n", "\r").split("\r")]
    steps = [line for line in lines if line.startswith("step ")]
    for line in steps:
        if len(line) >= 80 or not re.fullmatch(r"step \d+/10000  loss [\d.]+  norm \S+  lr \S+  \d+ tokens/s  left [\d.]+ (?:s|min|h|days)"
                                              r"(  \w+ \d+%)*", line):
            problems.append(f"the line is {line!r}")
    problems += [f"past 80 columns: {line!r}" for line in lines if len(line) > 80 and " " in re.sub("`.*?`", "", line[2:])]
    if f"`spillway resume {path(name)}`" not in shown:
        problems.append(f"a command is cut: {shown[-600:]!r}")
    for text in ("gpt2-tiny fits: ", "  device memory  ", "stopping after step", "wrote the trace"):
        if not any(line.startswith(text) for line in lines):
            problems.append(f"'{text}' does not begin a line: {shown[-600:]!r}")
    return problems if steps else [f"there is no line: {shown!r}"]


def line_ends():
    """CR LF stays in the data, and is said once for each such file."""
    data = program.write(path("crlf.txt"), program.text(9, 4000).replace(" ", "\r\n").encode())
    err = program.must(*train("crlf", "nvme", data=[data, DATA], steps=1)).err
    said = [line for line in err.splitlines() if "CR LF" in line]
    return [] if len(said) == 1 and data in said[0] else [f"of CR LF it says {said}"]


def quiet():
    """Nothing is said of a run that goes well; what fails is."""
    ended = program.run(*train("quiet", "nvme", "--quiet", steps=2))
    problems = [] if (ended.code, ended.out, ended.err) == (0, "", "") else [f"a quiet run said {ended}"]
    return problems + program.refused("a quiet refusal", train("quiet", "nvme", "--quiet", steps=2), "not empty")


def exports():
    content = exported(reference(), "exported")
    header, data = hf_folder.split(content)
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    problems = [f"{name}: {entry}" for name, entry in tensors.items()
                if not name.startswith("transformer.") or entry["dtype"] != "F32"]
    if sum(hf_folder.count(entry["shape"]) for entry in tensors.values()) * 4 != len(data) or len(tensors) != 28:
        problems.append(f"{len(tensors)} tensors in {len(data)} bytes")
    config = program.read_json(path("exported", "config.json"))
    if (config["model_type"], config["n_embd"], config["architectures"]) != ("gpt2", 64, ["GPT2LMHeadModel"]):
        problems.append(f"config.json: {config}")
    if sorted(os.listdir(path("exported"))) != ["config.json", "model.safetensors"]:
        problems.append(f"the folder holds {os.listdir(path('exported'))}")
    return problems + wrong_halves(data, header)


def wrong_halves(data, header):
    """bf16 exports hold the upper halves, rounded to nearest even."""
    half_header, half = hf_folder.split(exported("reference", "exported-bf16", "--dtype", "bf16"))
    entry, half_entry = header["transformer.wte.weight"], half_header["transformer.wte.weight"]
    values = struct.unpack("<64I", data[entry["data_offsets"][0]:][:256])
    halves = struct.unpack("<64H", half[half_entry["data_offsets"][0]:][:128])
    rounded = tuple((value + 0x7FFF + (value >> 16 & 1)) >> 16 for value in values)
    return [] if half_entry["dtype"] == "BF16" and halves == rounded else ["bf16: not the rounded values"]


def fine_tuning_begins_where_the_run_ended():
    """With a rate of zero the loss on the validation part stays what it was, to the last bit. An export in bf16 holds the
    weights that a run in bf16 computes with, so such a run is what it is compared with on every machine."""
    program.must(*train("reference-bf16", "host", "--precision", "bf16"))
    problems = []
    for name, source, dtype, more in (("tuned", "reference", (), ()),
                                      ("tuned-bf16", "reference-bf16", ("--dtype", "bf16"), ("--precision", "bf16"))):
        last = validation(reference() if source == "reference" else source)[-1]["val_loss"]
        exported(source, name + "-from", *dtype)
        program.must(*train(name, "host", *more, model=[path(name + "-from")], steps=1, rate=0))
        found = validation(name)[-1]["val_loss"]
        if found != last:
            problems.append(f"{name}: {found} instead of {last}")
    return problems


def generated(source, *more):
    return program.must("generate", source, "--max-tokens", 40, *more).out


def texts():
    exported(reference(), "speaker")
    run, folder, prompt = path("reference"), path("speaker"), ("--prompt", "the ")
    first = generated(run, *prompt, "--seed", 1)
    cold = generated(run, *prompt, "--temperature", 0, "--seed", 1)
    program.write(path("prompt.bin"), struct.pack("<4H", *b"the "))
    pairs = [("the same seed", first, generated(run, *prompt, "--seed", 1), True),
             ("another seed", first, generated(run, *prompt, "--seed", 2), False),
             ("the exported folder", first, generated(folder, *prompt, "--seed", 1), True),
             ("one thread", first, generated(run, *prompt, "--seed", 1, "--threads", 1), True),
             ("no temperature, another seed", cold, generated(run, *prompt, "--temperature", 0, "--seed", 2), True),
             ("the most likely only", cold, generated(run, *prompt, "--top-k", 1, "--seed", 3), True),
             ("more choices than tokens", first, generated(run, *prompt, "--top-k", 9999, "--seed", 1), True),
             ("tokens instead of text", first, generated(run, "--tokens", path("prompt.bin"), "--seed", 1), True)]
    problems = [f"{what}: {a!r} and {b!r}" for what, a, b, same in pairs if (a == b) != same]
    raw = subprocess.run(program.command("generate", run, *prompt, "--max-tokens", 100), capture_output=True,
                         check=True)
    if len(raw.stdout) != 4 + 100 + 1 or not raw.stdout.startswith(b"the ") or b"64 positions" not in raw.stderr:
        problems.append(f"beyond the model's positions: {raw.stdout!r}, {raw.stderr!r}")
    return problems + program.refused("an empty prompt", ["generate", run, "--prompt", ""], "--prompt", status=2)


def plans_keep_their_word():
    problems = []
    for place, states in PLACES.items():
        flags = [*program.SHAPE, "--place", states]
        plan = json.loads(program.must("plan", "--model", "gpt2-tiny", "--json", *flags).out)
        if not os.path.isdir(path("peak-" + place)):
            program.must(*train("peak-" + place, place, steps=2))
        peak = program.steps_of(path("peak-" + place))[-1]["peak"]
        if (peak["device"], peak["host"]) != (plan["peak_bytes"]["device"], plan["peak_bytes"]["host"]):
            problems.append(f"{place}: {peak} was planned as {plan['peak_bytes']}")
        if peak["nvme"] != os.path.getsize(path("peak-" + place, STORE)):
            problems.append(f"{place}: the store is no {peak['nvme']} bytes")
        lanes, moved = plan["lanes"], program.steps_of(path("peak-" + place))[-1]["bytes"]
        planned = {name: lanes[lane]["bytes"] for name, lane in
                   (("nvme_read", "read"), ("nvme_write", "write"), ("upload", "upload"), ("download", "download"))}
        problems += [f"{place}: {name} was {moved[name]} bytes, planned {planned[name]}" for name in planned
                     if moved[name] != planned[name]]
    return problems


def data_in_several_files_and_forms():
    """Text cut into two files, and the same bytes as tokens, are the same data."""
    content = program.text(6, 40000).encode()
    program.write(path("first.txt"), content[:38000])
    program.write(path("a.txt"), content[:15001])
    program.write(path("b.txt"), content[15001:])
    program.write(path("tokens.bin"), struct.pack(f"<{len(content)}H", *content))
    expected = program.numbers_of(path(reference()))
    problems = []
    for name, files in (("two", ["a.txt", "b.txt"]), ("tokens", ["tokens.bin"])):
        program.must(*train("data-" + name, "device", data=[path(file) for file in files]))
        if program.numbers_of(path("data-" + name)) != expected:
            problems.append(f"{name}: other numbers")
    program.write(path("part%.txt"), content[38000:])
    program.must(*train("held-out", "device", data=[path("first.txt")], val=path("part%.txt")))
    if (program.numbers_of(path("held-out")), validation("held-out")[-1]) != (expected, validation("reference")[-1]):
        problems.append(f"a validation file: {validation('held-out')}")
    return problems


def wide_tokens_of_a_small_vocabulary():
    """uint32 tokens where uint16 is expected are refused, unless they are named; then they are the same data."""
    content = program.text(6, 40000).encode()
    wide = program.write(path("wide.bin"), struct.pack(f"<{len(content)}I", *content))
    problems = program.refused("uint32 tokens", train("wide", "device", data=[wide]), "wide.bin", "uint32",
                               "--tokens u32")
    program.must(*train("wide", "device", "--tokens", "u32", data=[wide], steps=HALF))
    program.must("resume", path("wide"), "--steps", STEPS)
    if program.numbers_of(path("wide")) != program.numbers_of(path(reference())):
        problems.append("--tokens u32: other numbers")
    evaluation = ["eval", path("wide"), "--data", wide, "--seq", program.SEQ]
    problems += program.refused("uint32 tokens to eval", evaluation, "wide.bin", "--token-type u32")
    found = [json.loads(program.must("eval", path("wide"), "--data", data, "--seq", program.SEQ, "--json", *more).out)["loss"]
             for data, more in ((wide, ("--token-type", "u32")), (path("data.txt"), ()))]
    return problems + ([] if found[0] == found[1] else [f"eval: {found}"])


script_test.run(the_log, placements_make_no_difference, resuming_what_is_done, fewer_cores, chunks_that_are_too_small_now,
                going_on_beyond_the_schedule, moving, data_that_moved, another_schedule, old_schedules_stay,
                the_line_on_a_terminal, line_ends, quiet, exports, fine_tuning_begins_where_the_run_ended, texts,
                plans_keep_their_word, data_in_several_files_and_forms, wide_tokens_of_a_small_vocabulary)
