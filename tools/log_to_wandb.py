#!/usr/bin/env python3
"""Uploads the logs of runs, and their settings, to Weights & Biases.

usage: log_to_wandb.py PROJECT RUN...

Needs the Python package wandb. WANDB_MODE=offline writes to a folder instead of the network.
"""

import os
import sys

import log_scalars


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    project, runs = sys.argv[1], sys.argv[2:]
    try:
        import wandb
    except ImportError:
        sys.exit("log_to_wandb.py: needs the package wandb")
    for folder in runs:
        name = os.path.basename(os.path.abspath(folder))
        with wandb.init(project=project, name=name, config=log_scalars.settings_of(folder)) as run:
            # An evaluation has the step of the line before it, which wandb takes as more of the same step.
            for step, numbers in log_scalars.of_run(folder):
                run.log(numbers, step=step)


if __name__ == "__main__":
    main()
