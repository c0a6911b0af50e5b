"""Small runs of one text for several tests: each test that imports this has a scratch folder of its own."""

import os

import program

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(6, 40000))
STEPS, HALF = 12, 5
PLACES = {"device": "grads=device,optimizer=device", "host": "grads=host,optimizer=host",
          "nvme": "grads=nvme,optimizer=nvme"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, place, *more, model=("gpt2-tiny", "--init"), data=(DATA,), steps=STEPS, rate="2e-3", val="5%"):
    return ["train", "--model", *model, "--data", *data, "--run", run if place == "here" else path(run), "--steps",
            steps, "--schedule-steps", STEPS, "--val", val, "--lr", rate, *program.SHAPE, "--place",
            PLACES.get(place, "auto"), *more]


def exported(run, name, *more):
    program.must("export", path(run), path(name), *more)
    with open(path(name, "model.safetensors"), "rb") as file:
        return file.read()


def validation(run):
    """Returns the lines of the log with a validation loss, without the time of day and the time that the evaluation took,
    which differ between runs."""
    return [{name: value for name, value in line.items() if name not in ("time", "val_seconds")}
            for line in program.log_lines(path(run)) if "val_loss" in line]


def reference():
    """The run that the others are compared with, made once."""
    if not os.path.isdir(path("reference")):
        program.must(*train("reference", "nvme", "--eval-every", 5))
    return "reference"
