"""The tokens around a text: the token that begins it, the one that ends it, and the one that ends a turn in exports."""

import array
import json
import os
import shutil

import hf_folder
import program
from program import script_test
from token_files import END, START, byte_folder, cache_of_its_own, chat_folder, expect, folder, lines, chat, mask, path, tokenize, tokens

BOS, EOS = 256, 257


def template(*parts):
    """The post-processor that puts special tokens around a text, $A."""
    pieces = [{"Sequence": {"id": "A", "type_id": 0}} if part == "$A" else {"SpecialToken": {"id": part, "type_id": 0}}
              for part in parts]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces,
            "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}
                               for name, number in (("<s>", BOS), ("</s>", EOS))}}


def bos_folder(name="begins", parts=("<s>", "$A"), files=None, **config):
    added = [{"id": number, "content": content, "special": True, "normalized": False}
             for content, number in (("<s>", BOS), ("</s>", EOS))]
    more = {"post_processor": template(*parts)} if parts else {}
    model = folder(name, hf_folder.byte_tokenizer(added_tokens=added, **more), **hf_folder.config(vocab_size=300, **config))
    for file in ("tokenizer_config.json", "generation_config.json", "special_tokens_map.json"):
        if files and file in files:
            program.write(path(name, file), json.dumps(files[file]))
        elif os.path.exists(path(name, file)):
            os.unlink(path(name, file))
    return model


def ends_by_the_folder():
    """config.json's eos_token_id, else the tokenizer's eos_token, else generation_config's; without any it is said."""
    problems = []
    spelled, entry = {"eos_token": "</s>"}, {"eos_token": {"content": "</s>", "special": True}}
    cases = (
        ({"eos_token_id": 7}, {"tokenizer_config.json": spelled}, [7], None),
        ({"eos_token_id": [8, 9]}, {"tokenizer_config.json": spelled}, [8], None),
        ({"eos_token_id": 7}, {"generation_config.json": {"eos_token_id": [5, 7]}}, [5], None),
        ({}, {"tokenizer_config.json": spelled}, [EOS], "</s> (257), as tokenizer_config.json"),
        ({"eos_token_id": None}, {"tokenizer_config.json": entry}, [EOS], "tokenizer_config.json"),
        ({"eos_token_id": 5000}, {"tokenizer_config.json": spelled, "generation_config.json": {"eos_token_id": 5}}, [EOS],
         "tokenizer_config.json"),
        ({"eos_token_id": -1}, {"special_tokens_map.json": entry}, [EOS], "special_tokens_map.json"),
        ({"eos_token_id": None}, {"generation_config.json": {"eos_token_id": [5]}}, [5], None),
        ({}, {"tokenizer_config.json": {"eos_token": "<unknown>"}}, [], "tokenize --end TOKEN"),
        ({}, None, [], "tokenize --end TOKEN"),
    )
    for config, files, end, said in cases:
        model = bos_folder(parts=(), files=files, **config)
        for data, text in (({"a.txt": "ab"}, b"ab"), ({"a.jsonl": lines({"prompt": "q", "completion": "a"})}, b"qa")):
            ended = tokenize(model, data)
            expect(problems, f"{config} {files}", (ended.code, tokens("out.bin")), (0, [*text, *end]))
            expect(problems, f"{config} {files} says it", "documents end" in ended.err or "nothing ends" in ended.err,
                   said is not None)
            expect(problems, f"{config} {files}: {ended.err}", said is None or said in ended.err, True)
        ended = program.run("inspect", path("a.jsonl"), "--model", model)
        wanted = "documents end with " if end else "nothing ends documents"
        expect(problems, f"inspect {config} {files}", (wanted in ended.out, f"{2 + len(end)} tokens" in ended.out), (True, True))
    return problems


