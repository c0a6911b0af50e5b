#!/usr/bin/env python3
"""Compares what chat templates render with Jinja as transformers sets it up, byte by byte, on random conversations: for the
templates of the families and for random templates of the subset that spillway has.

usage: jinja_rendering.py RENDER_CHATS [--count N] [--seed N]
       jinja_rendering.py --golden FILE

RENDER_CHATS is the program that `ninja -C build tests/parity/render_chats` makes. --golden writes conversations with what
is rendered of them, and what of it the assistant says, for the tests in C. Needs `transformers` and `jinja2`.
"""

import argparse
import json
import random
import subprocess
import sys

import chat_family_texts
import chat_template_texts

WORDS = ("Hello", "what is 17*3?", "don't", "na\u00efve", "\u4f60\u597d", "\U0001f469\u200d\U0001f467", "def f(x):\n    return x", "12345", "[INST]",
         "<|user|>", "<|im_end|>", "</s>", "<<SYS>>", "{{ bos_token }}", "assistant", "\u2581", "<think>", "</think>", "\\n", "\"q\"")
SPACES = (" ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\x1c", "\x85", " \n ")


def content(rng, most=8):
    if rng.random() < 0.08:
        return rng.choice(("", " ", "\n", " \n\n ", "\t"))
    text = "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(1, most)))
    text = text.strip() if rng.random() < 0.6 else text
    return f"<tool_response>{text}</tool_response>" if rng.random() < 0.08 else text


def conversation(rng, system=True, open_ended=True):
    messages = [{"role": "system", "content": content(rng)}] if system and rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 5)):
        messages += [{"role": "user", "content": content(rng)}, {"role": "assistant", "content": content(rng)}]
    return messages + ([{"role": "user", "content": content(rng)}] if open_ended and rng.random() < 0.2 else [])


# Random templates: expressions by what they give, and statements around them.

def text_expression(rng, depth):
    if depth == 0:
        return rng.choice(("'a'", '"b\\n"', "m.content", "m['content']", "m.role", "bos_token", "missing", "''", "x", "messages[0].content",
                           "messages[-1]['role']", "'<' \"x\""))
    one, two = text_expression(rng, depth - 1), text_expression(rng, depth - 1)
    return rng.choice((
        f"({one} ~ {two})", f"(({one})|string + {two}|string)", f"{one}|trim", f"({one}|string).strip()", f"({one}|string).lstrip('\\n a')",
        f"({one}|string)[{number(rng)}:]", f"({one}|string)[:{number(rng)}]", f"({one}|string)[::-1]", f"({one}|string)[{number(rng)}]",
        f"({one} if {condition(rng, depth - 1)} else {two})", f"({one} if {condition(rng, depth - 1)})",
        f"({one}|string).split('\\n')|join('+')", f"({one}|string).split()|join('_')", f"({one}|string).split('a', 1)[-1]",
        f"{one}|replace('a', {two})", f"({one}|string).replace('e', 'E', 1)", f"{one}|default('d', true)", f"{one}|default('d')",
        f"{one}|tojson" if "missing" not in one and "x" not in one and "[" not in one and " if " not in one else f"({one}|string)|tojson",
        f"[{one}, {two}]|first", f"({one}, {two})|last", f"[{one}, {two}]|join(', ')", f"{{'k': {one}, 'l': {two}}}['k']",
        f"{{'k': {one}}}.get('k', 1)", f"{{'k': {one}}}.items()|list|length", f"(m.role|upper)", f"(m.role|capitalize)", f"{arithmetic(rng, depth - 1)}",
        f"messages|map(attribute='role')|join({one})", f"messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list|length",
        f"(messages|rejectattr('role', 'eq', 'user')|list|last).content", f"[{one}, {two}]|map('string')|map('trim')|join('|')",
        f"({one}|string).removeprefix('a')", f"({one}|string).find('o')", f"({one}|string).rfind('o')", f"({one}|string).count('e')",
        f"({one}|string)|list|length", f"({one}|string)|reverse", f"(('{rng.randrange(99)}')|int + 1)", f"[{one}, {two}]|tojson" if "m." in one and "m." in two else "3",
        f"dict(a={one}).a", f"namespace(a={one}).a",
        f"({''.join(rng.choices('aBc9 -([{<>.', k=9))!r} ~ m.role)|title",
        f"{{{', '.join(f'{key!r}: {rng.randrange(9)}' for key in rng.sample(('b', 'B', 'a', 'ab', 'Ab', '', '_', 'Z'), rng.randrange(6)))}}}"
        f"|dictsort{rng.choice(('', '(true)', '(reverse=true)', '(false, ' + repr('key') + ', true)'))}|map('join', '=')|join(' ')"))


def number(rng):
    return str(rng.randrange(-6, 7))


