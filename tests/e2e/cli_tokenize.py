"""spillway tokenize and generate with a tokenizer: documents, their ends, widths, bad input, and nothing half-written."""

import array
import contextlib
import fcntl
import gzip
import json
import os
import random
import signal
import struct
import subprocess
import time

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizers", "gpt2.json")
TEXT = "".join(random.Random(4).choices(("the ", "model ", "naïve ", "\n", "12 ", "🙂", "  "), k=4000))


def path(*names):
    return os.path.join(SCRATCH, *names)


def folder(name, tokenizer, **config):
    os.makedirs(path(name), exist_ok=True)
    program.write(path(name, "tokenizer.json"), tokenizer)
    if config:
        program.write(path(name, "config.json"), json.dumps(config))
    return path(name)


def byte_folder(**config):
    return folder("bytes", hf_folder.byte_tokenizer(), **{"vocab_size": 256, **config})


def tokens(name, width="H"):
    with open(path(name), "rb") as file:
        return array.array(width, file.read()).tolist()


def documents(name):
    with open(path(name + ".doc"), "rb") as file:
        return array.array("Q", file.read()).tolist()


def mask(name):
    with open(path(name + ".mask"), "rb") as file:
        return list(file.read())


START, END = 256, 257


def chat_folder(name="chat", template=hf_folder.CHATML, **config):
    os.makedirs(path(name), exist_ok=True)
    program.write(path(name, "config.json"), json.dumps({"vocab_size": 300, "eos_token_id": END, **config}))
    hf_folder.write_chat_tokenizer(path(name), template, first=START)
    return path(name)


def chat(*contents):
    return json.loads(hf_folder.chat(*contents))


def lines(*objects):
    return "".join(json.dumps(item) + "\n" for item in objects)


def tokenize(model, data, *more, out="out.bin", left=()):
    """Tokenizes files of this content. Of an earlier output, the suffixes in `left` stay."""
    files = [program.write(path(name), content) for name, content in data.items()]
    for old in (out, out + ".doc", out + ".mask"):
        if os.path.exists(path(old)) and not old.endswith(left):
            os.unlink(path(old))
    return program.run("tokenize", "--model", model, "--data", *files, "--out", path(out), *more)


def expect(problems, what, found, wanted):
    if found != wanted:
        problems.append(f"{what}: {str(found)[:200]} instead of {str(wanted)[:200]}")


def golden_ids():
    """The program's ids are the golden ones; threads and batches do not change them."""
    problems = []
    with open(GOLDEN, encoding="utf-8") as file:
        golden = json.load(file)
    cases = [case for case in golden["cases"] if case.get("text") and not case.get("special") and not case.get("whole")]
    model = folder("gpt2", json.dumps(golden["tokenizer"]))
    lines = "".join(json.dumps({"text": case["text"]}) + "\n" for case in cases) * 40
    for threads in (1, 3):
        ended = tokenize(model, {"cases.jsonl": lines}, "--threads", threads)
        expect(problems, "exit", (ended.code, ended.err if ended.code else ""), (0, ""))
        expect(problems, f"{threads} threads", tokens("out.bin"), [i for case in cases for i in case["ids"]] * 40)
        expect(problems, "documents", len(documents("out.bin")), len(cases) * 40)
    return problems


