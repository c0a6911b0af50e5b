"""Groups of ranks compute layers together (--tensor): with the losses of one rank, the same bits at every ZeRO stage and
placement, and nothing lost when a rank is."""

import array
import json
import os
import random
import signal
import subprocess
import time

from program import LIMIT_S, command, differences, must, numbers_of, scratch_folder, script_test, steps_of, text, tree, write
from ranks_jobs import Job, far, mpirun

FOLDER = scratch_folder()
SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 32)))
STEPS, SHORT, ROUNDS = 50, 6, int(os.environ.get("SW_TEST_ROUNDS", 2))
TOLERANCE = 1e-5
TIMEOUT_S, PATIENT_S, GRACE_S = 6, 100, 20
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


def path(*names):
    return os.path.join(FOLDER, *names)


# Tokens of 16 bits: the vocabulary is larger than that of bytes.
DATA = write(path("data.bin"), array.array("H", list(text(1, 120 * SEQ).encode())).tobytes())
for family, fields in CONFIGS.items():
    os.mkdir(path(family))
    write(path(family, "config.json"), json.dumps(fields))


def train(name, *more, model="gpt2", steps=SHORT, timeout_s=PATIENT_S, micro_batch=1, batch=SEQUENCES * SEQ, seq=SEQ):
    return command("train", "--model", path(model) if model in CONFIGS else model, "--init", "--data", DATA, "--run", path(name),
                   "--steps", steps, "--schedule-steps", STEPS, "--warmup", 5, "--seq", seq, "--micro-batch", micro_batch, "--batch-tokens",
                   batch, "--chunk-grains", 1, "--threads", 1, "--precision", "fp32", "--rank-timeout", timeout_s, *more)


def started(ranks, arguments):
    return subprocess.run(mpirun((ranks, arguments)) if ranks > 1 else arguments, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)


def together(ranks, arguments):
    done = started(ranks, arguments)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks of {' '.join(map(str, arguments))}: status {done.returncode}: {done.stderr[-1500:]}")
    return done


def refused(what, ranks, arguments, *words):
    """One rank says in one line why all end, and nothing is changed."""
    before = tree(FOLDER)
    done = started(ranks, arguments)
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    right = done.returncode != 0 and len(said) == 1 and all(word in said[0] for word in words)
    problems = [] if right else [f"{what}: status {done.returncode}, lacks one of {words}: {done.stderr[-1500:]}"]
    return problems + [f"{what}: {name} was changed" for name in differences(before, tree(FOLDER))]


def groups_train_as_one_rank_does():
    """Models of every family do, with validation that the groups share out."""
    more, problems = ("--val", "30%", "--eval-every", 20), []
    for model in CONFIGS:
        together(1, train(f"{model}-1", *more, model=model, steps=STEPS))
        for ranks, group in ((2, 2), (4, 2), (4, 4)):
            name = f"{model}-{ranks}-{group}"
            together(ranks, train(name, *more, "--tensor", group, model=model, steps=STEPS))
            problems += far(name, path(name), path(f"{model}-1"), tolerance=TOLERANCE)
    last = steps_of(path("gpt2-4-2"))[-1]
    if last["ranks"] != 4 or last["tokens"] != SEQUENCES * SEQ or last["bytes"]["comm"] <= 0:
        problems.append(f"the log says of four ranks: {last}")
    return problems


def micro_batches_of_several_sequences_and_fewer_rows_train_alike():
    """The hidden state has other rows, and each of the two groups has micro-batches of its own."""
    together(1, train("wide-1", "--clip", 0.05, model="llama", micro_batch=2))
    together(4, train("wide-4", "--clip", 0.05, "--tensor", 2, model="llama", micro_batch=2))
    return far("micro-batches of two", path("wide-4"), path("wide-1"), tolerance=TOLERANCE)


def stages_and_placements_give_the_same_bits():
    """At one --tensor and number of ranks, with one group and with two."""
    places = (("device", ()), ("optimizer", ("--place", "optimizer=nvme")), ("away", ("--place", EVERYTHING_AWAY)),
              ("host", ("--place", "weights=host,grads=host,optimizer=host", "--update", "device")),
              ("recompute", ("--recompute", "all")), ("rows", ("--partition-activations", "yes")),
              ("rows-host", ("--partition-activations", "yes", "--place", "acts=host")),
              ("rows-away", ("--partition-activations", "yes", "--place", EVERYTHING_AWAY)), ("batch", ("--order", "batch", "--place", EVERYTHING_AWAY)))
    table = [(2, 2, name, flags) for name, flags in places]
    table += [(4, 2, f"zero-{zero}-{name}", ("--zero", zero, *flags)) for zero in range(4) for name, flags in places[:3]]
    table += [(4, 4, "four", ()), (4, 4, "four-away", ("--place", EVERYTHING_AWAY))]
    problems, numbers = [], {}
    for ranks, group, what, flags in table:
        # Another order of micro-batches adds to a tied table in another order, as it does without groups.
        models = ("llama",) if what.startswith("zero") or what.startswith("four") or what == "batch" else ("gpt2", "qwen3", "llama") if what == "device" else ("gpt2", "qwen3")
        for model in models:
            name = f"bits-{model}-{ranks}-{group}-{what}"
            together(ranks, train(name, *flags, "--tensor", group, model=model))
            if numbers.setdefault((model, ranks, group), numbers_of(path(name))) != numbers_of(path(name)):
                problems.append(f"{name}: other bits than another stage or placement")
    return problems