def arithmetic(rng, depth):
    if depth <= 0:
        return rng.choice(("1", "2", "7", "-3", "messages|length", "loop.index", "loop.index0", "loop.revindex", "loop.revindex0", "loop.length",
                           "(m.content|length)", "true"))
    return f"({arithmetic(rng, depth - 1)} {rng.choice(('+', '-', '*', '// 3 +', '% 5 -'))} {arithmetic(rng, depth - 1)})"


def condition(rng, depth):
    if depth <= 0:
        return rng.choice(("true", "false", "m", "missing", "missing is defined", "m.content is string", "m.role == 'user'", "loop.first", "loop.last",
                           "not loop.first", "m.content is not none", "tools", "tools is none", "'a' in m.content", "'content' in m", "m is mapping",
                           "messages is sequence", "m is iterable", "1 < 2 < 3", "loop.index0 % 2 == 0", "loop.index is odd", "loop.index is even",
                           "m.role in ['user', 'system']", "m.role not in ('user',)", "loop.previtem is defined", "loop.nextitem is undefined",
                           "loop.index is number", "missing is none", "missing == missing", "loop.previtem and loop.previtem.role != m.role",
                           "m.tool_calls is defined and m.tool_calls", "add_generation_prompt is true", "add_generation_prompt is boolean",
                           "messages|selectattr('role', 'eq', 'tool')|list", "namespace() is defined", "loop.index is integer",
                           "m.content is eq 'a'", "m == messages[0]", "[1, 2] == [1, 2]", "(1,) != [1]", "'a' < m.content"))
    one, two = condition(rng, depth - 1), condition(rng, depth - 1)
    return rng.choice((f"({one} and {two})", f"({one} or {two})", f"not {one}", f"({one}) == ({two})", f"{one} or {two} and {one}",
                       f"({text_expression(rng, depth - 1)}) == ({text_expression(rng, depth - 1)})",
                       f"{arithmetic(rng, depth)} {rng.choice(('<', '>=', '==', '!='))} {arithmetic(rng, depth)}"))


def space(rng):
    return rng.choice(("", "", " ", "\n", "\n\n", "  \n  ", "\t", " x ", "text\n", "\u00a0\n "))


def sign(rng):
    return rng.choice(("", "", "", "-", "+"))


def begin(rng):
    return space(rng) + "{%" + sign(rng) + " "


def end(rng):
    return " " + rng.choice(("", "", "-", "+")) + "%}" + space(rng)


def statement(rng, depth):
    kind = rng.randrange(11 if depth > 0 else 5)
    if kind <= 2:
        return space(rng) + "{{" + rng.choice(("", "-")) + " " + text_expression(rng, rng.randrange(3)) + " " + rng.choice(("", "-")) + "}}"
    if kind == 3:
        return space(rng) + rng.choice(("{# note #}", "{#- note -#}", "{#+ a\n b +#}")) + space(rng)
    if kind == 4:
        return begin(rng) + rng.choice(("set x = ", "set ns.y = ")) + text_expression(rng, 1) + end(rng)
    body, other = statements(rng, depth - 1), statements(rng, depth - 1)
    if kind <= 7:
        middle = begin(rng) + f"elif {condition(rng, 1)}" + end(rng) + other if rng.random() < 0.3 else ""
        last = begin(rng) + "else" + end(rng) + other if rng.random() < 0.5 else ""
        return begin(rng) + f"if {condition(rng, 2)}" + end(rng) + body + middle + last + begin(rng) + "endif" + end(rng)
    if kind == 8:
        over = rng.choice(("messages", "messages[1:]", "messages[::-1]", "range(3)|list|map('string')", "m.content.split('\\n')", "missing", "m.role",
                           "[]"))
        leave = begin(rng) + f"if {condition(rng, 0)}" + end(rng) + begin(rng) + rng.choice(("break", "continue")) + end(rng) + begin(rng) + "endif" + end(rng)
        name = "m" if over.startswith("messages") else "part"
        kept = f" if {condition(rng, 0)}" if rng.random() < 0.2 and name == "part" and over != "missing" else ""
        last = begin(rng) + "else" + end(rng) + other if rng.random() < 0.2 else ""
        return (begin(rng) + f"for {name} in {over}{kept}" + end(rng) + (leave if rng.random() < 0.3 else "") + body + last + begin(rng) + "endfor" +
                end(rng))
    if kind == 9:
        return begin(rng) + "set x" + end(rng) + body + begin(rng) + "endset" + end(rng)
    return (begin(rng) + f"macro f{depth}(a, b='q')" + end(rng) + "{{ a }}" + space(rng) + "{{ b }}" + begin(rng) + "endmacro" + end(rng) +
            "{{ f" + f"{depth}({text_expression(rng, 1)}, b={text_expression(rng, 0)})" + " }}")


def statements(rng, depth):
    return "".join(statement(rng, depth) for _ in range(rng.randrange(1, 4)))


