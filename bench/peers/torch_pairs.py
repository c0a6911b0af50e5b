"""Our matrix products or attention beside PyTorch's: the same shapes, types and GPU, in turn, normal random numbers, and
calls in runs of one rule. Each pair is printed as a line of JSON when it is known: our seconds, PyTorch's, the GPU's
clock under either, and PyTorch's seconds over ours, unless the clocks differ or are not known.

usage: torch_pairs.py --program spillway --model M --tokens N --seqs A,B gemm|attention
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import threading

TURNS = 2  # of ours, then PyTorch's
# As bench/kernels/harness.c has it: how long the calls of a run take.
LEAST_S, MOST_CALLS = 5e-3, 1000
NUMBERS = "normal"
# The GPU's clock is asked while it works. Clocks further apart than this are those of two GPUs.
ASK_S, BUSY_PERCENT, CLOCK_SHARE = 0.1, 50, 0.03
# Attention of the presets: query heads, heads of keys and values, size of a head.
HEADS = {"qwen2.5-0.5b": (14, 2, 64), "qwen2.5-1.5b": (12, 2, 128), "qwen2.5-7b": (28, 4, 128), "llama-tiny": (4, 2, 16)}


def say(**fields):
    print(json.dumps(fields), flush=True)


def ours(options, what, seq, micro_batch, *more):
    """Returns the report of `spillway bench`."""
    command = [options.program, "bench", what, "--model", options.model, "--seq", str(seq), "--micro-batch",
               str(micro_batch), "--precision", "bf16", "--device", "cuda", "--rounds", str(options.rounds), "--json", *more]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()[-500:]}")
    report = json.loads(ended.stdout)
    if report.get("numbers") != NUMBERS:
        raise RuntimeError(f"{options.program} multiplies other numbers than PyTorch is given: '{NUMBERS}' random ones")
    return report


class Clock:
    """The GPU's clock in MHz while it works: the median of what nvidia-smi says meanwhile, or None."""

    def __init__(self):
        self.seen, self.ended = [], threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while True:
            clock = ask_clock()
            self.seen += [] if clock is None else [clock]
            if self.ended.wait(ASK_S):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def ask_clock():
    """Returns the clock of a GPU that works at this moment, else None."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,utilization.gpu", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True, timeout=10).stdout
        clock, busy = (float(word) for word in said.splitlines()[0].split(","))
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return clock if busy >= BUSY_PERCENT else None


def timed(torch, call, count):
    """Seconds of each of `count` calls in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / count


def run_s(torch, call):
    once_s = timed(torch, call, 1)
    return timed(torch, call, int(min(MOST_CALLS, max(1, LEAST_S / max(once_s, 1e-9)))))


def median_s(torch, call, rounds):
    """The round before the first only touches the memory."""
    return statistics.median([run_s(torch, call) for _ in range(1 + rounds)][1:])


class Sides:
    """The clocks under ours and under PyTorch's, of all turns."""

    def __init__(self):
        self.ours, self.peer = [], []

    def as_fields(self):
        ours, peer = (statistics.median(seen) if seen else None for seen in (self.ours, self.peer))
        fields = {"ours_mhz": ours, "peer_mhz": peer}
        if ours is None or peer is None:
            return {**fields, "not_compared": "the GPU's clock under load is not known (nvidia-smi)"}
        if abs(math.log(ours / peer)) > math.log1p(CLOCK_SHARE):
            return {**fields, "not_compared": f"the GPU ran at {ours:.0f} MHz under ours and {peer:.0f} MHz under PyTorch's"}
        return fields


def pair(name, our_s, peer_s, sides, required=False):
    """Has no ratio where the sides did not have the same clocks."""
    fields = sides.as_fields()
    ratio = {} if "not_compared" in fields else {"of_peer": peer_s / our_s, "of_peer_least": required}
    return {name: {"ours_s": our_s, "peer_s": peer_s, **ratio, **fields}}


