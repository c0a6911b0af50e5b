"""Mixtures of experts among ranks: tensor groups cut each expert's inner layer (--tensor), and expert groups share out whole
experts (--experts), and both together, with the losses of one rank, the same bits at every ZeRO stage and placement, and the
same exports."""

import array
import json
import os
import shutil
import struct
import subprocess

import preference_pairs
import runs
from program import command, differences, limits, must, numbers_of, script_test, text, tree, write
from ranks_jobs import far, mpirun
from runs import path

# Steps of trainings that are compared by their losses and by their bits, and of those that change their groups on the way. The
# gradients of an adapter's first matrix are 0 in step 1, so what they change shows in step 3.
STEPS, FEW, LONG, TOLERANCE = 4, 3, 12, 1e-5
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"
# Rows of the vocabulary, of the positions and of the hidden state that no number of ranks here divides.
VOCAB, SEQ, SEQUENCES = 259, 33, 8
SHAPE = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
         "max_position_embeddings": 40, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False}
CONFIGS = {
    # With a loss of the router, which one rank of a group must add to the gradient, and no other.
    "mixtral": {"model_type": "mixtral", **SHAPE, "intermediate_size": 52, "num_local_experts": 8, "num_experts_per_tok": 2,
                "output_router_logits": True, "router_aux_loss_coef": 0.5},
    # Two key-value heads, which the ranks of a group of four share.
    "qwen3": {"model_type": "qwen3_moe", **SHAPE, "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 44,
              "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True, "tie_word_embeddings": True},
}


# Mixtures with more than experts: a shared expert with its gate; biases, sinks and windows.
OTHERS = {
    "qwen2": {"model_type": "qwen2_moe", **SHAPE, "intermediate_size": 52, "moe_intermediate_size": 44,
              "shared_expert_intermediate_size": 52, "num_experts": 6, "num_experts_per_tok": 3, "decoder_sparse_step": 1,
              "norm_topk_prob": False},
    "gptoss": {"model_type": "gpt_oss", **{name: value for name, value in SHAPE.items() if name not in ("rope_theta",)},
               "rope_theta": 10000.0, "head_dim": 8, "intermediate_size": 44, "num_local_experts": 6, "num_experts_per_tok": 3,
               "num_key_value_heads": 2, "sliding_window": 12, "rope_scaling": {"rope_type": "default"}},
}


ADAPTERS = ("--lora", 4, "--lora-targets", "attention", "--lora-dropout", 0.3, "--lr", 3e-3, "--modules-to-save", "gate")


DATA = write(path("data.bin"), array.array("H", list(text(1, 120 * SEQ).encode())).tobytes())
PROMPT = write(path("prompt.bin"), array.array("H", list(b"the text")).tobytes())
for family, fields in (CONFIGS | OTHERS).items():
    os.mkdir(path(family))
    write(path(family, "config.json"), json.dumps(fields))


class Run(runs.Run):
    data, steps, planned = (DATA,), STEPS, 50
    shape = ("--seq", SEQ, "--micro-batch", 1, "--batch-tokens", SEQUENCES * SEQ, "--chunk-grains", 1, "--threads", 1)
    flags = ("--warmup", 5, "--precision", "fp32")

    def __init__(self, name, *flags, family="mixtral", **members):
        super().__init__(name, *flags, **{"model": (path(family), "--init"), **members})


def is_step(line):
    """A start and a resume each end with lines of the experts' tokens."""
    return "loss" in line


def groups_train_as_one_rank_does():
    """Whole, with frozen experts, with a frozen router, and with adapters, of experts too."""
    ways = (("all", ()), ("experts", ("--freeze", "*.experts.[13].*")), ("router", ("--freeze", "*.gate.weight")),
            ("lora", ("--lora", 4, "--lr", 3e-3)))
    problems = []
    for model in CONFIGS:
        for what, flags in ways if model == "mixtral" else ways[:1]:
            one = f"{model}-{what}-1"
            Run(one, *flags, family=model).train()
            # Two groups of two have the exchanges of one, and those between groups.
            for ranks, group in ((2, 2), (4, 2), (4, 4)) if what == "all" else ((4, 2), (4, 4)):
                name = f"{model}-{what}-{ranks}-{group}"
                Run(name, *flags, "--tensor", group, family=model, ranks=ranks).train()
                problems += far(name, path(name), path(one), tolerance=TOLERANCE)
    return problems


def expert_groups_train_as_one_rank_does():
    """Whole, with validation, with losses of the router, with frozen experts, with a frozen router, with adapters of the
    attention and a trained router, and with a base in 8 bits: its scales are those of whole layers, as every matrix here
    has a multiple of 256 elements, and not those of tensor groups, which cut rows."""
    ways = (("all", ("--val", "9%", "--eval-every", 3)), ("losses", ("--router-aux-loss", 0.5, "--router-z-loss", 0.1)),
            ("experts", ("--freeze", "*.experts.[0246].*")), ("router", ("--freeze", "*.gate.weight")), ("adapters", ADAPTERS),
            ("all-adapters", ("--lora", 4, "--lr", 3e-3)), ("base", (*ADAPTERS[:-2], "--base-format", "int8")))
    problems = []
    for model in CONFIGS:
        for what, flags in ways if model == "mixtral" else ways[:1]:
            one = f"{model}-{what}-one"
            Run(one, *flags, family=model).train()
            # The ranks of a tensor group of four share the key-value heads of qwen3.
            sizes = ((2, 2, 1), (4, 2, 1), (4, 4, 1), (4, 2, 2)) if model == "mixtral" else ((4, 2, 1), (8, 2, 4))
            # The number of groups does not change what is trained: the first way has every size.
            if what != "all":
                sizes = ((4, 2, 1), (4, 4, 1)) if what in ("base", "all-adapters") else ((4, 4, 1), (4, 2, 2))
            for ranks, group, tensor in sizes:
                name = f"{model}-{what}-{ranks}-experts-{group}-{tensor}"
                Run(name, *flags, "--experts", group, "--tensor", tensor, family=model, ranks=ranks).train()
                problems += far(name, path(name), path(one), tolerance=TOLERANCE)
    return problems


def shared_experts_sinks_and_biases_are_cut():
    """With the losses of one rank, the bits of another stage and placement, and resumes by other groups; with adapters too."""
    problems = []
    for model in OTHERS:
        for what, flags in (("plain", ()), ("lora", ("--lora", 4, "--lr", 3e-3))):
            name = f"{model}-{what}"
            Run(name, *flags, family=model).train()
            for ranks, *groups in ((4, "--tensor", 2), (4, "--tensor", 4), (4, "--experts", 2)):
                cut = f"{name}{''.join(map(str, groups))}"
                Run(cut, *flags, *groups, family=model, ranks=ranks).train()
                problems += far(cut, path(cut), path(name), tolerance=TOLERANCE)
                if what == "plain" or groups[0] == "--experts":
                    away = ("--zero", 3, "--place", EVERYTHING_AWAY, "--recompute", "all")
                    Run(cut + "-away", *flags, *groups, *away, family=model, ranks=ranks).train()
                    problems += [] if numbers_of(path(cut)) == numbers_of(path(cut + "-away")) else [f"{cut}: other bits at another stage"]
        cut = f"{model}-plain--experts2"
        must("export", path(cut), path("cut-out"))
        must("resume", path(cut), "--experts", 1, "--tensor", 2, ranks=2)
        must("verify", path(cut))
        must("export", path(cut), path("cut-back"))
        problems += [f"{cut}: {name} of the export differs" for name in differences(tree(path("cut-out")), tree(path("cut-back")))]
        for ranks, run, *groups in ((2, cut), (1, f"{model}-plain")):
            must("resume", path(run), "--steps", STEPS + 2, ranks=ranks)
        problems += far(cut, path(cut), path(f"{model}-plain"), is_step, TOLERANCE)
        for name in ("cut-out", "cut-back"):
            shutil.rmtree(path(name))
        say = ("generate", path(cut), "--tokens", PROMPT, "--max-tokens", 20, "--temperature", 0, "--precision", "fp32", "--threads", 1)
        texts = {ranks: must(*say, ranks=ranks).out for ranks in (1, 4)}
        if len(set(texts.values())) != 1 or len(texts[1].split()) < 20:
            problems.append(f"{model}: ranks write other texts: {texts}")
    return problems


def expert_groups_learn_preferences():
    """Each rank has pairs of its own, of the training and of the reference before it."""
    pairs = preference_pairs.write(path("pairs.jsonl"), preference_pairs.plain())
    preference_pairs.model(path("chatty"))
    os.remove(path("chatty", "model.safetensors"))
    write(path("chatty", "config.json"), json.dumps({**CONFIGS["mixtral"], "output_router_logits": False}))
    problems, numbers = [], []
    for what, flags in (("whole", ()), ("lora", ADAPTERS[:4])):
        for ranks, *groups in ((1,), (2, "--experts", 2), (4, "--experts", 2, "--zero", 0),
                               (4, "--experts", 2, "--zero", 3, "--place", EVERYTHING_AWAY), (4, "--experts", 2, "--tensor", 2)):
            name = f"pairs-{what}-{ranks}-{len(groups)}{'-both' if '--tensor' in groups else ''}"
            Run(name, "--dpo", "--seq", preference_pairs.SEQ, "--micro-batch", 2, "--batch-tokens", 16 * preference_pairs.SEQ, "--lr", 2e-3,
                "--warmup", 0, *flags, *groups, family="chatty", data=(pairs,), steps=FEW, planned=FEW, ranks=ranks).train()
            problems += far(name, path(name), path(f"pairs-{what}-1-0"), tolerance=TOLERANCE)
            numbers.append(numbers_of(path(name)))
        problems += [] if numbers[-2] == numbers[-3] else [f"{what}: other bits at another stage"]
    return problems


def processes_have_the_bits_of_threads():
    """A job of one group, of two, and of one of tensor groups, by mpirun, which moves the rows by MPI."""
    problems = []
    for ranks, flags in ((2, ()), (4, ("--zero", 3, "--place", EVERYTHING_AWAY)), (4, ("--tensor", 2))):
        processes, threads = (Run(f"{kind}-{ranks}-{len(flags)}", "--experts", 2, *flags, steps=FEW, ranks=ranks)
                              for kind in ("processes", "threads"))
        done = limits.run(mpirun((ranks, command(*processes.words()))), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problems.append(f"{processes.name}: status {done.returncode}: {done.stderr[-1500:]}")
        elif processes.numbers() != threads.train().numbers():
            problems.append(f"{ranks} processes have other bits than threads")
    return problems


def all_tokens_on_the_experts_of_one_rank():
    """A router of zeros chooses the first experts for every token, all of which the first rank has."""
    Run("even", "--lr", 1e-300, "--min-lr", 0, steps=1).train()
    must("export", path("even"), path("idle"))
    weights = path("idle", "model.safetensors")
    with open(weights, "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        for name, tensor in json.loads(file.read(size)).items():
            if name.endswith(".gate.weight"):
                begin, end = tensor["data_offsets"]
                file.seek(8 + size + begin)
                file.write(bytes(end - begin))
    for ranks in (1, 4):
        Run(f"idle-{ranks}", "--lr", 3e-3, "--warmup", 0, "--freeze", "*.gate.weight", "--experts", ranks, model=(path("idle"),), steps=FEW, ranks=ranks).train()
    return far("idle experts", path("idle-4"), path("idle-1"), tolerance=TOLERANCE)


def a_base_of_expert_groups_is_rounded_anew():
    """The scales of a base in nf4 are those of a rank's experts: eval and a resume by one rank say so, and losses stay near."""
    flags = (*ADAPTERS, "--base-format", "nf4")
    Run("rounded", *flags, "--experts", 2, steps=FEW, ranks=2).train()
    Run("rounded-one", *flags, steps=FEW + 2).train()
    read = must("eval", path("rounded"), "--data", DATA, "--seq", SEQ, "--threads", 1).err
    told = [must("resume", path("rounded"), "--steps", FEW + more, *groups).err.count("rounded anew")
            for more, *groups in ((1, "--experts", 1), (2,))]
    problems = far("a base that is rounded anew", path("rounded"), path("rounded-one"), tolerance=1e-2)
    if "to nf4 for --experts 2; --tensor 1 rounds" not in read or told != [1, 0]:
        problems.append(f"eval says {read!r}, and resumes say {told} times that the base is rounded anew")
    return problems


def stages_and_placements_give_the_same_bits():
    """At one --tensor, --experts or --lora, and number of ranks."""
    rows, partitioned = ("--sequence-parallel", "yes"), ("--partition-activations", "yes")
    places = (("device", ()), ("away", ("--place", EVERYTHING_AWAY)), ("recompute", ("--recompute", "all")),
              ("host", ("--place", "weights=host,grads=host,optimizer=host", "--update", "device")), ("rows", partitioned),
              ("rows-away", (*partitioned, "--place", EVERYTHING_AWAY)), ("sequence", rows),
              ("sequence-again", (*rows, "--recompute", "all", "--place", EVERYTHING_AWAY)), ("batch", ("--order", "batch")))
    table = [("--tensor", 2, 2, *place) for place in places]
    table += [("--tensor", 4, 4, *place) for place in (places[0], places[7])]
    # Stages 2 and 3 reduce each group of micro-batches for itself, in another order.
    batch = ("batch", (*places[8][1], "--zero", 1))
    table += [("--experts", 2, 2, *place) for place in (*places[:4], batch)] + [("--experts", 4, 4, *place) for place in places[:2]]
    # Tensor groups of dense models have both places at each stage (cli_ranks_tensor.py), and so have expert groups here.
    in_turn = [(zero, places[zero % 2]) for zero in range(4)]
    table += [("--tensor", 4, 2, f"zero-{zero}-{name}", ("--zero", zero, *flags)) for zero, (name, flags) in in_turn]
    table += [("--experts", 4, 2, f"zero-{zero}-{name}", ("--zero", zero, *flags)) for zero in range(4) for name, flags in places[:2]]
    narrow = (*ADAPTERS, "--base-format", "nf4", "--optimizer-state", "8bit")
    table += [("--experts", 2, 2, *place) for place in (("narrow", narrow), ("narrow-away", (*narrow, "--place", EVERYTHING_AWAY)))]
    table += [("--experts", 4, 2, f"narrow-{zero}", (*narrow, "--zero", zero, *flags))
              for zero, flags in ((0, ()), (2, ("--recompute", "all")), (3, ()), (3, ("--place", EVERYTHING_AWAY)))]
    table += [("--lora", 2, 4, f"zero-{zero}-{name}", ("--zero", zero, *flags)) for zero, (name, flags) in in_turn]
    adapted = ("--lora", 4, "--lora-targets", "experts", "--lr", 3e-3)
    table += [("--experts", 4, 2, f"adapted-{zero}", (*adapted, "--zero", zero, *flags)) for zero, flags in ((0, ()), (3, places[1][1]))]
    both = ("--tensor", 2)
    table += [("--experts", 4, 2, f"both-{name}", (*both, *flags)) for name, flags in (*places[:6], batch)]
    table += [("--experts", 4, 2, f"both-{what}", (*both, *narrow, *flags))
              for what, flags in (("narrow", ()), ("narrow-away", ("--place", EVERYTHING_AWAY)))]
    table += [("--experts", 8, 2, f"both-zero-{zero}-{name}", (*both, "--zero", zero, *flags))
              for zero, (name, flags) in enumerate((places[1], places[0], places[3], places[5]))]
    problems, numbers = [], {}
    for kind, ranks, group, what, flags in table:
        # Another order of micro-batches adds to a tied table in another order, as it does without groups.
        for model in CONFIGS if (kind, group) == ("--tensor", 4) or (group == 2 and what in ("device", "away")) else ("mixtral",):
            name = f"bits-{model}-{ranks}{kind}-{group}-{what}"
            Run(name, *flags, kind, group, family=model, steps=FEW, ranks=ranks).train()
            key = (kind, model, ranks, group, what.startswith("both"), "narrow" in what, what.startswith("adapted"))
            if numbers.setdefault(key, numbers_of(path(name))) != numbers_of(path(name)):
                problems.append(f"{name}: other bits than another stage or placement")
            shutil.rmtree(path(name))  # refusals below look at every file that there is
    return problems


def runs_resume_in_other_groups():
    """Losses go on as those of one rank, and a run that changes twice between two steps goes on with the same bits."""
    problems = []
    Run("steady", family="qwen3", steps=LONG).train()
    Run("moved", "--tensor", 2, family="qwen3", steps=3, ranks=2).train()
    shutil.copytree(path("moved"), path("back"))
    must("export", path("moved"), path("moved-out"))
    for ranks, group in ((4, 4), (1, 1)):
        must("resume", path("back"), "--tensor", group, ranks=ranks)
        must("verify", path("back"))
        must("export", path("back"), path("back-out"))
        problems += [f"--tensor {group}: {name} of the export differs" for name in differences(tree(path("moved-out")), tree(path("back-out")))]
        shutil.rmtree(path("back-out"))
    for name, flags in (("back", ("--tensor", 2)), ("moved", ())):
        must("resume", path(name), *flags, "--steps", 6, ranks=2)
    if numbers_of(path("back")) != numbers_of(path("moved")):
        problems.append("other bits by way of other groups")
    for steps, (ranks, *flags) in ((8, (4, "--tensor", 4, "--place", EVERYTHING_AWAY)), (10, (4, "--tensor", 2, "--zero", 3)), (12, (1, "--tensor", 1))):
        must("resume", path("moved"), "--steps", steps, *flags, ranks=ranks)
    return problems + far("groups that change", path("moved"), path("steady"), is_step, TOLERANCE)


def runs_resume_in_other_expert_groups():
    """A run goes on by way of whole layers and of tensor groups, too."""
    problems = []
    Run("steady-experts", steps=LONG).train()
    Run("shared", "--experts", 2, steps=3, ranks=2).train()
    shutil.copytree(path("shared"), path("shared-back"))
    must("export", path("shared"), path("shared-out"))
    for ranks, flags in ((4, ("--experts", 4)), (8, ("--experts", 4, "--tensor", 2)), (8, ("--experts", 2, "--tensor", 4)),
                         (1, ("--experts", 1, "--tensor", 1)), (8, ("--experts", 2, "--tensor", 2)), (2, ("--tensor", 1))):
        must("resume", path("shared-back"), *flags, ranks=ranks)
        must("verify", path("shared-back"))
        must("export", path("shared-back"), path("back-out"))
        problems += [f"{flags}: {name} of the export differs" for name in differences(tree(path("shared-out")), tree(path("back-out")))]
        shutil.rmtree(path("back-out"))
    for name in ("shared-back", "shared"):
        must("resume", path(name), "--steps", 6, ranks=2)
    if numbers_of(path("shared-back")) != numbers_of(path("shared")):
        problems.append("other bits by way of other groups")
    for steps, (ranks, *flags) in ((8, (4, "--experts", 4, "--place", EVERYTHING_AWAY)), (9, (2, "--experts", 1, "--tensor", 2)),
                                   (10, (4, "--experts", 2, "--tensor", 1, "--zero", 3)), (11, (8, "--tensor", 2, "--zero", 3)),
                                   (12, (1, "--experts", 1, "--tensor", 1))):
        must("resume", path("shared"), "--steps", steps, *flags, ranks=ranks)
    return problems + far("groups that change", path("shared"), path("steady-experts"), is_step, TOLERANCE)


def adapters_of_shared_out_experts_are_read_whole():
    """Each rank has those of its experts, which a resume lays out for other groups and an export has all."""
    problems = []
    for model, group in (("mixtral", 4), ("gptoss", 2)):
        run, out, again = path(f"adapted-{model}"), path("adapted-out"), path("adapted-again")
        Run(run, "--experts", 2, "--lora", 4, "--lr", 3e-3, family=model, steps=FEW, ranks=2).train()
        must("export", run, out)
        for ranks, *flags in ((4, "--experts", group), (2, "--experts", 1, "--tensor", 2), (1, "--tensor", 1)):
            must("resume", run, *flags, ranks=ranks)
            must("verify", run)
            must("export", run, again)
            problems += [f"{model}, {flags}: {name} of the export differs" for name in differences(tree(out), tree(again))]
            shutil.rmtree(again)
        shutil.rmtree(out)
    return problems


def runs_of_groups_are_read_whole():
    """Rates too small to change a weight leave each rank the parts that it began with, so that the export must be one rank's,
    byte for byte; ranks generate and evaluate together what one rank does."""
    problems, exports = [], {}
    ways = ((1, ()), (2, ("--tensor", 2, "--optimizer-state", "8bit")), (4, ("--tensor", 4, "--place", EVERYTHING_AWAY)),
            (2, ("--experts", 2, "--optimizer-state", "8bit")), (4, ("--experts", 2, "--zero", 3, "--place", EVERYTHING_AWAY)),
            (4, ("--experts", 2, "--tensor", 2, "--optimizer-state", "8bit")),
            (8, ("--experts", 2, "--tensor", 2, "--zero", 3, "--place", EVERYTHING_AWAY)))
    for model in CONFIGS:
        # The layout of the stores is that of the groups, whatever the model: the second has every other one.
        for ranks, flags in ways if model == "mixtral" else ways[::2]:
            name = f"read-{model}-{ranks}{flags[:3]}"
            Run(name, "--lr", 1e-300, "--min-lr", 0, *flags, family=model, steps=2, ranks=ranks).train()
            must("export", path(name), path(name + "-out"))
            with open(path(name + "-out", "model.safetensors"), "rb") as file:
                found = file.read()
            if exports.setdefault(model, found) != found:
                problems.append(f"{name}: another export than one rank's")
    Run("spoken", "--experts", 2, "--tensor", 2, "--lr", 3e-3, "--export-every", 20, steps=20, ranks=4).train()
    must("export", path("spoken"), path("spoken-out"))
    problems += [f"{name} of the run's own export differs" for name in differences(tree(path("spoken", "exports", "step-20")), tree(path("spoken-out")))]
    say = ("generate", path("spoken"), "--tokens", PROMPT, "--max-tokens", 30, "--temperature", 0, "--precision", "fp32", "--threads", 1)
    rate = ("eval", path("spoken"), "--data", DATA, "--seq", SEQ, "--precision", "fp32", "--threads", 1, "--json")
    texts = {ranks: must(*say, ranks=ranks).out for ranks in (1, 2, 4)}
    if len(set(texts.values())) != 1 or len(texts[1].split()) < 30:
        problems.append(f"ranks write other texts: {texts}")
    losses = [json.loads(must(*rate, *flags, ranks=ranks).out)["loss"] for ranks, flags in ((1, ()), (2, ("--tensor", "2")), (4, ("--tensor", "4")))]
    if max(losses) - min(losses) > TOLERANCE * losses[0]:
        problems.append(f"losses of an evaluation: {losses}")
    return problems


def groups_that_experts_do_not_fit_are_refused():
    os.mkdir(path("narrow"))
    write(path("narrow", "config.json"), json.dumps({**CONFIGS["mixtral"], "intermediate_size": 54}))
    return [*Run("none", "--tensor", 4, family="narrow", ranks=4).refused("--tensor 4", "54 columns of the model's experts",
                                                                         "nearest that fits is 2"),
            *Run("none", "--tensor", 2, "--tiles", 2, ranks=2).refused("--tiles 2", "whose blocks have experts"),
            *Run("none", "--tensor", 2, "--optimizer-state", "bf16", "--precision", "fp8", ranks=2).refused("--precision fp8", "experts")]


def expert_groups_that_do_not_fit_are_refused():
    os.mkdir(path("dense"))
    write(path("dense", "config.json"), json.dumps({"model_type": "llama", **SHAPE, "intermediate_size": 52}))
    table = (("experts", 1, 4, ("--experts", 4), "qwen3", ("--experts 4", "must divide the model's 6 experts")),
             ("a dense model", 1, 2, ("--experts", 2), "dense", ("--experts 2", "llama has none")),
             ("ranks", 2, 4, ("--experts", 3), "qwen3", ("--experts 3", "this job has 4")),
             ("both", 2, 2, ("--experts", 2, "--tensor", 2), "mixtral", ("--experts 2 with --tensor 2", "groups of 4 ranks, and this job has 2")),
             ("columns", 1, 6, ("--experts", 2, "--tensor", 3), "mixtral", ("--tensor 3", "must divide the model's 8 heads")),
             ("experts beside tensors", 1, 8, ("--experts", 4, "--tensor", 2), "qwen3", ("--experts 4", "must divide the model's 6 experts")),
             ("rows", 2, 4, ("--experts", 2, "--tensor", 2, "--sequence-parallel", "yes"), "mixtral", ("--sequence-parallel yes", "--experts 2")),
             ("adapters of experts", 1, 4, ("--experts", 2, "--tensor", 2, "--lora", 4, "--lora-targets", "attention,mlp"), "mixtral",
              ("--experts 2 with --tensor 2", "adapters of experts", "--lora-targets attention")),
             ("adapters of one", 1, 2, ("--experts", 2, "--lora", 4, "--lora-targets", "*.experts.3.*"), "mixtral", ("--experts 2", "--lora-targets")),
             ("adapters of none", 1, 2, ("--experts", 2, "--lora", 4, "--lora-targets", "*.experts.9.*"), "mixtral", ("'*.experts.9.*'", "no matrix")),
             ("a shared expert", 1, 4, ("--experts", 2, "--tensor", 2), "qwen2",
              ("--experts 2 with --tensor 2", "qwen2_moe", "shared expert", "leave one of the two out")),
             ("joined experts", 1, 4, ("--experts", 2, "--tensor", 2), "gptoss",
              ("--experts 2 with --tensor 2", "gpt_oss", "in one tensor", "leave one of the two out")),
             ("one expert", 1, 2, ("--experts", 2, *ADAPTERS[:-1], "*.experts.3.*"), "mixtral", ("--experts 2", "--modules-to-save")),
             ("quantized", 2, 2, ("--experts", 2, "--zero", 3, "--gather", "int8"), "mixtral", ("--gather int8", "--experts 2")),
             ("frozen", 1, 2, ("--experts", 2, "--freeze", "*.experts.[13].*"), "mixtral", ("--experts 2", "--freeze")),
             ("units", 2, 2, ("--experts", 2, "--expert-group", 2), "mixtral", ("--expert-group", "--experts 2")),
             ("tiles", 1, 2, ("--experts", 2, "--tiles", 2), "mixtral", ("--tiles 2", "experts")))
    return [problem for what, status, ranks, flags, model, words in table
            for problem in Run("none", *flags, family=model, ranks=ranks).refused(*words, what=what, status=status)]


def plan_answers_for_groups():
    """All sizes that fit, with as many parameters; each rank has an expert's columns, and so less of the device."""
    fields = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3584,
              "vocab_size": 32000, "max_position_embeddings": 2048}
    for name, described in (("planned", {**CONFIGS["mixtral"], **fields}), ("joined", {**OTHERS["gptoss"], "head_dim": 64})):
        os.mkdir(path(name))
        write(path(name, "config.json"), json.dumps(described))
    shape = ("plan", "--model", path("planned"), "--machine", "h100", "--ranks", 8, "--batch-tokens", 16384, "--json")
    auto = json.loads(must(*shape, "--tensor", "auto").out)
    sizes = {size["ranks"]: size for size in auto["tensor_choice"]}
    problems = [] if list(sizes) == [1, 2, 4, 8] else [f"sizes: {list(sizes)}"]
    whole, cut = (json.loads(must(*shape, "--tensor", group).out) for group in (1, 8))
    if cut["parameters"] != whole["parameters"] or not cut["peak_bytes"]["device"] < whole["peak_bytes"]["device"]:
        problems.append(f"{[(plan['parameters'], plan['peak_bytes']) for plan in (whole, cut)]}")
    shared = json.loads(must(*shape, "--experts", 8).out)
    if (shared["expert_ranks"], whole["expert_ranks"], shared["parameters"]) != (8, 1, whole["parameters"]):
        problems.append(f"{shared['expert_ranks']}, {whole['expert_ranks']}, {shared['parameters']} parameters")
    both, auto = (json.loads(must(*shape, "--experts", 2, "--tensor", group).out) for group in (4, "auto"))
    if (both["expert_ranks"], both["tensor"]["ranks"], both["parameters"]) != (2, 4, whole["parameters"]):
        problems.append(f"{both['expert_ranks']}, {both['tensor']}, {both['parameters']} parameters")
    if [size["ranks"] for size in auto["tensor_choice"]] != [1, 2, 4]:
        problems.append(f"beside --experts 2: {auto['tensor_choice']}")
    joined = ("plan", "--model", path("joined"), *shape[3:], "--lora", 8, "--seq", 32)
    plans = [json.loads(must(*joined, *flags).out) for flags in ((), ("--experts", 2), ("--tensor", 2))]
    counts = [[plan[name] for name in ("parameters", "active_parameters")] for plan in plans]
    problems += [] if counts == counts[:1] * 3 else [f"parameters of joined experts: {counts}"]
    said = must(*shape[:-1], "--experts", 2, "--tensor", "auto").out
    if f"--experts 2 --tensor {auto['tensor']['ranks'] if auto['tensor'] else 1}" not in said or "--tensor auto --" in said:
        problems.append(f"the command that plan gives has no size: {said!r}")
    return problems


def experts_that_are_units_are_sharded_as_blocks_are():
    """With the losses of whole blocks at every stage and wherever state lives; the norm is summed in another order."""
    losses, problems = {}, []
    for name, flags in (("blocks", ()), ("zero-1", ("--expert-group", 2, "--zero", 1, "--place", EVERYTHING_AWAY)),
                        ("zero-3", ("--expert-group", 3, "--zero", 3, "--place", "weights=host,optimizer=nvme"))):
        losses[name] = Run(f"units-{name}", "--clip", 0, *flags, family="qwen3", steps=FEW, ranks=2).train().losses()
    if len(set(map(tuple, losses.values()))) > 1:
        problems.append(f"losses: {losses}")
    return problems + Run("none", "--tensor", 2, "--expert-group", 1, ranks=2).refused("--expert-group 1", "--tensor 2")


script_test.run(groups_train_as_one_rank_does, expert_groups_train_as_one_rank_does, shared_experts_sinks_and_biases_are_cut, expert_groups_learn_preferences,
                processes_have_the_bits_of_threads, all_tokens_on_the_experts_of_one_rank,
                a_base_of_expert_groups_is_rounded_anew, stages_and_placements_give_the_same_bits, runs_resume_in_other_groups, runs_resume_in_other_expert_groups,
                adapters_of_shared_out_experts_are_read_whole, runs_of_groups_are_read_whole, groups_that_experts_do_not_fit_are_refused,
                expert_groups_that_do_not_fit_are_refused, plan_answers_for_groups,
                experts_that_are_units_are_sharded_as_blocks_are)
