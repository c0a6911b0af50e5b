"""Jobs whose ranks exchange the memory of GPUs: emulated ones, joined by an emulated NCCL."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "core"))
from jobs import PROGRAM, SEED, passed, script_test  # noqa: E402


def collectives_of_gpus_give_the_host_s_bits():
    if not PROGRAM:
        raise script_test.Skip("no GPU")
    return [problem for ranks in (2, 3, 4) for problem in passed(ranks, SEED + ranks, 60)]


script_test.run(collectives_of_gpus_give_the_host_s_bits)
