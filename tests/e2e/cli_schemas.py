"""Schemas of lines of JSON for tokenize, train, eval and inspect: chats and texts, losses that are switched off,
files of lists, and members that are refused by name."""

import gzip
import json
import os
import subprocess
import threading

import hf_folder
import program
from program import script_test
from token_files import END, START, byte_folder, chat_folder, expect, folder, lines, mask, path, tokenize, tokens

QUESTION = {"role": "user", "content": "q"}
REPLY = {"role": "assistant", "content": "a"}


def turn(role, content):
    return [START, *f"{role}\n{content}".encode(), END, 10]


def rendered(*contents):
    return [token for i, text in enumerate(contents) for token in turn(("user", "assistant")[i % 2], text)]


def ended_well(problems, what, ended):
    expect(problems, what, (ended.code, ended.err if ended.code else ""), (0, ""))
    return ended.code == 0


def numbers_of_transformers():
    """The files of a model may have numbers that no machine has, and U+0000."""
    problems, model = [], chat_folder("large")
    with open(os.path.join(model, "tokenizer_config.json"), encoding="utf-8") as file:
        text = file.read().rstrip().removesuffix("}")
    program.write(os.path.join(model, "tokenizer_config.json"),
                  text + ', "model_max_length": 1000000000000000019884624838656, "a": 1e999, "b": "\\u0000"}')
    ended_well(problems, "large numbers", tokenize(model, {"a.jsonl": hf_folder.chat("q", "a")}))
    zero = json.loads(hf_folder.byte_tokenizer())
    zero["model"]["vocab"]["\0"] = 256
    added = hf_folder.byte_tokenizer(added_tokens=[{"id": 256, "content": "\0", "special": True, "normalized": False}])
    for name, tokenizer in (("vocabulary", json.dumps(zero)), ("added", added)):
        ended = tokenize(folder("zero", tokenizer, vocab_size=257), {"a.txt": "a\0b"}, "--special")
        if ended_well(problems, f"U+0000 {name}", ended):
            expect(problems, f"tokens {name}", tokens("out.bin"), [97, 256 if name == "added" else 0, 98])
    return problems


def schemas():
    """Each line is the document that its members say."""
    problems, plain = [], rendered("q", "a")
    system = turn("system", "s")
    share = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    cases = (
        ({"messages": [QUESTION, REPLY], "text": None, "prompt": None}, (), plain),
        ({"messages": None, "tools": None, "text": "ab"}, (), [*b"ab", END]),
        ({"messages": [QUESTION, REPLY], "tools": "[]", "functions": [], "images": None, "id": 1}, (), plain),
        ({"messages": [QUESTION, REPLY], "system": "s"}, (), system + plain),
        ({"messages": [QUESTION, REPLY], "text": "rendered"}, (), plain),
        ({"messages": [QUESTION, REPLY], "text": "rendered"}, ("--field", "text"), [*b"rendered", END]),
        ({"messages": [QUESTION, REPLY], "prompt": "q"}, (), plain),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, REPLY]}, (), plain),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q\0"}, {"type": "text", "text": "r"}]}, REPLY]}, (),
         rendered("q\0r", "a")),
        ({"conversations": share}, (), plain),
        ({"conversations": [{"from": "system", "value": "s"}, *share], "source": "x", "score": float("nan")}, (), system + plain),
        ({"conversation": [QUESTION, REPLY], "conversation_id": "5"}, (), plain),
        ({"dialog": [QUESTION, REPLY], "text": "x"}, ("--field", "dialog"), plain),
        ({"prompt": [QUESTION], "completion": [REPLY]}, (), plain),
        ({"prompt": "ab", "completion": "cd", "text": "abcd"}, (), [*b"abcd", END]),
        ({"instruction": "i", "input": "j", "output": "a", "text": "rendered"}, (), rendered("i\nj", "a")),
        ({"instruction": "i", "input": "", "output": "a", "system": "s"}, (), system + rendered("i", "a")),
        ({"instruction": "i", "input": None, "output": "a"}, (), rendered("i", "a")),
        ({"instruction": "i", "context": "j", "response": "a", "category": "c"}, (), rendered("i\nj", "a")),
        ({"instruction": "i", "input": "", "context": "j", "answer": "a"}, (), rendered("i\nj", "a")),
        ({"question": "q", "answer": "a"}, (), plain),
        ({"question": "q", "response": "a", "system_prompt": "s"}, (), system + plain),
        ({"query": "q", "response": "a", "original_question": "o", "context": ""}, (), plain),
        ({"input": "q", "output": "a"}, (), plain),
        ({"text": "ab", "question": "q", "answer": "a"}, ("--field", "text"), [*b"ab", END]),
        ({"question": "q", "answer": "a", "response": "b"}, ("--field", "response"), [*b"b", END]),
        *(({"conversations": [{"from": user, "value": "q"}, {"from": reply, "value": "a"}]}, (), plain)
          for user, reply in (("Human", "GPT"), ("USER", "Assistant"), ("prompter", "chatgpt"), ("user", "bot"),
                              ("human", "model"), ("user", "AI"), ("human", "bard"), ("human", "bing"))),
    )
    for row, more, wanted in cases:
        ended = tokenize(chat_folder(), {"a.jsonl": lines(row)}, *more)
        if ended_well(problems, f"{row} {more}", ended):
            expect(problems, f"{row} {more}", tokens("out.bin"), wanted)
            expect(problems, f"{row} {more} warns", "'text' of 1 document is not read" in ended.err,
                   isinstance(row.get("text"), str) and len(row) > 1 and not more and "tools" not in row)
    return problems


