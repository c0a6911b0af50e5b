"""Memory and time of training a module whose weights are several times the budget of spillway.offload, beside the same module without
it: same losses, same weights, and a peak that the weights do not decide. By hand: torch_offload_peak.py LIBRARY MIB BUDGET STEPS FOLDER,
for instance `1024 256MiB 4 /mnt/nvme`, prints a table; a drive's rate is that of `spillway bench io`. Needs PyTorch."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), PYTHON]
os.environ["SPILLWAY_LIBRARY"] = os.path.abspath(sys.argv[1])
import script_test  # noqa: E402
import spillway  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

WIDTH, ROWS, HOST = 1024, 16, "64MiB"
MIB, BUDGET, STEPS = 128, "32MiB", 2


def memory_mib(field):
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def make(mib):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(mib * 2**20 // (4 * WIDTH**2)))

        def forward(self, x):
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            return x
    with torch.device("meta"):
        return Net()


def fill(name, tensor):
    generator = torch.Generator().manual_seed(int(name.split(".")[1]))
    with torch.no_grad():
        tensor.normal_(0, 0.02, generator=generator)


def train(folder, mib, budget, steps):
    """Trains in this process, and returns its losses, weights, peak and times. Without a budget everything stays."""
    torch.set_num_threads(2)
    before, model, offloaded = memory_mib("VmRSS"), make(mib), None
    if budget:
        offloaded = spillway.offload(model, store=folder, memory=budget, fill=fill, allow_buffered=True)
    else:
        model.to_empty(device="cpu")
        for name, parameter in model.named_parameters():
            fill(name, parameter)
    optimizer = spillway.AdamW(model.named_parameters(), lr=1e-3, clip=1.0, store=os.path.join(folder, "store"), host_memory=HOST,
                               allow_buffered=True)
    losses, seconds, read, waited = [], [], 0, 0.0
    for step in range(steps):
        usage, begin = offloaded.usage() if offloaded else None, time.monotonic()
        loss = model(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))).pow(2).mean()
        loss.backward()
        passes = time.monotonic() - begin
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item(), optimizer.last_result.grad_norm])
        seconds.append([passes, time.monotonic() - begin])
        if usage:
            read, waited = offloaded.usage().read_bytes - usage.read_bytes, offloaded.usage().wait_seconds - usage.wait_seconds
    peak, digest = memory_mib("VmHWM") - before, hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    optimizer.close()
    return {"losses": losses, "digest": digest.hexdigest(), "peak_mib": peak, "seconds": seconds, "read_mib": read / 2**20,
            "waited": waited}


def measured(folder, mib, budget, steps):
    os.makedirs(folder)
    words = [sys.executable, "-B", os.path.abspath(__file__), sys.argv[1], str(mib), budget, str(steps), folder, "alone"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-1000:])
    return json.loads(done.stdout)


def beside(folder, mib, budget, steps):
    return [measured(os.path.join(folder, name), mib, limit, steps) for name, limit in (("resident", ""), ("offloaded", budget))]


def training_streams_within_its_budget():
    if torch is None:
        raise script_test.Skip("no torch")
    with tempfile.TemporaryDirectory() as folder:
        resident, offloaded = beside(folder, MIB, BUDGET, STEPS)
    problems = [f"the {what} differ" for what in ("losses", "digest") if resident[what] != offloaded[what]]
    # Resident training has weights and gradients in memory, of which an eighth each is left here, and what PyTorch takes.
    if offloaded["peak_mib"] > resident["peak_mib"] - MIB:
        problems.append(f"the peak is {offloaded['peak_mib']:.0f} MiB, and {resident['peak_mib']:.0f} MiB without offload")
    return problems


def show(mib, budget, steps, folder):
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        runs = beside(inside, mib, budget, steps)
    print(f"{mib} MiB of weights, {budget} for them, {HOST} for the optimizer; the last of {steps} steps")
    print("           peak MiB  passes s  step s  read MiB  waited s")
    for name, run in zip(("resident", "offloaded"), runs, strict=True):
        print(f"{name:9}  {run['peak_mib']:8.0f}  {run['seconds'][-1][0]:8.2f}  {run['seconds'][-1][1]:6.2f}  {run['read_mib']:8.0f}  "
              f"{run['waited']:8.2f}")
    print("same losses and weights:", "yes" if all(runs[0][what] == runs[1][what] for what in ("losses", "digest")) else "NO")


if len(sys.argv) == 7:
    print(json.dumps(train(sys.argv[5], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
elif len(sys.argv) == 6:
    show(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
else:
    script_test.run(training_streams_within_its_budget)
