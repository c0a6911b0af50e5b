"""`--precision fp8` on the CPU: near the training in bf16, with the same bits wherever state lives and whoever has it, with
weights that cross links as one byte each; its runs go on, are evaluated, exported and changed as others are; refused by name
where nothing multiplies in 8 bits."""

import json
import os
import subprocess

from program import SEQ, command, limits, must, numbers_of, read_json, refused, run, scratch_folder, script_test, steps_of, text, write
from ranks_jobs import threads

FOLDER = scratch_folder()
STEPS = 8
SHAPE = ("--seq", SEQ, "--micro-batch", 2, "--batch-tokens", 8 * SEQ, "--threads", 1, "--chunk-grains", 1)
PLACES = ("weights=device,grads=device,optimizer=device", "weights=host,grads=host,optimizer=host",
          "weights=nvme,grads=nvme,optimizer=nvme", "weights=host,grads=nvme,optimizer=device:30%/host:30%/nvme,acts=host")
# The most by which losses may differ from those in bf16, or of other groups of ranks, as a share: some times what was seen.
NEAR, SAME_SUMS = 5e-3, 1e-3


def path(name):
    return os.path.join(FOLDER, name)


DATA = write(path("data.txt"), text(1, 60 * SEQ))


def train(name, *more, model="gpt2-tiny", precision="fp8", steps=STEPS):
    return command("train", "--model", model, "--init", "--data", DATA, "--run", path(name), "--steps", steps, "--schedule-steps",
                   1000, "--warmup", 2, "--device", "cpu", "--precision", precision, *SHAPE, *more)


