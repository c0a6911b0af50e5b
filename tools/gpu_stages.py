"""The stages of `./dev gpu`, in the order of what is learned for the time: stages of commands, each with its own limit, so
that a machine that is lent for some minutes at a time can prove everything in parts."""

import os
from dataclasses import dataclass

import run_tests

PROGRAM = "build/spillway"
SMOKE_S, SHORT_S, BENCH_S, STEP_S = 20, 60, 120, 530


@dataclass(frozen=True)
class Command:
    """One result. kind: how its output is read (gpu_run.READERS)."""
    name: str
    kind: str
    arguments: tuple
    limit_s: float = SHORT_S
    made: tuple = ()  # files that it makes, and does not overwrite
    tool: str = ""  # a program without which it is left out, and named as absent
    environment: tuple = ()


@dataclass(frozen=True)
class Stage:
    name: str
    what: str
    commands: tuple
    together: int = 1  # commands that run at a time: more than one only where no speed is measured
    gate: bool = False  # where something of it fails, nothing after it is run
    alone: bool = False  # takes a call of its own, and runs where it is named


@dataclass(frozen=True)
class Scale:
    """How large the shapes are. The tests run everything with tiny ones."""
    build: str = "build"
    program: str = PROGRAM
    model: str = "qwen2.5-7b"
    others: tuple = ("qwen2.5-0.5b", "qwen2.5-1.5b")
    seq: int = 1024
    long_seq: int = 8192
    tokens: int = 8192  # of a micro-batch in yardsticks
    tests: str = "_gpu"  # how the names of tests end
    first: tuple = ("kernels_gemm", "kernels_attention")
    smoke: tuple = (  # test programs, and the tests of each: products with and without a bias; attention by warps and by
        # warpgroups; the update
        ("kernels_gemm", "products"), ("kernels_attention", "against_reference"), ("kernels_update", "same_bits_as_reference"))
    doctor: tuple = ()
    copy: tuple = ()
    update: tuple = ()
    bench: tuple = ()
    precisions: tuple = ("fp16", "fp32", "tf32")
    steps: tuple = (  # name, model, micro-batch, tokens of a step, what else
        ("step-0.5b", "step-0.5b", "qwen2.5-0.5b", 16, 131072, ("--order", "batch", "--rounds", "1")),
        ("step-7b-short", "step-7b-short", "qwen2.5-7b", 4, 65536,
         ("--order", "batch", "--rounds", "1", "--steps", "2", "--host-memory", "92GiB")),
        ("step-7b", "step-7b", "qwen2.5-7b", 4, 524288,
         ("--order", "batch", "--rounds", "1", "--steps", "2", "--host-memory", "92GiB")),
        ("more-steps", "step-0.5b-by-layer", "qwen2.5-0.5b", 8, 131072,
         ("--order", "layer", "--recompute", "all", "--rounds", "1")),
        ("more-steps", "step-1.5b", "qwen2.5-1.5b", 4, 131072, ("--order", "batch", "--rounds", "1", "--steps", "3")),
        ("more-steps", "step-1.5b-by-layer", "qwen2.5-1.5b", 8, 131072,
         ("--order", "layer", "--recompute", "all", "--rounds", "1")))


FULL = Scale()
ONCE = ("--rounds", "1")
ONE_THREAD = ("--threads", "1")
# For the tests: a program with the emulated GPU, and tests that take no time.
TINY = Scale(build=os.environ.get("SW_BUILD", ""), program=os.environ.get("SW_PROGRAM", ""), model="llama-tiny",
             others=("gpt2-tiny",), seq=16, long_seq=32, tokens=32, tests="",
             first=("kernels_rank_sum", "kernels_rotate"), smoke=(("kernels_rank_sum", "*"), ("kernels_rotate", "*")), doctor=("--quick",),
             copy=("--size", "64KiB", *ONCE, *ONE_THREAD), update=("--precision", "bf16", *ONCE, *ONE_THREAD), bench=ONCE,
             precisions=("fp32",),
             steps=tuple((name, name, "gpt2-tiny", 1, tokens, ("--steps", "1", *ONCE, *ONE_THREAD, "--chunk-grains", "2"))
                         for name, tokens in (("step-0.5b", 32), ("step-7b-short", 32), ("step-7b", 64))))
