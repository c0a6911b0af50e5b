"""A run whose frozen weights are on NVMe reads them from the model's own files where these have them as they compute: the
store has no copy of them, and the bits are those of every other placement. A base that changes is named when it is read."""

import json
import os
import shutil
import subprocess

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 30000))
STEPS, HALF, HIDDEN = 6, 3, 160  # each matrix takes several grains
WEIGHTS = "model.safetensors"
LORA, FREEZE = ("--lora", 4), ("--freeze", "*.mlp.*,*wte*,*wpe*")
SAID = "read in place from"
MLP = "transformer.h.1.mlp.c_fc.weight"


def path(*names):
    return os.path.join(SCRATCH, *names)


def make(name, kind_of, shards=False):
    """A folder with one file of weights, or with one for each block and one for the rest."""
    folder = hf_folder.make(path(name), hf_folder.config(n_embd=HIDDEN), None)
    files = {}
    for tensor in TENSORS:
        block = tensor.split(".")[2] if shards and ".h." in tensor else "rest"
        files.setdefault(f"model-{block}.safetensors" if shards else WEIGHTS, []).append(tensor)
    for file, names in files.items():
        program.write(os.path.join(folder, file), hf_folder.safetensors({n: TENSORS[n] for n in names}, kind_of))
    if shards:
        index = {"weight_map": {n: file for file, names in files.items() for n in names}}
        program.write(os.path.join(folder, WEIGHTS + ".index.json"), json.dumps(index))
    return folder


TENSORS = {name: (shape, hf_folder.random_values(name, shape, 3))
           for name, shape in hf_folder.shapes(hidden=HIDDEN).items()}
FP32, BF16 = make("fp32", lambda name: "F32"), make("bf16", lambda name: "BF16")


def train(run, *more, model=BF16, steps=STEPS, weights="nvme", precision="bf16"):
    return ["train", "--model", model, "--data", DATA, "--run", path(run), "--steps", steps, "--schedule-steps", STEPS,
            "--warmup", 1, "--lr", "1e-2", *program.SHAPE, "--precision", precision, "--place",
            f"weights={weights},optimizer=host,grads=host", *(more if "--freeze" in more else (*LORA, *more))]


def exported(run):
    shutil.rmtree(path("out"), ignore_errors=True)
    program.must("export", path(run), path("out"), *(() if run.startswith("frozen") else ("--merge",)))
    with open(path("out", WEIGHTS), "rb") as file:
        return file.read()


def differ(what, one, other):
    problems = [] if program.numbers_of(path(one)) == program.numbers_of(path(other)) else [f"{what}: other numbers"]
    return problems + ([] if exported(one) == exported(other) else [f"{what}: other weights"])


def change(file, name):
    """Flips a bit in the middle of a tensor."""
    with open(file, "r+b") as content:
        length = int.from_bytes(content.read(8), "little")
        begin, end = json.loads(content.read(length))[name]["data_offsets"]
        offset = 8 + length + (begin + end) // 2
        content.seek(offset)
        byte = content.read(1)[0]
        content.seek(offset)
        content.write(bytes([byte ^ 1]))


def bits_are_those_of_every_placement():
    """From one file or several, in bf16 or fp32, with adapters or --freeze; and the store has no copy."""
    problems = []
    for name, model, precision, more in (
            ("one-bf16", BF16, "bf16", ()), ("one-fp32", FP32, "fp32", ()), ("frozen", FP32, "fp32", FREEZE),
            ("shards", make("shards", lambda tensor: "BF16", shards=True), "bf16", ())):
        runs = [f"{name}-{tier}" for tier in ("nvme", "host")]
        said = [program.must(*train(run, *more, model=model, precision=precision, weights=tier)).err
                for run, tier in zip(runs, ("nvme", "host"))]
        sizes = [os.path.getsize(path(run, program.STORE)) for run in runs]
        problems += differ(name, *runs)
        if SAID not in said[0] or model not in said[0] or SAID in said[1]:
            problems.append(f"{name}: the starts do not say where the weights are read")
        # Pages of checksums come in addition, and with --freeze the trained weights of the units.
        if sizes[0] > sizes[1] + (1 << 18 if not more else 1 << 21):
            problems.append(f"{name}: the store takes {sizes[0]} bytes, and {sizes[1]} with weights on the host")
    return problems


def other_types_are_copied():
    """A norm in another type alone keeps its unit from being read in place; so does a base that is rounded or quantized."""
    mixed = make("mixed", lambda tensor: "F32" if ".h.1.ln_1." in tensor else "BF16")
    problems, sizes = [], {}
    for name, model, more in (("mixed", mixed, ()), ("rounded", FP32, ()), ("int8", BF16, ("--base-format", "int8"))):
        said = program.must(*train(f"{name}-nvme", *more, model=model)).err
        program.must(*train(f"{name}-host", *more, model=model, weights="host"))
        problems += differ(name, f"{name}-nvme", f"{name}-host")
        sizes[name] = os.path.getsize(path(f"{name}-nvme", program.STORE))
        if (SAID in said) != (name != "rounded"):
            problems.append(f"{name}: {said[-800:]}")
    if not os.path.getsize(path("one-bf16-nvme", program.STORE)) < sizes["mixed"] < sizes["rounded"]:
        problems.append(f"sizes of stores: {sizes}")
    return problems


