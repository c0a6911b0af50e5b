"""Jobs of several ranks of the program."""

import os
import shutil

from program import script_test


def mpirun(*parts):
    """The command that starts one: parts are (ranks, command, folder to work in) each."""
    if shutil.which("mpirun") is None or os.environ.get("SW_HAVE_MPI") != "1":
        raise script_test.Skip("no MPI")
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    for number, (ranks, arguments, *where) in enumerate(parts):
        words += [":"] if number > 0 else []
        words += ["-n", str(ranks), *(["-wdir", where[0]] if where else []), *arguments]
    return words
