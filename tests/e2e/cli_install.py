"""meson install: the program, its man pages, completions, tools, documentation and machines; and what they say."""

import os
import re
import shutil
import subprocess

import program
from program import script_test

BUILD = os.path.dirname(program.PROGRAM)
WANTED = ("bin/spillway", "share/man/man1/spillway.1", "share/man/man1/spillway-bench-io.1", "share/man/man3/libspillway.3",
          "share/bash-completion/completions/spillway", "share/zsh/site-functions/_spillway",
          "share/fish/vendor_completions.d/spillway.fish", "share/spillway/tools/log_to_tensorboard.py",
          "share/spillway/tools/log_to_wandb.py", "share/spillway/tools/log_scalars.py",
          "share/doc/spillway/README.md", "share/doc/spillway/LICENSE", "share/doc/spillway/docs/guide/fine-tune.md",
          "share/spillway/machines/h100.json")
COMPLETE = """source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _spillway; echo "${COMPREPLY[*]}\""""
PAGES = os.path.join(BUILD, "tools")


def page_of(name):
    with open(os.path.join(PAGES, name + ".1"), encoding="utf-8") as file:
        return file.read().replace("\\-", "-")


def what_is_installed():
    where = program.scratch_folder()
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", where], check=True, capture_output=True)
    found = program.tree(where).keys()
    return [f"{name} is not there" for name in WANTED if not any(path.endswith("/" + name) for path in found)]


def each_command_has_a_page_with_its_flags():
    problems = []
    for command in ("train", "resume", "doctor", "bench io"):
        page = page_of("spillway-" + command.replace(" ", "-"))
        said = re.sub(r"\n {28}", " ", program.run(*command.split(), "--help").out)
        flags = re.findall(r"^  (--[a-z0-9-]+)(?: \S+)* +(\S[^\n]*)$", said, re.MULTILINE)
        for flag, text in flags:
            if not re.search(rf"^\.B {flag}\b", page, re.MULTILINE) or " ".join(text.split()) not in page:
                problems.append(f"the page of {command} lacks {flag}, {text!r}")
        if len(flags) != len(re.findall(r"^  --", said, re.MULTILINE)) or "spillway " + command not in page:
            problems.append(f"the page of {command}: {len(flags)} flags")
    return problems if "gpt2-124m" in page_of("spillway-train") else problems + ["the page of train lists no presets"]


def the_overview_names_files_and_environment():
    page = page_of("spillway")
    wanted = (".SH FILES", "RUN/run.json", ".SH ENVIRONMENT", "XDG_CACHE_HOME", ".SH EXIT STATUS", "spillway-bench-gemm")
    return [f"spillway.1 lacks {text}" for text in wanted if text not in page]


def troff_takes_the_pages():
    if shutil.which("groff") is None:
        return []
    problems = []
    for name in sorted(os.listdir(PAGES)):
        if name.endswith((".1", ".3")):
            done = subprocess.run(["groff", "-man", "-ww", "-z", os.path.join(PAGES, name)], capture_output=True, text=True,
                                  check=False)
            if done.returncode != 0 or done.stderr:
                problems.append(f"{name}: {done.stderr[:300]}")
    return problems


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


def other_shells_take_their_completions():
    """Shells that are not here are left out; what each file must hold is looked at anyway."""
    problems = []
    for shell, name in (("zsh", "_spillway"), ("fish", "spillway.fish")):
        path = os.path.join(PAGES, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        problems += [f"{name} lacks {word}" for word in ("optimizer-state", "fp32 bf16 8bit", "gpt2-124m", "attention") if word not in text]
        if shutil.which(shell):
            done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
            if done.returncode != 0 or done.stderr:
                problems.append(f"{shell}: {done.stderr[:300]}")
    return problems


script_test.run(what_is_installed, each_command_has_a_page_with_its_flags, the_overview_names_files_and_environment,
                troff_takes_the_pages, completions, other_shells_take_their_completions)
