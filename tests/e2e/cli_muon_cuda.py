"""`--optimizer muon` on a GPU, which is the emulated one: its updates run there wherever state lives, with the same bits; after a kill;
near the training on the CPU; what `plan` says; what is refused."""

import json
import os
import shutil

import program
from program import script_test

SCRATCH = program.scratch_folder()
SEQ, STEPS, MORE = 16, 2, 4
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 60 * SEQ))
# States that a place does not name are on the device, and so are updates of AdamW, so that nothing is left to choose.
CLOSED = {"weights": "device", "acts": "device", "grads": "device", "optimizer": "device"}
PLACES = ({}, {"optimizer": "host", "grads": "host"}, {"optimizer": "device:30%/host:30%/nvme", "weights": "nvme", "grads": "nvme"})
MODEL = ("--model", "gpt2-tiny", "--optimizer", "muon", "--seq", SEQ, "--micro-batch", 1, "--batch-tokens", 2 * SEQ, "--threads", 1)
# An iteration in bf16 whose sums have another order: the losses of the first steps differ by less than this share.
NEAR = 1e-3


def path(name):
    return os.path.join(SCRATCH, name)


def train(run, *more, place=None, steps=STEPS, device="cuda", update="device"):
    placed = ",".join(map("=".join, (CLOSED | (place or {})).items()))
    return ["train", *MODEL, "--init", "--data", DATA, "--run", path(run), "--steps", steps, "--schedule-steps", MORE, "--lr", 1e-3,
            "--chunk-grains", 2, "--precision", "fp32", "--order", "batch", "--update", update, "--device", device, "--place", placed, *more]


def exported(run):
    out = path("weights")
    shutil.rmtree(out, ignore_errors=True)
    program.must("export", path(run), out)
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        return file.read()


def losses(run):
    return [line["loss"] for line in program.steps_of(path(run))]


def state_has_the_same_bits_everywhere():
    """After a resume from the middle, with momenta in fp32 and, rounded at random, in bf16 and 8 bits."""
    problems, ends = [], {}
    for number, place in enumerate(PLACES):
        for form in ("fp32", "bf16", "8bit") if number != 1 else ("fp32",):
            run = f"{form}-{number}"
            program.must(*train(run, "--optimizer-state", form, place=place))
            program.must("resume", path(run), "--steps", MORE)
            program.must("verify", path(run))
            ends.setdefault(form, []).append((program.numbers_of(path(run)), exported(run)))
    problems += [f"{form}: a place has other bits" for form, found in ends.items() if any(end != found[0] for end in found)]
    if len({found[0][1] for found in ends.values()}) < len(ends):
        problems.append("momenta of two forms train alike")
    return problems


def the_cpu_trains_alike():
    program.must(*train("cpu", device="cpu", steps=MORE))
    found, wanted = losses("fp32-0"), losses("cpu")
    far = [step for step, (a, b) in enumerate(zip(found, wanted, strict=True)) if abs(a - b) > NEAR * b]
    problems = [f"losses {found} and on the CPU {wanted}"] if far else []
    return problems + ([] if found[-1] < found[0] else [f"the loss does not fall: {found}"])


def a_killed_run_goes_on_with_the_same_bits():
    process = program.start(*train("killed", place=PLACES[2], steps=MORE))
    while not process.stderr.readline().startswith("step 2/"):
        pass
    process.kill()
    process.wait()
    process.stderr.close()
    program.must("resume", path("killed"))
    return [] if exported("killed") == exported("fp32-0") else ["other weights after a kill"]


def plan_says_where_updates_run():
    """Updates of blocks are on the GPU although their state is on the host. On a described machine they take longer than AdamW's: the
    iterations of this model are 1.6 Tflop."""
    said = {}
    for optimizer in ("muon", "adamw"):
        flags = ("--optimizer", optimizer, "--place", "optimizer=host", "--machine", "h100")
        said[optimizer] = json.loads(program.must("plan", "--model", "gpt2-124m", "--batch-tokens", 4096, *flags, "--json").out)
    # A layer's state is 1.6 GiB, and of each buffer for it the device has as many as it has room for.
    program.must("plan", "--model", "llama-8b", "--seq", 2048, "--batch-tokens", 8192, "--optimizer", "muon", "--machine", "rtx4090",
                 "--place", "optimizer=nvme,weights=host,grads=host,acts=device", "--update", "device")
    busy = {name: of["predicted"]["plain"]["lane_busy_s"]["compute"] for name, of in said.items()}
    problems = [] if set(said["muon"]["updates"][1:-1]) == {"device"} else [f"updates run at {said['muon']['updates']}"]
    return problems + ([] if 1e-3 < busy["muon"] - busy["adamw"] < 20e-3 else [f"the GPU is busy for {busy}"])


def what_a_gpu_cannot_is_refused():
    problems = program.refused("updates on the host", train("new", update="host"), "--optimizer muon", "--update host",
                               "leave --update out", status=2)
    problems += program.refused("little memory", train("new", "--device-memory", "2MiB"), "does not fit", "--device-memory")
    if os.path.exists(path("new")):
        problems.append("a refused run is left")
    return problems


script_test.run(state_has_the_same_bits_everywhere, the_cpu_trains_alike, a_killed_run_goes_on_with_the_same_bits,
                plan_says_where_updates_run, what_a_gpu_cannot_is_refused)
