"""The commands on CUDA, by a program whose GPU is the emulated one: every command that computes has --device, and says
what is wrong with a GPU that cannot be used before it writes anything; inference and the benches run there. No speed is
asserted."""

import json
import math
import os
import subprocess
import sys

import program
from program import script_test

ROOT = os.path.dirname(os.path.dirname(program.HERE))
sys.path.insert(0, os.path.join(ROOT, "tools"))
from gpu import FULL, stages  # noqa: E402

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(2, 6000))
RUN = os.path.join(SCRATCH, "run")
RATES = os.path.join(SCRATCH, "Emulated GPU")  # measured by the first who needs them
SHAPE = ("--seq", 32, "--micro-batch", 2, "--batch-tokens", 128, "--threads", 1, "--chunk-grains", 2)
MODEL = ("--model", "gpt2-tiny", "--seq", 16, "--micro-batch", 1)
# Faults that SW_EMULATED_GPU asks for, and the words that name each and its mending.
DEFECTS = {
    "no-driver": ("driver is not installed", "--device cpu"),
    "old-driver": ("driver", "CUDA 12.2", "CUDA 13.0", "newer driver", "--device cpu"),
    "no-gpu": ("no GPU of NVIDIA", "CUDA_VISIBLE_DEVICES", "--device cpu"),
    "too-old": ("compute capability 7.0", "8.0", "--device cpu"),
    "held": ("another process", "nvidia-smi"),
}
ROUNDING = 1e-3  # relative, of a bf16 loss by another device
# Where states live that a training does not name. With nothing open there is no plan to choose, for which the emulated GPU would
# be measured for five seconds.
CLOSED = {"weights": "device", "acts": "device", "grads": "device"}


def on_cuda(*arguments):
    return program.must(*arguments, "--device", "cuda")


def train(run, *more, place="optimizer=host"):
    places = CLOSED | dict(word.split("=") for word in place.split(","))
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", run, "--steps", 3, *SHAPE, "--order", "batch",
            "--update", "host", "--place", ",".join(map("=".join, places.items())), "--device", "cuda", *more]


def trained():
    if not os.path.isdir(RUN):
        program.must(*train(RUN))
    return RUN


def commands():
    """One of each that computes."""
    return [train(os.path.join(SCRATCH, "refused")), ["plan", "--model", "gpt2-tiny", *SHAPE, "--device", "cuda"],
            ["eval", trained(), "--data", DATA, "--seq", 32, "--device", "cuda"],
            ["generate", trained(), "--prompt", "a", "--device", "cuda"],
            *(["bench", name, "--device", "cuda"] for name in ("copy", "update")),
            *(["bench", name, *MODEL, "--device", "cuda"] for name in ("gemm", "attention", "compute")),
            ["bench", "step", "--model", "gpt2-tiny", *SHAPE, "--device", "cuda"]]


def with_defect(defect, arguments):
    return program.run(*arguments, env={**os.environ, "SW_EMULATED_GPU": defect})


def name_of(arguments):
    return " ".join(arguments[:2]) if arguments[0] == "bench" else arguments[0]


def gpus_that_cannot_be_used():
    problems, before = [], set(os.listdir(SCRATCH)) | {"run"}
    for arguments in commands():
        for defect, words in DEFECTS.items():
            ended = with_defect(defect, arguments)
            problems += program.wrong_refusal(f"{name_of(arguments)}, {defect}", ended, 1, words, [name_of(arguments)])
    return problems + [f"{name} is left" for name in set(os.listdir(SCRATCH)) - before]


def memory_that_is_not_there():
    """A small GPU, one whose memory others have, and a driver that pins little."""
    run, resident = os.path.join(SCRATCH, "refused"), "optimizer=device"
    table = [("small", train(run, place=resident), "--device-memory"),
             ("small", ["eval", trained(), "--data", DATA, "--seq", 32, "--device", "cuda"], "--device-memory"),
             ("mostly-held", train(run, "--device-memory", "64MiB", place=resident), "nvidia-smi", "--device-memory"),
             ("cannot-pin", train(run), "pin", "--host-memory"),
             ("cannot-pin", ["eval", trained(), "--data", DATA, "--seq", 32, "--device", "cuda"], "pin",
              "--host-memory")]
    problems = []
    for defect, arguments, *words in table:
        ended = with_defect(defect, arguments)
        last = (ended.err.splitlines() or [""])[-1]
        if ended.code != 1 or ended.out or not last.startswith(f"spillway {arguments[0]}: "):
            problems.append(f"{arguments[0]}, {defect}: status {ended.code}, {ended.err!r}")
        problems += [f"{arguments[0]}, {defect}: the message lacks '{word}': {last}" for word in words
                     if word not in last]
        if os.path.exists(run):
            return problems + [f"{defect}: the refused run is left"]
    return problems


