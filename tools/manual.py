#!/usr/bin/env python3
"""Writes the man pages, spillway.1 and one for each command, from what the program's --help says.

usage: manual.py PROGRAM PAGE...   fails where a command lacks its page, or a page its command
"""

import os
import sys

import command_help

FILES = (
    ("RUN/run.json", "the settings of a run and where its store is"),
    ("RUN/log.jsonl", "one line a step, an evaluation or a sample; docs/json.md lists the fields"),
    ("RUN/tokenizer.json, RUN/config.json and others",
     "copies of the model's tokenizer, chat template and configuration, by which the run goes on and is exported"),
    ("RUN/recipe.yaml", "the flags that repeat the run: spillway train --recipe RUN/recipe.yaml --run NEW"),
    ("RUN/store.spillway", "the training state on NVMe, which is the checkpoint; elsewhere with --nvme"),
    ("RUN/exports/step-N", "weights as Hugging Face folders, by --export-every and --early-stop"),
    ("~/.cache/spillway", "tokens of text that was trained on, and the rates of this machine; safe to remove"),
    ("PREFIX/share/spillway/machines", "descriptions of machines for --machine"),
)
ENVIRONMENT = (
    ("XDG_CACHE_HOME", "folder of the cache instead of ~/.cache"),
    ("TMPDIR", "folder for temporary files instead of /tmp; the cache goes there where the home folder cannot be written"),
    ("NO_COLOR, TERM", "colours and lines that change in place are left out where NO_COLOR is set or TERM is dumb"),
    ("OMP_WAIT_POLICY, GOMP_SPINCOUNT", "how threads wait for each other; unless one is set, they sleep, so that other "
                                        "programs keep their cores"),
    ("SW_CPU_ISA", "the instruction set of the processor that arithmetic uses: baseline, avx2, avx512 or avx512_bf16, at "
                   "most the best that the processor has"),
    ("CUDA_VISIBLE_DEVICES", "the GPUs that may be used, as for every CUDA program"),
    ("CUDA_HOME, CUDA_PATH, VIRTUAL_ENV, CONDA_PREFIX, LD_LIBRARY_PATH", "where NCCL and MPI are looked for besides the "
                                                                         "system's folders"),
    ("OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_STEP_NUM_TASKS", "set by mpirun and srun: the program is one of several ranks"),
)


def roff(text):
    """Text as troff takes it: no line that begins as a request, and every hyphen one that can be searched for."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def page_name(command):
    return f"spillway-{command.name.replace(' ', '-')}"


def header(name, version, what):
    return [f'.TH {name.upper()} 1 "" "{roff(version)}"', ".SH NAME", f"{roff(name)} \\- {roff(what)}", ".SH SYNOPSIS"]


def definitions(pairs):
    return [line for head, text in pairs for line in (".TP", f".B {roff(head)}", roff(text))]


def exit_status(exits):
    return [".SH EXIT STATUS", *definitions(exits)]


def command_page(version, command, exits):
    # The summary is a sentence, the line of NAME a phrase.
    what = command.summary.split(". ")[0].rstrip(".")
    lines = header(page_name(command), version, what[:1].lower() + what[1:])
    lines += [f".B {roff(command.usage)}", ".SH DESCRIPTION", roff(command.summary), ".SH OPTIONS"]
    for heading, flags in command.groups.items():
        lines += [f".SS {roff(heading)}", *definitions(flags)]
    for heading, texts in command.more.items():
        lines += [f".SH {roff(heading.upper())}", ".nf", *map(roff, texts), ".fi"]
    lines += exit_status(exits) + [".SH SEE ALSO", ".BR spillway (1)"]
    return "\n".join(lines) + "\n"


def overview_page(version, what, commands, exits):
    lines = header("spillway", version, what) + [".B spillway", "COMMAND [arguments]", ".SH COMMANDS"]
    for command in commands:
        lines += [".TP", f".BR {roff(page_name(command))} (1)", roff(command.summary)]
    lines += exit_status(exits) + [".SH FILES", *definitions(FILES), ".SH ENVIRONMENT", *definitions(ENVIRONMENT)]
    lines += [".SH SEE ALSO", ", ".join(f"{roff(page_name(command))}(1)" for command in commands)]
    return "\n".join(lines) + "\n"


def main():
    program, *paths = sys.argv[1:]
    version, _, what = command_help.help_of(program)[0].partition(": ")
    commands, exits = command_help.commands_of(program), command_help.exits_of(program)
    pages = {"spillway": overview_page(version, what, commands, exits)}
    pages |= {page_name(command): command_page(version, command, exits) for command in commands}
    wanted = {os.path.basename(path).removesuffix(".1"): path for path in paths}
    if wanted.keys() != pages.keys():
        sys.exit(f"manual.py: pages and commands differ: {sorted(wanted.keys() ^ pages.keys())}")
    for name, text in pages.items():
        with open(wanted[name], "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
