"""--freeze as a user has it: frozen weights stay exactly as they were, in every export, over resumes and changes of
ranks, and what would break them is refused."""

import json
import os
import shutil
import time

import hf_folder
import program
import runs
from program import script_test
from runs import path

HALF = 3
FROZEN_FILE = "frozen.spillway"
PAGE_BYTES = 4096
FROZEN = ("--freeze", "embedding,blocks:0-0")
PARTS = ("--freeze", "*.mlp.*,blocks:1")  # of the first block its MLP, and a block above its trained attention
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"


FOLDER = hf_folder.make(path("folder"), hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(3)))
TIED, UNTIED = (FOLDER,), ("llama-tiny", "--init")
# A block of 19 grains, which is written in two pieces.
WIDE = (hf_folder.make(path("wide-folder"), hf_folder.config(n_embd=160, n_layer=1, n_head=4), None), "--init")


class Run(runs.Run):
    model, data, steps = TIED, (runs.text_file(seed=5, characters=30000),), 6
    flags = ("--warmup", 1, "--lr", "1e-2", "--place", "optimizer=nvme")

    def tensors(self, *flags):
        return tensors_of(os.path.join(self.exported(*flags), "model.safetensors"))

    def exported_at(self, step):
        return tensors_of(self.path("exports", f"step-{step}", "model.safetensors"))


def a_bit_that_flips_while_a_run_trains_reaches_no_export():
    """Bytes that were right once are not taken for right when they are read again."""
    run = Run("flipped", "--freeze", "embedding,blocks:0", "--export-every", 20, "--keep", 3, model=runs.Run.model, steps=10**6)
    process = program.start(*run.words())
    end = time.monotonic() + 60
    while not os.path.exists(run.path("exports", "step-20")) and time.monotonic() < end:
        time.sleep(0.02)
    with open(run.path(FROZEN_FILE), "r+b") as file:
        file.seek(PAGE_BYTES + 65536 + 43)  # in the table of positions, which begins within a grain
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    _, err = process.communicate(timeout=60)
    last = err.splitlines()[-1]
    return [] if process.returncode == 1 and "are damaged" in last else [f"status {process.returncode}: {last}"]


def tensors_of(file):
    with open(file, "rb") as content:
        header, data = hf_folder.split(content.read())
    return {name: data[slice(*tensor["data_offsets"])] for name, tensor in header.items() if name != "__metadata__"}


def is_frozen(name):
    return any(part in name for part in ("wte.", "wpe.", "h.0.", "embed_tokens", "layers.0."))


def is_frozen_part(name):
    return any(part in name for part in (".mlp.", "h.1.", "layers.1."))


def wrong_changes(what, before, after, frozen=is_frozen):
    """Every frozen tensor keeps its bytes, and no other one does."""
    problems = [] if before.keys() == after.keys() else [f"{what}: other tensors"]
    return problems + [f"{what}: {name} {'changed' if frozen(name) else 'was not trained'}"
                       for name in before if (before[name] != after.get(name)) == frozen(name)]


def start_of(model, name):
    """The weights that a run begins with."""
    return Run(name, "--lr", 0, model=model, steps=1).train().tensors()


def exports_hold_frozen_weights_as_they_were_loaded():
    """In fp32 although bf16 computes, while the run goes on and at its end."""
    problems = []
    for name, model in (("tied", TIED), ("untied", UNTIED), ("wide", WIDE)):
        before = start_of(model, name + "-start")
        run = Run(name, *FROZEN, "--export-every", HALF, "--precision", "bf16", model=model).train()
        problems += wrong_changes(name, before, run.tensors())
        problems += wrong_changes(name + " on the way", before, run.exported_at(HALF))
    with open(os.path.join(FOLDER, "model.safetensors"), "rb") as file:
        header, data = hf_folder.split(file.read())
    wte = data[slice(*header["transformer.wte.weight"]["data_offsets"])]
    found = [content for name, content in Run("tied").tensors().items() if name.endswith("wte.weight")]
    return problems + ([] if found == [wte] else ["the table is not that of the folder"])