def auto_takes_the_gpu_or_says_why_not():
    """The CPU computes without a word where there is no GPU; one that is there and cannot be used is refused."""
    problems, before = [], set(os.listdir(SCRATCH))
    for defect, device in (("", "Emulated GPU"), ("no-gpu", "cpu"), ("no-driver", "cpu")):
        ended = with_defect(defect, ["plan", "--model", "gpt2-tiny", *SHAPE, "--rates", os.path.join(SCRATCH, device)])
        if ended.code != 0 or "GPU" in ended.err or device not in ended.out:
            problems.append(f"'{defect}': status {ended.code}, {ended.err!r}, {ended.out[:300]!r}")
    for arguments in commands()[:5]:
        by_default = [word for word in arguments if word not in ("--device", "cuda")]
        for defect in ("old-driver", "too-old", "held"):
            words = [word for word in DEFECTS[defect] if word != "--device cpu"]
            ended = with_defect(defect, by_default)
            problems += program.wrong_refusal(f"{name_of(arguments)}, {defect}", ended, 1,
                                              ("--device auto found a GPU that fails", "--device cpu", *words), [name_of(arguments)])
    return problems + [f"{name} is left" for name in set(os.listdir(SCRATCH)) - before - {"run", "cpu", "Emulated GPU"}]


def losses_and_texts():
    """As on the CPU: weights resident, and read from a drive at every pass."""
    problems, loss = [], {}
    for what, more in (("cpu", ("--device", "cpu")), ("cuda", ("--device", "cuda")),
                       ("drive", ("--device", "cuda", "--device-memory", "1MiB", "--host-memory", "4MiB"))):
        found = json.loads(program.must("eval", trained(), "--data", DATA, "--seq", 32, "--micro-batch", 2, "--tokens",
                                        256, "--precision", "bf16", "--json", *more).out)
        loss[what] = found["loss"]
    if not math.isclose(loss["cpu"], loss["cuda"], rel_tol=ROUNDING) or loss["cuda"] != loss["drive"]:
        problems.append(f"losses {loss}")
    texts = [program.must("generate", trained(), "--prompt", "the ", "--max-tokens", 24, "--temperature", 0,
                          "--precision", "fp32", "--device", device).out for device in ("cpu", "cuda")]
    return problems if texts[0] == texts[1] else problems + [f"texts {texts}"]


def odd_lengths():
    """Sequences and texts whose rotary tables end anywhere."""
    run, problems = os.path.join(SCRATCH, "odd"), []
    odd = ("--model", "llama-tiny", "--init", "--data", DATA, "--run", run, "--steps", 2, "--seq", 5, "--micro-batch", 1,
           "--batch-tokens", 10, "--threads", 1)
    places = ",".join(map("=".join, {**CLOSED, "optimizer": "host"}.items()))
    program.must("train", *odd, "--device", "cuda", "--order", "batch", "--update", "host", "--place", places)
    for tokens in (1, 4, 7):
        texts = [program.must("generate", run, "--prompt", "the", "--max-tokens", tokens, "--temperature", 0,
                              "--precision", "fp32", "--device", device).out for device in ("cpu", "cuda")]
        problems += [] if texts[0] == texts[1] else [f"{tokens} tokens: {texts}"]
    return problems


def predictions_are_kept():
    """A start that measures to choose its plan keeps what it predicted, for the report."""
    run = os.path.join(SCRATCH, "predicted")
    program.must("train", "--model", "llama-tiny", "--init", "--data", DATA, "--run", run, "--steps", 3, "--seq", 8,
                 "--micro-batch", 1, "--batch-tokens", 16, "--threads", 1, "--device", "cuda", "--place", "optimizer=host")
    made = program.read_json(os.path.join(run, "run.json"))["prediction"]
    timeline = program.read_json(os.path.join(run, "timeline.json"))
    problems = positive("prediction", made, "step_seconds", "tokens_per_second") + positive("lanes", made["lanes"], "compute")
    if not math.isclose(made["tokens_per_second"] * made["step_seconds"], 16) or made["bytes"] != program.steps_of(run)[-1]["bytes"]:
        problems.append(f"prediction {made}")
    works = [{span[2] for span in timeline[which]["lanes"]["compute"]} for which in ("predicted", "measured")]
    return problems + ([] if works[0] == works[1] and "backward" in works[0] else [f"timelines of {works}"])