def alpaca_without_a_template():
    """A model without a chat template is given Alpaca's own prompt, of which the output has a loss."""
    problems, first = [], "Below is an instruction that describes a task"
    model = folder("base", hf_folder.byte_tokenizer(), vocab_size=256, eos_token_id=0)
    for row, wanted in (
            ({"instruction": "i", "output": "a"},
             f"{first}. Write a response that appropriately completes the request.\n\n### Instruction:\ni\n\n### Response:\n"),
            ({"instruction": "i", "input": "j", "output": "a"},
             f"{first}, paired with an input that provides further context. Write a response that appropriately completes the "
             "request.\n\n### Instruction:\ni\n\n### Input:\nj\n\n### Response:\n")):
        ended = tokenize(model, {"a.jsonl": lines(row)})
        if ended_well(problems, f"{row}", ended):
            expect(problems, f"{row}", tokens("out.bin"), [*f"{wanted}a".encode(), 0])
            expect(problems, f"mask of {row}", mask("out.bin"), [0] * len(wanted) + [1, 1])
            expect(problems, f"{row} says so", "Alpaca's prompt" in ended.err, True)
    return problems


def losses_are_switched_off():
    """A reply whose loss is off stays as context; the others keep theirs."""
    problems, quiet = [], [0] * len(rendered("q"))
    reply = [0] * len([START, *b"assistant\n"])
    for off, on in (({"loss": False}, {"loss": True}), ({"train": False}, {}), ({"training": 0}, {"training": 1}),
                    ({"masked": True}, {"masked": False}), ({"loss_mask": 0}, {"loss_mask": 1}), ({"trainable": False}, {}),
                    ({"weight": 0}, {"weight": 1}), ({"weight": 0.0}, {"weight": 1.0}), ({"weight": False}, {"weight": None}),
                    ({"loss": "false"}, {"loss": "true"}), ({"train": "False"}, {"train": "True"}),
                    ({"trainable": "no"}, {"trainable": "Yes"}), ({"weight": "0"}, {"weight": "1.0"}),
                    ({"training": "off"}, {"training": "on"}), ({"masked": "TRUE"}, {"masked": "0"}),
                    ({"Loss": False}, {"Train": 1})):
        row = {"messages": [QUESTION, {**REPLY, **off}, QUESTION, {**REPLY, **on}, QUESTION, {**REPLY, **off}]}
        ended = tokenize(chat_folder(), {"a.jsonl": lines(row)})
        if ended_well(problems, f"{off} {on}", ended):
            expect(problems, f"{off} {on}", tokens("out.bin"), rendered(*"qaqaqa"))
            expect(problems, f"mask of {off} {on}", mask("out.bin"),
                   (quiet + reply + [0, 0, 0]) + (quiet + reply + [1, 1, 0]) + (quiet + reply + [0, 0, 0]))
    row = {"prompt": [QUESTION, REPLY, QUESTION], "completion": [REPLY]}
    if ended_well(problems, "a prompt with a reply", tokenize(chat_folder(), {"a.jsonl": lines(row)})):
        expect(problems, "mask of a prompt", mask("out.bin"), (quiet + reply + [0, 0, 0]) + (quiet + reply + [1, 1, 0]))
    return problems


