"""File systems that are full, read-only or in memory: refused in one line, nothing left, and usable when mended."""

import json
import os
import re
import shutil
import tempfile

import disks
import hf_folder
import program
from program import STORE, script_test

SCRATCH = program.scratch_folder()
# Not where folders are compared: the kernel writes to images of mounted file systems when it likes.
IMAGES = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 20000))


def train(run, *more):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", run, "--steps", 2, *program.SHAPE,
            *(() if "--place" in more else ("--place", "optimizer=nvme")), *more]


def small_disk(name, mebibytes, options="loop"):
    """An ext4 file system of some MiB in a file."""
    image, folder = os.path.join(IMAGES, name + ".img"), os.path.join(SCRATCH, name)
    os.mkdir(folder)
    problems = disks.make_image(image, mebibytes)
    if not problems:
        disks.mount("-o", options, image, folder)
    return folder, problems


def fill(path, leave_bytes=0):
    """Takes all the room of a file system but some bytes."""
    space = os.statvfs(os.path.dirname(path))
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - leave_bytes))


def a_disk_too_small_for_the_store():
    disk, problems = small_disk("small", 4)
    run = os.path.join(SCRATCH, "run")
    problems += program.refused("a store beside", train(run, "--nvme", disk), disk, "available", watched=[SCRATCH])
    problems += program.refused("a whole run", train(os.path.join(disk, "run")), disk, "available", watched=[disk])
    problems += program.refused("a dry run", train(run, "--nvme", disk, "--dry-run"), disk, "available", "--nvme", watched=[SCRATCH])
    problems += program.refused("a plan", ["plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", disk], disk, "available",
                                watched=[disk])
    larger, more = small_disk("larger", 16)
    if os.listdir(larger) != ["lost+found"]:
        more.append(f"the larger disk holds {os.listdir(larger)}")
    ended = program.run(*train(run, "--nvme", larger))
    return problems + more + ([] if ended.code == 0 else [f"a disk with room: {ended.err}"])


def a_disk_that_fills_up_later():
    """The store has its room from the start; where the log has none, the run stops in one line and goes on later."""
    disk, problems = small_disk("later", 16)
    run, filler = os.path.join(disk, "run"), os.path.join(disk, "filler")
    program.must(*train(run))
    fill(filler, leave_bytes=32 << 10)
    ended = program.run("resume", run, "--steps", 2000)
    last = ended.err.strip().split("\n")[-1]
    if ended.code != 1 or not last.startswith("spillway resume: ") or "No space left" not in last:
        problems.append(f"a full disk: ended with {ended.code} and '{last}'")
    os.remove(filler)
    done = program.steps_of(run)[-1]["step"]
    ended = program.run("resume", run, "--steps", done + 5)
    if ended.code != 0 or program.steps_of(run)[-1]["step"] != done + 5:
        problems.append(f"with room again: {ended.err[-300:]}")
    return problems


def a_full_disk_costs_no_step():
    """Where the log's disk is full, the steps since the last commit are saved before the run fails, and a resume writes
    the lines that are missing."""
    disk, store = os.path.join(SCRATCH, "log-disk"), os.path.join(SCRATCH, "store-disk")
    os.mkdir(disk)
    os.mkdir(store)
    disks.mount("-t", "tmpfs", "-o", "size=1M", "none", disk)
    run, filler, problems = os.path.join(disk, "run"), os.path.join(disk, "filler"), []
    for more in (("--durability", "none"), ("--place", "optimizer=host", "--save-every", 100)):
        program.must(*train(run, "--nvme", store, *more))
        fill(filler, leave_bytes=8 << 10)
        ended = program.run("resume", run, "--steps", 90)
        last = ended.err.strip().split("\n")[-1]
        saved = re.search(r"^spillway resume: .*No space left.* step (\d+) is saved", last)
        os.remove(filler)
        if ended.code != 1 or saved is None or int(saved[1]) < 5:
            problems.append(f"{more}: status {ended.code}, {last!r}")
        else:
            resumed = program.run("resume", run, "--steps", 90)
            if resumed.code != 0 or f"continuing after step {saved[1]}\n" not in resumed.err:
                problems.append(f"{more}: after step {saved[1]}: {resumed.err[-500:]}")
            if [line["step"] for line in program.steps_of(run)] != list(range(1, 91)):
                problems.append(f"{more}: the log lacks steps")
        shutil.rmtree(run)
        os.remove(os.path.join(store, STORE))
    return problems


