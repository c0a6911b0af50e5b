"""`--optimizer-state`: the same bits wherever narrow state lives; another format at a resume, also one that is killed;
`--grads-state`; bad input."""

import filecmp
import json
import os
import shutil
import subprocess
import time

import hf_folder
import program
from program import STORE, script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(9, 40000))
FORMATS = ("fp32", "bf16", "8bit")
STEPS, MORE, KILLS = 6, 9, 12
PLACES = {"nvme": "weights=nvme,grads=nvme,optimizer=nvme", "host": "optimizer=host,grads=nvme",
          "mixed": "optimizer=device:30%/host:30%/nvme"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, state, *more, place="nvme", steps=STEPS, model="gpt2-tiny"):
    return ["train", "--model", model, "--init", "--data", DATA, "--run", path(run), "--steps", steps,
            "--schedule-steps", MORE, *program.SHAPE, "--place", PLACES[place], "--optimizer-state", state, *more]


def exported(run):
    out = path("weights")
    shutil.rmtree(out, ignore_errors=True)
    program.must("export", path(run), out)
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        return file.read()


def run_json(run):
    return program.read_json(path(run, "run.json"))


def stores_of(run):
    """The files of stores below a run's folder, as paths from there."""
    return sorted(os.path.relpath(os.path.join(where, STORE), path(run))
                  for where, _, names in os.walk(path(run)) if STORE in names)


def began(state):
    """A run of this format, made once, that others are copies of."""
    name = f"began-{state}"
    if not os.path.isdir(path(name)):
        program.must(*train(name, state))
    return name


def copy_of(state, name):
    shutil.copytree(path(began(state)), path(name))
    return name


def narrow_state_has_the_same_bits_everywhere():
    problems, weights = [], []
    for state, rounding in (("bf16", "nearest"), ("bf16", "stochastic"), ("8bit", "nearest"), ("8bit", "stochastic")):
        runs = []
        for place in PLACES:
            run = f"{state}-{rounding}-{place}"
            program.must(*train(run, state, "--rounding", rounding, "--save-every", 3, place=place))
            program.must("resume", path(run), "--steps", MORE)
            runs.append((program.numbers_of(path(run)), exported(run)))
            program.must("verify", path(run))
        problems += [f"{state} {rounding}: {list(PLACES)[i]} has other bits" for i in range(1, len(runs)) if runs[i] != runs[0]]
        weights.append(runs[0][1])
    if len(set(weights)) != len(weights):
        problems.append("two formats or roundings train alike")
    return problems


def a_killed_run_goes_on_with_the_same_bits():
    problems = []
    for state in FORMATS[1:]:
        program.must(*train(f"whole-{state}", state, steps=MORE))
        killed = f"killed-{state}"
        process = program.start(*train(killed, state, steps=MORE))
        while not process.stderr.readline().startswith("step 3/"):
            pass
        process.kill()
        process.wait()
        process.stderr.close()
        program.must("resume", path(killed))
        if exported(killed) != exported(f"whole-{state}"):
            problems.append(f"{state}: other weights after a kill")
    return problems


def a_resume_may_change_the_format():
    problems = []
    for before in FORMATS:
        for after in FORMATS:
            if before == after:
                continue
            run = copy_of(before, f"{before}-to-{after}")
            weights = exported(run)
            said = program.must("resume", path(run), "--steps", STEPS, "--optimizer-state", after).err
            if said.count(f"from {before} to {after}") != 1:
                problems.append(f"{before} to {after}: not said in one line: {said[-800:]}")
            if exported(run) != weights:
                problems.append(f"{before} to {after}: the conversion has changed weights")
            if len(stores_of(run)) != 1 or run_json(run)["settings"]["optimizer_state"] != after:
                problems.append(f"{before} to {after}: left {stores_of(run)}")
            again = program.must("resume", path(run), "--steps", MORE).err
            if " from " + before in again:
                problems.append(f"{before} to {after}: converted twice")
            program.must("verify", path(run))
            lost = program.numbers_of(path(run))
            if len(lost) != MORE:
                problems.append(f"{before} to {after}: {len(lost)} steps, not {MORE}")
    return problems


