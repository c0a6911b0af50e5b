#!/usr/bin/env python3
"""Makes text/unicode_tables.c: general categories and some scripts of Unicode 16, which the package `tokenizers`
goes by (its Oniguruma), from the Python package unicodedataplus 16. Categories that Unicode 15 or 16 changed are marked
by comparing with Python's own unicodedata, which must be that of Unicode 14 (Python 3.11).

usage: unicode_tables.py
"""

import pathlib
import unicodedata

import unicodedataplus

ROOT = pathlib.Path(__file__).resolve().parent.parent
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()
SCRIPTS = ("Arabic Armenian Bengali Cyrillic Devanagari Georgian Greek Han Hangul Hebrew Hiragana Katakana Khmer Lao Latin "
           "Tamil Telugu Thai Tibetan").split()
CODES = range(0x110000)


def runs(value_of):
    """(first, value) of each run of code points with one value."""
    before = None
    for code in CODES:
        value = value_of(code)
        if value != before:
            yield code, value
            before = value


def category(code):
    """The number of the category, and since which version it is so: 0 for 14 and before, 1 for 15, 2 for 15.1 and 16."""
    name = unicodedataplus.category(chr(code))
    if name == unicodedata.category(chr(code)):
        return CATEGORIES.index(name), 0
    return CATEGORIES.index(name), 1 if float(unicodedataplus.age(chr(code))) == 15 else 2


def lines(items, per_line):
    items = list(items)
    for at in range(0, len(items), per_line):
        yield "    " + ", ".join(items[at:at + per_line]) + ","


def script_runs(name):
    found = [*runs(lambda code: unicodedataplus.script(chr(code)) == name), (len(CODES), False)]
    return [(first, found[i + 1][0] - 1) for i, (first, inside) in enumerate(found) if inside]


def main():
    assert unicodedata.unidata_version == "14.0.0" and unicodedataplus.unidata_version == "16.0.0"
    moved = [code for code in CODES if unicodedata.category(chr(code)) not in ("Cn", unicodedataplus.category(chr(code)))]
    assert moved == [0x1171E], moved  # SW_MOVED in unicode.h
    table = [f"0x{first << 7 | number << 2 | since:08x}" for first, (number, since) in runs(category)]
    categories = [f"const uint32_t sw_category_run[SW_CATEGORY_RUNS] = {{ /* {len(table)} runs */", *lines(table, 9), "};", ""]
    scripts = ["const struct sw_script sw_scripts[] = {"]
    for name in SCRIPTS:
        pairs = script_runs(name)
        scripts += [f'    {{"{name}", {len(pairs)}, (const struct sw_code_range[]){{',
                    *("    " + line for line in lines((f"{{0x{a:x}, 0x{b:x}}}" for a, b in pairs), 5)), "    }},"]
    write("unicode_tables.c", [*categories, *scripts, "    {0},", "};"])


def write(name, body):
    text = ["/* Made by tools/unicode_tables.py from the data of Unicode 16. */", '#include "text/unicode.h"', "",
            "/* clang-format off */", *body, ""]
    (ROOT / "text" / name).write_text("\n".join(text))
    print(f"text/{name}: {len(text)} lines")


if __name__ == "__main__":
    main()
