"""Token files in use: runs on text and chats, the cache of their tokens, inspect, generate, and files of llm.c."""

import array
import contextlib
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import time

import hf_folder
import program
from program import script_test
from token_files import (END, TEXT, byte_folder, cache_of_its_own, cached, chat, chat_folder, documents, expect, folder,
                         lines, mask, path, tokenize, tokens)


def trains_and_talks():
    """From text to a reply: tokens, a run of a few steps, and text from its model."""
    problems, model = [], byte_folder(**hf_folder.config(eos_token_id=0))
    program.write(path("bytes", "model.safetensors"), hf_folder.safetensors(hf_folder.tensors(1)))
    expect(problems, "tokenize", tokenize(model, {"a.txt": TEXT}, out="train.bin").code, 0)
    program.must("train", "--model", model, "--data", path("train.bin"), "--run", path("run"), "--steps", 2,
                 *program.SHAPE)
    for source in (path("run"), model):
        ended = program.run("generate", source, "--prompt", "naïve", "--max-tokens", 20, "--temperature", 0)
        expect(problems, f"generate from {source}", (ended.code, ended.out.startswith("naïve")), (0, True))
    return problems


def inspects():
    """Tokens with a loss are in brackets, for chats and for the token file made of them, without what fills sequences."""
    problems, model = [], chat_folder()
    data = {"a.jsonl": lines(chat("q", "a\U0001f642"), chat("r", "b")) + lines({"text": "plain " * 300})}
    expect(problems, "tokenize", tokenize(model, data, "--pack", 64, "--end", "none").code, 0)
    shown = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n[[{}<|im_end|>]]\n"
    first = "document 1: 27 tokens, 6 with a loss\n" + shown.format("q", "a\U0001f642") + "\n\n"
    second = "document 2: 23 tokens, 2 with a loss\n" + shown.format("r", "b") + "\n\n"
    for name in ("a.jsonl", "out.bin"):
        ended = program.run("inspect", path(name), "--model", model, "--examples", 2)
        expect(problems, f"{name} ends", (ended.code, ended.err), (0, ""))
        counts, documents_of = ended.out.split("\n\n", 1)
        if name == "a.jsonl":
            expect(problems, "the end of documents", counts, "documents end with <|im_end|> (257), by config.json")
        expect(problems, name, documents_of, first + second)
    expect(problems, f"counts: {counts}", " tokens in 3 documents, " in counts and counts.endswith(", 1 document split"), True)
    ended = program.run("inspect", path("out.bin"), "--model", model, "--examples", 5)
    expect(problems, "parts of a split document", ended.out.count("more of one that was split"), 2)
    ended = program.run("inspect", path("a.jsonl"), "--model", model, "--max-tokens", 10)
    expect(problems, "the third document", ended.out.split("document 3: ")[-1],
           "the first 10 tokens, 9 with a loss\np[[lain plai]]\n\n")
    return problems


