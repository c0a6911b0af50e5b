"""Measures a step of spillway.AdamW beside other optimizers on the parameters of GPT-2 124M: seconds, processor seconds, memory and
bytes of the drive. Each round starts every contender once, in a process of its own; the first step of a process is not counted.
Needs PyTorch; a contender that is missing here is a line that says why. DeepSpeed compiles its parts at their first use, which takes
minutes and for the drive needs libaio-dev: measure once more after that. Ratios are medians of the rounds' own ratios to the
program's: `spillway train`, whose update lane updates the same number of parameters while a small batch computes. With --files:
spillway.io beside `spillway bench io` with requests of 1 MiB, reading and rewriting one file of 512 MiB.

usage: python3 tools/library_bench.py --library build/library/libspillway.so [--program build/spillway] [--rounds N] [--folder DIR]
           [--files | --pair build/tests/library/library_pair]
"""

import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTH, LAYERS, VOCABULARY, POSITIONS = 768, 12, 50257, 1024
STEPS, PROGRAM_STEPS = 5, 6
STORES = {"host": {"host_memory": "4GiB", "save_every": 10**6}, "host, 8-bit": {"host_memory": "4GiB", "save_every": 10**6, "state": "8bit"},
          "NVMe": {"host_memory": "96MiB"}, "NVMe, 8-bit": {"host_memory": "96MiB", "state": "8bit"}}
PROGRAM, FILE_BYTES, DEPTH, PASSES = "spillway train's update", 512 << 20, 64, 5


def shapes():
    block = [(WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH,), (WIDTH,), (WIDTH, 4 * WIDTH),
             (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,)]
    return [(VOCABULARY, WIDTH), (POSITIONS, WIDTH), *block * LAYERS, (WIDTH,), (WIDTH,)]


def ours(parameters, folder, kind):
    sys.path.insert(0, os.path.join(ROOT, "python"))
    import spillway
    return spillway.AdamW(parameters, store=os.path.join(folder, "store"), allow_buffered=True, **STORES[kind])


def torch_fused(parameters, folder, kind):
    import torch
    return torch.optim.AdamW(parameters, fused=True)


def torchao_offload(parameters, folder, kind):
    import torch
    from torchao.optim import CPUOffloadOptimizer
    return CPUOffloadOptimizer(parameters, torch.optim.AdamW, fused=True)


def deepspeed_cpu(parameters, folder, kind):
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(parameters, adamw_mode=True)


