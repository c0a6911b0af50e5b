"""--lora as a user has it: a run begins with the losses of its base, trains adapters alone, and goes on with the same bits
wherever its state is, however many ranks it has, and after it was killed."""

import filecmp
import json
import os
import signal
import time

import hf_folder
import program
import runs
from program import script_test
from ranks_jobs import far
from runs import path

DATA = runs.text_file(seed=7, characters=30000)
STEPS, HALF, LONG = 6, 3, 100
LORA = ("--lora", 4)
FP32 = ("--precision", "fp32")
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"


FOLDER = hf_folder.make(path("folder"), hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(3)))
GPT2, LLAMA, TINY = (FOLDER,), ("llama-tiny", "--init"), ("gpt2-tiny", "--init")


class Run(runs.Run):
    model, data, steps = GPT2, (DATA,), STEPS
    flags = ("--warmup", 1, "--lr", "1e-2", "--place", "optimizer=nvme")


def a_run_begins_as_its_base_and_learns():
    problems = []
    for name, model in (("gpt2", GPT2), ("llama", LLAMA)):
        run = Run(name, *LORA, model=model).train()
        base, found = Run(name + "-base", model=model, steps=1).train().losses(), run.losses()
        # The adapters add zeros to each product.
        problems += [] if found[0] == base[0] else [f"{name}: the first loss is {found[0]}, that of the base {base[0]}"]
        problems += [] if found[-1] < found[0] - 0.1 else [f"{name}: losses {found}"]
        verified = json.loads(program.must("verify", run.path(), "--json").out)
        problems += [] if verified["bad"] == [] else [f"{name}: verify says {verified['bad']}"]
    return problems


def kill_at(run, step):
    """Ends a started run as a power button does, once its log has the step."""
    process = program.start(*run.words())
    end = time.monotonic() + 60
    while time.monotonic() < end and not (os.path.exists(run.path("log.jsonl")) and len(run.steps_done()) >= step):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


def a_resumed_run_has_the_same_bits():
    """Also after kill -9, with all state elsewhere, narrow moments, and modules that are trained whole."""
    problems = []
    for name, model, *more in (("whole", GPT2), ("llama-whole", LLAMA, "--rslora", "--lora-targets", "q_proj,down_proj"),
                               ("narrow", LLAMA, "--precision", "bf16", "--optimizer-state", "8bit",
                                "--modules-to-save", "lm_head,norm")):
        whole = Run(name, *LORA, *more, model=model).train()
        parts = Run(name + "-in-parts", *LORA, *more, "--place", EVERYTHING_AWAY, model=model, steps=HALF).train()
        parts.resume("--steps", STEPS, "--place", "weights=host,grads=host,optimizer=host")
        problems += [] if whole.numbers() == parts.numbers() else [f"{name}: other numbers"]
    killed = Run("killed", *LORA, "--save-every", 1, "--place", EVERYTHING_AWAY, steps=LONG, planned=LONG)
    kill_at(killed, HALF)
    left = len(killed.steps_done())
    killed.resume("--steps", LONG)
    unbroken = Run("not-killed", *LORA, "--place", "weights=host", steps=LONG, planned=LONG).train()
    problems += [] if left < LONG else ["the kill came after the last step"]
    return problems + ([] if killed.numbers() == unbroken.numbers() else ["other numbers after a kill"])


def one_dropout_on_any_ranks():
    """Steps drop the same after a resume and on two ranks, whose losses differ from one's by the order of sums alone; a
    recipe repeats it."""
    problems, dropout = [], (*LORA, "--lora-dropout", 0.5)
    dropped, parts = Run("dropped", *dropout).train(), Run("dropped-in-parts", *dropout, steps=HALF).train()
    parts.resume("--steps", STEPS, "--place", "weights=host,grads=host,optimizer=host")
    program.must("train", "--recipe", dropped.path("recipe.yaml"), "--run", path("dropped-again"))
    for run in (parts, Run("dropped-again")):
        problems += [] if dropped.numbers() == run.numbers() else [f"{run.name}: other numbers"]
    one, two, kept = dropped.losses(), Run("dropped-twice", *dropout, ranks=2).train().losses(), Run("kept", *LORA).train().losses()
    problems += [] if all(abs(a - b) < 1e-4 for a, b in zip(one, two)) else [f"one rank: {one}, two: {two}"]
    problems += [] if max(abs(a - b) for a, b in zip(one, kept)) > 1e-3 else [f"losses without dropout: {kept}, with: {one}"]
    return problems


