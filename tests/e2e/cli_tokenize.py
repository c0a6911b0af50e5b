"""spillway tokenize: documents, their ends, widths, bad input, restarts, and nothing half-written."""

import fcntl
import gzip
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time

import hf_folder
import program
from program import script_test
from token_files import (END, SCRATCH, START, TEXT, byte_folder, cache_of_its_own, chat, chat_folder, documents, expect,
                         folder, lines, mask, path, tokenize, tokens)

RENAMES, REMOVES = "rename,renameat,renameat2", "unlink,unlinkat"  # which of these calls a C library makes is its own affair
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizers", "gpt2.json")


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
        ({"a.txt": b"\xff\xc3("}, ("--lossy",), {}, [*"\ufffd\ufffd(".encode()], [0]),
        ({"a.txt": "é\nè".encode("latin-1")}, ("--encoding", "latin-1"), {}, [*"é\nè".encode()], [0]),
        ({"a.jsonl": '{"text": "é"}\n'.encode("utf-16")}, ("--encoding", "utf-16"), {}, [*"é".encode()], [0]),
        ({"a.txt": "\ufeffé".encode("utf-16-le")}, ("--encoding", "UTF-16LE"), {}, [*"é".encode()], [0]),
    )
    for data, more, config, wanted, starts in cases:
        os.makedirs(path("bytes"), exist_ok=True)
        ended = tokenize(byte_folder(**config), data, *more)
        expect(problems, f"{data} {more} ends", (ended.code, ended.err if ended.code else ""), (0, ""))
        if ended.code == 0:
            expect(problems, f"{data} {more}", tokens("out.bin"), wanted)
            expect(problems, f"documents of {data} {more}", documents("out.bin"), starts)
    return problems


