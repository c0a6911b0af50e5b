"""Stages of ranks have layers of their own (--pipeline): with the losses of one rank, the same bits at every placement, stores
that resume on any other ranks, and nothing lost when a rank is."""

import array
import json
import os
import random
import shutil
import signal
import subprocess
import time

from program import command, differences, limits, log_lines, mark, must, numbers_of, scratch_folder, script_test, steps_of, text, tree, write
from ranks_jobs import Job, far, mpirun, threads

FOLDER = scratch_folder()
SEED = int(os.environ.get("SW_TEST_SEED", random.randrange(1 << 32)))
SCHEDULE, STEPS, FEW, SHORT, ROUNDS = 50, 4, 2, 6, int(os.environ.get("SW_TEST_ROUNDS", 2))
TOLERANCE = 1e-5
TIMEOUT_S, PATIENT_S = 6, 100
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"
VOCAB, SEQ, POSITIONS, SEQUENCES = 259, 33, 37, 8
LLAMA = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 176, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "hidden_act": "silu", "tie_word_embeddings": False}
# Two with a table that embedding and head share, and one with two.
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": POSITIONS, "n_embd": 64, "n_layer": 4, "n_head": 4},
    "llama": {"model_type": "llama", **LLAMA},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 16, "tie_word_embeddings": True},
}


def path(*names):
    return os.path.join(FOLDER, *names)


DATA = write(path("data.bin"), array.array("H", list(text(1, 120 * SEQ).encode())).tobytes())
PROMPT = write(path("prompt.bin"), array.array("H", list(b"the text")).tobytes())
for family, fields in CONFIGS.items():
    os.mkdir(path(family))
    write(path(family, "config.json"), json.dumps(fields))


def train(name, *more, model="gpt2", steps=SHORT, timeout_s=PATIENT_S, micro_batch=1, batch=SEQUENCES * SEQ):
    return command("train", "--model", path(model), "--init", "--data", DATA, "--run", path(name), "--steps", steps, "--schedule-steps",
                   SCHEDULE, "--warmup", 5, "--seq", SEQ, "--micro-batch", micro_batch, "--batch-tokens", batch, "--chunk-grains", 1,
                   "--threads", 1, "--precision", "fp32", "--rank-timeout", timeout_s, *more)


def started(words):
    return limits.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def processes(ranks, arguments):
    return mpirun((ranks, arguments))


def together(ranks, arguments, launch=threads):
    done = started(launch(ranks, arguments))
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks of {' '.join(map(str, arguments))}: status {done.returncode}: {done.stderr[-1500:]}")
    return done


def refused(what, ranks, arguments, *words):
    """One rank says in one line why all end, and nothing is changed."""
    before = tree(FOLDER, mark)
    done = started(threads(ranks, arguments))
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway ")]
    right = done.returncode != 0 and len(said) == 1 and all(word in said[0] for word in words)
    problems = [] if right else [f"{what}: status {done.returncode}, lacks one of {words}: {done.stderr[-1500:]}"]
    return problems + [f"{what}: {name} was changed" for name in differences(before, tree(FOLDER, mark))]


def stages_train_as_one_rank_does():
    """With validation that the data ranks of all stages share out, and gradients that are clipped."""
    more, problems = ("--val", "9%", "--eval-every", 2, "--clip", 0.05), []
    for model in CONFIGS:
        together(1, train(f"{model}-1", *more, model=model, steps=STEPS))
        for ranks, flags in ((2, (2,)), (4, (2,)), (4, (4,)), (4, (2, "--tensor", 2))):
            name = "-".join(map(str, (model, ranks, *flags)))
            together(ranks, train(name, *more, "--pipeline", *flags, model=model, steps=STEPS))
            problems += far(name, path(name), path(f"{model}-1"), tolerance=TOLERANCE)
    together(6, train("ends", *more, "--pipeline", 6, "--pipeline-split", "0,1,1,1,1,0", steps=STEPS))
    problems += far("a stage for each unit", path("ends"), path("gpt2-1"), tolerance=TOLERANCE)
    together(2, train("uneven", *more, "--pipeline", 2, "--pipeline-split", " 3,+01", steps=STEPS))
    if {name for name in os.listdir(path("uneven")) if name.startswith("rank-")} != {f"rank-{rank}-of-2-pipeline-3-1" for rank in range(2)}:
        problems.append(f"a split with a blank and a sign names the stores {os.listdir(path('uneven'))}")
    problems += far("an uneven split", path("uneven"), path("gpt2-1"), tolerance=TOLERANCE)
    done = together(4, train("processes", *more, "--pipeline", 2, steps=STEPS), processes)
    if "the ranks of a stage exchange them once a step" not in done.stderr:
        problems.append(f"nothing says how gradients are added up: {done.stderr}")
    if numbers_of(path("processes")) != numbers_of(path("gpt2-4-2")):
        problems.append("ranks that are processes have other bits than ranks that are threads")
    last = steps_of(path("processes"))[-1]
    if last["ranks"] != 4 or last["tokens"] != SEQUENCES * SEQ or last["bytes"]["comm"] <= 0:
        problems.append(f"the log says of four ranks: {last}")
    return problems


