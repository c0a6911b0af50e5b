"""Schemas of lines of JSON for tokenize, train, eval and inspect: chats and texts, losses that are switched off,
and what is refused by name."""

import json
import os

import hf_folder
import program
from program import script_test
from token_files import chat_folder, expect, folder, tokenize, tokens


def numbers_of_transformers():
    """The files of a model may have numbers that no machine has, and U+0000."""
    problems, model = [], chat_folder("large")
    with open(os.path.join(model, "tokenizer_config.json"), encoding="utf-8") as file:
        text = file.read().rstrip().removesuffix("}")
    program.write(os.path.join(model, "tokenizer_config.json"),
                  text + ', "model_max_length": 1000000000000000019884624838656, "a": 1e999, "b": "\\u0000"}')
    ended = tokenize(model, {"a.jsonl": hf_folder.chat("q", "a")})
    expect(problems, "large numbers", (ended.code, ended.err if ended.code else ""), (0, ""))
    zero = json.loads(hf_folder.byte_tokenizer())
    zero["model"]["vocab"]["\0"] = 256
    added = hf_folder.byte_tokenizer(added_tokens=[{"id": 256, "content": "\0", "special": True, "normalized": False}])
    for name, tokenizer in (("vocabulary", json.dumps(zero)), ("added", added)):
        ended = tokenize(folder("zero", tokenizer, vocab_size=257), {"a.txt": "a\0b"}, "--special")
        expect(problems, f"U+0000 {name}", (ended.code, ended.err if ended.code else ""), (0, ""))
        expect(problems, f"tokens {name}", tokens("out.bin"), [97, 256 if name == "added" else 0, 98])
    return problems


script_test.run(numbers_of_transformers)