def other_encodings():
    """Characters that blocks cut are whole, and what the encoding does not have is refused by its place: in files,
    packed files and standard input alike."""
    problems, model = [], byte_folder()
    text = "".join("山é😀"[i % 3] * (i % 7) + "\n" for i in range(60000))
    for encoding in ("utf-8", "utf-16", "utf-32", "gb18030", "UTF-16BE", "utf-7"):
        data = text.encode(encoding)
        for name, bytes_, stdin in (("a.txt", data, b""), ("a.txt.gz", gzip.compress(data, 1), b""), ("-", b"", data)):
            if name == "-":
                ended = program.run("tokenize", "--model", model, "--data", "-", "--end", "none", "--encoding", encoding,
                                    "--out", path("out.bin"), stdin=stdin)
            else:
                ended = tokenize(model, {name: bytes_}, "--end", "none", "--encoding", encoding)
            expect(problems, f"{encoding} {name}", (ended.code, ended.err if ended.code else ""), (0, ""))
            expect(problems, f"text of {encoding} {name}", bytes(tokens("out.bin")) == text.encode(), True)
    good = ("é" * 70000 + "\n").encode()
    bad = {"utf-8": (good + b"x\xe9 y\n", (), f"not UTF-8: there is 0xE9 at byte {len(good) + 1}, in line 2"),
           "cut": (good + b"\xe5\xb1", (), f"a character that begins with 0xE5 at byte {len(good)}, in line 2"),
           "gbk": ("山\n".encode("gbk") * 50000 + b"\xff", ("--encoding", "gbk"), "0xFF at byte 150000, in line 50001"),
           "utf-16": ("a".encode("utf-16"), (), "--encoding utf-16 reads it"),
           "without a mark": ("ab".encode("utf-16-le"), (), "--encoding utf-16le"),
           "a surrogate": (b"ab\xed\xa0\xbd", (), "not UTF-8: there is 0xED at byte 2"),
           "half a pair": (b"a\0\x3d\xd8b\0", ("--encoding", "utf-16le"), "0x3D at byte 2, in line 1"),
           "half a pair at the end": (b"a\0\x3d\xd8", ("--encoding", "utf-16le"), "begins with 0x3D at byte 2"),
           "cesu-8": (b"a", ("--encoding", "cesu-8"), "no encoding of this name"),
           "unknown": (b"a", ("--encoding", "nonsense"), "no encoding of this name"),
           "ignored": (b"a\xff", ("--encoding", "ascii//IGNORE"), "no encoding of this name")}
    for name, (data, more, wanted) in bad.items():
        ended = tokenize(model, {"a.txt": data}, *more)
        expect(problems, name, (ended.code > 0, wanted in ended.err), (True, True))
        ended = program.run("tokenize", "--model", model, "--data", "-", *more, "--out", path("new.bin"), stdin=data)
        expect(problems, f"{name} by standard input", (ended.code > 0, wanted in ended.err), (True, True))
    for data, more, replaced in ((good + b"x\xe9 y", (), 1), (b"a\xff\n\xff\n", ("--encoding", "gbk"), 2),
                                 ("a\n".encode("utf-16-le") + b"\0\xdcb\0", ("--encoding", "utf-16le"), 1),
                                 (b"a\xed\xa0\xbd\xed\xb8\x80b", (), 6),
                                 (b"\0a\xd8\x3d\0b\xd8\x3d", ("--encoding", "utf-16be"), 2),
                                 (b"a\0\x3d\xd8b\0\0\xdcc\0", ("--encoding", "unicodelittle"), 2),
                                 (b"a\0\0\0\0\xd8\0\0b\0\0\0\0\0\x11\0c\0\0\0", ("--encoding", "utf-32le"), 2)):
        ended = tokenize(model, {"a.txt": data}, "--lossy", "--end", "none", *more)
        expect(problems, f"lossy {more} ends", (ended.code, f"{replaced} time{'s' * (replaced > 1)}, bytes" in ended.err), (0, True))
        expect(problems, f"lossy {more}", bytes(tokens("out.bin")).count("\ufffd".encode()), replaced)
    rows = lines({"text": "a"}).encode() + b'{"text": "caf\xe9"}\n' + lines({"text": "b"}).encode()
    for more, code, wanted in (((), 1, ":2 is not UTF-8: there is 0xE9 at byte 13"), (("--skip-bad",), 0, "1 JSON document was")):
        ended = tokenize(model, {"a.jsonl": rows}, *more)
        expect(problems, f"lines {more}", (ended.code, wanted in ended.err), (code, True))
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
        expect(problems, f"{more} says by what", "the model's own chat template" in ended.err, True)
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


def folders_leave_out_what_is_no_data():
    """Hidden entries, cards and further links to a file are left out of folders and patterns and named; a link to
    nothing is an error. A file that is named itself is always taken."""
    problems, model, data = [], byte_folder(), path("mixed")
    for name, content in (("a.txt", "A"), ("Z.txt", "Z"), (".hidden.txt", "h"), (".ipynb_checkpoints/a.txt", "c"),
                          ("._a.txt", "m"), ("README.md", "card"), ("LICENSE.txt", "l"), ("t.parquet", "p"),
                          ("below/b.txt", "B"), ("below/readme_zh.md", "r")):
        os.makedirs(os.path.dirname(os.path.join(data, name)), exist_ok=True)
        program.write(os.path.join(data, name), content)
    os.symlink(".", os.path.join(data, "below", "loop"))
    os.symlink("a.txt", os.path.join(data, "latest.txt"))
    for name, wanted, left in ((data, b"ZAB", 9), (os.path.join(data, "*"), b"ZAB", 6),
                               (os.path.join(data, "README.md"), b"card", 0),
                               (os.path.join(data, ".ipynb_checkpoints"), b"c", 0)):
        ended = program.run("tokenize", "--model", model, "--data", name, "--out", path("out.bin"))
        expect(problems, f"{name} ends", (ended.code, ended.err if ended.code else ""), (0, ""))
        expect(problems, name, tokens("out.bin"), [*wanted])
        said = re.findall("left out ([0-9]+)", ended.err)
        expect(problems, f"{name} says what it left out", said, [str(left)] * (left > 0))
    os.symlink("gone.txt", os.path.join(data, "new.txt"))
    for name in (data, os.path.join(data, "n*")):
        ended = program.run("tokenize", "--model", model, "--data", name, "--out", path("new.bin"))
        expect(problems, f"{name} ends", (ended.code, "new.txt is a link to nothing" in ended.err), (1, True))
    return problems


