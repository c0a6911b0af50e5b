"""Recipes, --epochs and --dry-run: what they set, what they refuse, and that a run's own recipe repeats its bits."""

import itertools
import json
import os
import random
import re

import hf_folder
import program
from program import script_test
from token_files import cache_of_its_own, chat_folder, path

SHAPE = "model: gpt2-tiny\ninit: true\nseq: 64\nmicro-batch: 4\nbatch_tokens: 512\nthreads: 1\nchunk-grains: 2\n"


def recipe(content, name="recipe.yaml"):
    return program.write(path(name), content)


def data():
    return program.write(path("text.txt"), program.text(1, 20000))


def settings_of(run):
    with open(path(run, "run.json"), encoding="utf-8") as file:
        return json.load(file)["settings"]


def losses(run):
    with open(path(run, "log.jsonl"), encoding="utf-8") as file:
        return [line.get("loss") for line in map(json.loads, file)]


def flags_come_from_the_recipe():
    """Keys with dashes or underscores, lists, and the command line above them."""
    problems = []
    file = recipe(f"{SHAPE}data: [{data()}]\nsteps: 3\nlr: 2e-3\nplace: optimizer=nvme\n")
    program.must("train", "--recipe", file, "--run", path("a"), "--lr", "1e-3")
    found = settings_of("a")
    for key, wanted in {"steps": 3, "lr": 1e-3, "batch_tokens": 512, "init": True, "place": "optimizer=nvme",
                        "data": [path("text.txt")]}.items():
        if found[key] != wanted:
            problems.append(f"{key} is {found[key]} instead of {wanted}")
    return problems


def a_run_writes_the_recipe_that_repeats_it():
    problems = []
    program.must("train", "--recipe", recipe(f"{SHAPE}data: {data()}\nval: 10%\nepochs: 0.05\nlr: 3.1e-3\n"),
                 "--run", path("b"))
    program.must("train", "--recipe", path("b", "recipe.yaml"), "--run", path("c"))
    if losses("b") != losses("c") or len(losses("b")) < 2:
        problems.append(f"losses {losses('b')} became {losses('c')}")
    with open(path("b", "recipe.yaml"), encoding="utf-8") as file:
        text = file.read()
    for word in ('model: "gpt2-tiny"', "batch-tokens: 512", "epochs: 0.05", "lr: 0.0031", f'data: ["{path("text.txt")}"]'):
        if word not in text:
            problems.append(f"recipe.yaml lacks {word!r}: {text}")
    if "device-memory" in text or os.stat(path("b", "recipe.yaml")).st_mode & 0o077:
        problems.append("recipe.yaml holds what was not given, or others may read it")
    return problems


def epochs_become_steps():
    """20,000 bytes are 312 windows of 64, and a step takes 8."""
    program.must("train", "--recipe", recipe(f"{SHAPE}data: {data()}\nepochs: 0.1\n"), "--run", path("d"))
    steps = settings_of("d")["steps"]
    return [] if steps == 4 else [f"0.1 epochs are {steps} steps instead of 4"]


def a_dry_run_checks_and_writes_nothing():
    problems = []
    file = recipe(f"{SHAPE}data: {data()}\nepochs: 3\nplace: optimizer=nvme\n")
    before = sorted(os.listdir(path()))
    ended = program.run("train", "--recipe", file, "--run", path("new", "run"), "--dry-run")
    problems += [f"'{word}' of a plan that is not complete" for word in ("  written  ", "a step takes", "not predicted") if word in ended.err]
    if ended.code != 0 or "117 steps" not in ended.err or "nothing was written" not in ended.err:
        problems.append(f"status {ended.code}: {ended.err}")
    for flags, word in (("--nvme", f"{path()}:1MiB"), "the store needs"), (("--host-memory", "1KiB"), "1.00 KiB"):
        ended = program.run("train", "--recipe", file, "--run", path("new", "run"), "--dry-run", *flags)
        if ended.code == 0 or word not in ended.err:
            problems.append(f"{flags}: status {ended.code}: {ended.err}")
    if sorted(os.listdir(path())) != before:
        problems.append(f"the folder holds {sorted(os.listdir(path()))} instead of {before}")
    return problems


