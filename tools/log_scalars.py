"""Reads a run's log.jsonl as numbers by name, for the scripts that hand it to other tools."""

import json
import os

MOST = 1e100  # beyond it a number is damaged, and float() or a sum may fail


def flat(line, group=""):
    """The numbers of a line by names such as "lanes/compute"; what is not known or beyond MOST, texts and the step are left
    out."""
    found = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{group}{name}/"))
        elif isinstance(value, (bool, int, float)) and name != "step" and abs(value) <= MOST:
            found[group + name] = float(value)
    return found


def of_run(folder):
    """(step, numbers) of each line. The last line may still be in the making, and is then left out."""
    with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                line = json.loads(text)
                yield line["step"], flat(line)


def settings_of(folder):
    with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
        return json.load(file)["settings"]
