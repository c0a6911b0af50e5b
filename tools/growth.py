#!/usr/bin/env python3
"""Measures what grows with the work: step, start, resume, plan and peak memory over parameters, tokens, data, chunks and ranks.
Writes every number as JSON, a table with the slope of each series, and a picture.

  growth.py [--only NAME,...] [--largest PARAMETERS] [--rounds N] [--nvme DIR] [--json FILE] [--from FILE] [--write FILE] [--svg FILE]

A slope is the exponent of growth, log(y2 / y1) / log(x2 / x1), between a series' last two points: 1 is linear. Trainings run
on this machine; plans are for a described H100, whose rates are assumed. --from makes table and picture of an older JSON.
"""

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from marked import put_between_marks

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
SEQ, VOCAB, HEAD_WIDTH, STEPS = 256, 256, 64, 3
TRAINED = ((4, 128), (6, 256), (8, 512), (12, 768), (24, 1024), (24, 2048))  # layers, width
PLANNED = ("gpt2-tiny", "gpt2-demo", "gpt2-124m", "qwen2.5-0.5b", "gpt2-1.5b", "qwen2.5-7b", "qwen2.5-14b", "llama-70b")
MIDDLE = (6, 256)
NUMBERS = ("step_s", "start_s", "resume_s", "plan_s", "peak_mib")


def parameters_of(layers, width):
    return layers * 12 * width * width + (VOCAB + SEQ) * width


