"""--lora as a user has it: a run begins with the losses of its base, trains adapters alone, and goes on with the same bits
wherever its state is, however many ranks it has, and after it was killed."""

import filecmp
import json
import os
import signal
import time

import hf_folder
import program
from program import script_test
from ranks_jobs import far, threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(7, 30000))
STEPS, HALF, LONG = 6, 3, 100
LORA = ("--lora", 4)
FP32 = ("--precision", "fp32")
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"


def path(*names):
    return os.path.join(SCRATCH, *names)


FOLDER = hf_folder.make(path("folder"), hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(3)))
GPT2, LLAMA, TINY = (FOLDER,), ("llama-tiny", "--init"), ("gpt2-tiny", "--init")


def train(run, *more, model=GPT2, steps=STEPS, place="optimizer=nvme"):
    schedule = () if "--schedule-steps" in more else ("--schedule-steps", STEPS)
    return ["train", "--model", *model, "--data", DATA, "--run", path(run), "--steps", steps, *schedule, "--warmup", 1,
            "--lr", "1e-2", *program.SHAPE, "--place", place, *more]


def losses(run):
    return [line["loss"] for line in program.steps_of(path(run))]


def a_run_begins_as_its_base_and_learns():
    problems = []
    for name, model in (("gpt2", GPT2), ("llama", LLAMA)):
        program.must(*train(name + "-base", model=model, steps=1))
        program.must(*train(name, *LORA, model=model))
        base, found = losses(name + "-base"), losses(name)
        # The adapters add zeros to each product.
        problems += [] if found[0] == base[0] else [f"{name}: the first loss is {found[0]}, that of the base {base[0]}"]
        problems += [] if found[-1] < found[0] - 0.1 else [f"{name}: losses {found}"]
        verified = json.loads(program.must("verify", path(name), "--json").out)
        problems += [] if verified["bad"] == [] else [f"{name}: verify says {verified['bad']}"]
    return problems


def kill_at(run, step):
    """Ends a started run as a power button does, once its log has the step."""
    process = program.start(*train(run, *LORA, "--save-every", 1, "--schedule-steps", LONG, steps=LONG, place=EVERYTHING_AWAY))
    end = time.monotonic() + 60
    log = path(run, "log.jsonl")
    while time.monotonic() < end and not (os.path.exists(log) and len(program.steps_of(path(run))) >= step):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


def a_resumed_run_has_the_same_bits():
    """Also after kill -9, with all state elsewhere, narrow moments, and modules that are trained whole."""
    problems = []
    for name, model, *more in (("whole", GPT2), ("llama-whole", LLAMA, "--rslora", "--lora-targets", "q_proj,down_proj"),
                               ("narrow", LLAMA, "--precision", "bf16", "--optimizer-state", "8bit",
                                "--modules-to-save", "lm_head,norm")):
        program.must(*train(name, *LORA, *more, model=model))
        parts = name + "-in-parts"
        program.must(*train(parts, *LORA, *more, model=model, steps=HALF, place=EVERYTHING_AWAY))
        program.must("resume", path(parts), "--steps", STEPS, "--place", "weights=host,grads=host,optimizer=host")
        if program.numbers_of(path(name)) != program.numbers_of(path(parts)):
            problems.append(f"{name}: other numbers")
    kill_at("killed", HALF)
    left = len(program.steps_of(path("killed")))
    program.must("resume", path("killed"), "--steps", LONG)
    program.must(*train("not-killed", *LORA, "--schedule-steps", LONG, steps=LONG, place="weights=host"))
    problems += [] if left < LONG else ["the kill came after the last step"]
    same = program.numbers_of(path("killed")) == program.numbers_of(path("not-killed"))
    return problems + ([] if same else ["other numbers after a kill"])


