"""Files of a run that are removed, moved or changed while it trains: it says that it is saved only where it is."""

import os
import resource
import shutil
import time

import program
from program import script_test
from small_runs import path, train

FOREVER, STOPPED = 10**6, 130


def wait_for_step(run, step):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if os.path.exists(path(run, "log.jsonl")) and any(line["step"] >= step for line in program.steps_of(path(run))):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{run} does not come to step {step}")


def ended_after(run, act, *more):
    """Lets a run train until `act` was done to its folder and it has ended by itself."""
    process = program.start(*train(run, "nvme", *more, steps=FOREVER))
    wait_for_step(run, 3)
    act()
    _, err = process.communicate(timeout=60)
    return process.returncode, err.splitlines()[-1] if err else "", err


def stopped_while_training(run, act):
    """The run goes on all the same, so it is stopped after a while."""
    process = program.start(*train(run, "nvme", steps=FOREVER))
    wait_for_step(run, 3)
    act()
    time.sleep(2.5)
    process.terminate()
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def wrong(what, code, last, expected_code, *words):
    problems = [] if code == expected_code else [f"{what}: status {code}"]
    return problems + [f"{what}: '{word}' is missing in: {last}" for word in words if word not in last]


def removed_files_are_written_anew():
    """The run stops after the step, and its open file has all that is needed to go on."""
    problems = []
    for name, more in ((program.STORE, ()), ("frozen.spillway", ("--freeze", "embedding"))):
        run = "removed-" + name
        code, last, _ = ended_after(run, lambda: os.remove(path(run, name)), *more)
        problems += wrong(run, code, last, 1, name + " was removed", "is saved", "spillway resume")
        if program.run("verify", path(run)).code != 0:
            problems.append(f"{run}: verify finds damage")
        done = program.steps_of(path(run))[-1]["step"]
        program.must("resume", path(run), "--steps", done + 1)
    return problems


def a_store_on_the_second_drive_is_looked_at_too():
    drives = [path("drive-1"), path("drive-2")]
    for drive in drives:
        os.makedirs(drive)
    more = [word for drive in drives for word in ("--nvme", drive)]
    code, last, _ = ended_after("two-drives", lambda: os.remove(os.path.join(drives[1], program.STORE)), *more)
    problems = wrong("two-drives", code, last, 1, os.path.join(drives[1], program.STORE) + " was removed", "is saved")
    return problems + ([] if program.run("verify", path("two-drives")).code == 0 else ["two-drives: verify finds damage"])


def moved_folders_are_said():
    code, last, _ = ended_after("moved", lambda: os.rename(path("moved"), path("elsewhere")))
    problems = wrong("moved", code, last, 1, "was moved to " + path("elsewhere"),
                     f"spillway resume {path('elsewhere')}` continues")
    done = program.steps_of(path("elsewhere"))[-1]["step"]
    program.must("resume", path("elsewhere"), "--steps", done + 1)
    return problems


def nothing_is_saved_in_a_removed_folder():
    code, last, err = ended_after("gone", lambda: shutil.rmtree(path("gone")))
    problems = wrong("gone", code, last, 1, "was removed")
    return problems + ([f"it claims to be saved: {last}"] if "is saved" in last or "is saved" in err else [])


def a_moved_store_has_its_name_again():
    os.makedirs(path("away"), exist_ok=True)
    code, err = stopped_while_training("linked", lambda: os.rename(path("linked", program.STORE), path("away", "s")))
    problems = wrong("linked", code, err, STOPPED, "has it again", "everything is saved")
    if not os.path.exists(path("linked", program.STORE)):
        problems.append("the store has not its name")
    return problems + ([] if program.run("verify", path("linked")).code == 0 else ["linked: verify finds damage"])


def run_json_and_log_are_written_anew():
    problems = []

    def change():
        os.remove(path("json", "log.jsonl"))
        program.write(path("json", "run.json"), "{}")

    code, err = stopped_while_training("json", change)
    problems += wrong("json", code, err, STOPPED, "run.json was changed", "log.jsonl was removed", "everything is saved")
    with open(path("json", "run.json.changed"), encoding="utf-8") as file:
        if file.read() != "{}":
            problems.append("the changed run.json was not kept")
    steps = [line["step"] for line in program.steps_of(path("json"))]
    if steps != list(range(1, len(steps) + 1)):
        problems.append("the log lacks steps")
    program.must("resume", path("json"), "--steps", steps[-1] + 1)
    return problems


def a_run_json_that_cannot_be_read_is_no_other():
    """The run stops, and the file stays where it is."""
    process = program.start(*train("unread", "nvme", steps=FOREVER))
    wait_for_step("unread", 3)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, 0))
    os.chmod(path("unread", "run.json"), 0o640)
    _, err = process.communicate(timeout=60)
    problems = wrong("unread", process.returncode, err.splitlines()[-1], 1, "run.json", "Too many open files")
    if os.path.exists(path("unread", "run.json.changed")) or program.run("verify", path("unread")).code != 0:
        problems.append("run.json was moved away")
    program.must("resume", path("unread"), "--steps", program.steps_of(path("unread"))[-1]["step"] + 1)
    return problems


script_test.run(removed_files_are_written_anew, a_store_on_the_second_drive_is_looked_at_too, moved_folders_are_said,
                nothing_is_saved_in_a_removed_folder, a_moved_store_has_its_name_again, run_json_and_log_are_written_anew,
                a_run_json_that_cannot_be_read_is_no_other)
