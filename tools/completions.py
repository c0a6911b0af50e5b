#!/usr/bin/env python3
"""Writes the completions for bash, zsh and fish from what the program's --help says.

usage: completions.py PROGRAM BASH ZSH FISH
"""

import re
import sys

import command_help
from command_help import MACHINES, PRESETS


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


def flags_of(command):
    """(flag, whether it takes a value, explanation) of each flag."""
    for head, text in command.flags():
        if head.startswith("--"):
            flag, _, value = head.partition(" ")
            yield flag.removesuffix("..."), bool(value), text


def top_words(commands):
    """The words that may stand behind the program's name, with its explanation."""
    words = {command.name.split()[0]: command.summary for command in commands if " " not in command.name}
    return words | {"bench": "Measures this machine, beside its own limits.", "help": "Explains a command.",
                    "version": "Prints the version of this program."}


def benches_of(commands):
    return {command.name.split()[1]: command.summary for command in commands if " " in command.name}


def bash(commands):
    top, benches = " ".join(top_words(commands)), " ".join(benches_of(commands))
    values, flags = [], []
    for command in commands:
        values += [f'        "{command.name} {flag}") words="{words}" ;;' for flag, words in choices_of(command)]
        flags.append(f'            "{command.name}") words="{" ".join(flag for flag, _, _ in flags_of(command))}" ;;')
    return "\n".join([
        "# bash completions of spillway, made from its --help.",
        "_spillway() {",
        '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} name=${COMP_WORDS[1]} words=""',
        '    [[ $name == bench && $COMP_CWORD -gt 2 ]] && name="bench ${COMP_WORDS[2]}"',
        '    case "$name $before" in',
        f'        *" spillway" | *"/spillway") words="{top}" ;;',
        f'        "bench bench") words="{benches}" ;;',
        f'        "help help") words="{top}" ;;',
        *values,
        '        *) [[ $word == -* ]] && case "$name" in',
        *flags,
        "        esac ;;",
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o bashdefault -o default -F _spillway spillway",
        ""])


def first_sentence(text):
    """A short explanation for a menu."""
    return re.split(r"[;:.(] |[;:.(]$| \(", text, maxsplit=1)[0].rstrip(".;:")


def zsh_quoted(text):
    """Text inside the single quotes and colons of zsh's _arguments and _describe."""
    return re.sub(r"([\\:\[\]])", r"\\\1", text).replace("'", "'\\''")


def zsh_arguments(command):
    choices = dict(choices_of(command))
    specs = []
    for flag, takes, text in flags_of(command):
        value = ""
        if takes:
            value = f":value:({choices[flag]})" if flag in choices else ":value:_files"
        specs.append(f"'*{flag}[{zsh_quoted(first_sentence(text))}]{value}'")
    return " ".join([*specs, "'*:argument:_files'"])


def zsh_menu(name, words):
    rows = " ".join(f"'{word}:{zsh_quoted(first_sentence(text))}'" for word, text in words.items())
    return [f"    local -a {name}", f"    {name}=({rows})"]


def zsh(commands):
    cases = [f'        "{command.name}") _arguments {zsh_arguments(command)} ;;' for command in commands]
    return "\n".join([
        "#compdef spillway",
        "# zsh completions of spillway, made from its --help.",
        "_spillway() {",
        *zsh_menu("commands", top_words(commands)),
        *zsh_menu("benches", benches_of(commands)),
        "    if ((CURRENT == 2)) || [[ $words[2] == help ]]; then _describe command commands; return; fi",
        "    if [[ $words[2] == bench ]] && ((CURRENT == 3)); then _describe bench benches; return; fi",
        "    local name=$words[2]",
        "    shift words; ((CURRENT--))",
        '    if [[ $name == bench ]]; then name="bench $words[2]"; shift words; ((CURRENT--)); fi',
        "    case $name in",
        *cases,
        "    esac",
        "}",
        '_spillway "$@"',
        ""])


def fish_quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_menu(condition, words):
    return [f"complete -c spillway -n '{condition}' -f -a {word} -d {fish_quoted(first_sentence(text))}"
            for word, text in words.items()]


def fish(commands):
    lines = ["# fish completions of spillway, made from its --help.",
             *fish_menu("__fish_use_subcommand", top_words(commands))]
    benches = benches_of(commands)
    lines += fish_menu(f"__fish_seen_subcommand_from bench; and not __fish_seen_subcommand_from {' '.join(benches)}", benches)
    for command in commands:
        words = command.name.split()
        condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words)
        # A bench has flags of its own, which a command's flags must not join.
        condition += "; and not __fish_seen_subcommand_from bench" if len(words) == 1 else ""
        choices = dict(choices_of(command))
        for flag, takes, text in flags_of(command):
            value = ""
            if takes:
                value = f" -x -a {fish_quoted(choices[flag])}" if flag in choices else " -r"
            lines.append(f"complete -c spillway -n '{condition}' -l {flag[2:]}{value} -d {fish_quoted(first_sentence(text))}")
    return "\n".join(lines) + "\n"


def main():
    program, *paths = sys.argv[1:]
    commands = command_help.commands_of(program)
    for path, make in zip(paths, (bash, zsh, fish), strict=True):
        with open(path, "w", encoding="utf-8") as file:
            file.write(make(commands))


if __name__ == "__main__":
    main()
