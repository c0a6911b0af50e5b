#!/usr/bin/env python3
"""Makes the golden files under tests/data: what PyTorch and transformers compute, for the tests in C to reproduce.

Everything follows from the seeds in this file, on one thread, so a second run on the same machine and versions
writes the same bytes. The fields of the files are described in tests/parity/README.md.
"""

import argparse
import dataclasses
import json
import pathlib

import numpy
import safetensors.torch
import torch
import transformers

from golden_cases import CASES, FAMILIES

TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
PROJECTIONS = 8
SAMPLES = 64
LOGIT_SAMPLES = 128
UPDATE_STEPS = 1000
UPDATE_LENGTHS = (1, 15, 16, 17, 1_000_003)
UPDATE_SAMPLES = 4096
GRAIN_ELEMS = 16384
IGNORED = -100  # a target without a loss, as torch has it


# --- Writing ---------------------------------------------------------------------------------------------------------


def rounded(value):
    """Nine significant digits, which identify a float32."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def write_json(path, content):
    """One line a field, and one line an entry of a list of objects or lists, so that differences can be read."""

    def compact(value):
        return json.dumps(rounded(value), separators=(",", ":"), allow_nan=False)

    def field(value):
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            return "[\n" + ",\n".join(compact(item) for item in value) + "\n]"
        return compact(value)

    lines = [f"{json.dumps(key)}:{field(value)}" for key, value in content.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path}: {path.stat().st_size:,} bytes")


def versions():
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def splitmix64(values):
    """The output of the SplitMix64 generator in state `values` (uint64 array), element by element."""
    z = values + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


# --- Models ----------------------------------------------------------------------------------------------------------


def make_model(case, generator):
    """A model whose every parameter is random, so that no bias is zero and no scale is one."""
    family = FAMILIES[case.family]
    config = family.config(**case.config, **family.settings, bos_token_id=None, eos_token_id=None)
    model = family.model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(case.weight_std * noise)
            elif (".ln_" in name or "norm" in name) and name.endswith(".weight"):
                parameter.copy_(1.0 + 0.1 * noise)
            else:
                parameter.copy_(0.05 * noise)
    return model


def save_model(case, model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tensors = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    if case.published_form and case.family == "gpt2":
        positions = case.config["n_positions"]
        mask = torch.tril(torch.ones(positions, positions)).reshape(1, 1, positions, positions)
        tensors = {name.removeprefix(case.prefix): tensor for name, tensor in tensors.items()}
        tensors |= {f"h.{layer}.attn.bias": mask.clone() for layer in range(case.config["n_layer"])}
    elif case.published_form:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["rope_scaling"] = config.pop("rope_parameters")
        config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def make_tokens(case, generator):
    """[step, micro-batch, sequence, seq+1] tokens in which the next can mostly be guessed from the one before."""
    vocab = case.config["vocab_size"]
    shape = (case.optimizer.steps, case.micro_batches, case.batch)
    tokens = torch.empty(*shape, case.seq + 1, dtype=torch.int64)
    tokens[..., 0] = torch.randint(vocab, shape, generator=generator)
    for position in range(1, case.seq + 1):
        follow = (5 * tokens[..., position - 1] + 17 + torch.randint(3, shape, generator=generator)) % vocab
        jump = torch.randint(vocab, shape, generator=generator)
        tokens[..., position] = torch.where(torch.rand(shape, generator=generator) < 0.1, jump, follow)
    return tokens


def make_document_starts(case, generator):
    """[step][micro-batch][sequence]: where each of the sequence's documents begins, or None where there are none.

    As many in every sequence, so that as many targets have a loss in every micro-batch.
    """
    if case.documents == 0:
        return None

    def sequence():
        return [0, *sorted((1 + torch.randperm(case.seq - 1, generator=generator)[:case.documents - 1]).tolist())]

    return [[[sequence() for _ in range(case.batch)] for _ in range(case.micro_batches)]
            for _ in range(case.optimizer.steps)]


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    tokens: torch.Tensor  # [sequence, seq+1]
    starts: list | None  # of each sequence's documents

    def targets(self):
        targets = self.tokens[:, 1:].clone()
        for row, starts in zip(targets, self.starts or []):
            row[torch.tensor(starts[1:]) - 1] = IGNORED
        return targets

    def inputs(self, window, dtype):
        """Documents are told by a mask of what each token sees, and by positions that begin anew."""
        inputs = {"input_ids": self.tokens[:, :-1], "use_cache": False}
        if self.starts is None:
            return inputs
        place = torch.arange(self.tokens.shape[1] - 1)
        begin = torch.stack([torch.tensor([max(s for s in starts if s <= t) for t in place]) for starts in self.starts])
        query, key = place[:, None], place[None, :]
        seen = (key <= query) & (key > query - window) & (key >= begin[:, :, None])
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        return inputs | {"position_ids": place - begin, "attention_mask": mask[:, None]}

    def alone(self):
        """Each document as a micro-batch of its own; a target in the next document is none."""
        for row, starts in zip(self.tokens, self.starts):
            for begin, end in zip(starts, [*starts[1:], len(row)]):
                if end - begin > 1:
                    yield MicroBatch(row[None, begin:end], None)


def micro_batches_of(tokens, starts):
    """[step][micro-batch] of all tokens."""
    return [[MicroBatch(part, starts and starts[s][m]) for m, part in enumerate(step)] for s, step in enumerate(tokens)]


class Run:
    """Trains a copy of the model in a compute type, with master parameters in fp32, or fp64 for fp64."""

    def __init__(self, case, folder, dtype):
        self.case = case
        self.model = FAMILIES[case.family].model.from_pretrained(folder, dtype=torch.float32)
        self.model.eval()
        master_type = torch.float64 if dtype == torch.float64 else torch.float32
        self.master = {name.removeprefix(case.prefix): parameter.detach().to(master_type).clone()
                       for name, parameter in self.model.named_parameters()}
        self.model.to(dtype)
        self.compute = {name.removeprefix(case.prefix): parameter for name, parameter in self.model.named_parameters()}
        o = case.optimizer
        groups = [
            {"params": [p for p in self.master.values() if p.ndim >= 2], "weight_decay": o.weight_decay},
            {"params": [p for p in self.master.values() if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, foreach=False)

    def logits(self, micro_batch):
        window = self.case.config.get("sliding_window", self.case.seq)
        return self.model(**micro_batch.inputs(window, self.model.dtype)).logits

    def gradients(self, micro_batches):
        """Leaves the mean gradient of the micro-batches in the masters; returns the mean loss."""
        total = 0.0
        for parameter in self.master.values():
            parameter.grad = torch.zeros_like(parameter)
        for micro_batch in micro_batches:
            logits = self.logits(micro_batch)
            logits = logits.float() if logits.dtype == torch.bfloat16 else logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), micro_batch.targets().flatten())
            self.model.zero_grad()
            (loss / len(micro_batches)).backward()
            for name, parameter in self.master.items():
                parameter.grad += self.compute[name].grad.to(parameter.dtype)
            total += loss.item()
        return total / len(micro_batches)

    def update(self, step):
        """Clips, updates the masters and refreshes the compute parameters; returns the norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(list(self.master.values()), self.case.optimizer.clip, foreach=False)
        for group in self.adamw.param_groups:
            group["lr"] = self.case.optimizer.rate(step)
        self.adamw.step()
        with torch.no_grad():
            for name, parameter in self.master.items():
                self.compute[name].copy_(parameter)
        return norm.item()

    def train(self, all_micro_batches):
        """Returns each step's loss and gradient norm, the first step's gradients and the last weights."""
        losses, norms, first = [], [], None
        for step, micro_batches in enumerate(all_micro_batches, start=1):
            losses.append(self.gradients(micro_batches))
            first = first or {name: p.grad.double().clone() for name, p in self.master.items()}
            norms.append(self.update(step))
        return losses, norms, first, {name: p.detach().double() for name, p in self.master.items()}


