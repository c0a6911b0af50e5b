"""A run goes on with any number of ranks, and is read by one: the state is the same, byte for byte."""

import filecmp
import json
import os
import shutil
import subprocess

import hf_folder
import program
import runs
from program import SEQ, command, limits, must, read_json, refused, script_test, write
from ranks_jobs import SHAPE, far, mpirun
from runs import path

STEPS = 4
NVME = "weights=host,grads=nvme,optimizer=nvme"


class Run(runs.Run):
    data, steps, planned, shape = (runs.text_file(seed=1, characters=60 * SEQ),), STEPS, 3 * STEPS, SHAPE
    flags = ("--warmup", 2, "--micro-batch", 2)


def resume(ranks, name, steps, *more):
    return must("resume", path(name), "--steps", steps, *more, ranks=ranks)


def exported(name, to):
    must("export", path(name), path(to))
    return os.path.join(path(to), "model.safetensors")


def report(*arguments):
    return json.loads(must(*arguments, "--json").out)


def what_is_read(name):
    return (report("eval", path(name), "--data", *Run.data, "--tokens", 500)["loss"],
            report("verify", path(name))["grains"], must("generate", path(name), "--prompt", "a", "--max-tokens", 5, "--temperature", 0).out)


def stores_of_another_run_stay():
    """A run is not resumed into places that hold the stores of another run, which stay."""
    drive = path("for-two-runs")
    os.mkdir(drive)
    Run("first", "--nvme", drive, "--place", NVME).train()
    Run("second", "--nvme", drive, "--place", NVME, ranks=2).train()
    problems = refused("two ranks", ["resume", path("first"), "--steps", STEPS + 1], "exists already", ranks=2)
    resume(1, "first", STEPS + 1)
    resume(2, "second", STEPS + 1)
    return problems


def exports_on_the_way_are_of_all_ranks():
    problems = []
    for ranks, flags in ((1, ()), (2, ("--zero", 3, "--place", NVME)), (3, ("--zero", 1)), (2, ("--zero", 0))):
        name = f"exporting-{ranks}-{len(flags)}-{flags[1:2]}"
        Run(name, "--export-every", STEPS, "--val", "10%", *flags, ranks=ranks).train()
        written = os.path.join(path(name), "exports", f"step-{STEPS}", "model.safetensors")
        if not filecmp.cmp(written, exported(name, name + "-out"), shallow=False):
            problems.append(f"{ranks} ranks, {flags}: the export of the last step is not what was saved")
    return problems


def any_number_of_ranks_has_the_same_state():
    problems = []
    Run("moving", "--place", NVME, ranks=2).train()
    first, read = exported("moving", "export-2"), what_is_read("moving")
    for ranks in (3, 1, 4, 2):
        resume(ranks, "moving", STEPS)
        if not filecmp.cmp(first, exported("moving", f"export-from-{ranks}"), shallow=False):
            problems.append(f"other weights after a change to {ranks} ranks")
        if what_is_read("moving") != read:
            problems.append(f"{ranks} ranks: {what_is_read('moving')} is read, and not {read}")
        # The folder of a run may be moved, with the stores in it.
        os.rename(path("moving"), path("moved"))
        must("verify", path("moved"))
        os.rename(path("moved"), path("moving"))
    return problems


def training_goes_on_as_on_one_rank():
    Run("one", steps=3 * STEPS).train()
    Run("changing", "--zero", 0, ranks=2).train()
    resume(3, "changing", 2 * STEPS, "--zero", 3, "--place", NVME)
    resume(1, "changing", 3 * STEPS)
    return far("2, 3 and 1 ranks", path("changing"), path("one"))


def units_of_several_pieces_change_ranks():
    """A block of 19 grains, of which each rank keeps all, is copied in two pieces."""
    model = hf_folder.make(path("wide"), hf_folder.config(n_embd=160, n_layer=1, n_head=4), None)
    Run("pieces", "--zero", 0, model=(model, "--init"), ranks=2).train()
    first = exported("pieces", "pieces-2")
    resume(3, "pieces", STEPS, "--zero", 0)
    same = filecmp.cmp(first, exported("pieces", "pieces-3"), shallow=False)
    must("verify", path("pieces"))
    return [] if same else ["other weights after a change to 3 ranks"]


