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
    Case("rtx4090", "qwen2.5-0.5b", 131072, 4, "as it chooses", ()),
    Case("rtx4090", "qwen2.5-7b", 524288, 4, "as it chooses", ()),
)


# What --vary changes in the machine's file, one at a time: the members on the way to a rate, and its value.
VARIED = Case("h100", "qwen2.5-7b", 524288, 4, "as it chooses", ())
VARIATIONS = (
    ("products at 650 TFLOP/s", {("device", "bf16_flops_per_s"): 650e12}),
    ("products at 750 TFLOP/s", {("device", "bf16_flops_per_s"): 750e12}),
    ("attention at 150 TFLOP/s", {("device", "attention_flops_per_s"): 150e12}),
    ("memory at 2.85 TB/s", {("device", "memory_bytes_per_s"): 2.85e12}),
    ("memory at 2.5 TB/s", {("device", "memory_bytes_per_s"): 2.5e12}),
    ("6 us an op", {("device", "op_s"): 6e-6}),
    ("link at 45 GB/s", {("rates", "upload", "bytes_per_s"): 45e9, ("rates", "download", "bytes_per_s"): 45e9}),
    ("host's update at 100 GB/s", {("rates", "update", "bytes_per_s"): 100e9}),
)


def model_flops(case, parameters):
    """Of a token: six for each parameter that multiplies, and causal attention."""
    shape = SHAPES[case.model]
    return 6 * (parameters - shape.untied_table) + 6 * shape.layers * shape.hidden * SEQ


def machine_of(case):
    return os.path.join(TOP, "bench", "machines", case.machine + ".json")


def predict(case, machine):
    command = [PROGRAM, "plan", "--machine", machine, "--model", case.model, "--precision", "bf16", "--seq", str(SEQ),
               "--micro-batch", str(case.micro_batch), "--batch-tokens", str(case.batch_tokens), *case.flags, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    plan = json.loads(ended.stdout)
    with open(machine, encoding="utf-8") as file:
        products = json.load(file)["device"]["bf16_flops_per_s"]
    speed = plan["predicted"]["plain"]["tokens_per_second"]
    return speed, model_flops(case, plan["parameters"]) * speed / products, plan["group"]


def vary():
    print("Predicted by the rates in bench/machines with one number changed; nothing here was measured.")
    for what, changes in VARIATIONS:
        with open(machine_of(VARIED), encoding="utf-8") as file:
            machine = json.load(file)
        for members, value in changes.items():
            inner = machine
            for member in members[:-1]:
                inner = inner[member]
            inner[members[-1]] = value
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(machine, file)
            file.flush()
            print(f"{what:<28}{predict(VARIED, file.name)[0]:>9.0f} tokens/s", flush=True)


def main():
    if sys.argv[1:] == ["--vary"]:
        return vary()
    if sys.argv[1:]:
        return "usage: predictions.py [--vary]"
    print("Predicted by the rates in bench/machines, which are assumed; nothing here was measured.")
    print(f"{'machine':<9}{'model':<14}{'tokens':>8} {'micro':>5} {'group':>5}  {'state':<19}{'tokens/s':>9}"
          f"{'of products':>13}{'of resident':>13}")
    speeds = {}
    for case in CASES:
        speed, share, group = predict(case, machine_of(case))
        speeds[case.machine, case.model, case.what] = speed
        beside = speeds.get((case.machine, case.model, case.beside))
        print(f"{case.machine:<9}{case.model:<14}{case.batch_tokens:>8} {case.micro_batch:>5} {group:>5}  {case.what:<19}"
              f"{speed:>9.0f}{share:>13.2f}" + ("" if beside is None else f"{speed / beside:>13.3f}"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