def plan(*flags, **options):
    return program.run("plan", "--machine", "rtx4090", *flags, **options)


def plan_passes_over_the_flags_of_train():
    """It takes the data and the epochs of a recipe, and names data that are not there."""
    ended = plan("--recipe", recipe(f"{SHAPE}data: {data()}\nepochs: 0.1\nlr: 1e-3\nval: nowhere.txt\n"), "--json")
    found = json.loads(ended.out or "{}")
    problems = []
    if ended.code != 0 or found["batch_tokens"] != 512 or found["data"]["steps"] != 4:
        problems.append(f"status {ended.code}: {found.get('data')} {ended.err}")
    missing = ("plan", "--machine", "rtx4090", "--recipe", recipe(f"{SHAPE}data: nowhere.txt\n"))
    return problems + program.refused("a recipe's data that are not there", missing, "nowhere.txt")


def plan_counts_data_as_train_does():
    """Token files, text that is read as a whole, and a part for validation are counted; other text is estimated."""
    model, problems = chat_folder("planned", **hf_folder.config(vocab_size=300)), []
    hf_folder.write_zeros(os.path.join(model, "model.safetensors"), hf_folder.shapes(300))
    draw = random.Random(3)
    chats = [hf_folder.chat("a" * draw.randrange(5, 60), "b" * draw.randrange(5, 200)) for _ in range(6000)]
    files = {"tokens.bin": bytes(2 * 9001), "short.jsonl": "".join(chats[:200]), "long.jsonl": "".join(chats)}
    shape = ("--model", model, "--seq", 64, "--micro-batch", 4, "--batch-tokens", 512, "--epochs", 2)
    for (name, content), val in itertools.product(files.items(), ("0%", "10%")):
        flags = (*shape, "--data", program.write(path(name), content), "--val", val)
        cache = cache_of_its_own(f"cache-{name}-{val}")
        found = json.loads(plan(*flags, "--json", env=cache).out)["data"]
        if any("tokens" in file for _, _, names in os.walk(cache["XDG_CACHE_HOME"]) for file in names):
            problems.append(f"{name}: plan wrote tokens to the cache")
        said = program.run("train", *flags, "--run", path("counted"), "--threads", 1, "--dry-run", env=cache).err
        tokens, steps = (int(number) for number in re.search(r"data: (\d+) tokens.*; (\d+) steps", said).groups())
        is_long = name == "long.jsonl"
        if (found["estimated_from_bytes"] is None) == is_long or abs(found["steps"] / steps - 1) > 0.03 * is_long \
                or abs(found["tokens"] / tokens - 1) > 0.03 * is_long or found["run_tokens"] != 512 * found["steps"]:
            problems.append(f"{name}, --val {val}: {found} instead of {tokens} tokens and {steps} steps")
        answer = " ".join(plan(*flags).out.split())
        if (re.search(r"data: about \S+ \w+ tokens, estimated from the first \S+ KiB; ", answer) is not None) != is_long \
                or f"; {found['steps']} steps are 2" not in answer:
            problems.append(f"{name}, --val {val}: {answer}")
    os.mkfifo(path("pipe.jsonl"))
    for name, word in (("pipe.jsonl", "is a pipe"), (program.write(path("empty.jsonl"), ""), "no text")):
        problems += program.refused(f"plan of {name}", ("plan", "--machine", "rtx4090", *shape, "--data", path(name)), word)
    return problems


