#!/usr/bin/env python3
"""Compares spillway with the torch and transformers that are installed, for any config.json.

Makes a random checkpoint of the configuration, trains it in both, exports, loads the export in transformers, and
compares. Prints a line of errors a stage; exits 1 where one is above what is allowed. In bf16 what is allowed is 1.5
times the error of torch's own bf16 run, both as root mean squares over steps, tensors and some seeds: a single rounding
error may be many times another. In fp32 the largest error counts, and what training has led to may differ by twice as
much more as torch's fp32 run from its fp64 run: where a gradient is nearly zero, AdamW divides a rounding error by
itself. Torch's sum of squares of an fp32 gradient loses 1e-4 where a tensor is large, so norms are summed in fp64.

  live.py CONFIG.json [--seed N] [--seeds N] [--precision fp32|bf16] [--seq N] [--steps N] [--spillway build/spillway]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import safetensors.torch
import torch
import transformers

WINDOWS, MICRO_BATCH = 6, 2  # sequences of a step, which are all that the data has, so that their order is free
LR, CLIP, BETAS, EPS, DECAY = 1e-3, 1.0, (0.9, 0.95), 1e-8, 0.1
# The first step of AdamW with eps 1 takes lr·g/(|g| + 1) from a weight, which tells g.
PROBE_LR, PROBE_EPS = 1000.0, 1.0
LOSS, NORM, GRADIENT, WEIGHTS, LOGITS = 1e-5, 1e-4, 1e-4, 1e-3, 1e-4
FP32_FACTOR, BF16_FACTOR = 2.0, 1.5
TYPES = (torch.float32, torch.float64, torch.bfloat16)
BF16_FLOOR = {"loss": 2e-5, "gradient norm": 1e-3, "gradients": 1e-3, "weights": 1e-3, "logits": 1e-3}


def mean_square_root(errors):
    return (sum(error * error for error in errors) / len(errors)) ** 0.5


class Judge:
    """Collects the errors of all seeds, and then holds them to what is allowed."""

    def __init__(self, precision):
        self.precision, self.stages = precision, {}

    def take(self, stage, what, errors, stated, bf16_errors, fp32_error=0.0):
        """The last two are torch's own: of bf16 against fp32, and of fp32 against fp64 where that matters."""
        found = self.stages.setdefault((stage, what), {"stated": stated, "errors": [], "bf16": [], "fp32": []})
        found["errors"] += errors
        found["bf16"] += bf16_errors
        found["fp32"].append(fp32_error)

    def is_good(self, stage, what):
        found = self.stages[stage, what]
        if self.precision == "bf16":
            error, own = mean_square_root(found["errors"]), mean_square_root(found["bf16"])
            allowed = BF16_FACTOR * own + BF16_FLOOR[what]
        else:
            # max() would pass over a NaN that is not the first.
            error, own = float(numpy.max(found["errors"])), max(found["fp32"])
            allowed = found["stated"] + FP32_FACTOR * own
        good = error <= allowed  # a NaN is not
        beside = f", torch's {self.precision} {own:.1e}" if own else ""
        print(f"{stage}: {what} {error:.1e} (allowed {allowed:.1e}{beside}){'' if good else '  FAILED'}", flush=True)
        return good

    def all_are_good(self):
        return all([self.is_good(*key) for key in self.stages])


def balances(config):
    return getattr(config, "output_router_logits", False)


def micro_batch(config):
    """The balancing loss of a micro-batch depends on which sequences it has, and their order is free."""
    return WINDOWS if balances(config) else MICRO_BATCH


def norm_centre(config):
    """Returns the value that scales of norms are near; Gemma 3 keeps their differences from 1."""
    return 0.0 if config.model_type == "gemma3_text" else 1.0


def decays(name, parameter):
    """Tells whether weight decay applies. The biases of gpt-oss's experts are rows of a matrix."""
    return parameter.ndim >= 2 and not name.endswith("_bias")


def make_model(config, seed, folder):
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = parameter.ndim == 1 and name.endswith(".weight")
            parameter.copy_(norm_centre(config) + 0.1 * noise if scale else (0.06 if parameter.ndim > 1 else 0.02) * noise)
    model.save_pretrained(folder)


