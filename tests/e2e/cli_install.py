"""meson install: the program, its man page, completions, tools, documentation and machines; and what they say."""

import os
import re
import subprocess

import program
from program import script_test

BUILD = os.path.dirname(program.PROGRAM)
WANTED = ("bin/spillway", "share/man/man1/spillway.1", "share/bash-completion/completions/spillway",
          "share/doc/spillway/README.md", "share/doc/spillway/LICENSE", "share/doc/spillway/docs/guide/fine-tune.md",
          "share/spillway/machines/h100.json")
COMPLETE = """source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _spillway; echo "${COMPREPLY[*]}\""""


def what_is_installed():
    where = program.scratch_folder()
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", where], check=True, capture_output=True)
    found = program.tree(where).keys()
    return [f"{name} is not there" for name in WANTED if not any(path.endswith("/" + name) for path in found)]


def the_man_page_has_every_flag():
    with open(os.path.join(BUILD, "tools", "spillway.1"), encoding="utf-8") as file:
        page = file.read().replace("\\-", "-")
    problems = []
    for command in ("train", "resume", "doctor", "bench io"):
        section = page.partition(f"\n.SS {command}\n")[2].partition("\n.SS ")[0]
        said = re.sub(r"\n {28}", " ", program.run(*command.split(), "--help").out)
        flags = re.findall(r"^  (--[a-z0-9-]+)(?: \S+)* +(\S[^\n]*)$", said, re.MULTILINE)
        for flag, text in flags:
            if not re.search(rf"^\.B {flag}\b", section, re.MULTILINE) or " ".join(text.split()) not in section:
                problems.append(f"the page of {command} lacks {flag}, {text!r}")
        if len(flags) != len(re.findall(r"^  --", said, re.MULTILINE)) or "spillway " + command not in section:
            problems.append(f"the page of {command}: {len(flags)} flags")
    return problems if "gpt2-124m" in page else problems + ["the page lists no presets"]


def completions():
    table = [("tr", "train"), ("help ev", "eval"), ("train --sch", "--schedule --schedule-steps"),
             ("train --schedule w", "wsd"), ("plan --model llama-8", "llama-8b"), ("plan --machine rtx4", "rtx4090"), ("bench ge", "gemm"),
             ("bench io --thor", "--thorough"), ("eval ", "")]
    problems = []
    for typed, expected in table:
        done = subprocess.run(["bash", "-c", COMPLETE, "bash", os.path.join(BUILD, "tools", "spillway"), "spillway",
                               *typed.split(" ")], capture_output=True, text=True, check=False)
        if done.stdout.strip() != expected or done.stderr:
            problems.append(f"'{typed}' gets {done.stdout.strip()!r}, {done.stderr}")
    return problems


script_test.run(what_is_installed, the_man_page_has_every_flag, completions)
