#!/usr/bin/env python3
"""Reads what the program's --help says of its commands and flags, which its tables make, for the man pages and completions."""

import subprocess
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


def exits_of(program):
    """(status, text) of each exit status."""
    return listed(sections_of(help_of(program))[EXITS])


def commands_of(program):
    names = [name for name, _ in listed(sections_of(help_of(program))["Commands"])
             if name not in ("help", "version", "bench")]
    names += [f"bench {name}" for name, _ in listed(line for line in help_of(program, "bench") if line.startswith("  "))]
    return [read_command(program, name) for name in names]