def a_disk_too_full_to_export():
    disk, problems = small_disk("export", 16)
    run = os.path.join(SCRATCH, "to-export")
    program.must(*train(run))
    fill(os.path.join(disk, "filler"), leave_bytes=100 << 10)
    problems += program.refused("export", ["export", run, os.path.join(disk, "out")], "No space left", watched=[disk])
    adapted = os.path.join(SCRATCH, "adapted")
    program.must(*train(adapted, "--lora", 64))
    for what, more in (("adapters", ()), ("a merged model", ("--merge",))):
        problems += program.refused(what, ["export", adapted, os.path.join(disk, "out"), *more], "No space left", watched=[disk])
    os.remove(os.path.join(disk, "filler"))
    program.must("export", adapted, os.path.join(disk, "out"), "--merge", "--dtype", "bf16")
    return problems


def a_disk_too_full_for_the_files_of_the_model():
    """The run's copies have no room: nothing is left, and with room the same command begins the run."""
    disk, store, model = (os.path.join(SCRATCH, name) for name in ("copies", "copies-store", "copies-model"))
    for folder in (disk, store):
        os.mkdir(folder)
    hf_folder.make(model, hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(1)))
    program.write(os.path.join(model, "vocab.json"), b"x" * 400000)
    disks.mount("-t", "tmpfs", "-o", "size=256k", "none", disk)
    command = train(os.path.join(disk, "run"), "--model", model, "--nvme", store)
    del command[1:4]
    problems = program.refused("copies", command, "vocab.json", "No space left", watched=[disk, store])
    program.write(os.path.join(model, "vocab.json"), b"x" * 40000)
    ended = program.run(*command)
    return problems + ([] if ended.code == 0 else [f"with room: {ended.err[-300:]}"])


def a_read_only_folder():
    disk = os.path.join(SCRATCH, "read-only")
    run = os.path.join(SCRATCH, "run-beside")
    os.mkdir(disk)
    if os.geteuid() == 0:
        disks.mount("--bind", "-o", "ro", disk, disk)
    else:
        os.chmod(disk, 0o500)
    problems = program.refused("a store beside", train(run, "--nvme", disk), disk, "writable", watched=[SCRATCH])
    return problems + program.refused("a whole run", train(os.path.join(disk, "run")), disk, watched=[SCRATCH])


def drives_are_looked_at_before_a_run():
    """`plan` and `--dry-run` refuse what `train` would, name the format that fits, and leave nothing."""
    memory, missing = os.path.join(SCRATCH, "small-memory"), os.path.join(SCRATCH, "missing")
    os.mkdir(memory)
    run, plan = os.path.join(SCRATCH, "never"), ["plan", "--model", "gpt2-tiny", *program.SHAPE]
    problems = []
    for what, command in (("plan", plan), ("dry run", train(run, "--dry-run"))):
        problems += program.refused(f"{what} in no folder", [*command, "--nvme", missing], missing, "make it", watched=[SCRATCH])
    there = program.run(*train(os.path.join(missing, "run"), "--dry-run"))
    if there.code != 0 or "the run's folder will be made" not in there.err or os.path.exists(missing):
        problems.append(f"a folder that a run makes: {there}")
    described = program.run(*plan, "--machine", "rtx4090", "--nvme", missing)
    if described.code != 0:
        problems.append(f"the drives of a described machine are looked for here: {described.err}")
    disks.mount("-t", "tmpfs", "-o", "size=100m", "tmpfs", memory)
    unnamed = program.run(*plan, cwd=memory)
    if unnamed.code != 0:
        problems.append(f"a plan without --nvme is refused for the folder where it is made: {unnamed.err}")
    disks.mount("-o", "remount,size=3m", "tmpfs", memory)
    for what, command in (("plan", plan), ("dry run", train(run, "--dry-run")), ("run", train(run))):
        problems += program.refused(f"{what} without direct I/O", [*command, "--nvme", memory], memory, "--allow-buffered")
        problems += program.refused(f"{what} without room", [*command, "--nvme", memory, "--allow-buffered"], memory, "3.00 MiB",
                                    "--optimizer-state 8bit it fits")
    if os.listdir(memory) or os.path.exists(run):
        problems.append(f"something is left: {os.listdir(memory)}")
    return problems


