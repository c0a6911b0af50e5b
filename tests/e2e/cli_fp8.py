"""`--precision fp8` on the CPU: near the training in bf16, with the same bits wherever state lives and whoever has it, with
weights that cross links as one byte each; its runs go on, are evaluated, exported and changed as others are; refused by name
where nothing multiplies in 8 bits."""

import json

import runs
from program import SEQ, must, refused, run, script_test

PLACES = ("weights=device,grads=device,optimizer=device", "weights=host,grads=host,optimizer=host",
          "weights=nvme,grads=nvme,optimizer=nvme", "weights=host,grads=nvme,optimizer=device:30%/host:30%/nvme,acts=host")
# The most by which losses may differ from those in bf16, or of other groups of ranks, as a share: some times what was seen.
NEAR, SAME_SUMS = 5e-3, 1e-3


class Run(runs.Run):
    data, steps, planned = (runs.text_file(seed=1, characters=60 * SEQ),), 8, 1000
    shape = ("--seq", SEQ, "--micro-batch", 2, "--batch-tokens", 8 * SEQ, "--threads", 1, "--chunk-grains", 1)
    flags = ("--warmup", 2, "--device", "cpu", "--precision", "fp8")


GPT2, LLAMA = ("gpt2-tiny", "--init"), ("llama-tiny", "--init")


def farthest(one, other):
    return max(abs(a / b - 1) for a, b in zip(one.losses(), other.losses(), strict=True))


def trainings_are_near_those_in_bf16():
    problems = []
    for model in (GPT2, LLAMA):
        fp8, bf16 = Run(f"{model[0]}-place-0", "--place", PLACES[0], model=model).once(), Run(f"{model[0]}-bf16", "--precision", "bf16", model=model).train()
        off = farthest(fp8, bf16)
        print(f"# {model[0]}: losses differ from those in bf16 by {off:.2e} at most")
        if not 0 < off < NEAR:
            problems.append(f"{model[0]}: losses differ from those in bf16 by {off}")
        if fp8.losses()[-1] >= fp8.losses()[0]:
            problems.append(f"{model[0]} learns nothing: {fp8.losses()}")
    return problems


def placements_give_the_same_bits():
    problems = []
    for model in (GPT2, LLAMA):
        numbers = [Run(f"{model[0]}-place-{i}", "--place", place, *(("--update", "device") if i == 3 else ()), model=model).once().numbers()
                   for i, place in enumerate(PLACES)]
        problems += [f"{model[0]}, {place}: other bits" for place, found in zip(PLACES, numbers) if found != numbers[0]]
    return problems


def weights_cross_links_as_one_byte():
    """In llama-tiny, whose blocks are most of what goes up to the device where everything lives on the host, and of what is
    written where the weights alone are on NVMe."""
    moved = {}
    for precision in ("bf16", "fp8"):
        for lane, place in (("upload", PLACES[1]), ("nvme_write", "weights=nvme,grads=host,optimizer=host")):
            one = Run(f"{lane}-{precision}", "--place", place, "--recompute", "none", "--order", "layer", "--save-every", 1000,
                      "--precision", precision, model=LLAMA, steps=3)
            moved[one.name] = one.train().steps_done()[-2]["bytes"][lane]
    print(f"# bytes of a step: {moved}")
    return [f"{lane} of a step: {moved}" for lane in ("upload", "nvme_write")
            if moved[f"{lane}-fp8"] > 0.8 * moved[f"{lane}-bf16"]]


def ranks_give_the_same_bits():
    """Stages 0 to 3, wherever state lives; tensor groups, with and without tiles, are near."""
    numbers = [Run(f"zero-{zero}", "--zero", zero, *(("--place", PLACES[2]) if zero % 2 else ()), ranks=2).train().numbers()
               for zero in range(4)]
    problems = [f"--zero {zero}: other bits than those of stage 0" for zero in range(4) if numbers[zero] != numbers[0]]
    for name, model, more, ranks in (("group", LLAMA, ("--tensor", 2), 2),
                                     ("rows", LLAMA, ("--tensor", 2, "--sequence-parallel", "yes", "--place", PLACES[1]), 2),
                                     ("tiles", GPT2, ("--tensor", 2, "--tiles", 2, "--zero", 3), 4)):
        off = farthest(Run(name, *more, model=model, ranks=ranks).train(), Run(f"{model[0]}-place-0", "--place", PLACES[0], model=model).once())
        if off > SAME_SUMS:
            problems.append(f"{name}: losses differ from those of one rank by {off}")
    return problems


def runs_go_on_and_leave_fp8():
    whole, halves = Run("whole", "--place", PLACES[2]).train(), Run("halves", steps=Run.steps // 2).train()
    halves.resume("--steps", Run.steps, "--place", PLACES[2])
    problems = [] if whole.numbers() == halves.numbers() else ["a run in two halves has other bits"]
    must("verify", halves.path())
    seen = [json.loads(must("eval", where, "--data", *Run.data, "--seq", SEQ, "--json").out)["loss"]
            for where in (halves.path(), halves.exported())]
    if seen[0] != seen[1]:
        problems.append(f"the run and its export have losses {seen}")
    must("generate", halves.path(), "--prompt", "a", "--max-tokens", 4)
    for steps, state in enumerate(("8bit", "fp32"), Run.steps + 1):
        halves.resume("--steps", steps, "--optimizer-state", state)
        if len(halves.steps_done()) != steps or halves.settings()["optimizer_state"] != state:
            problems.append(f"the run did not go on with state in {state}")
    return problems


def narrow_state_has_the_same_bits_everywhere():
    one, other = (Run(f"narrow-{i}", "--optimizer-state", "8bit", "--place", PLACES[2 * i]).train().numbers() for i in range(2))
    return [] if one == other else ["with state in 8 bits the bits depend on the placement"]


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
