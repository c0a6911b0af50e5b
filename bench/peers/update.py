"""The pair `update`: AdamW on fp32 masters and moments, with the bf16 copy of the weights."""

import json
import os
import statistics

import contender
import install
from contender import Contender, Goal, Pair

PARAMETERS, TIMES, WARM_UP = 384 << 14, 16, 4  # as many as bench update works on
ON_GPU = "spillway on the GPU"


def read_ours(_, ended):
    found = json.loads(ended.out)["precisions"][0]
    fields = {"figures": {"update_s": PARAMETERS / found["parameters_per_s"]}}
    if "on_device" in found:
        fields[ON_GPU] = {"figures": {"update_s": PARAMETERS / found["on_device"]["parameters_per_s"]}}
    return fields


def read_peer(_, ended):
    seconds = contender.json_line(ended)["seconds"]
    return {"figures": {"update_s": statistics.median(seconds[WARM_UP:])}, "seconds": seconds}


def peer(name, kind, needs, settings, device="cpu", flags=()):
    def command(session):
        return (install.python_of(session.peers), os.path.join(contender.HERE, "torch_update.py"), kind, "--parameters",
                PARAMETERS, "--times", TIMES, "--device", device, "--threads", session.threads, *flags)
    return Contender(name, command, read_peer, needs, settings)


def pairs(_):
    return [Pair("update", "AdamW update of 6.3M parameters", (
        Contender("spillway", lambda session: (session.program, "bench", "update", "--precision", "bf16", "--rounds", 3,
                                               "--threads", session.threads, "--json"), read_ours,
                  settings="bench update: bf16 gradient in, one fused pass, bf16 weight out"),
        peer("torch plain", "plain", ("torch",), "AdamW(foreach=False), then the weights cast to bf16; gradients are fp32"),
        peer("torch foreach", "foreach", ("torch",), "AdamW(foreach=True), then the cast"),
        peer("torch fused", "fused", ("torch",), "AdamW(fused=True), then the cast"),
        peer("torch fused, bf16 gradients", "fused", ("torch",), "gradients widened to fp32, AdamW(fused=True), then the cast",
             flags=("--bf16-gradients",)),
        peer("DeepSpeed", "deepspeed", ("torch", "deepspeed"),
             "DeepSpeedCPUAdam between its stage's passes: gradients widened, scaled, weights cast"),
        Contender(ON_GPU, needs=("a GPU",), taken_from="spillway", settings="the same pass over state on the GPU"),
        peer("torch fused on the GPU", "fused", ("torch", "a GPU"), "AdamW(fused=True), then the cast", "cuda")),
        (Goal("spillway", ("DeepSpeed",), "update_s", 2), Goal("spillway", ("torch fused",), "update_s", 5),
         Goal(ON_GPU, ("torch fused on the GPU",), "update_s", 1)))]
