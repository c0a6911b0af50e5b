"""Makes a C table of described machines: each file's name, its "about" and its text.

usage: embed_machines.py MACHINE.json... OUT.c
"""

import json
import os
import sys

HEAD = '#include "job/machine/shipped_machines.h"\n'


def literal(text):
    """A C literal of several lines; the compiler joins them."""
    return "\n".join(json.dumps(line) for line in text.splitlines(keepends=True))


def main():
    *paths, out = sys.argv[1:]
    rows = []
    for path in sorted(paths, key=os.path.basename):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if not text.isascii():
            sys.exit(f"{path} must be ASCII, so that it is the same text in C")
        name = os.path.basename(path).removesuffix(".json")
        rows.append(f"{{{literal(name)}, {literal(json.loads(text)['about'])},\n{literal(text)}}},")
    with open(out, "w", encoding="ascii") as file:
        file.write("\n".join([HEAD, "const struct sw_shipped_machine sw_shipped_machines[] = {", *rows, "{0}};", ""]))


if __name__ == "__main__":
    main()
