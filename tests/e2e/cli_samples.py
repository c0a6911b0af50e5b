"""Samples while a run trains: what generate makes of the same weights, the same at every placement and number of ranks,
once for each step, and without a trace in the training."""

import json
import os
import subprocess

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(6, 40000))
STEPS, EVERY = 200, 80
# Steps of a training that goes on from the weights of the one above, whose texts differ from its beginning.
FEW, OFTEN = 20, 8
PROMPTS = ("the ", program.text(6, 30))


def asks(every):
    return ("--sample-every", every, *(word for prompt in PROMPTS for word in ("--sample-prompt", prompt)))




def path(*names):
    return os.path.join(SCRATCH, *names)


SHAPE = ("--seq", program.SEQ, "--batch-tokens", 8 * program.SEQ, "--threads", 1, "--chunk-grains", 2)


def train(run, *more, steps=STEPS, model=("gpt2-tiny", "--init"), data=DATA, micro_batch=4, shape=SHAPE):
    return ["train", "--model", *model, "--data", data, "--run", path(run), "--steps", steps, "--schedule-steps", STEPS,
            "--lr", "1e-2", "--precision", "fp32", "--micro-batch", micro_batch, *shape, *more]


def samples(run):
    return [line for line in program.log_lines(path(run)) if "sample" in line]


def texts(run):
    return [(line["step"], line["sample"]["prompt"], line["sample"]["text"]) for line in samples(run)]


def reference():
    if not os.path.isdir(path("reference")):
        program.must(*train("reference", *asks(EVERY)))
    return texts("reference")


def short(run, *more, micro_batch=4):
    """The training of a few steps from learned weights, whose samples placements and ranks are to repeat."""
    if not os.path.isdir(path("learned")):
        reference()
        program.must("export", path("reference"), path("learned"))
    return train(run, *asks(OFTEN), *more, steps=FEW, model=(path("learned"),), micro_batch=micro_batch)


def short_reference():
    if not os.path.isdir(path("short")):
        program.must(*short("short"))
    return texts("short")


def other_than_generate(run):
    """Where the last texts are not those that the weights at the end give."""
    problems = []
    for step, prompt, text in texts(run)[-len(PROMPTS):]:
        said = program.must("generate", path(run), "--prompt", prompt, "--temperature", 0, "--max-tokens", 32,
                            "--precision", "fp32").out
        if said != prompt + text + "\n":
            problems.append(f"{run}, step {step}: {prompt + text!r}, but generate makes {said!r}")
    return problems


def what_generate_makes():
    """The fields of the lines; the last text is that of the weights at the end, and training has the same bits."""
    found, problems = reference(), []
    if [(step, prompt) for step, prompt, _ in found] != [(step, prompt) for step in (80, 160, 200) for prompt in PROMPTS]:
        problems.append(f"samples of {found}")
    for line in samples("reference"):
        if list(line) != ["step", "time", "sample", "sample_seconds"] or list(line["sample"]) != ["prompt", "text"] or not (
                0 < line["sample_seconds"] < 60):
            problems.append(f"the line {line}")
    problems += other_than_generate("reference")
    program.must(*train("plain"))
    if program.numbers_of(path("plain")) != program.numbers_of(path("reference")):
        problems.append("samples change the training")
    if len(set(text for _, _, text in found)) < 4 or not all(text for _, _, text in found):
        problems.append(f"the texts say nothing: {found}")
    program.must("report", path("reference"), "--out", path("report.html"))
    return problems


def every_placement():
    problems = [] if len({text for _, _, text in short_reference()}) > 3 else [f"the texts are alike: {short_reference()}"]
    for name, flags in (("host", ("--place", "grads=host,optimizer=host")),
                        ("nvme", ("--place", "weights=nvme,grads=nvme,optimizer=nvme")),
                        ("tiles", ("--place", "weights=host,optimizer=nvme", "--tiles", 2, "--order", "batch"))):
        program.must(*short(name, *flags))
        if texts(name) != short_reference():
            problems.append(f"{name}: {texts(name)} instead of {short_reference()}")
    return problems