def a_drive_that_cannot_be_measured():
    """A plan that has nothing on it needs it for nothing else, and is made."""
    memory = os.path.join(SCRATCH, "unmeasured")
    os.mkdir(memory)
    disks.mount("-t", "tmpfs", "-o", "size=6m", "tmpfs", memory)
    ended = program.run("plan", "--model", "gpt2-tiny", *program.SHAPE, "--nvme", memory, "--allow-buffered", "--place",
                        "optimizer=device,grads=device,weights=device,acts=device", "--json")
    found = json.loads(ended.out) if ended.code == 0 else {"saves": ended.err, "predicted": {}}
    right = found["saves"] is None and found["predicted"].keys() == {"plain"} and "not predicted" in ended.err
    return [] if right else [f"status {ended.code}: {found['saves']}, {ended.err!r}"]


def no_direct_io():
    """Memory file systems have none: refused, unless the page cache is asked for, which works and is said."""
    memory = tempfile.mkdtemp(prefix="spillway-cli-", dir="/dev/shm")
    run = os.path.join(SCRATCH, "in-memory")
    try:
        problems = program.refused("a store in memory", train(run, "--nvme", memory), memory, "--allow-buffered",
                                   watched=[SCRATCH, memory])
        allowed = program.run(*train(run, "--nvme", memory, "--allow-buffered"))
        if allowed.code != 0 or "page cache" not in allowed.err or not os.path.isfile(os.path.join(memory, STORE)):
            problems.append(f"with --allow-buffered: {allowed.code}, {allowed.err[-300:]}")
        resumed = program.run("resume", run, "--steps", 4)
        if resumed.code != 0 or program.steps_of(run)[-1]["step"] != 4:
            problems.append(f"resume of it: {resumed.err[-300:]}")
        return problems
    finally:
        shutil.rmtree(memory, ignore_errors=True)


def bytes_read(*arguments):
    """Returns the bytes that a command, which must succeed, reads from drives and not from the page cache."""
    child = program.start(*arguments)
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise RuntimeError(f"{arguments[0]}: {said[-500:]}")
    return usage.ru_inblock * 512


def the_page_cache_is_not_believed():
    """After a flush that failed, it has what the drive never got. So a store is read from the drive when it is opened."""
    disk, problems = small_disk("buffered", 96, "loop,data=journal")
    run = os.path.join(SCRATCH, "run-buffered")
    ended = program.run(*train(run, "--nvme", disk, "--allow-buffered"))
    if ended.code != 0 or "page cache" not in ended.err:
        return problems + [f"without direct I/O: {ended}"]
    wanted = json.loads(program.must("verify", run, "--json").out)["bytes"]
    for arguments in (["verify", run], ["resume", run, "--steps", 2]):
        read = bytes_read(*arguments)
        problems += [] if read >= wanted else [f"{arguments[0]} reads {read} of {wanted} bytes from the drive"]
    return problems


script_test.run(a_full_disk_costs_no_step, a_disk_too_small_for_the_store, a_disk_that_fills_up_later,
                a_disk_too_full_to_export, a_disk_too_full_for_the_files_of_the_model, a_read_only_folder, drives_are_looked_at_before_a_run,
                a_drive_that_cannot_be_measured, no_direct_io, the_page_cache_is_not_believed)