def ranks_share_adapters():
    """Every stage of two ranks has the numbers of stage 0; one rank goes on with a run of two, and two with that."""
    problems, expected = [], None
    for stage in range(4):
        run = Run(f"stage-{stage}", *LORA, "--zero", stage, steps=HALF, ranks=2).train()
        expected = expected or run.numbers()
        problems += [] if run.numbers() == expected else [f"{run.name}: other numbers"]
        run.resume("--steps", STEPS - 1)
        run.resume("--steps", STEPS, ranks=2)
    Run("open-stage", *LORA, steps=1, ranks=2).train()
    return problems


# Two key-value heads, which four ranks share, and biases.
QWEN2 = (hf_folder.make(path("qwen2"), {"model_type": "qwen2", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
                                        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
                                        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                                        "hidden_act": "silu", "tie_word_embeddings": True}, None), "--init")
# Everything in which groups could differ: dropout of whole and of cut inputs, and modules of all ranks and of one.
BESIDE = {"gpt2": ("--modules-to-save", "ln_1,wte,wpe"), "qwen2": ("--modules-to-save", "norm,input_layernorm")}


def groups_train_adapters_as_one_rank_does():
    """With its losses and its file of frozen weights, whose model is a folder or random."""
    problems = []
    for name, model in (("gpt2", GPT2), ("qwen2", QWEN2)):
        more = (*LORA, "--lora-dropout", 0.3, *FP32, *BESIDE[name])
        Run(f"{name}-1", *more, model=model).train()
        for ranks, group in ((2, 2), (4, 2), (4, 4)):
            run = f"{name}-{ranks}-{group}"
            Run(run, *more, "--tensor", group, model=model, ranks=ranks).train()
            problems += far(run, path(run), path(f"{name}-1"), tolerance=1e-5)
            if not filecmp.cmp(path(run, "frozen.spillway"), path(f"{name}-1", "frozen.spillway"), shallow=False):
                problems.append(f"{run}: another frozen.spillway")
    return problems


def groups_have_the_same_bits_everywhere():
    """At one --tensor, on two ranks and on four, with adapters, with a quantized base, and with frozen blocks."""
    here, away, again, rows = "optimizer=host", EVERYTHING_AWAY, ("--recompute", "all"), ("--sequence-parallel", "yes")
    base = (*LORA, "--lora-dropout", 0.3, "--base-format", "nf4", "--precision", "bf16", "--optimizer-state", "8bit")
    table = [("adapters", QWEN2, (*LORA, "--lora-dropout", 0.3), 2, 2,
              ((away,), (here, *again), (here, *rows), (away, *rows, *again))),
             ("base", QWEN2, base, 4, 4, ((away,), (here, *rows))),
             ("stages", GPT2, LORA, 4, 2, tuple((place, "--zero", stage) for stage in range(4) for place in (here, away))),
             ("parts", GPT2, ("--freeze", "*.mlp.*,*.wpe.*,*.wte.*,blocks:1"), 2, 2, ((away,), (here, *rows), (away, *again)))]
    problems = []
    for name, model, what, ranks, group, variants in table:
        expected = None
        for number, (place, *more) in enumerate(((here,), *variants)):
            found = Run(f"{name}-{number}", *what, "--tensor", group, "--place", place, *more, model=model, ranks=ranks).train().numbers()
            expected = expected or found
            problems += [] if found == expected else [f"{name}-{number} ({place} {more}): other numbers"]
    return problems


