#!/usr/bin/env python3
"""Compares chats that `spillway tokenize` writes with transformers' `apply_chat_template`, token by token, on random
conversations for each chat format, and which tokens have a loss with what the assistant says.

usage: chat_templates.py SPILLWAY [FORMAT...] [--work DIR] [--count N] [--golden FILE]

The tokenizers are those of tokenizer_ids.py, which are downloaded into DIR. The templates are the published ones of the
families. --golden writes templates and rendered conversations for the tests in C. Needs `transformers` and `jinja2`.
"""

import argparse
import array
import copy
import itertools
import json
import os
import random
import subprocess
import sys
import unicodedata

import tokenizer_ids
from chat_template_texts import DATES, ENDS, TEMPLATES, is_v3


def content(rng):
    words = ("Hello", "what is 17*3?", "don't", "na\u00efve", "\u4f60\u597d", "\U0001f469\u200d\U0001f467", "def f(x):\n    return x", "12345",
             "[INST]", "<|user|>", "<<SYS>>", "{{ bos_token }}", "<br>", "assistant", "\u2581", "e\u0301")
    spaces = (" ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\x1c", "\x85", " \n ")
    if rng.random() < 0.08:
        return rng.choice(("", " ", "\n", " \n\n ", "\t"))
    text = "".join(rng.choice(words) + rng.choice(spaces) for _ in range(rng.randrange(1, 12)))
    if rng.random() < 0.7:
        text = text.strip()
    if rng.random() < 0.2:
        text = rng.choice(spaces) * rng.randrange(1, 4) + text
    return text


def conversation(rng, name):
    messages = []
    # Where only a last question has the system turn, a chat that ends in a reply would lose it.
    if name != "mistral" and (not is_v3(name) or "/system" in name) and rng.random() < 0.5:
        messages.append({"role": "system", "content": content(rng)})
    for _ in range(rng.randrange(1, 5)):
        messages += [{"role": "user", "content": content(rng)}, {"role": "assistant", "content": content(rng)}]
    if name == "qwen3":
        for message in messages:
            if message["role"] == "assistant" and rng.random() < 0.4:
                thoughts = rng.choice(("<think>\n", "<think>", "")) + content(rng) + rng.choice(("\n</think>\n\n", "</think>"))
                message["content"] = thoughts + message["content"]
    if "mistral" not in name and name != "llama2" and rng.random() < 0.2:
        messages.append({"role": "user", "content": content(rng)})
    if is_v3(name):
        # There, [INST] is a special token, which transformers sees in what users say too. Questions that are equal count
        # as the last one, all of them.
        for number, message in enumerate(messages):
            message["content"] = message["content"].replace("[INST]", "INST") + (f" {number}" if message["role"] == "user" else "")
    return messages




def tokenizers_of(work):
    made = tokenizer_ids.tokenizers_of(work)
    thinking = tokenizer_ids.added(151646, "<think>", "</think>", special=False)
    made["qwen"]["added_tokens"] += thinking
    first = 128000
    special = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    made["mistral-v3"], made["tekken"] = copy.deepcopy(made["mistral"]), copy.deepcopy(made["qwen"])
    made["mistral-v3"]["added_tokens"] += tokenizer_ids.added(32000, "[INST]", "[/INST]")
    known = made["tekken"]["model"]["vocab"]
    fresh = itertools.count(151648)
    for token in ("<s>", "</s>", "[INST]", "[/INST]"):
        made["tekken"]["added_tokens"] += tokenizer_ids.added(known[token] if token in known else next(fresh), token)
    made["llama3"]["added_tokens"] = tokenizer_ids.added(first, *special)
    return made


def begin_of(kind):
    return "<|begin_of_text|>" if kind == "llama3" else "<s>" if kind in ("mistral", "mistral-v3", "tekken") else None


def theirs_of(folder, template, kind):
    import transformers
    return transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), chat_template=template,
                                                bos_token=begin_of(kind), eos_token=ENDS[kind],
                                                clean_up_tokenization_spaces=False)


