"""Groups of ranks compute layers together (--tensor): with the losses of one rank, the same bits at every ZeRO stage and
placement, and nothing lost when a rank is."""

import array
import json
import os
import random
import shutil
import signal
import subprocess
import time

import hf_folder
import runs
from program import command, differences, limits, must, numbers_of, script_test, steps_of, text, tree, write
from ranks_jobs import Job, far, mpirun
from runs import path, refused

SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 32)))
# Steps of the schedule, of trainings that are compared by their losses and by their bits, and of those that are resumed.
SCHEDULE, STEPS, FEW, SHORT, ROUNDS = 50, 4, 3, 6, int(os.environ.get("SW_TEST_ROUNDS", 2))
TOLERANCE = 1e-5
TIMEOUT_S, PATIENT_S = 6, 100
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"
# Rows of the vocabulary, of the positions and of the hidden state that no number of ranks here divides.
VOCAB, SEQ, POSITIONS, SEQUENCES = 259, 33, 37, 8
LLAMA = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
         "intermediate_size": 176, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "hidden_act": "silu", "tie_word_embeddings": False}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": POSITIONS, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "llama": {"model_type": "llama", **LLAMA},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 8, "tie_word_embeddings": True},
}
# Fewer key-value heads than a group of four, or of two, has ranks: each rank has the weights of all of them.
CONFIGS["qwen2-two"] = {"model_type": "qwen2", **LLAMA, "num_key_value_heads": 2}
CONFIGS["qwen3-one"] = {**CONFIGS["qwen3"], "num_key_value_heads": 1}
SHARING = {"qwen2-two": ((4, 4),), "qwen3-one": ((2, 2), (4, 4))}


# Sequence parallelism: the rows of a rank on each tier, and inputs recomputed.
ROWS_ALONE = ("--sequence-parallel", "yes")
SEQUENCE = (("sequence", ROWS_ALONE), ("sequence-host", (*ROWS_ALONE, "--place", "acts=host")),
            ("sequence-away", (*ROWS_ALONE, "--place", EVERYTHING_AWAY)), ("sequence-again", (*ROWS_ALONE, "--recompute", "all")))


# Tiles of a rank's part of a layer. Heads that share norms, or a key-value head with another rank, have none.
TILES = ("--tiles", 2)
TILED = ("gpt2", "llama")


# Tokens of 16 bits: the vocabulary is larger than that of bytes.
DATA = write(path("data.bin"), array.array("H", list(text(1, 120 * SEQ).encode())).tobytes())
DATA_TEXT = write(path("prompt.bin"), array.array("H", list(b"the text")).tobytes())
# Twelve query heads and four key-value heads, which six ranks can neither share out nor share.
UNFIT = {"model_type": "llama", **LLAMA, "hidden_size": 96, "num_attention_heads": 12, "intermediate_size": 192}
for family, fields in {**CONFIGS, "unfit": UNFIT}.items():
    os.mkdir(path(family))
    write(path(family, "config.json"), json.dumps(fields))


class Run(runs.Run):
    data, steps, planned = (DATA,), SHORT, SCHEDULE
    shape = ("--seq", SEQ, "--micro-batch", 1, "--batch-tokens", SEQUENCES * SEQ, "--chunk-grains", 1, "--threads", 1)
    flags = ("--warmup", 5, "--precision", "fp32", "--rank-timeout", PATIENT_S)

    def __init__(self, name, *flags, family="gpt2", **members):
        super().__init__(name, *flags, model=(path(family), "--init"), **members)