def rules():
    """Rules for what a document is, and what stands behind it."""
    problems, ends = [], {"eos_token_id": [7, 8]}
    cases = (
        ({"a.txt": "ab\ncd", "b.md": "e"}, (), ends, [*b"ab\ncd", 7, *b"e", 7], [0, 6]),
        ({"a.txt": "ab\n\ncd\r\n"}, ("--lines",), ends, [*b"ab", 7, *b"cd", 7], [0, 3]),
        ({"a.txt": "a\n***\nb\n***\n***\nc"}, ("--separator", "***"), {}, [*b"a\n", *b"b\n", *b"c"], [0, 2, 4]),
        ({"a.txt": "\ufeffab"}, ("--end", "none"), ends, [*b"ab"], [0]),
        ({"a.txt": "ab"}, ("--end", "!"), ends, [*b"ab", 33], [0]),
        ({"a.jsonl": '{"body": "x"}\n\n{"body": "y\\u0000"}\n'}, ("--field", "body"), {}, [*b"x", *b"y\0"], [0, 1]),
        ({"a.txt.gz": gzip.compress(b"packed")}, (), {}, [*b"packed"], [0]),
        ({"a.txt": b"\xff\xc3("}, (), {}, [*"\ufffd\ufffd(".encode()], [0]),
    )
    for data, more, config, wanted, starts in cases:
        os.makedirs(path("bytes"), exist_ok=True)
        ended = tokenize(byte_folder(**config), data, *more)
        expect(problems, f"{data} {more} ends", (ended.code, ended.err if ended.code else ""), (0, ""))
        if ended.code == 0:
            expect(problems, f"{data} {more}", tokens("out.bin"), wanted)
            expect(problems, f"documents of {data} {more}", documents("out.bin"), starts)
    return problems


def wide_and_joined():
    problems = []
    ended = tokenize(byte_folder(vocab_size=70000), {"a.txt": "abc"}, "--joined")
    expect(problems, "ends", (ended.code, ended.err if ended.code else ""), (0, ""))
    expect(problems, "tokens", tokens("out.bin", "I"), [*b"abc"])
    expect(problems, "documents beside joined ones", os.path.exists(path("out.bin.doc")), False)
    return problems


def special_tokens():
    """A text that spells a special token is not that token, unless this is asked for."""
    problems = []
    added = [{"id": 256, "content": "<|turn|>", "special": True, "normalized": False}]
    model = folder("special", hf_folder.byte_tokenizer(added_tokens=added), vocab_size=300)
    for more, wanted in (((), [*b"a<|turn|>"]), (("--special",), [97, 256])):
        tokenize(model, {"a.txt": "a<|turn|>"}, *more)
        expect(problems, f"{more}", tokens("out.bin"), wanted)
    return problems


def chats():
    """Chats in the model's format: what the assistant says has a loss, and a user's text ends no turn."""
    problems = []
    turns = [START, *b"user\nq<|im_end|>", END, 10, START, *b"assistant\n", *b"a", END, 10]
    learnt = [0] * (len(turns) - 3) + [1, 1, 0]
    texts = ({"prompt": "ab", "completion": "cd"}, {"text": "ef"})
    for more, wanted in (((), [*learnt, 0, 0, 1, 1, 1, 1, 1, 1]), (("--loss", "all"), None)):
        ended = tokenize(chat_folder(), {"a.jsonl": lines(chat("q<|im_end|>", "a"), *texts)}, *more)
        expect(problems, f"{more} ends", (ended.code, ended.err if ended.code else ""), (0, ""))
        expect(problems, f"{more}", tokens("out.bin"), [*turns, *b"abcd", END, *b"ef", END])
        expect(problems, f"documents {more}", documents("out.bin"), [0, len(turns), len(turns) + 5])
        expect(problems, f"mask {more}", mask("out.bin") if os.path.exists(path("out.bin.mask")) else None, wanted)
        expect(problems, f"{more} names its format", "format chatml" in ended.err, True)
    return problems