def a_plan_counts_no_copy():
    shape = ("--model", BF16, *program.SHAPE, *LORA, "--precision", "bf16", "--place", "weights=nvme", "--json")
    plan = json.loads(program.must("plan", *shape).out)
    rounded = json.loads(program.must("plan", "--model", FP32, *shape[2:]).out)
    elements = sum(len(values) for _, values in TENSORS.values())
    in_place, saved = plan["frozen"]["in_place_bytes"], rounded["disk_bytes"] - plan["disk_bytes"]
    problems = [] if rounded["frozen"]["in_place_bytes"] == 0 else ["what is rounded is said to be read in place"]
    if not 2 * elements <= in_place <= 2.5 * elements or saved != in_place:
        problems.append(f"{in_place} bytes in place, {saved} saved, of {elements} elements")
    if rounded["writes"]["start_bytes"] - plan["writes"]["start_bytes"] != in_place:
        problems.append("the start is said to write them")
    if SAID not in " ".join(program.must("plan", *shape[:-1]).out.split()):
        problems.append("plan does not say where they are read")
    return problems


def a_killed_run_goes_on():
    process = program.start(*train("killed", "--save-every", 1, steps=10**6))
    while process.poll() is None and not process.stderr.readline().startswith("step 3/"):
        pass
    process.kill()
    process.communicate()
    program.must(*train("lived", "--save-every", 1, steps=10))
    step = program.steps_of(path("killed"))[-1]["step"] if program.steps_of(path("killed")) else 0
    program.must("resume", path("killed"), "--steps", max(10, step))
    killed, lived = program.numbers_of(path("killed")), program.numbers_of(path("lived"))
    return [] if len(lived) == 10 and all(killed[step] == lived[step] for step in lived) else ["other numbers"]


def a_base_that_changed_is_named():
    """Before a resume, whose store has the checksums; and in a file of which a resume has none of them."""
    model = shutil.copytree(BF16, path("changing"))
    program.must(*train("changed", model=model, steps=HALF))
    before, problems = program.numbers_of(path("changed")), []
    change(os.path.join(model, WEIGHTS), MLP)
    for attempt in ("read", "read again"):
        ended = program.run("resume", path("changed"), "--steps", STEPS)
        last = ended.err.splitlines()[-1]
        problems += [f"{attempt}: {last}"] if ended.code != 1 else []
        problems += [f"{attempt}: '{word}' is missing in: {last}"
                     for word in (MLP, model, "has changed since the run began", "--model DIR") if word not in last]
    change(os.path.join(model, WEIGHTS), MLP)
    if program.numbers_of(path("changed")) != before:
        problems.append("the refused resumes left steps")
    program.must("resume", path("changed"), "--steps", STEPS)
    problems += differ("mended", "changed", "one-bf16-host")
    with open(os.path.join(model, WEIGHTS), "r+b") as file:
        file.truncate(os.path.getsize(file.name) - 1000)
    ended = program.run("resume", path("changed"), "--steps", STEPS + 1)
    return problems + ([] if ended.code == 1 and WEIGHTS in ended.err else [f"cut off: {ended.err[-300:]}"])


def a_base_that_moved_is_checked_whole():
    model = shutil.copytree(BF16, path("old"))
    program.must(*train("moved", model=model, steps=HALF))
    os.rename(model, path("new"))
    other = shutil.copytree(path("new"), path("other"))
    change(os.path.join(other, WEIGHTS), MLP)
    problems = program.refused("a changed copy", ["resume", path("moved"), "--steps", STEPS, "--model", other], MLP,
                               "--model DIR")
    said = program.must("resume", path("moved"), "--steps", STEPS, "--model", path("new")).err
    problems += [] if f"{SAID} {path('new')}" in " ".join(said.split()) else [f"the move: {said[-600:]}"]
    again = program.must("resume", path("moved"), "--steps", STEPS + 1).err
    problems += ["the next resume loads them once more"] if "loading the frozen" in again else []
    program.must(*train("stayed", steps=STEPS))
    program.must("resume", path("stayed"), "--steps", STEPS + 1)
    return problems + differ("moved", "moved", "stayed")


def ranks_read_their_parts():
    """Every stage has the bits of weights on the host."""
    problems = []
    for run, stage, tier in (("ranks", 0, "host"), *((f"stage-{stage}", stage, "nvme") for stage in (0, 1, 2, 3))):
        for arguments in (train(run, "--zero", stage, steps=HALF, weights=tier), ["resume", path(run), "--steps", STEPS]):
            done = program.limits.run(threads(2, program.command(*arguments)), stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return problems + [f"{run}: {done.stderr[-500:]}"]
            if (SAID in done.stderr) != (tier == "nvme"):
                problems.append(f"{run}: {done.stderr[-800:]}")
        problems += differ(run, run, "ranks")
    return problems


script_test.run(bits_are_those_of_every_placement, other_types_are_copied, a_plan_counts_no_copy, a_killed_run_goes_on,
                a_base_that_changed_is_named, a_base_that_moved_is_checked_whole, ranks_read_their_parts)
