"""Asks the program `spillway`: plans of a model on a machine, and the logs of its runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from typing import Any

from spillway._program import ProgramError, program


def _words(flags: dict[str, Any]) -> list[str]:
    """Returns flags as the command line has them: batch_tokens=4096 is --batch-tokens 4096, True a flag without a value, and a list
    one flag for each entry. None leaves a flag out."""
    words = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        for entry in value if isinstance(value, (list, tuple)) else [value]:
            if entry is True:
                words.append(flag)
            elif entry is not None and entry is not False:
                words += [flag, os.fspath(entry) if isinstance(entry, os.PathLike) else str(entry)]
    return words


def _ask(words: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run([program(), *words, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProgramError(f"the program {program()} does not start: {error}") from error
    if done.returncode != 0:
        raise ProgramError(done.stderr.strip() or f"spillway {words[0]} ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def plan(model: Any, machine: str | os.PathLike[str] | None = None, **flags: Any) -> dict[str, Any]:
    """Returns what `spillway plan --json` says (docs/json.md lists the members).

    Args:
        model: a preset such as "llama-8b", a Hugging Face folder, or a model of transformers, of which the config is taken.
        machine: one of the described machines, such as "rtx4090", or the file of a description; None for this machine.
        flags: as of `spillway plan`, with underscores: `batch_tokens=4096`, `lora=16`, `seq=2048`.
    """
    flags = {"machine": machine, **flags}
    config = getattr(model, "config", None)
    if config is None and not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"a {type(model).__name__} is neither the name of a preset, nor a folder, nor a model with a config")
    if config is None:
        return _ask(["plan", "--model", os.fspath(model), *_words(flags)])
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config.to_dict(), file)
        return _ask(["plan", "--model", folder, *_words(flags)])


def read_log(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the lines of a run's log.jsonl, one a step or an evaluation (docs/json.md lists the members). A run that is
    being written to may be read: a line that is not whole yet is left out."""
    with open(os.path.join(os.fspath(run), "log.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def curves(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the numbers of a run's steps as numpy arrays of doubles, by name: `step`, `loss`, `grad_norm`, `lr` and so on, and
    for members of members names such as `lanes.compute`. What a line lacks is NaN. Lines of evaluations are in those that begin
    with `val_`, beside `val_step`."""
    import numpy

    lines = read_log(run)
    steps = [_numbers(line) for line in lines if "loss" in line]
    evaluations = [_numbers(line) for line in lines if "val_loss" in line]
    made = {name: numpy.array([line.get(name, math.nan) for line in steps]) for name in _names(steps)}
    for name in _names(evaluations):
        key = name if name.startswith("val_") else f"val_{name}"
        made[key] = numpy.array([line.get(name, math.nan) for line in evaluations])
    return made


def _names(lines: list[dict[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line))


def _numbers(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            numbers.update(_numbers(value, f"{prefix}{name}."))
        elif value is None or isinstance(value, (int, float)):
            numbers[prefix + name] = math.nan if value is None else float(value)
    return numbers