def ours(arguments, folder, chats):
    data, out = os.path.join(folder, "chats.jsonl"), os.path.join(folder, "chats.bin")
    with open(data, "w", encoding="utf-8") as file:
        for messages in chats:
            file.write(json.dumps({"messages": messages}) + "\n")
    subprocess.run([arguments.spillway, "tokenize", "--quiet", "--model", folder, "--data", data, "--out", out], check=True)
    with open(out, "rb") as tokens, open(out + ".doc", "rb") as starts, open(out + ".mask", "rb") as mask:
        begins = array.array("Q", starts.read()).tolist()
        ids = array.array("I" if arguments.wide else "H", tokens.read())
        losses = mask.read()
    borders = itertools.pairwise([*begins, len(ids)])
    return [(ids[first:last].tolist(), losses[first:last]) for first, last in borders]


def plain(text):
    """A text without what tokenizers change: its composition, spaces and the character that stands for spaces."""
    return "".join(unicodedata.normalize("NFC", text).replace("\u2581", "").split())


def said(name, messages):
    """Returns the assistant's texts; for Qwen 3, without thoughts."""
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    return plain("".join(reply.split("</think>")[-1] if name == "qwen3" else reply for reply in replies))


def check_loss(name, theirs, messages, ids, losses):
    end = theirs.convert_tokens_to_ids(ENDS[TEMPLATES[name][1]])
    learnt = [token for token, loss in zip(ids, losses) if loss]
    count = sum(message["role"] == "assistant" for message in messages)
    text = plain(theirs.decode([token for token in learnt if token != end], skip_special_tokens=False))
    if name == "qwen3":
        return learnt.count(end) == count and text.endswith(said(name, messages[-1:]))
    if name == "mistral":  # a reply follows the bracket without a space, and both may be in one token
        text, messages = text.replace("]", ""), [{**m, "content": m["content"].replace("]", "")} for m in messages]
    return learnt.count(end) == count and text == said(name, messages)


def compare(name, made, arguments):
    template, kind = TEMPLATES[name]
    folder = os.path.join(arguments.work, "chats", name.replace("/", "-"))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(made[kind], file, ensure_ascii=False)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"chat_template": template, "bos_token": begin_of(kind), "eos_token": ENDS[kind]}, file)
    theirs = theirs_of(folder, template, kind)
    arguments.wide = len(theirs) > 1 << 16
    rng = random.Random(11)
    chats = [conversation(rng, name) for _ in range(arguments.count)]
    found = ours(arguments, folder, chats)
    differ = wrong = tokens = 0
    for messages, (ids, losses) in itertools.zip_longest(chats, found, fillvalue=([], b"")):
        wanted = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **DATES.get(name, {}))
        tokens += len(wanted)
        if ids != wanted:
            if differ == 0:
                print(f"{messages!r}\n  theirs {theirs.decode(wanted)!r}\n  ours   {theirs.decode(ids)!r}")
            differ += 1
        elif not check_loss(name, theirs, messages, ids, losses):
            if wrong == 0:
                print(f"{messages!r}\n  learnt {theirs.decode([t for t, loss in zip(ids, losses) if loss])!r}")
            wrong += 1
    print(f"{name}: {differ} of {len(chats)} chats ({tokens} tokens) differ, {wrong} have another loss", flush=True)
    return differ + wrong


def write_golden(path):
    """Rendered conversations, without tokens."""
    import transformers.utils.chat_template_utils as utils
    rng, formats = random.Random(3), []
    for name, (template, kind) in TEMPLATES.items():
        begin, end = begin_of(kind) or "<s>", ENDS[kind]
        cases = []
        for _ in range(6):
            messages = conversation(rng, name)
            text, = utils.render_jinja_template([messages], chat_template=template, bos_token=begin, eos_token=end,
                                                **DATES.get(name, {}))[0]
            cases.append({"messages": messages, "text": text})
        formats.append({"name": name.partition("/")[0], "template": template, "begin": begin, "end": end, "cases": cases})
    with open(path, "w", encoding="ascii") as file:
        json.dump(formats, file, indent=0)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spillway", nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--work", default="build/tokenizers")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--golden")
    arguments = parser.parse_args()
    if arguments.golden:
        write_golden(arguments.golden)
        return 0
    tokenizer_ids.download(arguments.work)
    made = tokenizers_of(arguments.work)
    differ = sum(compare(name, made, arguments) for name in arguments.names or TEMPLATES)
    print(f"{differ} chats differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
