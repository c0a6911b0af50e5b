"""`--optimizer muon`: the same bits wherever state lives and after a kill; 8 bytes of state a parameter; another update than
AdamW's; export, eval, verify and plan of such a run; what is refused."""

import array
import json
import math
import os
import shutil
import subprocess

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(9, 40000))
STEPS, MORE = 4, 6
PLACES = {"nvme": "weights=nvme,grads=nvme,optimizer=nvme", "host": "optimizer=host,grads=nvme",
          "mixed": "optimizer=device:30%/host:30%/nvme"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, *more, place="nvme", steps=STEPS, optimizer="muon", rate=1e-3):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps, "--schedule-steps",
            MORE, *program.SHAPE, "--lr", rate, "--place", PLACES[place], "--optimizer", optimizer, *more]


def exported(run):
    out = path("weights")
    shutil.rmtree(out, ignore_errors=True)
    program.must("export", path(run), out)
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        return file.read()


def state_has_the_same_bits_everywhere():
    """With rings of one chunk too, and after a resume from the middle."""
    problems, runs = [], []
    for place in PLACES:
        run = f"at-{place}"
        program.must(*train(run, "--save-every", 3, "--ring-chunks", 1, place=place))
        program.must("resume", path(run), "--steps", MORE)
        program.must("verify", path(run))
        runs.append((program.numbers_of(path(run)), exported(run)))
    problems += [f"{list(PLACES)[i]} has other bits" for i in range(1, len(runs)) if runs[i] != runs[0]]
    program.must(*train("adamw", optimizer="adamw", steps=MORE))
    if exported("adamw") == runs[0][1]:
        problems.append("muon trains as adamw")
    program.must(*train("jordan", "--muon-scale", "jordan", steps=MORE))
    if exported("jordan") == runs[0][1]:
        problems.append("the scales train alike")
    losses = [line["loss"] for line in program.log_lines(path("at-nvme")) if "loss" in line]
    if not losses[-1] < losses[0]:
        problems.append(f"the loss does not fall: {losses}")
    settings = program.read_json(path("at-nvme", "run.json"))["settings"]
    if (settings["optimizer"], settings["muon_scale"]) != ("muon", "moonshot"):
        problems.append(f"run.json has {settings}")
    program.must("eval", path("at-nvme"), "--data", DATA)
    return problems


