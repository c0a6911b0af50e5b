"""Blocks in tiles, as a user has them: --tiles of train and plan, and what the other commands make of such a run."""

import json
import os

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(9, 30000))
STEPS, HALF = 8, 3
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, tiles, *more, place="optimizer=nvme", model=("gpt2-tiny", "--init"), steps=STEPS, rate="2e-3"):
    return ["train", "--model", *model, "--data", DATA, "--run", path(run), "--steps", steps, "--schedule-steps",
            STEPS, "--val", "5%", "--lr", rate, *program.SHAPE, "--place", place, "--tiles", tiles, *more]


def exported(source, name):
    program.must("export", source, path(name))
    with open(path(name, "model.safetensors"), "rb") as file:
        return file.read()


def exports_do_not_show_tiles():
    """A rate of zero leaves the weights as they began: random ones, and those of a folder."""
    folder = hf_folder.make(path("folder"), hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(3)))
    problems = []
    for name, model in (("random", ("gpt2-tiny", "--init")), ("read", (folder,))):
        found = []
        for tiles in (1, 2, 4):
            run = f"{name}-{tiles}"
            program.must(*train(run, tiles, model=model, steps=1, rate=0))
            found.append(exported(path(run), run + "-weights"))
            problems += [f"{name}: {tiles} tiles show" for tiles, content in zip((2, 4), found[1:])
                     if content != found[0]]
    return problems


def losses_are_those_of_whole_blocks():
    losses = {}
    for tiles in (1, 4):
        program.must(*train(f"losses-{tiles}", tiles, "--precision", "fp32"))
        losses[tiles] = [line["loss"] for line in program.steps_of(path(f"losses-{tiles}"))]
    return [f"step {step}: {a} and {b}" for step, (a, b) in enumerate(zip(losses[1], losses[4]), 1)
            if not abs(a - b) <= 2e-5 * a] + ([] if len(losses[4]) == STEPS else ["too few steps"])


def resuming_goes_on_in_tiles():
    """To the bits of the run without a stop, with everything placed otherwise; run.json knows the tiles."""
    program.must(*train("straight", 4))
    program.must(*train("stopped", 4, steps=HALF, place=EVERYTHING_AWAY))
    program.must("resume", path("stopped"), "--steps", STEPS, "--place", "optimizer=host")
    problems = []
    if program.numbers_of(path("stopped")) != program.numbers_of(path("straight")):
        problems.append("other numbers")
    if exported(path("stopped"), "stopped-weights") != exported(path("straight"), "straight-weights"):
        problems.append("other weights")
    if program.read_json(path("stopped", "run.json"))["settings"].get("tiles") != 4:
        problems.append("run.json does not know the tiles")
    return problems + program.refused("other tiles", ["resume", path("stopped"), "--tiles", 2], "--tiles", status=2)


def a_run_in_tiles_speaks():
    """As its export does in whole blocks, in fp32, where the tokens are far from even."""
    program.must(*train("speaker", 2))
    exported(path("speaker"), "speaker-weights")
    say = ("--prompt", "the ", "--max-tokens", 20, "--temperature", 0, "--precision", "fp32")
    texts = [program.must("generate", path(source), *say).out for source in ("speaker", "speaker-weights")]
    return [] if texts[0] == texts[1] and len(texts[0]) == 4 + 20 + 1 else [f"{texts[0]!r} and {texts[1]!r}"]


def device_bytes(tiles, *more):
    plan = json.loads(program.must("plan", "--json", "--tiles", tiles, *more).out)
    return plan["peak_bytes"]["device"]


def plans_of_wide_layers_are_small():
    """One layer of 2,048 columns, all of it on NVMe: its weights in fp32 are 192 MiB."""
    wide = hf_folder.make(path("wide"), hf_folder.config(n_embd=2048, n_head=16, n_layer=1), None)
    shape = ["--model", wide, "--seq", 64, "--micro-batch", 1, "--batch-tokens", 128, "--precision", "fp32", "--threads",
             1, "--place", EVERYTHING_AWAY]
    whole, tiled = device_bytes(1, *shape), device_bytes(16, *shape)
    return [] if tiled < 96 << 20 and 192 << 20 < whole else [f"{whole} bytes whole, {tiled} in tiles"]


def tiles_that_do_not_work():
    odd = hf_folder.make(path("odd"), hf_folder.config(n_inner=77), None)
    table = [("three tiles of four heads", train("none", 3), "--tiles 3", "4 heads", "one of 1, 2, 4"),
             ("tiles of an odd layer", train("none", 2, model=(odd, "--init")), "77", "give 1")]
    problems = program.refused_each(table, watched=[SCRATCH])
    problems += program.refused("a plan", ["plan", "--model", "gpt2-tiny", "--tiles", 5], "--tiles 5", "1, 2, 4")
    return problems + program.refused("no tile", train("none", 0), "--tiles", status=2, watched=[SCRATCH])


script_test.run(exports_do_not_show_tiles, losses_are_those_of_whole_blocks, resuming_goes_on_in_tiles,
                a_run_in_tiles_speaks, plans_of_wide_layers_are_small, tiles_that_do_not_work)
