"""`--durability none`: half the space and the same numbers; after a clean end it resumes, after any other it says why not."""

import os

import program
from program import STORE, script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 20000))
STEPS, MORE, ENDLESS = 6, 10, 1000000
PLACES = {"nvme": "optimizer=nvme,grads=nvme", "mixed": "optimizer=host:50%/nvme", "device": "optimizer=device"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, place, durability, steps=STEPS):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
            "--schedule-steps", MORE, *program.SHAPE, "--place", PLACES[place], "--save-every", 4, "--durability",
            durability]


def step_numbers():
    if not os.path.isdir(path("step")):
        program.must(*train("step", "nvme", "step"))
        program.must("resume", path("step"), "--steps", MORE)
    return program.numbers_of(path("step"))


def store_bytes(run):
    return os.path.getsize(path(run, STORE))


def a_clean_end_resumes():
    expected, problems = step_numbers(), []
    for place in PLACES:
        run = f"clean-{place}"
        first = program.must(*train(run, place, "none"))
        if "only a clean end commits" not in first.err:
            problems.append(f"{place}: not said when it commits: {first.err}")
        checked = program.run("verify", path(run))
        if checked.code != 0 or f"step {STEPS}:" not in checked.out:
            problems.append(f"{place}: verify after a clean end: {checked}")
        again = program.run("resume", path(run), "--steps", MORE)
        if again.code != 0 or f"continuing after step {STEPS}\n" not in again.err:
            problems.append(f"{place}: resume after a clean end: {again.err[-300:]}")
        if program.numbers_of(path(run)) != expected:
            problems.append(f"{place}: not the numbers of --durability step")
    return problems


def half_the_space():
    step_numbers()
    if not os.path.isdir(path("clean-device")):
        program.must(*train("clean-device", "device", "none"))
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
        run = f"killed-{place}"
        process = program.start(*train(run, place, "none", steps=ENDLESS))
        while not process.stderr.readline().startswith("step 20/"):
            pass
        process.kill()
        process.wait()
        process.stderr.close()
        words = [STORE, "--durability none", "did not end cleanly"]
        for arguments in (["resume", path(run)], ["export", path(run), path("out")], ["verify", path(run)],
                          ["generate", path(run), "--prompt", "a"]):
            problems += program.refused(f"{arguments[0]} of {place}, killed", arguments, *words, watched=[path(run)])
    return problems


def the_mark_is_cleared_by_going_on():
    """A resumed run that is killed lost the state of its clean end, and does not pretend otherwise."""
    run = path("again")
    program.must(*train("again", "nvme", "none"))
    process = program.start("resume", run, "--steps", ENDLESS)
    while not process.stderr.readline().startswith(f"step {STEPS + 5}/"):
        pass
    process.kill()
    process.wait()
    process.stderr.close()
    return program.refused("resume after a resume that was killed", ["resume", run], "did not end cleanly")


def looking_does_not_clear_it():
    run = path("looked")
    program.must(*train("looked", "nvme", "none"))
    program.must("export", run, path("weights"))
    program.must("verify", run)
    program.must("resume", run, "--steps", STEPS)  # nothing left to do
    ended = program.run("resume", run, "--steps", STEPS + 1)
    return [] if ended.code == 0 else [f"resume after looking: {ended.err}"]


def it_cannot_be_changed_on_the_way():
    run = path("changed")
    program.must(*train("changed", "nvme", "none"))
    right = program.read_json(os.path.join(run, "run.json"))
    right["settings"]["durability"] = "step"
    program.write(os.path.join(run, "run.json"), program.json.dumps(right))
    return program.refused("another durability", ["resume", run, "--steps", MORE], "--durability", watched=[run])


script_test.run(a_clean_end_resumes, half_the_space, any_other_end_is_refused, the_mark_is_cleared_by_going_on,
                looking_does_not_clear_it, it_cannot_be_changed_on_the_way)