def there_and_back_from_fp32_is_a_small_error():
    """The masters are exact in every format, and moments that were rounded once move a few steps only a little."""
    run = copy_of("fp32", "back")
    for state in ("8bit", "bf16", "fp32"):
        program.must("resume", path(run), "--steps", STEPS, "--optimizer-state", state)
    problems = [] if exported(run) == exported(began("fp32")) else ["the masters have changed"]
    program.must("resume", path(run), "--steps", MORE)
    unchanged = copy_of("fp32", "unchanged")
    program.must("resume", path(unchanged), "--steps", MORE)
    losses = [[line["loss"] for line in program.log_lines(path(name)) if "loss" in line] for name in (run, unchanged)]
    apart = max(abs(a - b) for a, b in zip(*losses))
    return problems + ([] if apart < 0.05 else [f"losses are {apart} apart"])


def a_conversion_that_is_killed_leaves_a_run():
    """Whenever it is killed, the run resumes in one of both formats, with the same weights, and nothing is left over."""
    problems, ends = [], set()
    expected = exported(began("fp32"))
    for kill in range(KILLS):
        run = copy_of("fp32", f"cut-{kill}")
        process = program.start("resume", path(run), "--steps", STEPS, "--optimizer-state", "8bit")
        time.sleep(0.02 + 0.04 * kill)
        process.kill()
        process.wait()
        process.stderr.close()
        ended = program.run("resume", path(run), "--steps", STEPS)
        state = run_json(run)["settings"]["optimizer_state"]
        ends.add(state)
        if ended.code != 0 or exported(run) != expected or len(stores_of(run)) != 1:
            problems.append(f"kill {kill}: now {state}, {stores_of(run)}, {ended.err[-500:]}")
        shutil.rmtree(path(run))
    print(f"# after the kills, runs were {sorted(ends)}")
    return problems