def ended(arguments, ranks=1):
    done = limits.run(threads(ranks, arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: status {done.returncode}: {done.stderr[-1500:]}")
    return done


def losses_of(name):
    return [step["loss"] for step in steps_of(path(name))]


def farthest(name, other):
    return max(abs(one / two - 1) for one, two in zip(losses_of(name), losses_of(other), strict=True))


def trainings_are_near_those_in_bf16():
    problems = []
    for model in ("gpt2-tiny", "llama-tiny"):
        for precision in ("bf16", "fp8"):
            ended(train(f"{model}-{precision}", model=model, precision=precision))
        off = farthest(f"{model}-fp8", f"{model}-bf16")
        print(f"# {model}: losses differ from those in bf16 by {off:.2e} at most")
        if not 0 < off < NEAR:
            problems.append(f"{model}: losses differ from those in bf16 by {off}")
        if losses_of(f"{model}-fp8")[-1] >= losses_of(f"{model}-fp8")[0]:
            problems.append(f"{model} learns nothing: {losses_of(f'{model}-fp8')}")
    return problems


def placements_give_the_same_bits():
    problems = []
    for model in ("gpt2-tiny", "llama-tiny"):
        for i, place in enumerate(PLACES):
            ended(train(f"{model}-place-{i}", "--place", place, *(("--update", "device") if i == 3 else ()), model=model))
            if numbers_of(path(f"{model}-place-{i}")) != numbers_of(path(f"{model}-place-0")):
                problems.append(f"{model}, {place}: other bits")
    return problems


def weights_cross_links_as_one_byte():
    """In llama-tiny, whose blocks are most of what goes up to the device where everything lives on the host, and of what is
    written where the weights alone are on NVMe."""
    moved = {}
    for precision in ("bf16", "fp8"):
        for lane, place in (("upload", PLACES[1]), ("nvme_write", "weights=nvme,grads=host,optimizer=host")):
            name = f"{lane}-{precision}"
            ended(train(name, "--place", place, "--recompute", "none", "--order", "layer", "--save-every", 1000, model="llama-tiny",
                        precision=precision))
            moved[name] = steps_of(path(name))[-2]["bytes"][lane]
    print(f"# bytes of a step: {moved}")
    return [f"{lane} of a step: {moved}" for lane in ("upload", "nvme_write")
            if moved[f"{lane}-fp8"] > 0.8 * moved[f"{lane}-bf16"]]


def ranks_give_the_same_bits():
    """Stages 0 to 3, wherever state lives; tensor groups, with and without tiles, are near."""
    problems = []
    for zero in range(4):
        ended(train(f"zero-{zero}", "--zero", zero, *(("--place", PLACES[2]) if zero % 2 else ())), ranks=2)
        if numbers_of(path(f"zero-{zero}")) != numbers_of(path("zero-0")):
            problems.append(f"--zero {zero}: other bits than those of stage 0")
    for name, model, more, ranks in (("group", "llama-tiny", ("--tensor", 2), 2),
                                     ("rows", "llama-tiny", ("--tensor", 2, "--sequence-parallel", "yes", "--place", PLACES[1]), 2),
                                     ("tiles", "gpt2-tiny", ("--tensor", 2, "--tiles", 2, "--zero", 3), 4)):
        ended(train(name, *more, model=model), ranks=ranks)
        off = farthest(name, f"{model}-place-0")
        if off > SAME_SUMS:
            problems.append(f"{name}: losses differ from those of one rank by {off}")
    return problems


def runs_go_on_and_leave_fp8():
    problems, whole, halves = [], path("whole"), path("halves")
    ended(train("whole", "--place", PLACES[2]))
    ended(train("halves", steps=STEPS // 2))
    must("resume", halves, "--steps", STEPS, "--place", PLACES[2])
    if numbers_of(whole) != numbers_of(halves):
        problems.append("a run in two halves has other bits")
    must("verify", halves)
    must("export", halves, path("model"))
    seen = [json.loads(must("eval", where, "--data", DATA, "--seq", SEQ, "--json").out)["loss"] for where in (halves, path("model"))]
    if seen[0] != seen[1]:
        problems.append(f"the run and its export have losses {seen}")
    must("generate", halves, "--prompt", "a", "--max-tokens", 4)
    for state in ("8bit", "fp32"):
        steps = len(steps_of(halves)) + 1
        must("resume", halves, "--steps", steps, "--optimizer-state", state)
        if len(steps_of(halves)) != steps or read_json(os.path.join(halves, "run.json"))["settings"]["optimizer_state"] != state:
            problems.append(f"the run did not go on with state in {state}")
    return problems


def narrow_state_has_the_same_bits_everywhere():
    runs = [path(f"narrow-{i}") for i in range(2)]
    for i in range(2):
        ended(train(f"narrow-{i}", "--optimizer-state", "8bit", "--place", PLACES[2 * i]))
    return [] if numbers_of(runs[0]) == numbers_of(runs[1]) else ["with state in 8 bits the bits depend on the placement"]


def what_cannot_multiply_in_8_bits_is_refused():
    problems = refused("quantized gathers", ["plan", "--model", "gpt2-tiny", "--ranks", 2, "--precision", "fp8", "--gather", "int8"],
                       "--gather int8", "--precision fp8", status=2)
    problems += refused("fp8 on an A100", ["plan", "--model", "llama-8b", "--machine", "a100", "--precision", "fp8"],
                        "--precision fp8", "8.9", "A100", "--precision bf16", status=1)
    found = {precision: json.loads(must("plan", "--model", "llama-8b", "--machine", "h100", "--batch-tokens", 131072, "--seq", 4096,
                                        "--precision", precision, "--json").out)["predicted"]["plain"]["step_s"]
             for precision in ("bf16", "fp8")}
    print(f"# llama-8b on a described H100: {found}")
    if found["fp8"] >= found["bf16"]:
        problems.append(f"a step of llama-8b on a described H100 takes {found} s")
    if run("plan", "--model", "gpt2-tiny", "--precision", "fp7").code != 2:
        problems.append("--precision fp7 is not refused")
    return problems


script_test.run(trainings_are_near_those_in_bf16, placements_give_the_same_bits, weights_cross_links_as_one_byte,
                ranks_give_the_same_bits, runs_go_on_and_leave_fp8, narrow_state_has_the_same_bits_everywhere,
                what_cannot_multiply_in_8_bits_is_refused)