def with_store_of(name, rank, other):
    """A copy of a run in which one rank has the store that it has in another copy; either start may have written it."""
    made, store = path(f"{name}-{rank}-of-{other}"), os.path.join(f"rank-{rank}-of-3", "store.spillway")
    shutil.copytree(path(name), made)
    shutil.copy(os.path.join(path(other), store), os.path.join(made, store))
    file = os.path.join(made, "run.json")
    told = read_json(file)
    told["starts"] = read_json(os.path.join(path(other), "run.json"))["starts"] + told["starts"]
    write(file, json.dumps(told))
    return os.path.basename(made)


def readers_take_the_newest_step_of_all_ranks():
    """A kill between the commits of ranks leaves a store a step ahead. Nobody reads two steps as one."""
    Run("even", "--place", NVME, ranks=3).train()
    wanted, problems = exported("even", "even-out"), []
    for name, steps, save in (("ahead", 1, ()), ("far-ahead", 2, ()), ("rare", 2, ("--place", "optimizer=host", "--save-every", 100))):
        shutil.copytree(path("even"), path(name))
        resume(3, name, STEPS + steps, *save)
    for behind in (0, 2):
        uneven = with_store_of("ahead", behind, "even")
        if not filecmp.cmp(wanted, exported(uneven, uneven + "-out"), shallow=False):
            problems.append(f"rank {behind} behind: other weights than those of step {STEPS}")
    for name, other, words in (("far-ahead", "even", f"no commit up to step {STEPS}"), ("rare", "ahead", f"no commit of step {STEPS + 1}")):
        uneven = path(with_store_of(name, 0, other))
        problems += refused(f"{other} beside {name}", ["export", uneven, path("none")], words, watched=[uneven])
    return problems


def stores_of_two_copies_are_not_mixed():
    """Both have the step, and each its own commit of it: a resume on as many ranks or on others compares them."""
    Run("first-copy", "--place", NVME, ranks=3).train()
    shutil.copytree(path("first-copy"), path("second-copy"))
    for name in ("first-copy", "second-copy"):
        resume(3, name, STEPS + 1)
    mixed, problems = path(with_store_of("first-copy", 1, "second-copy")), []
    for ranks in (3, 2):
        ended = program.run("resume", mixed, "--steps", STEPS + 2, ranks=ranks)
        if ended.code == 0 or "give each rank the store that the run has of it" not in ended.err:
            problems.append(f"{ranks} ranks: status {ended.code}: {ended.err[-1500:]}")
        problems += [] if len(os.listdir(mixed)) == len(os.listdir(path("first-copy"))) else [f"{ranks} ranks: {os.listdir(mixed)}"]
    return problems