def ranks_of(count, *arguments):
    done = program.limits.run(threads(count, program.command(*arguments)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{count} ranks of {' '.join(map(str, arguments))}: {done.stderr[-500:]}")
    return done.stdout


def two_ranks(*arguments):
    return ranks_of(2, *arguments)


def one_dropout_on_any_ranks():
    """Steps drop the same after a resume and on two ranks, whose losses differ from one's by the order of sums alone; a
    recipe repeats it."""
    problems, dropout = [], (*LORA, "--lora-dropout", 0.5)
    program.must(*train("dropped", *dropout))
    program.must(*train("kept", *LORA))
    program.must(*train("dropped-in-parts", *dropout, steps=HALF))
    program.must("resume", path("dropped-in-parts"), "--steps", STEPS, "--place", "weights=host,grads=host,optimizer=host")
    two_ranks(*train("dropped-twice", *dropout))
    program.must("train", "--recipe", path("dropped", "recipe.yaml"), "--run", path("dropped-again"))
    for run in ("dropped-in-parts", "dropped-again"):
        problems += [] if program.numbers_of(path("dropped")) == program.numbers_of(path(run)) else [f"{run}: other numbers"]
    one, two, kept = losses("dropped"), losses("dropped-twice"), losses("kept")
    problems += [] if all(abs(a - b) < 1e-4 for a, b in zip(one, two)) else [f"one rank: {one}, two: {two}"]
    problems += [] if max(abs(a - b) for a, b in zip(one, kept)) > 1e-3 else [f"losses without dropout: {kept}, with: {one}"]
    return problems


def ranks_share_adapters():
    """Every stage of two ranks has the numbers of stage 0; one rank goes on with a run of two, and two with that."""
    problems, expected = [], None
    for stage in range(4):
        run = f"stage-{stage}"
        two_ranks(*train(run, *LORA, "--zero", stage, steps=HALF))
        expected = expected or program.numbers_of(path(run))
        problems += [] if program.numbers_of(path(run)) == expected else [f"{run}: other numbers"]
        program.must("resume", path(run), "--steps", STEPS - 1)
        two_ranks("resume", path(run), "--steps", STEPS)
    two_ranks(*train("open-stage", *LORA, steps=1))
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
        program.must(*train(f"{name}-1", *more, model=model))
        for ranks, group in ((2, 2), (4, 2), (4, 4)):
            run = f"{name}-{ranks}-{group}"
            ranks_of(ranks, *train(run, *more, "--tensor", group, model=model))
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
            run = f"{name}-{number}"
            ranks_of(ranks, *train(run, *what, "--tensor", group, *more, model=model, place=place))
            expected = expected or program.numbers_of(path(run))
            problems += [] if program.numbers_of(path(run)) == expected else [f"{run} ({place} {more}): other numbers"]
    return problems


def another_group_goes_on():
    """One rank, a group of two, and one of four with the run of another; their folders hold the same adapter."""
    problems = []
    program.must(*train("alone", *LORA, *FP32, model=QWEN2))
    for before, after in ((2, 1), (1, 2), (2, 4), (4, 4)):
        run = f"from-{before}-to-{after}"
        ranks_of(before, *train(run, *LORA, *FP32, "--tensor", before, "--export-every", HALF, model=QWEN2, steps=HALF))
        program.must("export", path(run), path(run + "-adapter"))
        written = [path(*folder, "adapter_model.safetensors") for folder in ((run, "exports", f"step-{HALF}"), (run + "-adapter",))]
        problems += [] if filecmp.cmp(*written, shallow=False) else [f"{run}: the run and export write other adapters"]
        ranks_of(after, "resume", path(run), "--steps", STEPS, "--tensor", after)
        problems += far(run, path(run), path("alone"), lambda line: "grad_norm" in line, tolerance=1e-5)
        verified = json.loads(program.must("verify", path(run), "--json").out)
        problems += [] if verified["bad"] == [] else [f"{run}: verify says {verified['bad']}"]
    ranks_of(2, *train("base-group", *LORA, "--base-format", "nf4", "--tensor", 2, model=QWEN2, steps=1))
    told = [program.must("resume", path("base-group"), "--steps", steps, "--tensor", 1).err.count("rounded anew") for steps in (2, 3)]
    problems += [] if told == [1, 0] else [f"resumes of a quantized base say so {told} times"]
    ranks_of(2, *train("narrow-group", *LORA, "--tensor", 2, model=QWEN2, steps=HALF))
    return problems + program.refused("another format of a group's state",
                                      ["resume", path("narrow-group"), "--steps", STEPS, "--tensor", 1, "--optimizer-state", "bf16"],
                                      "--optimizer-state", status=1, watched=[path("narrow-group")])


def groups_read_adapters():
    """eval and generate cut a run of one rank or of a group, and a folder beside its model."""
    problems = []
    program.must(*train("read-1", *LORA))
    ranks_of(2, *train("read-2", *LORA, "--tensor", 2))
    program.must("export", path("read-1"), path("read-adapter"))
    for source in ((path("read-1"),), (path("read-2"),), (FOLDER, "--adapter", path("read-adapter"))):
        ask = ("eval", *source, "--data", DATA, *FP32, "--json")
        one, two = (json.loads(said)["loss"] for said in (program.must(*ask).out, two_ranks(*ask, "--tensor", 2)))
        problems += [] if abs(one - two) < 1e-5 * one else [f"eval of {source}: {one} on one rank, {two} on two"]
        say = ("generate", *source, "--prompt", "the ", "--max-tokens", 10, "--temperature", 0, "--precision", "fp32")
        one, two = program.must(*say).out, two_ranks(*say)
        problems += [] if one == two else [f"generate of {source}: {one!r} on one rank, {two!r} on two"]
    program.must(*train("read-nf4", *LORA, "--base-format", "nf4", steps=1))
    ended = program.limits.run(threads(2, program.command("eval", path("read-nf4"), "--data", DATA)), capture_output=True,
                               text=True, check=False)
    told = program.limits.run(threads(2, program.command("eval", path("read-nf4"), "--data", DATA, "--tensor", 2)),
                              capture_output=True, text=True, check=False)
    if (ended.returncode, told.returncode) != (0, 0) or "rounds other parts" not in told.stderr or "rounds" in ended.stderr:
        problems.append(f"eval of a quantized base on one rank says {ended.stderr!r}, in a group {told.stderr!r}")
    return problems


def tiles_train_adapters_as_whole_blocks_do():
    """Later tiles of a half have no factor that is not cut: the first hands it on, and sums its gradients. Dropout draws the
    same words, so its losses agree too."""
    problems = []
    for name, model, *more in (("gpt2-tiles", GPT2, "--lora-dropout", 0.25),
                               ("llama-tiles", LLAMA, "--lora-targets", "q_proj,v_proj,down_proj"),
                               ("saving-tiles", LLAMA, "--modules-to-save", "lm_head,norm,gate_proj,up_proj")):
        whole, cut, away = path(name), path(name + "-2"), path(name + "-away")
        program.must(*train(name, *LORA, *FP32, *more, model=model))
        program.must(*train(name + "-2", *LORA, *FP32, *more, "--tiles", 2, model=model))
        problems += far(name, cut, whole, tolerance=1e-5)
        program.must(*train(name + "-away", *LORA, *FP32, *more, "--tiles", 2, model=model, steps=HALF, place=EVERYTHING_AWAY))
        program.must("resume", away, "--steps", STEPS)
        if program.numbers_of(away) != program.numbers_of(cut):
            problems.append(f"{name}: other numbers from elsewhere")
    ranks_of(2, *train("group-tiles", *LORA, *FP32, "--tensor", 2, "--tiles", 2, model=TINY))
    program.must(*train("no-group", *LORA, *FP32, model=TINY))
    problems += far("a group's tiles", path("group-tiles"), path("no-group"), tolerance=1e-5)
    program.must("export", path("llama-tiles-2"), path("of-tiles"))
    program.must(*train("from-tiles", *FP32, "--adapter", path("of-tiles"), "--tiles", 2, "--export-every", 1, model=LLAMA, steps=1))
    program.must(*train("from-whole", *FP32, "--adapter", path("from-tiles", "exports", "step-1"), model=LLAMA, steps=1))
    first = [losses(run)[0] for run in ("from-tiles", "from-whole")]
    last = losses("llama-tiles-2")[-1]
    return problems + ([] if max(first) < last else [f"losses of adapters that tiles wrote: {first}, in the run {last}"])


def other_commands_read_adapters():
    problems = []
    program.must(*train("read", *LORA))
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
    problems = []
    for what, more, status, *words in table:
        arguments = train("none", *(LORA if "--lora" not in more else ()), *more)
        problems += program.refused(what, arguments, *words, status=status, watched=[SCRATCH])
    program.must(*train("fixed", *LORA, steps=1))
    return problems + program.refused("another rank at a resume", ["resume", path("fixed"), "--lora", 8], "--lora", status=2,
                                      watched=[path("fixed")])


def a_recipe_repeats_it():
    program.must(*train("first", *LORA, "--lora-alpha", 3, "--lora-targets", "attention"))
    program.must("train", "--recipe", path("first", "recipe.yaml"), "--run", path("again"))
    return [] if program.numbers_of(path("first")) == program.numbers_of(path("again")) else ["other numbers"]


def a_plan_shows_what_adapters_save():
    plan = ["plan", "--model", "gpt2-tiny", *program.SHAPE, "--place", "optimizer=nvme", "--nvme", SCRATCH, "--rates",
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