def a_resumed_run_has_the_same_bits():
    """Also in tiles, each of which is a unit, and from a store of one generation."""
    problems = []
    for name, model, *more in (("whole", TIED), ("untied-whole", UNTIED), ("tiles", TIED, "--tiles", 2),
                               ("one-generation", TIED, "--durability", "none"), ("fp16", UNTIED, "--precision", "fp16")):
        whole = Run(name, *FROZEN, *more, model=model).train()
        parts = Run(name + "-in-parts", *FROZEN, *more, "--place", EVERYTHING_AWAY, model=model, steps=HALF).train()
        parts.resume("--steps", Run.steps, "--place", "weights=host,grads=host,optimizer=host")
        problems += [] if whole.numbers() == parts.numbers() else [f"{name}: other numbers"]
        weights = whole.tensors()
        problems += [] if weights == parts.tensors() else [f"{name}: other weights"]
        problems += wrong_changes(name, start_of(model, name + "-at-0"), weights)
    return problems


def frozen_tensors_stay_as_they_were():
    """In exports, on the way and at the end, with all state away, in tiles, and over a resume."""
    problems = []
    for name, model, *more in (("parts", TIED, "--tiles", 2), ("untied-parts", UNTIED, "--precision", "bf16",
                                                               "--optimizer-state", "8bit")):
        before = start_of(model, name + "-at-0")
        whole = Run(name, *PARTS, *more, "--export-every", HALF, model=model).train()
        after = whole.tensors()
        problems += wrong_changes(name, before, after, is_frozen_part)
        problems += wrong_changes(name + " on the way", before, whole.exported_at(HALF), is_frozen_part)
        parts = Run(name + "-resumed", *PARTS, *more, "--place", EVERYTHING_AWAY, model=model, steps=HALF).train()
        parts.resume("--steps", Run.steps, "--place", "weights=host,grads=host,optimizer=host")
        problems += [] if whole.numbers() == parts.numbers() else [f"{name}: other numbers"]
        problems += [] if after == parts.tensors() else [f"{name}: other weights"]
        verified = json.loads(program.must("verify", whole.path(), "--json").out)
        problems += [] if verified["bad"] == [] else [f"{name}: verify says {verified['bad']}"]
    return problems


def other_commands_read_frozen_weights():
    problems = []
    for name, freeze in (("read", FROZEN), ("read-parts", PARTS)):
        run = Run(name, *freeze).train()
        sources = run.path(), run.exported()
        say = ("--prompt", "the ", "--max-tokens", 10, "--temperature", 0, "--precision", "fp32")
        texts = [program.must("generate", source, *say).out for source in sources]
        losses = [json.loads(program.must("eval", source, "--data", *Run.data, "--precision", "fp32", "--json").out)["loss"]
                  for source in sources]
        problems += [] if texts[0] == texts[1] else [f"{name}: {texts[0]!r} and {texts[1]!r}"]
        problems += [] if losses[0] == losses[1] else [f"{name}: losses {losses}"]
    return problems


def ranks_share_frozen_weights():
    """Every stage of two ranks has the numbers of stage 0; one rank goes on with a run of two, and two with that."""
    before, problems = start_of(TIED, "ranks-start"), []
    for freeze, frozen, stages in ((FROZEN, is_frozen, range(4)), (PARTS, is_frozen_part, (0, 2, 3))):
        expected = None
        for stage in stages:
            run = Run(f"stage-{stage}-of-{len(stages)}", *freeze, "--zero", stage, steps=HALF, ranks=2).train()
            expected = expected or run.numbers()
            problems += [] if run.numbers() == expected else [f"{run.name}: other numbers"]
            run.resume("--steps", Run.steps - 1)
            run.resume("--steps", Run.steps, "--export-every", Run.steps, ranks=2)
            after = run.tensors()
            problems += wrong_changes(run.name, before, after, frozen)
            if run.exported_at(Run.steps) != after:
                problems.append(f"{run.name}: the export of both ranks has other weights than the store")
    Run("open-stage", *PARTS, steps=1, ranks=2).train()
    return problems


def one_rank_goes_on_with_what_four_trained():
    """Four ranks share out the last 7 of 20 grains, which are trained: the second has none that would be its own of all 20."""
    shape = ("--seq", program.SEQ, "--micro-batch", 1, "--batch-tokens", 4 * program.SEQ, "--threads", 1)
    run = Run("four-ranks", "--freeze", "embedding,*.mlp.*,*.ln_f.*", "--zero", 2, model=WIDE, steps=HALF, shape=shape, ranks=4).train()
    before = run.tensors()
    run.resume("--steps", Run.steps)
    after = run.tensors()
    return wrong_changes("one rank after four", before, after,
                         lambda name: all(part not in name for part in (".attn.", ".ln_1.", ".ln_2.")))


