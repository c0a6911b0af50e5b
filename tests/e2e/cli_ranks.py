"""Several ranks of the program: what cannot work is refused by all of them, once, and before anything is written."""

import json
import os
import shutil
import subprocess

import hf_folder
from ranks_jobs import mpirun
from program import PROGRAM, SEQ, command, limits, must, scratch_folder, script_test, text, write

FOLDER = scratch_folder()
RUN = os.path.join(FOLDER, "run")
# Six sequences, for one, two, three or six ranks.
SHAPE = ("--seq", SEQ, "--micro-batch", 1, "--batch-tokens", 6 * SEQ, "--chunk-grains", 2)


def path(name):
    return os.path.join(FOLDER, name)


def data(name, seed):
    return write(path(name), text(seed, 40 * SEQ))


def train(*more, model="gpt2-tiny", files=None, run=RUN, shape=SHAPE, timeout_s=20):
    return command("train", "--model", model, "--init", "--data", files or data("data.txt", 1), "--run", run, "--steps",
                   2, *shape, "--rank-timeout", timeout_s, *more)


def job(*parts):
    """A job of (ranks, command, folder to work in) each: its end, with all that it said."""
    return limits.run(mpirun(*parts), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)


def refused(what, parts, *words, status=1, head="train"):
    """Why a job was not refused as it should be: one line, by one rank, and nothing made."""
    there = os.path.exists(RUN)
    done = job(*parts)
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    problems = []
    if done.returncode != status or len(said) != 1 or not said[0].startswith(f"spillway {head}: ") or done.stdout:
        problems.append(f"{what}: status {done.returncode}: {done.stdout} {done.stderr[-1500:]}")
    problems += [f"{what}: the message lacks '{word}': {said}" for word in words if word not in "".join(said)]
    return problems + ([f"{what}: {RUN} was made"] if not there and os.path.exists(RUN) else [])


def commands_for_one_rank_refuse_several():
    problems = []
    for name, arguments in (("verify", [RUN]), ("report", [RUN]), ("export", [RUN, path("out")]), ("doctor", [])):
        problems += refused(name, [(2, command(name, *arguments))], "2 ranks were started", "eval and generate", head=name)
    return problems


def other_flags_on_one_rank_are_refused_by_name():
    return (refused("a rate", [(1, train()), (1, train("--lr", 1e-3))], "rank 1 has another --lr than rank 0")
            + refused("a seed", [(2, train("--seed", 3)), (1, train())], "rank 2 has another --seed")
            + refused("a timeout", [(1, train()), (1, train(timeout_s=21))], "--rank-timeout")
            + refused("an unknown flag", [(1, train()), (1, train("--lrr", 1))], "rank 1: ", "--lrr", status=2)
            + refused("an unknown flag of all", [(3, train("--lrr", 1))], "train: train has no flag --lrr", status=2)
            + refused("help", [(1, train()), (1, train("--help"))], "--help", status=2)
            + refused("another folder", [(1, train()), (1, train(run=path("other")))], "rank 1 has another run folder"))


def help_is_given_once():
    done = job((3, command("train", "--help")))
    right = done.returncode == 0 and done.stdout.count("--batch-tokens") == 1
    return [] if right else [f"status {done.returncode}: {done.stdout} {done.stderr}"]


def other_inputs_are_refused():
    folders = [path(name) for name in "ab"]
    for seed, folder in enumerate(folders):
        os.makedirs(folder, exist_ok=True)
        data(os.path.join(folder, "data.txt"), seed)
        hf_folder.make(os.path.join(folder, "model"), hf_folder.config(n_layer=1 + seed), None)
    texts = [(2, train(files="data.txt"), folders[0]), (1, train(files="data.txt"), folders[1])]
    models = [(1, train(model="model"), folder) for folder in folders]
    return (refused("data", texts, "rank 2 has another text in --data")
            + refused("models", models, "rank 1 has another model than rank 0")
            + refused("data of one rank alone", [(1, train(files="data.txt"), folders[0]),
                                                 (1, train(files="data.txt"), FOLDER + "/..")], "rank 1: ", "data.txt"))


def another_program_or_command_is_refused():
    other = shutil.copy(PROGRAM, path("spillway"))
    with open(other, "ab") as file:
        file.write(b"more")
    return (refused("a program", [(1, train()), (1, [other, *train()[1:]])], "rank 1 has another program")
            + refused("a command", [(1, train()), (1, command("resume", RUN))], "rank 1 has another command"))


def numbers_of_ranks_that_cannot_work_are_refused():
    shape = ("--seq", SEQ, "--micro-batch", 2, "--batch-tokens", 6 * SEQ)
    return (refused("four ranks", [(4, train())], "--batch-tokens 384", "4 ranks", "use 512", "--micro-batch", status=2)
            + refused("speculation", [(2, train("--speculate", "always"))], "--speculate always", status=2)
            + refused("two ranks of pairs", [(2, train(shape=shape))], "--batch-tokens 384", "2 ranks", "use 512", status=2))


def a_rank_that_cannot_begin_leaves_nothing_of_any():
    drives = [path(name) for name in ("drive-0", "drive-1")]
    for drive in drives:
        os.makedirs(drive)
    problems = refused("a drive", [(2, train("--nvme", drives[0])), (1, train("--nvme", path("no-drive")))], "rank 2: ",
                       "no-drive")
    problems += refused("room", [(1, train("--nvme", drives[0])), (1, train("--nvme", drives[1] + ":64KiB"))], "rank 1: ",
                        "64")
    return problems + [f"{drive} holds {os.listdir(drive)}" for drive in drives if os.listdir(drive)]


def a_run_that_is_there_is_left_alone():
    must(*train(run=path("there"))[1:])
    before = sorted(os.listdir(path("there")))
    problems = refused("train", [(2, train(run=path("there")))], "there")
    problems += refused("resume", [(2, command("resume", path("nowhere")))], "run.json", head="resume")
    large = json.dumps({"version": 99, "padding": "x" * (2 << 20)})
    for what, content, word in (("a damaged run.json", '{"checksum": "", "version": 1}', "checksum"), ("a large one", large, "version 99")):
        write(path("there/run.json"), content)
        problems += refused(what, [(2, command("resume", path("there")))], "run.json", word, head="resume")
    return problems + ([] if sorted(os.listdir(path("there"))) == before else ["the run was changed"])


script_test.run(commands_for_one_rank_refuse_several, other_flags_on_one_rank_are_refused_by_name, help_is_given_once,
                other_inputs_are_refused, another_program_or_command_is_refused,
                numbers_of_ranks_that_cannot_work_are_refused, a_rank_that_cannot_begin_leaves_nothing_of_any, a_run_that_is_there_is_left_alone)
