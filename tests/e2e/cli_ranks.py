"""Several ranks of the program: refused as long as it cannot share the work, once, and before anything is written."""

import os
import shutil
import subprocess

from program import LIMIT_S, SEQ, SHAPE, command, scratch_folder, script_test, text, write

FOLDER = scratch_folder()


def several_ranks_are_refused_once():
    if shutil.which("mpirun") is None or os.environ.get("SW_HAVE_MPI") != "1":
        raise script_test.Skip("no MPI")
    data = write(os.path.join(FOLDER, "data.txt"), text(1, 40 * SEQ))
    run = os.path.join(FOLDER, "run")
    train = command("train", "--model", "gpt2-tiny", "--init", "--data", data, "--run", run, "--steps", 2, *SHAPE)
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", *train],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("spillway train: ")]
    right = done.returncode != 0 and len(said) == 1 and "3 ranks were started" in said[0] and not os.path.exists(run)
    return [] if right else [f"status {done.returncode}: {done.stdout} {done.stderr}"]


script_test.run(several_ranks_are_refused_once)
