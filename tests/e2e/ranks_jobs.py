"""Jobs of several ranks of the program."""

import os
import shutil

from program import SEQ, log_lines, script_test

# 24 sequences a step, for one to four ranks.
SHAPE = ("--seq", SEQ, "--micro-batch", 2, "--batch-tokens", 24 * SEQ, "--chunk-grains", 2, "--threads", 1,
         "--precision", "fp32")
TOLERANCE = 1e-6


def mpirun(*parts):
    """The command that starts one: parts are (ranks, command, folder to work in) each."""
    if shutil.which("mpirun") is None or os.environ.get("SW_HAVE_MPI") != "1":
        raise script_test.Skip("no MPI")
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    for number, (ranks, arguments, *where) in enumerate(parts):
        words += [":"] if number > 0 else []
        words += ["-n", str(ranks), *(["-wdir", where[0]] if where else []), *arguments]
    return words


def far(what, run, other, tolerance=TOLERANCE):
    """Where two runs' losses, of steps and of evaluations, differ by more than the order of additions explains."""
    problems = []
    for one, two in zip(log_lines(run), log_lines(other), strict=True):
        for name in ("loss", "grad_norm", "val_loss"):
            if name in one and abs(one[name] - two[name]) > tolerance * abs(two[name]):
                problems.append(f"{what}: step {one['step']}: {name} {one[name]!r} and not {two[name]!r}")
        if one.get("val_tokens") != two.get("val_tokens"):
            problems.append(f"{what}: evaluated {one.get('val_tokens')} tokens and not {two.get('val_tokens')}")
    return problems
