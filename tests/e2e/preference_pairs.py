"""A small model and pairs of replies, on which spillway and trl train alike by direct preference optimization."""

import json
import os
import random

import hf_folder

VOCABULARY, START, END = 258, 256, 257
SEQ, PAIRS, STEPS, BETA, LR, BETAS, EPS = 40, 8, 20, 0.3, 2e-3, (0.9, 0.95), 1e-8
# trl counts whatever follows a reply in the chat; here that is only the end of the turn, as in spillway.
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'}}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def plain():
    """Objects of three strings. Some replies are longer than a sequence and lose their ends."""
    draw = random.Random(5)
    made = []
    for i in range(PAIRS):
        first, second = draw.randrange(10), draw.randrange(10)
        made.append({"prompt": f"{first}+{second}=", "chosen": f"{first + second}, as it is" + " indeed" * (i % 3),
                     "rejected": f"{first + second + 1}" + "!" * draw.randrange(1, 9) + " so there, and more" * (i % 4)})
    return made


def message(role, content):
    return {"role": role, "content": content}


def chats():
    """The same as lists of messages."""
    return [{"prompt": [message("user", pair["prompt"])], "chosen": [message("assistant", pair["chosen"][:9])],
             "rejected": [message("assistant", pair["rejected"][:7])]} for pair in plain()]


def shared(pairs):
    """Chats whose prompt is what both replies follow."""
    return [{"chosen": pair["prompt"] + pair["chosen"], "rejected": pair["prompt"] + pair["rejected"]} for pair in pairs]


def write(path, pairs):
    with open(path, "w", encoding="utf-8") as file:
        for pair in pairs:
            file.write(json.dumps(pair) + "\n")
    return path


def model(folder):
    described = hf_folder.config(vocab_size=VOCABULARY, bos_token_id=START, eos_token_id=END, resid_pdrop=0.0,
                                 embd_pdrop=0.0, attn_pdrop=0.0)
    hf_folder.make(folder, described, hf_folder.safetensors(hf_folder.tensors(7, VOCABULARY)))
    hf_folder.write_chat_tokenizer(folder, TEMPLATE, START)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|im_end|>",
                   "pad_token": "<|im_start|>", "model_max_length": 64}, file)
    return folder


def flags(data, run, micro_batch=2 * PAIRS, steps=STEPS):
    """Every step has all pairs, so their order does not matter."""
    return ["train", "--dpo", "--dpo-beta", BETA, "--data", data, "--run", run, "--steps", steps, "--seq", SEQ,
            "--micro-batch", micro_batch, "--batch-tokens", 2 * PAIRS * SEQ, "--precision", "fp32", "--lr", LR, "--warmup",
            0, "--schedule", "constant", "--weight-decay", 0, "--clip", 0, "--beta1", BETAS[0], "--beta2", BETAS[1],
            "--eps", EPS]
