"""`--optimizer muon` on a GPU, which is the emulated one: its updates run there wherever state lives, with the same bits; after a kill;
near the training on the CPU; what `plan` says; what is refused."""

import json

import program
import runs
from program import script_test

SEQ, MORE = 16, 4
# States that a place does not name are on the device, and so are updates of AdamW, so that nothing is left to choose.
CLOSED = {"weights": "device", "acts": "device", "grads": "device", "optimizer": "device"}
PLACES = ({}, {"optimizer": "host", "grads": "host"}, {"optimizer": "device:30%/host:30%/nvme", "weights": "nvme", "grads": "nvme"})
# An iteration in bf16 whose sums have another order: the losses of the first steps differ by less than this share.
NEAR = 1e-3


def placed(place):
    return ",".join(map("=".join, (CLOSED | place).items()))


class Run(runs.Run):
    data = (runs.text_file(seed=3, characters=60 * SEQ),)
    shape = ("--seq", SEQ, "--micro-batch", 1, "--batch-tokens", 2 * SEQ, "--threads", 1)
    steps = MORE
    flags = ("--optimizer", "muon", "--lr", 1e-3, "--chunk-grains", 2, "--precision", "fp32", "--order", "batch", "--update", "device",
             "--device", "cuda", "--place", placed({}))


def state_has_the_same_bits_everywhere():
    """After a resume from the middle, with momenta in fp32 and, rounded at random, in bf16 and 8 bits."""
    problems, ends = [], {}
    for number, place in enumerate(PLACES):
        for form in ("fp32", "bf16", "8bit") if number != 1 else ("fp32",):
            run = Run(f"{form}-{number}", "--optimizer-state", form, "--place", placed(place), "--steps", 2).train()
            run.resume("--steps", MORE)
            program.must("verify", run.path())
            ends.setdefault(form, []).append((run.numbers(), run.weights()))
    problems += [f"{form}: a place has other bits" for form, found in ends.items() if any(end != found[0] for end in found)]
    if len({found[0][1] for found in ends.values()}) < len(ends):
        problems.append("momenta of two forms train alike")
    return problems


def the_cpu_trains_alike():
    found, wanted = Run("fp32-0").losses(), Run("cpu", "--device", "cpu").train().losses()
    far = [step for step, (a, b) in enumerate(zip(found, wanted, strict=True)) if abs(a - b) > NEAR * b]
    problems = [f"losses {found} and on the CPU {wanted}"] if far else []
    return problems + ([] if found[-1] < found[0] else [f"the loss does not fall: {found}"])


def a_killed_run_goes_on_with_the_same_bits():
    run = Run("killed", "--place", placed(PLACES[2]))
    process = program.start(*run.words())
    while not process.stderr.readline().startswith("step 2/"):
        pass
    process.kill()
    process.wait()
    process.stderr.close()
    run.resume()
    return [] if run.weights() == Run("fp32-0").weights() else ["other weights after a kill"]


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
    return [*Run("new", "--update", "host").refused("--optimizer muon", "--update host", "leave --update out", status=2),
            *Run("new", "--device-memory", "2MiB").refused("does not fit", "--device-memory")]


script_test.run(state_has_the_same_bits_everywhere, the_cpu_trains_alike, a_killed_run_goes_on_with_the_same_bits,
                plan_says_where_updates_run, what_a_gpu_cannot_is_refused)