def a_killed_rank_loses_nothing():
    """The others end and name it; resumes go on with the same bits, whatever rank it was."""
    draw, problems = random.Random(SEED), []
    flags = ("--tensor", 2, "--place", "weights=host,grads=nvme,optimizer=nvme")
    for turn in range(ROUNDS):
        arguments = train("lost", *flags, steps=100000, timeout_s=TIMEOUT_S) if turn == 0 else command("resume", path("lost"))
        job = Job(path("job.log"), 4, arguments).wait_for(" loss ")
        time.sleep(draw.random())
        victim, processes = draw.randrange(4), job.processes()
        os.kill(processes[victim], signal.SIGKILL)
        code = job.end(TIMEOUT_S + GRACE_S)
        said = [line for line in open(path("job.log"), encoding="utf-8") if line.startswith("spillway ")]
        if code in (None, 0) or len(said) != 1 or f"rank {victim} " not in said[0]:
            problems.append(f"rank {victim}, seed {SEED}: status {code}: {said}")
    problems += refused("other groups", 4, command("resume", path("lost"), "--tensor", 4), "--tensor 2", "to 4")
    problems += refused("fewer ranks", 2, command("resume", path("lost")), "--tensor 2", "start 4", "not 2")
    last = steps_of(path("lost"))[-1]["step"]
    together(4, command("resume", path("lost"), "--steps", last + 2))
    together(4, train("unbroken", *flags, steps=last + 2))
    if numbers_of(path("lost")) != numbers_of(path("unbroken")):
        problems.append(f"seed {SEED}: other bits than a run that nothing has ended")
    return problems


def runs_of_groups_are_read_whole():
    """Rates too small to change a weight leave each rank the parts that it began with, so that the export must be one rank's,
    byte for byte; and a run that learned is evaluated as its export is."""
    problems = []
    for model in CONFIGS:
        for ranks, group, flags in ((1, 1, ()), (2, 2, ()), (4, 2, ("--zero", 3)), (4, 4, ("--optimizer-state", "8bit")),
                                    (4, 2, ("--zero", 0, "--place", EVERYTHING_AWAY))):
            name = f"read-{model}-{ranks}-{group}{len(flags)}"
            together(ranks, train(name, "--lr", 1e-300, "--min-lr", 0, "--tensor", group, *flags, model=model, steps=2))
            must("export", path(name), path(name + "-out"))
            must("verify", path(name))
            with open(path(name + "-out", "model.safetensors"), "rb") as file:
                found = file.read()
            first = found if ranks == 1 else first
            problems += [] if found == first else [f"{name}: another export than one rank's"]
    together(4, train("learned", "--tensor", 2, model="llama"))
    must("export", path("learned"), path("learned-out"))
    losses = [must("eval", path(name), "--data", DATA, "--seq", SEQ).out.split("(")[0] for name in ("learned", "learned-out")]
    return problems + ([] if losses[0] == losses[1] else [f"the run and its export have other losses: {losses}"])


def models_that_groups_cannot_cut_are_refused():
    problems = refused("heads", 3, train("none", "--tensor", 3, batch=9 * SEQ), "--tensor 3", "4 heads")
    problems += refused("kv heads", 4, train("none", "--tensor", 4, model="llama-tiny"), "--tensor 4", "key-value heads")
    problems += refused("rows", 4, train("none", "--tensor", 4, seq=3, batch=3), "--tensor 4")
    return problems + ([f"{name} was made" for name in ("none",) if os.path.exists(path(name))])


def plan_is_made_together():
    """By the ranks themselves, which measure what they exchange."""
    shape = ("plan", "--model", path("gpt2"), "--seq", SEQ, "--micro-batch", 1, "--batch-tokens", SEQUENCES * SEQ, "--threads", 1,
             "--precision", "fp32", "--device", "cpu", "--json")
    found = json.loads(together(2, command(*shape, "--tensor", 2, "--rates", path("rates.json"))).stdout)
    right = (found["tensor"] == {"ranks": 2, "groups": 1, "nodes": 1, "within_node_step_s": None} and found["sent"]["bytes"] > 0
             and found["predicted"]["plain"]["step_s"] > 0)
    auto = json.loads(together(2, command(*shape, "--tensor", "auto")).stdout)
    taken = auto["tensor"]["ranks"] if auto["tensor"] is not None else 1
    steps = {size["ranks"]: size["step_s"] for size in auto["tensor_choice"]}
    if list(steps) != [1, 2] or not steps[taken] <= 1.01 * min(steps.values()):
        return [f"the ranks compare {auto['tensor_choice']} and take {taken}"]
    alone = json.loads(must("plan", "--model", "qwen2.5-7b", "--machine", "h100", "--ranks", 16, "--tensor", 4, "--json").out)
    whole = json.loads(must("plan", "--model", "qwen2.5-7b", "--machine", "h100", "--ranks", 16, "--json").out)
    right &= alone["parameters"] == whole["parameters"] and alone["predicted"]["plain"]["step_s"] > 0
    return [] if right else [f"{found}, {alone}"]


script_test.run(groups_train_as_one_rank_does, micro_batches_of_several_sequences_and_fewer_rows_train_alike,
                stages_and_placements_give_the_same_bits, a_killed_rank_loses_nothing, runs_of_groups_are_read_whole, models_that_groups_cannot_cut_are_refused,
                plan_is_made_together)