def another_group_goes_on():
    """One rank, a group of two, and one of four with the run of another; their folders hold the same adapter."""
    problems = []
    Run("alone", *LORA, *FP32, model=QWEN2).train()
    for before, after in ((2, 1), (1, 2), (2, 4), (4, 4)):
        run = f"from-{before}-to-{after}"
        Run(run, *LORA, *FP32, "--tensor", before, "--export-every", HALF, model=QWEN2, steps=HALF, ranks=before).train()
        program.must("export", path(run), path(run + "-adapter"))
        written = [path(*folder, "adapter_model.safetensors") for folder in ((run, "exports", f"step-{HALF}"), (run + "-adapter",))]
        problems += [] if filecmp.cmp(*written, shallow=False) else [f"{run}: the run and export write other adapters"]
        program.must("resume", path(run), "--steps", STEPS, "--tensor", after, ranks=after)
        problems += far(run, path(run), path("alone"), lambda line: "grad_norm" in line, tolerance=1e-5)
        verified = json.loads(program.must("verify", path(run), "--json").out)
        problems += [] if verified["bad"] == [] else [f"{run}: verify says {verified['bad']}"]
    Run("base-group", *LORA, "--base-format", "nf4", "--tensor", 2, model=QWEN2, steps=1, ranks=2).train()
    told = [program.must("resume", path("base-group"), "--steps", steps, "--tensor", 1).err.count("rounded anew") for steps in (2, 3)]
    problems += [] if told == [1, 0] else [f"resumes of a quantized base say so {told} times"]
    Run("narrow-group", *LORA, "--tensor", 2, model=QWEN2, steps=HALF, ranks=2).train()
    return problems + runs.refused("another format of a group's state",
                                   ["resume", path("narrow-group"), "--steps", STEPS, "--tensor", 1, "--optimizer-state", "bf16"],
                                   "--optimizer-state")


def groups_read_adapters():
    """eval and generate cut a run of one rank or of a group, and a folder beside its model."""
    problems = []
    Run("read-1", *LORA).train()
    Run("read-2", *LORA, "--tensor", 2, ranks=2).train()
    program.must("export", path("read-1"), path("read-adapter"))
    for source in ((path("read-1"),), (path("read-2"),), (FOLDER, "--adapter", path("read-adapter"))):
        ask = ("eval", *source, "--data", DATA, *FP32, "--json")
        one, two = (json.loads(said)["loss"] for said in (program.must(*ask).out, program.must(*ask, "--tensor", 2, ranks=2).out))
        problems += [] if abs(one - two) < 1e-5 * one else [f"eval of {source}: {one} on one rank, {two} on two"]
        say = ("generate", *source, "--prompt", "the ", "--max-tokens", 10, "--temperature", 0, "--precision", "fp32")
        one, two = (program.must(*say, ranks=ranks).out for ranks in (1, 2))
        problems += [] if one == two else [f"generate of {source}: {one!r} on one rank, {two!r} on two"]
    Run("read-nf4", *LORA, "--base-format", "nf4", steps=1).train()
    alone, group = (program.must("eval", path("read-nf4"), "--data", DATA, *more, ranks=2).err for more in ((), ("--tensor", 2)))
    if "rounds other parts" not in group or "rounds" in alone:
        problems.append(f"eval of a quantized base on one rank says {alone!r}, in a group {group!r}")
    return problems


def tiles_train_adapters_as_whole_blocks_do():
    """Later tiles of a half have no factor that is not cut: the first hands it on, and sums its gradients. Dropout draws the
    same words, so its losses agree too."""
    problems = []
    for name, model, *more in (("gpt2-tiles", GPT2, "--lora-dropout", 0.25),
                               ("llama-tiles", LLAMA, "--lora-targets", "q_proj,v_proj,down_proj"),
                               ("saving-tiles", LLAMA, "--modules-to-save", "lm_head,norm,gate_proj,up_proj")):
        whole, cut, away = path(name), path(name + "-2"), path(name + "-away")
        Run(name, *LORA, *FP32, *more, model=model).train()
        Run(name + "-2", *LORA, *FP32, *more, "--tiles", 2, model=model).train()
        problems += far(name, cut, whole, tolerance=1e-5)
        Run(name + "-away", *LORA, *FP32, *more, "--tiles", 2, "--place", EVERYTHING_AWAY, model=model, steps=HALF).train()
        program.must("resume", away, "--steps", STEPS)
        if program.numbers_of(away) != program.numbers_of(cut):
            problems.append(f"{name}: other numbers from elsewhere")
    Run("group-tiles", *LORA, *FP32, "--tensor", 2, "--tiles", 2, model=TINY, ranks=2).train()
    Run("no-group", *LORA, *FP32, model=TINY).train()
    problems += far("a group's tiles", path("group-tiles"), path("no-group"), tolerance=1e-5)
    program.must("export", path("llama-tiles-2"), path("of-tiles"))
    Run("from-tiles", *FP32, "--adapter", path("of-tiles"), "--tiles", 2, "--export-every", 1, model=LLAMA, steps=1).train()
    Run("from-whole", *FP32, "--adapter", path("from-tiles", "exports", "step-1"), model=LLAMA, steps=1).train()
    first = [Run(run).losses()[0] for run in ("from-tiles", "from-whole")]
    last = Run("llama-tiles-2").losses()[-1]
    return problems + ([] if max(first) < last else [f"losses of adapters that tiles wrote: {first}, in the run {last}"])