class SwappedByDeepSpeed:
    """ZeRO stage 3 of one process with its optimizer on the drive. Gradients come from a backward pass, which hands them over and
    is not timed."""

    AIO = {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True}
    GROUP = 40_000_000  # elements that are updated at once, as in bench/peers

    def __init__(self, parameters, folder, reads_ahead):
        os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        import deepspeed
        import torch

        class Piece(torch.nn.Module):
            def __init__(self, parameter):
                super().__init__()
                self.weight = parameter

            def forward(self, before):
                return before + (self.weight * 0.01).sum()
        parameters = list(parameters)
        for parameter in parameters:
            parameter.grad = None
        deepspeed.init_distributed("gloo")
        zero = {"stage": 3, "sub_group_size": self.GROUP, "offload_optimizer": {"device": "nvme", "nvme_path": folder, "pin_memory": False,
                "buffer_count": 8, "pipeline_read": reads_ahead, "pipeline_write": False}}
        settings = {"train_batch_size": 1, "zero_optimization": zero, "aio": self.AIO, "steps_per_print": 1 << 30,
                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
        model = torch.nn.Sequential(*map(Piece, parameters))
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
        self.start = torch.zeros(())

    def prepare(self):
        self.engine.backward(self.engine(self.start))

    def step(self):
        self.engine.step()


CONTENDERS = {**{f"spillway.AdamW, {kind}": (ours, kind) for kind in STORES}, "torch AdamW(fused=True)": (torch_fused, None),
              "torchao CPUOffloadOptimizer": (torchao_offload, None), "DeepSpeedCPUAdam": (deepspeed_cpu, None), "DeepSpeed ZeRO-3, NVMe": (SwappedByDeepSpeed, True)}


def written_bytes():
    with open("/proc/self/io", encoding="utf-8") as file:
        return int(next(line.split()[1] for line in file if line.startswith("write_bytes:")))


def peak_bytes():
    with open("/proc/self/status", encoding="utf-8") as file:
        return int(next(line.split()[1] for line in file if line.startswith("VmHWM:"))) << 10


def step_alone(name, folder):
    """In a process of its own: prints what the steps of one contender took."""
    import torch
    parameters = [torch.nn.Parameter(torch.full(shape, 0.02)) for shape in shapes()]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.01)
    make, kind = CONTENDERS[name]
    optimizer = make(parameters, folder, kind)
    seconds, processor = [], []
    for number in range(STEPS + 1):
        if number == 1:
            written = written_bytes()
        if hasattr(optimizer, "prepare"):
            optimizer.prepare()
        begun, used = time.perf_counter(), time.process_time()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
        processor.append(time.process_time() - used)
    print(json.dumps({"seconds": statistics.median(seconds[1:]), "processor": sum(processor[1:]) / STEPS,
                      "memory": peak_bytes(), "written": (written_bytes() - written) // STEPS}))


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def measure(name, options, folder):
    """Returns a contender's figures, or why there are none."""
    words = [sys.executable, "-B", os.path.abspath(__file__), "--library", options.library, "--contender", name, "--folder", folder]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=options.seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {options.seconds} s"
    return json.loads(last_line(done.stdout)) if done.returncode == 0 else last_line(done.stderr)


def measure_program(options, folder):
    """The busy seconds of the update lane of `spillway train`, with gradients and optimizer state in host memory."""
    data, run = os.path.join(folder, "data.bin"), os.path.join(folder, "run")
    with open(data, "wb") as file:
        array.array("H", [random.randrange(VOCABULARY) for _ in range(2048)]).tofile(file)
    words = [options.program, "train", "--model", "gpt2-124m", "--init", "--data", data, "--run", run, "--steps", str(PROGRAM_STEPS),
             "--batch-tokens", "32", "--seq", "32", "--micro-batch", "1", "--precision", "fp32", "--place",
             "weights=device,grads=host,optimizer=host,acts=device", "--device-memory", "3GiB", "--host-memory", "3GiB", "--save-every",
             "100000", "--allow-buffered", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return last_line(done.stderr)
    with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as file:
        lanes = [json.loads(line)["lanes"] for line in file]
    # The update of a step runs in the next one, so the first has none.
    return {"seconds": statistics.median(lane["update"] for lane in lanes[1:])}


def transfer_rates(path, buffer):
    """Bytes a second of spillway.io, without opening the file: of reading, and of rewriting it."""
    from spillway import io

    with io.File(path, write=True, depth=DEPTH) as file:
        file.write(buffer)
        file.flush()

        def rate_of(transfer):
            """After one pass that touches the memory, some are submitted at once."""
            transfer(buffer)
            file.wait()
            begun = time.perf_counter()
            for _ in range(PASSES):
                transfer(buffer)
            file.wait()
            return PASSES * FILE_BYTES / (time.perf_counter() - begun)
        return {"read": rate_of(file.read), "write": rate_of(file.write)}


def program_rates(options, folder):
    """Rates of `spillway bench io` with as large requests, and as many under way."""
    words = [options.program, "bench", "io", "--nvme", folder, "--size", "512MiB", "--no-fio", "--json", "--quiet"]
    cells = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["cells"]
    return {way: next(cell["bytes_per_s"] for cell in cells if cell["way"] == way and cell["block_bytes"] == 1 << 20 and
                      cell["depth"] == DEPTH) for way in ("read", "write")}


def compare_files(options):
    sys.path.insert(0, os.path.join(ROOT, "python"))
    from spillway import io
    rounds, places = [], {"at whole pages": 0, "512 bytes behind one": 512, "64 bytes behind one": 64}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            memory, path = memoryview(io.empty(FILE_BYTES + 512)), os.path.join(folder, "file")
            rounds.append({"program": program_rates(options, folder),
                           **{name: transfer_rates(path, memory[shift:shift + FILE_BYTES]) for name, shift in places.items()}})
    for way in ("read", "write"):
        base = statistics.median(found["program"][way] for found in rounds)
        print(f"{way:6}spillway bench io {base / 1e9:.2f} GB/s; spillway.io, memory", end="")
        for name in places:
            ratio = statistics.median(found[name][way] / found["program"][way] for found in rounds)
            print(f" {name}: {ratio:.2f} of it", end=";" if name != "64 bytes behind one" else "")
        print(f"   medians of {options.rounds} rounds")


def compare_steps(options):
    """A step of the library beside that of the program's engine, in one process and in turn, by one thread in processor seconds:
    behind the backward pass the engine rounds gradients, sums their squares and updates; the library sums and updates. Memory of the
    caller is of usual pages, then of huge ones, as the program's is."""
    for pages, more in (("usual", {}), ("huge", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            words = [options.pair, str(options.rounds), "1", str(LAYERS), folder]
            done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_WAIT_POLICY": "passive", **more})
        rounds = [json.loads(line) for line in done.stdout.splitlines()]
        cpu = [{name: found[name][1] for name in ("update", "rounding", "library")} for found in rounds]
        least = {name: min(found[name] for found in cpu) for name in cpu[0]}
        whole = statistics.median(found["library"] / (found["update"] + found["rounding"]) for found in cpu)
        update = statistics.median(found["library"] / found["update"] for found in cpu)
        print(f"{rounds[0]['parameters']} parameters, {pages} pages: the library's step takes {whole:.2f} of the program's (rounding and "
              f"update), {update:.2f} of its update alone; least processor seconds: library {least['library']:.3f}, rounding "
              f"{least['rounding']:.3f}, update {least['update']:.3f}; medians of {len(rounds)} rounds")


def show(found, rounds):
    print(f"{'':32}{'s/step':>8}{'of ' + PROGRAM:>28}{'CPU s':>8}{'peak GB':>9}{'written GB/step':>17}   medians of {rounds} rounds")
    for name, results in found.items():
        good = [result for result in results if isinstance(result, dict)]
        if len(good) < len(results):
            print(f"{name:32}missing: {next(result for result in results if isinstance(result, str))}")
            continue
        pairs = [(result, base) for result, base in zip(results, found[PROGRAM]) if isinstance(base, dict)]
        ratio = f"{statistics.median(result['seconds'] / base['seconds'] for result, base in pairs):.2f}" if pairs else "-"
        line = f"{name:32}{statistics.median(result['seconds'] for result in good):8.3f}{ratio:>28}"
        if "memory" in good[0]:
            middle = {key: statistics.median(result[key] for result in good) for key in ("processor", "memory", "written")}
            line += f"{middle['processor']:8.3f}{middle['memory'] / 1e9:9.2f}{middle['written'] / 1e9:17.2f}"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\nusage")[0])
    parser.add_argument("--library", required=True, help="libspillway.so")
    parser.add_argument("--program", help="the program spillway; without it there are no ratios")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=600, help="the most that a contender may take in a round")
    parser.add_argument("--folder", help="for stores, on the drive that is measured; default: a temporary one")
    parser.add_argument("--only", action="append", help="the contenders to measure; may be repeated")
    parser.add_argument("--files", action="store_true", help="measure spillway.io instead; needs --program")
    parser.add_argument("--pair", help="tests/library/library_pair of a build folder: measure a step beside the engine's instead")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.library = os.environ["SPILLWAY_LIBRARY"] = os.path.abspath(options.library)
    if options.contender:
        return step_alone(options.contender, options.folder)
    if options.pair:
        return compare_steps(options)
    if options.files:
        return compare_files(options) if options.program else parser.error("--files needs --program")
    names = options.only or list(CONTENDERS)
    unknown = sorted(set(names) - set(CONTENDERS))
    if unknown:
        parser.error(f"'{unknown[0]}' is none of: {', '.join(CONTENDERS)}")
    found = {PROGRAM: [], **{name: [] for name in names}}
    for number in range(options.rounds):
        order = names[number % len(names):] + names[:number % len(names)]
        for name in [PROGRAM, *order]:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                if name == PROGRAM:
                    found[name].append(measure_program(options, folder) if options.program else "no --program")
                else:
                    found[name].append(measure(name, options, folder))
    show(found, options.rounds)
    return None


if __name__ == "__main__":
    sys.exit(main())