def validation_has_whole_documents():
    """--val P% of packed documents is whole sequences, of which no document is cut."""
    problems, model, seq = [], chat_folder("parted", **hf_folder.config(vocab_size=300, eos_token_id=END)), program.SEQ
    reply = "a" * (seq - 22)  # with the markers around it, the chat is one sequence
    data = program.write(path("whole.jsonl"), hf_folder.chat("q", reply) * 10)
    environment = {**os.environ, "XDG_CACHE_HOME": path("cache")}
    os.makedirs(path("cache"), exist_ok=True)
    ended = program.run("train", "--model", model, "--init", "--data", data, "--val", "15%", "--run", path("parts"),
                        "--steps", 1, *program.SHAPE, env=environment)
    expect(problems, "ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    with open(path("parts", "log.jsonl"), encoding="utf-8") as file:
        found = [line["val_tokens"] for line in map(json.loads, file) if "val_tokens" in line]
    expect(problems, "tokens of the last evaluation", found[-1:], [len(reply) + 1])
    return problems


def a_folder_that_means_other_files_is_said():
    """The run goes on with the tokens that it began with, and says in one line what its folder means now."""
    problems, model, corpus = [], chat_folder("corpus-model", **hf_folder.config(vocab_size=300, eos_token_id=END)), path("corpus")
    environment = cache_of_its_own("corpus-cache")
    os.makedirs(path("corpus", "below"))
    for name in ("a.jsonl", os.path.join("below", "b.jsonl")):
        program.write(path("corpus", name), lines(*(chat(f"What is {i}?", f"{i} it is.") for i in range(20))))
    begun = program.run("train", "--model", model, "--init", "--data", corpus, "--val", path("corpus", "a.jsonl"), "--run",
                        path("on-corpus"), "--steps", 1, *program.SHAPE, env=environment)
    expect(problems, "begins", (begun.code, begun.err[-300:] if begun.code else ""), (0, ""))
    files = program.read_json(path("on-corpus", "run.json"))["data_files"]
    expect(problems, "its files", (files["count"], files["bytes"]), (2, 2 * os.path.getsize(path("corpus", "a.jsonl"))))
    with open(path("on-corpus", "recipe.yaml"), encoding="utf-8") as file:
        expect(problems, "the recipe names the folder", f'data: ["{corpus}"]' in file.read(), True)

    def resumed(steps, *words, code=0, keeps=True):
        ended = program.run("resume", path("on-corpus"), "--steps", steps, env=environment)
        said = [line for line in ended.err.splitlines() if " when the run began and means " in line or "is gone or cannot be read" in line]
        expect(problems, f"step {steps}", (ended.code, ended.err[-300:] if ended.code != code else ""), (code, ""))
        expect(problems, f"step {steps}: lines {said}", len(said), 1 if words else 0)
        if words:
            expect(problems, f"step {steps}: {said}", all(word in said[0] for word in (f"--data {corpus}", *words)), True)
            expect(problems, f"goes on: {said}", "goes on with the tokens" in said[0], keeps)

    resumed(2)
    program.write(path("corpus", "c.jsonl"), lines(chat("More?", "More.")))
    resumed(3, "meant 2 files of ", "means 3 files of ")
    os.remove(path("corpus", "c.jsonl"))
    resumed(4)
    os.rename(path("corpus", "below", "b.jsonl"), path("corpus", "below", "c.jsonl"))
    resumed(5, "means 2 files of ", "with other names or sizes")
    for kept in cached(environment):
        os.rename(path("corpus-cache", "spillway", kept), path("corpus-cache", kept))
    os.remove(path("corpus", "below", "c.jsonl"))
    resumed(6, "means 1 file of ", code=1, keeps=False)
    for kept in os.listdir(path("corpus-cache")):
        if kept != "spillway":
            os.replace(path("corpus-cache", kept), path("corpus-cache", "spillway", kept))
    resumed(6, "means 1 file of ")
    os.rename(path("corpus", "a.jsonl"), path("held.jsonl"))
    ended = program.run("resume", path("on-corpus"), "--steps", 7, env=environment)
    expect(problems, "without its text", (ended.code, ended.err.count("is gone or cannot be read; the run goes on")), (0, 2))
    older = program.read_json(path("on-corpus", "run.json"))
    program.write(path("on-corpus", "run.json"), json.dumps({**older, "data_files": None, "val_files": {"count": -1}}))
    resumed(8)
    return problems


def a_text_that_was_edited_in_place():
    """A file that keeps its name and size is said to be edited, and one that was only written again is not. The run goes on with
    its tokens, and where these are gone, those of the edited text are refused by its name."""
    problems, environment, text = [], cache_of_its_own("edited-cache"), path("edited", "a.jsonl")
    model = chat_folder("edited-model", **hf_folder.config(vocab_size=300, eos_token_id=END))
    os.makedirs(path("edited"))
    content = lines(*(chat(f"What is {i}?", f"{i} it is.") for i in range(40)))
    for steps, (name, words) in enumerate((("first", content), ("same", content), ("second", content.replace("What", "That"))), 1):
        program.write(text, words)
        begins = ("train", "--model", model, "--init", "--data", path("edited"), "--run", path("on-edited"), *program.SHAPE, "--steps", 1)
        ended = program.run(*(begins if name == "first" else ("resume", path("on-edited"), "--steps", steps)), env=environment)
        expect(problems, f"{name}: {ended.err[-300:]}",
               (ended.code, "when the run began and means" in ended.err, "was edited since the run began; the run goes on" in ended.err),
               (0, False, name == "second"))
    shutil.rmtree(path("edited-cache"))
    ended = program.run("resume", path("on-edited"), "--steps", 4, env=environment)
    expect(problems, f"without its tokens: {ended.err[-400:]}",
           (ended.code, "not those that the run began with" in ended.err, f"while comparing the tokens of {path('edited')}" in ended.err), (1, True, True))
    return problems


def trains_on_chats():
    """train makes tokens of chats by itself, once; what is wrong with them is said before anything is written."""
    problems, model = [], chat_folder("trained", **hf_folder.config(vocab_size=300, eos_token_id=END))
    program.write(path("chat.jsonl"), lines(*(chat(f"What is {i}?", f"{i} it is.") for i in range(40))))
    program.write(path("bad.jsonl"), lines(chat("q", "a"), {"messages": []}))
    shared = ("train", "--model", model, "--init", *program.SHAPE)
    os.makedirs(path("cache"), exist_ok=True)
    environment = {**os.environ, "XDG_CACHE_HOME": path("cache")}
    for name, said in (("first", "wrote"), ("second", "in the cache")):
        ended = program.run(*shared, "--data", path("chat.jsonl"), "--run", path(name), "--steps", 2, env=environment)
        expect(problems, f"{name} ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
        expect(problems, f"{name}: {ended.err[:500]}", said in ended.err, True)
    with open(path("first", "run.json"), encoding="utf-8") as file:
        text = file.read()
    expect(problems, "the run names its token file", "/spillway/tokens-" in text, True)
    ended = program.run("resume", path("first"), "--steps", 3, env=environment)
    expect(problems, "resume ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    for name in os.listdir(path("cache", "spillway")):
        if name.startswith("tokens-"):
            os.unlink(path("cache", "spillway", name))
    ended = program.run("resume", path("first"), "--steps", 4, env=environment)
    expect(problems, "resume without its tokens", (ended.code, "made again" in ended.err), (0, True))
    for name in cached(environment):
        os.unlink(path("cache", "spillway", name))
    os.rename(path("chat.jsonl"), path("moved.jsonl"))
    again = ("resume", path("first"), "--steps", 5)
    ended = program.run(*again, env=environment)
    expect(problems, "resume without its chats", (ended.code, "--data" in ended.err and "chat.jsonl" in ended.err), (1, True))
    program.write(path("chat.jsonl"), lines(*(chat("other", "chats") for i in range(100))))
    ended = program.run(*again, env=environment)
    expect(problems, "resume on other chats", (ended.code, "not those that the run began with" in ended.err), (1, True))
    ended = program.run(*again, "--data", path("moved.jsonl"), env=environment)
    expect(problems, "resume from the chats", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    os.rename(path("moved.jsonl"), path("chat.jsonl"))
    ended = program.run("eval", path("first"), "--data", path("chat.jsonl"), "--seq", program.SEQ, "--json", env=environment)
    found, replies = json.loads(ended.out), [f"{i} it is." for i in range(40)]
    expect(problems, "tokens of the replies", found["tokens"], sum(len(reply) + 1 for reply in replies))
    ratio = found["bits_per_byte"] / found["bits_per_token"] * len("".join(replies)) / found["tokens"]
    expect(problems, "bits a byte", abs(ratio - 1) < 1e-9, True)
    before = sorted(os.listdir(path("cache", "spillway")))
    ended = program.run(*shared, "--data", path("bad.jsonl"), "--run", path("third"), "--steps", 2, env=environment)
    expect(problems, "bad data", (ended.code, "bad.jsonl:2" in ended.err, os.path.exists(path("third"))), (1, True, False))
    expect(problems, "left of bad data", sorted(os.listdir(path("cache", "spillway"))), before)
    ended = program.run(*shared, "--data", path("chat.jsonl"), path("out.bin"), "--run", path("third"), env=environment)
    expect(problems, "mixed data", (ended.code, "both token files and text" in ended.err), (1, True))
    return problems


def train_takes_loss_and_format():
    """--loss and --chat-format of train choose other tokens, are kept by the run, and make the same tokens again."""
    problems, unknown = [], chat_folder("unknown-template", "{{ messages }}", **hf_folder.config(vocab_size=300, eos_token_id=END))
    data = program.write(path("loss.jsonl"), lines(*(chat(f"What is {i}?", f"{i} it is.") for i in range(40))))
    environment = cache_of_its_own("loss-cache")
    shared = ("train", "--model", unknown, "--init", *program.SHAPE, "--data", data, "--steps", 1)
    ended = program.run(*shared, "--run", path("loss-0"), env=environment)
    expect(problems, "an unknown template", (ended.code, "--chat-format" in ended.err), (1, True))
    cases = (("loss-1", ("--chat-format", "chatml"), 1), ("loss-2", ("--chat-format", "chatml", "--loss", "all"), 2),
             ("loss-3", ("--chat-format", "qwen2", "--loss", "all"), 3))
    for run, flags, files in cases:
        ended = program.run(*shared, "--run", path(run), *flags, "--dry-run", env=environment)
        expect(problems, f"dry run {flags}", (ended.code, "% of them with a loss" in ended.err), (0, True))
        ended = program.run(*shared, "--run", path(run), *flags, env=environment)
        expect(problems, f"{flags} ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
        expect(problems, f"token files with {flags}", len(cached(environment)), files)
    settings = program.read_json(path("loss-2", "run.json"))["settings"]
    expect(problems, "run.json", (settings["loss"], settings["chat_format"]), ("all", "chatml"))
    with open(path("loss-2", "recipe.yaml"), encoding="utf-8") as file:
        text = file.read()
    expect(problems, f"recipe {text}", 'loss: "all"' in text and 'chat-format: "chatml"' in text, True)
    ended = program.run("train", "--recipe", path("loss-2", "recipe.yaml"), "--run", path("loss-4"), env=environment)
    expect(problems, "the recipe ends", (ended.code, "in the cache" in ended.err), (0, True))
    for name in cached(environment):
        os.unlink(path("loss-cache", "spillway", name))
    ended = program.run("resume", path("loss-2"), "--steps", 2, "--data", data, env=environment)
    expect(problems, "resume ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    ended = program.run("eval", path("loss-2"), "--data", data, "--loss", "all", "--chat-format", "chatml", "--json",
                        "--seq", program.SEQ, env=environment)
    expect(problems, "eval ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    expect(problems, "eval takes the tokens of the run", len(cached(environment)), 1)
    return problems


def bounded(name, files):
    """Makes tokens where a cache has these files, of so many days since their last use and so many bytes. The one named 5
    is open. Returns the program's end, and which are left."""
    environment, folder = cache_of_its_own(name), path(name, "spillway")
    model = chat_folder("bounded", **hf_folder.config(vocab_size=300, eos_token_id=END))
    os.makedirs(folder)
    for digit, (days, size) in files.items():
        for suffix in ("", ".doc", ".mask", ".partial"):
            file = program.write(os.path.join(folder, f"tokens-{digit * 16}.bin{suffix}"), "")
            os.truncate(file, 10 if suffix else size)
            os.utime(file, (time.time() - days * 86400 - 60, time.time() - days * 86400 - 60))
    for other in ("gpu-0123456789abcdef.json", "tokens-notes.txt"):
        program.write(os.path.join(folder, other), "")
    data = program.write(path("bounded.jsonl"), lines(chat("q", "a" * 100), chat("q", "b" * 100)))
    with open(os.path.join(folder, "tokens-5555555555555555.bin"), "rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        ended = program.run("train", "--model", model, "--init", *program.SHAPE, "--data", data, "--run", path(name, "run"),
                            "--steps", 1, env=environment)
    left = os.listdir(folder)
    found = {digit: sum(file.startswith(f"tokens-{digit * 16}") for file in left) for digit in files}
    others = sorted(file for file in left if ".bin" not in file)
    problems = [] if others == ["gpu-0123456789abcdef.json", "tokens-notes.txt"] else [f"other files: {others}"]
    return ended, found, problems


def bounds_the_cache():
    """Old tokens go when new ones are made: those unused for 30 days, and the oldest beyond a share of the disk; never
    what was just used, or is open."""
    large = 1 << 43
    ended, found, problems = bounded("few-bytes", {"0": (31, 10), "1": (29, 10), "2": (400, 10), "5": (40, 10)})
    expect(problems, "ends", (ended.code, "removed 2 token files (80 B)" in ended.err, ended.err), (0, True, ended.err))
    expect(problems, "left of few bytes", found, {"0": 0, "1": 4, "2": 0, "5": 4})
    ended, found, more = bounded("many-bytes", {"0": (3, large), "1": (2, large), "2": (0, large), "3": (0, 10), "5": (4, 10)})
    expect(problems, "ends", (ended.code, "removed 2 token files" in ended.err, ended.err), (0, True, ended.err))
    expect(problems, "left of many bytes", found, {"0": 0, "1": 0, "2": 4, "3": 4, "5": 4})
    return problems + more


def no_time_by_the_kernel(file):
    """Sets the file's attribute A, where its file system has it: a read then leaves the time of the last access."""
    get_flags, set_flags, no_access_time = 0x80086601, 0x40086602, 0x80
    with open(file, "rb") as handle, contextlib.suppress(OSError):
        flags, = struct.unpack("i", fcntl.ioctl(handle, get_flags, bytes(4)))
        fcntl.ioctl(handle, set_flags, struct.pack("i", flags | no_access_time))


def use_keeps_tokens_in_the_cache():
    """A run that finds its tokens in the cache, or is resumed, counts as a use."""
    problems, environment = [], cache_of_its_own("used-cache")
    model = chat_folder("used", **hf_folder.config(vocab_size=300, eos_token_id=END))
    data = program.write(path("used.jsonl"), lines(*(chat("q", "a" * 100) for i in range(20))))
    train = ("train", "--model", model, "--init", *program.SHAPE, "--data", data, "--steps", 1, "--run")
    ended = program.run(*train, path("used-1"), env=environment)
    expect(problems, "train ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    file = path("used-cache", "spillway", cached(environment)[0])
    written = os.stat(file).st_mtime
    no_time_by_the_kernel(file)
    for command in ((*train, path("used-2")), ("resume", path("used-1"), "--steps", 2),
                    ("train", "--model", model, "--init", *program.SHAPE, "--data", data, "--run", path("used-3"), "--dry-run")):
        os.utime(file, (0, written))
        ended = program.run(*command, env=environment)
        expect(problems, f"{command[0]} ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
        expect(problems, f"last use after {command[0]}", time.time() - os.stat(file).st_atime < 600, True)
    return problems


def damaged_tokens_are_made_again():
    """A changed byte in a token file of the cache, or beside it, trains nothing: the tokens are made again, and are the same.
    Where they cannot be made they are refused. Files of a version without digests serve the run that names them."""
    problems, environment, folder = [], cache_of_its_own("flipped-cache"), path("flipped-cache", "spillway")
    model = chat_folder("flipped", **hf_folder.config(vocab_size=300, eos_token_id=END))
    data = program.write(path("flipped.jsonl"), lines(*(chat(f"{i}?", f"{i}!") for i in range(60))))
    train = ("train", "--model", model, "--init", *program.SHAPE, "--data", data, "--steps", 1, "--run")
    ended = program.run(*train, path("flipped-run"), env=environment)
    expect(problems, "train ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    good = read_folder(folder)
    name = cached(environment)[0]
    cases = [(name + suffix, command) for suffix in ("", ".mask", ".doc", ".xxh3")
             for command in ((*train, path("flipped-2")), ("resume", path("flipped-run"), "--steps", 1))]
    cases.append((name, ("eval", path("flipped-run"), "--data", data, "--seq", program.SEQ)))
    for file, command in cases:
        program.write(os.path.join(folder, file), bytes([good[file][0] ^ 1]) + good[file][1:])
        ended = program.run(*command, env=environment)
        shutil.rmtree(path("flipped-2"), ignore_errors=True)
        expect(problems, f"{file}: {command[0]} {ended.err[-300:]}", (ended.code, "is damaged" in ended.err), (0, True))
        expect(problems, f"{file}: the files after {command[0]}", read_folder(folder) == good, True)
    os.unlink(os.path.join(folder, name + ".xxh3"))
    ended = program.run("resume", path("flipped-run"), "--steps", 2, env=environment)
    expect(problems, "without digests", (ended.code, name + ".xxh3" in read_folder(folder)), (0, False))
    ended = program.run(*train, path("flipped-2"), env=environment)
    expect(problems, "made again for their digests", (ended.code, read_folder(folder) == good), (0, True))
    program.write(os.path.join(folder, name), good[name][:-2])
    for place in (path("flipped-run"), model):
        os.unlink(os.path.join(place, "tokenizer.json"))
    ended = program.run("resume", path("flipped-run"), "--steps", 3, env=environment)
    expect(problems, "without a tokenizer", (ended.code, "gone or damaged and cannot be made again" in ended.err), (1, True))
    return problems


def read_folder(folder):
    """The files of token data in a cache, by name."""
    found = {}
    for name in os.listdir(folder):
        if name.startswith("tokens-"):
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = file.read()
    return found


def resumes_from_another_folder():
    """The text of a run is found from wherever it is resumed, also where a pattern named it."""
    problems, environment = [], cache_of_its_own("elsewhere-cache")
    os.makedirs(path("elsewhere", "texts"))
    model = chat_folder("elsewhere", **hf_folder.config(vocab_size=300, eos_token_id=END))
    program.write(path("elsewhere", "texts", "a.jsonl"), lines(*(chat(f"{i}?", f"{i}!") for i in range(60))))
    program.write(path("elsewhere", "val.jsonl"), lines(*(chat(f"{i}?", f"{i}!") for i in range(20))))
    ended = program.run("train", "--model", model, "--init", *program.SHAPE, "--data", "texts/*.jsonl", "--val", "val.jsonl",
                        "--run", "run", "--steps", 1, env=environment, cwd=path("elsewhere"))
    expect(problems, "train ends", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
    for name in cached(environment):
        os.unlink(path("elsewhere-cache", "spillway", name))
    ended = program.run("resume", path("elsewhere", "run"), "--steps", 2, env=environment)
    expect(problems, "resume ends", (ended.code, ended.err.count("is made again of")), (0, 2))
    ended = program.run("train", "--recipe", path("elsewhere", "run", "recipe.yaml"), "--run", path("again"), env=environment)
    expect(problems, "the recipe ends", (ended.code, ended.err.count("in the cache")), (0, 2))
    return problems


def all_count_alike():
    """Documents, losses and padding that tokenize says are those that train, eval and inspect say: one that was split is
    one, and what fills sequences up is none."""
    problems, seq = [], program.SEQ
    model = chat_folder("counted", **hf_folder.config(vocab_size=300, eos_token_id=END))
    program.write(path("counted", "model.safetensors"), hf_folder.safetensors(hf_folder.tensors(1, vocab=300)))
    draw = random.Random(7)
    chats = [chat("q" * draw.randrange(1, 60), "a" * draw.randrange(1, 90)) for _ in range(200)]
    program.write(path("counted.jsonl"), lines(*chats))
    environment = cache_of_its_own("counted-cache")
    ended = tokenize(model, {"counted.jsonl": lines(*chats)}, "--pack", seq, out="counted.bin")
    words = ended.err.replace("%", "").replace("(", "").split()
    tokens, split = words[words.index("tokens") - 1], words[words.index("longer") - 3]
    loss, padding = (words[words.index(word) + 1 if word == "loss" else words.index(word) + 3] for word in ("loss", "fill"))
    loss, padding = loss.rstrip(")"), padding.rstrip(")")
    wanted = f"{tokens} tokens in 200 documents, {loss}% of them with a loss, {padding}% padding, {split} documents split"
    train = ("train", "--model", model, "--init", *program.SHAPE, "--steps", 1, "--data")
    for data in ("counted.bin", "counted.jsonl"):
        ended = program.run(*train, path(data), "--run", path("run-" + data), env=environment)
        expect(problems, f"train on {data}", (ended.code, f"data: {wanted};" in ended.err, ended.err), (0, True, ended.err))
        ended = program.run("eval", model, "--data", path(data), "--seq", seq, env=environment)
        expect(problems, f"eval of {data}", (ended.code, f"{data}: {wanted};" in ended.err, ended.err), (0, True, ended.err))
    ended = program.run("inspect", path("counted.bin"), "--model", model)
    expect(problems, "inspect", ended.out.split("\n")[0], wanted)
    whole = [chat("q", "a" * (seq - 22)) for _ in range(10)]  # each is one sequence
    program.write(path("parts.jsonl"), lines(*whole))
    ended = program.run(*train, path("parts.jsonl"), "--val", "20%", "--run", path("run-parts"), env=environment)
    expect(problems, "the training part", (ended.code, "tokens in 8 documents," in ended.err, ended.err), (0, True, ended.err))
    return problems


def reads_files_of_llmc():
    """A header of llm.c says the type of the tokens, for train, eval and inspect; a wrong one is refused by all."""
    problems, environment = [], cache_of_its_own("llmc-cache")
    model = chat_folder("llmc", **hf_folder.config(vocab_size=300, eos_token_id=END))
    program.write(path("llmc", "model.safetensors"), hf_folder.safetensors(hf_folder.tensors(1, vocab=300)))
    content = [*TEXT.encode()]
    plain = program.write(path("plain.bin"), array.array("H", content).tobytes())
    found = []
    for magic, version, width in ((20240520, 1, "H"), (20240801, 7, "I")):
        header = array.array("i", [magic, version, len(content), *[0] * 253]).tobytes()
        file = program.write(path(f"llmc-{width}.bin"), header + array.array(width, content).tobytes())
        for name in (plain, file):
            ended = program.run("inspect", name, "--model", model, "--max-tokens", 50, "--examples", 2)
            expect(problems, f"inspect {name}", (ended.code, ended.err), (0, ""))
            found.append(ended.out)
            ended = program.run("eval", model, "--data", name, "--json", "--tokens", 500, env=environment)
            expect(problems, f"eval {name}", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
            found.append(json.loads(ended.out)["loss"] if ended.code == 0 else ended.err)
        ended = program.run("train", "--model", model, "--data", file, "--run", path(f"llmc-run-{width}"), "--steps", 1,
                            *program.SHAPE)
        expect(problems, "train", (ended.code, f"data: {len(content)} tokens" in ended.err), (0, True))
    expect(problems, "what is read", found, found[:2] * 4)
    cut = program.write(path("cut.bin"), header + b"\0\0")
    for command in (("inspect", cut, "--model", model), ("eval", model, "--data", cut),
                    ("train", "--model", model, "--data", cut, "--run", path("llmc-cut"))):
        problems += program.refused(f"{command[0]} of a cut file", command, "cut.bin", "cut off")
    return problems


def refuses_flags_without_text():
    """Flags of chats are refused for token files, and said where the text has no chats."""
    problems, environment = [], cache_of_its_own("flags-cache")
    model = chat_folder("flags", **hf_folder.config(vocab_size=300, eos_token_id=END))
    program.write(path("flags", "model.safetensors"), hf_folder.safetensors(hf_folder.tensors(1, vocab=300)))
    tokenize(model, {"flags.txt": TEXT}, out="flags.bin")
    shared = ("train", "--model", model, "--init", *program.SHAPE, "--run", path("flags-run"), "--steps", 1)
    for flags in (("--chat-format", "chatml"), ("--loss", "all"), ("--bos", "no"), ("--encoding", "gbk"), ("--lossy",)):
        problems += program.refused(f"train {flags}", (*shared, "--data", path("flags.bin"), *flags), "flags.bin",
                                    flags[0], "tokens already")
        problems += program.refused(f"eval {flags}", ("eval", model, "--data", path("flags.bin"), *flags), "tokens already")
    problems += program.refused("an unknown format", (*shared, "--data", path("flags.txt"), "--chat-format", "alpaca"),
                                "alpaca", "chatml, qwen2", status=2)
    ended = program.run(*shared, "--data", path("flags.txt"), "--chat-format", "chatml", env=environment)
    expect(problems, "text without chats", (ended.code, "has no chats" in ended.err), (0, True))
    return problems


def tokens_in_the_cache_are_those_of_their_text():
    """Text that changes between its digest and its tokens is refused, also where the change was taken back."""
    problems, model, environment = [], chat_folder("changing-model", **hf_folder.config(vocab_size=300, eos_token_id=END)), \
        cache_of_its_own("changing")
    text = program.write(path("changing.txt"), "an honest line of text\n" * 400000)
    process = subprocess.Popen(program.command("train", "--model", model, "--init", "--data", text, "--run", path("changing-run"),
                                               "--steps", 1, *program.SHAPE), env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    folder = os.path.join(environment["XDG_CACHE_HOME"], "spillway")
    while process.poll() is None and not (os.path.isdir(folder) and any(n.endswith(".bin.partial") for n in os.listdir(folder))):
        time.sleep(0.001)
    before = os.stat(text)
    for content in ("x" * 2000, ("an honest line of text\n" * 100)[:2000]):
        with open(text, "r+", encoding="utf-8") as file:
            file.write(content)
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    said = process.communicate(timeout=60)[1]
    expect(problems, said, (process.returncode, "changed while its tokens were made" in said), (1, True))
    expect(problems, "tokens in the cache", cached(environment), [])
    return problems


script_test.run(tokens_in_the_cache_are_those_of_their_text, trains_and_talks, inspects, validation_has_whole_documents,
                a_folder_that_means_other_files_is_said, a_text_that_was_edited_in_place, trains_on_chats, train_takes_loss_and_format,
                refuses_flags_without_text, bounds_the_cache, use_keeps_tokens_in_the_cache, reads_files_of_llmc,
                damaged_tokens_are_made_again, resumes_from_another_folder, all_count_alike)
