"""A run with --freeze that began from a Hugging Face folder reads its frozen weights from there, its base. It keeps only
their checksums, so its folder is small and can be moved; a base that is gone or has changed is refused by name."""

import array
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import time

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 30000))
STEPS, HALF, GRAIN_ELEMS, PAGE_BYTES, SUM_BYTES = 6, 3, 16384, 4096, 8
FROZEN_FILE, WEIGHTS = "frozen.spillway", "model.safetensors"
HIDDEN = 160  # of which each matrix takes several grains
PATTERN = ("--freeze", "*.mlp.*,*wte*,*wpe*")
MLP, ATTENTION = "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.attn.c_attn.weight"


def path(*names):
    return os.path.join(SCRATCH, *names)


def drawn(seed):
    return {name: (shape, hf_folder.random_values(name, shape, seed))
            for name, shape in hf_folder.shapes(hidden=HIDDEN).items()}


def rounded(tensors):
    """The same tensors with the values that bf16 has of them."""
    found = {}
    for name, (shape, values) in tensors.items():
        short = hf_folder.packed(values, "BF16")
        wide = array.array("f", b"".join(b"\0\0" + short[at:at + 2] for at in range(0, len(short), 2)))
        found[name] = (shape, list(wide))
    return found


def make(name, tensors, kind="F32"):
    folder = hf_folder.make(path(name), hf_folder.config(n_embd=HIDDEN), None)
    program.write(os.path.join(folder, WEIGHTS), hf_folder.safetensors(tensors, lambda _: kind))
    return folder


def make_shards(name, tensors):
    """In two files, the second with the second block."""
    folder = hf_folder.make(path(name), hf_folder.config(n_embd=HIDDEN), None)
    shards = {"model-00001-of-00002.safetensors": {n: t for n, t in tensors.items() if ".h.1." not in n},
              "model-00002-of-00002.safetensors": {n: t for n, t in tensors.items() if ".h.1." in n}}
    for shard, some in shards.items():
        program.write(os.path.join(folder, shard), hf_folder.safetensors(some))
    index = {"weight_map": {n: shard for shard, some in shards.items() for n in some}}
    program.write(os.path.join(folder, WEIGHTS + ".index.json"), json.dumps(index))
    return folder


TENSORS = drawn(3)
BASE = make("base", TENSORS)


def train(run, *more, model=BASE, steps=STEPS):
    return ["train", "--model", model, "--data", DATA, "--run", path(run), "--steps", steps, "--schedule-steps", STEPS,
            "--warmup", 1, "--lr", "1e-2", *program.SHAPE, "--place", "optimizer=nvme", *PATTERN, *more]


def exported(run, *more):
    shutil.rmtree(path("out"), ignore_errors=True)
    program.must("export", path(run), path("out"), *more)
    with open(path("out", WEIGHTS), "rb") as file:
        return file.read()


def readers(run):
    """The commands that read the weights of a run."""
    shutil.rmtree(path("none"), ignore_errors=True)
    return {"resume": ["resume", path(run), "--steps", STEPS], "export": ["export", path(run), path("none")],
            "eval": ["eval", path(run), "--data", DATA, "--tokens", 64], "verify": ["verify", path(run)],
            "generate": ["generate", path(run), "--prompt", "a", "--max-tokens", 2]}


def refused_by_all(what, run, *words, more=()):
    """No reader changes anything but resume, which opens the run first and keeps its last commit."""
    problems = []
    for reader, command in readers(run).items():
        command += more
        if reader == "resume":
            before = program.read_json(path(run, "run.json"))["settings"]["model"], program.numbers_of(path(run))
            ended = program.run(*command)
            last = ended.err.splitlines()[-1]
            problems += [f"{what}: resume: status {ended.code}: {last}"] if ended.code != 1 else []
            problems += [f"{what}: resume: the message lacks '{word}': {last}" for word in words if word not in last]
            after = program.read_json(path(run, "run.json"))["settings"]["model"], program.numbers_of(path(run))
            problems += [] if before == after else [f"{what}: resume changed {before} to {after}"]
        elif reader == "verify":
            problems += [] if program.run(*command).code == 1 else [f"{what}: verify finds nothing"]
        else:
            problems += program.refused(f"{what}: {reader}", command, *words, watched=[path(run)])
    return problems


def place_of(file, name):
    """The offset of a tensor's data, and their bytes."""
    with open(file, "rb") as content:
        length = int.from_bytes(content.read(8), "little")
        begin, end = json.loads(content.read(length))[name]["data_offsets"]
    return 8 + length + begin, end - begin


