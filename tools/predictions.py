#!/usr/bin/env python3
"""Prints what `spillway plan` predicts for machines that are described in bench/machines: training steps of the Qwen2.5
presets with all state on the GPU and with state elsewhere; with --vary, what the 7B's speed hangs on. Predictions by
assumed rates, not measurements."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
SEQ = 1024
RESIDENT = "weights=device,grads=device,optimizer=device,acts=device"
STATE_ON_HOST = "weights=device,grads=device,optimizer=host,acts=device"


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    untied_table: int  # parameters of an embedding that multiplies nothing


SHAPES = {"qwen2.5-0.5b": Shape(24, 896, 0), "qwen2.5-1.5b": Shape(28, 1536, 0),
          "qwen2.5-7b": Shape(28, 3584, 152064 * 3584)}


@dataclass(frozen=True)
class Case:
    machine: str
    model: str
    batch_tokens: int
    micro_batch: int
    what: str
    flags: tuple
    beside: str = ""  # the case that its speed is compared with


CASES = (
    Case("h100", "qwen2.5-0.5b", 131072, 16, "resident", ("--place", RESIDENT)),
    Case("h100", "qwen2.5-0.5b", 131072, 16, "optimizer on host", ("--place", STATE_ON_HOST), "resident"),
    Case("h100", "qwen2.5-1.5b", 131072, 4, "resident", ("--place", RESIDENT)),
    Case("h100", "qwen2.5-1.5b", 131072, 4, "optimizer on host", ("--place", STATE_ON_HOST), "resident"),
    Case("h100", "qwen2.5-7b", 524288, 4, "optimizer on host", ("--place", STATE_ON_HOST)),
    Case("h100", "qwen2.5-7b", 524288, 4, "as it chooses", ()),
    Case("h200", "qwen2.5-0.5b", 131072, 16, "resident", ("--place", RESIDENT)),
    Case("h200", "qwen2.5-0.5b", 131072, 16, "optimizer on host", ("--place", STATE_ON_HOST), "resident"),
    Case("h200", "qwen2.5-7b", 524288, 4, "optimizer on host", ("--place", STATE_ON_HOST)),
    Case("h200", "qwen2.5-7b", 524288, 4, "as it chooses", ()),
    Case("rtx4090", "qwen2.5-0.5b", 131072, 4, "as it chooses", ()),
    Case("rtx4090", "qwen2.5-7b", 524288, 4, "as it chooses", ()),
)


# Changes of --vary to the machine's file, one at a time: the members on the way to a rate, and its value.
VARIED = Case("h100", "qwen2.5-7b", 524288, 4, "as it chooses", ())
VARIATIONS = (
    ("products at 620 TFLOP/s", {("device", "bf16_flops_per_s"): 620e12}),
    ("products at 710 TFLOP/s", {("device", "bf16_flops_per_s"): 710e12}),
    ("attention without warp groups", {("device", "attention_forward_flops_per_s"): 250e12,
                                       ("device", "attention_backward_flops_per_s"): 160e12}),
    ("memory at 2.2 TB/s", {("device", "memory_bytes_per_s"): 2.2e12}),
    ("6 us an op", {("device", "op_s"): 6e-6}),
    ("link at 45 GB/s", {("rates", "upload", "bytes_per_s"): 45e9, ("rates", "download", "bytes_per_s"): 45e9}),
    ("host's update at 100 GB/s", {("rates", "update", "bytes_per_s"): 100e9}),
)
BOUNDS = ("low", "expected", "high")


def model_flops(case, parameters):
    """Returns the flops of a token: six for each parameter that multiplies, and causal attention."""
    shape = SHAPES[case.model]
    return 6 * (parameters - shape.untied_table) + 6 * shape.layers * shape.hidden * SEQ


def at_bound(value, bound):
    """The description with each assumed number at one of its bounds. Where more is slower, its low is what is fast."""
    if not isinstance(value, dict):
        return value
    if "expected" not in value:
        return {name: at_bound(inner, bound if name != "op_s" else {"low": "high", "high": "low"}.get(bound, bound))
                for name, inner in value.items()}
    return value[bound]


def read_machine(name, bound):
    with open(os.path.join(TOP, "bench", "machines", name + ".json"), encoding="utf-8") as file:
        return at_bound(json.load(file), bound)


def predict(case, machine):
    """Tokens a second, the model's arithmetic over the rate of products, and the micro-batches of a group."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(machine, file)
        file.flush()
        command = [PROGRAM, "plan", "--machine", file.name, "--model", case.model, "--precision", "bf16", "--seq", str(SEQ),
                   "--micro-batch", str(case.micro_batch), "--batch-tokens", str(case.batch_tokens), *case.flags, "--json"]
        plan = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    speed = plan["predicted"]["plain"]["tokens_per_second"]
    products = machine["device"]["bf16_flops_per_s"]
    return speed, model_flops(case, plan["parameters"]) * speed / products, plan["group"]


def vary():
    print("Predicted by the rates in bench/machines with one number changed; nothing here was measured.")
    for what, changes in VARIATIONS:
        machine = read_machine(VARIED.machine, "expected")
        for members, value in changes.items():
            inner = machine
            for member in members[:-1]:
                inner = inner[member]
            inner[members[-1]] = value
        print(f"{what:<32}{predict(VARIED, machine)[0]:>9.0f} tokens/s", flush=True)


def main():
    if sys.argv[1:] == ["--vary"]:
        return vary()
    if sys.argv[1:]:
        return "usage: predictions.py [--vary]"
    print("Predicted by the rates in bench/machines, which are assumed; nothing here was measured.")
    print(f"{'machine':<9}{'model':<14}{'tokens':>8} {'micro':>5} {'group':>5}  {'state':<19}"
          f"{'tokens/s: low':>14}{'expected':>10}{'high':>8}{'of products':>13}{'of resident':>13}")
    speeds = {}
    for case in CASES:
        found = {bound: predict(case, read_machine(case.machine, bound)) for bound in BOUNDS}
        speed, share, group = found["expected"]
        speeds[case.machine, case.model, case.what] = speed
        beside = speeds.get((case.machine, case.model, case.beside))
        print(f"{case.machine:<9}{case.model:<14}{case.batch_tokens:>8} {case.micro_batch:>5} {group:>5}  {case.what:<19}"
              f"{found['low'][0]:>14.0f}{speed:>10.0f}{found['high'][0]:>8.0f}{share:>13.2f}"
              + ("" if beside is None else f"{speed / beside:>13.3f}"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