def folders_and_patterns():
    """A folder stands for the text files below it, by name; a pattern for what it matches; - for standard input."""
    problems, model = [], byte_folder()
    os.makedirs(path("texts", "below"), exist_ok=True)
    for name, content in (("b.txt", "B"), ("a.jsonl", lines({"text": "A"})), ("c.csv", "C"), ("below/d.md", "D")):
        program.write(path("texts", name), content)
    for data, wanted in ((path("texts"), b"ABD"), (path("texts", "*.*"), b"AB"), (path("texts", "[b]*"), b"BD")):
        ended = program.run("tokenize", "--model", model, "--data", data, "--out", path("out.bin"))
        expect(problems, f"{data} ends", (ended.code, ended.err if ended.code else ""), (0, ""))
        expect(problems, data, tokens("out.bin"), [*wanted])
    for content, wanted in ((b"plain", b"plain"), (lines({"text": "x"}, {"text": "y"}).encode(), b"xy")):
        ended = program.run("tokenize", "--model", model, "--data", "-", "--out", path("out.bin"), stdin=content)
        expect(problems, f"{content} ends", (ended.code, ended.err if ended.code else ""), (0, ""))
        expect(problems, f"{content}", tokens("out.bin"), [*wanted])
    os.makedirs(path("nothing"), exist_ok=True)
    for data in (path("nothing"), path("nothing", "*.txt")):
        ended = program.run("tokenize", "--model", model, "--data", data, "--out", path("new.bin"))
        expect(problems, f"{data} ends", (ended.code, "no file of text" in ended.err), (1, True))
    return problems


def reads_zstd():
    """A file that zstd packed is read, or refused with the command that unpacks it; one that is cut off is an error."""
    problems, packed = [], bytes.fromhex("28b52ffd04583100007061636b65649540d8d5")  # "packed", by zstd -c
    ended = tokenize(byte_folder(), {"a.txt.zst": packed * 2})
    if "built without zstd" in ended.err:
        expect(problems, "without zstd", (ended.code, "zstd -d" in ended.err), (1, True))
        return problems
    expect(problems, "ends", (ended.code, ended.err if ended.code else ""), (0, ""))
    expect(problems, "tokens", tokens("out.bin"), [*b"packedpacked"] if ended.code == 0 else None)
    for broken, word in ((packed[:-3], "unexpected end"), (b"packed", "a.txt.zst")):
        ended = tokenize(byte_folder(), {"a.txt.zst": broken})
        expect(problems, f"{broken}", (ended.code, word in ended.err), (1, True))
    return problems


