"""What `./dev gpu` runs: stages of commands, each with its own time limit, so that a machine that is lent for some
minutes at a time can prove everything in parts."""

from dataclasses import dataclass

LIMIT_S = 530  # of a stage: below nine minutes
PROGRAM = "build/spillway"


@dataclass(frozen=True)
class Command:
    """One result. kind: how its output is read (`bench`: JSON on standard output; `tests`: the runner's last line;
    `sanitizer`: compute-sanitizer's last line; `status`: nothing but the exit status)."""
    name: str
    kind: str
    arguments: tuple
    made: tuple = ()  # files that it makes, and does not overwrite


@dataclass(frozen=True)
class Stage:
    name: str
    what: str
    commands: tuple
    together: int = 1  # commands that run at a time: more than one only where no speed is measured
    needs_gpu: bool = True


def bench(name, *arguments, made=()):
    return Command(name, "bench", (PROGRAM, "bench", *arguments, "--device", "cuda", "--json"), made)


def step(name, model, micro_batch, batch_tokens, place, *more):
    trace = f"build/gpu/{name}.trace.json"
    return bench(name, "step", "--model", model, "--seq", "1024", "--micro-batch", str(micro_batch), "--batch-tokens",
                 str(batch_tokens), "--place", place, "--trace", trace, *more, made=(trace,))


OPS = ("activation", "attention", "attention_past", "columns", "cross_entropy", "gemm", "gradient", "layernorm",
       "rank_sum", "rmsnorm", "rotate", "streams", "update")
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b")
STATE_ON_HOST = "weights=device,grads=device,optimizer=host,acts=device"
ALL_ON_HOST = "weights=host,grads=host,optimizer=host,acts=device"


def sanitized(tool):
    return tuple(Command(f"{tool}-{op}", "sanitizer",
                         ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9",
                          f"build/tests/kernels/kernels_{op}_gpu")) for op in OPS)


STAGES = (
    Stage("build", "the program and its tests, with the CUDA device",
          (Command("build", "status", ("./dev", "build")),), needs_gpu=False),
    Stage("tests", "ops against the reference, PyTorch's numbers, same bits wherever state lives",
          (Command("tests", "tests", ("python3", "tools/run_tests.py", "build", "_gpu")),)),
    Stage("sanitizer", "the tests of ops under compute-sanitizer's memcheck", sanitized("memcheck"), together=4),
    Stage("races", "the same under its racecheck", sanitized("racecheck"), together=4),
    Stage("copy", "copies each way and both", (bench("copy", "copy"),)),
    Stage("update", "the update on the host and on the GPU", (bench("update", "update"),)),
    Stage("gemm", "matrix products by shape and precision",
          tuple(bench(f"gemm-{model}", "gemm", "--model", model, "--seq", "1024", "--micro-batch", "8")
                for model in MODELS) +
          tuple(bench(f"gemm-{precision}", "gemm", "--model", MODELS[0], "--seq", "1024", "--micro-batch", "8",
                      "--precision", precision) for precision in ("fp16", "fp32", "tf32"))),
    Stage("attention", "attention forward and backward",
          tuple(bench(f"attention-{model}-{seq}", "attention", "--model", model, "--seq", str(seq), "--micro-batch",
                      str(8192 // seq)) for model in MODELS for seq in (1024, 8192))),
    Stage("compute", "a micro-batch of each unit beside its products",
          tuple(bench(f"compute-{model}", "compute", "--model", model, "--seq", "1024", "--micro-batch", "4")
                for model in MODELS)),
    Stage("step-0.5b", "steps of Qwen2.5 0.5B, resident and offloaded",
          (step("step-0.5b", MODELS[0], 16, 131072, STATE_ON_HOST, "--order", "batch"),
           step("step-0.5b-by-layer", MODELS[0], 8, 131072, ALL_ON_HOST, "--order", "layer", "--recompute", "all",
                "--rounds", "1"))),
    Stage("step-1.5b", "steps of Qwen2.5 1.5B, resident and offloaded",
          (step("step-1.5b", MODELS[1], 4, 131072, STATE_ON_HOST, "--order", "batch", "--steps", "3"),
           step("step-1.5b-by-layer", MODELS[1], 8, 131072, ALL_ON_HOST, "--order", "layer", "--recompute", "all",
                "--rounds", "1"))),
    # 524,288 tokens take 37 s at 14,000 a second: five such steps with those that warm up.
    Stage("step-7b", "steps of Qwen2.5 7B, fp32 state on the host",
          (step("step-7b", MODELS[2], 4, 524288, STATE_ON_HOST, "--order", "batch", "--rounds", "1", "--steps", "2",
                "--host-memory", "92GiB"),)),
)