def refused_by_name():
    problems, both = [], {"messages": [QUESTION, REPLY]}

    def reply(**more):
        return {"messages": [QUESTION, {**REPLY, **more}]}

    cases = (
        ({**both, "conversations": [REPLY]}, (), ("'messages'", "'conversations'", "--field")),
        ({**both, "prompt": "a", "completion": "b"}, (), ("'messages'", "'completion'", "--field")),
        ({"instruction": "a", "output": "b", "prompt": "a", "completion": "b"}, (), ("'completion'", "'instruction'")),
        ({**both, "tools": [{}]}, (), ("'tools'", "--skip-bad")),
        ({**both, "functions": [{}]}, (), ("'functions'",)),
        ({**both, "images": ["a.png"]}, (), ("'images'",)),
        ({"text": "a", "images": ["a.png"]}, (), ("'images'",)),
        ({**both, "chat_template_kwargs": {"enable_thinking": False}}, (), ("'chat_template_kwargs'",)),
        ({"chosen": [QUESTION, REPLY], "rejected": [QUESTION, REPLY]}, (), ("'chosen'",)),
        ({"text": "a", "system": "s"}, (), ("'system'",)),
        ({**both, "train": False}, (), ("'train'", "nothing to learn")),
        ({**both, "mask": [0, 1]}, (), ("'mask'",)),
        (reply(mask=False), (), ("'mask'",)),
        (reply(compute_loss=False), (), ("'compute_loss'",)),
        (reply(is_trained=0), (), ("'is_trained'",)),
        ({"prompt": "a", "completion": "b", "label": False}, (), ("'label'",)),
        ({"text": "a", "weight": 0.5}, (), ("'weight' of 0.5",)),
        (reply(tool_calls=[{}]), (), ("a message", "'tool_calls'")),
        (reply(reasoning_content="r"), (), ("a message", "'reasoning_content'")),
        (reply(train_detail=[{}]), (), ("'train_detail'",)),
        (reply(weight=0.5), (), ("'weight' of 0.5",)),
        (reply(weight="half"), (), ("'weight'", "true, false, 0 or 1")),
        (reply(train=""), (), ("'train'", "true, false, 0 or 1")),
        (reply(Loss="false", train=True), (), ("'loss'", "'train'", "contradict")),
        ({**both, "Tools": [{}]}, (), ("'Tools'",)),
        ({**both, "is_train": False}, (), ("'is_train'",)),
        ({"text": "a", "exclude": True}, (), ("'exclude'",)),
        ({"text": "a", "train": "False"}, (), ("'train'", "nothing to learn")),
        (reply(weight=0, train=True), (), ("'train'", "'weight'", "contradict")),
        (reply(train=False), (), ("nothing to learn",)),
        (reply(train=False), ("--loss", "all"), ("'train'", "--loss all")),
        (reply(value="b"), (), ("'content'", "'value'")),
        ({"messages": [{**QUESTION, "train": True}, REPLY]}, (), ("'train'", "--loss all")),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, REPLY]}, (), ("'image_url'",)),
        ({"messages": [{"role": "tool", "content": "a"}, REPLY]}, (), ("'tool'",)),
        ({"messages": ["a"]}, (), ("no object",)),
        ({"messages": 5}, (), ("no list",)),
        ({"prompt": "a", "completion": [REPLY]}, (), ("both strings or both lists",)),
        ({"instruction": "a", "output": ""}, (), ("'output' is not empty",)),
        ({"Text": "a", "id": 3}, (), ("'Text', 'id'", "--field")),
        ({"problem": "a", "solution": "b"}, (), ("'problem', 'solution'", "'question' with 'answer'", "--field")),
        ({"prompt": "a", "response": "b"}, (), ("'prompt' with 'response'", "'question'", "'completion'")),
        ({"question": "a", "answer": "b", "response": "c"}, (), ("'question'", "several replies", "--field")),
        ({"question": "a", "input": "b", "output": "c"}, (), ("several questions", "--field")),
        ({"question": "a", "answer": {"text": ["b"]}}, (), ("'question' and 'answer' are strings",)),
        ({"question": "a", "context": "c", "answer": "b"}, (), ("'context' beside 'question'",)),
        ({"instruction": "i", "input": "j", "context": "k", "response": "a"}, (), ("'context' beside 'input'",)),
        ({**both, "system": "s", "system_prompt": "s"}, (), ("'system' and 'system_prompt'",)),
        ({"messages": [{"role": 5, "content": "a"}, REPLY]}, (), ("'role'", "no string")),
        ({"conversations": [{"from": "observation", "value": "a"}, REPLY]}, (), ("'observation'", "gpt")),
        ('{"text": "a", "text": "b"}', (), ("two members of one name", "'\"text\"'")),
        ("[" * 600 + "]" * 600, (), ("512 levels",)),
        ({"messages": [QUESTION, REPLY], "label": False}, (), ("'label'", "wanted")),
        ({"instruction": "i", "output": "a", "kto_tag": True}, (), ("'kto_tag'", "wanted")),
        ({"messages": [QUESTION, {**REPLY, "ignore": True}]}, (), ("'ignore'",)),
        ({"text": "a", "labels": [1, 2]}, (), ("'labels'",)),
        ('{"text": "a\\ud800"}', (), ("half a surrogate pair",)),
    )
    for row, more, words in cases:
        text = lines({"text": "good"}) + (row + "\n" if isinstance(row, str) else lines(row))
        ended = tokenize(chat_folder(), {"a.jsonl": text}, *more)
        said = ended.err.strip()
        expect(problems, f"{row} {more} ends: {said}", (ended.code, len(said.splitlines())), (1, 1))
        problems += [f"{row} {more}: '{said}' lacks '{word}'" for word in ("a.jsonl:2", *words) if word not in said]
    ended = tokenize(chat_folder(), {"a.jsonl": lines({**both, "id": 1, "url": "u"}, {"text": "a", "source": "s", "id": 2})})
    expect(problems, "members that are not read", "not read: id, url, source\n" in ended.err, True)
    ended = tokenize(chat_folder(), {"a.jsonl": lines({"text": ""}, {"text": "a", "tools": []})})
    expect(problems, "empty documents", ("1 document without text was left out" in ended.err, "not read" in ended.err), (True, False))
    return problems