def begins_as_the_tokenizer_does():
    """The tokens that a post-processor puts before a text stand before documents and prompts of completions, once."""
    problems = []
    data = {"a.txt": "ab", "b.jsonl": lines({"prompt": "q", "completion": "a"}, {"text": "cd"})}
    whole = [[*b"ab", EOS], [*b"qa", EOS], [*b"cd", EOS]]
    for parts, more, begin in ((("<s>", "$A"), (), [BOS]), (("<s>", "$A"), ("--bos", "no"), []), ((), (), []),
                               (("<s>", "$A", "</s>"), (), [BOS]), (("<s>", "$A"), ("--bos", "yes"), [BOS]),
                               ((), ("--bos", "yes"), [BOS])):
        model = bos_folder(parts=parts, files={"tokenizer_config.json": {"bos_token": "<s>"}}, eos_token_id=EOS)
        ended = tokenize(model, data, *more)
        expect(problems, f"{parts} {more}", (ended.code, tokens("out.bin")), (0, sum((begin + one for one in whole), [])))
        expect(problems, f"mask {parts} {more}", mask("out.bin"), [1] * (3 + len(begin)) + [0] * (1 + len(begin)) + [1] * 2 +
               [1] * (3 + len(begin)))
    model = bos_folder(eos_token_id=EOS)
    tokenize(model, {"a.txt": "<s>ab"}, "--special")
    expect(problems, "a text that spells it", tokens("out.bin"), [BOS, *b"ab", EOS])
    tokenize(model, {"a.txt": "ab"})
    expect(problems, "plain text has no mask", os.path.exists(path("out.bin.mask")), False)
    bad = bos_folder("endless", parts=(), eos_token_id=EOS)
    problems += program.refused("no such token", ("tokenize", "--model", bad, "--data", path("a.txt"), "--bos", "yes", "--out",
                                                  path("new.bin")), "--bos yes", "begins a text")
    return problems


