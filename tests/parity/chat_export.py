#!/usr/bin/env python3
"""Trains small chat models on conversations, exports them, and loads the exports in transformers with their own
tokenizers and chat templates. Then, for each conversation, both programs must have the same loss and the same greedy
reply. Prints a line a model; exits 1 where one differs.

  chat_export.py [--spillway build/spillway] [--conversations N]
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import torch
import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import hf_folder  # noqa: E402

VOCABULARY, POSITIONS, START, END = 258, 128, 256, 257
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "hidden_size": 64, "intermediate_size": 160,
         "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": START,
         "eos_token_id": END}
MODELS = {
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "gpt2": transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=64, n_layer=3, n_head=4,
                                    bos_token_id=START, eos_token_id=END),
}
ITEMS = {"milk": "cold", "soup": "hot", "snow": "white", "coal": "black", "sugar": "sweet", "lemon": "sour"}
LOSS = 1e-5  # relative; both compute in fp32


def spillway(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"chat_export.py: spillway {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def conversations(seed, count):
    draw, made = random.Random(seed), []
    for _ in range(count):
        turns = [(f"How is {name}?", f"{ITEMS[name]}, as {name} is.") for name in draw.sample(sorted(ITEMS), 2)]
        made.append(json.loads(hf_folder.chat(*(text for turn in turns for text in turn)))["messages"])
    return made


def write(path, chats):
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), encoding="utf-8")
    return path


def train(program, name, work):
    """Makes a random model with a chat tokenizer, trains it and exports it. Returns the run and the export."""
    torch.manual_seed(1)
    source, run, export = work / "model", work / "run", work / "out"
    transformers.AutoModelForCausalLM.from_config(MODELS[name], dtype=torch.float32).save_pretrained(source)
    hf_folder.write_chat_tokenizer(source, first=START)
    described = json.loads((source / "tokenizer_config.json").read_text())
    described |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (source / "tokenizer_config.json").write_text(json.dumps(described))
    spillway(program, "train", "--model", source, "--data", write(work / "chat.jsonl", conversations(2, 500)), "--run", run,
             "--steps", 60, "--lr", 3e-3, "--seq", POSITIONS, "--batch-tokens", 1024, "--precision", "fp32",
             "--place", "optimizer=nvme")
    spillway(program, "export", run, export)
    return run, export


def their_loss(model, tokenizer, chat):
    """The mean loss over what the assistant says and the token that ends each of its turns."""
    ids, wanted = [], []
    for at, message in enumerate(chat):
        until = tokenizer.apply_chat_template(chat[:at + 1], return_dict=False)
        turn = until[len(ids):]
        before = len(tokenizer.encode("<|im_start|>assistant\n"))
        said = message["role"] == "assistant"
        wanted += [said and before <= i < len(turn) - 1 for i in range(len(turn))]  # a newline follows the end
        ids = until
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    losses = [-scores[i - 1, ids[i]].item() for i in range(1, len(ids)) if wanted[i]]
    return sum(losses) / len(losses)


def their_reply(model, tokenizer, question):
    ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=False)
    made = model.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=END)
    return tokenizer.decode(made[0, ids.shape[1]:], skip_special_tokens=True).strip()


def compare(program, name, count):
    with tempfile.TemporaryDirectory(prefix="spillway-chat-export-", dir=os.environ.get("TMPDIR", ".")) as folder:
        work = pathlib.Path(folder)
        run, export = train(program, name, work)
        tokenizer = transformers.AutoTokenizer.from_pretrained(export)
        model = transformers.AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
        worst = other = 0
        for chat in conversations(9, count):
            printed = spillway(program, "eval", run, "--data", write(work / "one.jsonl", [chat]), "--precision", "fp32")
            found, wanted = float(re.search(r"loss (\S+)", printed)[1]), their_loss(model, tokenizer, chat)
            worst = max(worst, abs(found - wanted) / wanted) if math.isfinite(found) else math.inf
            question = chat[0]["content"]
            reply = spillway(program, "generate", run, "--chat", "--temperature", 0, "--max-tokens", 40, "--precision", "fp32",
                             "--prompt", question).strip()
            other += reply != their_reply(model, tokenizer, question)
    good = worst <= LOSS and other == 0
    print(f"{name}: {count} conversations: loss differs by {worst:.1e} at most (allowed {LOSS:.0e}), {other} other replies, "
          f"such as {reply!r}{'' if good else '  FAILED'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spillway", default="build/spillway")
    parser.add_argument("--conversations", type=int, default=20)
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    sys.exit(0 if all([compare(arguments.spillway, name, arguments.conversations) for name in MODELS]) else 1)


main()