def make_data(vocab, seq, seed, path):
    """One window of tokens behind the other, each sharing its last token with the next."""
    generator = numpy.random.default_rng(seed)
    tokens = generator.integers(vocab, size=WINDOWS * seq + 1)
    tokens[1::2] = (5 * tokens[:-1:2] + 17) % vocab
    tokens.astype("<u2" if vocab <= 65536 else "<u4").tofile(path)
    return torch.tensor(numpy.stack([tokens[w * seq:(w + 1) * seq + 1] for w in range(WINDOWS)]))


EXPERT_MATRICES = {"mixtral": ("w1", "w3", "w2")}


def as_saved(config, tensors):
    """Names tensors as a checkpoint does: transformers keeps the matrices of all experts of a layer in two tensors, and
    only checkpoints of gpt-oss do so too."""
    if config.model_type == "gpt_oss":
        return tensors
    gate, up, down = EXPERT_MATRICES.get(config.model_type, ("gate_proj", "up_proj", "down_proj"))
    mlp = "block_sparse_moe" if config.model_type == "mixtral" else "mlp"
    saved = {}
    for name, tensor in tensors.items():
        block, _, matrix = name.partition(".mlp.experts.")
        for expert in range(len(tensor) if matrix else 0):
            parts = tensor[expert].chunk(2) if matrix == "gate_up_proj" else (tensor[expert],)
            for part, end in zip(parts, (gate, up) if len(parts) == 2 else (down,)):
                saved[f"{block}.{mlp}.experts.{expert}.{end}.weight"] = part
        if not matrix:
            saved[name.replace(".mlp.gate.", f".{mlp}.gate.")] = tensor
    return saved


class Torch:
    """Trains with fp32 masters in a compute type; all in fp64 for fp64."""

    def __init__(self, folder, dtype):
        # Eager, as grouped products of experts do not exist in fp64.
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                                       experts_implementation="eager").eval()
        self.master_type = torch.float64 if dtype == torch.float64 else torch.float32
        self.master = {name: p.detach().to(self.master_type).clone() for name, p in self.model.named_parameters()}
        self.config = self.model.config
        self.model.to(dtype)
        self.compute = dict(self.model.named_parameters())

    def saved(self):
        return as_saved(self.config, {name: p.detach() for name, p in self.master.items()})

    def saved_gradients(self):
        return as_saved(self.config, {name: p.grad for name, p in self.master.items()})

    def logits(self, tokens):
        with torch.no_grad():
            return self.model(input_ids=tokens[:MICRO_BATCH, :-1], use_cache=False).logits.double()

    def gradients(self, tokens):
        total, parts = 0.0, tokens.split(micro_batch(self.config))
        for parameter in self.master.values():
            parameter.grad = torch.zeros_like(parameter)
        for part in parts:
            result = self.model(input_ids=part[:, :-1], use_cache=False)
            logits = result.logits.to(self.master_type)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
            # The balancing loss is no part of the loss that spillway reports.
            balance = result.aux_loss if balances(self.config) else None
            self.model.zero_grad()
            ((loss if balance is None else loss + self.config.router_aux_loss_coef * balance) / len(parts)).backward()
            for name, parameter in self.master.items():
                parameter.grad += self.compute[name].grad.to(self.master_type)
            total += loss.item() / len(parts)
        return total

    def train(self, tokens, steps):
        groups = [{"params": [p for name, p in self.master.items() if decays(name, p) == decayed],
                   "weight_decay": DECAY if decayed else 0.0} for decayed in (True, False)]
        adamw = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
        losses, norms = [], []
        for _ in range(steps):
            losses.append(self.gradients(tokens))
            norm = sum(p.grad.double().square().sum() for p in self.master.values()).sqrt()
            torch.nn.utils.clip_grads_with_norm_(list(self.master.values()), CLIP, norm)
            norms.append(norm.item())
            adamw.step()
            with torch.no_grad():
                for name, parameter in self.master.items():
                    self.compute[name].copy_(parameter)
        return losses, norms


def spillway(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"live.py: spillway {arguments[0]} failed: {done.stderr.strip()}")


def train(arguments, folder, data, run, steps, *more):
    spillway(arguments.spillway, "train", "--model", folder, "--data", data, "--run", run, "--steps", steps, "--seq",
             arguments.seq, "--micro-batch", micro_batch(arguments.model_config), "--batch-tokens", WINDOWS * arguments.seq, "--schedule",
             "constant", "--warmup", 0, "--precision", arguments.precision, "--beta1", BETAS[0], "--beta2", BETAS[1],
             *more)
    spillway(arguments.spillway, "export", run, run.with_suffix(".out"))
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in log if "loss" in line], run.with_suffix(".out")


