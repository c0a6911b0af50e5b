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

REPLY = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TURN = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}" + REPLY
FIRST = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n"
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
             "user/assistant/user/assistant/...') }}{% endif %}")

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query." }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {{- '<tool_call>' }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL_SPACED = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

QWEN3_2507 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions to assist with the user query." }}
    {{- '<|im_end|>\\n' }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- if message.tool_calls %}
            {{- '<tool_call>' }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>' + content + '</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA32 = LLAMA31.replace("""    {%- set date_string = "26 Jul 2024" %}
""", """    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
""")


def mistral_v3(begin, reply, with_system="loop.last"):
    """The templates of Mistral that know tools: what stands behind [INST], how a reply is written, and which question has
    the system turn."""
    return """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Tool calls may stand between turns that alternate. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]" + tools|tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if WITH_SYSTEM and system_message is defined %}
            {{- "[INST]BEGIN" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]BEGIN" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS]" + message.tool_calls|tojson + eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- REPLY + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- "[TOOL_RESULTS]" + message.content + "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with an optional system message at first!") }}
    {%- endif %}
{%- endfor %}
""".replace("BEGIN", begin).replace("REPLY", reply).replace("WITH_SYSTEM", with_system)


V3_LAST = "(message == user_messages[-1])"
V3_REPLY = "\" \" + message[\"content\"]|trim"

# Name → template, tokenizer. What stands behind a slash tells templates of one format apart.
TEMPLATES = {
    "chatml": ("{% for message in messages %}" + TURN, "qwen"),
    "qwen2": (FIRST + "You are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + TURN, "qwen"),
    "qwen2.5": (QWEN25, "qwen"),
    "qwen3": (QWEN3, "qwen"),
    "smollm2": (FIRST + "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}" + TURN, "qwen"),
    "llama3": ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
               "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
               "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
               "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}", "llama3"),
    "llama3.1": (LLAMA31, "llama3"),
    "zephyr": ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + eos_token }}\n"
               "{% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n"
               "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n"
               "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}", "mistral"),
    "llama2": ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
               "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
               + ALTERNATE + "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
               "'\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
               "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
               "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}", "mistral"),
    "mistral": ("{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
                "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
                "{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
                "{% endif %}{% endfor %}", "mistral"),
    "mistral-spaced": (MISTRAL_SPACED, "mistral"),
    "chatml/qwen3-2507": (QWEN3_2507, "qwen"),
    "llama3.1/llama3.2": (LLAMA32, "llama3"),
    "mistral-v3": (mistral_v3(" ", V3_REPLY), "mistral-v3"),
    "mistral-v3/system": (mistral_v3(" ", V3_REPLY, V3_LAST), "mistral-v3"),
    "mistral-tekken": (mistral_v3("", "message[\"content\"]"), "tekken"),
    "mistral-tekken/system": (mistral_v3("", "message[\"content\"]", V3_LAST), "tekken"),
    "ministral": (mistral_v3("", V3_REPLY), "tekken"),
    "ministral/system": (mistral_v3("", V3_REPLY, V3_LAST), "tekken"),
}
ENDS = {"qwen": "<|im_end|>", "llama3": "<|eot_id|>", "mistral": "</s>", "mistral-v3": "</s>", "tekken": "</s>"}
# Templates that take the date from the clock, unless it is given.
DATES = {"llama3.1/llama3.2": {"date_string": "26 Jul 2024"}}


def is_v3(name):
    return TEMPLATES[name][1] in ("mistral-v3", "tekken")


# --- The conversations -----------------------------------------------------------------------------------------------


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


# --- The comparison --------------------------------------------------------------------------------------------------


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
