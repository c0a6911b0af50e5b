"""Runs that are stopped, killed, out of time or off the rails go on from their last commit as if nothing had been."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(8, 40000))
STEPS, ENDLESS = 150, 1000000
# A caller's nohup ignores SIGHUP, which programs inherit.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
TIME_LIMIT, NOT_FINITE, INTERRUPTED = 3, 4, 130  # exit statuses
MOST_BEGINNINGS = 60
KILLS, KILL_SEED = 6, int(os.environ.get("SW_TEST_SEED", "20260802"))
PLACES = {"rare": ["--place", "optimizer=host"],
          "device": ["--place", "grads=device,optimizer=device", "--save-every", 7],
          "host": ["--place", "grads=host,optimizer=host", "--save-every", 10],
          "mixed": ["--place", "grads=host:50%/nvme,optimizer=device:30%/host:30%/nvme", "--save-every", 4],
          "nvme": ["--place", "grads=nvme,optimizer=nvme"]}


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, place, *more, steps=STEPS):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
            "--schedule-steps", STEPS, *program.SHAPE, *PLACES[place], *more]


def digest(run):
    """Returns the digest of the weights that the run's last commit holds."""
    out = path("weights")
    shutil.rmtree(out, ignore_errors=True)
    program.must("export", path(run), out)
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def reference():
    if not os.path.isdir(path("reference")):
        program.must(*train("reference", "nvme"))
    return program.numbers_of(path("reference")), digest("reference")


def wait_for(process, word):
    for line in process.stderr:
        if word in line:
            return line
    raise RuntimeError(f"the program ended before it said '{word}'")


def ending_of(process):
    """The exit status and the last line on standard error."""
    lines = process.stderr.read().strip().split("\n")
    code = program.limits.wait(process)
    process.stderr.close()
    return code, lines[-1]


def signals_end_after_the_step():
    """A closed terminal (SIGHUP) and a batch system (SIGUSR1) as well as Ctrl-C."""
    problems = []
    for place, number in (("device", signal.SIGINT), ("nvme", signal.SIGTERM), ("host", signal.SIGHUP),
                          ("mixed", signal.SIGUSR1)):
        run = f"signal-{place}"
        process = program.start(*train(run, place, steps=ENDLESS))
        wait_for(process, "step 20/")
        process.send_signal(number)
        answer = wait_for(process, "stopping after step ")
        code, last = ending_of(process)
        if code != INTERRUPTED or "everything is saved" not in last or path(run) not in last:
            problems.append(f"{place}: status {code}, '{last}'")
        by_hand = number in (signal.SIGINT, signal.SIGTERM)
        told = re.fullmatch(r"stopping after step (\d+), about \d+ s(; once more ends at once)?\n", answer)
        done = len(program.steps_of(path(run)))
        if told is None or int(told[1]) != done or bool(told[2]) != by_hand:
            problems.append(f"{place}: the answer to the signal is {answer!r}, and {done} steps were done")
        resumed = program.run("resume", path(run), "--steps", done + 1)
        if f"continuing after step {done}\n" not in resumed.err:
            problems.append(f"{place}: not all was saved: {resumed.err[-300:]}")
        if resumed.code != 0 or list(program.numbers_of(path(run))) != list(range(1, done + 2)):
            problems.append(f"{place}: resume: {resumed.err[-300:]}")
    return problems


def processor_seconds(process):
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def wait_for_work(process, seconds):
    """Until the program has computed for so long from now on, however busy the cores are."""
    until, limit = processor_seconds(process) + seconds, program.limits.Limit()
    while processor_seconds(process) < until and process.poll() is None and not limit.over():
        time.sleep(0.01)