def packs_whole_documents():
    """Documents lie whole within sequences; what is longer is split, and gaps have no loss."""
    problems = []
    lengths = (5, 3, 7, 8, 19, 1, 4)
    data = {"a.jsonl": lines(*({"text": chr(97 + i) * length} for i, length in enumerate(lengths)))}
    ended = tokenize(byte_folder(), data, "--pack", 8)
    expect(problems, "ends", (ended.code, ended.err if ended.code else ""), (0, ""))
    if ended.code:
        return problems
    found, starts, losses = tokens("out.bin"), documents("out.bin"), mask("out.bin")
    expect(problems, "whole sequences", len(found) % 8, 1)
    ends = [*starts[1:], len(found)]
    cut = [start for start, end in zip(starts, ends) if start // 8 != (end - 1) // 8]
    expect(problems, "documents across sequences", cut, [])
    fills = [start for start in starts if losses[start] == ord("p")]
    for start, end in zip(starts, ends):
        if start in fills:
            expect(problems, f"padding at {start}", (set(found[start:end]), set(losses[start + 1:end]) | {0}), ({0}, {0}))
        else:
            expect(problems, f"losses behind {start}", set(losses[start + 1:end]) | {1}, {1})
    padding = sum(end - start for start, end in zip(starts, ends) if start in fills)
    expect(problems, "tokens", sorted(token for token in found if token),
           [97 + i for i, length in enumerate(lengths) for _ in range(length)])
    expect(problems, "a document that was split", sorted((chr(found[start]), chr(losses[start])) for start in starts
                                                         if losses[start] not in (1, ord("p"))), [("e", "c"), ("e", "c"), ("e", "s")])
    said = ("7 documents", "1 documents are longer", f"{padding} tokens fill")
    problems += [f"'{ended.err}' lacks '{word}'" for word in said if word not in ended.err]
    return problems


def skips_bad_lines():
    problems = []
    good, bad = chat("q", "a"), ({"messages": []}, {"text": 5}, chat("q"), {"messages": [{"role": "tool", "content": ""}]})
    long = json.dumps({"text": "x" * (65 << 20)}) + "\n"
    data = {"a.jsonl": lines(good, *bad) + '{"text"\n' + '{"text": "a\0b"}\n' + long + lines(good)}
    ended = tokenize(chat_folder(), data, "--skip-bad")
    expect(problems, "ends", ended.code, 0)
    expect(problems, "documents", len(documents("out.bin")), 2)
    expect(problems, "counts", "7 lines were wrong" in ended.err, True)
    ended = tokenize(chat_folder(template="{{ messages }}"), data, "--skip-bad")
    expect(problems, "without a format", (ended.code, "--chat-format" in ended.err), (1, True))
    gemma = "{% for m in messages %}{{ '<start_of_turn>' + m['role'] }}{% endfor %}"
    ended = tokenize(chat_folder(template=gemma), data)
    expect(problems, f"Gemma's template: {ended.err}", (ended.code, "Gemma" in ended.err and "--special" in ended.err), (1, True))
    ended = tokenize(chat_folder(template="{{ messages }}"), {"a.jsonl": lines(good)}, "--chat-format", "chatml")
    expect(problems, "with a named format", ended.code, 0)
    return problems


def bad_input():
    problems, good = [], {"a.txt": "abc"}
    cut = gzip.compress(TEXT.encode())[:-20]
    unknown = hf_folder.byte_tokenizer(normalizer={"type": "Lowercase"})
    cases = (
        (byte_folder(), {"a.jsonl": '{"text": "x"}\n{"text"}\n'}, (), ("a.jsonl:2", "JSON")),
        (byte_folder(), {"a.jsonl": '{"text": "x"}\n{"text": 5}\n'}, (), ("a.jsonl:2", "--field")),
        (chat_folder(), {"a.jsonl": '\n{"messages": []}\n'}, (), ("a.jsonl:2", "no messages")),
        (byte_folder(), {"a.jsonl": lines(chat("q", "a"))}, (), ("bytes", "--chat-format")),
        (byte_folder(), {"a.jsonl": lines(chat("q", "a"))}, ("--chat-format", "chatml"), ("<|im_end|>", "no special token")),
        (byte_folder(), {"a.jsonl": lines(chat("q", "a"))}, ("--chat-format", "alpaca"), ("alpaca", "chatml, qwen2")),
        (chat_folder(), {"a.jsonl": '{"text": "a\0b"}\n'}, (), ("a.jsonl:1", "JSON")),
        (chat_folder(), {"a.jsonl": json.dumps({"text": "x" * (65 << 20)})}, (), ("a.jsonl:1", "64 MiB")),
        (byte_folder(), {"a.txt": "abc".encode("utf-16")}, (), ("UTF-16", "iconv")),
        (byte_folder(), {"a.txt.gz": cut}, (), ("a.txt.gz", "end of file")),
        (byte_folder(), {"a.csv": "abc"}, (), ("a.csv", ".jsonl")),
        (byte_folder(), {"a.txt": ""}, (), ("a.txt holds no text",)),
        (byte_folder(), {"a.txt": "", "b.jsonl": "\n\n"}, (), ("a.txt and the other files hold no text",)),
        (byte_folder(), {"a.json": '[{"text": "x"}]'}, (), ("jq -c '.[]'", "a.jsonl")),
        (byte_folder(), {"a.jsonl": '{"text": "x"}\n["x"]\n'}, (), ("a.jsonl:2", "is a list")),
        (chat_folder(), {"a.jsonl": lines(chat("q", "a"), {**chat("q", "a"), "tools": [{"type": "function"}]})}, (),
         ("a.jsonl:2", "a chat with 'tools'")),
        (chat_folder(), {"a.jsonl": lines({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a",
                                                                                           "weight": 0}]})}, (),
         ("a.jsonl:1", "'weight' of 0")),
        (chat_folder(), {"a.jsonl": lines({"messages": [{"role": "user", "content": ["q"]}]})}, (), ("a.jsonl:1", "no string")),
        (chat_folder(), {"a.jsonl": lines(chat("q", "a")).encode("utf-16")}, (), ("UTF-16", "iconv")),
        (byte_folder(), good, ("--end", "<nothing>"), ("<nothing>",)),
        (byte_folder(), good, ("--lines", "--separator", "x"), ("--lines",)),
        (byte_folder(vocab_size=100), good, (), ("256", "100", "belong together")),
        (folder("unknown", unknown), good, (), ("Lowercase",)),
        (folder("broken", "{"), good, (), ("tokenizer.json", "JSON")),
        (path("nowhere"), good, (), ("nowhere",)),
    )
    for model, data, more, words in cases:
        if model == path("bytes"):  # the cases before may have given it another vocabulary
            byte_folder(vocab_size=100 if "belong together" in words else 256)
        ended = tokenize(model, data, *more)
        text = ended.err.strip()
        expect(problems, f"{data} {more} ends", ended.code in (1, 2), True)
        problems += [f"{data} {more}: '{text}' lacks '{word}'" for word in words if word not in text]
        problems += [f"{data} {more}: {len(text.splitlines())} lines"] if len(text.splitlines()) != 1 else []
        left = [name for name in os.listdir(SCRATCH) if name.startswith("out.bin")]
        expect(problems, f"{data} {more} leaves", left, [])
    return problems


