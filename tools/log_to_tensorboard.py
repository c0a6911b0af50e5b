#!/usr/bin/env python3
"""Writes the logs of runs as TensorBoard events, which `tensorboard --logdir OUT` shows.

usage: log_to_tensorboard.py OUT RUN...

Needs the Python package tensorboardX, or torch with tensorboard.
"""

import os
import sys

import log_scalars


def writer_class():
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            sys.exit("log_to_tensorboard.py: needs the package tensorboardX, or torch with tensorboard")
    return SummaryWriter


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, runs = sys.argv[1], sys.argv[2:]
    open_writer = writer_class()
    for run in runs:
        name = os.path.basename(os.path.abspath(run))
        with open_writer(os.path.join(out, name)) as writer:
            for step, numbers in log_scalars.of_run(run):
                for number, value in numbers.items():
                    writer.add_scalar(number, value, step)


if __name__ == "__main__":
    main()