def logit_samples(runs, micro_batches, generator):
    """Logits of the initial weights at random places of the first step's batch."""
    sampled = {name: torch.stack([run.logits(m).detach().double() for m in micro_batches])
               for name, run in runs.items()}
    sizes = sampled["f32"].shape
    at = torch.stack([torch.randint(size, (LOGIT_SAMPLES,), generator=generator) for size in sizes], dim=1)
    values = {name: all_logits[tuple(at.T)].tolist() for name, all_logits in sampled.items()}
    return {"at": at.tolist(), **values}


def projections(tensor):
    """Dot products with the sign vectors given by bits 0, 1, ... of splitmix64(index): bit set means minus."""
    flat = tensor.double().flatten().numpy()
    bits = splitmix64(numpy.arange(flat.size, dtype=numpy.uint64))
    signs = (1.0 - 2.0 * ((bits >> numpy.uint64(k)) & numpy.uint64(1)).astype(numpy.float64)
             for k in range(PROJECTIONS))
    return [float(numpy.dot(flat, sign)) for sign in signs]


def undetermined(name, count):
    """The elements whose gradient is zero in exact arithmetic: softmax ignores what the key biases add to a row.

    AdamW turns the rounding errors there into steps of any sign, which change nothing that the model computes.
    """
    return (count // 3, 2 * count // 3) if name.endswith("c_attn.bias") else (0, 0)


def tensor_record(name, initial, first, final, generator):
    """Returns the kept parts of a tensor: norms, projections and samples of its first gradient and of its last value."""
    begin, end = undetermined(name, initial.numel())
    determined = torch.ones(initial.numel(), dtype=torch.float64)
    determined[begin:end] = 0
    candidates = determined.nonzero().flatten()
    at = candidates[torch.randperm(len(candidates), generator=generator)[:SAMPLES]].sort().values
    grad, truth = first["f32"][name], first["f64"][name]
    initial, weight, weight64, weight_bf16 = (
        tensor * determined.reshape(tensor.shape) for tensor in (initial, *(final[t][name] for t in TYPES)))
    return {
        "name": name,
        "shape": list(initial.shape),
        "at": at.tolist(),
        "undetermined": [begin, end],
        "grad_norm": grad.norm().item(),
        "grad_projections": projections(grad),
        "grad": grad.flatten()[at].tolist(),
        "grad_norm64": truth.norm().item(),
        "grad_projections64": projections(truth),
        "grad_error": ((grad - truth).norm() / truth.norm()).item(),
        "grad_error_bf16": ((first["bf16"][name] - truth).norm() / truth.norm()).item(),
        "weight_norm": weight.norm().item(),
        "weight_change": (weight - initial).norm().item(),
        "weight_projections": projections(weight),
        "weight": weight.flatten()[at].tolist(),
        "weight_error": (weight - weight64).norm().item(),
        "weight_error_bf16": (weight_bf16 - weight64).norm().item(),
    }


def check_documents(case, run, micro_batch):
    """Packed documents must have the losses that transformers gives to each of them alone."""

    def loss_sum(part):
        return torch.nn.functional.cross_entropy(run.logits(part).flatten(0, 1), part.targets().flatten(),
                                                 reduction="sum").item()

    packed, alone = loss_sum(micro_batch), sum(loss_sum(part) for part in micro_batch.alone())
    if not abs(packed - alone) <= 1e-9 * alone:
        raise SystemExit(f"{case.name}: a packed micro-batch has a loss of {packed}, its documents alone {alone}")


def check_steps(case, losses, norms):
    """The golden run must exercise what it is for, and be well enough conditioned to be a target."""
    clipped = sum(norm > case.optimizer.clip for norm in norms["f32"])
    drift = max(abs(a - b) / b for a, b in zip(losses["f32"], losses["f64"]))
    print(f"{case.name}: loss {losses['f32'][0]:.4f} -> {losses['f32'][-1]:.4f}, {clipped} of {len(norms['f32'])} "
          f"steps clipped, fp32 to fp64 loss {drift:.1e}")
    if not 3 <= clipped <= len(norms["f32"]) - 3:
        raise SystemExit(f"{case.name}: {clipped} steps clip; choose a learning rate with some that do and some not")
    if drift > 2e-6:
        raise SystemExit(f"{case.name}: fp32 and fp64 losses differ by {drift:.1e}; choose a smaller learning rate")


def model_golden(case, out):
    generator = torch.Generator().manual_seed(case.seed)
    folder = out / case.name
    save_model(case, make_model(case, generator), folder)
    tokens, starts = make_tokens(case, generator), make_document_starts(case, generator)
    micro_batches = micro_batches_of(tokens, starts)
    runs = {name: Run(case, folder, dtype) for name, dtype in TYPES.items()}
    initial = {name: p.double().clone() for name, p in runs["f32"].master.items()}
    if starts:
        check_documents(case, runs["f64"], micro_batches[0][0])
    logits = logit_samples(runs, micro_batches[0], generator)
    results = {name: run.train(micro_batches) for name, run in runs.items()}
    losses, norms, first, final = ({name: result[i] for name, result in results.items()} for i in range(4))
    check_steps(case, losses, norms)
    steps = [{"lr": case.optimizer.rate(i + 1), "loss": losses["f32"][i], "grad_norm": norms["f32"][i],
              "loss64": losses["f64"][i], "grad_norm64": norms["f64"][i], "loss_bf16": losses["bf16"][i],
              "grad_norm_bf16": norms["bf16"][i]} for i in range(case.optimizer.steps)]
    write_json(out / f"{case.name}.json", {
        "versions": versions(),
        "model": case.name,
        "seed": case.seed,
        "prefix": "" if case.published_form else case.prefix,
        "micro_batches": case.micro_batches,
        "batch": case.batch,
        "seq": case.seq,
        "optimizer": dataclasses.asdict(case.optimizer),
        "steps": steps,
        "tensors": [tensor_record(name, initial[name], first, final, generator) for name in initial],
        "logits": logits,
        "tokens": tokens.tolist(),
    } | ({"document_starts": starts} if starts else {}))


# --- The update ------------------------------------------------------------------------------------------------------

# The power of two that bounds the gradients of element i is class i % 8; None is an element without gradient. They
# reach from squares that are subnormal, past the optimizer's eps (2^-27), to far above what clipping would let through.
GRADIENT_EXPONENTS = (-7, 0, -14, -26, None, -66, 6, 12)
UPDATE_CASES = (
    {"name": "decay", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    {"name": "no_decay", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
)


def hashed(step, count):
    return splitmix64(numpy.arange(count, dtype=numpy.uint64) + (numpy.uint64(step) << numpy.uint64(32)))


def initial_parameters(count):
    index = numpy.arange(count)
    offset = (hashed(0, count) >> numpy.uint64(44)).astype(numpy.float32) - numpy.float32(2**19)
    around = (index // 8 % 4 == 3).astype(numpy.float32)
    return around + offset * numpy.float32(2.0**-23)


def gradient_scales(count):
    scales = [0.0 if e is None else 2.0 ** (e - 23) for e in GRADIENT_EXPONENTS]
    return numpy.asarray(scales, dtype=numpy.float32)[numpy.arange(count) % len(scales)]


def gradients(step, scales):
    bits = hashed(step, scales.size)
    mantissa = (bits >> numpy.uint64(40)).astype(numpy.float32) - numpy.float32(2**23)
    return numpy.where((bits & numpy.uint64(15)) == 0, numpy.float32(0), mantissa * scales)


def update_rate(step):
    return (1 + step % 64) * 2.0**-16


def run_update(case, count):
    parameter = torch.from_numpy(initial_parameters(count))
    adamw = torch.optim.AdamW([parameter], betas=(case["beta1"], case["beta2"]), eps=case["eps"],
                              weight_decay=case["weight_decay"], foreach=False)
    scales = gradient_scales(count)
    for step in range(1, UPDATE_STEPS + 1):
        parameter.grad = torch.from_numpy(gradients(step, scales))
        adamw.param_groups[0]["lr"] = update_rate(step)
        adamw.step()
    state = adamw.state[parameter]
    return parameter.numpy(), state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()


def update_record(case, count):
    parameter, m, v = run_update(case, count)
    samples = min(count, UPDATE_SAMPLES if case["weight_decay"] else UPDATE_SAMPLES // 4)
    at = numpy.arange(samples) * (count - 1) // max(samples - 1, 1)
    sums = numpy.add.reduceat(parameter.astype(numpy.float64), numpy.arange(0, count, GRAIN_ELEMS))
    return {**case, "length": count, "samples": samples, "grain_sums": sums.tolist(),
            "p": parameter[at].tolist(), "m": m[at].tolist(), "v": v[at].tolist()}


def update_golden(out):
    runs = [update_record(case, count) for case in UPDATE_CASES for count in UPDATE_LENGTHS]
    write_json(out / "update.json", {"versions": versions(), "steps": UPDATE_STEPS, "grain_elems": GRAIN_ELEMS,
                                     "runs": runs})


def main():
    parts = {case.name: lambda out, case=case: model_golden(case, out) for case in CASES} | {"update": update_golden}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where to write (default: tests/data)",
                        default=pathlib.Path(__file__).resolve().parent.parent / "tests" / "data")
    parser.add_argument("--only", choices=parts, help="make one part only (default: all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, make in parts.items():
        if arguments.only in (None, name):
            make(arguments.out)


if __name__ == "__main__":
    main()