def full_disk():
    """Where there is no room, one line says so, and nothing is left."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        raise script_test.Skip("no root to mount a small file system")
    problems, folder = [], path("full")
    os.makedirs(folder)
    program.write(path("large.jsonl"), lines(*(chat("q" * 100, "a" * 100) for _ in range(8000))))
    model = chat_folder("full-model", **hf_folder.config(vocab_size=300, eos_token_id=END))
    mounted = 'mount -t tmpfs -o size=2m tmpfs "$0" && { "$@"; code=$?; find "$0" -type f; exit $code; }'
    for command in (("tokenize", "--model", model, "--data", path("large.jsonl"), "--out", os.path.join(folder, "o.bin")),
                    ("train", "--model", model, "--init", *program.SHAPE, "--data", path("large.jsonl"), "--run", path("full-run"))):
        ended = subprocess.run(["unshare", "--mount", "sh", "-c", mounted, folder, *program.command(*command)], check=False,
                               capture_output=True, timeout=program.LIMIT_S, env={**os.environ, "XDG_CACHE_HOME": folder})
        said = ended.stderr.decode()
        expect(problems, f"{command[0]}: {said}", (ended.returncode, "No space left" in said, len(said.splitlines())), (1, True, 1))
        expect(problems, f"left by {command[0]}", ended.stdout, b"")
    return problems


def stale_documents():
    problems = []
    program.write(path("out.bin.mask"), b"\1\1")
    ended = tokenize(byte_folder(), {"a.txt": "abc"}, left=(".mask",))
    expect(problems, "beside a mask of other tokens", (ended.code, "out.bin.mask" in ended.err), (1, True))
    os.unlink(path("out.bin.mask"))
    return problems


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
        counts, documents_of = ended.out.split("\n\n", 1) if name == "out.bin" else ("", ended.out)
        expect(problems, name, documents_of, first + second)
    expect(problems, f"counts: {counts}", " tokens in 3 documents, " in counts and counts.endswith(", 1 documents split"), True)
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


def cached(environment):
    """Names of the token files in a cache."""
    folder = os.path.join(environment["XDG_CACHE_HOME"], "spillway")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in names if name.startswith("tokens-") and name.endswith(".bin"))


def cache_of_its_own(name):
    os.makedirs(path(name), exist_ok=True)
    return {**os.environ, "XDG_CACHE_HOME": path(name)}


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


def long_chats(name, first=0):
    """Chats in several files, also packed ones, that take more than a second."""
    draw = random.Random(first)
    chats = "".join(hf_folder.chat("q" * draw.randrange(1, 200), "ab c" * draw.randrange(1, 100)) for _ in range(5000))
    bad = lines({"text": 5}) * 7
    files = {f"{name}-0.jsonl": chats + bad, f"{name}-1.jsonl.gz": gzip.compress((chats * 3).encode(), 1),
             f"{name}-2.jsonl": lines({"text": TEXT * 3}) + chats * 8, f"{name}-3.txt": "x\n***\n" + (TEXT + "\n***\n") * 100}
    return [program.write(path(file), content) for file, content in files.items()]


def written(out):
    """A token file with what belongs to it, by suffixes."""
    names = [name for name in os.listdir(SCRATCH) if name.startswith(out)]
    found = {}
    for name in names:
        with open(path(name), "rb") as file:
            found[name[len(out):]] = file.read()
    return found


def cut_off(arguments, out, sign):
    """Starts a command and sends it a signal once it has saved how far it is; again, where it was done before. Returns its
    status and what it says."""
    def saved():
        return os.stat(path(out + ".journal")).st_mtime_ns if os.path.exists(path(out + ".journal")) else 0
    for _ in range(10):
        before = saved()
        process = program.start(*arguments)
        while process.poll() is None and saved() in (0, before):
            time.sleep(0.001)
        process.send_signal(sign)
        said = process.communicate(timeout=program.LIMIT_S)[1]
        if "" not in written(out):
            break
        for suffix in written(out):
            os.unlink(path(out + suffix))
    return process.returncode, said


def goes_on():
    """A call that is killed or stopped goes on where it was, and writes the same bytes; a changed input begins anew."""
    problems, model, data = [], chat_folder(), long_chats("long")
    for flags in (("--skip-bad",), ("--skip-bad", "--pack", 512, "--separator", "***")):
        shared = ("tokenize", "--model", model, "--data", *data, *flags, "--threads", 1, "--out")
        whole = program.run(*shared, path("whole.bin"))
        expect(problems, "whole ends", whole.code, 0)
        for cuts in ((signal.SIGKILL,), (signal.SIGTERM, signal.SIGKILL)):
            for sign in cuts:
                code, said = cut_off((*shared, path("halted.bin")), "halted.bin", sign)
                expect(problems, f"{sign.name} ends", code in (0, None), False)
                expect(problems, f"{sign.name} says '{said}'", "goes on from there" in said, sign != signal.SIGKILL)
                expect(problems, f"files after {cuts} {sign.name}", "" in written("halted.bin"), False)
            ended = program.run(*shared, path("halted.bin"))
            expect(problems, "ends", (ended.code, "going on behind" in ended.err, ended.err), (0, True, ended.err))
            expect(problems, f"bytes after {cuts} {flags}", written("halted.bin") == written("whole.bin"), True)
            counts = [ended.err.split(".bin: ")[-1].splitlines() for ended in (ended, whole)]
            expect(problems, "counts", [line.split(", uint")[0] for line in counts[0]], [line.split(", uint")[0] for line in counts[1]])
            for name in written("halted.bin"):
                os.unlink(path("halted.bin" + name))
    return problems


def begins_anew():
    """The work of a call that was cut off is of no use for another input, or with other flags, and both are said."""
    problems, model, data = [], chat_folder(), long_chats("anew")
    shared = ("tokenize", "--model", model, "--skip-bad", "--threads", 1, "--data", *data, "--out", path("anew.bin"))
    for change, word in ((lambda: program.write(data[2], lines(chat("q", "a"))), "the input changed"), (lambda: None, "the flags")):
        cut_off(shared, "anew.bin", signal.SIGKILL)
        change()
        flags = ("--loss", "all") if word == "the flags" else ()
        ended = program.run(*shared, *flags)
        expect(problems, f"{word}: '{ended.err}'", (ended.code, word in ended.err), (0, True))
        found = written("anew.bin")
        must = program.must("tokenize", "--model", model, "--skip-bad", "--data", *data, *flags, "--out", path("fresh.bin"))
        expect(problems, f"{word}: bytes", (found == written("fresh.bin"), must.code), (True, 0))
        for name in found:
            os.unlink(path("anew.bin" + name))
            os.unlink(path("fresh.bin" + name))
        data = long_chats("anew")
    code, _ = cut_off(shared, "anew.bin", signal.SIGKILL)
    os.truncate(path("anew.bin.partial"), 5)
    ended = program.run(*shared)
    expect(problems, "a partial file that was cut", (code, ended.code, "partial file changed" in ended.err), (-9, 0, True))
    return problems


def one_writer_at_a_time():
    """A second call for the same file is refused, and takes nothing from the first; train waits for its tokens."""
    problems, data = [], long_chats("twice")
    model = chat_folder("twice", **hf_folder.config(vocab_size=300, eos_token_id=END))
    tokenizes = ("tokenize", "--model", model, "--skip-bad", "--data", *data, "--out", path("twice.bin"))
    with open(path("twice.bin.partial"), "w", encoding="utf-8") as first:
        first.write("of the first")
        first.flush()
        fcntl.flock(first, fcntl.LOCK_EX)
        ended = program.run(*tokenizes)
        expect(problems, "the second", (ended.code, "another process is writing" in ended.err), (1, True))
        expect(problems, "what is left of the first", written("twice.bin"), {".partial": b"of the first"})
    ended = program.run(*tokenizes)
    expect(problems, "without the first", (ended.code, sorted(written("twice.bin"))), (0, ["", ".doc", ".mask"]))
    environment = cache_of_its_own("twice-cache")
    trains = [subprocess.Popen(program.command("train", "--model", model, "--init", *program.SHAPE, "--data", *data[1:3],
                                               "--run", path(f"twice-{i}"), "--steps", 1),
                               env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
              for i in range(2)]
    said = [process.communicate(timeout=program.LIMIT_S)[1].decode() for process in trains]
    expect(problems, f"both trains: {said}", [process.returncode for process in trains], [0, 0])
    expect(problems, f"tokens made: {said}", sum("chats are written" in text for text in said), 1)
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
    for flags in (("--chat-format", "chatml"), ("--loss", "all")):
        problems += program.refused(f"train {flags}", (*shared, "--data", path("flags.bin"), *flags), "flags.bin",
                                    "--chat-format", "tokens already")
        problems += program.refused(f"eval {flags}", ("eval", model, "--data", path("flags.bin"), *flags), "tokens already")
    problems += program.refused("an unknown format", (*shared, "--data", path("flags.txt"), "--chat-format", "alpaca"),
                                "alpaca", "chatml, qwen2", status=2)
    ended = program.run(*shared, "--data", path("flags.txt"), "--chat-format", "chatml", env=environment)
    expect(problems, "text without chats", (ended.code, "has no chats" in ended.err), (0, True))
    return problems


script_test.run(golden_ids, rules, wide_and_joined, special_tokens, chats, folders_and_patterns, reads_zstd,
                packs_whole_documents, skips_bad_lines, bad_input, full_disk, stale_documents, trains_and_talks,
                inspects, validation_has_whole_documents, trains_on_chats, train_takes_loss_and_format,
                refuses_flags_without_text, bounds_the_cache, use_keeps_tokens_in_the_cache, reads_files_of_llmc,
                resumes_from_another_folder, all_count_alike, goes_on, begins_anew, one_writer_at_a_time)