def another_number_of_ranks_may_convert_too():
    problems, run = [], copy_of("fp32", "ranks")
    weights = exported(run)
    for ranks, state in ((2, "8bit"), (4, "8bit"), (4, "bf16"), (1, "fp32")):
        arguments = program.command("resume", path(run), "--steps", STEPS, "--optimizer-state", state)
        done = program.limits.run(threads(ranks, arguments), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0 or exported(run) != weights or len(stores_of(run)) != ranks:
            problems.append(f"{ranks} ranks, {state}: {stores_of(run)}, {done.stderr[-800:]}")
    return problems


def units_of_several_pieces_are_converted_whole():
    """A block of 19 grains, which is written in two pieces."""
    model = hf_folder.make(path("wide"), hf_folder.config(n_embd=160, n_layer=1, n_head=4), None)
    program.must(*train("pieces", "fp32", model=model))
    weights = exported("pieces")
    program.must("resume", path("pieces"), "--steps", STEPS, "--optimizer-state", "8bit")
    return [] if exported("pieces") == weights else ["the weights are others"]


def narrow_state_takes_less_space():
    problems, said = [], {}
    for state in FORMATS:
        said[state] = json.loads(program.must("plan", "--model", "gpt2-124m", "--optimizer-state", state, "--json").out)
        if said[state]["optimizer_state"] != state:
            problems.append(f"plan says {said[state]['optimizer_state']}, not {state}")
    for state, least, most in (("bf16", 0.66, 0.68), ("8bit", 0.51, 0.53)):
        share = said[state]["store_bytes"] / said["fp32"]["store_bytes"]
        if not least < share < most:
            problems.append(f"the store of {state} takes {share:.4f} of fp32's")
    text = program.must("plan", "--model", "gpt2-tiny", "--optimizer-state", "8bit", "--explain").out
    if "with moments in 8bit" not in text:
        problems.append(f"the answer does not name the state: {text}")
    return problems


def gradients_in_8_bits_have_the_same_bits_everywhere():
    """Wherever they live, after a kill, and beside narrow moments; and other bits than gradients in full."""
    problems, weights = [], []
    for state in ("fp32", "8bit"):
        runs = []
        for place in PLACES:
            run = f"grads-{state}-{place}"
            program.must(*train(run, state, "--grads-state", "8bit", "--save-every", 3, place=place))
            program.must("resume", path(run), "--steps", MORE)
            runs.append((program.numbers_of(path(run)), exported(run)))
        process = program.start(*train(f"grads-{state}-killed", state, "--grads-state", "8bit", steps=MORE))
        while not process.stderr.readline().startswith("step 3/"):
            pass
        process.kill()
        process.wait()
        process.stderr.close()
        program.must("resume", path(f"grads-{state}-killed"))
        ends = [of_run[1] for of_run in runs] + [exported(f"grads-{state}-killed")]
        problems += [f"{state}: run {i} has other bits" for i in range(1, len(ends)) if ends[i] != ends[0]]
        problems += [f"{state}: {list(PLACES)[i]} has other numbers" for i in range(1, len(runs)) if runs[i] != runs[0]]
        weights.append(ends[0])
    full = "grads-full"
    program.must(*train(full, "fp32", "--save-every", 3, steps=MORE))
    if len({*weights, exported(full)}) != 3:
        problems.append("two forms train alike")
    return problems


def a_resume_may_change_the_gradients():
    """No store holds them between steps."""
    run, problems = copy_of("fp32", "grads-later"), []
    program.must("resume", path(run), "--steps", MORE, "--grads-state", "8bit")
    if run_json(run)["settings"]["grads_state"] != "8bit" or len(program.numbers_of(path(run))) != MORE:
        problems.append("the resume has not kept --grads-state 8bit")
    unchanged = copy_of("fp32", "grads-never")
    program.must("resume", path(unchanged), "--steps", MORE)
    if exported(run) == exported(unchanged):
        problems.append("gradients in 8 bits have changed nothing")
    return problems


def gradients_in_8_bits_move_fewer_bytes():
    problems, said = [], {}
    for state in ("compute", "8bit"):
        said[state] = json.loads(program.must("plan", "--model", "gpt2-124m", "--precision", "bf16", "--place",
                                              "grads=nvme,optimizer=nvme", "--grads-state", state, "--json").out)
        if said[state]["grads_state"] != state:
            problems.append(f"plan says {said[state]['grads_state']}, not {state}")
    for lane in ("download", "write"):
        less = said["compute"]["lanes"][lane]["bytes"] - said["8bit"]["lanes"][lane]["bytes"]
        share = less / said["compute"]["parameters"]
        if not 0.74 < share < 0.78:
            problems.append(f"{lane} saves {share:.3f} bytes a parameter, not 0.75")
    return problems


def bad_input_is_refused():
    run, problems = copy_of("8bit", "bad"), []
    problems += program.refused("a typo", train("new", "8bits"), "--optimizer-state", "8bits", status=2)
    problems += program.refused("rounding in fp32", train("new", "fp32", "--rounding", "stochastic"),
                                "--rounding stochastic", "fp32", status=2)
    problems += program.refused("--previous", ["resume", path(run), "--previous", "--optimizer-state", "fp32"],
                                "--previous", "--optimizer-state")
    # A store of another format than run.json says.
    described = run_json(run)
    described["settings"]["optimizer_state"] = "bf16"
    for name, value in (("both say", None), ("run.json says", "bf16")):
        if value is not None:
            described["optimizer"] = value
            os.rename(path(run, "rank-0-of-1-8bit"), path(run, "rank-0-of-1-bf16"))
        program.write(path(run, "run.json"), json.dumps(described))
        for command in (["resume", path(run)], ["verify", path(run)], ["export", path(run), path("none")]):
            problems += program.refused(f"{command[0]}: {name}", command, "8bit", "bf16")
    problems += program.refused("a typo", train("new", "fp32", "--grads-state", "int8"), "--grads-state", "int8", status=2)
    done = program.limits.run(threads(2, program.command(*train("new", "fp32", "--grads-state", "8bit"))),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0 or "--grads-state 8bit is for one rank, and this job has 2" not in done.stderr:
        problems.append(f"gradients in 8 bits on two ranks: {done.stderr[-500:]}")
    frozen = ["--freeze", "embedding"]
    program.must(*train("frozen", "8bit", *frozen))
    program.must("resume", path("frozen"), "--steps", MORE)
    problems += program.refused("a conversion with --freeze", ["resume", path("frozen"), "--optimizer-state", "fp32"],
                                "--freeze")
    return problems


script_test.run(narrow_state_has_the_same_bits_everywhere, a_killed_run_goes_on_with_the_same_bits,
                a_resume_may_change_the_format, there_and_back_from_fp32_is_a_small_error,
                a_conversion_that_is_killed_leaves_a_run, another_number_of_ranks_may_convert_too,
                units_of_several_pieces_are_converted_whole, narrow_state_takes_less_space,
                gradients_in_8_bits_have_the_same_bits_everywhere, a_resume_may_change_the_gradients,
                gradients_in_8_bits_move_fewer_bytes, bad_input_is_refused)
