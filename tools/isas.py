"""The instruction sets that SW_CPU_ISA names, and the best of this machine, which the program finds in the same way
(core/machine.c). Read from /proc/cpuinfo, so that a test run refuses a wrong one before anything is built."""

import platform

VARIABLE = "SW_CPU_ISA"
# From the plainest to the best, with what each adds.
FLAGS = {"baseline": (), "avx2": ("avx2", "fma", "bmi1", "bmi2"),
         "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"), "avx512_bf16": ("avx512_bf16",)}
NAMES = list(FLAGS)


def processor_flags():
    if platform.machine() != "x86_64":
        return set()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((set(line.split()) for line in file if line.startswith("flags")), set())


def best(flags=None):
    """Returns the best instruction set that a processor with these flags has; by default, this machine's."""
    flags = processor_flags() if flags is None else flags
    last = NAMES[0]
    for name in NAMES:
        if not flags.issuperset(FLAGS[name]):
            break
        last = name
    return last


def why_not(name):
    """Returns why this machine cannot compute by an instruction set; None where it can."""
    if name not in NAMES:
        return f"there is no instruction set '{name}'; there are {', '.join(NAMES[:-1])} and {NAMES[-1]}"
    if NAMES.index(name) > NAMES.index(best()):
        return f"this processor has no {name}; its best is {best()}"
    return None