def files_of_other_kinds():
    """Tables, documents, archives and failed downloads are named by their beginning or their name, with the way to text."""
    problems = []
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    for name, content, said in (("a.parquet", "", "is Parquet, which"), ("a.txt", "PAR1\0\0", "is Parquet, which"), ("a.csv", "text\na\n", "to_json"),
                                ("a.txt", "%PDF-1.7\n", "pdftotext"), ("a.jsonl", pointer, "git lfs pull"), ("a.txt", pointer, "git lfs pull"),
                                ("a.tar.gz", "", "archive of tar")):
        ended = tokenize(byte_folder(), {name: content})
        expect(problems, f"{name} {content[:8]}: {ended.err}", (ended.code, said in ended.err), (1, True))
    model = byte_folder()
    for data, said in (("org/name", "hf download org/name --repo-type dataset"),
                       ("https://huggingface.co/datasets/org/name/viewer", "hf download org/name --repo-type"), ("data/a.jsonl", "No such file")):
        ended = program.run("tokenize", "--model", model, "--data", data, "--out", path("hub.bin"))
        expect(problems, f"{data}: {ended.err}", (ended.code, said in ended.err), (1, True))
    with open(f"{model}/tokenizer.json", "w", encoding="utf-8") as file:
        file.write(pointer)
    ended = tokenize(model, {"a.txt": "a"})
    expect(problems, f"tokenizer.json: {ended.err}", (ended.code, "git lfs pull" in ended.err), (1, True))
    return problems


def files_without_text():
    """Empty files and documents of white space are left out and counted, CR LF is said, and a last line needs no end."""
    problems = []
    ended = tokenize(byte_folder(), {"a.txt": "", "b.txt": " \n\t\r\n", "c.jsonl": "", "d.txt": "a\r\nb", "e.jsonl": '{"text": "x"}\r\n{"text": "y"}',
                                     "f.txt": "a\0b"}, "--end", "none")
    expect(problems, "ends", (ended.code, ended.err if ended.code else ""), (0, ""))
    expect(problems, "tokens", bytes(tokens("out.bin")), b"a\r\nbxya\0b")
    expect(problems, "documents", documents("out.bin"), [0, 4, 5, 6])
    for said in ("3 documents without text were left out", "lines of 2 files of text end in CR LF"):
        expect(problems, f"{said}: {ended.err}", said in ended.err, True)
    ended = tokenize(byte_folder(), {"a.txt": "a\n  \n\nb\n"}, "--lines", "--end", "none")
    expect(problems, "lines", (bytes(tokens("out.bin")), "1 document without text was left out" in ended.err), (b"ab", True))
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


