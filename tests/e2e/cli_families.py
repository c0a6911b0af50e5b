"""Folders that transformers made, one of each family, through the program: trained, resumed, exported, written from."""

import os

import hf_folder
import program
from program import script_test

GOLDEN = os.path.join(os.path.dirname(program.HERE), "data")
SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(8, 20000))
FAMILIES = ("llama-a", "mistral-a", "qwen2-a", "qwen3-a", "phi3-a")
STEPS, HALF = 6, 3


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(family, run, steps, place, *more, rate="2e-3"):
    program.must("train", "--model", os.path.join(GOLDEN, family), "--data", DATA, "--run", path(run), "--steps", steps,
                 "--schedule-steps", STEPS, "--lr", rate, *program.SHAPE, "--place", place, *more)


def tensors_of(folder):
    """Names to types, shapes and bytes."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        header, data = hf_folder.split(file.read())
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def a_resumed_run_has_the_same_numbers():
    problems = []
    for family in FAMILIES:
        train(family, f"{family}-whole", STEPS, "grads=device,optimizer=host")
        train(family, f"{family}-parts", HALF, "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme")
        program.must("resume", path(f"{family}-parts"), "--steps", STEPS, "--place", "optimizer=nvme")
        whole, parts = (program.numbers_of(path(f"{family}-{run}")) for run in ("whole", "parts"))
        if len(whole) != STEPS or whole != parts:
            problems.append(f"{family}: {whole} at once and {parts} in parts")
    return problems


def what_is_not_trained_stays():
    """At a rate of 0 the export holds the bytes that came."""
    problems = []
    for family in FAMILIES:
        train(family, f"{family}-still", 1, "optimizer=nvme", "--precision", "fp32", rate=0)
        program.must("export", path(f"{family}-still"), path(f"{family}-out"))
        wanted, found = tensors_of(os.path.join(GOLDEN, family)), tensors_of(path(f"{family}-out"))
        problems += [f"{family}: {name} differs" for name in program.differences(wanted, found)]
    return problems


def an_export_is_a_model():
    problems = []
    for family in FAMILIES:
        program.must("export", path(f"{family}-whole"), path(f"{family}-end"))
        texts = [program.must("generate", path(source), "--prompt", "a", "--max-tokens", 20, "--temperature", 0,
                              "--precision", "fp32").out for source in (f"{family}-whole", f"{family}-end")]
        if texts[0] != texts[1] or len(texts[0]) < 20:
            problems.append(f"{family}: the run writes {texts[0]!r}, its export {texts[1]!r}")
    return problems


script_test.run(a_resumed_run_has_the_same_numbers, what_is_not_trained_stays, an_export_is_a_model)