def processes(ranks, *arguments):
    """Runs a command by ranks that a launcher has started, and returns what one of them writes."""
    done = limits.run(mpirun((ranks, command(*arguments))), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks of {' '.join(map(str, arguments))}: status {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


def groups_train_as_one_rank_does():
    """Models of every family do, with validation that the groups share out."""
    more, problems = ("--val", "9%", "--eval-every", 3), []
    for model in CONFIGS:
        Run(f"{model}-1", *more, family=model, steps=STEPS).train()
        for ranks, group in SHARING.get(model, ((2, 2), (4, 2), (4, 4))):
            name = f"{model}-{ranks}-{group}"
            Run(name, *more, "--tensor", group, family=model, steps=STEPS, ranks=ranks).train()
            problems += far(name, path(name), path(f"{model}-1"), tolerance=TOLERANCE)
    for model, ranks, *flags in (("gpt2", 2), ("llama", 4, "--partition-activations", "yes")):
        name = f"{model}-{ranks}-2-tiles"
        Run(name, *more, *flags, *TILES, "--tensor", 2, family=model, steps=STEPS, ranks=ranks).train()
        problems += far(name, path(name), path(f"{model}-1"), tolerance=TOLERANCE)
    Run("llama-rows", *more, *ROWS_ALONE, "--tensor", 2, family="llama", steps=STEPS, ranks=4).train()
    problems += far("sequence parallelism", path("llama-rows"), path("llama-4-2"), tolerance=0)
    # Groups of micro-batches that are reduced each by itself, whose sums have another order.
    Run("llama-batch", *more, *ROWS_ALONE, "--tensor", 2, "--zero", 2, "--order", "batch", family="llama", steps=STEPS, ranks=4).train()
    problems += far("groups of micro-batches", path("llama-batch"), path("llama-1"), tolerance=TOLERANCE)
    job = Run("llama-processes", *more, "--tensor", 2, family="llama", steps=STEPS)
    processes(4, *job.words())
    if job.numbers() != numbers_of(path("llama-4-2")):
        problems.append("ranks that are processes have other bits than ranks that are threads")
    last = steps_of(path("gpt2-4-2"))[-1]
    if last["ranks"] != 4 or last["tokens"] != SEQUENCES * SEQ or last["bytes"]["comm"] <= 0:
        problems.append(f"the log says of four ranks: {last}")
    return problems


def micro_batches_of_several_sequences_and_fewer_rows_train_alike():
    """The hidden state has other rows, and each of the two groups has micro-batches of its own."""
    Run("wide-1", "--clip", 0.05, "--micro-batch", 2, family="llama").train()
    Run("wide-4", "--clip", 0.05, "--tensor", 2, "--micro-batch", 2, family="llama", ranks=4).train()
    return far("micro-batches of two", path("wide-4"), path("wide-1"), tolerance=TOLERANCE)


def stages_and_placements_give_the_same_bits():
    """At one --tensor and number of ranks, with one group and with two."""
    places = (("device", ()), ("optimizer", ("--place", "optimizer=nvme")), ("away", ("--place", EVERYTHING_AWAY)),
              ("host", ("--place", "weights=host,grads=host,optimizer=host", "--update", "device")),
              ("recompute", ("--recompute", "all")), ("rows", ("--partition-activations", "yes")),
              ("rows-again", ("--partition-activations", "yes", "--recompute", "all")),
              ("rows-host", ("--partition-activations", "yes", "--place", "acts=host")),
              ("rows-away", ("--partition-activations", "yes", "--place", EVERYTHING_AWAY)), *SEQUENCE, ("batch", ("--order", "batch", "--place", EVERYTHING_AWAY)))
    table = [(2, 2, name, flags) for name, flags in places]
    table += [(4, 2, f"zero-{zero}-{name}", ("--zero", zero, *flags)) for zero in range(4) for name, flags in (*places[:3], SEQUENCE[0])]
    table += [(4, 4, "four", ()), (4, 4, "four-away", ("--place", EVERYTHING_AWAY)), (4, 4, "four-again", ("--recompute", "all")),
              (4, 4, "four-rows", ("--partition-activations", "yes", "--place", EVERYTHING_AWAY))]
    table += [(4, 4, f"four-{name}", flags) for name, flags in SEQUENCE]
    table += [(2, 2, f"tiles-{name}", (*TILES, *flags)) for name, flags in (*places[:9], places[-1])]
    table += [(4, 2, f"tiles-zero-{zero}-{name}", (*TILES, "--zero", zero, *flags)) for zero in range(4) for name, flags in (places[0], places[2])]
    problems, numbers = [], {}
    for turn, (ranks, group, what, flags) in enumerate(table):
        # Another order of micro-batches adds to a tied table in another order, as it does without groups.
        if what.startswith("zero"):
            models = ("llama", "qwen3-one")
        elif what.startswith("four"):
            models = ("llama", "qwen2-two")
        elif what.startswith("tiles"):
            models = ("llama",) if ranks == 4 or what.endswith("batch") else TILED
        else:
            models = {"batch": ("llama",), "device": ("gpt2", "qwen3", "llama")}.get(what, ("gpt2", "qwen3"))
        # One of two models in turn, but for the first of their kind, with which the others are compared.
        if len(models) == 2 and what not in ("four", "tiles-device"):
            models = (models[(turn + turn // 4) % 2],)
        for model in models:
            name = f"bits-{model}-{ranks}-{group}-{what}"
            Run(name, *flags, "--tensor", group, family=model, steps=FEW, ranks=ranks).train()
            if numbers.setdefault((model, ranks, group, what.startswith("tiles")), numbers_of(path(name))) != numbers_of(path(name)):
                problems.append(f"{name}: other bits than another stage or placement")
            shutil.rmtree(path(name))  # refusals below look at every file that there is
    return problems


def a_killed_rank_loses_nothing():
    """The others end and name it; resumes go on with the same bits, whatever rank it was."""
    draw, problems = random.Random(SEED), []
    flags = ("--tensor", 2, "--place", "weights=host,grads=nvme,optimizer=nvme")
    for turn in range(ROUNDS):
        arguments = command(*Run("lost", *flags, "--rank-timeout", TIMEOUT_S, steps=100000).words() if turn == 0 else ("resume", path("lost")))
        job = Job(path("job.log"), 4, arguments).wait_for("  loss ")
        time.sleep(draw.random())
        victim, processes = draw.randrange(4), job.processes()
        os.kill(processes[victim], signal.SIGKILL)
        code = job.end()
        said = [line for line in open(path("job.log"), encoding="utf-8") if line.startswith("spillway ")]
        if code in (None, 0) or len(said) != 1 or f"rank {victim} " not in said[0]:
            problems.append(f"rank {victim}, seed {SEED}: status {code}: {said}")
    problems += refused("one rank", ["resume", path("lost")], "--tensor 2", "another --tensor")
    problems += refused("heads", ["resume", path("lost"), "--tensor", 3], "--tensor 3", "4 heads", ranks=3)
    problems += refused("the commit before", ["resume", path("lost"), "--tensor", 4, "--previous"], "--previous", "--tensor", ranks=4)
    last = steps_of(path("lost"))[-1]["step"]
    must("resume", path("lost"), "--steps", last + 2, ranks=4)
    Run("unbroken", *flags, steps=last + 2, ranks=4).train()
    if numbers_of(path("lost")) != numbers_of(path("unbroken")):
        problems.append(f"seed {SEED}: other bits than a run that nothing has ended")
    return problems


def every_group_and_stage_resumes_from_every_other():
    """A run that changes twice, and is back where it began, goes on with the same bits; halfway its export is the same.
    Pairs are drawn, or all for SW_TEST_ROUNDS that have room for all."""
    layouts = [(group, zero) for group in (1, 2, 4) for zero in range(4)]
    pairs = [(a, b) for a in layouts for b in layouts if a != b]
    random.Random(SEED).shuffle(pairs)
    pairs, problems, exports = sorted(pairs[:3 * ROUNDS]), [], {}
    for (group, zero), (other_group, other_zero) in pairs:
        whole, run, export = (path(f"{what}-{group}-{zero}") for what in ("pairs", "pair", "pairs-out"))
        if whole not in exports:
            Run(os.path.basename(whole), "--tensor", group, "--zero", zero, family="qwen3", steps=3, ranks=4).train()
            shutil.copytree(whole, run)
            must("export", whole, export)
            must("resume", whole, "--steps", 5, ranks=4)
            exports[whole] = numbers_of(whole), tree(export)
        what = f"--tensor {group} --zero {zero} by way of --tensor {other_group} --zero {other_zero}"
        changed, out = path("changed"), path("changed-out")
        for made in (changed, out):
            shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(run, changed)
        must("resume", changed, "--tensor", other_group, "--zero", other_zero, ranks=4)
        must("verify", changed)
        must("export", changed, out)
        problems += [f"{what}: {name} of the export differs" for name in differences(exports[whole][1], tree(out))]
        must("resume", changed, "--tensor", group, "--zero", zero, "--steps", 5, ranks=4)
        if numbers_of(changed) != exports[whole][0]:
            problems.append(f"{what}: other bits than without")
    return problems


def groups_in_tiles_resume_as_others_do():
    """By way of whole layers in tiles, with the same bits; by way of a group whose parts cannot be cut, without tiles."""
    Run("tiled", *TILES, "--tensor", 2, family="llama", steps=3, ranks=2).train()
    shutil.copytree(path("tiled"), path("tiled-moved"))
    shutil.copytree(path("tiled"), path("tiled-cut"))
    must("resume", path("tiled"), "--steps", 2 * SHORT, "--place", EVERYTHING_AWAY, ranks=2)
    problems = []
    for ranks, flags, tiles in ((1, ("--tensor", 1), 2), (2, ("--tensor", 2, "--steps", 2 * SHORT), 2)):
        must("resume", path("tiled-moved"), *flags, ranks=ranks)
        must("verify", path("tiled-moved"))
        kept = json.load(open(path("tiled-moved", "run.json"), encoding="utf-8"))["settings"]["tiles"]
        problems += [] if kept == tiles else [f"resume {flags} goes on in {kept} tiles"]
    if numbers_of(path("tiled-moved")) != numbers_of(path("tiled")):
        problems.append("other bits by way of whole layers")
    for ranks, flags in ((4, ("--tensor", 4, "--steps", SHORT)), (4, ("--tensor", 2, "--zero", 3, "--steps", 2 * SHORT))):
        must("resume", path("tiled-cut"), *flags, ranks=ranks)
    if json.load(open(path("tiled-cut", "run.json"), encoding="utf-8"))["settings"]["tiles"] != 1:
        problems.append("tiles of one key-value head")
    problems += refused("rows of tiles", ["resume", path("tiled"), "--tensor", 2, "--sequence-parallel", "yes"], "--sequence-parallel",
                        "--tiles 2", ranks=2)
    return problems + far("a group of four", path("tiled-cut"), path("tiled"), tolerance=TOLERANCE)


def groups_resume_on_other_numbers_of_ranks():
    """Losses go on as those of a run that nothing has changed, up to the order of sums."""
    Run("steady", family="llama", steps=2 * SHORT).train()
    Run("moved", "--tensor", 2, "--sequence-parallel", "yes", family="llama", steps=2, ranks=2).train()
    for steps, (ranks, *flags) in zip(range(4, 2 * SHORT + 1, 2), ((4,), (4, "--tensor", 4, "--place", EVERYTHING_AWAY), (1, "--tensor", 1),
                                                                (2, "--tensor", 2, "--zero", 3), (4, "--tensor", 1))):
        must("resume", path("moved"), "--steps", steps, *flags, ranks=ranks)
    return far("ranks and groups that change", path("moved"), path("steady"), tolerance=TOLERANCE)


def narrow_state_is_laid_out_anew():
    """In bf16 moments come back as they were; in 8 bits they are rounded once more, and it is said."""
    problems = []
    for state, words in (("bf16", ""), ("8bit", "rounded to nearest")):
        name = f"narrow-{state}"
        Run(name, "--tensor", 2, "--optimizer-state", state, steps=2, ranks=2).train()
        shutil.copytree(path(name), path(name + "-whole"))
        said = must("resume", path(name), "--tensor", 1).err
        must("resume", path(name), "--tensor", 2, "--steps", 4, ranks=2)
        must("resume", path(name + "-whole"), "--steps", 4, ranks=2)
        if "--tensor 1 instead of 2" not in said or words not in said:
            problems.append(f"{state}: not said: {said}")
        if state == "bf16" and numbers_of(path(name)) != numbers_of(path(name + "-whole")):
            problems.append("bf16: other bits than without a change")
        problems += far(name, path(name), path(name + "-whole"), tolerance=1e-2)
    return problems


def runs_of_groups_are_read_whole():
    """Rates too small to change a weight leave each rank the parts that it began with, so that the export must be one rank's,
    byte for byte; a run that learned is evaluated as its export is, and wrote the same while it trained."""
    problems = []
    for turn, model in enumerate(CONFIGS):
        ways = [(1, 1, ()), (2, 2, ()), (4, 2, ("--zero", 3)), (4, 4, ("--optimizer-state", "8bit")),
                (4, 2, ("--zero", 0, "--place", EVERYTHING_AWAY))]
        ways += [(4, 2, (*TILES, "--optimizer-state", "8bit", "--zero", 1))] if model in TILED else []
        # Every other way, in turn; and all for keys and values that several ranks share.
        ways = ways if model == "qwen2-two" else [ways[0], *ways[1 + turn % 2::2]]
        for ranks, group, flags in ways:
            name = f"read-{model}-{ranks}-{group}{len(flags)}"
            Run(name, "--lr", 1e-300, "--min-lr", 0, "--tensor", group, *flags, family=model, steps=2, ranks=ranks).train()
            must("export", path(name), path(name + "-out"))
            must("verify", path(name))
            with open(path(name + "-out", "model.safetensors"), "rb") as file:
                found = file.read()
            first = found if ranks == 1 else first
            shutil.rmtree(path(name))
            shutil.rmtree(path(name + "-out"))
            problems += [] if found == first else [f"{name}: another export than one rank's"]
    for model, group, flags in (("llama", 2, ()), ("qwen2-two", 4, ROWS_ALONE), ("gpt2", 2, ("--zero", 1, "--place", EVERYTHING_AWAY))):
        learned = f"learned-{model}"
        Run(learned, "--tensor", group, "--export-every", SHORT // 2, "--keep", 2, *flags, family=model, ranks=4).train()
        must("export", path(learned), path(learned + "-out"))
        written = path(learned, "exports", f"step-{SHORT}"), path(learned, "exports", f"step-{SHORT // 2}")
        problems += [f"{learned}: {name} of the run's own export differs" for name in differences(tree(written[0]), tree(path(learned + "-out")))]
        problems += [] if tree(written[0]) != tree(written[1]) else [f"{learned}: the exports of two steps are equal"]
        losses = [must("eval", path(name), "--data", DATA, "--seq", SEQ).out.split("(")[0] for name in (learned, learned + "-out")]
        problems += [] if losses[0] == losses[1] else [f"{learned}: the run and its export have other losses: {losses}"]
    return problems


def large_parts_are_read_in_pieces():
    """An export of layers in many tiles reads few elements at a time, less than a rank has of a tensor."""
    os.mkdir(path("wide"))
    write(path("wide", "config.json"), json.dumps({**CONFIGS["gpt2"], "n_embd": 512, "n_layer": 1, "n_head": 8}))
    found = []
    for ranks, more in ((1, ()), (2, ("--tensor", 2, "--tiles", 4))):
        name = f"in-pieces-{ranks}"
        Run(name, "--lr", 1e-300, "--min-lr", 0, *more, family="wide", steps=1, ranks=ranks).train()
        must("export", path(name), path(name + "-out"))
        found.append(tree(path(name + "-out")))
    return [f"{name} is not what one rank has" for name in differences(*found)]


def groups_begin_from_a_checkpoint_as_one_rank_does():
    """With gradients that are clipped, so that their norm must count each element once."""
    problems = []
    for model in ("llama", "qwen2-two"):
        Run(f"{model}-first", family=model, steps=2).train()
        must("export", path(f"{model}-first"), path(f"{model}-checkpoint"))
        for ranks in (1, 4):
            run = Run(f"{model}-on-{ranks}", "--lr", 3e-4, "--clip", 0.05, "--tensor", ranks, ranks=ranks)
            run.model = (path(f"{model}-checkpoint"),)
            run.train()
        problems += far(model, path(f"{model}-on-4"), path(f"{model}-on-1"), tolerance=TOLERANCE)
    return problems


def ranks_evaluate_and_generate_together():
    """Runs of groups of every model, and a model's folder."""
    problems = []
    for model in CONFIGS:
        run, out = path(f"spoken-{model}"), path(f"spoken-{model}-out")
        tiles = TILES if model == "llama" else ()
        Run(os.path.basename(run), "--tensor", 2, *tiles, "--lr", 3e-3, family=model, steps=20, ranks=2).train()
        must("export", run, out)
        for source in (run, out) if model == "gpt2" else (run,):
            say = ("generate", source, "--tokens", DATA_TEXT, "--max-tokens", 40, "--temperature", 0, "--repetition-penalty", 1.3,
                          "--precision", "fp32", "--threads", 1)
            texts = {ranks: must(*say, ranks=ranks).out for ranks in (1, 2, 4)}
            if len(set(texts.values())) != 1 or len(texts[1].split()) < 40:
                problems.append(f"{source}: ranks write other texts: {texts}")
            rate = ("eval", source, "--data", DATA, "--seq", SEQ, "--precision", "fp32", "--threads", 1, "--json")
            ways = ((1, ()), (2, ()), (4, ("--tensor", 2)), (4, ("--tensor", 4)))
            losses = [json.loads(must(*rate, *more, ranks=ranks).out) for ranks, more in ways]
            far_off = [loss["loss"] for loss in losses if abs(loss["loss"] - losses[0]["loss"]) > TOLERANCE * losses[0]["loss"]
                       or loss["tokens"] != losses[0]["tokens"]]
            problems += [f"{source}: losses {far_off} instead of {losses[0]}"] if far_off else []
    done = limits.run(mpirun((1, command("eval", path("spoken-gpt2"), "--data", DATA)),
                                 (1, command("eval", path("spoken-gpt2"), "--data", DATA, "--seq", 9))), capture_output=True, text=True, check=False)
    if done.returncode == 0 or "rank 1 has another command line than rank 0" not in done.stderr:
        problems.append(f"other arguments of one rank: status {done.returncode}: {done.stderr[-800:]}")
    for what, status, ranks, flags, words in (("groups", 2, 4, ("eval", "--data", DATA, "--tensor", 3), "--tensor 3"),
                                              ("tokens", 2, 2, ("eval", "--data", DATA, "--tokens", 9), "--tokens"),
                                              ("two texts", 2, 4, ("generate", "--tokens", DATA_TEXT, "--tensor", 2), "leave out --tensor 2"),
                                              ("heads", 1, 3, ("generate", "--tokens", DATA_TEXT), "heads")):
        problems += refused(what, [flags[0], path("spoken-gpt2"), *flags[1:]], words, ranks=ranks, status=status)
    return problems


def ranks_chat_together():
    """Rank 0 alone has standard input; a line may be slow to come, and the last has no end."""
    folder = path("chatty")
    os.mkdir(folder)
    write(os.path.join(folder, "config.json"), json.dumps(hf_folder.config(n_positions=128)))
    hf_folder.write_chat_tokenizer(folder)
    data = write(path("chat.jsonl"), hf_folder.chat("What?", "That.", "And?", "This.") * 100)
    must("train", "--model", folder, "--init", "--data", data, "--run", path("learnt"), "--steps", 150, "--lr", "1e-2", "--seq", 128,
         "--batch-tokens", 512, "--micro-batch", 4)
    talk = command("generate", path("learnt"), "--chat", "--temperature", 0, "--max-tokens", 20, "--rank-timeout", 2)
    job = subprocess.Popen(mpirun((2, talk)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    job.stdin.write(b"What?\n")
    job.stdin.flush()
    time.sleep(5)
    out, err = limits.communicate(job, b"\nAnd?\nWhat?\nAnd?")
    alone = limits.run(talk, input=b"What?\nAnd?\nWhat?\nAnd?", capture_output=True, check=True).stdout
    right = job.returncode == 0 and out == alone and alone.startswith(b"That.\nThis.\n")
    return [] if right else [f"{job.returncode}: {out!r} instead of {alone!r}, {err!r}"]


def models_that_groups_cannot_cut_are_refused():
    table = (("gpt2", 3, ("--batch-tokens", 9 * SEQ), ("--tensor 3", "4 heads")),
             ("unfit", 6, ("--batch-tokens", 6 * SEQ), ("--tensor 6", "4 key-value heads", "nearest that fits is 4")),
             ("llama", 4, TILES, ("--tiles 2", "each rank of --tensor 4", "give 1")),
             ("qwen2-two", 4, TILES, ("--tiles 2", "--tensor 4", "2 key-value heads")),
             ("gpt2", 4, ("--seq", 3, "--batch-tokens", 3), ("--tensor 4",)))
    return [problem for family, ranks, flags, words in table
            for problem in Run("none", "--tensor", ranks, *flags, family=family, ranks=ranks).refused(*words)]


def plan_is_made_together():
    """By the ranks themselves, which measure what they exchange."""
    shape = ("plan", "--model", path("gpt2"), "--seq", SEQ, "--micro-batch", 1, "--batch-tokens", SEQUENCES * SEQ, "--threads", 1,
             "--precision", "fp32", "--device", "cpu", "--json")
    found = json.loads(processes(2, *shape, "--tensor", 2, "--rates", path("rates.json")))
    right = (found["tensor"] == {"ranks": 2, "groups": 1, "nodes": 1, "within_node_step_s": None} and found["sent"]["bytes"] > 0
             and found["predicted"]["plain"]["step_s"] > 0)
    auto = json.loads(processes(2, *shape, "--tensor", "auto"))
    taken = auto["tensor"]["ranks"] if auto["tensor"] is not None else 1
    steps = {size["ranks"]: size["step_s"] for size in auto["tensor_choice"]}
    if list(steps) != [1, 2] or not steps[taken] <= 1.01 * min(steps.values()):
        return [f"the ranks compare {auto['tensor_choice']} and take {taken}"]
    alone = json.loads(must("plan", "--model", "qwen2.5-7b", "--machine", "h100", "--ranks", 16, "--tensor", 4, "--json").out)
    whole = json.loads(must("plan", "--model", "qwen2.5-7b", "--machine", "h100", "--ranks", 16, "--json").out)
    right &= alone["parameters"] == whole["parameters"] and alone["predicted"]["plain"]["step_s"] > 0
    return [] if right else [f"{found['tensor']}, {found['sent']}, {alone['parameters']} of {whole['parameters']} parameters"]


script_test.run(groups_train_as_one_rank_does, groups_begin_from_a_checkpoint_as_one_rank_does,
                micro_batches_of_several_sequences_and_fewer_rows_train_alike, stages_and_placements_give_the_same_bits,
                a_killed_rank_loses_nothing, every_group_and_stage_resumes_from_every_other,
                groups_in_tiles_resume_as_others_do, groups_resume_on_other_numbers_of_ranks,
                narrow_state_is_laid_out_anew, runs_of_groups_are_read_whole, large_parts_are_read_in_pieces,
                ranks_evaluate_and_generate_together, ranks_chat_together, models_that_groups_cannot_cut_are_refused,
                plan_is_made_together)
