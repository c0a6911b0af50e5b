"""Generating, and evaluating, within budgets: from memory or from a copy of the weights on a drive, the same to the last
bit; what does not fit or cannot be is refused with what would."""

import json
import os
import re

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(4, 20000))
RUN = os.path.join(SCRATCH, "run")
FOLDER = os.path.join(SCRATCH, "folder")
SMALL = ("--device-memory", "9MiB", "--host-memory", "7MiB")  # of the 19 MiB of weights in fp32
LONG = 40  # tokens
FROM_DRIVE = "every pass reads them from a copy in"


def path(*names):
    return os.path.join(SCRATCH, *names)


def run():
    """A model of 4.9 million parameters, also as a folder."""
    if not os.path.isdir(RUN):
        program.must("train", "--model", "gpt2-demo", "--init", "--data", DATA, "--run", RUN, "--steps", 2, "--lr", "2e-3",
                     "--place", "optimizer=nvme", *program.SHAPE)
        program.must("export", RUN, FOLDER)
    return RUN


def generated(model, *more):
    return program.must("generate", model, "--prompt", "the ", "--max-tokens", LONG, "--precision", "fp32", *more)


def evaluated(model, *more):
    return program.must("eval", model, "--data", DATA, "--tokens", 500, "--seq", program.SEQ, "--micro-batch", 1,
                        "--precision", "fp32", "--json", *more)


def loss_of(ended):
    return json.loads(ended.out)["loss"]


def wherever_weights_live():
    """Copies go where the run's store is, or where --scratch says, and nothing is left of them."""
    texts, losses = generated(run()), evaluated(run())
    before, problems = program.tree(SCRATCH), []
    os.makedirs(path("drive"))
    for what, model, more in (("a run", run(), ()), ("a folder", FOLDER, ("--scratch", path("drive"))),
                              ("a run and two folders", run(), ("--scratch", path("drive"), "--scratch", SCRATCH))):
        text, loss = generated(model, *SMALL, *more), evaluated(model, *SMALL, *more)
        where = more[1] if more else RUN
        if text.out != texts.out or loss_of(loss) != loss_of(losses):
            problems.append(f"{what}: {text.out!r} with {loss.out}, not {texts.out!r} with {losses.out}")
        problems += [f"{what}: {ended.err!r}" for ended in (text, loss) if f"{FROM_DRIVE} {where}\n" not in ended.err]
    os.rmdir(path("drive"))
    problems += [f"in memory: {ended.err!r}" for ended in (texts, losses) if FROM_DRIVE in ended.err]
    return problems + [f"{name} was changed or left" for name in program.differences(before, program.tree(SCRATCH))]


def the_least_that_works():
    """The budget that a refusal asks for is enough."""
    run()
    problems = []
    for command in ("generate", "eval"):
        given = ["--prompt", "the ", "--max-tokens", LONG] if command == "generate" else [
            "--data", DATA, "--seq", program.SEQ, "--micro-batch", 1, "--tokens", 100]
        arguments = [command, FOLDER, *given, "--precision", "fp32"]
        for flag, more in (("--device-memory", ("--host-memory", "7MiB")), ("--host-memory", ("--device-memory", "9MiB"))):
            budgets, scratch = [flag, "64KiB", *more], ("--scratch", SCRATCH)
            words = ["does not fit", flag, "64.0", *(["keys and values of a text of 44 tokens"] if command == "generate"
                                                     else [])]
            problems += program.refused(f"{command}, short of {flag}", arguments + budgets, *words,
                                        "without --scratch", watched=[SCRATCH])
            refusal = program.run(*arguments, *budgets, *scratch)
            named = dict(re.findall(r"(--(?:device|host)-memory) (\S+)", refusal.err))
            enough = {flag: budgets[1], more[0]: more[1], **named}
            ended = program.run(*arguments, *scratch, *(part for pair in enough.items() for part in pair))
            if flag not in named or "without --scratch" in refusal.err or ended.code != 0:
                problems.append(f"{command}, {flag}: {refusal.err!r}, and then {ended.err!r}")
    return problems