def reads_gzip():
    """Several members are one text; a damaged or appended one is refused, and zeros that fill a block up are not."""
    problems, packed = [], gzip.compress(b"packed")
    for data, wanted in ((packed * 2, b"packedpacked"), (packed + bytes(600), b"packed"), (b"\x1f", b"\x1f")):
        ended = tokenize(byte_folder(), {"a.txt.gz": data})
        expect(problems, f"{data} ends", (ended.code, ended.err if ended.code else ""), (0, ""))
        expect(problems, f"{data}", bytes(tokens("out.bin")), wanted)
    for broken, word in ((packed[:-3], "unexpected end"), (packed + b"more", "is not gzip"), (packed + bytes(9) + b"x", "is not gzip"),
                         (packed[:-5] + b"x" + packed[-4:], "damaged"), (packed + b"\x1fmore", "damaged")):
        ended = tokenize(byte_folder(), {"a.txt.gz": broken})
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
    said = ("7 documents", "1 document was longer", f"{padding} tokens fill")
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
    expect(problems, "counts", "7 JSON documents were wrong" in ended.err, True)
    ended = tokenize(chat_folder(template="{{ messages }}"), data, "--skip-bad")
    expect(problems, "without a format", (ended.code, "--chat-format" in ended.err), (1, True))
    unknown = "{% for m in messages %}\n{{ m.content | wordwrap }}{% endfor %}"
    ended = tokenize(chat_folder(template=unknown), data)
    expect(problems, f"a template beyond the subset: {ended.err}",
           (ended.code, "line 2: the filter 'wordwrap'" in ended.err and "--special" in ended.err), (1, True))
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
        (byte_folder(), {"a.txt": "abc".encode("utf-16")}, (), ("a.", "utf-16", "--encoding")),
        (byte_folder(), {"a.txt.gz": cut}, (), ("a.txt.gz", "end of file")),
        (byte_folder(), {"a.csv": "abc"}, (), ("a.csv", "JSON lines")),
        (byte_folder(), {"a.txt": ""}, (), ("a.txt holds no text",)),
        (byte_folder(), {"a.txt": "", "b.jsonl": "\n\n"}, (), ("a.txt and the other files hold no text",)),
        (byte_folder(), {"a.json": '[{"text": "x"}'}, (), ("a.json:1", "cut off")),
        (byte_folder(), {"a.jsonl": '{"text": "x"}\n["x"]\n'}, (), ("a.jsonl:2", "is a list")),
        (chat_folder(), {"a.jsonl": lines(chat("q", "a"), {**chat("q", "a"), "tools": [{"type": "function"}]})}, (),
         ("a.jsonl:2", "has 'tools'")),
        (chat_folder(), {"a.jsonl": lines({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a",
                                                                                           "weight": 0.5}]})}, (),
         ("a.jsonl:1", "'weight' of 0.5")),
        (chat_folder(), {"a.jsonl": lines({"messages": [{"role": "user", "content": ["q"]}]})}, (), ("a.jsonl:1", "no text")),
        (chat_folder(), {"a.jsonl": lines(chat("q", "a")).encode("utf-16")}, (), ("a.", "utf-16", "--encoding")),
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
    """Where there is no room, one line says so, and nothing is left but what the same command goes on from."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        raise script_test.Skip("no mount namespaces")
    problems, folder = [], path("full")
    os.makedirs(folder)
    program.write(path("large.jsonl"), lines(*(chat("q" * 100, "a" * 100) for _ in range(8000))))
    model = chat_folder("full-model", **hf_folder.config(vocab_size=300, eos_token_id=END))
    mounted = 'mount -t tmpfs -o size=2m tmpfs "$0" && { "$@"; code=$?; find "$0" -type f; exit $code; }'
    for command in (("tokenize", "--model", model, "--data", path("large.jsonl"), "--out", os.path.join(folder, "o.bin")),
                    ("train", "--model", model, "--init", *program.SHAPE, "--data", path("large.jsonl"), "--run", path("full-run"))):
        ended = program.limits.run(["unshare", "--mount", "sh", "-c", mounted, folder, *program.command(*command)], check=False,
                               capture_output=True, env={**os.environ, "XDG_CACHE_HOME": folder})
        said = ended.stderr.decode()
        kept = "goes on from there" in said
        expect(problems, f"{command[0]}: {said}", (ended.returncode, "No space left" in said, len(said.splitlines())), (1, True, 1 + kept))
        expect(problems, f"left by {command[0]}", (ended.stdout != b"", kept and command[0] == "train"), (kept, False))
    return problems


def work_outlasts_a_full_disk():
    """With more room, the same command goes on where the disk was full, and writes the same bytes."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        raise script_test.Skip("no mount namespaces")
    problems, folder, data = [], path("fuller"), path("larger.jsonl")
    os.makedirs(folder)
    program.write(data, lines(*(chat("q" * 100, "a" * 100) for _ in range(40000))))
    shared = ("tokenize", "--model", chat_folder("full-model", **hf_folder.config(vocab_size=300, eos_token_id=END)),
              "--data", data, "--threads", 1, "--out")
    program.must(*shared, path("roomy.bin"))
    mounted = 'mount -t tmpfs -o size=16m tmpfs "$0" && { "$@"; mount -o remount,size=256m "$0"; "$@" && cat "$0/o.bin"; }'
    ended = program.limits.run(["unshare", "--mount", "sh", "-c", mounted, folder,
                                *program.command(*shared, os.path.join(folder, "o.bin"))], check=False, capture_output=True)
    said = ended.stderr.decode()
    expect(problems, said, (ended.returncode, "No space left" in said, "goes on from there" in said, "going on behind" in said),
           (0, True, True, True))
    expect(problems, "bytes", ended.stdout == written("roomy.bin")[""], True)
    return problems


