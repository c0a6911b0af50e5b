"""Makes the initial weights, as a Hugging Face folder, and the tokens from which all contenders of a pair start."""

import array
import os
import random
import shutil
import subprocess

VOCABULARY = {"gpt2-tiny": 256, "gpt2-124m": 50257, "qwen2.5-0.5b": 151936}
FOLLOWERS = 4  # tokens that may follow a token
USED = 2048  # different tokens at most


def ran(command):
    ended = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {ended.stderr.strip()[-400:]}")


def token_type(model):
    """The type that `spillway train --tokens auto` reads for the model's vocabulary."""
    return "H" if VOCABULARY[model] <= 65536 else "I"


def chain(count, vocabulary, seed):
    """Tokens that a model can learn: each is followed by one of a few."""
    draw = random.Random(seed)
    used = min(USED, vocabulary)
    follow = [[draw.randrange(used) for _ in range(FOLLOWERS)] for _ in range(used)]
    tokens = [draw.randrange(used)]
    while len(tokens) < count:
        tokens.append(draw.choice(follow[tokens[-1]]))
    return tokens


def write_tokens(path, model, count, text=None, seed=1):
    """Writes the tokens of one step and the target behind the last. A step of that many tokens sees all of them, in
    whatever order a program takes its sequences. With `text` the bytes of that file are the tokens."""
    if text is None:
        tokens = chain(count + 1, VOCABULARY[model], seed)
    else:
        with open(text, "rb") as file:
            tokens = list(file.read(count + 1))
        if len(tokens) <= count:
            raise RuntimeError(f"{text} has {len(tokens)} bytes, and a step takes {count + 1}: give a longer file to --data")
    with open(path, "wb") as file:
        array.array(token_type(model), tokens).tofile(file)
    return path


def write_weights(program, model, folder, tokens):
    """Writes the initial weights in fp32: those of a step with a learning rate of 0, which changes none. They are kept for
    the pairs that follow."""
    out = os.path.join(folder, f"{model}-weights")
    if os.path.isdir(out):
        return out
    run = os.path.join(folder, f"{model}-init")
    shutil.rmtree(run, ignore_errors=True)
    ran((program, "train", "--model", model, "--init", "--data", tokens, "--run", run, "--steps", 1, "--batch-tokens", 32,
         "--seq", 32, "--micro-batch", 1, "--lr", 0, "--warmup", 0, "--schedule", "constant", "--durability", "none", "--quiet"))
    ran((program, "export", run, out + ".new", "--quiet"))
    shutil.rmtree(run)
    os.rename(out + ".new", out)
    return out
