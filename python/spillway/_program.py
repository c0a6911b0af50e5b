"""Finds the program `spillway`, and becomes it: `python -m spillway` and the command that a wheel installs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import NoReturn

# The program of a wheel.
BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "spillway")
# Every script that an installer makes of main() has this line, and no program.
OWN_SCRIPT = b"from spillway._program import main"


class ProgramError(RuntimeError):
    """The program refused or failed; the text is its own."""


def _is_own_script(path: str) -> bool:
    with open(path, "rb") as file:
        return OWN_SCRIPT in file.read(4096)


def program() -> str:
    """Returns the path of the program: that in SPILLWAY_PROGRAM, else the wheel's, else the first on the PATH. A script that
    would start this package again is not the program."""
    named = os.environ.get("SPILLWAY_PROGRAM")
    if named:
        return named
    if os.path.exists(BUNDLED):
        return BUNDLED
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("spillway", path=folder or os.curdir)
        if found is not None and not _is_own_script(found):
            return found
    raise ProgramError("the program spillway is not found: install spillway's wheel, or build it by `./dev build` and name its file "
                       "in SPILLWAY_PROGRAM")


def main() -> NoReturn:
    """Replaces this process by the program, with the same arguments: signals and the exit status are the program's."""
    try:
        path = program()
        # Python ignores these two, and ignored signals stay ignored.
        for name in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(name, signal.SIG_DFL)
        os.execv(path, ["spillway", *sys.argv[1:]])
    except ProgramError as error:
        sys.exit(f"spillway: {error}")
    except OSError as error:
        sys.exit(f"spillway: the program {path} does not start: {error.strerror}")