def passes_of_steps_are_said_and_many_are_warned_of():
    problems = []
    shape = ("--model", "gpt2-tiny", "--seq", 64, "--micro-batch", 4, "--batch-tokens", 512, "--data", data())
    for steps, epochs, warned in ((39, "1", False), (195, "5", False), (235, "6.03", True)):
        ended = plan(*shape, "--steps", steps)
        begun = program.run("train", *shape, "--init", "--steps", steps, "--run", path("passes"), "--dry-run", "--threads", 1)
        if f"{steps} steps are {epochs} epochs" not in ended.out:
            problems.append(f"{steps} steps: {ended.out}")
        problems += [f"{steps} steps are {'not ' * warned}warned of: {said}" for said in (ended.err, begun.err)
                     if (f"warning: the run passes {epochs} times over its training data" in said) != warned]
    # Five passes of 313 windows end within a step, which reaches into the sixth.
    odd = ("--data", program.write(path("odd.txt"), program.text(1, 313 * 64 + 5)), "--epochs", 5)
    problems += [f"five passes are warned of: {said.err}" for said in (
        plan(*shape[:-2], *odd), program.run("train", *shape[:-2], *odd, "--init", "--run", path("passes"), "--dry-run"))
        if said.code != 0 or "warning: the run passes" in said.err]
    for flags, words in ((("--epochs", 2), ("--epochs", "--data")),
                         (("--epochs", 2, "--steps", 4, "--data", data()), ("--epochs and --steps", "give one")),
                         (("--largest", 100, "--data", data()), ("--data", "--largest"))):
        problems += program.refused(f"plan {flags}", ("plan", "--machine", "rtx4090", "--model", "gpt2-tiny", *flags), *words, status=2)
    return problems


def the_rate_follows_from_the_weights():
    """--lr auto, the default: run.json has the number that it became, the start says it, and a resume keeps it."""
    problems, model = [], path("weights")
    hf_folder.make(model, hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(1)))
    shape = ("--model", model, "--data", data(), *program.SHAPE, "--steps", 1)
    rates = (("loaded", (), 1e-5, "1e-05, as --lr auto is for loaded weights"),
             ("auto", ("--lr", "auto"), 1e-5, "1e-05, as --lr auto is for loaded weights"),
             ("random", ("--init",), 3e-4, "0.0003, as --lr auto is for random weights"),
             ("given", ("--lr", "1e-3"), 1e-3, ""))
    for name, flags, rate, said in rates:
        for more in (("--dry-run",), ()):
            ended = program.must("train", *shape, "--run", path(name), *flags, *more)
            if ended.err.count("as --lr auto is") != (said != "") or said not in ended.err:
                problems.append(f"{name} {more}: {ended.err}")
        if settings_of(name)["lr"] != rate:
            problems.append(f"{name}: run.json has the rate {settings_of(name)['lr']}")
        again = program.must("train", "--recipe", path(name, "recipe.yaml"), "--run", path(f"{name}-again"))
        if settings_of(f"{name}-again")["lr"] != rate or "as --lr auto" in again.err or losses(name) != losses(f"{name}-again"):
            problems.append(f"{name}: its recipe gives the rate {settings_of(f'{name}-again')['lr']}: {again.err}")
        resumed = program.must("resume", path(name), "--steps", 2)
        if settings_of(name)["lr"] != rate or "as --lr auto" in resumed.err:
            problems.append(f"{name}: a resume has the rate {settings_of(name)['lr']}: {resumed.err}")
    problems += program.refused("a resume", ("resume", path("loaded"), "--lr", "auto"), "--lr is 'auto'", "number", status=2)
    return problems + program.refused("a least rate above it", ("train", *shape, "--run", path("above"), "--min-lr", "1e-4"),
                                      "0.0001 is above the learning rate 1e-05", "--lr", status=2)


