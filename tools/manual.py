#!/usr/bin/env python3
"""Writes the man page and the bash completions from what the program's --help says, which its tables of flags make.

usage: manual.py PROGRAM MAN_PAGE COMPLETIONS
"""

import re
import subprocess
import sys
from dataclasses import dataclass

TEXT_COLUMN = 28  # where --help explains a flag
EXITS, EXAMPLES, PRESETS, MACHINES = "Exit status", "Examples", "Presets", "Machines"


@dataclass
class Command:
    name: str  # "train", or "bench io"
    usage: str
    summary: str
    groups: dict  # heading: flags under it, such as ("--steps N", "optimizer steps of the run (default: 1000)")
    more: dict  # heading: lines, of what stands below the flags

    def flags(self):
        return [flag for flags in self.groups.values() for flag in flags]


def help_of(program, *words):
    done = subprocess.run([program, *words, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def sections_of(lines):
    """The paragraphs of a help by their headings, lines that end in a colon; "" has what stands above the first."""
    sections, heading = {"": []}, ""
    for line in lines:
        if line.endswith(":") and not line.startswith(" "):
            heading = line[:-1]
            sections[heading] = []
        elif line:
            sections[heading].append(line)
    return sections


def listed(lines):
    """The names and what stands beside them, of a help that lists commands."""
    return [tuple(line.split(maxsplit=1)) for line in lines]


def flags_of(lines):
    """(head, text) of each flag. A head that is too wide for its column stands on a line of its own."""
    flags = []
    for line in lines:
        if not line.startswith(" " * TEXT_COLUMN):
            wide = len(line) < TEXT_COLUMN or line[TEXT_COLUMN - 2:TEXT_COLUMN] != "  "
            flags.append((line.strip(), "") if wide else (line[:TEXT_COLUMN].strip(), line[TEXT_COLUMN:].strip()))
        else:
            flags[-1] = (flags[-1][0], f"{flags[-1][1]} {line.strip()}".strip())
    return flags


def read_command(program, name):
    lines = help_of(program, *name.split())
    gap = lines.index("")
    usage = " ".join(line.strip() for line in lines[:gap]).partition(": ")[2]
    sections = sections_of(lines[gap + 1:])
    summary = " ".join(sections.pop(""))
    sections.pop(EXITS, None)
    more = {heading: sections.pop(heading) for heading in (PRESETS, MACHINES, EXAMPLES) if heading in sections}
    return Command(name, usage, summary, {heading: flags_of(text) for heading, text in sections.items()}, more)


def commands_of(program):
    names = [name for name, _ in listed(sections_of(help_of(program))["Commands"])
             if name not in ("help", "version", "bench")]
    names += [f"bench {name}" for name, _ in listed(line for line in help_of(program, "bench") if line.startswith("  "))]
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
        for heading, flags in command.groups.items():
            lines += [".PP", f".I {roff(heading)}"]
            for head, text in flags:
                lines += [".TP", f".B {roff(head)}", roff(text)]
        for heading, texts in command.more.items():
            lines += [".PP", f".I {roff(heading)}", ".nf", *map(roff, texts), ".fi"]
    lines.append(".SH EXIT STATUS")
    for status, text in exits:
        lines += [".TP", f".B {status}", roff(text)]
    return "\n".join(lines) + "\n"


# --- Completions -----------------------------------------------------------------------------------------------------


def names_of(lines):
    """The first words of a list's lines, except of those that go on with the line above."""
    return " ".join(line.split()[0] for line in lines if not line.startswith("   "))


def choices_of(command):
    """(flag, words) of flags with a fixed set of values, and the names of --model and --machine."""
    for head, _ in command.flags():
        flag, _, value = head.partition(" ")
        if re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", value):
            yield flag, value.replace("|", " ")
    if PRESETS in command.more:
        yield "--model", names_of(command.more[PRESETS])
    if MACHINES in command.more:
        yield "--machine", names_of(command.more[MACHINES])


def completions(commands):
    top = dict.fromkeys([command.name.split()[0] for command in commands] + ["help", "version"])
    benches = [command.name.split()[1] for command in commands if " " in command.name]
    values, flags = [], []
    for command in commands:
        values += [f'        "{command.name} {flag}") words="{words}" ;;' for flag, words in choices_of(command)]
        named = " ".join(head.split()[0].removesuffix("...") for head, _ in command.flags() if head.startswith("--"))
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
    exits = listed(sections_of(overview)[EXITS])
    write(page, man_page(version, what, commands, exits))
    write(bash, completions(commands))


if __name__ == "__main__":
    main()