def flip(file, offset):
    with open(file, "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


def damage_is_found_and_refused():
    """In the file of a run whose weights came from no folder, which has the grains."""
    Run("damaged", *FROZEN, model=(FOLDER, "--init"), steps=HALF).train()
    run = program.read_json(path("damaged", "run.json"))
    program.write(path("damaged", "run.json"), json.dumps({name: value for name, value in run.items()
                                                           if name not in ("frozen_digest", "checksum")}))
    lacking = program.refused("no digest", ["export", path("damaged"), path("none")], "frozen_digest", "restore the file")
    program.write(path("damaged", "run.json"), json.dumps(run))
    whole = json.loads(program.must("verify", path("damaged"), "--json").out)
    file = path("damaged", FROZEN_FILE)
    flip(file, PAGE_BYTES + 12345)
    report = program.run("verify", path("damaged"), "--json")
    bad = json.loads(report.out)["bad"]
    problems = lacking + ([] if whole["bad"] == [] and report.code == 1 else [f"verify: {whole['bad']}, status {report.code}"])
    if [(grain["unit"], grain["grain"], grain["state"]) for grain in bad] != [(0, 0, "weights")]:
        problems.append(f"verify names {bad}")
    if program.run("verify", path("damaged")).err.count(FROZEN_FILE) != 1:
        problems.append("verify does not say what to restore")
    resume = ["resume", path("damaged"), "--steps", Run.steps]
    ended = program.run(*resume)
    if ended.code != 1 or FROZEN_FILE not in ended.err or "damaged" not in ended.err:
        problems.append(f"resume: status {ended.code}: {ended.err[-300:]}")
    problems += program.refused("export", ["export", path("damaged"), path("none")], FROZEN_FILE, "damaged")
    flip(file, PAGE_BYTES + 12345)
    flip(file, 8)
    problems += program.refused("its header", ["export", path("damaged"), path("none")], FROZEN_FILE, "damaged")
    flip(file, 8)
    flip(file, os.path.getsize(file) - 1)
    problems += program.refused("its sums", ["export", path("damaged"), path("none")], FROZEN_FILE, "damaged")
    os.truncate(file, os.path.getsize(file) - 1)
    problems += program.refused("cut off", ["export", path("damaged"), path("none")], FROZEN_FILE, "cut off")
    for seed, run in enumerate(("other", "another")):
        Run(run, *FROZEN, "--seed", seed, model=UNTIED, steps=1).train()
    shutil.copy(path("other", FROZEN_FILE), path("another", FROZEN_FILE))
    problems += program.refused("that of another run", ["export", path("another"), path("none")], FROZEN_FILE,
                                "another run")
    os.remove(file)
    return problems + program.refused("no file", ["export", path("damaged"), path("none")], FROZEN_FILE)


def runs_that_have_the_grains_go_on():
    """As every run with --freeze did once: the model's folder may be gone."""
    model = shutil.copytree(FOLDER, path("gone"))
    whole = Run("grains", *FROZEN, model=(model, "--init")).train()
    resumed = Run("grains-resumed", *FROZEN, model=(model, "--init"), steps=HALF).train()
    shutil.rmtree(model)
    told = program.read_json(resumed.path("run.json"))
    told["settings"]["init"] = False
    program.write(resumed.path("run.json"), json.dumps(told))
    problems = runs.refused("another folder", ["resume", resumed.path(), "--steps", Run.steps, "--model", FOLDER], "leave out --model")
    resumed.resume("--steps", Run.steps)
    program.must("verify", resumed.path())
    return problems + ([] if whole.tensors() == resumed.tensors() else ["other weights"])


def what_cannot_be_frozen_is_refused():
    table = [("another name", "attention", 2, "neither embedding nor blocks"),
             ("a pattern of nothing", "h.0.attn", 1, "no tensor of the model"),
             ("an empty part", "embedding,", 2, "empty part"),
             ("everything", "*", 1, "leaves no tensor"),
             ("the table without the positions", "*wte*", 1, "wpe"),
             ("no range", "embedding,blocks:1-0", 2, "FIRST-LAST"),
             ("twice", "embedding,embedding", 2, "twice"),
             ("blocks that are not there", "embedding,blocks:0-2", 1, "block 2", "blocks 0 to 1")]
    problems = [problem for what, units, status, *words in table
                for problem in Run("none", "--freeze", units).refused(*words, what=what, status=status)]
    Run("fixed", *FROZEN, steps=1).train()
    return problems + runs.refused("another one at a resume", ["resume", path("fixed"), *FROZEN], "--freeze", status=2)


def runs_of_before_go_on():
    """Their run.json does not have the setting."""
    old = Run("old", steps=HALF).train()
    told = program.read_json(old.path("run.json"))
    del told["settings"]["freeze"]
    program.write(old.path("run.json"), json.dumps(told))
    old.resume("--steps", Run.steps)
    return [] if old.numbers() == Run("new").train().numbers() else ["other numbers"]


def a_start_that_was_cut_off_is_begun_again():
    """As where a kill came when the frozen weights were written and the store had no commit."""
    problems = []
    for run, gone in (("cut", ("store.spillway", "log.jsonl")), ("cut-early", ("store.spillway", "log.jsonl", "run.json"))):
        training = Run(run, *FROZEN, steps=1).train()
        stores = program.read_json(path(run, "run.json"))["stores"]
        for name in gone:
            os.remove(path(run, name))
        program.write(path(run, "starting.json"),
                      json.dumps({"spillway_start": 1, "ranks": 1, "whole": False, "stores": stores}))
        begun = program.run(*training.words())
        problems += [] if begun.code == 0 else [f"{run}: {begun.err[-300:]}"]
    return problems


def a_recipe_repeats_it():
    first = Run("first", *FROZEN).train()
    program.must("train", "--recipe", first.path("recipe.yaml"), "--run", path("again"))
    return [] if first.numbers() == Run("again").numbers() else ["other numbers"]


def a_plan_shows_what_freezing_saves():
    """Beside the same plan without it; frozen units have no gradients, optimizer state or updates to be placed."""
    plan = ["plan", "--model", "gpt2-tiny", *program.SHAPE, "--place", "optimizer=nvme", "--nvme", runs.FOLDER, "--rates",
            path("rates.json")]
    whole = json.loads(program.must(*plan, "--json").out)
    some = json.loads(program.must(*plan, *FROZEN, "--json").out)
    without, problems = some["frozen"]["without"], []
    if whole["frozen"] is not None:
        problems.append("a plan without --freeze has frozen units")
    for name, before, after in (
            ("peak_bytes", whole["peak_bytes"]["device"], some["peak_bytes"]["device"]),
            ("disk_bytes", whole["disk_bytes"], some["disk_bytes"]),
            ("step_bytes", whole["writes"]["step_bytes"], some["writes"]["step_bytes"])):
        found = without["peak_bytes"]["device"] if name == "peak_bytes" else without[name]
        if not after < before == found:
            problems.append(f"{name}: {after} with --freeze, {before} without, said to be {found}")
    if some["predicted"]["plain"]["step_s"] >= without["step_s"]:
        problems.append(f"a step takes {some['predicted']['plain']['step_s']} s instead of {without['step_s']} s")
    for name, tiers in (*some["placement"].items(), ("updates", some["updates"])):
        missing = [tier is None for tier in tiers]
        if missing != [name in ("grads", "optimizer", "updates")] * 2 + [False] * (len(tiers) - 2):
            problems.append(f"{name}: {tiers}")
    if some["frozen"]["units"] != 2 or not 0 < 4 * some["frozen"]["parameters"] <= some["frozen"]["bytes"]:
        problems.append(f"{some['frozen']}")
    shown = program.must(*plan, *FROZEN).out
    return problems + [f"no line '{line}'" for line in ("frozen: 2 of 4 units", "with --freeze", "without")
                       if line not in shown]


script_test.run(a_bit_that_flips_while_a_run_trains_reaches_no_export,
                exports_hold_frozen_weights_as_they_were_loaded, a_resumed_run_has_the_same_bits,
                frozen_tensors_stay_as_they_were,
                other_commands_read_frozen_weights, ranks_share_frozen_weights, one_rank_goes_on_with_what_four_trained,
                damage_is_found_and_refused,
                runs_that_have_the_grains_go_on, what_cannot_be_frozen_is_refused, runs_of_before_go_on, a_recipe_repeats_it,
                a_start_that_was_cut_off_is_begun_again,
                a_plan_shows_what_freezing_saves)