def what_differs_between_machines_is_refused():
    """Weights that a run leaves in the model's folder, and a flag that not every rank has."""
    problems = []
    for number in range(2):
        os.makedirs(path(f"machine-{number}"))
        hf_folder.make(os.path.join(path(f"machine-{number}"), "model"), hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(3 + number)))
    arguments = command(*Run("different", "--freeze", "blocks:0", model=("model",)).words())
    Run("before", ranks=2).train()
    for what, parts, words in (
            ("weights", [(1, arguments, path(f"machine-{number}")) for number in range(2)], "loaded different weights"),
            ("--previous", [(1, command("resume", path("before"), *more), path("machine-0")) for more in ((), ("--previous",))],
             "give it to every rank or to none")):
        done = limits.run(mpirun(*parts), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0 or words not in done.stderr:
            problems.append(f"{what}: status {done.returncode}: {done.stderr[-1500:]}")
    return problems + (["a start is left"] if os.path.exists(path("different")) else [])


def the_folder_of_a_run_is_one_for_all_ranks():
    """Each rank works in a folder of its own, and the run's is named from there."""
    here, there = path("here"), path("there")
    problems = []
    for name in (here, there):
        os.mkdir(name)

    def refused(what, arguments):
        parts = [(1, arguments, name) for name in (here, there)]
        done = limits.run(mpirun(*parts), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
        right = done.returncode != 0 and len(said) == 1 and "all ranks share" in said[0]
        return [] if right else [f"{what}: status {done.returncode}: {done.stderr[-1500:]}"]

    arguments = command(*Run("unseen").words())
    arguments[arguments.index(path("unseen"))] = "unseen"
    problems += refused("a new run", arguments)
    problems += [f"{name} is left" for name in os.listdir(here) + os.listdir(there)]
    Run("here/seen", ranks=2).train()
    problems += refused("a resume", command("resume", "seen"))
    Run("there/seen", ranks=2).train()
    return problems + refused("a resume of two runs", command("resume", "seen"))


def ranks_may_be_given_drives_of_their_own():
    """Unlike each other: each goes on with what it had, also where the next start does not name them."""
    for name in ("fast", "large"):
        os.mkdir(path(name))
    parts = [(1, command(*Run("given", "--nvme", path(name)).words())) for name in ("fast", "large")]
    done = limits.run(mpirun(*parts), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    resume(2, "given", STEPS + 1)
    found = [name for name in ("fast/rank-0-of-2", "large/rank-1-of-2") if os.listdir(path(name)) == ["store.spillway"]]
    return [] if len(found) == 2 else [f"stores are only in {found}: {done.stderr[-1000:]}"]


def stores_over_several_drives_change_ranks():
    """Each drive loses the old stores without a word, and keeps its folder."""
    drives, other, problems = [path("striped-1"), path("striped-2")], path("striped-3"), []
    for drive in (*drives, other):
        os.mkdir(drive)
    Run("striped", "--nvme", drives[0], "--nvme", drives[1]).train()
    changes = ((2, ["rank-0-of-2", "rank-1-of-2"], ()), (1, ["store.spillway"], ()), (2, [], ("--nvme", other)))
    for more, (ranks, wanted, where) in enumerate(changes, 1):
        done = resume(ranks, "striped", STEPS + more, *where)
        problems += [f"{ranks} ranks: {drive} has {os.listdir(drive) if os.path.exists(drive) else 'gone'}" for drive in drives
                     if not os.path.exists(drive) or sorted(os.listdir(drive)) != wanted]
        problems += [f"{ranks} ranks: {done.err}"] if "cannot be removed" in done.err else []
    return problems


def drives_of_ranks_are_named_by_their_numbers():
    problems = []
    for rank in range(3):
        os.mkdir(path(f"drive{rank}"))
    Run("drives", "--nvme", path("drive{local_rank}") + ":1GiB", "--durability", "none", ranks=2).train()
    resume(3, "drives", STEPS + 2)
    found = sorted(os.path.relpath(where, path()) for where, _, files in os.walk(path())
                   if "store.spillway" in files and "drive" in where)
    if found != [f"drive{rank}/rank-{rank}-of-3" for rank in range(3)]:
        problems.append(f"three ranks have stores in {found}")
    resume(1, "drives", STEPS + 4, "--nvme", path("drive0"))
    must("verify", path("drives"))
    return problems


script_test.run(any_number_of_ranks_has_the_same_state, exports_on_the_way_are_of_all_ranks,
                stores_of_another_run_stay, training_goes_on_as_on_one_rank, units_of_several_pieces_change_ranks,
                readers_take_the_newest_step_of_all_ranks, stores_of_two_copies_are_not_mixed, what_differs_between_machines_is_refused,
                the_folder_of_a_run_is_one_for_all_ranks, ranks_may_be_given_drives_of_their_own,
                stores_over_several_drives_change_ranks, drives_of_ranks_are_named_by_their_numbers)