def product_call(torch, product):
    """The product as the block has it: the same shapes and the same orders in memory, with its bias, or added to fp32."""
    def random(rows, cols, stride):
        return torch.randn(rows, stride, device="cuda", dtype=torch.bfloat16)[:, :cols]

    m, n, k = product["m"], product["n"], product["k"]
    a = random(k, m, product["a_stride"]).t() if product["transpose_a"] else random(m, k, product["a_stride"])
    b = random(n, k, k).t() if product["transpose_b"] else random(k, n, n)
    if product["bias"]:
        bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.addmm(bias, a, b)
    out = torch.empty(m, product["c_stride"], device="cuda", dtype=torch.bfloat16)[:, :n]
    return lambda: torch.mm(a, b, out=out)


def gemm(options, torch):
    """PyTorch has no product of bf16 that adds to fp32, so where ours does, its writing is for nothing in the pair."""
    seq = options.seqs[0]
    found, sides = {}, Sides()
    for _ in range(TURNS):
        with Clock() as clock:
            products = ours(options, "gemm", seq, max(1, options.tokens // seq))["products"]
        sides.ours += clock.seen
        with Clock() as clock:
            for product in products:
                name = f"{product['layer']} {product['pass']}"
                flops = 2.0 * product["m"] * product["n"] * product["k"]
                seconds = found.setdefault(name, ([], [], product["times"]))
                seconds[0].append(flops / product["flops_per_s"])
                seconds[1].append(median_s(torch, product_call(torch, product), options.rounds))
        sides.peer += clock.seen
    pairs, totals = {}, [0.0, 0.0]
    for name, (our_s, peer_s, times) in found.items():
        ended = pair(name, statistics.median(our_s), statistics.median(peer_s), sides)
        pairs.update(ended)
        totals = [totals[0] + times * ended[name]["ours_s"], totals[1] + times * ended[name]["peer_s"]]
        say(pairs=pairs)
    say(pairs={**pairs, **pair("all products", *totals, sides, required=True)})


def attention_calls(torch, options, seq, micro_batch):
    """Forward and backward of causal attention, by the kernel that PyTorch itself chooses."""
    heads, kv_heads, size = HEADS[options.model]
    shapes = [(micro_batch, count, seq, size) for count in (heads, kv_heads, kv_heads)]
    q, k, v = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
    grad = torch.randn(*shapes[0], device="cuda", dtype=torch.bfloat16)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    out = forward()
    return {"forward": forward, "backward": lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)}


def attention(options, torch):
    if options.model not in HEADS:
        raise RuntimeError(f"the heads of {options.model} are not in this script")
    pairs = {}
    for seq in options.seqs:
        micro_batch = max(1, options.tokens // seq)
        seconds, sides = {"forward": ([], []), "backward": ([], [])}, Sides()
        for _ in range(TURNS):
            with Clock() as clock:
                found = ours(options, "attention", seq, micro_batch)
            sides.ours += clock.seen
            calls = attention_calls(torch, options, seq, micro_batch)
            with Clock() as clock:
                for name, (our_s, peer_s) in seconds.items():
                    our_s.append(found[name]["seconds"])
                    peer_s.append(median_s(torch, calls[name], options.rounds))
            sides.peer += clock.seen
        for name, (our_s, peer_s) in seconds.items():
            pairs.update(pair(f"attention {seq} {name}", statistics.median(our_s), statistics.median(peer_s), sides))
        say(pairs=pairs)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\nusage")[0])
    parser.add_argument("what", choices=("gemm", "attention"))
    parser.add_argument("--program", default="build/spillway")
    parser.add_argument("--model", default="qwen2.5-7b")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a micro-batch")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each call")
    parser.add_argument("--seqs", default="1024,8192", type=lambda text: [int(one) for one in text.split(",")],
                        help="lengths of sequences; products are of the first")
    return parser.parse_args()


def main():
    options = parse_arguments()
    try:
        import torch
    except ImportError:
        say(absent="PyTorch")
        return 0
    if not torch.cuda.is_available():
        say(absent="a GPU that PyTorch works with")
        return 0
    say(torch=torch.__version__, cuda=torch.version.cuda)
    (gemm if options.what == "gemm" else attention)(options, torch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