def forms_of_json():
    """A list, lines and values over several lines are the same documents: as a file, packed, and through a pipe."""
    problems, model, rows = [], chat_folder(), [{"text": 'x[{"\\'}, {"messages": [QUESTION, REPLY]}, {"text": "y" * 70000}]
    wanted = [*b'x[{"\\', END, *rendered("q", "a"), *b"y" * 70000, END]
    forms = {"lines": lines(*rows), "list": json.dumps(rows), "pretty list": "\ufeff\n " + json.dumps(rows, indent=1) + "\n\n",
             "pretty values": "".join(json.dumps(row, indent=2) + "\n" for row in rows),
             "blank lines": "\n" + lines(*rows).replace("\n", "\r\n\r\n")}
    for form, text in forms.items():
        for name, content in (("a.json", text.encode()), ("a.jsonl", text.encode()), ("a.json.gz", gzip.compress(text.encode()))):
            if ended_well(problems, f"{form} {name}", tokenize(model, {name: content})):
                expect(problems, f"{form} {name}", tokens("out.bin"), wanted)
            os.makedirs(path("d-" + name), exist_ok=True)
            program.write(path("d-" + name, name), content)
            piped = program.run("tokenize", "--model", model, "--data", "-", "--out", path("out.bin"), stdin=content)
            if ended_well(problems, f"{form} {name} piped", piped):
                expect(problems, f"{form} {name} piped", tokens("out.bin"), wanted)
            ended = program.run("tokenize", "--model", model, "--data", path("d-" + name), "--out", path("out.bin"))
            if ended_well(problems, f"{form} {name} in a folder", ended):
                expect(problems, f"{form} {name} in a folder", tokens("out.bin"), wanted)
    fifo = path("fifo")
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: program.write(fifo, forms["pretty list"]))
    writer.start()
    if ended_well(problems, "fifo", program.run("tokenize", "--model", model, "--data", fifo, "--out", path("out.bin"))):
        expect(problems, "fifo", tokens("out.bin"), wanted)
    writer.join()
    ended = program.run("tokenize", "--model", byte_folder(), "--data", "-", "--out", path("text.bin"), stdin=b"[1] is text")
    expect(problems, f"text with a bracket: {ended.err}", (ended.code, ended.code or tokens("text.bin")), (0, [*b"[1] is text"]))
    return problems