def run(arguments):
    """Runs the program; returns its wall time, its peak memory in MiB, and what it printed."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.monotonic()
        child = subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        took = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if child.returncode != 0:
            sys.exit(f"growth.py: spillway {' '.join(arguments)}: {errors.read().strip()[-500:]}")
        return took, usage.ru_maxrss / 1024, output.read()


def write_model(folder, shape):
    layers, width = shape
    path = os.path.join(folder, f"model-{layers}-{width}")
    if not os.path.isdir(path):
        os.mkdir(path)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": width // HEAD_WIDTH,
                       "n_positions": SEQ, "vocab_size": VOCAB, "tie_word_embeddings": True}, file)
    return path


def write_data(folder, tokens):
    """Writes uint16 tokens that were last written long ago, as data of a real run were."""
    path = os.path.join(folder, f"data-{tokens}.bin")
    if not os.path.exists(path):
        block = bytes(byte for value in range(1 << 15) for byte in (value * 31 % VOCAB, 0))
        with open(path, "wb") as file:
            for _ in range(tokens // (1 << 15)):
                file.write(block)
        os.utime(path, (1e9, 1e9))
    return path


def seconds_of_steps(folder):
    with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
        return [line["seconds"] for line in map(json.loads, file) if "seconds" in line and "loss" in line]


def train(folder, nvme, shape, tokens=SEQ, data_tokens=1 << 17, more=()):
    """Trains and resumes; returns the numbers of one point."""
    flags = ["--model", write_model(folder, shape), "--batch-tokens", str(tokens), "--seq", str(SEQ), "--micro-batch",
             str(min(16, tokens // SEQ)), "--place", "optimizer=nvme", *more]
    data, place = write_data(folder, data_tokens), os.path.join(nvme, "run")
    plan_s, _, _ = run(["plan", *flags, "--nvme", nvme])
    first_s, peak, _ = run(["train", *flags, "--init", "--data", data, "--run", place, "--steps", str(STEPS)])
    steps = seconds_of_steps(place)
    again_s, _, _ = run(["resume", place, "--steps", str(STEPS + 1), "--min-lr", "1e-4"])
    last = seconds_of_steps(place)[-1]
    shutil.rmtree(place)
    return {"step_s": statistics.median(steps), "start_s": first_s - sum(steps), "resume_s": again_s - last,
            "plan_s": plan_s, "peak_mib": peak}


def plan(model, more=()):
    seconds, peak, _ = run(["plan", "--model", model, "--machine", "h100", "--json", *more])
    return {"plan_s": seconds, "peak_mib": peak}


def parameters_of_preset(model):
    _, _, text = run(["plan", "--model", model, "--machine", "h100", "--json"])
    return json.loads(text)["parameters"]


def series(folder, nvme, largest):
    """The series: name, unit of x, and points as (x, function that measures it)."""
    shapes = [shape for shape in TRAINED if parameters_of(*shape) <= largest]
    return {
        "parameters": ("trained here, 256 tokens a step", [
            (parameters_of(*shape), lambda shape=shape: train(folder, nvme, shape)) for shape in shapes]),
        "tokens": ("tokens a step, 4.9M parameters", [
            (tokens, lambda tokens=tokens: train(folder, nvme, MIDDLE, tokens=tokens))
            for tokens in (256, 1024, 4096, 16384)]),
        "data": ("tokens of data, 4.9M parameters", [
            (tokens, lambda tokens=tokens: train(folder, nvme, MIDDLE, data_tokens=tokens))
            for tokens in (1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30)]),
        "chunks": ("chunks of the optimizer, 85M parameters", [
            (parameters_of(12, 768) // (16384 * grains),
             lambda grains=grains: train(folder, nvme, (12, 768), more=("--chunk-grains", str(grains))))
            for grains in (64, 16, 4, 1)]),
        "planned parameters": ("planned for an H100", [
            (parameters_of_preset(model), lambda model=model: plan(model)) for model in PLANNED]),
        "planned ranks": ("ranks of a plan, llama-8b on H100s, ZeRO 3", [
            (ranks, lambda ranks=ranks: plan("llama-8b", ("--ranks", str(ranks), "--zero", "3", "--batch-tokens",
                                                          str(8192 * ranks), "--seq", "4096")))
            for ranks in (1, 8, 64, 512)]),
    }


def measure(given):
    found = []
    run(["plan", "--model", "gpt2-tiny", "--nvme", given.nvme])  # measures the machine's profile where none is kept
    with tempfile.TemporaryDirectory(dir=given.nvme) as folder, tempfile.TemporaryDirectory(dir=given.nvme) as nvme:
        for name, (what, points) in series(folder, nvme, given.largest).items():
            if given.only and name not in given.only.split(","):
                continue
            for x, point in points:
                rounds = [point() for _ in range(given.rounds)]
                row = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
                found.append({"series": name, "what": what, "x": x, "rounds": rounds, **row})
                print(json.dumps({key: value for key, value in found[-1].items() if key != "rounds"}), flush=True)
    commit = subprocess.run(["git", "-C", TOP, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {"machine": {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
            "commit": commit, "rounds": given.rounds, "points": found}


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def slope(points, key):
    (x1, y1), (x2, y2) = [(point["x"], point[key]) for point in points[-2:]]
    return math.log(y2 / y1) / math.log(x2 / x1)


def of_series(result):
    grouped = {}
    for point in result["points"]:
        grouped.setdefault(point["series"], []).append(point)
    return grouped


def table(result):
    lines = ["| series | x | " + " | ".join(("step", "start", "resume", "plan", "peak")) + " |", "|---" * 7 + "|"]
    units = {"step_s": " s", "start_s": " s", "resume_s": " s", "plan_s": " s", "peak_mib": " MiB"}
    for name, points in of_series(result).items():
        for point in points:
            cells = [f"{point[key]:.3g}{units[key]}" if point.get(key, 0) > 0 and point[key] < 1000 else
                     f"{point[key]:.0f}{units[key]}" if key in point else "" for key in NUMBERS]
            lines.append(f"| {name} | {point['x']:,} | {' | '.join(cells)} |")
        if len(points) > 1:
            cells = [f"**{slope(points, key):.2f}**" if key in points[0] else "" for key in NUMBERS]
            lines.append(f"| {points[0]['what']} | slope | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(result):
    """Draws every series in a panel with logarithmic axes, y over x."""
    colors = dict(zip(NUMBERS, ("#1f6f8b", "#c0392b", "#8e44ad", "#27ae60", "#b7950b")))
    width, height, gap, panels = 300, 220, 50, list(of_series(result).items())
    parts = []
    for index, (name, points) in enumerate(panels):
        left, top = 40 + (index % 3) * (width + gap), 60 + (index // 3) * (height + gap + 20)
        xs = [math.log10(point["x"]) for point in points]
        ys = [math.log10(point[key]) for point in points for key in NUMBERS if point.get(key, 0) > 0]
        low, high, first, last = math.floor(min(ys)), math.ceil(max(ys)), min(xs), max(xs)

        def at(x, y, left=left, top=top, low=low, high=high, first=first, last=last):
            return (left + width * (x - first) / max(1e-9, last - first), top + height * (high - y) / max(1, high - low))

        parts.append(f'<text x="{left}" y="{top - 10}" font-weight="bold">{name}</text>'
                     f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>')
        for exponent in range(low, high + 1):
            _, y = at(first, exponent)
            parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                         f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">1e{exponent}</text>')
        parts.append(f'<text x="{left}" y="{top + height + 16}">{points[0]["x"]:,}</text>'
                     f'<text x="{left + width}" y="{top + height + 16}" text-anchor="end">{points[-1]["x"]:,}</text>')
        for key in NUMBERS:
            line = [at(math.log10(p["x"]), math.log10(p[key])) for p in points if p.get(key, 0) > 0]
            parts.append(f'<polyline fill="none" stroke="{colors[key]}" stroke-width="2" points="'
                         + " ".join(f"{x:.1f},{y:.1f}" for x, y in line) + '"/>')
    legend = "".join(f'<text x="{40 + 160 * i}" y="20" fill="{colors[key]}">{label}</text>' for i, (key, label) in enumerate(
        zip(NUMBERS, ("step, s", "start, s", "resume, s", "plan, s", "peak, MiB"))))
    rows = math.ceil(len(panels) / 3)
    total = (3 * (width + gap) + 40, rows * (height + gap + 20) + 70)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="white"/>{legend}{"".join(parts)}</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of series")
    parser.add_argument("--largest", type=float, default=1.3e9, help="parameters of the largest model that is trained")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--nvme", default=".", help="folder on the drive to measure; the largest model takes 36 GB")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--from", dest="given", metavar="FILE")
    parser.add_argument("--write", metavar="FILE", help="Markdown file with the marks of growth.py")
    parser.add_argument("--svg", metavar="FILE")
    given = parser.parse_args()
    if given.given is not None:
        with open(given.given, encoding="utf-8") as file:
            result = json.load(file)
    else:
        result = measure(given)
    for path, text in ((given.json, json.dumps(result, indent=1) + "\n"), (given.svg, picture(result))):
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    if given.write is not None:
        put_between_marks(given.write, "growth.py", table(result))
    else:
        print(table(result), end="")


if __name__ == "__main__":
    main()