def a_second_signal_ends_at_once():
    """Here a step is long enough that only the second signal can end it, and by batch it takes little memory."""
    run = path("twice")
    process = program.start("train", "--model", "gpt2-demo", "--init", "--data", DATA, "--run", run, "--seq", 256,
                            "--batch-tokens", 4 * 256 * 500, "--micro-batch", 4, "--order", "batch")
    wait_for(process, "commits")
    wait_for_work(process, 0.3)
    process.send_signal(signal.SIGINT)
    wait_for(process, "once more ends at once")
    process.send_signal(signal.SIGINT)
    code = program.limits.wait(process)
    process.stderr.close()
    done = len(program.steps_of(run)) if os.path.exists(os.path.join(run, "log.jsonl")) else 0
    return [] if code == 1 and done == 0 else [f"status {code} after {done} steps"]


def the_time_limit():
    """No step is begun after it. Two at most are under way when the last is decided on."""
    limit_s = 3
    ended = program.run(*train("limited", "device", "--time-limit", f"{limit_s}s", steps=ENDLESS))
    problems = [] if ended.code == TIME_LIMIT and "everything is saved" in ended.err else [f"status {ended.code}"]
    seconds = [line["seconds"] for line in program.steps_of(path("limited"))]
    done = len(seconds)
    if sum(seconds[:-2]) > limit_s:
        problems.append(f"went on for {sum(seconds):.1f} s")
    resumed = program.run("resume", path("limited"), "--steps", done + 3)
    if resumed.code != 0 or len(program.steps_of(path("limited"))) != done + 3:
        problems.append(f"the limit stayed, or resume failed: {resumed.err[-300:]}")
    return problems


def go_on(run, place):
    """Begins the run, or takes it up where it has committed something."""
    if os.path.exists(path(run, "log.jsonl")):
        return program.start("resume", path(run))
    shutil.rmtree(path(run), ignore_errors=True)
    return program.start(*train(run, place))


def killed_and_resumed(place, draw):
    run = f"killed-{place}"
    for _ in range(KILLS):
        process = go_on(run, place)
        time.sleep(draw.uniform(0.02, 0.35))
        process.kill()
        process.wait()
        process.stderr.close()
    code, last = ending_of(go_on(run, place))
    return run, [] if code == 0 else [f"{place}: the last resume: status {code}, '{last}'"]


def kills_at_random_instants():
    """After kill -9 the same losses and the same weights come out as without."""
    numbers, weights = reference()
    draw, problems = random.Random(KILL_SEED), []
    for place in (name for name in PLACES if name != "rare"):
        run, failed = killed_and_resumed(place, draw)
        problems += failed
        if failed:
            continue
        if program.numbers_of(path(run)) != numbers:
            found = program.numbers_of(path(run))
            problems.append(f"{place}: other numbers: {[s for s in numbers if numbers[s] != found.get(s)]}")
        if digest(run) != weights:
            problems.append(f"{place}: other weights")
    return problems + ([f"seed {KILL_SEED}"] if problems else [])


def read_lines(path_of_log):
    with open(path_of_log, encoding="utf-8") as file:
        return list(file)


def evaluated(run, steps):
    """A run that evaluates after step 10; returns its log's path."""
    shutil.rmtree(path(run), ignore_errors=True)
    program.must(*train(run, "nvme", "--val", "5%", "--eval-every", 10, steps=steps))
    return path(run, "log.jsonl")


def a_log_behind_the_last_commit():
    """A process that dies between commit and log loses no line: the commit knows the numbers of the last two steps."""
    problems = []
    for what, cut in (("one line", lambda lines: lines[:-1]), ("two lines", lambda lines: lines[:-2]),
                      ("a line in its middle", lambda lines: [*lines[:-1], lines[-1][:50]])):
        log = evaluated("behind", 11)
        whole = program.numbers_of(path("behind"))
        program.write(log, "".join(cut([line for line in read_lines(log) if "val_loss" not in line])))
        program.must("resume", path("behind"), "--steps", 12)
        found = program.numbers_of(path("behind"))
        if {**found, **whole} != found or len(program.steps_of(path("behind"))) != 12:
            problems.append(f"{what}: the log has {found} instead of {whole}")
    return problems