def ranks():
    """Sums of two ranks' gradients are other bits than those of one, but the same at each stage, and in tensor groups at each
    placement, with inputs whole or not."""
    problems = []
    for count, name, flags in ((2, "two", ("--zero", 2)), (2, "three", ("--zero", 3, "--place", "weights=host,optimizer=nvme")),
                               (2, "group", ("--tensor", 2)), (4, "groups", ("--tensor", 2, "--zero", 3)),
                               (2, "rows", ("--tensor", 2, "--sequence-parallel", "yes", "--place", "weights=host,optimizer=nvme"))):
        arguments = program.command(*short(name, *flags, micro_batch=2))
        done = program.limits.run(threads(count, arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name}: status {done.returncode}: {done.stderr[-1500:]}")
        problems += other_than_generate(name)
    return problems + [f"{texts(one)} and {texts(other)}" for one, other in (("two", "three"), ("group", "rows"))
                       if texts(one) != texts(other)]


def once_for_each_step():
    """A resume goes on with samples, adds those that a killed process did not write, and repeats none."""
    program.must(*train("resumed", *asks(EVERY), steps=EVERY))
    log = path("resumed", "log.jsonl")
    with open(log, encoding="utf-8") as file:
        lines = file.readlines()
    program.write(log, "".join(line for line in lines if '"sample"' not in line))
    program.must("resume", path("resumed"), "--steps", STEPS)
    program.must("resume", path("resumed"))
    problems = [] if texts("resumed") == reference() else [f"{texts('resumed')} instead of {reference()}"]
    with open(path("resumed", "recipe.yaml"), encoding="utf-8") as file:
        recipe = file.read()
    if f"sample-every: {EVERY}\n" not in recipe or 'sample-prompt: ["the "' not in recipe:
        problems.append(f"the recipe is {recipe}")
    program.must("resume", path("resumed"), "--steps", STEPS + 1, "--sample-every", 0)
    return problems + ([] if texts("resumed") == reference() else ["--sample-every 0 samples"])


def turns_of_a_chat():
    """Prompts are a user's turns where the data are chats, and plain text where they are not."""
    folder = path("chatty")
    os.makedirs(folder)
    program.write(os.path.join(folder, "config.json"), json.dumps(hf_folder.config(n_positions=128)))
    hf_folder.write_chat_tokenizer(folder)
    data = program.write(path("chat.jsonl"), hf_folder.chat("What?", "That.") * 200)
    shape = ("--seq", 128, "--batch-tokens", 512)
    more = ("--sample-every", 150, "--sample-prompt", "What?", "--sample-tokens", 20)
    program.must(*train("chat", *more, steps=150, model=(folder, "--init"), data=data, shape=shape))
    problems = [] if texts("chat") == [(150, "What?", "That.")] else [f"a chat: {texts('chat')}"]
    program.must(*train("text", *more, steps=2, model=(folder, "--init"), shape=shape))
    _, _, text = texts("text")[0]
    said = program.must("generate", path("text"), "--prompt", "What?", "--temperature", 0, "--max-tokens", 20,
                        "--precision", "fp32").out
    return problems + ([] if said == "What?" + text + "\n" else [f"text: {text!r}, not {said!r}"])


def refused():
    bare = hf_folder.make(path("bare"), hf_folder.config(vocab_size=300), None)
    program.write(path("ids.bin"), bytes(4000))
    problems = []
    for what, model, data, more, words in (
            ("no tokenizer", (bare, "--init"), path("ids.bin"), (), ("--sample-every", "tokenizer.json")),
            ("no room", ("gpt2-tiny", "--init"), DATA, ("--sample-prompt", "x" * 64), ("--sample-prompt", "1 to 63"))):
        for end in ((), ("--dry-run",)):
            problems += program.refused(what, train("no", "--sample-every", 5, *more, *end, model=model, data=data), *words,
                                        watched=[SCRATCH])
    problems += program.refused("no tokens", train("no", "--sample-tokens", 0), "--sample-tokens", status=2)
    return problems


script_test.run(what_generate_makes, every_placement, ranks, once_for_each_step, turns_of_a_chat, refused)
