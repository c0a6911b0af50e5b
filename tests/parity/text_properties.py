#!/usr/bin/env python3
"""Compares `spillway tokenize` with the package `tokenizers` on random texts from all planes of Unicode: expressions,
normal forms, digits and added tokens. Tokens are bytes, and a space before each piece shows where the text was cut.

usage: text_properties.py SPILLWAY [SEED]

Needs the Python packages `tokenizers` and `unicodedataplus`.
"""

import array
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

import tokenizers
import unicodedataplus

EXPRESSIONS = [*(rf"\p{{{name}}}+" for name in "L M N P S Z C Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Cf Cn Han Greek".split()),
               r"\P{L}+", r"[\P{L}x]+", r"[^\s\p{L}\p{N}]+", r"\w+", r"\W+", r"\d+", r"\D+", r"\w\b.", r"\B.", r"\h+", r"\H+",
               r"\R", r"\v", r"[\v\f]", r".+", r"(?m:.+)", r"^.", r".$", r"a\Z", r"\Aa", r"[^a-z&&[^c]]", r"[a-c[x-z]]",
               r"[[:space:]]+", r"\x{31350}|\u00e9", r"(?i:[a-z]k)+", r"a(?i)b|c", r"(x|(?i)a|b)z", r"(?<=a)b|(?<!a)c", r"a++b",
               r"(?<x>a|ab){,2}c", r"(?>a|ab)c"]
SPECIAL = "sſSkKßﬁ'’\n\r\t  \u2028\x85\u180e\x0b\x0c½²ªéÉaZ09_-]^[\\&|.⅐ⓐ🄰\u0301\u0323\u200d漢かカ한ΩЯ\x1c\u1100\u1161\u11a8가"
LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}


def byte_characters():
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {chr(256 + i): byte for i, byte in enumerate(others)}


def tokenizer(stages=(), normalizer=None, added=()):
    rules = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"version": "1.0", "normalizer": normalizer, "post_processor": None, "decoder": LEVEL,
            "added_tokens": [{"id": 256 + i, **rules, **token} for i, token in enumerate(added)],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*stages, LEVEL]},
            "model": {"type": "BPE", "vocab": byte_characters(), "merges": []}}


def cases():
    for expression in EXPRESSIONS:
        yield expression, tokenizer([{"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}])
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield form, tokenizer(normalizer={"type": form})
    yield "digits", tokenizer([{"type": "Digits", "individual_digits": True}])
    yield "replace", tokenizer(normalizer={"type": "Replace", "pattern": {"Regex": r"\p{M}+|\s"}, "content": "\u2581"})
    yield "added", tokenizer(added=[{"content": "ab", "single_word": True}, {"content": "--", "lstrip": True, "rstrip": True},
                                    {"content": "\u03b1!", "normalized": True}], normalizer={"type": "NFC"})


def random_texts(draw):
    codes = [code for code in range(0x110000) if unicodedataplus.category(chr(code)) not in ("Cn", "Co", "Cs")]
    codes += [draw.randrange(0xE000, 0x110000) for _ in range(500)]
    new = [code for code in codes if unicodedataplus.category(chr(code)) not in ("Cn", "Co") and float(unicodedataplus.age(chr(code))) > 10]
    marks = [code for code in codes if unicodedataplus.combining(chr(code)) > 0]
    kinds = (lambda: chr(draw.choice(codes)), lambda: chr(draw.choice(new)), lambda: chr(draw.choice(marks)),
             lambda: draw.choice(SPECIAL), lambda: draw.choice("abc xyz 123 \n-"))
    for _ in range(400):
        yield "x" + "".join(draw.choice(kinds)() for _ in range(draw.randrange(1, 80)))


def main():
    program, draw = os.path.abspath(sys.argv[1]), random.Random(sys.argv[2] if len(sys.argv) > 2 else "1")
    texts, differ = list(random_texts(draw)), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("t.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        for name, described in cases():
            with open("tokenizer.json", "w", encoding="utf-8") as file:
                json.dump(described, file)
            ended = subprocess.run([program, "tokenize", "--quiet", "--model", "tokenizer.json", "--data", "t.jsonl", "--out", "o.bin"],
                                   check=False, capture_output=True, text=True)
            if ended.returncode != 0:
                print(f"{name}: {ended.stderr.strip()}")
                differ += 1
                continue
            with open("o.bin", "rb") as tokens, open("o.bin.doc", "rb") as starts:
                ids, begins = array.array("H", tokens.read()), array.array("Q", starts.read()).tolist()
            found = [ids[first:last].tolist() for first, last in itertools.pairwise([*begins, len(ids)])]
            wanted = [encoding.ids for encoding in
                      tokenizers.Tokenizer.from_str(json.dumps(described)).encode_batch(texts, add_special_tokens=False)]
            wrong = [texts[i] for i, (a, b) in enumerate(itertools.zip_longest(found, wanted)) if a != b]
            differ += len(wrong)
            if wrong:
                print(f"{name}: {len(wrong)} of {len(texts)} texts differ, such as {min(wrong, key=len)!a}")
            for end in ("", ".doc"):
                os.unlink("o.bin" + end)
    print(f"{differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
