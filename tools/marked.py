"""Puts generated text into a document, between the marks that name the script which makes it."""

import sys


def put_between_marks(path, script, text):
    """Replaces what stands in the file between `<!-- SCRIPT: begin -->` and `<!-- SCRIPT: end -->`."""
    begin, end = f"<!-- {script}: begin -->", f"<!-- {script}: end -->"
    with open(path, encoding="utf-8") as file:
        before, found, rest = file.read().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{path} lacks the marks {begin} and {end}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n{text}{end}{after}")