def tf32_rounds_a_little():
    """A training of fp32 whose products are rounded learns nearly the same; the CPU has no such products."""
    losses, problems = {}, []
    for precision in ("fp32", "tf32"):
        run = os.path.join(SCRATCH, "run in " + precision)
        program.must(*train(run, "--precision", precision, place="optimizer=device"))
        losses[precision] = [line["loss"] for line in program.steps_of(run)]
        if program.read_json(os.path.join(run, "run.json"))["settings"]["precision"] != precision:
            problems.append(f"run.json of {precision}")
    far = [abs(a / b - 1) for a, b in zip(*losses.values())]
    if not 0 < max(far) < ROUNDING:
        problems.append(f"losses {losses}")
    on_cpu = ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", os.path.join(SCRATCH, "on the CPU"), "--steps", 1,
              *SHAPE, "--device", "cpu", "--precision", "tf32"]
    return problems + program.refused("tf32 on the CPU", on_cpu, "--precision tf32", "fp32")


def fp8_is_multiplied_from_8_9_on():
    """The products of blocks are of codes; losses are those of the CPU, which multiplies what codes stand for."""
    losses, problems = {}, []
    for device, place in (("cuda", "optimizer=device"), ("cpu", "optimizer=host"), ("cuda", "weights=host,optimizer=nvme")):
        run = os.path.join(SCRATCH, f"fp8 by {device}, {place}")
        program.must(*(device if word == "cuda" else word for word in train(run, "--precision", "fp8", place=place)))
        losses[device, place] = [line["loss"] for line in program.steps_of(run)]
    first, on_cpu, again = losses.values()
    if first != again:
        problems.append(f"the bits depend on the placement: {losses}")
    far = max(abs(a / b - 1) for a, b in zip(first, on_cpu))
    problems += [f"losses {losses}"] if far > ROUNDING else []
    ended = with_defect("without-fp8", train(os.path.join(SCRATCH, "fp8 on 8.6"), "--precision", "fp8"))
    return problems + program.wrong_refusal("fp8 on a GPU of capability 8.6", ended, 1,
                                            ("--precision fp8", "8.9", "8.6", "--precision bf16"), ["train"])


def doctor_names_the_libraries():
    facts = next(finding for finding in json.loads(program.must("doctor", "--quick", "--json").out)["findings"]
                 if finding["what"] == "gpu")
    named = facts["facts"].get("products_library") == "emulated cuBLASLt" and "emulated cuBLASLt" in facts["found"]
    return [] if named and facts["facts"]["cuda_works"] else [f"{facts}"]


def positive(what, found, *names):
    return [f"{what}: {name} is {found.get(name)!r}" for name in names
            if not isinstance(found.get(name), float) or not 0 < found[name] < math.inf]


def report(*arguments):
    ended = on_cuda("bench", *arguments, "--json")
    found = json.loads(ended.out)
    return found, [] if (found["bench"], found["device"]) == (arguments[0], "cuda") else [f"{found}"]


def benches_of_parts():
    found, problems = report("copy", "--size", "64KiB", "--rounds", 1, "--threads", 1)
    problems += positive("both ways", found["sizes"][0]["both"], "upload_bytes_per_s", "download_bytes_per_s",
                         "of_upload", "of_download")
    found, wrong = report("update", "--precision", "bf16", "--rounds", 1, "--threads", 1)
    problems += wrong + positive("update", found["precisions"][0], "bytes_per_s", "of_plain")
    problems += positive("update there", found["precisions"][0]["on_device"], "bytes_per_s", "parameters_per_s",
                         "copy_bytes_per_s", "of_copy")
    found, wrong = report("gemm", *MODEL, "--rounds", 1)
    problems += wrong + positive("gemm", found["totals"]["all"], "seconds", "flops_per_s")
    if "bound_precision" in found or any("of_own_layouts" in product for product in found["products"]):
        problems.append("a GPU's products are compared with the CPU's library")
    flops = sum(2 * p["m"] * p["n"] * p["k"] * p["times"] for p in found["products"])
    if not math.isclose(flops / found["totals"]["all"]["seconds"], found["totals"]["all"]["flops_per_s"]):
        problems.append(f"the rate of all products: {found['totals']}")
    found, wrong = report("attention", *MODEL, "--rounds", 1)
    for name in ("forward", "backward"):
        wrong += positive(f"attention {name}", found[name], "seconds", "flops_per_s", "of_products")
    problems += wrong
    found, wrong = report("compute", *MODEL, "--rounds", 1)
    return problems + wrong + positive("compute", found["totals"]["block"], "forward_s", "backward_s", "products_s")