STATE_ON_HOST = "weights=device,grads=device,optimizer=host,acts=device"
ALL_ON_HOST = "weights=host,grads=host,optimizer=host,acts=device"
RATES_OF = {"qwen2.5-0.5b": "rates-0.5b.json", "qwen2.5-1.5b": "rates-1.5b.json", "qwen2.5-7b": "rates-7b.json"}
# Few, because a lent machine gives back few files.
TRACED = ("step-7b-short", "step-7b")


def bench(scale, name, *arguments, limit_s=BENCH_S, made=()):
    return Command(name, "bench", (scale.program, "bench", *arguments, "--device", "cuda", "--json"), limit_s, made)


def shaped(scale, name, what, model, seq, *more, micro_batch=None):
    return bench(scale, name, what, "--model", model, "--seq", str(seq), "--micro-batch",
                 str(micro_batch or max(1, scale.tokens // seq)), *scale.bench, *more)


def step(scale, out, name, model, micro_batch, batch_tokens, more):
    """Rates are measured once for a model and kept in the folder of results; a step is predicted by those."""
    trace = os.path.join(out, f"{name}.trace.json")
    place = ALL_ON_HOST if name.endswith("by-layer") else STATE_ON_HOST
    rates = os.path.join(out, RATES_OF.get(model, "rates.json"))
    traced = ("--trace", trace) if name in TRACED else ()
    return bench(scale, name, "step", "--model", model, "--seq", str(scale.seq), "--micro-batch", str(micro_batch),
                 "--batch-tokens", str(batch_tokens), "--place", place, "--rates", rates, *traced, *more, limit_s=STEP_S,
                 made=traced[1:])


def steps(scale, out):
    named = {}
    for stage, *arguments in scale.steps:
        named.setdefault(stage, []).append(step(scale, out, *arguments))
    return {stage: tuple(commands) for stage, commands in named.items()}


def yardsticks(scale):
    """At the shapes of the 7B: what a step is made of."""
    return (shaped(scale, "gemm", "gemm", scale.model, scale.seq),
            *(shaped(scale, f"attention-{seq}", "attention", scale.model, seq) for seq in (scale.seq, scale.long_seq)),
            bench(scale, "copy", "copy", *scale.copy), bench(scale, "update", "update", *scale.update),
            Command("machine-after", "lines", ("python3", "tools/gpu_machine.py", "clocks")))


def more_yardsticks(scale):
    small = scale.others[0]
    return (*(shaped(scale, f"gemm-{model}", "gemm", model, scale.seq) for model in scale.others),
            *(shaped(scale, f"gemm-{precision}", "gemm", small, scale.seq, "--precision", precision)
              for precision in scale.precisions),
            *(shaped(scale, f"attention-{model}-{seq}", "attention", model, seq)
              for model in scale.others for seq in (scale.seq, scale.long_seq)))


def peers(scale):
    script = ("python3", "bench/peers/torch_pairs.py", "--program", scale.program, "--model", scale.model, "--tokens",
              str(scale.tokens), "--seqs", f"{scale.seq},{scale.long_seq}")
    return tuple(Command(f"torch-{what}", "lines", (*script, what), BENCH_S) for what in ("gemm", "attention"))


def declared(scale):
    """The build folder's tests, or none before it is built."""
    try:
        return run_tests.declared_tests(scale.build)
    except (OSError, ValueError):
        return []


def test_command(test):
    return Command(test["name"], "tap", tuple(test["cmd"]), test["timeout"],
                   environment=tuple(sorted({**test["env"], "SW_TEST_DEVICE": "cuda"}.items())))


def tests_of(scale, area, others=False):
    """The test programs of an area that run on the GPU, matrix products and attention first."""
    found = [test for test in declared(scale) if test["name"].endswith(scale.tests)
             and (run_tests.label_of(test).startswith("kernels/") != others)]
    if not scale.tests:
        found = [test for test in found if test["name"] in scale.first] if area == "kernels" else []
    order = {name + scale.tests: place for place, name in enumerate(scale.first)}
    return tuple(test_command(test) for test in sorted(found, key=lambda test: order.get(test["name"], len(order))))


def smoke(scale):
    """Returns the seconds that every later minute rests on. A test that was not built fails, too."""
    built = {test["name"]: test for test in declared(scale)}
    tests = []
    for name, cases in scale.smoke:
        test = built.get(name + scale.tests, {"cmd": (name + scale.tests,), "env": {}})
        environment = {**test["env"], "SW_TEST_DEVICE": "cuda", "SW_TEST_FILTER": cases}
        tests.append(Command(f"smoke-{name}", "tap", tuple(test["cmd"]), SMOKE_S, environment=tuple(sorted(environment.items()))))
    copies = (scale.program, "bench", "copy", "--size", "1MiB", "--rounds", "1", "--device", "cuda", "--json")
    return (*tests, Command("smoke-copies", "status", copies, SMOKE_S),
            Command("smoke-nccl", "lines", ("python3", "tools/gpu_nccl.py"), SMOKE_S))


def sanitized(kernels, tool):
    return tuple(Command(f"{tool}-{one.name}", "sanitizer",
                         ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *one.arguments), STEP_S,
                         tool="compute-sanitizer", environment=one.environment) for one in kernels)


def stages(scale, out):
    """All of them. Tests are in it once they are built, so that the table is made anew for each stage."""
    kernels, step_of = tests_of(scale, "kernels"), steps(scale, out)
    return [
        Stage("machine", "driver, clocks, memory, cores, link, toolkit and tools, registers of our kernels",
              (Command("machine", "lines", ("python3", "tools/gpu_machine.py", "all")),)),
        Stage("build", "the program and its tests; at once where a bundle carries them",
              (Command("build", "status", ("./dev", "build", "--tests"), STEP_S),) if scale is FULL else (), gate=True),
        Stage("smoke", "in 20 seconds: products, attention, an update, copies both ways, NCCL alone; where one fails, the "
              "run ends", smoke(scale), together=5, gate=True),
        Stage("doctor", "the libraries that were found, and the self-test of every op",
              (Command("doctor", "doctor", (scale.program, "doctor", *scale.doctor, "--json")),)),
        Stage("tests", "ops against the reference, side by side", kernels, together=6),
        Stage("yardsticks", "products, attention, copies and updates at the shapes of the 7B", yardsticks(scale)),
        Stage("peers", "the same products and attention beside PyTorch's, in turn", peers(scale)),
        Stage("bits", "the same bits wherever state lives, PyTorch's numbers", tests_of(scale, "", others=True), together=2),
        Stage("compute", "a micro-batch of each unit beside its products",
              tuple(shaped(scale, f"compute-{model}", "compute", model, scale.seq, micro_batch=4)
                    for model in (scale.model, *scale.others))),
        *(Stage(name, what, step_of[name], alone=name == "step-7b") for name, what in (
            ("step-0.5b", "steps of Qwen2.5 0.5B"), ("step-7b-short", "steps of Qwen2.5 7B of 65,536 tokens"),
            ("step-7b", "steps of Qwen2.5 7B of 524,288 tokens, fp32 state on the host: in a call of its own"),
            ("more-steps", "steps offloaded whole, and of Qwen2.5 1.5B")) if name in step_of),
        Stage("more-yardsticks", "products and attention of other models and precisions", more_yardsticks(scale)),
        Stage("sanitizer", "the tests of ops under compute-sanitizer's memcheck", sanitized(kernels, "memcheck"), together=4),
        Stage("races", "the same under its racecheck", sanitized(kernels, "racecheck"), together=4),
    ]