def random_template(rng):
    return ("{% set ns = namespace(y='') %}" + space(rng) + "{% for m in messages %}" + statements(rng, 2) + "{{ ns.y }}" + begin(rng) + "endfor" + end(rng) +
            space(rng))


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def render(self, template, messages, tokens, asks):
        json.dump({"template": template, "messages": messages, "tokens": tokens, "add_generation_prompt": asks}, self.process.stdin)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def theirs(template, messages, tokens, asks):
    import transformers.utils.chat_template_utils as utils
    compiled = utils._compile_jinja_template(template)
    return compiled.render(messages=messages, tools=None, documents=None, add_generation_prompt=asks, **tokens)


def compare(program, template, messages, tokens, asks, counts):
    """Counts a case: the same, refused by ours as unsupported, an error of both, or different."""
    try:
        wanted = theirs(template, messages, tokens, asks)
    except Exception as error:  # whatever Jinja or Python raises
        wanted = error
    found = program.render(template, messages, tokens, asks)
    if isinstance(wanted, Exception):
        kind = "both fail" if "error" in found else "ours renders"
    elif "error" in found:
        kind = "refused" if found["unsupported"] else "ours fails"
    else:
        kind = "same" if found["text"] == wanted else "different"
    counts[kind] = counts.get(kind, 0) + 1
    if kind in ("different", "ours fails") and counts[kind] <= 3:
        print(f"{kind}: {template!r}\n  {json.dumps(messages)}\n  theirs {wanted!r}\n  ours   {found.get('text', found.get('error'))!r}")
    if kind in ("refused", "ours renders") and counts[kind] <= 2:
        print(f"{kind}: {template!r}\n  {found.get('error')} {wanted!r:.200}")
    return kind in ("different", "ours fails")


def compare_all(arguments):
    program, rng, wrong = Ours(arguments.program), random.Random(arguments.seed), 0
    known = {name: (template, {"bos_token": "<s>", "eos_token": "</s>"}, True) for name, (template, _) in chat_template_texts.TEMPLATES.items()
             if name != "llama3.1/llama3.2"}  # its date is that of the day
    known |= {name: family[:2] + (family[3],) for name, family in chat_family_texts.FAMILIES.items()}
    for name, (template, tokens, system) in known.items():
        counts = {}
        for _ in range(arguments.count // 20):
            wrong += compare(program, template, conversation(rng, system), tokens, rng.random() < 0.5, counts)
        print(f"{name}: {counts}")
    counts = {}
    for _ in range(arguments.count):
        wrong += compare(program, random_template(rng), conversation(rng), {"bos_token": "<s>"}, rng.random() < 0.5, counts)
    print(f"random templates: {counts}")
    return 1 if wrong else 0


def replies(name, messages, tokens):
    """The text with a loss, as Python finds it: from where the beginning with the generation prompt ends (or parts from the whole) to
    the token that ends the turn."""
    template, _, _, _, end_of_turn = chat_family_texts.FAMILIES[name]
    whole, found = theirs(template, messages, tokens, False), []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = theirs(template, messages[:number], tokens, True)
        while not whole.startswith(asked):
            asked = asked[:-1]
        asked = asked[:asked.rindex(">") + 1] if name == "deepseek-r1" else asked
        said = message["content"].split("</think>")[-1].strip()
        at = whole.index(said, len(asked))
        found.append(whole[len(asked):whole.index(end_of_turn, at + len(said)) + len(end_of_turn)])
    return found


def plain_conversation(rng, system):
    """A conversation without special tokens and without replies that are equal, so that Python finds what is said."""
    messages = conversation(rng, system, open_ended=False)
    for number, message in enumerate(messages):
        for token in ("<|user|>", "<|im_end|>", "</s>", "[INST]", "<think>", "</think>"):
            message["content"] = message["content"].replace(token, token.strip("<|>[]/"))
        message["content"] = (message["content"].strip("\x1c") + f" number {number}.").strip()
    return messages


def write_golden(path):
    rng, families, templates = random.Random(3), [], []
    for name, (template, tokens, special, system, _) in chat_family_texts.FAMILIES.items():
        cases = []
        for _ in range(3):
            messages = plain_conversation(rng, system)
            cases.append({"messages": messages, "text": theirs(template, messages, tokens, False),
                          "asked": theirs(template, messages, tokens, True), "learnt": "".join(replies(name, messages, tokens))})
        families.append({"name": name, "template": template, "tokens": tokens, "special": special, "cases": cases})
    while len(templates) < 120:
        template, messages = random_template(rng), conversation(rng)[:3]
        try:
            text = theirs(template, messages, {"bos_token": "<s>"}, True)
        except Exception:  # whatever Jinja or Python raises
            continue
        if len(template) + len(text) < 1500:
            templates.append({"template": template, "messages": messages, "text": text})
    with open(path, "w", encoding="ascii") as file:
        json.dump({"families": families, "templates": templates}, file, indent=0)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--golden")
    arguments = parser.parse_args()
    if arguments.golden:
        write_golden(arguments.golden)
        return 0
    return compare_all(arguments)


if __name__ == "__main__":
    sys.exit(main())
