"""A run's weights on their way in: killed meanwhile, from shards of odd headers, with a line that says how fast."""

import json
import os
import re
import signal
import struct
import time

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 20000))
HIDDEN, LAYERS = 512, 5  # 16 million parameters, so that loading takes a while
KILLS_MOST = 20
LINE = re.compile(r"loaded the weights in ([\d.]+) s: ([\d.]+) GB read and ([\d.]+) GB written, ([\d.]+) GB/s")


def path(*names):
    return os.path.join(SCRATCH, *names)


def large_model():
    folder = path("large")
    if not os.path.isdir(folder):
        hf_folder.make(folder, {**hf_folder.config(), "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 8}, None)
        hf_folder.write_zeros(os.path.join(folder, "model.safetensors"),
                              hf_folder.shapes(hidden=HIDDEN, layers=LAYERS))
    return folder


def train(model, run, *more):
    return ["train", "--model", model, "--data", DATA, "--run", path(run), "--steps", 1, "--seq", 64, "--micro-batch",
            1, "--batch-tokens", 64, "--place", "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", *more]


def killed_when_loading(run):
    """run.json is written when the store is there, just before the first weight is loaded."""
    process = program.start(*train(large_model(), run))
    while not os.path.exists(path(run, "run.json")) and process.poll() is None:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()


def a_load_that_was_killed_left_no_run():
    """A folder that is there is refused in a sentence that says so, but the command that began it begins it again."""
    problems = []
    for kill in range(KILLS_MOST):
        run = f"killed-{kill}"
        killed_when_loading(run)
        resumed = program.run("resume", path(run))
        if resumed.code == 0:
            continue  # it was through already
        print(f"# killed within its load at attempt {kill + 1}")
        for command in (["resume", path(run)], ["export", path(run), path("out")]):
            problems += program.refused(f"{command[0]} of a run killed when loading", command, "first one",
                                        watched=[path(run)])
        begun = program.must(*train(large_model(), run))
        if "is begun again" not in begun.err or os.path.exists(os.path.join(path(run), "starting.json")):
            problems.append(f"the same command does not begin it again: {begun.err[-500:]}")
        return problems
    return [f"{KILLS_MOST} runs were killed, and all had loaded"]


def sharded(folder, spaces):
    """Two shards with headers of odd lengths, so that elements lie across the blocks in which files are read."""
    tensors = hf_folder.tensors(11)
    names = sorted(tensors)
    hf_folder.make(folder, hf_folder.config(), None)
    place = {}
    for shard, part in (("one.safetensors", names[::2]), ("two.safetensors", names[1::2])):
        header, body = hf_folder.split(hf_folder.safetensors({name: tensors[name] for name in part}))
        text = json.dumps(header).encode() + b" " * spaces
        with open(os.path.join(folder, shard), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + body)
        place.update(dict.fromkeys(part, shard))
    program.write(os.path.join(folder, "model.safetensors.index.json"), json.dumps({"weight_map": place}))
    return tensors


def every_alignment_comes_in_and_out():
    problems = []
    for spaces in range(4):
        source, run, out = path(f"odd-{spaces}"), path(f"odd-run-{spaces}"), path(f"odd-out-{spaces}")
        tensors = sharded(source, spaces)
        program.must("train", "--model", source, "--data", DATA, "--run", run, "--steps", 1, "--lr", 0,
                     "--weight-decay", 0, *program.SHAPE)
        program.must("export", run, out)
        with open(os.path.join(out, "model.safetensors"), "rb") as file:
            header, body = hf_folder.split(file.read())
        for name, (_, values) in tensors.items():
            first, end = header[name]["data_offsets"]
            if body[first:end] != struct.pack(f"<{len(values)}f", *values):
                problems.append(f"{spaces} spaces: {name} is another")
    return problems


def the_line_counts_what_moved():
    """Masters alone, and here the rounded weights: no moments."""
    parameters = sum(hf_folder.count(shape) for shape in hf_folder.shapes(hidden=HIDDEN, layers=LAYERS).values())
    ended = program.must(*train(large_model(), "counted", "--precision", "bf16"))
    line = LINE.search(ended.err)
    if line is None:
        return [f"no line: {ended.err[:500]}"]
    seconds, read, written, rate = map(float, line.groups())
    wanted = {"read": (read, 4 * parameters), "written": (written, (4 + 2) * parameters)}
    problems = [f"{what}: {found} GB, not {bytes_wanted / 1e9:.2f}" for what, (found, bytes_wanted) in wanted.items()
                if abs(found - bytes_wanted / 1e9) > 0.02]
    half = 0.005  # of the last digit of each number
    if not (rate - half) * (seconds - half) - 2 * half <= read + written <= (rate + half) * (seconds + half) + 2 * half:
        problems.append(f"{line.group(0)}: the rate is another")
    return problems


script_test.run(a_load_that_was_killed_left_no_run, every_alignment_comes_in_and_out, the_line_counts_what_moved)