def a_token_file_is_never_of_two_texts():
    """Killed before or between any two names, a call leaves the old files, the new ones, or no tokens."""
    if shutil.which("strace") is None:
        raise script_test.Skip("no strace")
    problems, model = [], chat_folder()
    old, new = program.write(path("old.jsonl"), lines(*(chat("q" * n, "a") for n in range(1, 40)))), path("new.jsonl")
    program.write(new, lines(*(chat("qq", "a" * n) for n in range(1, 60))))
    wanted = []
    for text in (old, new):
        program.must("tokenize", "--model", model, "--data", text, "--out", path("set.bin"))
        wanted.append(written("set.bin"))
        for name in wanted[-1]:
            os.unlink(path("set.bin" + name))
    for call in (REMOVES, RENAMES, f"{REMOVES},{RENAMES},fsync,fdatasync"):
        for number in range(1, 16):
            program.must("tokenize", "--model", model, "--data", old, "--out", path("set.bin"))
            killed = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e",
                      f"inject={call}:signal=SIGKILL:when={number}"]
            program.limits.run([*killed, *program.command("tokenize", "--model", model, "--data", new, "--out", path("set.bin"))],
                               check=False, capture_output=True)
            found = written("set.bin")
            whole = {name: content for name, content in found.items() if name in ("", ".doc", ".mask")}
            if "" in found and whole not in wanted:
                problems.append(f"killed at {call} number {number}: parts of two texts")
            ended = program.run("tokenize", "--model", model, "--data", new, "--out", path("set.bin"))
            if (ended.code, written("set.bin")) != (0, wanted[1]):
                problems.append(f"after a kill at {call} number {number}: {ended.err}")
    return problems