def broken_lists():
    """Errors name the line on which a value begins; what is broken between values is not passed over by --skip-bad."""
    problems = []
    cases = (
        ('[\n{"text": "a"},\n{"text": }\n]', (), "a.json:3", 1),
        ('[\n{"text": "a"},\n{"text": }\n]', ("--skip-bad",), "a.json:3", 0),
        ('[\n{"text": "a"},\n"b", 5]', ("--skip-bad",), "2 JSON documents", 0),
        ('[\n{"text": "a"}\n{"text": "b"}]', ("--skip-bad",), "a.json:3: the list has no comma", 1),
        ('[{"text": "a"},]', ("--skip-bad",), "lacks a value", 1),
        ('[{"text": "a"}] {"text": "b"}', ("--skip-bad",), "follows the list", 1),
        ('[{"text": "a"},\n', ("--skip-bad",), "cut off", 1),
        ('[{"text": "a"}, {"text": "b', (), "a.json:1", 1),
        ("[]", (), "holds no text", 1),
        ('{\n"text": "a"}\n}', (), "a.json:3: an object is expected", 1),
    )
    for text, more, word, code in cases:
        ended = tokenize(chat_folder(), {"a.json": text}, *more)
        expect(problems, f"{text} {more}: {ended.err}", (ended.code, word in ended.err), (code, True))
    return problems


def train_reads_them_too():
    """--field and --skip-bad of train, eval and inspect; a run keeps them."""
    problems, model = [], path("small")
    hf_folder.make(model, hf_folder.config(vocab_size=300), hf_folder.safetensors(hf_folder.tensors(1, vocab=300)))
    hf_folder.write_chat_tokenizer(model, first=START)
    data = program.write(path("d.json"), json.dumps([{"body": "abcdefgh" * 20}, {"text": 5}, {"body": "ijkl" * 40}]))
    shape = ("--seq", 16, "--batch-tokens", 32, "--threads", 1, "--device", "cpu", "--precision", "fp32", "--val", "0%")
    more = ("--field", "body", "--skip-bad")
    bad = program.run("train", "--model", model, "--data", data, "--run", path("bad"), "--steps", 2, *shape)
    expect(problems, "without the flags", (bad.code, "d.json:1" in bad.err and "--field" in bad.err), (1, True))
    environment = {**os.environ, "XDG_CACHE_HOME": path("cache")}
    os.makedirs(path("cache"), exist_ok=True)
    ended = program.run("train", "--model", model, "--data", data, "--run", path("run"), "--steps", 2, *shape, *more,
                        env=environment)
    if not ended_well(problems, "train", ended):
        return problems
    subprocess.run(["rm", "-r", path("cache", "spillway")], check=True)
    ended_well(problems, "resume", program.run("resume", path("run"), "--steps", 3, env=environment))
    ended_well(problems, "eval", program.run("eval", path("run"), "--data", data, *more, env=environment))
    ended = program.run("inspect", data, "--model", model, *more, env=environment)
    expect(problems, "inspect", (ended.code, "[[bcdefgh" in ended.out, "left out" in ended.err), (0, True, True))
    return problems


