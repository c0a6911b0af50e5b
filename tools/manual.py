#!/usr/bin/env python3
"""Writes the man page and the bash completions from what the program's --help says, which its tables of flags make.

usage: manual.py PROGRAM MAN_PAGE COMPLETIONS
"""

import re
import subprocess
import sys
from dataclasses import dataclass

TEXT_COLUMN = 34  # where --help explains a flag


@dataclass
class Command:
    name: str  # "train", or "bench io"
    usage: str
    summary: str
    flags: list  # (head, text), such as ("--steps N", "optimizer steps (default: 1000)")
    more: list  # lines below the flags


def help_of(program, *words):
    done = subprocess.run([program, *words, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


EXITS = "exit status:"


def listed(lines):
    """The names and what stands beside them, of a help that lists commands."""
    end = lines.index(EXITS) if EXITS in lines else len(lines)
    return [tuple(line.split(maxsplit=1)) for line in lines[:end] if line.startswith("  ")]


def flags_of(lines):
    """What is too wide for its column stands on a line of its own."""
    flags, head = [], None
    for line in lines:
        if line.startswith(" " * TEXT_COLUMN):
            flags.append((head, line.strip()))
        elif len(line) > TEXT_COLUMN and line[TEXT_COLUMN - 2:TEXT_COLUMN] == "  ":
            flags.append((line[:TEXT_COLUMN].strip(), line[TEXT_COLUMN:].strip()))
        else:
            head = line.strip()
    return flags


def read_command(program, name):
    usage, _, summary, _, *rest = help_of(program, *name.split())
    rest = rest[:rest.index(EXITS)] if EXITS in rest else rest
    end = rest.index("") if "" in rest else len(rest)
    return Command(name, usage.partition(": ")[2], summary, flags_of(rest[:end]), rest[end + 1:])


def commands_of(program):
    names = [name for name, _ in listed(help_of(program)) if name not in ("help", "version", "bench")]
    names += [f"bench {name}" for name, _ in listed(help_of(program, "bench"))]
    return [read_command(program, name) for name in names]


# --- The man page ----------------------------------------------------------------------------------------------------


def roff(text):
    """Text as troff takes it: no line that begins as a request, and every hyphen one that can be searched for."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def man_page(version, what, commands, exits):
    lines = [f'.TH SPILLWAY 1 "" "{roff(version)}"', ".SH NAME", f"spillway \\- {roff(what)}", ".SH SYNOPSIS",
             ".B spillway", "COMMAND [arguments]", ".SH COMMANDS"]
    for command in commands:
        lines += [f".SS {roff(command.name)}", roff(command.summary), ".PP", f".B {roff(command.usage)}"]
        for head, text in command.flags:
            lines += [".TP", f".B {roff(head)}", roff(text)]
        if command.more:
            lines += [".PP", ".nf", *map(roff, command.more), ".fi"]
    lines.append(".SH EXIT STATUS")
    for status, text in exits:
        lines += [".TP", f".B {status}", roff(text)]
    return "\n".join(lines) + "\n"


# --- Completions -----------------------------------------------------------------------------------------------------


def choices_of(command):
    """(flag, words) of flags with a fixed set of values, and the presets of --model."""
    for head, _ in command.flags:
        flag, _, value = head.partition(" ")
        if re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", value):
            yield flag, value.replace("|", " ")
    if command.more[:1] == ["presets:"]:
        yield "--model", " ".join(line.split()[0] for line in command.more[1:] if line.strip())


def completions(commands):
    top = dict.fromkeys([command.name.split()[0] for command in commands] + ["help", "version"])
    benches = [command.name.split()[1] for command in commands if " " in command.name]
    values, flags = [], []
    for command in commands:
        values += [f'        "{command.name} {flag}") words="{words}" ;;' for flag, words in choices_of(command)]
        named = " ".join(head.split()[0].removesuffix("...") for head, _ in command.flags if head.startswith("--"))
        flags.append(f'            "{command.name}") words="{named}" ;;')
    return "\n".join([
        "# bash completions of spillway, made from its --help.",
        "_spillway() {",
        '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} name=${COMP_WORDS[1]} words=""',
        '    [[ $name == bench && $COMP_CWORD -gt 2 ]] && name="bench ${COMP_WORDS[2]}"',
        '    case "$name $before" in',
        f'        *" spillway" | *"/spillway") words="{" ".join(top)}" ;;',
        f'        "bench bench") words="{" ".join(benches)}" ;;',
        f'        "help help") words="{" ".join(top)}" ;;',
        *values,
        '        *) [[ $word == -* ]] && case "$name" in',
        *flags,
        "        esac ;;",
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o bashdefault -o default -F _spillway spillway",
        ""])


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    program, page, bash = sys.argv[1:]
    overview = help_of(program)
    version, _, what = overview[0].partition(": ")
    commands = commands_of(program)
    exits = [tuple(line.split(maxsplit=1)) for line in overview[overview.index(EXITS) + 1:]]
    write(page, man_page(version, what, commands, exits))
    write(bash, completions(commands))


if __name__ == "__main__":
    main()
