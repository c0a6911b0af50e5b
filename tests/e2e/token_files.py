"""Files of tokens as tests make and read them: tokenizers of bytes, texts and chats, and what tokenize writes."""

import array
import json
import os
import random

import hf_folder
import program

SCRATCH = program.scratch_folder()
TEXT = "".join(random.Random(4).choices(("the ", "model ", "naïve ", "\n", "12 ", "🙂", "  "), k=4000))
START, END = 256, 257


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


def cached(environment):
    """Names of the token files in a cache."""
    folder = os.path.join(environment["XDG_CACHE_HOME"], "spillway")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in names if name.startswith("tokens-") and name.endswith(".bin"))


def cache_of_its_own(name):
    os.makedirs(path(name), exist_ok=True)
    return {**os.environ, "XDG_CACHE_HOME": path(name)}
