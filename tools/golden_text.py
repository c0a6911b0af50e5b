#!/usr/bin/env python3
"""Makes the golden files under tests/data/tokenizers: small tokenizers and the ids that the package `tokenizers` gives
awkward texts, for the tests in C to reproduce.

Each file is {"tokenizer": what a tokenizer.json holds, "cases": [{"text", "bytes", "ids", "decoded"}...]}: `bytes` in
hexadecimal where the text is not UTF-8; `special` where special tokens in the text are taken for these; `whole` where
the template is put around it. The tokenizers are trained on the text of the LICENSE.
"""

import copy
import json
import pathlib
import random

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
SCRIPTS = "naïve café Žluťoučký Ελληνικά русский язык עברית العربية हिन्दी ภาษาไทย 日本語 中文 한국어 "


def split(pattern, marked=False):
    """Where `marked` is set, a space before each piece shows in the ids where the text was cut."""
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=marked, use_regex=False),
    ])


def byte_level(text, size, pre, normalizer=None, special=("<|end|>", "<|turn|>"), ignore_merges=False):
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def metaspace(text, size, legacy):
    """Llama 2's pipeline: spaces become U+2581, characters that no token has become the tokens of their bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=80,
                                  special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)])
    tokenizer.train_from_iterator([text], trainer)
    json_text = json.loads(tokenizer.to_str())
    json_text["added_tokens"] = json_text["added_tokens"][:3]
    if legacy:
        json_text["pre_tokenizer"] = None
        json_text["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    else:
        json_text["pre_tokenizer"]["split"] = False
    json_text["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(json_text))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


# Letters, digits, marks, punctuation and symbols of Unicode 15 and 16, a code point of 17, and one that 16 moved.
NEW = ("\u1c89\u1c8a \ua7cb\ua7dc \U00031350\U000323af \U00010d40\U00010d49 \u0897a\u0897 \u0cf3 \u1b4e\u1b7f \U0001fae9 "
       "\u2427 \U00016100\U0001611e \U0001ccf0\U0001ccf9 \U00011de0 \U0001171e \U0002ebf0x \U0001d2c0 \U00010ec2.")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Constructs that Oniguruma has in another form than PCRE2, one after the other.
SYNTAX = (r"\h{2,}|\b\w{,2}\d(?!\W)|^#.|;$|(?m:q.)|[a-f[x-z]&&[^b]]+(?<n>!)|\R|[[:space:]]{2}|\x{e9}|\u00df|[\v\f]|a++b|\P{Cn}\Z"
          r"|(?i:k)|(?<=~)\D")


def awkward_texts(special):
    rng = random.Random(5)
    texts = ["", " ", "  ", "Hello, world!", "  two  spaces ", "it's IT'S it\u017f 'Re \u2019s", "1234567 3.14 \u00bd \u2167",
             "line\n\nline\r\n\ttab  \n ", SCRIPTS, "e\u0301 \u00e9 \ufb01 \u212b \u1100\u1161\u11a8 \uac01 \u32ff \U0001fbf7",
             "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u270a\U0001f3ff", "a\x00b\x07\x1f\x7f", "\u180e\u2003x\u3000\u2028",
             "\u2581\u2581 \u2581a", "word" * 40, "ab" * 100, " " * 90 + "x", f"a {special} b{special}{special} c",
             "wordy Wordy xword word-word word", "trim \n me", "the end of the text is the text"]
    texts += [NEW, NEW[::-1], "x" + NEW.replace(" ", ""), "#a ab1 12 face #b\n#c;\nq\nx!cz!  \r\n\u00e9\u00df\x0b aab K\u212a ~~x"]
    spaces = [" ", "\n", "\t", "\u00a0", "\u2003", "\r\n"]
    for _ in range(12):
        texts.append("".join(rng.choice(spaces) * rng.randrange(1, 4) if rng.random() < 0.4 else
                             "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xA0, 0x530), rng.randrange(
                                 0x4E00, 0x4E40), rng.randrange(0x1F600, 0x1F640)))) for _ in range(rng.randrange(1, 9)))
                             for _ in range(rng.randrange(2, 12))))
    broken = [b"\xff", b"a\xc3", b"\xe2\x82 x", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf\xf4\x90\x80\x80", b"ok \x80\x81 ok"]
    broken += [bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40))) for _ in range(6)]
    return texts, broken


def write(name, tokenizer, special):
    cases = []
    texts, broken = awkward_texts(special)
    inputs = [{"text": text} for text in texts] + [{"bytes": data.hex()} for data in broken]
    inputs += [{"text": text, "special": True} for text in texts if special in text]
    inputs += [{"text": text, "whole": True} for text in texts[:4]]
    for case in inputs:
        text = case["text"] if "text" in case else bytes.fromhex(case["bytes"]).decode("utf-8", "replace")
        tokenizer.encode_special_tokens = not case.get("special", False)
        case["ids"] = tokenizer.encode(text, add_special_tokens=case.get("whole", False)).ids
        case["decoded"] = tokenizer.decode(case["ids"], skip_special_tokens=False)
        cases.append(case)
    made = json.loads(tokenizer.to_str())
    path = ROOT / "tests" / "data" / "tokenizers" / f"{name}.json"
    path.write_text(json.dumps({"tokenizer": made, "cases": cases}, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path.relative_to(ROOT)}: {tokenizer.get_vocab_size()} tokens, {len(cases)} cases, {path.stat().st_size} bytes")


def with_added(tokenizer):
    """Tokens of every kind that added_tokens has."""
    tokenizer.add_tokens([tokenizers.AddedToken("word", single_word=True, normalized=False),
                          tokenizers.AddedToken("trim", lstrip=True, rstrip=True, normalized=True),
                          tokenizers.AddedToken("\u00e9!", normalized=True)])
    return tokenizer


def main():
    text = (ROOT / "LICENSE").read_text() + 20 * SCRIPTS
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    write("gpt2", byte_level(text, 400, gpt2), "<|end|>")
    write("gpt2-prefix", byte_level(text, 300, pre_tokenizers.ByteLevel(add_prefix_space=True)), "<|end|>")
    write("llama3", byte_level(text, 400, split(LLAMA3), ignore_merges=True), "<|turn|>")
    write("qwen", with_added(byte_level(text, 400, split(QWEN), normalizers.NFC())), "<|turn|>")
    write("nfkc", byte_level(text, 400, gpt2, normalizers.NFKC()), "<|end|>")
    write("llama3-marked", byte_level(text, 300, split(LLAMA3, marked=True)), "<|end|>")
    write("gpt4o", byte_level(text, 300, split(GPT4O, marked=True)), "<|end|>")
    write("kimi", byte_level(text, 300, split(KIMI, marked=True)), "<|end|>")
    write("syntax", byte_level(text, 300, split(SYNTAX, marked=True)), "<|end|>")
    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), copy.deepcopy(gpt2)])
    write("smollm", byte_level(text, 400, smollm), "<|end|>")
    write("llama2", metaspace(text, 500, legacy=True), "</s>")
    write("mistral", metaspace(text, 500, legacy=False), "</s>")


if __name__ == "__main__":
    main()