def bench_of_steps():
    """Beside the resident step in the same memory; where the two do not fit together, alone."""
    trace = os.path.join(SCRATCH, "trace.json")
    shape = ("step", "--model", "gpt2-tiny", *SHAPE, "--steps", 1, "--rounds", 1, "--place", "optimizer=host", "--rates", RATES)
    found, problems = report(*shape, "--trace", trace)
    speed = found["speed"]
    problems += positive("speed", speed, "tokens_per_s", "model_flops_per_s", "products_flops_per_s", "of_products")
    problems += positive("speed of light", speed["speed_of_light"], "step_s", "share")
    if speed["peak_flops_per_s"] is not None or "resident" not in found["steps"]:
        problems.append(f"{speed}, {sorted(found['steps'])}")
    if not any(event.get("ph") == "X" for event in program.read_json(trace)["traceEvents"]):
        problems.append("the trace has no ops")
    ended = with_defect("small", ["bench", *shape, "--device", "cuda", "--json"])
    if ended.code != 0 or "resident" in json.loads(ended.out)["steps"] or "the GPU's memory" not in ended.err:
        problems.append(f"on a small GPU: {ended.err!r}")
    return problems


def what_a_day_with_a_gpu_runs():
    """Every command of `./dev gpu` is understood, up to the GPU that is not here."""
    where, problems = os.path.join(SCRATCH, "gpu-day"), []
    os.makedirs(where)
    environment = {**os.environ, "SW_EMULATED_GPU": "no-gpu"}
    commands = [command for stage in stages(FULL, where) for command in stage.commands if command.arguments[1:2] == ("bench",)]
    for command in commands:
        ended = program.run(*command.arguments[1:], cwd=where, env=environment)
        if ended.code != 1 or "no GPU of NVIDIA" not in ended.err:
            problems.append(f"{command.name}: status {ended.code}, {ended.err!r}")
    return problems if len(commands) > 10 else [f"{len(commands)} commands"]


# In PyTorch's place: what the script calls, which takes a second each time and refuses wrong shapes.
PEER = """
import os
import time
import types
__version__, version, bfloat16 = "0.0", types.SimpleNamespace(cuda="0.0"), "bf16"


class Tensor:
    def __init__(self, *shape):
        self.shape = shape

    def t(self):
        return Tensor(*reversed(self.shape))

    def __getitem__(self, at):
        rows, cols = at
        assert rows == slice(None) and 0 < cols.stop <= self.shape[1], (at, self.shape)
        return Tensor(self.shape[0], cols.stop)


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        folder = os.path.dirname(__file__)
        clock, asked = (os.path.join(folder, name) for name in ("clock", "asked"))
        if not os.path.exists(clock) or open(clock).read() == "1800, 99":
            return
        open(clock, "w").write("1800, 99")
        before = os.path.getsize(asked)
        while os.path.getsize(asked) < before + 4:
            time.sleep(0.01)

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1000.0


def randn(*shape, device, dtype, requires_grad=False):
    assert device == "cuda" and dtype == bfloat16
    return Tensor(*shape)


empty = randn


def mm(a, b, out=None):
    assert a.shape[1] == b.shape[0] and (out is None or out.shape == (a.shape[0], b.shape[1])), (a.shape, b.shape)
    return Tensor(a.shape[0], b.shape[1])


def addmm(bias, a, b):
    assert bias.shape == (b.shape[1],)
    return mm(a, b)


def attend(q, k, v, is_causal, enable_gqa):
    assert is_causal and enable_gqa and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[2:] == k.shape[2:]
    return Tensor(*q.shape)


def gradients(out, inputs, given, retain_graph):
    assert retain_graph and out.shape == given.shape and len(inputs) == 3


cuda = types.SimpleNamespace(is_available=lambda: True, Event=Event)
nn = types.SimpleNamespace(functional=types.SimpleNamespace(scaled_dot_product_attention=attend))
autograd = types.SimpleNamespace(grad=gradients)
"""