def load_tensors(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def relative(found, wanted):
    return [abs(a - b) / abs(b) for a, b in zip(found, wanted)]


def distance(found, wanted, scale):
    """Returns the distance of all tensors together, over the norm of `scale`."""
    squares = sum((found[name].double() - wanted[name].double()).square().sum().item() for name in wanted)
    return (squares / sum(t.double().square().sum().item() for t in scale.values())) ** 0.5


def gradient_errors(found, wanted):
    """An expert without tokens has no gradient, to the bit."""
    return [((found[n].double() - g.double()).norm() / (g.double().norm() if g.any() else 1e-30)).item()
            for n, g in wanted.items()]


def compare_gradients(judge, arguments, folder, data, tokens, out):
    before = load_tensors(folder)
    _, export = train(arguments, folder, data, out / "once", 1, "--lr", PROBE_LR, "--eps", PROBE_EPS,
                      "--weight-decay", 0, "--clip", 0)
    after = load_tensors(export)
    runs = {dtype: Torch(folder, dtype) for dtype in (torch.float32, torch.bfloat16)}
    grads = {}
    for dtype, run in runs.items():
        run.gradients(tokens)
        grads[dtype] = run.saved_gradients()
    taken = {name: (before[name].double() - after[name].double()) / PROBE_LR for name in grads[torch.float32]}
    found = {name: change / (1.0 - change.abs()) for name, change in taken.items()}
    judge.take("one step", "gradients", gradient_errors(found, grads[torch.float32]), GRADIENT,
               gradient_errors(grads[torch.bfloat16], grads[torch.float32]))


def compare_training(judge, arguments, folder, data, tokens, out):
    before = load_tensors(folder)
    log, export = train(arguments, folder, data, out / "run", arguments.steps, "--lr", LR, "--eps", EPS,
                        "--weight-decay", DECAY, "--clip", CLIP)
    runs = {dtype: Torch(folder, dtype) for dtype in TYPES}
    results = {dtype: run.train(tokens, arguments.steps) for dtype, run in runs.items()}
    stage, (losses, norms) = f"{arguments.steps} steps", results[torch.float32]
    judge.take(stage, "loss", relative([line["loss"] for line in log], losses), LOSS,
               relative(results[torch.bfloat16][0], losses))
    judge.take(stage, "gradient norm", relative([line["grad_norm"] for line in log], norms), NORM,
               relative(results[torch.bfloat16][1], norms))
    wanted, exact, bf16 = (runs[dtype].saved() for dtype in TYPES)
    moved = {name: tensor - before[name] for name, tensor in wanted.items()}
    judge.take(stage, "weights", [distance(load_tensors(export), wanted, moved)], WEIGHTS,
               [distance(bf16, wanted, moved)], distance(exact, wanted, moved))
    compare_export(judge, tokens, export, runs)


def compare_export(judge, tokens, export, runs):
    wanted = runs[torch.float32].logits(tokens)

    def error(run):
        return ((run.logits(tokens) - wanted).abs().max() / wanted.abs().max()).item()

    judge.take("the export", "logits", [error(Torch(export, torch.float32))], LOGITS, [error(runs[torch.bfloat16])],
               error(runs[torch.float64]))


def compare_seed(judge, arguments, config, seed):
    out = pathlib.Path(tempfile.mkdtemp(prefix="spillway-live-", dir=os.environ.get("TMPDIR")))
    try:
        folder, data = out / "model", out / "data.bin"
        make_model(config, seed, folder)
        tokens = make_data(config.vocab_size, arguments.seq, seed, data)
        compare_gradients(judge, arguments, folder, data, tokens, out)
        compare_training(judge, arguments, folder, data, tokens, out)
    finally:
        shutil.rmtree(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, help="how many seeds (default: 1 in fp32, 4 in bf16)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--seq", type=int, default=48)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--spillway", default=pathlib.Path(__file__).resolve().parents[2] / "build" / "spillway")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    seeds = arguments.seeds or (4 if arguments.precision == "bf16" else 1)
    config, judge = transformers.AutoConfig.from_pretrained(arguments.config), Judge(arguments.precision)
    arguments.model_config = config
    for seed in range(arguments.seed, arguments.seed + seeds):
        compare_seed(judge, arguments, config, seed)
    sys.exit(0 if judge.all_are_good() else 1)


if __name__ == "__main__":
    main()
