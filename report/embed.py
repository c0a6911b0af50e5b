"""Puts style and script into the page, and makes C arrays of what stands before and after the runs' data.

usage: embed.py PAGE.html STYLE.css SCRIPT.js OUT.c
"""

import re
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def array(name, text):
    data = text.encode()
    lines = [",".join(map(str, data[at:at + 30])) + "," for at in range(0, len(data), 30)]
    return "\n".join([f"const char {name}[] = {{", *lines, "};", f"const size_t {name}_bytes = sizeof {name};", ""])


def rules(declarations):
    """Rules for classes of the colors of a :root: a line's is its stroke."""
    colors = re.findall(r"--(back|ink|quiet|line|w[0-9]+): (#[0-9a-f]+);", declarations)
    return "".join(f".{name}{{{'stroke' if name == 'line' else 'fill'}:{color}}}" for name, color in colors)


def class_colors(style):
    light, dark = re.findall(r":root {([^}]*)}", style)
    return f"{rules(light)}@media (prefers-color-scheme: dark){{{rules(dark)}}}"


def main():
    page, style, script, out = sys.argv[1:]
    text = read(page).replace("@STYLE@", read(style)).replace("@SCRIPT@", read(script))
    before, after = text.split("@DATA@")
    if not text.isascii():
        sys.exit("the page must be ASCII, so that it reads alike in every encoding")
    with open(out, "w", encoding="ascii") as file:
        file.write('#include "report/report.h"\n' + array("sw_page_before", before) + array("sw_page_after", after) +
                   array("sw_page_colors", class_colors(read(style))))


if __name__ == "__main__":
    main()