def other_commands_read_adapters():
    problems = []
    Run("read", *LORA).train()
    loss = [json.loads(program.must("eval", source, "--data", DATA, "--precision", "fp32", "--json").out)["loss"]
            for source in (FOLDER, path("read"))]
    problems += [] if loss[1] < loss[0] - 0.1 else [f"eval of the base and of the run: {loss}"]
    say = ("--prompt", "the ", "--max-tokens", 10, "--temperature", 0, "--precision", "fp32")
    texts = [program.must("generate", source, *say).out for source in (FOLDER, path("read"))]
    return problems + ([] if texts[0] != texts[1] else [f"generate of the base and of the run: {texts[0]!r}"])


def what_cannot_be_is_refused():
    table = [("a target of nothing", ("--lora-targets", "attn.q"), 1, "'attn.q'", "no matrix"),
             ("one of two targets", ("--lora-targets", "c_attn,c_prj"), 1, "'c_prj'", "no matrix"),
             ("a module of nothing", ("--modules-to-save", "lm_haed"), 1, "'lm_haed'", "no module"),
             ("an empty part", ("--lora-targets", "c_attn,"), 2, "empty part"),
             ("8-bit weights", ("--precision", "fp8"), 1, "fp8"),
             ("all of the input", ("--lora-dropout", 1), 2, "--lora-dropout"),
             ("too large a rank", ("--lora", 4000), 2, "1024"),
             ("with --freeze", ("--freeze", "embedding"), 2, "leave out --freeze"),
             ("positions without the table", ("--modules-to-save", "wpe"), 1, "wpe", "wte"),
             ("exports of a shared table", ("--modules-to-save", "wte,wpe", "--export-every", 2), 2, "wte", "--export-every 0")]
    problems = [problem for what, more, status, *words in table
                for problem in Run("none", *(LORA if "--lora" not in more else ()), *more).refused(*words, what=what, status=status)]
    Run("fixed", *LORA, steps=1).train()
    return problems + runs.refused("another rank at a resume", ["resume", path("fixed"), "--lora", 8], "--lora", status=2)


def a_recipe_repeats_it():
    Run("first", *LORA, "--lora-alpha", 3, "--lora-targets", "attention").train()
    program.must("train", "--recipe", path("first", "recipe.yaml"), "--run", path("again"))
    return [] if program.numbers_of(path("first")) == program.numbers_of(path("again")) else ["other numbers"]


def a_plan_shows_what_adapters_save():
    plan = ["plan", "--model", "gpt2-tiny", *program.SHAPE, "--place", "optimizer=nvme", "--nvme", runs.FOLDER, "--rates",
            path("rates.json")]
    some = json.loads(program.must(*plan, *LORA, "--json").out)
    frozen, problems = some["frozen"], []
    if frozen["units"] != 4 or not 0 < frozen["parameters"] < 130000:
        problems.append(f"{frozen}")
    if not some["disk_bytes"] < frozen["without"]["disk_bytes"] / 4:
        problems.append(f"{some['disk_bytes']} bytes of disk, {frozen['without']['disk_bytes']} without adapters")
    shown = program.must(*plan, *LORA).out
    return problems + [f"no line '{line}'" for line in ("frozen: 4 of 4 units", "with --lora", "without") if line not in shown]


script_test.run(a_run_begins_as_its_base_and_learns, a_resumed_run_has_the_same_bits, one_dropout_on_any_ranks,
                ranks_share_adapters, groups_train_adapters_as_one_rank_does, groups_have_the_same_bits_everywhere,
                another_group_goes_on, groups_read_adapters, tiles_train_adapters_as_whole_blocks_do,
                other_commands_read_adapters, what_cannot_be_is_refused, a_recipe_repeats_it,
                a_plan_shows_what_adapters_save)