def a_long_text_costs_its_keys():
    """The cache is part of the budget: what fits for a short text is refused for one of all positions."""
    folder = hf_folder.make(path("long"), hf_folder.config(n_positions=16384), None)
    hf_folder.write_zeros(os.path.join(folder, "model.safetensors"), hf_folder.shapes(positions=16384))
    budgets = ("--device-memory", "6MiB", "--precision", "fp32")
    program.must("generate", folder, "--prompt", "a", "--max-tokens", 10, *budgets)
    return program.refused("a long text", ["generate", folder, "--prompt", "a", "--max-tokens", 16000, *budgets],
                           "needs at least --device-memory", "7.81 MiB of keys and values of a text of 16001 tokens")


def refused():
    def wrong(what, *words, more=(), status=1):
        return program.refused(what, ["generate", FOLDER, "--prompt", "a", "--precision", "fp32", *short, *more], *words,
                               status=status, watched=[SCRATCH])

    run()
    short = (*SMALL, "--max-tokens", LONG)
    problems = wrong("no such folder", "nowhere", more=("--scratch", path("nowhere")))
    problems += wrong("a file", "data.txt", more=("--scratch", DATA))
    problems += wrong("the same folder twice", SCRATCH, more=("--scratch", SCRATCH, "--scratch", SCRATCH))
    if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK):
        problems += wrong("memory", "/dev/shm", "--allow-buffered", more=("--scratch", "/dev/shm"))
    short = ()
    for flag, value in (("--device-memory", "much"), ("--host-memory", "-1"), ("--max-tokens", 0)):
        problems += wrong(f"{flag} {value}", flag, more=(flag, value), status=2)
    return problems


def answers_in_a_chat():
    """A model that has learnt a chat answers it, turn by turn, in its format, and stops where a turn ends."""
    folder = path("chatty")
    os.makedirs(folder)
    program.write(os.path.join(folder, "config.json"), json.dumps(hf_folder.config(n_positions=128)))
    hf_folder.write_chat_tokenizer(folder)
    data = program.write(path("chat.jsonl"), hf_folder.chat("What?", "That.", "And?", "This.") * 100)
    program.must("train", "--model", folder, "--init", "--data", data, "--run", path("learnt"), "--steps", 150, "--lr", "1e-2",
                 "--seq", 128, "--batch-tokens", 512, "--micro-batch", 4)
    talk = ("generate", path("learnt"), "--chat", "--temperature", 0, "--max-tokens", 20)
    problems = []
    for what, more, lines in (("lines", (), b"What?\n\nAnd?\n"), ("a prompt first", ("--prompt", "What?"), b"And?")):
        ended = program.run(*talk, *more, stdin=lines)
        if (ended.code, ended.out) != (0, "That.\nThis.\n"):
            problems.append(f"{what}: {ended.out!r}, {ended.err!r}")
    for what, more, words in (("no chat", ("--system", "x", "--prompt", "a"), ("--chat",)),
                              ("tokens", ("--chat", "--tokens", DATA), ("--tokens",)),
                              ("no prompt", (), ("--prompt-file",)),
                              ("a format that is not", ("--chat", "--chat-format", "alpaca"), ("alpaca", "chatml"))):
        problems += program.refused(what, ["generate", path("learnt"), *more], *words, status=2, watched=[])
    return problems


def prompts_and_choices():
    """A prompt may come from a file; a share of the likeliest, and a penalty, change what is chosen."""
    run()
    prompt = program.write(path("prompt.txt"), "the ")
    problems, first = [], generated(RUN, "--seed", 3)
    ended = program.must("generate", RUN, "--prompt-file", prompt, "--max-tokens", LONG, "--precision", "fp32", "--seed", 3)
    problems += [] if ended.out == first.out else [f"from a file: {ended.out!r}, not {first.out!r}"]
    best, least = (generated(RUN, *more).out for more in (("--temperature", 0), ("--min-p", 1, "--temperature", 2)))
    problems += [] if best == least else [f"--min-p 1: {least!r}, not {best!r}"]
    penalized = generated(RUN, "--temperature", 0, "--repetition-penalty", 50).out.strip("\n")
    problems += [] if len(set(penalized[4:])) > len(set(best[4:])) else [f"with a penalty {penalized!r}, without {best!r}"]
    return problems


script_test.run(wherever_weights_live, the_least_that_works, a_long_text_costs_its_keys, answers_in_a_chat,
                prompts_and_choices, refused)