def a_failure_leaves_the_old_tokens():
    """Where a rename or a flush fails while old tokens are replaced, they are there as before, or, where none works any
    more, in files that a message names, and never beside documents or a mask of others."""
    if shutil.which("strace") is None:
        raise script_test.Skip("no strace")
    problems, model, failed = [], chat_folder(), 0
    texts = [program.write(path(f"{name}-fail.jsonl"), lines(*(chat("q", "a" * n) for n in range(1, most))))
             for name, most in (("old", 40), ("new", 60))]
    replaces = [("tokenize", "--model", model, "--data", text, "--out", path("fail.bin")) for text in texts]
    wanted = []
    for command in replaces:
        program.must(*command)
        wanted.append(written("fail.bin"))
    for call, error, most in ((RENAMES, "EIO", 7), (RENAMES, "ENOSPC", 4), ("fsync", "EIO", 4), (REMOVES, "EPERM", 1)):
        for number in [f"{first}{more}" for first in range(1, most + 1) for more in ("", "+")]:
            for name in written("fail.bin"):
                os.unlink(path("fail.bin" + name))
            program.must(*replaces[0])
            ended = program.limits.run(["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e",
                                        f"inject={call}:error={error}:when={number}", *program.command(*replaces[1])],
                                       check=False, capture_output=True)
            what, said, found = f"{call} {number} {error}", ended.stderr.decode(), written("fail.bin")
            whole = {name: content for name, content in found.items() if name in ("", ".doc", ".mask")}
            aside = {name.removesuffix(".old.partial"): content for name, content in found.items() if name.endswith(".old.partial")}
            failed += ended.returncode != 0
            if ended.returncode == 0:
                expect(problems, f"{what}: the new tokens", whole == wanted[1], True)
            elif number.endswith("+") and "could not be put back; they are in" in said:
                expect(problems, f"{what}: tokens aside", ("" in found, {**whole, **aside} == wanted[0]), (False, True))
            else:
                expect(problems, f"{what}: the old tokens: {sorted(found)} {said}", (whole == wanted[0], aside), (True, {}))
            ended = program.run(*replaces[1])
            expect(problems, f"{what}: again: {ended.err}", (ended.code, written("fail.bin") == wanted[1]), (0, True))
    expect(problems, f"{failed} calls that failed, more than 20", failed > 20, True)
    return problems


def devices_and_pipes():
    """A device is refused, and a FIFO that nobody writes to is waited for until the user asks to stop."""
    problems, model = [], byte_folder()
    for name in ("/dev/zero", "/dev/urandom"):
        ended = program.run("tokenize", "--model", model, "--data", name, "--out", path("device.bin"))
        expect(problems, f"{name}: {ended.err}", (ended.code, "not a regular file" in ended.err), (1, True))
    with open("/dev/zero", "rb") as zeros:
        ended = subprocess.run(program.command("tokenize", "--model", model, "--data", "-", "--out", path("device.bin")), stdin=zeros,
                               check=False, capture_output=True, timeout=60)
    expect(problems, f"zeros: {ended.stderr}", (ended.returncode, b"is a device" in ended.stderr), (1, True))
    for name in ("quiet.txt", "quiet.jsonl"):
        os.mkfifo(path(name))
        process = program.start("tokenize", "--model", model, "--data", path(name), "--out", path("device.bin"))
        time.sleep(0.5)
        process.terminate()
        process.communicate(timeout=10)
        expect(problems, f"{name} ends by SIGTERM", process.returncode in (0, None), False)
    for name in ("-", "/dev/stdin"):
        ended = program.run("tokenize", "--model", model, "--data", name, "--out", path("piped.bin"), stdin=b"piped text")
        expect(problems, f"{name}: {ended.err}", ended.code, 0)
    ended = subprocess.run(["bash", "-c", '"$@" --data <(sleep 0.3; printf "piped text")', "bash",
                            *program.command("tokenize", "--model", model, "--out", path("piped.bin"))], check=False, capture_output=True)
    expect(problems, f"a substituted process: {ended.stderr}", ended.returncode, 0)
    return problems


def stale_documents():
    problems = []
    program.write(path("out.bin.mask"), b"\1\1")
    ended = tokenize(byte_folder(), {"a.txt": "abc"}, left=(".mask",))
    expect(problems, "beside a mask of other tokens", (ended.code, "out.bin.mask" in ended.err), (1, True))
    model = chat_folder()
    plain = ("tokenize", "--model", model, "--data", program.write(path("even.jsonl"), lines({"text": "abcdefg"})), "--out", path("out.bin"))
    ended = program.run(*plain)
    expect(problems, f"a mask of other tokens beside those of JSON without one: {ended.err}", (ended.code, ".mask" in ended.err), (1, True))
    os.unlink(path("out.bin.mask"))
    return problems + ([] if program.run(*plain).code == 0 else ["the mask was removed, and the call fails"])


