"""Blocks in tiles, as a user has them: --tiles of train and plan, and what the other commands make of such a run."""

import json

import hf_folder
import program
import runs
from program import script_test
from runs import path

HALF = 3
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"


class Run(runs.Run):
    data, steps = (runs.text_file(seed=9, characters=30000),), 8
    flags = ("--val", "5%", "--lr", "2e-3", "--place", "optimizer=nvme", "--tiles", 4)


def exports_do_not_show_tiles():
    """A rate of zero leaves the weights as they began: random ones, and those of a folder."""
    folder = hf_folder.make(path("folder"), hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(3)))
    problems = []
    for name, model in (("random", ("gpt2-tiny", "--init")), ("read", (folder,))):
        found = [Run(f"{name}-{tiles}", "--tiles", tiles, "--lr", 0, model=model, steps=1).train().weights() for tiles in (1, 2, 4)]
        problems += [f"{name}: {tiles} tiles show" for tiles, content in zip((2, 4), found[1:]) if content != found[0]]
    return problems


def losses_are_those_of_whole_blocks():
    whole, tiled = (Run(f"losses-{tiles}", "--tiles", tiles, "--precision", "fp32").train().losses() for tiles in (1, 4))
    return [f"step {step}: {a} and {b}" for step, (a, b) in enumerate(zip(whole, tiled), 1)
            if not abs(a - b) <= 2e-5 * a] + ([] if len(tiled) == Run.steps else ["too few steps"])


def resuming_goes_on_in_tiles():
    """To the bits of the run without a stop, with everything placed otherwise; run.json knows the tiles."""
    straight, stopped = Run("straight").train(), Run("stopped", "--place", EVERYTHING_AWAY, steps=HALF).train()
    stopped.resume("--steps", Run.steps, "--place", "optimizer=host")
    problems = [] if stopped.numbers() == straight.numbers() else ["other numbers"]
    problems += [] if stopped.weights() == straight.weights() else ["other weights"]
    problems += [] if stopped.settings().get("tiles") == 4 else ["run.json does not know the tiles"]
    return problems + program.refused("other tiles", ["resume", stopped.path(), "--tiles", 2], "--tiles", status=2)


def a_run_in_tiles_speaks():
    """As its export does in whole blocks, in fp32, where the tokens are far from even."""
    speaker = Run("speaker", "--tiles", 2).train()
    say = ("--prompt", "the ", "--max-tokens", 20, "--temperature", 0, "--precision", "fp32")
    texts = [program.must("generate", source, *say).out for source in (speaker.path(), speaker.exported())]
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
    problems = Run("none", "--tiles", 3).refused("--tiles 3", "4 heads", "one of 1, 2, 4")
    problems += Run("none", "--tiles", 2, model=(odd, "--init")).refused("77", "give 1")
    problems += program.refused("a plan", ["plan", "--model", "gpt2-tiny", "--tiles", 5], "--tiles 5", "1, 2, 4")
    return problems + Run("none", "--tiles", 0).refused("--tiles", status=2)


script_test.run(exports_do_not_show_tiles, losses_are_those_of_whole_blocks, resuming_goes_on_in_tiles,
                a_run_in_tiles_speaks, plans_of_wide_layers_are_small, tiles_that_do_not_work)
