"""Asks the program `spillway`: plans of a model on a machine, the logs of its runs, and the tensors of runs and stores."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from spillway._program import ProgramError, program

if TYPE_CHECKING:
    import numpy

# Parts of the state as the program calls them, and as torch.optim.AdamW does.
_PARTS = {"master": "master", "m": "m", "v": "v", "exp_avg": "m", "exp_avg_sq": "v"}


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


class State(Mapping[str, "numpy.ndarray[Any, Any]"]):
    """The tensors of one commit by name, each read when it is asked for: `state[name]` is its fp32 master weights."""

    def __init__(self, folder: str, step: int, shapes: dict[str, tuple[int, ...]], words: list[str]) -> None:
        self.folder, self.step, self.shapes, self._flags = folder, step, shapes, words

    def __repr__(self) -> str:
        return f"<State of {self.folder} at step {self.step}, {len(self.shapes)} tensors>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        return self.read(name)

    def read(self, name: str, part: str = "master") -> numpy.ndarray[Any, Any]:
        """Returns a part of a tensor in fp32: "master", "m" or "v" ("exp_avg" and "exp_avg_sq" are these two). Raises ProgramError
        if the folder has gone on to another step: read_run opens that one."""
        import numpy

        if name not in self.shapes:
            raise KeyError(name)
        if part not in _PARTS:
            raise ValueError(f"{part!r} is not a part of the state: take one of {', '.join(_PARTS)}")
        found = numpy.empty(self.shapes[name], "<f4")
        words = ["tensors", self.folder, "--name", name, "--part", _PARTS[part], "--step", str(self.step), "--to", "-", *self._flags]
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
                [program(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as asked:
            assert asked.stdout is not None
            whole = _fill(found, asked.stdout)
            asked.stdout.close()
            if asked.wait() != 0 or not whole:
                errors.seek(0)
                raise ProgramError(errors.read().decode("utf-8", "replace").strip() or f"'{name}' came incomplete")
        return found


def _fill(array: numpy.ndarray[Any, Any], file: IO[bytes]) -> bool:
    """Reads a file of numpy's format, of the array's shape and type, into it. Returns whether it was whole."""
    from numpy.lib import format as numpy_format

    try:
        if numpy_format.read_magic(file) != (1, 0) or numpy_format.read_array_header_1_0(file) != (array.shape, False, array.dtype):
            return False
    except ValueError:  # the program has written nothing, and says why
        return False
    view, at = array.reshape(-1).data.cast("B"), 0
    while at < len(view):
        count = file.readinto(view[at:])  # type: ignore[attr-defined]
        if not count:
            return False
        at += count
    return True


def read_run(folder: str | os.PathLike[str], **flags: Any) -> State:
    """Returns the tensors of the last commit of a run, or of a store of the library, by name. Nothing is locked or written, so
    somebody may train on.

    Args:
        folder: of a run, or of a store such as that of `spillway.AdamW`.
        flags: as of `spillway tensors`: `nvme="DIR"`, `model="DIR"`.
    """
    path, words = os.fspath(folder), _words(flags)
    answer = _ask(["tensors", path, *words])
    return State(path, answer["step"], {entry["name"]: tuple(entry["shape"]) for entry in answer["tensors"]}, words)