def long_chats(name, first=0, count=5000):
    """Chats in several files, also packed ones, by default so many that they take more than a second."""
    draw = random.Random(first)
    chats = "".join(hf_folder.chat("q" * draw.randrange(1, 200), "ab c" * draw.randrange(1, 100)) for _ in range(count))
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
        said = program.limits.communicate(process)[1]
        if "" not in written(out):
            break
        for suffix in written(out):
            os.unlink(path(out + suffix))
    return process.returncode, said


def long_documents_take_little_memory():
    """A long document is encoded in parts, with the tokens of the whole; one without a place to cut has a bound, and says so."""
    problems = []
    with open(GOLDEN, encoding="utf-8") as file:
        model = folder("gpt2", json.dumps(json.load(file)["tokenizer"]))
    words = "the end of the text is the text that ends, it's the end"
    for name, unit in (("lines", f"{words}\n" * 2000), ("one line", f" {words}" * 2000)):
        ended = tokenize(model, {"long.txt": unit}, "--end", "none")
        once = tokens("out.bin")
        ended = tokenize(model, {"long.txt": unit * 40}, "--end", "none")
        expect(problems, f"{name}: {ended.err}", (ended.code, documents("out.bin")), (0, [0]))
        expect(problems, f"{name}: tokens", tokens("out.bin") == once * 40, True)
    for name, content, words in (("spaces.txt.gz", b" " * (65 << 20), ("more than 64 MiB", "--separator")),
                                 ("letters.txt.gz", b"a" * (17 << 20), ("17825792 bytes without a break",))):
        ended = tokenize(model, {name: gzip.compress(content, 1)})
        expect(problems, f"{name}: {ended.err}", (ended.code, [word in ended.err for word in (name, *words)]), (1, [True] * (1 + len(words))))
    return problems


def the_message_of_a_long_document_leads_on():
    """Where a tokenizer's rules let no text be cut, train says by which command a long document becomes its lines' tokens."""
    problems = []
    split = {"type": "Split", "pattern": {"Regex": "[^ ]+| +"}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = hf_folder.byte_tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]})
    model = folder("uncut", tokenizer, **hf_folder.config(vocab_size=256, eos_token_id=0))
    data = program.write(path("uncut.txt.gz"), gzip.compress(b"ab cd ef\n" * 500 + (b" " * 65535 + b"\n") * 1040, 1))
    trains = ("train", "--model", model, "--init", *program.SHAPE, "--steps", 1, "--run")
    refused = program.run(*trains, path("uncut-run"), "--data", data)
    command = re.search("more than 64 MiB, .*`spillway (tokenize [^`]+)`.* give train or eval lines.bin", refused.err)
    if refused.code != 1 or command is None:
        return [f"status {refused.code}: {refused.err}"]
    ended = program.run(*(path(word) if word == "lines.bin" else word for word in shlex.split(command[1])))
    expect(problems, f"{command[1]}: {ended.err}", (ended.code, len(documents("lines.bin"))), (0, 500))
    ended = program.run(*trains, path("uncut-run"), "--data", path("lines.bin"))
    expect(problems, f"train: {ended.err}", ended.code, 0)
    ended = program.run("tokenize", "--model", model, "--lines", "--out", path("line.bin"), "--data",
                        program.write(path("line.txt.gz"), gzip.compress(b"ab " * (23 << 20), 1)))
    expect(problems, f"a line: {ended.err}", (ended.code, "has a line of more than 64 MiB" in ended.err), (1, True))
    return problems