def chats_begin_by_their_template():
    """A chat gets what its template puts and no more, unless --bos yes asks for it."""
    problems, model = [], chat_folder("begun")
    with open(path("begun", "tokenizer.json"), encoding="utf-8") as file:
        whole = json.load(file)
    whole["post_processor"] = {**template("<s>", "$A"), "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}}
    program.write(path("begun", "tokenizer.json"), json.dumps(whole))
    turns = [START, *b"user\nq", END, 10, START, *b"assistant\na", END, 10]
    for more, begin in (((), []), (("--bos", "yes"), [2])):
        ended = tokenize(model, {"a.jsonl": lines(chat("q", "a"))}, *more)
        expect(problems, f"{more}", (ended.code, tokens("out.bin")), (0, begin + turns))
    return problems


def one_rule_for_all_commands():
    """train, eval and generate begin a text as tokenize does; a run keeps its choice, and an older run has none."""
    problems, environment = [], cache_of_its_own("rule-cache")
    model = bos_folder("rule", eos_token_id=EOS)
    data = program.write(path("rule.jsonl"), lines(*({"text": f"text {i}"} for i in range(60))))
    made = {}
    for bos in ("auto", "no"):
        shared = ("--model", model, "--init", "--data", data, "--steps", 1, *program.SHAPE)
        ended = program.run("train", *shared, "--run", path(f"rule-{bos}"), "--bos", bos, env=environment)
        expect(problems, f"train {bos}", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
        run = program.read_json(path(f"rule-{bos}", "run.json"))
        expect(problems, f"run.json {bos}", (run["settings"]["bos"], run["text_version"]), (bos, 1))
        with open(run["settings"]["data"][0], "rb") as file:
            made[bos] = array.array("H", file.read()).count(BOS)
    expect(problems, "documents that begin with it", (made["auto"] >= 60, made["no"]), (True, 0))
    program.write(path("rule.txt"), "some text")
    for source, of_its_own in ((path("rule-auto"), True), (path("rule-no"), False)):
        found = [json.loads(program.run("eval", source, "--data", path("rule.txt"), "--seq", 32, "--json", *more,
                                        env=environment).out)["tokens"] for more in ((), ("--bos", "yes"), ("--bos", "no"))]
        expect(problems, f"eval {source} by its run's rule", (found[0] == found[1], found[1] - found[2]), (of_its_own, 1))
    counts = [json.loads(program.run("eval", path("rule-auto"), "--data", data, "--seq", 32, "--json", "--bos", bos,
                                     env=environment).out)["tokens"] for bos in ("auto", "no")]
    expect(problems, "tokens of eval", counts[0] - counts[1], 60)
    # An older version wrote neither field; its data are made again as they were.
    old = program.read_json(path("rule-no", "run.json"))
    del old["text_version"], old["settings"]["bos"], old["settings"]["encoding"], old["settings"]["lossy"]
    program.write(path("rule-no", "run.json"), json.dumps(old))
    for name in os.listdir(os.path.join(environment["XDG_CACHE_HOME"], "spillway")):
        if name.startswith("tokens-"):
            os.unlink(os.path.join(environment["XDG_CACHE_HOME"], "spillway", name))
    ended = program.run("resume", path("rule-no"), "--steps", 2, env=environment)
    expect(problems, "an older run", (ended.code, ended.err[-400:] if ended.code else "", "made again" in ended.err), (0, "", True))
    expect(problems, "it stays one", program.read_json(path("rule-no", "run.json"))["text_version"], 0)
    return problems


def exports_name_the_end_of_turns():
    """A base model that learns chats is exported with the token that ends a turn, and one that does not as it was."""
    problems, environment = [], cache_of_its_own("turn-cache")
    model = chat_folder("base", **hf_folder.config(vocab_size=300, eos_token_id=7, bos_token_id=6))
    files = {"tokenizer_config.json": {"chat_template": hf_folder.CHATML, "eos_token": {"content": "x"}, "model_max_length": 10 ** 30},
             "special_tokens_map.json": {"eos_token": "x"}}
    for name, content in files.items():
        program.write(path("base", name), json.dumps(content))
    chats = program.write(path("turns.jsonl"), lines(*(chat(f"q{i}", f"a{i}") for i in range(60))))
    plain = program.write(path("plain.jsonl"), lines(*({"prompt": f"q{i}", "completion": f"a{i}"} for i in range(200))))
    for generation in (None, {"eos_token_id": [7, 8], "temperature": 0.5}):
        if generation:
            program.write(path("base", "generation_config.json"), json.dumps(generation))
        for data in (chats, plain):
            for old in ("turns", "turned"):
                shutil.rmtree(path(old), ignore_errors=True)
            ended = program.run("train", "--model", model, "--init", "--data", data, "--run", path("turns"), "--steps", 1,
                                "--export-every", 1, *program.SHAPE, env=environment)
            expect(problems, "train", (ended.code, ended.err[-300:] if ended.code else ""), (0, ""))
            expect(problems, "it is said", f"turns end with <|im_end|> ({END})" in ended.err, data == chats)
            program.must("export", path("turns"), path("turned"))
            for out in (path("turned"), path("turns", "exports", "step-1")):
                config, text = (program.read_json(os.path.join(out, f"{name}.json")) for name in ("config", "tokenizer_config"))
                beside = program.read_json(os.path.join(out, "special_tokens_map.json"))
                there = os.path.exists(os.path.join(out, "generation_config.json"))
                ends = program.read_json(os.path.join(out, "generation_config.json")) if there else None
                if data == chats:
                    wanted = (END, "<|im_end|>", "<|im_end|>",
                              {**generation, "eos_token_id": [END, 7, 8]} if generation else
                              {"bos_token_id": 6, "eos_token_id": [END, 7]})
                else:
                    wanted = (7, {"content": "x"}, "x", generation)
                expect(problems, f"{out} of {data}", (config["eos_token_id"], text["eos_token"], beside["eos_token"], ends), wanted)
                expect(problems, f"{out} keeps the rest", (text["chat_template"], float(text["model_max_length"])),
                       (hf_folder.CHATML, 1e30))
    return problems


script_test.run(ends_by_the_folder, begins_as_the_tokenizer_does, chats_begin_by_their_template, one_rule_for_all_commands,
                exports_name_the_end_of_turns)