BAD = (
    ("model: x\nlrr: 3\n", "did you mean --lr?, while reading", "line 2"),
    ("model: [a, b]\n", "--model has no value", "line 1"),
    ("model: {a: b}\n", "--model has no value", "line 1"),
    ("model: a: b\n", "is not YAML: line 1", "recipe.yaml"),
    ("init: yes\n", "--init is 'yes'; it must be true or false", "line 1"),
    ("", "is no recipe", "recipe.yaml"),
    ("- a\n- b\n", "is no recipe", "recipe.yaml"),
    ("steps:\n", "--steps has no value", "line 1"),
    ("steps: ~\n", "--steps has no value", "line 1"),
    ("steps: 0\n", "--steps is '0'", "line 1"),
    ("recipe: other.yaml\n", "cannot name another recipe", "line 1"),
    ("lr: 3\nlr: 4\n", "--lr is given twice", "line 2"),
    ("[a]: 4\n", "must be the name of a flag", "line 1"),
    ("'': 4\n", "must be the name of a flag", "line 1"),
    ("model: gpt2-tiny\n", "train needs --data", "--data"),
    ("model: gpt2-tiny\ndata: t.txt\nepochs: 3\nsteps: 4\n", "give one of them", "--epochs"),
    ("a: &a [*a]\n", "no flag --a", "line 1"),
    ("model: gpt2-tiny\ndata: []\n", "--data is an empty list", "line 2"),
    ("[" * 1000000, "recipe.yaml is no recipe", "more than 16 lists within each other"),
    ("data: [" + ", ".join(f"&a{i} x" for i in range(60000)) + "]\n", "recipe.yaml is no recipe", "anchors"),
    ("".join(f"%TAG !a{i}! x\n" for i in range(60000)) + "---\na: b\n", "has a %TAG directive", "remove it"),
    (b"\xc0\xc0", "is not YAML: line 1", "recipe.yaml"),
    (b"\xff\xfem\x00", "is UTF-16", "recipe.yaml"),
)


def a_run_on_many_files_can_be_opened_again():
    """The names of the files make run.json and the recipe larger than 1 MiB; what is larger than both may be is refused
    before anything is made."""
    folder = path("many", "a-folder-with-a-long-name-" * 7)
    os.makedirs(folder)
    names = [program.write(os.path.join(folder, f"{i:05}-{'x' * 90}.txt"), "hello world") for i in range(4000)]
    many = recipe(SHAPE + "steps: 1\ndata:\n" + "".join(f"- {name}\n" for name in names))
    program.must("train", "--recipe", many, "--run", path("wide"))
    problems = [] if os.path.getsize(path("wide", "run.json")) > 1 << 20 else ["run.json is too small to tell"]
    program.must("resume", path("wide"), "--steps", 2)
    program.must("train", "--recipe", path("wide", "recipe.yaml"), "--run", path("wider"), "--dry-run")
    recipe(SHAPE + "steps: 1\ndata:\n" + "".join(f"- {name}\n" for name in names * 8))
    return problems + program.refused("names beyond what a run keeps", ["train", "--recipe", path("recipe.yaml"), "--run",
                                                                       path("widest")], "--data", "32000 files", "folder")


def bad_recipes_are_refused():
    problems = []
    for content, *words in BAD:
        ended = program.run("train", "--recipe", recipe(content), "--run", path("bad"))
        if ended.code != 2 or not all(word in ended.err for word in words) or os.path.exists(path("bad")):
            problems.append(f"{content[:80]!r}: status {ended.code}: {ended.err}")
    for arguments, word in ((("--recipe",), "--recipe needs a value"), (("--recipe", path("no")), "cannot open")):
        ended = program.run("train", *arguments)
        if ended.code != 2 or word not in ended.err:
            problems.append(f"{arguments}: status {ended.code}: {ended.err}")
    return problems


script_test.run(flags_come_from_the_recipe, a_run_writes_the_recipe_that_repeats_it, epochs_become_steps,
                a_dry_run_checks_and_writes_nothing, plan_passes_over_the_flags_of_train, plan_counts_data_as_train_does,
                passes_of_steps_are_said_and_many_are_warned_of, the_rate_follows_from_the_weights,
                a_run_on_many_files_can_be_opened_again, bad_recipes_are_refused)