def a_normalizer_takes_no_memory_without_bound():
    """A chain of Replace, each of which makes a text longer, is refused where it makes a text too long."""
    problems = []
    with open(GOLDEN, encoding="utf-8") as file:
        tokenizer = json.load(file)["tokenizer"]
    for content, steps, code in (("aa", 4, 0), ("aa", 8, 1), ("a" * 1000, 8, 1), ("a" * 100000, 2, 1)):
        steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": content}] * steps
        model = folder("grows", json.dumps({**tokenizer, "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": steps}}))
        ended = tokenize(model, {"grows.txt": "a " * 100000})
        expect(problems, f"{content[:9]}, {len(steps)} times: {ended.err}",
               (ended.code, "the normalizer of tokenizer.json makes more than" in ended.err), (code, code == 1))
    return problems


def goes_on():
    """A call that is killed or stopped goes on where it was, and writes the same bytes; a changed input begins anew."""
    problems, model, data = [], chat_folder(), long_chats("long")
    for flags, cuts in ((("--skip-bad",), (signal.SIGTERM, signal.SIGKILL)),
                        (("--skip-bad", "--pack", 512, "--separator", "***"), (signal.SIGKILL,))):
        shared = ("tokenize", "--model", model, "--data", *data, *flags, "--threads", 1, "--out")
        whole = program.run(*shared, path("whole.bin"))
        expect(problems, "whole ends", whole.code, 0)
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


def flip_first(name):
    with open(name, "r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))


def begins_anew():
    """The work of a call that was cut off is of no use for another input, or with other flags, and both are said."""
    problems, model, data = [], chat_folder(), long_chats("anew", count=3000)
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
        data = long_chats("anew", count=3000)
    for what, change in (("cut", lambda partial: os.truncate(partial, 5)), ("flipped", flip_first)):
        code, _ = cut_off(shared, "anew.bin", signal.SIGKILL)
        change(path("anew.bin.partial"))
        ended = program.run(*shared)
        expect(problems, f"a partial file that was {what}", (code, ended.code, "partial file changed" in ended.err), (-9, 0, True))
        for name in written("anew.bin"):
            os.unlink(path("anew.bin" + name))
    return problems


def one_writer_at_a_time():
    """A second call for the same file is refused, and takes nothing from the first; train waits for its tokens."""
    problems, data = [], long_chats("twice", count=500)
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
    said = [program.limits.communicate(process)[1].decode() for process in trains]
    expect(problems, f"both trains: {said}", [process.returncode for process in trains], [0, 0])
    expect(problems, f"tokens made: {said}", sum("chats are written" in text for text in said), 1)
    return problems


def long_documents_leave_no_memory_behind():
    """Long documents stand at another place of each batch, whose memory must not add up."""
    if program.limits.TIME_FACTOR > 1:
        return []  # A sanitizer keeps freed memory.
    data = program.write(path("places.jsonl"), "".join(
        '{"text": "a"}\n' * (40 * i + 1) + lines({"text": "ab " * (3 << 20)}) for i in range(5)))
    command = program.command("tokenize", "--model", byte_folder(), "--data", data, "--out", path("places.bin"), "--threads", 1)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    os.unlink(path("places.jsonl"))
    if child.returncode != 0 or usage.ru_maxrss >= 160 << 10:
        return [f"status {child.returncode}, {usage.ru_maxrss} KiB of memory: {said[-300:]}"]
    return []


script_test.run(golden_ids, rules, other_encodings, long_documents_leave_no_memory_behind, wide_and_joined, special_tokens, chats, folders_and_patterns,
                folders_leave_out_what_is_no_data, files_of_other_kinds, files_without_text, reads_gzip, reads_zstd,
                packs_whole_documents, skips_bad_lines, bad_input, full_disk, work_outlasts_a_full_disk,
                a_token_file_is_never_of_two_texts, a_failure_leaves_the_old_tokens, devices_and_pipes, stale_documents, long_documents_take_little_memory,
                the_message_of_a_long_document_leads_on, a_normalizer_takes_no_memory_without_bound, goes_on, begins_anew,
                one_writer_at_a_time)