def together(ranks, *arguments):
    done = program.limits.run(threads(ranks, program.command(*arguments)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks of {arguments}: status {done.returncode}: {done.stderr[-1500:]}")


def ranks_share_whole_matrices():
    """Every stage trains alike, and other numbers of ranks go on with the same state: four and eight, of which some have no matrix of
    a block, and one. What is read of the run is the same."""
    problems, ends, read = [], [], []
    for ranks, zero, place in ((2, 0, "nvme"), (2, 1, "host"), (2, 2, "mixed"), (2, 3, "nvme")):
        run = f"two-{zero}"
        together(ranks, *train(run, "--zero", zero, place=place))
        ends.append((program.numbers_of(path(run)), exported(run)))
    problems += [f"stage {zero} has other bits than stage 0" for zero in range(1, 4) if ends[zero] != ends[0]]
    for run, ranks in (("two-3", 4), ("two-0", 8), ("two-2", 1)):
        together(ranks, "resume", path(run), "--steps", STEPS, *(("--zero", 3) if ranks > 1 else ()))
        program.must("verify", path(run))
        read.append((exported(run), json.loads(program.must("eval", path(run), "--data", DATA, "--json").out)["loss"],
                     state(run, "transformer.h.1.mlp.c_fc.weight", "m")))
        together(ranks, "resume", path(run), "--steps", MORE)
        if len(program.log_lines(path(run))) != MORE:
            problems.append(f"{run} does not go on by {ranks} ranks")
    problems += [f"state {i} changes with the ranks" for i in range(3) if read[i] != read[0] or read[i][0] != ends[0][1]]
    return problems


def tensor_groups_take_parts_as_matrices():
    """Stages and places change no bits, the number of ranks of a group does. A rank alone takes the state over as it is."""
    problems, ends, matrix = [], [], "transformer.h.1.mlp.c_fc.weight"
    for zero, place in ((0, "nvme"), (3, "host")):
        run = f"parts-{zero}"
        together(4, *train(run, "--tensor", 2, "--zero", zero, "--val", "5%", place=place))
        ends.append((program.numbers_of(path(run)), exported(run)))
    if ends[0] != ends[1]:
        problems.append("stage 3 has other bits than stage 0")
    if ends[0][1] == exported("two-0"):
        problems.append("parts train as whole matrices do")
    momenta = state("parts-3", matrix, "m")
    together(1, "resume", path("parts-3"), "--steps", STEPS, "--tensor", 1)
    program.must("verify", path("parts-3"))
    if exported("parts-3") != ends[1][1] or state("parts-3", matrix, "m") != momenta:
        problems.append("one rank takes over another state")
    together(1, "resume", path("parts-3"), "--steps", MORE)
    return problems + program.refused("groups of any size", train("new", "--tensor", "auto"), "--optimizer muon", "--tensor auto",
                                      status=2)


def a_killed_run_goes_on_with_the_same_bits():
    process = program.start(*train("killed", steps=MORE))
    while not process.stderr.readline().startswith("step 3/"):
        pass
    process.kill()
    process.wait()
    process.stderr.close()
    program.must("resume", path("killed"))
    program.must(*train("whole", steps=MORE))
    return [] if exported("killed") == exported("whole") else ["other weights after a kill"]


def every_parameter_takes_8_bytes_or_fewer():
    flags = {"fp32": ("adamw",), "muon": ("muon",), "muon-bf16": ("muon", "--optimizer-state", "bf16"),
             "muon-8bit": ("muon", "--optimizer-state", "8bit")}
    said = {name: json.loads(program.must("plan", "--model", "gpt2-124m", "--optimizer", *given, "--json").out)
            for name, given in flags.items()}
    problems = []
    tables, blocks = (1024 + 50257) * 768, 12 * 12 * 768 * 768
    for name, moment, table in (("fp32", 8, 8), ("muon", 4, 4), ("muon-bf16", 2, 2 + 8 / 256), ("muon-8bit", 1 + 4 / 256, 2 + 8 / 256)):
        each = said[name]["store_bytes"] / 2 / said[name]["parameters"]
        least = 4 + (moment * blocks + table * tables) / (blocks + tables)
        if not least <= each < 1.01 * least or said[name]["optimizer_state"] != name:
            problems.append(f"{name}: {each} bytes of state a parameter, and plan says {said[name]['optimizer_state']}")
    return problems


def bad_input_is_refused():
    problems = program.refused("a typo", train("new", optimizer="moun"), "--optimizer", "moun", "adamw", "muon", status=2)
    for what, flags, words in (
            ("tiles", ("--tiles", 2), ("--optimizer muon", "--tiles")),
            ("adapters", ("--lora", 4), ("--optimizer muon", "--lora")),
            ("fp8", ("--precision", "fp8"), ("--optimizer muon", "--precision fp8")),
            ("a momentum of 1", ("--muon-momentum", 1), ("--muon-momentum",)),
            ("a typo in a name", ("--optimizer-for", "*.mlp.*=moun"), ("--optimizer-for", "*.mlp.*=moun", "adamw or muon")),
            ("no name", ("--optimizer-for", "*.mlp.*"), ("--optimizer-for", "PATTERN=NAME")),
            ("an empty part", ("--optimizer-for", "*.mlp.*=muon,"), ("--optimizer-for", "PATTERN=NAME"))):
        problems += program.refused(what, train("new", *flags), *words, status=2)
    for what, pattern, words in (("no such tensor", "*.mpl.*=muon", ("*.mpl.*", "matches no tensor")),
                                 ("a vector", "*.ln_1.*=muon", ("transformer.h.0.ln_1.weight", "matrices of layers only")),
                                 ("a table", "*wte*=muon", ("transformer.wte.weight", "matrices of layers only"))):
        problems += program.refused(what, train("new", "--optimizer-for", pattern), "--optimizer-for", *words)
    problems += program.refused("no rate to follow", train("new", "--muon-lr", 0.02, rate=0), "--optimizer muon", "--lr 0",
                                "--muon-lr", status=2)
    said = program.must(*train("slow", "--muon-scale", "jordan", "--muon-lr", 3e-4)).err
    if "Muon's learning rate is 0.0003, and with --muon-scale jordan it usually is between 0.002 and 0.1" not in said:
        problems.append(f"a rate of AdamW's size is not warned of: {said}")
    if "Muon's learning rate" in program.must(*train("usual")).err:
        problems.append("a usual rate is warned of")
    return problems


def tensors_of(run):
    header, data = hf_folder.split(exported(run))
    return {name: data[slice(*of["data_offsets"])] for name, of in header.items() if name != "__metadata__"}


def only_matrices_of_layers_are_muons():
    """After one step, all else has the bits of AdamW, whose first update does not depend on how moments are rounded."""
    program.must(*train("first-adamw", optimizer="adamw", steps=1))
    program.must(*train("first-muon", steps=1))
    adamw, muon = tensors_of("first-adamw"), tensors_of("first-muon")
    others = {name for name in adamw if adamw[name] != muon[name]}
    matrices = {f"transformer.h.{layer}.{name}.weight" for layer in range(2)
                for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}
    return [] if others == matrices else [f"Muon has trained {sorted(others)}"]


def state(run, name, part):
    out = path("state.npy")
    program.must("tensors", path(run), "--name", name, "--part", part, "--to", out)
    with open(out, "rb") as file:
        content = file.read()
    return array.array("f", content[10 + int.from_bytes(content[8:10], "little"):])


def momenta_are_read_by_name():
    """After one step they are AdamW's first moments at another rate, as gradients are the same; a second moment is refused."""
    matrix, table = "transformer.h.1.mlp.c_fc.weight", "transformer.wte.weight"
    momenta, moments = (state(f"first-{name}", matrix, "m") for name in ("muon", "adamw"))
    at = max(range(len(moments)), key=lambda i: abs(moments[i]))
    scale, bound = momenta[at] / moments[at], 1e-5 * abs(momenta[at])
    problems = [] if all(abs(a - scale * b) < bound for a, b in zip(momenta, moments, strict=True)) else ["the momenta differ"]
    if state("first-muon", matrix, "master").tobytes() != tensors_of("first-muon")[matrix] or not max(state("first-muon", table, "v")) > 0:
        problems.append("masters differ, or the table has no second moments")
    return problems + program.refused("a second moment", ["tensors", path("first-muon"), "--name", matrix, "--part", "v", "--to", "-"],
                                      matrix, "--part m")


def a_pattern_names_the_matrices_of_each():
    """A resume knows them, also that of a run that AdamW trains but for a few."""
    program.must(*train("mlp", "--optimizer-for", "*.mlp.*=muon", optimizer="adamw", steps=1))
    program.must(*train("not-attn", "--optimizer-for", "*.attn.*=adamw", steps=1))
    adamw, mlp = tensors_of("first-adamw"), tensors_of("mlp")
    others = {name for name in adamw if adamw[name] != mlp[name]}
    matrices = {f"transformer.h.{layer}.mlp.{name}.weight" for layer in range(2) for name in ("c_fc", "c_proj")}
    problems = [] if others == matrices else [f"Muon has trained {sorted(others)}"]
    if exported("mlp") != exported("not-attn"):
        problems.append("two ways to name the same matrices train differently")
    program.must("resume", path("mlp"), "--steps", MORE)
    program.must(*train("mlp-whole", "--optimizer-for", "*.mlp.*=muon", optimizer="adamw", steps=MORE))
    if exported("mlp") != exported("mlp-whole"):
        problems.append("a resume forgets the pattern")
    program.must("verify", path("mlp"))
    problems += program.refused("all at once", ["resume", path("mlp"), "--optimizer", "muon"], "--optimizer muon",
                                "--optimizer-for *.mlp.*=muon", "--optimizer adamw")
    for other in (("--optimizer", "adamw", "--optimizer-state", "8bit"), ("--optimizer", "muon", "--optimizer-state", "bf16")):
        said = program.must("resume", path("mlp"), *other).err
        if f"from step {MORE + 1} on" not in said:
            problems.append(f"{other}: {said}")
        program.must("verify", path("mlp"))
    return problems


def a_resume_changes_the_optimizer():
    """Masters and moments of tables stay, matrices begin with none; both ways, and then training goes on."""
    matrix, table = "transformer.h.1.mlp.c_fc.weight", "transformer.wte.weight"
    problems = []
    for name, other, words in (("adamw", "muon", "Muon updates matrices of layers, with fresh state"),
                               ("muon", "adamw", "AdamW updates also what Muon did, with fresh state")):
        run = f"{name}-to-{other}"
        program.must(*train(run, optimizer=name))
        before, moments = exported(run), state(run, table, "m")
        said = program.must("resume", path(run), "--steps", STEPS, "--optimizer", other).err
        if f"from step {STEPS + 1} on {words}" not in said:
            problems.append(f"{run}: {said}")
        if exported(run) != before or any(state(run, matrix, "m")):
            problems.append(f"{run}: the weights differ, or the state of a matrix is not fresh")
        if not all(abs(a - b) <= abs(b) / 128 for a, b in zip(state(run, table, "m"), moments, strict=True)):
            problems.append(f"{run}: the moments of a table differ")
        losses = [line["loss"] for line in program.log_lines(path(run)) if "loss" in line]
        program.must("resume", path(run), "--steps", MORE)
        program.must("verify", path(run))
        after = [line["loss"] for line in program.log_lines(path(run)) if "loss" in line]
        if len(after) != MORE or not after[-1] < losses[0]:
            problems.append(f"{run}: losses {after}")
    return problems


def narrow_momenta_have_the_same_bits_everywhere():
    """Rounding is stochastic and belongs to a step, so a resume rounds alike, by other ranks too. Converted state is rounded to
    nearest."""
    problems = []
    for form in ("8bit", "bf16"):
        ends = []
        for place in ("nvme", "mixed" if form == "8bit" else "host"):
            run = f"narrow-{form}-{place}"
            program.must(*train(run, "--optimizer-state", form, "--ring-chunks", 1, place=place))
            program.must("resume", path(run), "--steps", MORE)
            program.must("verify", path(run))
            ends.append((program.numbers_of(path(run)), exported(run)))
        if ends[0] != ends[1]:
            problems.append(f"momenta in {form} give other bits at the two places")
        plan = json.loads(program.must("plan", "--model", "gpt2-tiny", *program.SHAPE, "--optimizer", "muon", "--optimizer-state", form,
                                       "--place", PLACES["nvme"], "--json").out)
        on_drive = os.path.getsize(path(f"narrow-{form}-nvme", "rank-0-of-1-muon-" + {"8bit": "8bit", "bf16": "bf16-packed"}[form],
                                        "store.spillway"))
        if not 0 <= on_drive - plan["disk_bytes"] < 1 << 20:
            problems.append(f"plan says {plan['disk_bytes']} bytes of a store in {form}, which has {on_drive}")
    matrix = "transformer.h.1.mlp.c_fc.weight"
    if ends[0][1] in (exported("whole"), exported("adamw")):
        problems.append("momenta in bf16 train as wider ones")
    momenta, before = state("whole", matrix, "m"), exported("whole")
    largest = max(map(abs, momenta))
    for form, words, near in (("bf16", "from muon to muon-bf16", 0), ("fp32", "from muon-bf16 to muon", 0),
                              ("8bit", "from muon to muon-8bit", largest / 64), ("bf16", "from muon-8bit to muon-bf16", largest / 64)):
        said = program.must("resume", path("whole"), "--steps", MORE, "--optimizer-state", form).err
        if words not in said or exported("whole") != before:
            problems.append(f"{words}: the weights differ, or it says {said}")
        if not all(abs(a - b) <= abs(b) / 256 + near for a, b in zip(state("whole", matrix, "m"), momenta, strict=True)):
            problems.append(f"{words}: the momenta differ")
        program.must("verify", path("whole"))
    return problems


def steps_without_a_finite_gradient_are_skipped():
    """A run that diverges stops after ten such steps, and its momenta are those before them."""
    ended = program.run(*train("diverges", "--weight-decay", 1000, "--clip", 0, "--warmup", 0, "--schedule", "constant",
                               steps=300, rate=1000))
    lines = program.steps_of(path("diverges"))
    problems = [] if "10 steps in a row" in ended.err and all(line["skipped"] for line in lines[-10:]) else [ended.err[-500:]]
    momenta = state("diverges", "transformer.h.1.mlp.c_fc.weight", "m")
    if not any(momenta) or not all(map(math.isfinite, momenta)):
        problems.append("the momenta are not finite")
    return problems


script_test.run(state_has_the_same_bits_everywhere, ranks_share_whole_matrices, tensor_groups_take_parts_as_matrices,
                a_killed_run_goes_on_with_the_same_bits, every_parameter_takes_8_bytes_or_fewer, bad_input_is_refused,
                only_matrices_of_layers_are_muons, momenta_are_read_by_name, a_pattern_names_the_matrices_of_each,
                a_resume_changes_the_optimizer, narrow_momenta_have_the_same_bits_everywhere,
                steps_without_a_finite_gradient_are_skipped)