def smi(folder, text):
    """A nvidia-smi that says this of a GPU's clock and work."""
    os.chmod(program.write(os.path.join(folder, "nvidia-smi"), "#!/bin/sh\n" + text), 0o700)


def slowed_down(folder):
    """A program that is ours at a lower clock than PyTorch's. Each side ends when its clock was asked several times, so that
    one answer from the time before it does not count, however busy the machine is."""
    for name in ("clock", "asked"):
        program.write(os.path.join(folder, name), "")
    path = program.write(os.path.join(folder, "slowed-down"), f"""#!/bin/sh
cd {folder} || exit 1
printf '1500, 99' > clock
before=$(wc -c < asked)
"{os.path.abspath(program.PROGRAM)}" "$@" || exit
until [ "$(wc -c < asked)" -ge $((before + 4)) ]; do sleep 0.01; done
""")
    os.chmod(path, 0o700)
    return path


def pairs_with_a_peer():
    """The script that measures PyTorch beside ours: what it pairs, what it divides, and a machine without PyTorch."""
    folder, problems = os.path.join(SCRATCH, "peer"), []
    os.makedirs(folder)
    smi(folder, "echo '1500, 99'\n")
    script = [sys.executable, "-B", os.path.join(ROOT, "bench", "peers", "torch_pairs.py"), "--program", program.PROGRAM,
              "--model", "llama-tiny", "--tokens", "32", "--seqs", "16,32", "--rounds", "2"]
    environment = {**os.environ, "PYTHONPATH": folder, "PATH": folder + ":" + os.environ["PATH"]}
    for what, expected in (("gemm", ("qkv forward", "qkv weight gradient", "all products")),
                           ("attention", ("attention 16 forward", "attention 32 backward"))):
        program.write(os.path.join(folder, "torch.py"), PEER)
        ended = subprocess.run([*script, what], capture_output=True, text=True, check=False, env=environment)
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        pairs = lines[-1].get("pairs", {}) if lines else {}
        if ended.returncode != 0 or len(lines) < 3 or not all(name in pairs for name in expected):
            return [f"{what}: status {ended.returncode}, {sorted(pairs)}, {ended.stderr[-500:]}"]
        problems += [f"{name}: {pair}" for name, pair in pairs.items()
                     if not pair["ours_s"] > 0 or not math.isclose(pair["of_peer"], pair["peer_s"] / pair["ours_s"])]
        problems += [f"{name}: {pairs[name]}" for name in expected if name != "all products" and pairs[name]["peer_s"] != 1]
        program.write(os.path.join(folder, "torch.py"), "raise ImportError")
        ended = subprocess.run([*script, what], capture_output=True, text=True, check=False, env=environment)
        if ended.returncode != 0 or json.loads(ended.stdout) != {"absent": "PyTorch"}:
            problems.append(f"without PyTorch: {ended.returncode}, {ended.stdout!r}, {ended.stderr!r}")
    # Sides of which only one is slowed down, or whose clock is not known, have no ratio.
    program.write(os.path.join(folder, "torch.py"), PEER)
    slowed = slowed_down(folder)
    for text, reason, ours in ((f"cat {folder}/clock; printf . >> {folder}/asked", "1800 MHz", slowed),
                               ("echo '1500, 3'", "not known", program.PROGRAM), ("exit 9", "not known", program.PROGRAM)):
        smi(folder, text + "\n")
        changed = [{program.PROGRAM: ours, "16,32": "16"}.get(word, word) for word in script]
        ended = subprocess.run([*changed, "attention"], capture_output=True, text=True, check=False, env=environment)
        if ours == slowed:
            os.remove(os.path.join(folder, "clock"))
        pairs = json.loads(ended.stdout.splitlines()[-1]).get("pairs", {}) if ended.returncode == 0 else {}
        problems += [f"{text}: {pairs}, {ended.stderr[-300:]}"] if not pairs or any(
            "of_peer" in pair or reason not in pair.get("not_compared", "") for pair in pairs.values()) else []
    return problems


script_test.run(what_a_day_with_a_gpu_runs, pairs_with_a_peer, doctor_names_the_libraries, gpus_that_cannot_be_used, memory_that_is_not_there, auto_takes_the_gpu_or_says_why_not, losses_and_texts, odd_lengths, predictions_are_kept, tf32_rounds_a_little,
                fp8_is_multiplied_from_8_9_on,                 benches_of_parts, bench_of_steps)