def a_log_that_is_lost_twice():
    """Between the two a resume names another rate, which run.json has from then on, and makes no step."""
    log = evaluated("twice", 6)
    whole = program.numbers_of(path("twice"))
    for more in (("--lr", "1e-2"), ()):
        program.write(log, "")
        program.must("resume", path("twice"), *more)
    found = program.numbers_of(path("twice"))
    return [] if found == whole else [f"the log has {found} instead of {whole}"]


def an_evaluation_that_was_lost():
    """It is made again before the next step, at another time and in another."""
    def timeless(line):
        return re.sub(r'"time":"[^"]*"|"val_seconds":[^,}]*', "", line)

    log = evaluated("unevaluated", 10)
    *steps, evaluation = read_lines(log)
    program.write(log, "".join(steps))
    program.must("resume", path("unevaluated"), "--steps", 12)
    lines = read_lines(log)
    return [] if timeless(lines[10]) == timeless(evaluation) else [f"instead of {evaluation!r} there is {lines[10]!r}"]


def an_export_that_was_lost():
    """It is written by the next start, with the loss that the log has of its step: nothing is evaluated once more."""
    program.must(*train("unexported", "nvme", "--val", "5%", "--eval-every", 4, "--export-every", 4, steps=4))
    log, exports = path("unexported", "log.jsonl"), path("unexported", "exports")
    shutil.rmtree(exports)
    program.write(log, re.sub(r'"val_loss":[0-9.]+', '"val_loss":1.25', "".join(read_lines(log))))
    program.must("resume", path("unexported"), "--steps", 5)
    kept = [(entry["step"], entry["val_loss"]) for entry in program.read_json(os.path.join(exports, "index.json"))]
    return [] if kept == [(4, 1.25)] else [f"the exports are {kept}"]


def killed_at_its_beginning(wait_s):
    """Returns the resume after a kill at so many seconds from the start."""
    run = path("begun")
    shutil.rmtree(run, ignore_errors=True)
    process = program.start(*train("begun", "nvme"))
    while not os.path.exists(run) and process.poll() is None:
        pass
    time.sleep(wait_s)
    process.kill()
    process.wait()
    process.stderr.close()
    return program.run("resume", run, "--steps", 2)


def a_beginning_that_was_killed():
    """A run without its first commit says so and tells what to do, nothing else takes it for a run, and the same command
    begins it again. On busy cores it may have committed before it is killed, so that it is tried until some have not."""
    problems, seen, tries = [], 0, 0
    waits_s = (0.0, 0.002, 0.004, 0.006, 0.008, 0.010, 0.012, 0.015, 0.02, 0.03)
    while tries < len(waits_s) or (seen == 0 and tries < MOST_BEGINNINGS):
        wait_s = waits_s[tries] if tries < len(waits_s) else 0.0
        ended = killed_at_its_beginning(wait_s)
        tries += 1
        if ended.code != 0:
            seen += 1
            problems += program.wrong_refusal(f"killed after {wait_s} s", ended, 1, ["begun"], ["resume"])
            again = program.run(*train("begun", "nvme", steps=2))
            if again.code != 0 or len(program.steps_of(path("begun"))) != 2 or os.path.exists(path("begun", "starting.json")):
                problems.append(f"killed after {wait_s} s, begun again: {again.err[-500:]}")
    return problems if seen else [f"of {tries} no beginning was caught"]


def a_beginning_that_was_cleared_in_part():
    """As where a train that begins it again is killed when the store is gone and run.json is not."""
    program.must(*train("cleared", "nvme", steps=1))
    stores = program.read_json(path("cleared", "run.json"))["stores"]
    for name in ("store.spillway", "log.jsonl"):
        os.unlink(path("cleared", name))
    start = {"spillway_start": 1, "ranks": 1, "whole": False, "stores": stores}
    program.write(path("cleared", "starting.json"), json.dumps(start))
    problems = program.refused("a resume", ["resume", path("cleared"), "--steps", 2], "start it again with train",
                               watched=[path("cleared")])
    again = program.run(*train("cleared", "nvme", steps=2))
    return problems + ([] if again.code == 0 else [f"begun again: {again.err[-500:]}"])


