"""spillway.AdamW beside torch.optim.AdamW, element by element, on ten awkward modules. Both get the same gradients, so only the
updates differ. Prints the largest difference of each module's parameters, masters and moments.

usage: torch_modules.py LIBRARY [--steps N] [--large]    as a test few steps are run; --large adds a tensor of 3 GB"""

import argparse
import os
import random
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch_support as support  # noqa: E402
from torch_support import needs, script_test, spillway  # noqa: E402

torch = support.torch
LR, MOST = 1e-3, 3e-6
OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("library")
OPTIONS.add_argument("--steps", type=int, default=60)
OPTIONS.add_argument("--large", action="store_true")
CHOSEN = OPTIONS.parse_args()
# A tensor of 3 GB takes twice as much with its gradient; the store has 24 bytes for each of its elements.
LARGE_ELEMS, LARGE_STEPS, SLICES, SLICE = 805306368 + 1, 2, 5, 1 << 18
LARGE_MEMORY_BYTES, LARGE_DISK_BYTES = 8 << 30, 30 * 10**9


def module_of(parts, forward):
    """A module of these parts, whose output is forward(module, random input)."""
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, source):
            return forward(self, source)
    return Module()


def odd_sizes():
    nn = torch.nn
    layers = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 1025), nn.ReLU(), nn.Linear(1025, 3, bias=False))
    return module_of({"layers": layers}, lambda self, source: self.layers(torch.randn(5, 7, generator=source)))


def convolutions():
    nn = torch.nn
    layers = nn.Sequential(nn.Conv2d(3, 11, 3), nn.GroupNorm(1, 11), nn.SiLU(), nn.Conv2d(11, 5, 5, groups=1), nn.Flatten())
    return module_of({"layers": layers}, lambda self, source: self.layers(torch.randn(2, 3, 9, 9, generator=source)))


def shared():
    table = torch.nn.Embedding(257, 33)
    head = torch.nn.Linear(33, 257, bias=False)
    head.weight = table.weight
    return module_of({"table": table, "head": head},
                     lambda self, source: self.head(torch.tanh(self.table(torch.randint(0, 257, (4, 9), generator=source)))))


def recurrent():
    return module_of({"lstm": torch.nn.LSTM(9, 31, 2)}, lambda self, source: self.lstm(torch.randn(6, 2, 9, generator=source))[0])


def frozen():
    module = odd_sizes()
    module.layers[0].weight.requires_grad_(False)
    module.layers[2].bias.requires_grad_(False)
    return module


def attention():
    layer = torch.nn.TransformerEncoderLayer(24, 3, 50, dropout=0.0, batch_first=True)
    return module_of({"layer": layer}, lambda self, source: self.layer(torch.randn(2, 7, 24, generator=source)))


def without_gradients():
    """Every other step uses one branch alone."""
    first, second = torch.nn.Linear(17, 5), torch.nn.Linear(17, 5)

    def forward(self, source):
        inputs = torch.randn(3, 17, generator=source)
        return self.first(inputs) + (self.second(inputs) if source.initial_seed() % 2 else 0.0)
    return module_of({"first": first, "second": second}, forward)


def one_element():
    parts = {"one": torch.nn.Parameter(torch.ones(1)), "scalar": torch.nn.Parameter(torch.tensor(1.5)),
             "none": torch.nn.Parameter(torch.ones(0)), "row": torch.nn.Parameter(torch.ones(1, 1, 1, 3))}
    return module_of(parts, lambda self, source: self.row * self.one * torch.randn(3, generator=source) + self.scalar)


def narrow(dtype):
    module = odd_sizes()
    module.forward = lambda source: module.layers(torch.randn(5, 7, generator=source).to(dtype))
    return module.to(dtype)


MODULES = {"odd sizes": odd_sizes, "convolutions": convolutions, "shared": shared, "recurrent": recurrent, "frozen": frozen,
           "attention": attention, "without gradients": without_gradients, "one element": one_element,
           "fp16": lambda: narrow(torch.float16), "bf16": lambda: narrow(torch.bfloat16)}


def reference_of(module):
    """The parameters that torch's optimizer updates: fp32 masters."""
    return {name: torch.nn.Parameter(parameter.detach().float().clone()) for name, parameter in module.named_parameters()
            if parameter.requires_grad and parameter.numel() > 0}


def largest(pairs):
    return max((float((a.detach().float() - b.detach().float()).abs().max()) for a, b in pairs), default=0.0)