def zero_and_placements_give_the_same_bits():
    """At one split and number of data ranks, with a tied table and without, and with groups of one or two micro-batches."""
    places = (("device", ()), ("optimizer", ("--place", "optimizer=nvme")), ("away", ("--place", EVERYTHING_AWAY)),
              ("host", ("--place", "weights=host,grads=host,optimizer=host", "--update", "device")), ("recompute", ("--recompute", "all")))
    table = [(2, name, flags) for name, flags in places]
    table += [(4, f"zero-{zero}-{name}", ("--zero", zero, "--order", order, *flags))
              for zero in range(4) for order, (name, flags) in (("batch", places[0]), (2, places[2]))]
    problems, numbers = [], {}
    for turn, (ranks, what, flags) in enumerate(table):
        for model in ("gpt2", "llama") if what in ("device", "zero-0-device", "zero-2-device") else (("gpt2", "llama")[turn % 2],):
            name = f"bits-{model}-{ranks}-{what}"
            together(ranks, train(name, *flags, "--pipeline", 2, model=model, steps=FEW))
            if numbers.setdefault((model, ranks), numbers_of(path(name))) != numbers_of(path(name)):
                problems.append(f"{name}: other bits than another stage or placement")
            shutil.rmtree(path(name))
    return problems


def ways_drawn_by_chance_give_the_same_bits():
    """Two stages of data ranks and tensor groups train alike, with their validation losses and clipped gradients."""
    draw, problems = random.Random(SEED), []
    tiers = ("device", "host", "nvme", "device:40%/nvme")
    for turn in range(max(1, ROUNDS // 2)):
        model, data, numbers = draw.choice(list(CONFIGS)), draw.choice((1, 2)), {}
        for way in range(4):
            place = ",".join(f"{state}={draw.choice(tiers)}" for state in ("weights", "grads", "optimizer", "acts"))
            more = () if way == 0 else ("--zero", draw.randrange(4), "--order", draw.choice(("batch", 2)), "--place", place,
                                        "--recompute", draw.choice(("all", "none")), "--update", draw.choice(("host", "device")))
            name = path(f"chance-{turn}-{way}")
            together(4 * data, train(name, *more, "--pipeline", 2, "--tensor", 2, "--val", "9%", "--eval-every", 2, "--clip", 0.05, model=model,
                                     steps=FEW))
            numbers[more] = numbers_of(name), [line["val_loss"] for line in log_lines(name) if "val_loss" in line]
            shutil.rmtree(name)
        problems += [f"seed {SEED}: {model}, {data} data ranks: other bits {' '.join(map(str, more))}"
                     for more, found in numbers.items() if found != numbers[()]]
    return problems


def interleaved_stages_have_the_same_bits():
    """As without turns, at every placement and stage of ZeRO that has one order of sums; their runs become those of other stages and turns,
    and back."""
    problems, more = [], ("--val", "9%", "--eval-every", 2, "--clip", 0.05)
    turns = ("--pipeline", 2, "--pipeline-interleave", 2)
    for model, ranks, name, flags in (
            ("gpt2", 2, "device", ()), ("gpt2", 2, "away", ("--place", EVERYTHING_AWAY, "--recompute", "all")), ("gpt2", 2, "groups", ("--order", 2)),
            ("llama", 2, "split", ("--pipeline-split", "0,1,1,1")), ("qwen3", 4, "tensor", ("--tensor", 2)), ("gpt2", 4, "zero-1", ("--zero", 1)),
            ("gpt2", 4, "zero-3", ("--zero", 3, "--place", "weights=host,optimizer=nvme"))):
        first = "zero-0" if name == "zero-1" else name
        plain, turned = f"plain-{model}-{name}", f"turns-{model}-{name}"
        without = [flag for flag in flags if flag not in ("--pipeline-split", "0,1,1,1")]
        without = ["--zero", 0] if first == "zero-0" else without
        together(ranks, train(plain, *more, "--pipeline", 2, *without, model=model, steps=STEPS))
        together(ranks, train(turned, *more, *turns, *flags, model=model, steps=STEPS))
        if numbers_of(path(plain)) != numbers_of(path(turned)):
            problems.append(f"{turned}: other bits than {plain}")
    moved = path("turns-gpt2-device")
    if {name for name in os.listdir(moved) if name.startswith("rank-")} != {f"rank-{rank}-of-2-pipeline-1-1+1-1" for rank in range(2)}:
        problems.append(f"turns name the stores {os.listdir(moved)}")
    must("export", path("plain-gpt2-device"), path("plain-out"))
    for ranks, flags in ((2, ()), (1, ("--pipeline", 1)), (2, (*turns, "--pipeline-split", "1,2,1,0")), (2, ("--pipeline-interleave", 1)),
                         (4, ("--pipeline", 4)), (2, turns)):
        together(ranks, command("resume", moved, *flags))
        must("verify", moved)
        shutil.rmtree(path("turns-out"), ignore_errors=True)
        must("export", moved, path("turns-out"))
        problems += [f"{ranks} ranks {flags}: {name} of the export differs" for name in differences(tree(path("plain-out")), tree(path("turns-out")))]
    together(2, command("resume", path("plain-gpt2-device"), "--steps", STEPS + 2))
    together(2, command("resume", moved, "--steps", STEPS + 2))
    if numbers_of(path("plain-gpt2-device")) != numbers_of(moved):
        problems.append("a run that had other stages and turns in between has other bits")
    together(4, train("processes-turns", *more, *turns, "--zero", 1, steps=STEPS), processes)
    if numbers_of(path("processes-turns")) != numbers_of(path("turns-gpt2-zero-1")):
        problems.append("interleaved stages that are processes have other bits than threads")
    together(2, train("seven", *turns, batch=7 * SEQ, steps=2))  # no whole rounds of two
    together(2, train("seven-plain", "--pipeline", 2, batch=7 * SEQ, steps=2))
    if numbers_of(path("seven")) != numbers_of(path("seven-plain")):
        problems.append("seven micro-batches have other bits with turns")
    return problems


def frozen_weights_and_adapters_train_in_stages():
    """With the bits of one rank, unless the table is trained; and runs that move to other stages export the same."""
    problems = []
    for model, *flags in (("gpt2", "--lora", 4), ("llama", "--lora", 4, "--base-format", "nf4"),
                          ("qwen3", "--freeze", "embedding,blocks:0"), ("gpt2", "--freeze", "*.mlp.*")):
        name = f"tuned-{model}-{flags[0][2:]}"
        for ranks, what, *more in ((1, "1"), (2, "2", "--pipeline", 2), (4, "4", "--pipeline", 2),
                                   (2, "turns", "--pipeline", 2, "--pipeline-interleave", 2, "--place", "acts=host"),
                                   (4, "away", "--pipeline", 2, "--zero", 3, "--place", EVERYTHING_AWAY),
                                   (4, "whole", "--pipeline", 2, "--zero", 0, "--order", 2)):
            together(ranks, train(f"{name}-{what}", *flags, *more, model=model, steps=FEW))
        problems += far(name, path(f"{name}-2"), path(f"{name}-1"), tolerance=TOLERANCE)
        for what in ("4", "away", "whole"):
            together(4, command("resume", path(f"{name}-{what}"), "--steps", FEW + 1))
        for one, other in (("4", "away"), ("4", "whole"), ("2", "turns"), *((("1", "2"),) if flags[1] != "*.mlp.*" else ())):
            if numbers_of(path(f"{name}-{one}")) != numbers_of(path(f"{name}-{other}")):
                problems.append(f"{name}: other bits {other} than {one}")
        shutil.copytree(path(f"{name}-2"), path(f"{name}-moved"))
        for ranks, stages in ((1, 1), (4, 2), (2, 2)):
            together(ranks, command("resume", path(f"{name}-moved"), "--pipeline", stages, "--steps", FEW + (ranks == 2)))
        together(2, command("resume", path(f"{name}-2"), "--steps", FEW + 1))
        for what in ("moved", "2"):
            must("export", path(f"{name}-{what}"), path(f"{name}-{what}-out"))
        if differences(tree(path(f"{name}-moved-out")), tree(path(f"{name}-2-out"))):
            problems.append(f"{name}: another export after a move")
    # A model that is read in place, and an adapter of it that goes on.
    os.rename(path("tuned-gpt2-freeze-2-out"), path("loaded"))
    for turn, flags in enumerate((("--lora", 4, "--place", "weights=nvme"), ("--adapter", path("in-place-0-2-out")))):
        for ranks, more in ((1, ()), (2, ("--pipeline", 2))):
            name = f"in-place-{turn}-{ranks}"
            together(ranks, [word for word in train(name, *flags, *more, model="loaded", steps=FEW) if word != "--init"])
            must("export", path(name), path(f"{name}-out"))
        if numbers_of(path(f"in-place-{turn}-1")) != numbers_of(path(f"in-place-{turn}-2")):
            problems.append(f"other bits than of one rank with {flags}")
        problems += [f"{file} of the adapter differs" for file in differences(tree(path(f"in-place-{turn}-1-out")), tree(path(f"in-place-{turn}-2-out")))]
    return problems


def stages_commit_at_the_same_steps():
    """Where all of one stage's optimizer state is on the drive and not all of another's, --save-every says when."""
    problems, place = [], ("--place", "weights=nvme,optimizer=host:50%/nvme")
    for model, split in (("gpt2", "0,4"), ("llama", "3,0")):
        flags = ("--pipeline", 2, "--pipeline-split", split)
        together(2, train(f"commit-{model}", *flags, model=model, steps=SHORT))
        together(2, train(f"saves-{model}", *flags, *place, "--save-every", 2, model=model, steps=SHORT - 1))
        together(1, train(f"alone-saves-{model}", *place, "--save-every", 2, model=model, steps=SHORT - 1))
        saved, alone = ([line["saved"] for line in steps_of(path(name))] for name in (f"saves-{model}", f"alone-saves-{model}"))
        must("verify", path(f"saves-{model}"))
        together(2, command("resume", path(f"saves-{model}"), "--steps", SHORT))
        if saved != alone or all(saved) or numbers_of(path(f"saves-{model}")) != numbers_of(path(f"commit-{model}")):
            problems.append(f"{model}: saved at {saved}, or other bits than on the device")
    return problems


def runs_resume_on_any_other_ranks():
    """One that changes and is back where it began goes on with the same bits, halfway its export is the same, and the losses on the
    way are those of a run that nothing has changed."""
    problems = []
    for model in ("gpt2", "llama"):
        steady, moved = path(f"steady-{model}"), path(f"moved-{model}")
        together(2, train(f"steady-{model}", "--pipeline", 2, model=model, steps=FEW))
        shutil.copytree(steady, moved)
        must("export", steady, steady + "-out")
        together(2, command("resume", steady, "--steps", FEW + 2))
        for ranks, flags in ((4, ()), (4, ("--zero", 3)), (4, ("--pipeline", 4)), (4, ("--tensor", 2, "--pipeline", 2)), (1, ("--pipeline", 1, "--tensor", 1)),
                             (2, ()), (2, ("--pipeline", 2, "--pipeline-split", "1,3" if model == "gpt2" else "1,2"))):
            together(ranks, command("resume", moved, *flags))
            must("verify", moved)
            shutil.rmtree(moved + "-out", ignore_errors=True)
            must("export", moved, moved + "-out")
            problems += [f"{model} on {ranks} {flags}: {name} of the export differs" for name in differences(tree(steady + "-out"), tree(moved + "-out"))]
        left = [name for name in os.listdir(moved) if name.startswith("rank-")]
        if len(left) != 2:
            problems.append(f"{model}: stores of other ranks are left: {left}")
        shutil.copytree(moved, moved + "-on")
        split = json.load(open(os.path.join(steady, "run.json"), encoding="utf-8"))["settings"]["pipeline_split"]
        together(2, command("resume", moved, "--pipeline", 2, "--pipeline-split", split, "--steps", FEW + 2))
        if numbers_of(moved) != numbers_of(steady):
            problems.append(f"{model}: other bits than without a change")
        for steps, (ranks, *flags) in enumerate(((4, "--pipeline", 4), (1, "--pipeline", 1), (4, "--pipeline", 2)), FEW + 1):
            together(ranks, command("resume", moved + "-on", "--steps", steps, *flags))
        together(1, train(f"alone-{model}", model=model, steps=FEW + 3))
        problems += far(f"{model} on ranks that change", moved + "-on", path(f"alone-{model}"), tolerance=TOLERANCE)
    together(2, train("narrow", "--pipeline", 2, "--optimizer-state", "8bit", steps=FEW))
    together(1, command("resume", path("narrow"), "--pipeline", 1, "--steps", FEW + 1))
    must("verify", path("narrow"))
    return problems


def runs_of_stages_are_read_whole():
    """By one process, and by several; rates too small to change a weight leave what one rank begins with."""
    problems = []
    for model in CONFIGS:
        found = []
        for ranks, flags in ((1, ()), (4, ("--pipeline", 2)), (4, ("--pipeline", 4))):
            name = f"read-{model}-{len(found)}"
            together(ranks, train(name, "--lr", 1e-300, "--min-lr", 0, *flags, model=model, steps=2))
            must("export", path(name), path(name + "-out"))
            must("verify", path(name))
            found.append(tree(path(name + "-out")))
        problems += [f"{model}: {name} is not what one rank has" for other in found[1:] for name in differences(found[0], other)]
        run, out = path(f"learned-{model}"), path(f"learned-{model}-out")
        together(4, train(os.path.basename(run), "--pipeline", 2, "--export-every", SHORT // 2, "--lr", 3e-3, model=model))
        must("export", run, out)
        problems += [f"{run}: {name} of the run's own export differs" for name in differences(tree(os.path.join(run, "exports", f"step-{SHORT}")), tree(out))]
        rate = ("--data", DATA, "--seq", SEQ, "--precision", "fp32", "--threads", 1, "--json")
        say = ("--tokens", PROMPT, "--max-tokens", 20, "--temperature", 0, "--precision", "fp32", "--threads", 1)
        losses = [json.loads(together(ranks, command("eval", source, *rate)).stdout)["loss"] for source, ranks in ((run, 1), (out, 1), (run, 2))]
        texts = {together(ranks, command("generate", source, *say)).stdout for source, ranks in ((run, 1), (out, 1), (run, 2))}
        if max(losses) - min(losses) > TOLERANCE or losses[0] != losses[1]:
            problems.append(f"{model}: the run and its export have other losses: {losses}")
        if len(texts) != 1:
            problems.append(f"{model}: the run and its export write other texts: {texts}")
    return problems


def a_killed_rank_loses_nothing():
    """The others end and name it; resumes go on with the same bits, whatever rank it was, and with turns as without."""
    draw, problems = random.Random(SEED), []
    flags = ("--pipeline", 2, "--place", "weights=host,grads=nvme,optimizer=nvme")
    for turn in range(ROUNDS):
        arguments = train("lost", *flags, "--pipeline-interleave", 2, steps=100000, timeout_s=TIMEOUT_S) if turn == 0 else command("resume", path("lost"))
        job = Job(path("job.log"), 4, arguments).wait_for("  loss ")
        time.sleep(draw.random())
        victim, found = draw.randrange(4), job.processes()
        os.kill(found[victim], signal.SIGKILL)
        code = job.end()
        said = [line for line in open(path("job.log"), encoding="utf-8") if line.startswith("spillway ")]
        if code in (None, 0) or len(said) != 1 or f"rank {victim} " not in said[0]:
            problems.append(f"rank {victim}, seed {SEED}: status {code}: {said}")
    problems += refused("one rank", 1, command("resume", path("lost")), "--pipeline 2", "another --pipeline")
    problems += refused("the commit before", 4, command("resume", path("lost"), "--pipeline", 4, "--previous"), "--previous", "--pipeline")
    last = steps_of(path("lost"))[-1]["step"]
    together(4, command("resume", path("lost"), "--steps", last + 2))
    together(4, train("unbroken", *flags, steps=last + 2))
    if numbers_of(path("lost")) != numbers_of(path("unbroken")):
        problems.append(f"seed {SEED}: other bits than a run that nothing has ended")
    return problems


def a_report_shows_the_stages():
    """Its lines fit a terminal; the stages' shares are those of their spans, and the log's those of the steps."""
    run, groups = path("drawn"), SEQUENCES
    together(4, train("drawn", "--pipeline", 4, "--trace", path("drawn.trace.json"), steps=12), processes)
    shown = must("report", run, "--out", path("drawn.html"))
    lines, logged, problems = shown.out.splitlines()[1:], [line["pipeline"] for line in steps_of(run)], []
    if any(one["stages"] != 4 or one["groups"] != groups or abs(one["formula"] - 3 / (groups + 3)) > 1e-6 or not 0 < one["idle"] <= one["most_idle"] < 1
           for one in logged):
        problems.append(f"the log has {logged}")
    drawn = [line for line in lines if line.startswith("stage ")]
    if len(drawn) != 4 or max(map(len, lines)) > 80 or f"a pipeline of 4 stages; a step has {groups} groups" not in lines[0] or "27.3%" not in lines[2]:
        problems.append(f"the report says {lines}")
    with open(path("drawn.html"), encoding="ascii") as file:
        problems += [] if "a pipeline of 4 stages" in file.read() else ["the page lacks the text"]
    for stage in range(4):
        with open(os.path.join(run, f"timeline.stage-{stage}.json" if stage > 0 else "timeline.json"), encoding="utf-8") as file:
            kept = json.load(file)
        spans = kept["pipeline"]["spans"]
        passes = [(what, group) for _, _, what, group, _ in spans if what in ("forward", "backward")]
        if kept["step"] != 10 or {group for _, group in passes} - set(range(groups)) or any(
                before[0] + before[1] > after[0] + 0.2 for before, after in zip(spans, spans[1:])) or spans[-1][0] + spans[-1][1] > 0.2:
            problems.append(f"stage {stage} of step {kept['step']}: {spans}")
    with open(path("drawn.trace.json"), encoding="utf-8") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "comm"}
    wanted = {f"{what} block 0 m{micro}" for what in ("send activations", "receive activation gradients") for micro in range(groups)}
    problems += [f"the trace lacks {sorted(wanted - names)} among {sorted(names)[:4]}"] if wanted - names else []
    together(2, command("resume", run, "--pipeline-split", "1,3", "--steps", 13))
    left = sorted(name for name in os.listdir(run) if name.startswith("timeline"))
    problems += [] if left == ["timeline.json", "timeline.stage-1.json"] else [f"stages that are no more leave {left}"]
    shown = must("report", run, "--out", path("drawn.html")).out
    problems += [] if "no picture" in shown and "idle for" in shown else [f"without a stage's timeline: {shown}"]
    together(2, command("resume", run, "--pipeline-split", "1,1+1,1", "--steps", 24))
    lines = must("report", run, "--out", path("drawn.html")).out.splitlines()[1:]
    turns = [line.split("|")[1] for line in lines if line.startswith("    turn |")]
    logged = steps_of(run)[-1]["pipeline"]
    if (max(map(len, lines)) > 80 or "a pipeline of 2 stages in 2 turns" not in lines[0] or "(p-1)/(Vm+p-1)" not in lines[2] or "5.9%" not in lines[2]
            or len(turns) != 2 or any(set(line) - {" "} != {"0", "1"} for line in turns) or logged["interleave"] != 2
            or abs(logged["formula"] - 1 / (2 * groups + 1)) > 1e-6):
        problems.append(f"the report says of turns {lines}; the log {logged}")
    with open(os.path.join(run, "timeline.stage-1.json"), encoding="utf-8") as file:
        passes = {(what, group, turn) for _, _, what, group, turn in json.load(file)["pipeline"]["spans"] if what in ("forward", "backward")}
    # The last turn's forward passes of the last stage end with the head, which is of the backward passes.
    if {(what, turn) for what, _, turn in passes} != {(what, turn) for what in ("forward", "backward") for turn in range(2)}:
        problems.append(f"the passes of a stage in turns are {sorted(passes)}")
    return problems


def stages_that_cannot_be_are_refused():
    problems = []
    for what, ranks, more, *words in (
            ("ranks", 3, ("--pipeline", 2), "--pipeline 2", "multiple of 2 ranks"),
            ("groups", 2, ("--pipeline", 2, "--tensor", 2), "--pipeline 2 with --tensor", "multiple of 4 ranks"),
            ("stages", 8, ("--pipeline", 8), "--pipeline 8", "4 layers"),
            ("groups of micro-batches", 2, ("--pipeline", 2, "--order", "8"), "--order 8", "2 stages"),
            ("a split of one", 2, ("--pipeline", 2, "--pipeline-split", "4"), "--pipeline-split 4", "2 stages"),
            ("a split of others", 2, ("--pipeline", 2, "--pipeline-split", "2,3"), "5 layers", "has 4"),
            ("an empty stage", 3, ("--pipeline", 3, "--pipeline-split", "2,0,2"), "stage 1"),
            ("no split", 2, ("--pipeline", 2, "--pipeline-split", "two"), "--pipeline-split 'two'"),
            ("Muon", 2, ("--pipeline", 2, "--optimizer-for", "*.mlp.*=muon"), "--optimizer muon", "--pipeline"),
            ("turns without stages", 2, ("--pipeline-interleave", 2), "--pipeline-interleave 2", "--pipeline N"),
            ("turns without layers", 2, ("--pipeline", 2, "--pipeline-interleave", 3), "6 runs of layers", "4 layers", "at most --pipeline-interleave 2"),
            ("too many turns", 4, ("--pipeline", 4, "--pipeline-interleave", 64), "256 runs", "at most 192"),
            ("a split without turns", 2, ("--pipeline", 2, "--pipeline-interleave", 2, "--pipeline-split", "2,2"), "2 numbers", "4 runs of layers"),
            ("a split of other turns", 2, ("--pipeline", 2, "--pipeline-interleave", 2, "--pipeline-split", "1+1,1+1"), "'1+1,1+1'"),
            ("turns of one stage", 2, ("--pipeline", 2, "--pipeline-split", "2+2"), "2 turns of 1 stage for the 2 stages"),
            ("an empty turn", 2, ("--pipeline", 2, "--pipeline-interleave", 2, "--pipeline-split", "1,0,2,1"), "stage 1", "in a turn"),
            ("groups of turns", 2, ("--pipeline", 2, "--pipeline-interleave", 2, "--order", "8"), "--order 8", "2 stages"),
            ("no pipeline", 2, ("--pipeline-split", "2,2"), "--pipeline-split", "--pipeline 2 too"),
            ("a frozen end", 2, ("--pipeline", 2, "--lora", 4, "--pipeline-split", "4,0"), "stage 1", "nothing to train"),
            ("a frozen stage", 2, ("--pipeline", 2, "--freeze", "embedding,blocks:0-1", "--pipeline-split", "2,2"), "stage 0"),
            *((" ".join(map(str, flags)), 2, ("--pipeline", 2, *flags), flags[0], "--pipeline 2")
              for flags in (("--tiles", 2), ("--tensor", "auto"),
                            ("--sequence-parallel", "yes", "--tensor", 2), ("--partition-activations", "yes", "--tensor", 2),
                            ("--reduce", "int8"), ("--gather", "int8"), ("--grads-state", "8bit"), ("--experts", 2), ("--order", "layer")))):
        problems += refused(what, ranks, train("none", *more), *words)
    problems += refused("micro-batches", 4, train("none", "--pipeline", 4, micro_batch=4), "2 micro-batches", "4 stages", "--batch-tokens")
    eight_bits = [word if word != "fp32" else "fp8" for word in train("none", "--pipeline", 2)]
    problems += refused("fp8", 2, eight_bits, "--precision fp8", "--pipeline 2")
    return problems + (["a run was made"] if os.path.exists(path("none")) else [])


def plans_of_stages_are_made():
    """By one process, or by the ranks themselves; the slowest stage gives the step, and more micro-batches make the bubble smaller."""
    shape = ("--seq", SEQ, "--micro-batch", 1, "--threads", 1, "--precision", "fp32", "--device", "cpu", "--pipeline", 2)
    told = must("plan", "--model", path("gpt2"), *shape, "--batch-tokens", SEQUENCES * SEQ, "--ranks", 4).out
    ranks = json.loads(together(2, command("plan", "--model", path("gpt2"), *shape, "--batch-tokens", SEQUENCES * SEQ, "--json", "--rates",
                                           path("rates.json")), processes).stdout)
    problems = [] if ranks["pipeline"]["ranks"] == 1 and ranks["pipeline"]["groups"] == SEQUENCES else [f"the ranks plan {ranks['pipeline']}"]
    problems += [f"'{words}' is not in {told}" for words in ("2 stages of 2 ranks", "--pipeline 2", "once a step") if words not in told]
    machine, bubbles = ("plan", "--model", "qwen2.5-7b", "--machine", "h100", "--ranks", 8, "--json"), []
    whole = json.loads(must(*machine).out)
    for batch in (1, 8):
        found = json.loads(must(*machine, "--pipeline", 4, "--batch-tokens", batch * 16384).out)
        stages, slowest = found["pipeline"], max(stage["step_s"] for stage in found["pipeline"]["stages"])
        bubbles.append(stages["bubble"])
        if (sum(stage["layers"] for stage in stages["stages"]) != 28 or stages["step_s"] != slowest or found["parameters"] != whole["parameters"]
                or not 0.5 * stages["equal_bubble"] < stages["bubble"] <= stages["equal_bubble"]):
            problems.append(f"{batch} times the batch: {stages}")
    turns = json.loads(must(*machine, "--pipeline", 4, "--pipeline-interleave", 3, "--batch-tokens", 16384).out)["pipeline"]
    layers = sorted(layer for stage in turns["stages"] for run in stage["runs"] for layer in range(run["first"], run["first"] + run["layers"]))
    expected = 3 / (3 * turns["groups"] + 3)
    if (layers != list(range(28)) or any(len(stage["runs"]) != 3 for stage in turns["stages"]) or abs(turns["equal_bubble"] - expected) > 1e-9
            or not turns["interleave"] == 3 or not turns["bubble"] < 0.6 * bubbles[0]):
        problems.append(f"three turns: {turns}; bubble without: {bubbles[0]}")
    told = must(*machine[:-1], "--pipeline", 4, "--pipeline-interleave", 7).out
    problems += [f"'{words}' is not in {told}" for words in ("in 7 turns", "--pipeline-interleave 7", "layers of stage 0: 0 5 9 13 17 21 25\n") if words not in told]
    problems += [f"a wide line: {line}" for line in told.splitlines() if len(line) > 80 and "mpirun" not in line]
    one = json.loads(must(*machine, "--pipeline", 4, "--pipeline-split", "20,4,2,2").out)["pipeline"]
    if one["step_s"] != one["stages"][0]["step_s"] or bubbles[0] < 2 * bubbles[1] or whole["pipeline"] is not None:
        problems.append(f"an uneven split: {one}; bubbles {bubbles}; without: {whole['pipeline']}")
    return problems


script_test.run(stages_train_as_one_rank_does, zero_and_placements_give_the_same_bits, ways_drawn_by_chance_give_the_same_bits,
                interleaved_stages_have_the_same_bits, frozen_weights_and_adapters_train_in_stages,
                stages_commit_at_the_same_steps, runs_resume_on_any_other_ranks, runs_of_stages_are_read_whole,
                a_killed_rank_loses_nothing, a_report_shows_the_stages,
                stages_that_cannot_be_are_refused, plans_of_stages_are_made)