def a_beginning_of_tensor_groups():
    """The folders of its ranks have the size of a group in their names, which starting.json gives."""
    program.must(*train("grouped", "nvme", steps=1))
    stores = 2 * program.read_json(path("grouped", "run.json"))["stores"]
    shutil.rmtree(path("grouped"))
    for rank in range(2):
        stores[rank] = {**stores[rank], "places": []}
        os.makedirs(path("grouped", f"rank-{rank}-of-2-tensor-2"))
    start = {"spillway_start": 1, "ranks": 2, "tensor": 2, "whole": False, "stores": stores}
    program.write(path("grouped", "starting.json"), json.dumps(start))
    again = program.run(*train("grouped", "nvme", steps=2))
    problems = [f"{name} stays" for name in os.listdir(path("grouped")) if "tensor" in name or name == "starting.json"]
    return problems + ([] if again.code == 0 else [f"begun again: {again.err[-500:]}"])


def a_beginning_on_two_drives():
    """The space that it was taking is given back on both, though the run is begun again elsewhere."""
    drives = [path("begun-on-1"), path("begun-on-2")]
    for drive in drives:
        os.mkdir(drive)
    program.must(*train("on-two", "nvme", "--nvme", drives[0], "--nvme", drives[1], steps=1))
    start = {"spillway_start": 1, "ranks": 1, "whole": False, "stores": program.read_json(path("on-two", "run.json"))["stores"]}
    shutil.rmtree(path("on-two"))
    os.mkdir(path("on-two"))
    program.write(path("on-two", "starting.json"), json.dumps(start))
    for drive in drives:
        program.write(os.path.join(drive, program.STORE), "\0" * 8192)
    again = program.run(*train("on-two", "nvme", steps=1))
    problems = [f"{os.listdir(drive)} stay in {drive}" for drive in drives if os.listdir(drive)]
    return problems + ([] if again.code == 0 else [f"begun again: {again.err[-500:]}"])


def a_beginning_of_a_later_version():
    """Nothing is removed, as nobody knows what the later version has made."""
    os.mkdir(path("later"))
    store = {"id": 32 * "0", "local_rank": 0, "places": []}
    start = {"spillway_start": 2, "ranks": 1, "whole": False, "stores": [store]}
    program.write(path("later", "starting.json"), json.dumps(start))
    return program.refused("train", train("later", "nvme", steps=1), "starting.json", "not of a start that this program knows",
                           watched=[path("later")])


def a_beginning_that_a_power_loss_left_empty():
    """The file that lists the stores has its length and zeros for content: nothing was made yet, and train begins."""
    run = path("emptied")
    shutil.rmtree(run, ignore_errors=True)
    os.mkdir(run)
    program.write(os.path.join(run, "starting.json"), "\0" * 300)
    begun = program.run(*train("emptied", "nvme", steps=1))
    return [] if begun.code == 0 else [f"not begun: {begun.err[-500:]}"]


def blocked_exports(run, _):
    """An export that fails: its folder is a file."""
    program.write(path(run, "exports"), "")
    return program.run("resume", path(run), "--steps", 40, "--export-every", 6), lambda: os.remove(path(run, "exports"))


def cut_data(run, data):
    """Data, of training or of validation, that cannot be read any more."""
    with open(data, "rb") as file:
        content = file.read()
    process = program.start("resume", path(run), "--steps", ENDLESS, "--eval-every", 8)
    wait_for(process, "step 20/")
    os.truncate(data, 100)
    code, last = ending_of(process)
    return program.Ended(code, "", last), lambda: program.write(data, content)


