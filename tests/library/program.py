"""spillway.plan beside the program's own answer, its refusals as exceptions, and the log of a run as arrays."""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), os.path.join(ROOT, "python")]
PROGRAM = os.environ["SPILLWAY_PROGRAM"] = os.path.abspath(sys.argv[1])
import script_test  # noqa: E402
import spillway  # noqa: E402

FIELDS = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 256, "n_positions": 64}


class Model:
    """As a model of transformers has its config."""

    class config:
        @staticmethod
        def to_dict():
            return FIELDS


def a_plan_is_that_of_the_program():
    done = subprocess.run([PROGRAM, "plan", "--model", "llama-8b", "--machine", "rtx4090", "--lora", "16", "--seq", "2048",
                           "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    problems = [] if spillway.plan("llama-8b", "rtx4090", lora=16, seq=2048, json=None) == answer else ["the answers differ"]
    small = spillway.plan(Model(), machine="rtx4090")
    return problems + ([] if small["parameters"] == 120576 else [f"a config's plan has {small['parameters']} parameters"])


def refusals_are_exceptions():
    raised, kind = script_test.raised, spillway.ProgramError
    problems = raised(kind, "neither a folder", spillway.plan, "llama-9b")
    problems += raised(kind, "--seq is '0'", spillway.plan, "llama-8b", "rtx4090", seq=0)
    problems += raised(TypeError, "a list is neither", spillway.plan, [])
    os.environ["SPILLWAY_PROGRAM"] = "/nowhere/spillway"
    problems += raised(kind, "/nowhere/spillway does not start", spillway.plan, "llama-8b")
    del os.environ["SPILLWAY_PROGRAM"]
    before, os.environ["PATH"] = os.environ["PATH"], "/nowhere"
    problems += raised(kind, "SPILLWAY_PROGRAM", spillway.plan, "llama-8b")
    os.environ["PATH"], os.environ["SPILLWAY_PROGRAM"] = before, PROGRAM
    return problems


def trained(folder):
    """The folder of a run with an evaluation, whose log ends in a line that is not whole."""
    data, run = os.path.join(folder, "data.txt"), os.path.join(folder, "run")
    with open(data, "w", encoding="utf-8") as file:
        file.write("to be or not to be, " * 200)
    subprocess.run([PROGRAM, "train", "--model", "gpt2-tiny", "--init", "--data", data, "--val", "20%", "--run", run, "--steps", "3",
                    "--batch-tokens", "64", "--seq", "32", "--eval-every", "3", "--allow-buffered", "--quiet"], check=True,
                   capture_output=True)
    with open(os.path.join(run, "log.jsonl"), "a", encoding="utf-8") as file:
        file.write('{"step": 4, "lo')
    return run


def a_log_is_read():
    with tempfile.TemporaryDirectory() as folder:
        run = trained(folder)
        lines = spillway.read_log(run)
        losses = [line["loss"] for line in lines if "loss" in line]
        problems = [] if len(losses) == 3 and lines[-1]["step"] == 3 else [f"the log has {len(losses)} losses"]
        try:
            import numpy
        except ImportError:
            return problems + script_test.raised(ImportError, "numpy", spillway.curves, run)
        curves = spillway.curves(run)
        right = (curves["step"].tolist() == [1, 2, 3] and curves["loss"].tolist() == losses and curves["val_step"].tolist() == [3] and
                 curves["lanes.compute"].dtype == numpy.float64 and numpy.isnan(curves["mfu"]).all())
    return problems + ([] if right else [f"the curves are {curves}"])


script_test.run(a_plan_is_that_of_the_program, refusals_are_exceptions, a_log_is_read)