def names_of_lines_of_json():
    """Lines of JSON have several endings, in letters of both cases."""
    problems, model, line = [], chat_folder("endings"), hf_folder.chat("q", "a")
    for name in ("a.jsonl", "a.JSONL", "a.ndjson", "a.jsonlines", "A.JSON"):
        if ended_well(problems, name, tokenize(model, {name: line})):
            expect(problems, name, tokens("out.bin"), rendered("q", "a"))
    if ended_well(problems, "a.NDJSON.GZ", tokenize(model, {"a.NDJSON.GZ": gzip.compress(line.encode())})):
        expect(problems, "a.NDJSON.GZ", tokens("out.bin"), rendered("q", "a"))
    return problems


def forms_of_chat_templates():
    """A string, the default of several, or that of a processor; what is none of these is named."""
    problems, chatml, data = [], hf_folder.CHATML, {"a.jsonl": hf_folder.chat("q", "a")}
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": chatml}]
    for name, config, processor, words in (("several", several, None, ()), ("processor", None, chatml, ()),
                                           ("without a default", several[:1], None, ("tokenizer_config.json", "'default'")),
                                           ("by name", {"default": chatml}, None, ("tokenizer_config.json", "a list")),
                                           ("of a processor", None, several[:1], ("chat_template.json",)),
                                           ("none", None, None, ("has no chat template",))):
        model = chat_folder(f"template {name}")
        program.write(os.path.join(model, "tokenizer_config.json"), json.dumps({"chat_template": config}))
        if processor is not None:
            program.write(os.path.join(model, "chat_template.json"), json.dumps({"chat_template": processor}))
        ended = tokenize(model, data)
        if not words and ended_well(problems, name, ended):
            expect(problems, name, tokens("out.bin"), rendered("q", "a"))
        expect(problems, f"{name}: {ended.err}", (ended.code == 0, [word in ended.err for word in words]),
               (not words, [True] * len(words)))
    for name in ("chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        model = chat_folder(f"link {name}")
        if os.path.exists(os.path.join(model, name)):
            os.unlink(os.path.join(model, name))
        os.symlink("blobs/gone", os.path.join(model, name))
        ended = tokenize(model, data)
        expect(problems, f"{name} leads nowhere: {ended.err}",
               (ended.code, f"{name} is a link to a file that is not there" in ended.err), (1, True))
    return problems


def tokens_follow_the_template_of_a_processor():
    """Tokens that are kept are those of the template, whichever file it is in."""
    problems, model = [], path("processed")
    hf_folder.make(model, hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(1)))
    hf_folder.write_chat_tokenizer(model)
    program.write(os.path.join(model, "tokenizer_config.json"), "{}")
    data = program.write(path("processed.jsonl"), hf_folder.chat("q", "a" * 40) * 4)
    found = []
    for template in (hf_folder.CHATML, hf_folder.CHATML.replace("'<|im_end|>'", "'!<|im_end|>'")):
        program.write(os.path.join(model, "chat_template.json"), json.dumps({"chat_template": template}))
        ended = program.run("eval", model, "--data", data, "--json", env={**os.environ, "XDG_CACHE_HOME": path("kept")})
        if ended_well(problems, template, ended):
            found.append(json.loads(ended.out)["tokens"])
    expect(problems, f"tokens {found}", len(set(found)), 2)
    return problems


script_test.run(numbers_of_transformers, schemas, alpaca_without_a_template, losses_are_switched_off, refused_by_name,
                forms_of_json, broken_lists, train_reads_them_too, names_of_lines_of_json,
                forms_of_chat_templates, tokens_follow_the_template_of_a_processor)
