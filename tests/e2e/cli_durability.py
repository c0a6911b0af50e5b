"""`--durability none`: half the space and the same numbers; after a clean end it resumes, after any other it says why not."""

import os

import program
import runs
from program import STORE, script_test
from runs import path

STEPS, MORE, ENDLESS = 6, 10, 1000000
PLACES = {"nvme": "optimizer=nvme,grads=nvme", "mixed": "optimizer=host:50%/nvme", "device": "optimizer=device"}


class Run(runs.Run):
    data, steps, planned = (runs.text_file(seed=5, characters=20000),), STEPS, MORE
    flags = ("--place", PLACES["nvme"], "--save-every", 4, "--durability", "none")


def step_numbers():
    run = Run("step", "--durability", "step")
    if not os.path.isdir(run.path()):
        run.train().resume("--steps", MORE)
    return run.numbers()


def store_bytes(run):
    return os.path.getsize(path(run, STORE))


def a_clean_end_resumes():
    expected, problems = step_numbers(), []
    for place in PLACES:
        run = Run(f"clean-{place}", "--place", PLACES[place]).train()
        if "only a clean end commits" not in run.said:
            problems.append(f"{place}: not said when it commits: {run.said}")
        checked = program.run("verify", run.path())
        if checked.code != 0 or f"step {STEPS}:" not in checked.out:
            problems.append(f"{place}: verify after a clean end: {checked}")
        again = run.resume("--steps", MORE).err
        if f"continuing after step {STEPS}\n" not in again:
            problems.append(f"{place}: resume after a clean end: {again[-300:]}")
        if run.numbers() != expected:
            problems.append(f"{place}: not the numbers of --durability step")
    return problems


def half_the_space():
    step_numbers()
    Run("clean-device", "--place", PLACES["device"]).once()
    half, whole = store_bytes("clean-device"), store_bytes("step")
    problems = [] if half < 0.6 * whole else [f"one generation takes {half} bytes, two {whole}"]
    plans = [program.must("plan", "--model", "gpt2-tiny", "--durability", which, "--json").out
             for which in ("none", "step")]
    none, step = (program.json.loads(plan) for plan in plans)
    if 2 * none["store_bytes"] != step["store_bytes"] or none["commit_every_step"]:
        problems.append(f"plan: {none['store_bytes']} bytes without durability, {step['store_bytes']} with")
    placed = ["plan", "--model", "gpt2-tiny", *program.SHAPE, "--place", PLACES["nvme"]]
    disk = program.json.loads(program.must(*placed, "--json").out)["disk_bytes"]
    if not disk <= whole <= disk + (1 << 20):
        problems.append(f"plan: {disk} bytes of disk needed, the store has {whole}")
    said = program.must(*placed, "--explain").out
    if said.count("disk needed: ") != 1:
        problems.append(f"not one line of the disk that is needed: {said}")
    return problems


def any_other_end_is_refused():
    problems = []
    for place in PLACES:
        run = Run(f"killed-{place}", "--place", PLACES[place], steps=ENDLESS)
        process = program.start(*run.words())
        while not process.stderr.readline().startswith("step 20/"):
            pass
        process.kill()
        process.wait()
        process.stderr.close()
        words = [STORE, "--durability none", "did not end cleanly"]
        for arguments in (["resume", run.path()], ["export", run.path(), path("out")], ["verify", run.path()],
                          ["generate", run.path(), "--prompt", "a"]):
            problems += runs.refused(f"{arguments[0]} of {place}, killed", arguments, *words)
    return problems


def the_mark_is_cleared_by_going_on():
    """A resumed run that is killed lost the state of its clean end, and does not pretend otherwise."""
    run = Run("again").train().path()
    process = program.start("resume", run, "--steps", ENDLESS)
    while not process.stderr.readline().startswith(f"step {STEPS + 5}/"):
        pass
    process.kill()
    process.wait()
    process.stderr.close()
    return program.refused("resume after a resume that was killed", ["resume", run], "did not end cleanly")


def looking_does_not_clear_it():
    run = Run("looked").train().path()
    program.must("export", run, path("weights"))
    program.must("verify", run)
    program.must("resume", run, "--steps", STEPS)  # nothing left to do
    ended = program.run("resume", run, "--steps", STEPS + 1)
    return [] if ended.code == 0 else [f"resume after looking: {ended.err}"]


def it_cannot_be_changed_on_the_way():
    run = Run("changed").train().path()
    right = program.read_json(os.path.join(run, "run.json"))
    right["settings"]["durability"] = "step"
    program.write(os.path.join(run, "run.json"), program.json.dumps(right))
    return runs.refused("another durability", ["resume", run, "--steps", MORE], "--durability")


script_test.run(a_clean_end_resumes, half_the_space, any_other_end_is_refused, the_mark_is_cleared_by_going_on,
                looking_does_not_clear_it, it_cannot_be_changed_on_the_way)