def a_failure_beside_a_step_saves_first():
    """With plans that would lose all steps of the start otherwise. Then a resume goes on, with every line in the log."""
    problems, held, own = [], program.write(path("held.txt"), program.text(9, 4000)), path("own.txt")
    unsaved = ("nvme", "--durability", "none")
    for what, fail, spoilt, word, more in (("export", blocked_exports, None, "exports", unsaved),
                                           ("data", cut_data, own, "own.txt", unsaved),
                                           ("evaluation", cut_data, held, "held.txt", ("rare",))):
        run = f"beside-{what}"
        shutil.copy(DATA, own)
        program.must(*[own if argument == DATA else argument for argument in train(run, *more, "--val", held, steps=4)])
        ended, mend = fail(run, spoilt)
        mend()
        last = ended.err.strip().split("\n")[-1]
        saved = re.search(r"^spillway resume: .*step (\d+) is saved", last)
        if ended.code != 1 or saved is None or int(saved[1]) < 6 or word not in last:
            problems.append(f"{what}: status {ended.code}, {last!r}")
            continue
        steps = int(saved[1]) + 2
        resumed = program.run("resume", path(run), "--steps", steps)
        if resumed.code != 0 or f"continuing after step {saved[1]}\n" not in resumed.err:
            problems.append(f"{what}: resume: {resumed.err[-300:]}")
        if list(program.numbers_of(path(run))) != list(range(1, steps + 1)):
            problems.append(f"{what}: the log lacks steps")
    return problems


def a_loss_that_is_not_finite():
    """The run stops, says what to look at, and can be taken up."""
    run = path("diverged")
    arguments = ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", run, "--steps", 500, "--lr", 1000,
                 "--weight-decay", 1000, "--clip", 0, "--warmup", 0, "--schedule", "constant", *program.SHAPE]
    ended = program.run(*arguments)
    last = ended.err.strip().split("\n")[-1]
    problems = [f"the message lacks '{word}': {last}" for word in
                ("spillway train: ", "not finite", "10 steps in a row", "--lr", "saved") if word not in last]
    if ended.code != NOT_FINITE:
        problems.append(f"status {ended.code}")
    lines = program.steps_of(run)
    bad = [line for line in lines if line["skipped"] or line["loss"] is None]
    if len(bad) < 10 or lines[-10:] != bad[-10:] or len(lines) > 499:
        problems.append(f"{len(lines)} steps, of them {len(bad)} bad")
    again = program.run("resume", run, "--steps", len(lines) + 3)
    if again.code != NOT_FINITE or "in any step from" not in again.err or program.steps_of(run)[-1]["step"] != len(lines) + 3:
        problems.append(f"resume: {again.err[-300:]}")
    return problems


def patch(folder, changes):
    """Writes floats into tensors of an exported model, from an element on."""
    name = os.path.join(folder, "model.safetensors")
    with open(name, "r+b") as file:
        content = file.read()
        header, data = hf_folder.split(content)
        for tensor, first, values in changes:
            file.seek(len(content) - len(data) + header[tensor]["data_offsets"][0] + 4 * first)
            file.write(struct.pack(f"<{len(values)}f", *values))


def weights_that_diverge_in_the_last_step():
    """The loss of the only step is finite, and what its update leaves is not. The weight that overflows has a zero on
    either side, so that nothing shows of it while it is finite."""
    model, run, width = path("model"), path("last"), 64
    program.must(*train("source", "device", steps=1))
    program.must("export", path("source"), model)
    patch(model, [("transformer.h.0.ln_2.weight", 0, [0]), ("transformer.h.0.ln_2.bias", 0, [0]),
                  ("transformer.h.0.mlp.c_fc.weight", 0, [3e33]),
                  ("transformer.h.0.mlp.c_proj.weight", 0, [0] * width)])
    ended = program.run("train", "--model", model, "--data", DATA, "--run", run, "--steps", 1, "--lr", 1000,
                        "--weight-decay", 1000, "--warmup", 0, "--schedule", "constant", *program.SHAPE)
    last, lines = ended.err.strip().split("\n")[-1], program.steps_of(run)
    problems = [] if [line["skipped"] for line in lines] == [False] and lines[0]["loss"] is not None else [f"{lines}"]
    if ended.code != NOT_FINITE or "weights after step 1," not in last or "everything is saved" in ended.err:
        problems.append(f"status {ended.code}: {last}")
    return problems


