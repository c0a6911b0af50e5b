#!/usr/bin/env python3
"""Writes the man page libspillway.3 from the comments and declarations of spillway.h.

usage: library_manual.py HEADER PAGE   fails where a function lacks its comment
"""

import re
import sys

import manual

# troff's names for characters of the header that are not ASCII.
CHARACTERS = {"→": "\\(->", "·": "\\(pc"}
COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
FUNCTION = re.compile(r"^[a-z][\w ]*\**\b(spillway_\w+)\([^;{]*\);$", re.M | re.S)


def paragraphs_of(comment):
    """The paragraphs of a comment: lists of lines without the comment's margin."""
    lines = [re.sub(r"^ ?\*? ?", "", line).rstrip() for line in comment.strip("\n").split("\n")]
    return [block.split("\n") for block in re.split(r"\n\s*\n", "\n".join(lines).strip())]


def roff_of(lines):
    """A paragraph as troff; an indented one keeps its lines."""
    if all(line.startswith("  ") for line in lines):
        return [".PP", ".nf", *(manual.roff(line) for line in lines), ".fi"]
    return [".PP", manual.roff(" ".join(line.strip() for line in lines))]


def description(comment):
    """Paragraphs that begin with a word and a full stop become sections of that name."""
    out = []
    for lines in paragraphs_of(comment):
        named = re.match(r"([A-Z]\w+)\. (.*)", lines[0])
        if named is not None:
            out.append(f".SH {named[1].upper()}")
            lines = [named[2], *lines[1:]]
        out += roff_of(lines)
    return out


def declarations(code):
    """Pairs of a comment and the code after it, up to the next comment at the begin of a line."""
    parts = re.split(r"^(?=/\*)", code, flags=re.M)
    for part in parts:
        comment = COMMENT.match(part)
        if comment is not None:
            yield comment[1], part[comment.end():].strip()


def verbatim(code):
    return [".nf", *(manual.roff(line) for line in code.split("\n")), ".fi"]


def functions_and_types(pairs):
    """The sections of functions, of types and constants, and the names of the functions that have a comment."""
    functions, types, names = [], [], []
    for comment, code in pairs:
        found = FUNCTION.search(code)
        paragraphs = [line for lines in paragraphs_of(comment) for line in roff_of(lines)]
        if found is None:
            types += [*paragraphs, ".PP", *verbatim(re.sub(r"^#if.*|^#endif.*|^}$|^extern .*", "", code, flags=re.M).strip())]
            continue
        functions += [f".SS {manual.roff(found[1])}", *verbatim(code[:found.end()]), *paragraphs]
        names += [found[1]]
    return functions, types, names


def page(header):
    code = header.replace("\\\n", "\n")
    version = ".".join(re.findall(r"define SPILLWAY_VERSION_\w+ (\d+)", code))
    first = COMMENT.search(code)
    rest = code[code.index("#define SPILLWAY_VERSION_PATCH"):].split("\n", 1)[1]
    pairs = list(declarations(rest))
    functions, types, names = functions_and_types(pairs)
    declared = FUNCTION.findall(COMMENT.sub("", rest))
    if sorted(declared) != sorted(names):
        sys.exit(f"library_manual.py: functions without a comment of their own: {sorted(set(declared) ^ set(names))}")
    intro = first[1].strip()
    what = paragraphs_of(intro)[0]
    summary = " ".join(what).partition(": ")[2].split(",")[0]
    return "\n".join([f'.TH LIBSPILLWAY 3 "" "spillway {version}"', ".SH NAME", f"libspillway \\- {manual.roff(summary)}",
                      ".SH SYNOPSIS", ".nf", "#include <spillway.h>", ".PP", "cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs spillway)",
                      ".fi", ".SH DESCRIPTION", *description(intro), ".SH FUNCTIONS", *functions,
                      ".SH TYPES AND CONSTANTS", *types, ".SH SEE ALSO", ".BR spillway (1)"]) + "\n"


def main():
    header, path = sys.argv[1:]
    with open(header, encoding="utf-8") as file:
        text = page(file.read())
    for character, name in CHARACTERS.items():
        text = text.replace(character, name)
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


if __name__ == "__main__":
    main()
