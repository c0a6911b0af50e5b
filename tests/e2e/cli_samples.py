"""Samples while a run trains: what generate makes of the same weights, the same at every placement and number of ranks,
once for each step, and without a trace in the training."""

import json
import os

import hf_folder
import program
import runs
from program import script_test
from runs import path

STEPS, EVERY = 200, 80
# Steps of a training that goes on from the weights of the one above, whose texts differ from its beginning.
FEW, OFTEN = 20, 8
PROMPTS = ("the ", program.text(6, 30))


def asks(every):
    return ("--sample-every", every, *(word for prompt in PROMPTS for word in ("--sample-prompt", prompt)))



class Run(runs.Run):
    data, steps, flags = (runs.text_file(),), STEPS, ("--lr", "1e-2", "--precision", "fp32")

    def samples(self):
        return [line for line in self.log() if "sample" in line]

    def texts(self):
        return [(line["step"], line["sample"]["prompt"], line["sample"]["text"]) for line in self.samples()]


def reference():
    return Run("reference", *asks(EVERY)).once()


class Short(Run):
    """The training of a few steps from learned weights, whose samples placements and ranks are to repeat."""

    steps, planned = FEW, STEPS

    def __init__(self, name, *flags, **members):
        learned = path("reference-export")
        super().__init__(name, *asks(OFTEN), *flags, model=(learned if os.path.isdir(learned) else reference().exported(),), **members)


def short_reference():
    return Short("short").once().texts()


def other_than_generate(run):
    """Where the last texts are not those that the weights at the end give."""
    problems = []
    for step, prompt, text in run.texts()[-len(PROMPTS):]:
        said = program.must("generate", run.path(), "--prompt", prompt, "--temperature", 0, "--max-tokens", 32,
                            "--precision", "fp32").out
        if said != prompt + text + "\n":
            problems.append(f"{run.name}, step {step}: {prompt + text!r}, but generate makes {said!r}")
    return problems


def what_generate_makes():
    """The fields of the lines; the last text is that of the weights at the end, and training has the same bits."""
    found, problems = reference().texts(), []
    if [(step, prompt) for step, prompt, _ in found] != [(step, prompt) for step in (80, 160, 200) for prompt in PROMPTS]:
        problems.append(f"samples of {found}")
    for line in reference().samples():
        if list(line) != ["step", "time", "sample", "sample_seconds"] or list(line["sample"]) != ["prompt", "text"] or not (
                0 < line["sample_seconds"] < 60):
            problems.append(f"the line {line}")
    problems += other_than_generate(reference())
    if Run("plain").train().numbers() != reference().numbers():
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
        found = Short(name, *flags).train().texts()
        if found != short_reference():
            problems.append(f"{name}: {found} instead of {short_reference()}")
    return problems


def ranks():
    """Sums of two ranks' gradients are other bits than those of one, but the same at each stage, and in tensor groups at each
    placement, with inputs whole or not."""
    problems, texts = [], {}
    for count, name, flags in ((2, "two", ("--zero", 2)), (2, "three", ("--zero", 3, "--place", "weights=host,optimizer=nvme")),
                               (2, "group", ("--tensor", 2)), (4, "groups", ("--tensor", 2, "--zero", 3)),
                               (2, "rows", ("--tensor", 2, "--sequence-parallel", "yes", "--place", "weights=host,optimizer=nvme"))):
        run = Short(name, *flags, "--micro-batch", 2, ranks=count).train()
        problems += other_than_generate(run)
        texts[name] = run.texts()
    return problems + [f"{texts[one]} and {texts[other]}" for one, other in (("two", "three"), ("group", "rows"))
                       if texts[one] != texts[other]]


def once_for_each_step():
    """A resume goes on with samples, adds those that a killed process did not write, and repeats none."""
    resumed = Run("resumed", *asks(EVERY), steps=EVERY).train()
    log = resumed.path("log.jsonl")
    with open(log, encoding="utf-8") as file:
        lines = file.readlines()
    program.write(log, "".join(line for line in lines if '"sample"' not in line))
    resumed.resume("--steps", STEPS)
    resumed.resume()
    wanted = reference().texts()
    problems = [] if resumed.texts() == wanted else [f"{resumed.texts()} instead of {wanted}"]
    recipe = program.content(resumed.path("recipe.yaml")).decode()
    if f"sample-every: {EVERY}\n" not in recipe or 'sample-prompt: ["the "' not in recipe:
        problems.append(f"the recipe is {recipe}")
    resumed.resume("--steps", STEPS + 1, "--sample-every", 0)
    return problems + ([] if resumed.texts() == wanted else ["--sample-every 0 samples"])


def turns_of_a_chat():
    """Prompts are a user's turns where the data are chats, and plain text where they are not."""
    folder = path("chatty")
    os.makedirs(folder)
    program.write(os.path.join(folder, "config.json"), json.dumps(hf_folder.config(n_positions=128)))
    hf_folder.write_chat_tokenizer(folder)
    data = program.write(path("chat.jsonl"), hf_folder.chat("What?", "That.") * 200)
    more = ("--sample-every", 150, "--sample-prompt", "What?", "--sample-tokens", 20, "--seq", 128)
    chat = Run("chat", *more, steps=150, model=(folder, "--init"), data=(data,)).train()
    problems = [] if chat.texts() == [(150, "What?", "That.")] else [f"a chat: {chat.texts()}"]
    plain = Run("text", *more, steps=2, model=(folder, "--init")).train()
    _, _, text = plain.texts()[0]
    said = program.must("generate", plain.path(), "--prompt", "What?", "--temperature", 0, "--max-tokens", 20,
                        "--precision", "fp32").out
    return problems + ([] if said == "What?" + text + "\n" else [f"text: {text!r}, not {said!r}"])


def refused():
    bare = hf_folder.make(path("bare"), hf_folder.config(vocab_size=300), None)
    program.write(path("ids.bin"), bytes(4000))
    problems = []
    for what, model, data, more, words in (
            ("no tokenizer", (bare, "--init"), (path("ids.bin"),), (), ("--sample-every", "tokenizer.json")),
            ("no room", Run.model, Run.data, ("--sample-prompt", "x" * 64), ("--sample-prompt", "1 to 63"))):
        for end in ((), ("--dry-run",)):
            problems += Run("no", "--sample-every", 5, *more, *end, model=model, data=data).refused(*words, what=what)
    return problems + Run("no", "--sample-tokens", 0).refused("--sample-tokens", status=2)


script_test.run(what_generate_makes, every_placement, ranks, once_for_each_step, turns_of_a_chat, refused)