def saves_by_time():
    """They come when their time is over, change nothing of what is computed, and are what a kill leaves."""
    program.must(*train("counted", "rare"))
    problems, every = [], ("--save-every", "1s")
    process = program.start(*[argument for argument in train("timed", "rare", *every, steps=ENDLESS)])
    told = wait_for(process, "a kill or a power loss would cost")
    wait_for(process, "with a save")
    wait_for(process, "with a save")
    process.kill()
    process.wait()
    process.stderr.close()
    lines = program.steps_of(path("timed"))
    saving = [line["step"] for line in lines if line["saved"]]
    if "up to 1 s, and the running step" not in told:
        problems.append(f"the start says {told!r}")
    # Steps that took longer than the time between saves each carry one.
    for before, after in zip([0, *saving], saving):
        between = [line["seconds"] for line in lines if before < line["step"] <= after]
        # The clock begins before the first step does.
        if (before > 0 and sum(between) < 0.9) or sum(between[:-3]) > 1:
            problems.append(f"a save in step {after}, {sum(between):.2f} s after that in step {before}")
    # The kill may have come between the last save and its line, which belongs to a step that is committed with it.
    saved = json.loads(program.must("verify", path("timed"), "--json").out)["step"]
    if saved + 1 not in saving and saved + 1 < lines[-1]["step"]:
        problems.append(f"step {saved} is saved, after saves in {saving} and lines up to {lines[-1]['step']}")
    resumed = program.run("resume", path("timed"), "--steps", max(STEPS, saved + 1))
    if f"continuing after step {saved}\n" not in resumed.err:
        problems.append(f"resume, after saves in {saving}: {resumed.err[-300:]}")
    found, expected = program.numbers_of(path("timed")), program.numbers_of(path("counted"))
    if program.read_json(path("timed", "run.json"))["settings"]["save_every"] != "1s":
        problems.append("run.json does not remember the time")
    return problems + [f"step {step}: other numbers" for step in expected if found[step] != expected[step]]


def a_program_under_nohup():
    """It goes on when its terminal is closed, as its user asked."""
    run = path("nohup")
    process = subprocess.Popen(["nohup", *program.command(*train("nohup", "nvme", steps=ENDLESS))],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(process, "step 20/")
    process.send_signal(signal.SIGHUP)
    wait_for(process, "step 300/")
    process.send_signal(signal.SIGINT)
    code, _ = ending_of(process)
    done = len(program.steps_of(run))
    return [] if code == INTERRUPTED and done >= 300 else [f"status {code} after {done} steps"]


def a_reader_that_has_gone():
    """`spillway train ... 2>&1 | head` must not cost the steps: they go on, and are saved."""
    process = program.start(*train("unread", "nvme", "--durability", "none"))
    wait_for(process, "step 20/")
    process.stderr.close()
    code = program.limits.wait(process)
    done = len(program.steps_of(path("unread")))
    return [] if code == 0 and done == STEPS else [f"status {code} after {done} steps"]


script_test.run(signals_end_after_the_step, a_second_signal_ends_at_once, the_time_limit, kills_at_random_instants,
                a_log_behind_the_last_commit, a_log_that_is_lost_twice, an_evaluation_that_was_lost, an_export_that_was_lost, a_beginning_that_was_killed,
                a_beginning_that_was_cleared_in_part, a_beginning_of_tensor_groups, a_beginning_on_two_drives,
                a_beginning_of_a_later_version, a_beginning_that_a_power_loss_left_empty,
                a_failure_beside_a_step_saves_first, a_loss_that_is_not_finite,
                weights_that_diverge_in_the_last_step, saves_by_time, a_program_under_nohup, a_reader_that_has_gone)