def follow(name, folder, host_memory, some_missing):
    """Returns problems of a module, and prints its differences. some_missing: gradients are forgotten at random."""
    chance = random.Random(support.SEED)
    module = MODULES[name]()
    masters = reference_of(module)
    named = dict(module.named_parameters())
    mine = spillway.AdamW(module.named_parameters(), lr=LR, weight_decay=0.05, store=folder, host_memory=host_memory,
                          allow_buffered=True, save_every=10**6, threads=1)
    theirs = torch.optim.AdamW(masters.values(), lr=LR, weight_decay=0.05)
    for step in range(CHOSEN.steps):
        mine.zero_grad()
        module(torch.Generator().manual_seed(step)).float().pow(2).mean().backward()
        for key, master in masters.items():
            if some_missing and chance.random() < 0.4:
                named[key].grad = None
            gradient = named[key].grad
            master.grad = None if gradient is None else gradient.float()
        mine.step()
        theirs.step()
    state = {key: mine.read_state(named[key]) for key in masters}
    weights = largest((state[key]["master"], masters[key]) for key in masters)
    followed = {key: theirs.state[masters[key]] for key in masters if "step" in theirs.state[masters[key]]}
    moments = max(largest((state[key][part], followed[key][part]) for key in followed) for part in ("exp_avg", "exp_avg_sq"))
    steps = {key: int(followed[key]["step"]) if key in followed else 0 for key in masters}
    numbers = {id(parameter): number for number, parameter in enumerate(named.values())}
    found = mine.state_dict(full=True)["state"]
    counted = all(int(found[numbers[id(named[key])]]["step"]) == steps[key] for key in masters)
    rounded = all(torch.equal(state[key]["master"].to(named[key].dtype), named[key]) for key in masters)
    mine.close()
    shutil.rmtree(folder)
    print(f"# {name}, {host_memory}: after {CHOSEN.steps} steps weights differ by at most {weights:.2g}, moments by {moments:.2g}",
          flush=True)
    problems = [] if weights <= MOST and moments <= MOST else [f"{name} differs from torch.optim.AdamW by {max(weights, moments)}"]
    problems += [] if counted else [f"{name}: parameters have not {steps} steps"]
    return problems + ([] if rounded else [f"{name}: a parameter is not its rounded master"])


@needs("torch")
def ten_modules_follow_pytorch(folder):
    problems = []
    torch.set_num_threads(1)
    for number, name in enumerate(MODULES):
        problems += follow(name, folder, ("64MiB", "6MiB")[number % 2], False)
    return problems


@needs("torch")
def gradients_that_are_missing_at_random_leave_out_their_parameters(folder):
    problems = []
    torch.set_num_threads(1)
    for number, name in enumerate(("odd sizes", "shared", "attention", "bf16")):
        problems += follow(name, folder, ("6MiB", "64MiB")[number % 2], True)
    return problems


def has_room(folder):
    with open("/proc/meminfo", encoding="utf-8") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    return available >= LARGE_MEMORY_BYTES and shutil.disk_usage(os.path.dirname(folder)).free >= LARGE_DISK_BYTES


@needs("torch")
def a_tensor_of_3_gb_follows_pytorch(folder):
    """torch's update of slices is that of the whole, as AdamW without clipping knows no neighbours."""
    if not has_room(folder):
        return ["it takes 8 GiB of memory and 30 GB of disk"]
    parameter = torch.nn.Parameter(torch.arange(LARGE_ELEMS, dtype=torch.float32).remainder_(1013.0).sub_(500.0).mul_(1e-3))
    starts = [number * (LARGE_ELEMS - SLICE) // (SLICES - 1) for number in range(SLICES)]
    slices = [torch.nn.Parameter(parameter.detach()[start:start + SLICE].clone()) for start in starts]
    mine = spillway.AdamW([("large", parameter)], lr=LR, store=folder, host_memory="512MiB", allow_buffered=True)
    theirs = torch.optim.AdamW(slices, lr=LR)
    parameter.grad = torch.empty(LARGE_ELEMS)
    for step in range(LARGE_STEPS):
        torch.mul(parameter.detach(), 0.1 * (step + 1), out=parameter.grad)
        for piece, start in zip(slices, starts, strict=True):
            piece.grad = parameter.grad[start:start + SLICE].clone()
        mine.step()
        theirs.step()
    difference = largest((parameter.detach()[start:start + SLICE], piece) for piece, start in zip(slices, starts, strict=True))
    mine.close()
    print(f"# a tensor of {LARGE_ELEMS * 4 / 1e9:.2f} GB: after {LARGE_STEPS} steps {SLICES} slices differ by at most {difference:.2g}")
    return [] if difference <= MOST else [f"a large tensor differs by {difference}"]


script_test.run(ten_modules_follow_pytorch, gradients_that_are_missing_at_random_leave_out_their_parameters,
                *([a_tensor_of_3_gb_follows_pytorch] if CHOSEN.large else []))
