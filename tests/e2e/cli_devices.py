"""--nvme with a block device: used itself, kept from others, never overwritten unasked, and as movable as a file."""

import atexit
import os
import shutil
import subprocess

import program
from program import STORE, script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 20000))
MIB = 1 << 20
STEPS, MORE, ENDLESS = 4, 7, 1000000
ENVIRONMENT = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def tool(*arguments):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, check=False, text=True,
                          env=ENVIRONMENT)


def device(name, mebibytes=32, sector=512):
    """A loop device on a new file, let go at the end of the test."""
    with open(path(name), "wb") as file:
        file.truncate(mebibytes * MIB)
    if os.geteuid() != 0 or shutil.which("losetup", path=ENVIRONMENT["PATH"]) is None:
        raise script_test.Skip("no root or loop device")
    made = tool("losetup", "--find", "--show", "--sector-size", sector, path(name))
    if made.returncode != 0:
        raise script_test.Skip("no root or loop device")
    atexit.register(tool, "losetup", "--detach", made.stdout.strip())
    return made.stdout.strip()


def content(name):
    """Returns the bytes of the device on this file."""
    with open(path(name), "rb") as file:
        return file.read()


def train(run, *places, steps=STEPS, more=()):
    nvme = [word for place in places for word in ("--nvme", place)]
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
            "--schedule-steps", MORE, *program.SHAPE, "--place", "optimizer=nvme,grads=nvme", *nvme, *more]


def expected():
    """The numbers of a run in a folder."""
    if not os.path.isdir(path("in-folder")):
        program.must(*train("in-folder", steps=MORE))
    return program.numbers_of(path("in-folder"))


def the_same_numbers_as_in_a_folder():
    problems = []
    os.mkdir(path("beside"))
    for sector in (512, 4096):
        run, disk = f"sectors-{sector}", device(f"disk-{sector}", sector=sector)
        places = [disk, path("beside")] if sector == 512 else [disk]
        said = program.must(*train(run, *places)).err
        if "taking" in said:
            problems.append(f"a small store was spoken of: {said}")
        program.must("resume", path(run), "--steps", MORE)
        if program.numbers_of(path(run)) != expected():
            problems.append(f"sectors of {sector} bytes give other numbers")
        checked = program.run("verify", path(run))
        if checked.code != 0 or f"step {MORE}: all" not in checked.out:
            problems.append(f"verify: {checked}")
        if os.path.exists(path(run, STORE)):
            problems.append("a file was made where a device was named")
    return problems


def what_it_holds_is_kept():
    disk = device("kept")
    program.must(*train("first", disk))
    before = content("kept")
    problems = program.refused("another run", train("second", disk), disk, "spillway store", "resume the run",
                               "--allow-overwrite-device", watched=[])
    if os.path.exists(path("second")) or content("kept") != before:
        problems.append("a refused start left something behind")
    program.must(*train("second", disk, more=["--allow-overwrite-device"]))
    problems += program.refused("the run whose store is gone", ["resume", path("first"), "--steps", MORE], disk,
                                "another run's")
    problems += program.refused("the run whose store is gone", ["verify", path("first")], disk, "another run's")
    formatted = device("formatted")
    if tool("mkfs.ext4", "-q", formatted).returncode != 0:
        problems.append("mkfs.ext4 failed")
    return problems + program.refused("a file system", train("third", formatted), formatted, "ext4 file system",
                                      "--allow-overwrite-device")


def what_does_not_fit():
    disk = device("little", mebibytes=2)
    problems = program.refused("a small device", train("little-run", disk), disk, "too small", "2.00 MiB")
    planned = program.run("plan", "--model", "gpt2-tiny", "--place", "optimizer=nvme", "--nvme", disk)
    if planned.code != 1 or f"{disk} is a block device, which a measurement would overwrite" not in planned.err:
        problems.append(f"plan would measure on a device: {planned}")
    if any(content("little")):
        problems.append("a device that was refused was written to")
    return problems


def in_use_and_killed():
    disk = device("busy")
    program.must(*train("busy-run", disk))
    other = program.start("resume", path("busy-run"), "--steps", ENDLESS)
    while not other.stderr.readline().startswith("step 10/"):
        pass
    problems = program.refused("a second process", ["resume", path("busy-run")], path("busy-run"), "in use by another process")
    problems += program.refused("another run", train("other-run", disk), disk, "in use by another process")
    other.kill()
    other.stderr.close()
    resumed = program.run("resume", path("busy-run"), "--steps", program.steps_of(path("busy-run"))[-1]["step"] + 5)
    other.wait()
    if resumed.code != 0 or "continuing after step" not in resumed.err:
        problems.append(f"right after kill -9: {resumed.err[-300:]}")
    return problems


def moves():
    """From a device to a folder, to a device that a link names, and on where the link leads elsewhere."""
    disk, second = device("here"), device("there", sector=4096)
    os.mkdir(path("folder"))
    run, link = path("moved"), path("my-drive")
    program.must(*train("moved", disk, steps=2))
    tool("cp", disk, path("folder", STORE))
    program.must("resume", run, "--steps", 3, "--nvme", path("folder"))
    problems = [] if os.path.getsize(path("folder", STORE)) < 32 * MIB else ["scratch of the device was not given back"]
    tool("dd", f"if={path('folder', STORE)}", f"of={second}", "bs=1M", "conv=fsync")
    os.symlink(second, link)
    program.must("resume", run, "--steps", 5, "--nvme", link)
    if program.read_json(os.path.join(run, "run.json"))["settings"]["nvme"] != [link]:
        problems.append("run.json has another name than that of the link")
    tool("dd", f"if={second}", f"of={disk}", "bs=1M", "conv=fsync")
    os.remove(link)
    os.symlink(disk, link)
    program.must("resume", run, "--steps", MORE)
    return problems + ([] if program.numbers_of(run) == expected() else ["the numbers changed on the way"])


script_test.run(the_same_numbers_as_in_a_folder, what_it_holds_is_kept, what_does_not_fit, in_use_and_killed, moves)
