#!/usr/bin/env python3
"""Makes tests/data/sampler.json: logits, and the probabilities that transformers' warpers leave of them, in the order of
its generate(): temperature, top-k, top-p, min-p. The warpers' source is taken out of an installed transformers, so that
any PyTorch runs it.

usage: golden_sampler.py LOGITS_PROCESS.PY, the file transformers/generation/logits_process.py of the package
"""

import json
import pathlib
import random
import re
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
WARPERS = ("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper")


def warpers(path):
    source = pathlib.Path(path).read_text(encoding="utf-8")
    space = {"torch": torch, "LogitsProcessor": object, "LOGITS_PROCESSOR_INPUTS_DOCSTRING": "",
             "add_start_docstrings": lambda *_: lambda function: function}
    for name in WARPERS:
        exec(re.search(rf"^class {name}\(.*?(?=^class |\Z)", source, re.M | re.S)[0], space)
    return [space[name] for name in WARPERS]


def probabilities(kinds, case, swapped=False):
    temperature, top_k, top_p, min_p = kinds
    scores = torch.tensor([case["logits"]], dtype=torch.float32)
    steps = [temperature(case["temperature"])]
    steps += [top_k(case["top_k"])] if case["top_k"] else []
    last = [top_p(case["top_p"])] if case["top_p"] < 1 else []
    last += [min_p(case["min_p"])] if case["min_p"] else []
    for step in steps + (last[::-1] if swapped else last):
        scores = step(None, scores)
    return [round(value, 6) for value in torch.softmax(scores, -1)[0].tolist()]


def main():
    kinds, draw, cases = warpers(sys.argv[1]), random.Random(3), []
    fixed = [[1.0, 3.0, 1.0, 2.0, 1.0, 1.0], [0.0] * 6]
    while len(cases) < 40:
        number = len(cases)
        logits = fixed[number // 2] if number % 2 == 0 and number // 2 < len(fixed) else [round(draw.uniform(-2, 2), 3) for _ in range(9)]
        case = {"temperature": draw.choice((1.0, 0.7, 1.6)), "top_k": draw.choice((0, 0, 4, 6)),
                "top_p": draw.choice((1, 0.9, 0.6, 0.35)), "min_p": draw.choice((0, 0.1, 0.2, 0.45)), "logits": logits}
        left = probabilities(kinds, case)
        # Half of the cases are those in which the order of top-p and min-p matters.
        if number % 2 == 0 or left != probabilities(kinds, case, swapped=True):
            cases.append({**case, "probabilities": left})
    path = ROOT / "tests" / "data" / "sampler.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{path.relative_to(ROOT)}: {len(cases)} cases")


if __name__ == "__main__":
    main()