def flip(file, offset, bits=1):
    with open(file, "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ bits]))


def change(file, name, bits=1, at=None):
    """Changes a byte in the middle of a tensor. Returns its offset."""
    offset, size = place_of(file, name)
    offset += size // 2 if at is None else at
    flip(file, offset, bits)
    return offset


def to_infinity(file, name):
    """The changes that make a tensor's first element infinite."""
    with open(file, "rb") as content:
        content.seek(place_of(file, name)[0])
        value = content.read(4)
    return [(old ^ new, at) for at, (old, new) in enumerate(zip(value, struct.pack("<f", math.inf)))]


def a_run_keeps_only_the_checksums():
    program.must(*train("small"))
    plan = json.loads(program.must("plan", "--model", BASE, *program.SHAPE, *PATTERN, "--json").out)["frozen"]
    described = hf_folder.make(path("described"), hf_folder.config(n_embd=HIDDEN), None)
    copied = json.loads(program.must("plan", "--model", described, *program.SHAPE, *PATTERN, "--json").out)["frozen"]
    program.must(*train("copied", "--init"))
    sizes, problems = [os.path.getsize(path(run, FROZEN_FILE)) for run in ("small", "copied")], []
    grains = (sizes[1] - sizes[0]) // (4 * GRAIN_ELEMS)
    if grains < 10 or sizes[0] != PAGE_BYTES + SUM_BYTES * (grains + 1):
        problems.append(f"{FROZEN_FILE} has {sizes} bytes for {grains} grains")
    if [plan["bytes"], copied["bytes"]] != sizes or not plan["in_model"] or copied["in_model"]:
        problems.append(f"plan: {plan} from a folder, {copied} of random weights, for {sizes} bytes")
    shown = program.must("plan", "--model", BASE, *program.SHAPE, *PATTERN).out
    return problems + ([] if "which stay in the model's folder" in " ".join(shown.split())
                       else ["plan does not say where they are"])


def a_resume_reads_the_base():
    """From one file or shards of it, in fp32 or bf16, on one rank or two."""
    problems, narrow = [], rounded(TENSORS)
    for name, model in (("one-file", BASE), ("shards", make_shards("shard-folder", TENSORS)),
                        ("bf16", make("bf16-folder", TENSORS, "BF16"))):
        program.must(*train(name, model=model))
        program.must(*train(name + "-parts", model=model, steps=HALF))
        program.must("resume", path(name + "-parts"), "--steps", STEPS)
        if program.numbers_of(path(name)) != program.numbers_of(path(name + "-parts")):
            problems.append(f"{name}: other numbers")
        if exported(name) != exported(name + "-parts"):
            problems.append(f"{name}: other weights")
    if exported("one-file") != exported("shards"):
        problems.append("shards: other weights than of one file")
    # The digest is that of the values: the same ones in another type are the same base.
    program.must("verify", path("bf16"), "--model", make("wide-folder", narrow))
    return problems


def ranks_read_the_base():
    problems, expected = [], None
    for stage in (0, 2):
        run = f"stage-{stage}"
        for arguments in (train(run, "--zero", stage, steps=HALF), ["resume", path(run), "--steps", STEPS]):
            done = program.limits.run(threads(2, program.command(*arguments)), stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return [f"{run}: {done.stderr[-500:]}"]
        weights = exported(run)
        expected = expected or weights
        problems += [] if weights == expected else [f"{run}: other weights"]
    whole = ["train", "--model", BASE, "--data", DATA, "--run", path("shared"), "--steps", HALF, *program.SHAPE,
             "--freeze", "embedding,blocks:0", "--zero", 3]
    done = program.limits.run(threads(2, program.command(*whole)), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False)
    if done.returncode != 0:
        return problems + [f"--zero 3: {done.stderr[-500:]}"]
    program.must("verify", path("shared"))
    program.must("resume", path("shared"), "--steps", HALF + 1)
    return problems


def a_base_that_is_gone_is_refused():
    model = shutil.copytree(BASE, path("going"))
    program.must(*train("gone", model=model, steps=HALF))
    os.rename(model, path("went"))
    problems = []
    problems += refused_by_all("no base", "gone", model, "--model DIR")
    os.mkdir(model)
    shutil.copy(path("went", "config.json"), model)
    problems += refused_by_all("an empty base", "gone", model, "--model DIR")
    with open(path("went", WEIGHTS), "rb") as file:
        whole = file.read()
    with open(os.path.join(model, WEIGHTS), "wb") as file:
        file.write(whole[:-1000])
    return problems + refused_by_all("a cut off base", "gone", WEIGHTS, "--model DIR")


def a_base_that_goes_while_the_run_trains_is_named_at_its_end():
    """All that is the run's is saved, but a resume needs the base."""
    model = shutil.copytree(BASE, path("leaving"))
    process = program.start(*train("left", model=model, steps=10**6))
    while process.poll() is None and not process.stderr.readline().startswith("step 3/"):
        pass
    os.rename(model, path("left-for"))
    process.terminate()
    _, err = process.communicate(timeout=60)
    words = [f"the model {model}", "no longer there", "--model DIR", "everything is saved"]
    return [f"'{word}' is missing in: {err[-600:]}" for word in words if word not in err]


def a_base_that_was_moved_is_named_anew():
    model = shutil.copytree(BASE, path("old-place"))
    program.must(*train("moved", model=model, steps=HALF))
    program.must(*train("stayed"))
    before, new = exported("moved"), path("new-place")
    os.rename(model, new)
    problems = [] if exported("moved", "--model", new) == before else ["export: other weights"]
    for what, command in readers("moved").items():
        if what not in ("resume", "export"):
            program.must(*command, "--model", new)
    program.must("resume", path("moved"), "--steps", STEPS, "--model", os.path.relpath(new))
    if program.read_json(path("moved", "run.json"))["settings"]["model"] != new:
        problems.append("run.json does not name the new place")
    problems += [] if program.numbers_of(path("moved")) == program.numbers_of(path("stayed")) else ["other numbers"]
    return problems + ([] if exported("moved") == exported("stayed") else ["other weights"])


def a_run_that_was_moved_is_used_elsewhere():
    """Its folder and the base are copied to other places, as to another machine, and the old ones are gone."""
    model = shutil.copytree(BASE, path("machine-1-model"))
    program.must(*train("machine-1", model=model, steps=HALF))
    os.rename(model, path("machine-2-model"))
    os.rename(path("machine-1"), path("machine-2"))
    weights = program.must("eval", path("machine-2"), "--data", DATA, "--tokens", 640, "--model", path("machine-2-model"))
    program.must("resume", path("machine-2"), "--steps", STEPS, "--model", path("machine-2-model"))
    program.must(*train("machine-3"))
    return ([] if weights.out else ["eval prints nothing"]) + (
        [] if exported("machine-2") == exported("machine-3") else ["other weights"])


def a_base_that_changed_is_refused():
    """By its tensor, file and grain; a tensor that is trained may have changed."""
    problems = []
    for name, model, file in (("changed", shutil.copytree(BASE, path("changing")), WEIGHTS),
                              ("changed-shard", make_shards("changing-shards", TENSORS), "model-00002-of-00002.safetensors")):
        weights = os.path.join(model, file)
        program.must(*train(name, model=model, steps=HALF))
        change(weights, ATTENTION)
        program.must("verify", path(name))
        before = exported(name)
        for changes in ([(1, None)], [(0x7F, 3)], to_infinity(weights, MLP)):  # one bit, a large number, an infinity
            offset = [change(weights, MLP, *each) for each in changes][-1]
            problems += refused_by_all("a changed base", name, MLP, weights, "grain", "--model DIR")
            ended = program.run("verify", path(name), "--json")
            bad = json.loads(ended.out)["bad"]
            if [(each["tensor"], each["file"], each["state"], each["unit"]) for each in bad] != [(MLP, weights, "weights", 2)]:
                problems.append(f"verify names {bad}")
            elif not 0 <= offset - bad[0]["offset"] < 4 * GRAIN_ELEMS:
                problems.append(f"verify names the offset {bad[0]['offset']} for {offset}")
            if MLP not in program.run("verify", path(name)).out:
                problems.append("verify does not print the tensor")
            for each in changes:
                change(weights, MLP, *each)
        problems += [] if exported(name) == before else [f"{name}: other weights"]
        program.must("resume", path(name), "--steps", HALF + 1)
    return problems


def another_model_is_refused():
    program.must(*train("own", steps=HALF))
    other = make("other-model", drawn(4))
    small = hf_folder.make(path("smaller"), hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(3)))
    problems = []
    problems += refused_by_all("another model", "own", "another model", "--model DIR", more=["--model", other])
    problems += refused_by_all("a smaller model", "own", "shape", more=["--model", small])
    # Damage of the checksums is not that of the model.
    for offset in (8, PAGE_BYTES + 3, os.path.getsize(path("own", FROZEN_FILE)) - 1):
        flip(path("own", FROZEN_FILE), offset)
        problems += program.refused(f"byte {offset} of the checksums", ["export", path("own"), path("none")], FROZEN_FILE)
        flip(path("own", FROZEN_FILE), offset)
    program.must("resume", path("own"), "--steps", HALF + 1)
    program.must(*train("whole", "--init", steps=1))
    return (problems
            + program.refused("a run without a base", ["export", path("whole"), path("none"), "--model", BASE],
                              "leave out --model")
            + program.refused("no run", ["export", BASE, path("none"), "--model", BASE], "leave out --model"))


def adapters_are_small_and_move_without_their_base():
    """A run with --lora has its adapters and the checksums of all tensors of the base."""
    def adapters(run, **more):
        command = train(run, **more)
        return [*command[:-len(PATTERN)], "--lora", 4]

    model, problems = shutil.copytree(BASE, path("base-of-adapters")), []
    weights = os.path.join(model, WEIGHTS)
    program.must(*adapters("adapters", model=model))
    program.must(*adapters("adapters-parts", model=model, steps=HALF))
    beside = sum(len(content) for name, content in program.tree(path("adapters")).items()
                 if content is not None and name != program.STORE)
    if beside > os.path.getsize(weights) // 100:
        problems.append(f"a run of adapters takes {beside} bytes beside its store, and its base {os.path.getsize(weights)}")
    change(weights, ATTENTION)
    for what, command in readers("adapters-parts").items():
        if what not in ("export", "verify"):
            ended = program.run(*command)
            problems += [f"{what}: status {ended.code}"] if ended.code != 1 else []
            problems += [f"{what} lacks '{word}': {ended.err[-300:]}" for word in (ATTENTION, weights, "grain")
                         if word not in ended.err.splitlines()[-1]]
    change(weights, ATTENTION)
    os.rename(model, path("new-base-of-adapters"))
    os.rename(path("adapters-parts"), path("adapters-elsewhere"))
    program.must("resume", path("adapters-elsewhere"), "--steps", STEPS, "--model", path("new-base-of-adapters"))
    if program.numbers_of(path("adapters")) != program.numbers_of(path("adapters-elsewhere")):
        problems.append("other numbers")
    losses = [json.loads(program.must("eval", path(run), "--data", DATA, "--tokens", 640, "--precision", "fp32", "--json",
                                      "--model", path("new-base-of-adapters")).out)["loss"]
              for run in ("adapters", "adapters-elsewhere")]
    return problems + ([] if losses[0] == losses[1] else [f"losses {losses}"])


def an_export_while_the_run_goes_on_reads_the_base():
    """A base that changes after it was loaded reaches no export."""
    model = shutil.copytree(BASE, path("base-of-exports"))
    program.must(*train("exports", "--export-every", HALF, model=model))
    with open(path("exports", "exports", f"step-{STEPS}", WEIGHTS), "rb") as file:
        problems = [] if file.read() == exported("exports") else ["other weights"]
    process = program.start(*train("running", "--export-every", 5, "--keep", 3, model=model, steps=10**6))
    end = time.monotonic() + 60
    while not os.path.exists(path("running", "exports", "step-5")) and time.monotonic() < end:
        time.sleep(0.02)
    change(os.path.join(model, WEIGHTS), MLP)
    _, err = process.communicate(timeout=60)
    last = err.splitlines()[-1]
    if process.returncode != 1 or MLP not in last:
        problems.append(f"status {process.returncode}: {last}")
    change(os.path.join(model, WEIGHTS), MLP)
    done = program.steps_of(path("running"))[-1]["step"]
    program.must("resume", path("running"), "--steps", done + 1)
    return problems


def a_kill_before_the_first_commit():
    """The checksums are there before the first commit. A start that was killed around it is begun again or resumed."""
    program.must(*train("unkilled"))
    expected, problems, outcomes = program.numbers_of(path("unkilled")), [], set()
    for attempt in range(8):
        run = f"killed-{attempt}"
        process = program.start(*train(run, "--save-every", 1))
        end = time.monotonic() + 60
        while not os.path.exists(path(run, FROZEN_FILE)) and process.poll() is None and time.monotonic() < end:
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ended = program.run("resume", path(run), "--steps", STEPS)
        outcomes.add("resumed" if ended.code == 0 else "begun again")
        if ended.code != 0:
            problems += program.wrong_refusal(f"{run}", ended, 1, ["train"], ["resume"])
            program.must(*train(run))
        if program.numbers_of(path(run)) != expected:
            problems.append(f"{run}: other numbers")
        if len(os.listdir(path(run))) != len(os.listdir(path("unkilled"))):
            problems.append(f"{run} holds {os.listdir(path(run))}")
    print(f"# {sorted(outcomes)}", flush=True)
    return problems


script_test.run(a_run_keeps_only_the_checksums, a_resume_reads_the_base, ranks_read_the_base,
                a_base_that_is_gone_is_refused, a_base_that_goes_while_the_run_trains_is_named_at_its_end,
                a_base_that_was_moved_is_named_anew,
                a_run_that_was_moved_is_used_elsewhere, a_base_that_changed_is_refused, another_model_is_refused,
                adapters_are_small_and_move_without_their_base,
                an_export_while_the_run_goes_on_reads_the_base, a_kill_before_the_first_commit)
