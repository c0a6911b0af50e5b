"""`--optimizer muon`: the same bits wherever state lives and after a kill; 8 bytes of state a parameter; another update than
AdamW's; export, eval, verify and plan of such a run; what is refused."""

import array
import json
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


def ranks_that_share_nothing_update_alike():
    """Two ranks in stage 0, at two places, and one rank that goes on."""
    ends = []
    for place in ("nvme", "host"):
        run = f"two-{place}"
        done = program.limits.run(threads(2, program.command(*train(run, "--zero", 0, place=place))), stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [f"two ranks at {place}: {done.stderr[-500:]}"]
        program.must("resume", path(run), "--steps", MORE)
        ends.append((program.numbers_of(path(run)), exported(run)))
    return [] if ends[0] == ends[1] else ["two ranks have other bits at the two places"]


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


def every_parameter_takes_8_bytes():
    said = {name: json.loads(program.must("plan", "--model", "gpt2-124m", "--optimizer", name, "--json").out)
            for name in ("adamw", "muon")}
    each = {name: of["store_bytes"] / 2 / of["parameters"] for name, of in said.items()}
    problems = [] if 8.0 <= each["muon"] < 8.08 and 12.0 <= each["adamw"] < 12.12 else [f"bytes of state a parameter: {each}"]
    if said["muon"]["optimizer_state"] != "muon":
        problems.append(f"plan says {said['muon']['optimizer_state']}")
    return problems


def bad_input_is_refused():
    problems = program.refused("a typo", train("new", optimizer="moun"), "--optimizer", "moun", "adamw", "muon", status=2)
    for what, flags, words in (
            ("narrow state", ("--optimizer-state", "8bit"), ("--optimizer muon", "--optimizer-state")),
            ("tiles", ("--tiles", 2), ("--optimizer muon", "--tiles")),
            ("adapters", ("--lora", 4), ("--optimizer muon", "--lora")),
            ("fp8", ("--precision", "fp8"), ("--optimizer muon", "--precision fp8")),
            ("a momentum of 1", ("--muon-momentum", 1), ("--muon-momentum",))):
        problems += program.refused(what, train("new", *flags), *words, status=2)
    problems += program.refused("no rate to follow", train("new", "--muon-lr", 0.02, rate=0), "--optimizer muon", "--lr 0",
                                "--muon-lr", status=2)
    ranks = program.limits.run(threads(2, program.command(*train("new"))), stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, check=False)
    if ranks.returncode != 2 or "--optimizer muon does not go with several ranks" not in ranks.stderr:
        problems.append(f"two ranks: {ranks.stderr[-500:]}")
    program.must(*train("going"))
    problems += program.refused("another optimizer", ["resume", path("going"), "--optimizer", "adamw"], "--optimizer", status=2)
    problems += program.refused("narrow state later", ["resume", path("going"), "--optimizer-state", "bf16"],
                                "--optimizer muon", "--optimizer-state")
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


script_test.run(state_has_the_same_bits_everywhere, ranks_that_share_nothing_update_alike,
                a_killed_run_goes_on_with_the_same_bits, every_parameter_takes_8_bytes, bad_input_is_refused,
                only_matrices_of_layers_are_muons, momenta_are_read_by_name)
