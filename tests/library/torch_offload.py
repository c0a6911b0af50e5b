"""spillway.offload: modules whose parameters stream have the bits of those whose parameters stay, in passes, training and generation;
what cannot work is refused by name. Needs PyTorch; generation needs transformers."""

import copy
import gc
import io
import os
import pickle
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), PYTHON]
os.environ["SPILLWAY_LIBRARY"] = os.path.abspath(sys.argv[1])
import script_test  # noqa: E402
import spillway  # noqa: E402

from torch_awkward import SEED, WIDTH, awkward, tokens, torch, train, trainable  # noqa: E402

PASSES, STEPS = 3, 5
MEMORY = "3MiB"


def needs_torch(check):
    def checked():
        if torch is None:
            raise script_test.Skip("no torch")
        torch.manual_seed(SEED)
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            return check(folder)
    checked.__name__ = check.__name__
    return checked


def offload(model, folder, memory=MEMORY, **options):
    return spillway.offload(model, store=os.path.join(folder, "weights"), memory=memory, allow_buffered=True, **options)


def adamw(model, folder, name):
    return spillway.AdamW(model.named_parameters(), lr=1e-3, clip=0.5, store=os.path.join(folder, name), host_memory="64MiB",
                          allow_buffered=True, missing="zero")


def passes_have_the_same_bits(folder, checkpointing=None):
    plain, streamed, problems = awkward(), awkward(checkpointing), []
    offloaded = offload(streamed, folder)
    for step in range(PASSES):
        results = []
        for model in (plain, streamed):
            model.zero_grad()
            output = model(tokens(step))
            output.pow(2).mean().backward()
            results.append([output, *(parameter.grad for parameter in model.parameters())])
        problems += [f"pass {step} differs in tensor {i}" for i, (a, b) in enumerate(zip(*results, strict=True))
                     if (a is None) != (b is None) or (a is not None and not torch.equal(a, b))]
        with torch.no_grad(), torch.no_grad():
            problems += [] if torch.equal(plain(tokens(-1)), streamed(tokens(-1))) else [f"evaluation {step} differs"]
    usage = offloaded.usage()
    if usage.memory_bytes > 3 << 20 or usage.tensor_bytes < 4 << 20 or usage.read_bytes < usage.tensor_bytes:
        problems.append(f"the usage is {usage}")
    kept = streamed.frozen.weight.detach()[1:]
    offloaded.close()
    problems += [] if torch.equal(plain(tokens(0)), streamed(tokens(0))) else ["the closed module differs"]
    problems += [] if torch.equal(kept, plain.frozen.weight[1:]) else ["a view of a closed module's parameter differs"]
    before = mapped(folder)
    del kept, output, results, offloaded
    gc.collect()
    problems += [] if before > 0 and mapped(folder) == 0 else [f"the file is mapped {before} and {mapped(folder)} times"]
    return problems


def mapped(folder):
    """Returns how often files of a folder are mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum(folder in line for line in maps)


@needs_torch
def any_module_has_the_same_bits(folder):
    return passes_have_the_same_bits(folder)


@needs_torch
def checkpointing_has_the_same_bits(folder):
    return [problem for reentrant in (True, False)
            for problem in passes_have_the_same_bits(os.path.join(folder, str(reentrant)), reentrant)]


@needs_torch
def training_has_the_same_bits_and_resumes(folder):
    plain, streamed = trainable(), trainable()
    offload(streamed, folder)
    optimizers = [adamw(plain, folder, "plain"), adamw(streamed, folder, "streamed")]
    losses = [train(model, optimizer, 0, STEPS) for model, optimizer in zip((plain, streamed), optimizers, strict=True)]
    problems = [] if losses[0] == losses[1] else [f"the losses are {losses}"]
    problems += [f"'{name}' has kept its gradient" for name, parameter in streamed.named_parameters() if parameter.grad is not None]
    optimizers[1].save()
    optimizers[1].close()
    again = trainable()
    offload(again, folder)
    optimizer = adamw(again, folder, "streamed")
    problems += [] if train(plain, optimizers[0], STEPS, 2 * STEPS) == train(again, optimizer, STEPS, 2 * STEPS) else ["the resumed losses differ"]
    problems += [f"'{name}' differs" for (name, a), b in zip(plain.named_parameters(), again.parameters(), strict=True) if not torch.equal(a, b)]
    optimizer.close()
    optimizers[0].close()
    return problems


@needs_torch
def errors_and_two_models_leave_nothing_behind(folder):
    class Raises(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = torch.nn.Linear(WIDTH, 2 * WIDTH)
            self.fails = False

        def forward(self, x):
            if self.fails:
                raise KeyError("on purpose")
            return self.inside(x)
    first, second = torch.nn.Sequential(Raises(), torch.nn.Linear(2 * WIDTH, WIDTH)), torch.nn.Linear(WIDTH, WIDTH)
    expected = second(first(torch.ones(1, WIDTH)))
    offloads = [offload(first, os.path.join(folder, "first")), offload(second, os.path.join(folder, "second"))]
    problems = []
    for _ in range(20):
        first[0].fails = True
        problems += script_test.raised(KeyError, "on purpose", first, torch.ones(1, WIDTH))
        first[0].fails = False
        problems += [] if torch.equal(second(first(torch.ones(1, WIDTH))), expected) else ["the result differs"]
    problems += [f"{len(offloaded._stack())} passes are open" for offloaded in offloads if offloaded._stack()]
    return problems


@needs_torch
def interrupted_passes_hold_nothing(folder):
    """PyTorch runs no hook after a KeyboardInterrupt. Two parameters of the three fit in memory."""
    def interrupt(*_):
        raise KeyboardInterrupt("on purpose")
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)])
    expected = model(torch.ones(1, WIDTH))
    offloaded, problems = offload(model, folder, "600KiB"), []
    for interrupted in (1, 2):
        hook = model[interrupted].register_forward_pre_hook(interrupt)
        problems += script_test.raised(KeyboardInterrupt, "on purpose", model, torch.ones(1, WIDTH))
        hook.remove()
        problems += [] if torch.equal(model(torch.ones(1, WIDTH)), expected) else ["the result differs"]
    return problems + ([f"{len(offloaded._stack())} passes are open"] if offloaded._stack() else [])


@needs_torch
def an_open_optimizer_keeps_the_stream(folder):
    """Garbage is collected in any order, and a stream that could not be closed stays, with its memory, for good."""
    def trained():
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
        offloaded = offload(model, folder, "600KiB")
        optimizer = adamw(model, folder, "store")
        model(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
        return model, offloaded, optimizer
    model, offloaded, optimizer = trained()
    problems = script_test.raised(ValueError, "a spillway.AdamW writes to the parameters", offloaded.close)
    with torch.no_grad():
        expected = model(torch.ones(1, WIDTH))
        optimizer.close()
        offloaded.close()
        offloaded.close()
        problems += [] if torch.equal(model(torch.ones(1, WIDTH)), expected) else ["the closed module differs"]
    gc.collect()
    problems += script_test.raised(ValueError, "is offloaded no more", offloaded.usage)
    problems += script_test.raised(ValueError, "is offloaded no more", offloaded.changing(model[0].weight).__enter__)
    before = mapped("memfd:spillway")
    garbage = [*trained()]
    garbage.append(garbage)
    del garbage
    gc.collect()
    return problems + ([] if before == mapped("memfd:spillway") == 0 else ["a stream that nobody uses is open"])


@needs_torch
def state_dicts_are_saved_and_loaded(folder):
    plain, streamed, other = awkward(), awkward(), awkward()
    offloaded = offload(streamed, folder)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    file, problems = io.BytesIO(), []
    torch.save(streamed.state_dict(), file)
    file.seek(0)
    problems += [f"'{name}' differs" for name, value in torch.load(file).items() if not torch.equal(value, plain.state_dict()[name])]
    streamed.load_state_dict(other.state_dict())
    problems += [] if torch.equal(other(tokens(0)), streamed(tokens(0))) else ["what was loaded differs"]
    with offloaded.changing(streamed.gain), torch.no_grad():
        streamed.gain.fill_(0.5)
        other.gain.fill_(0.5)
    problems += [] if torch.equal(other(tokens(0)), streamed(tokens(0))) else ["what was changed differs"]
    return problems


@needs_torch
def weights_that_were_loaded_are_taken(folder):
    """Their masters are read at the addresses to which the same update writes the weights."""
    model, other = (torch.nn.Sequential(*[torch.nn.Linear(2 * WIDTH, 2 * WIDTH) for _ in range(4)]) for _ in range(2))
    offload(model, folder)
    optimizer = adamw(model, folder, "store")
    model(torch.ones(1, 2 * WIDTH)).sum().backward()
    optimizer.step()
    model.load_state_dict(other.state_dict())
    optimizer.take_weights()
    pairs = list(zip(model.named_parameters(), other.parameters(), strict=True))
    problems = [f"'{name}' differs" for (name, a), b in pairs if not torch.equal(a, b)]
    problems += [f"the master of '{name}' differs" for (name, a), b in pairs if not torch.equal(optimizer.read_state(a)["master"], b)]
    optimizer.close()
    return problems


@needs_torch
def parameters_on_meta_are_filled(folder):
    plain = awkward()
    values = dict(plain.named_parameters())
    with torch.device("meta"):
        streamed = awkward()
    offload(streamed, folder, fill=lambda name, tensor: tensor.copy_(values[name]))
    return [] if torch.equal(plain(tokens(0)), streamed(tokens(0))) else ["the result differs"]


@needs_torch
def what_fails_midway_leaves_the_module(folder):
    def fails(name, _):
        raise KeyboardInterrupt(name)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH, device="meta"))
    first = model[0](torch.ones(1, WIDTH))
    problems = script_test.raised(KeyboardInterrupt, "1.weight", offload, model, folder, fill=fails)
    problems += [] if torch.equal(model[0](torch.ones(1, WIDTH)), first) and mapped(folder) == 0 else ["something stays offloaded"]
    offload(model, folder, fill=lambda _, tensor: tensor.fill_(0.5))
    return problems if torch.equal(model[0](torch.ones(1, WIDTH)), first) else [*problems, "the result differs"]


@needs_torch
def generation_gives_the_same_tokens(folder):
    try:
        import transformers
    except ImportError:
        raise script_test.Skip("no transformers") from None
    problems = []
    for config in (transformers.GPT2Config(vocab_size=500, n_embd=WIDTH, n_layer=3, n_head=4, n_positions=64),
                   transformers.LlamaConfig(vocab_size=500, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=3,
                                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)):
        torch.manual_seed(SEED)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        beams = {**options, "num_beams": 3}
        expected = [model.generate(tokens(1), **options), model.generate(tokens(2), **beams)]
        loss = model(tokens(3), labels=tokens(3)).loss
        offload(model, os.path.join(folder, config.model_type), "2MiB")
        problems += [] if torch.equal(model.generate(tokens(1), **options), expected[0]) else [f"{config.model_type} differs"]
        problems += [] if torch.equal(model.generate(tokens(2), **beams), expected[1]) else [f"{config.model_type} differs with beams"]
        problems += [] if torch.equal(model(tokens(3), labels=tokens(3)).loss, loss) else [f"the loss of {config.model_type} differs"]
        model.save_pretrained(os.path.join(folder, "saved"))
        saved = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "saved")).eval()
        problems += [] if torch.equal(saved(tokens(3), labels=tokens(3)).loss, loss) else [f"the saved {config.model_type} differs"]
    return problems


@needs_torch
def mistakes_are_refused_by_name(folder):
    def small():
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    refused = script_test.raised
    problems = refused(ValueError, "weights='host'", offload, small(), folder, weights="host")
    problems += refused(ValueError, "weights='host'", offload, small(), folder, device_memory="20GiB")
    class OnGpu(torch.nn.Parameter):
        device = torch.device("cuda", 0)
    on_gpu = small()
    on_gpu[1].weight = OnGpu(on_gpu[1].weight.detach())
    problems += refused(ValueError, "'1.weight' is on cuda:0", offload, on_gpu, folder)
    problems += refused(ValueError, "neither 'nvme' nor 'host'", offload, small(), folder, weights="disk")
    problems += refused(ValueError, "is not a size", offload, small(), folder, "2GB")
    problems += refused(ValueError, "'0.weight' is on meta", offload, small().to("meta"), folder)
    problems += refused(ValueError, "no parameters", offload, torch.nn.ReLU(), folder)
    problems += refused(ValueError, "DataParallel", offload, torch.nn.DataParallel(small()), folder)
    problems += refused(spillway.StoreError, "the largest tensor alone takes 264", offload, small(), folder, "128KiB")
    turned = small()
    turned[1].weight.data = turned[1].weight.data.t()
    problems += refused(ValueError, "'1.weight' is not contiguous", offload, turned, folder)
    model = small()
    offloaded = offload(model, folder)
    problems += refused(ValueError, "'0.weight' is offloaded already", offload, model, folder)
    problems += refused(RuntimeError, "keeps its types", model.half)
    problems += refused(RuntimeError, "keeps its types", model[1].to, torch.float64)
    problems += refused(RuntimeError, "keeps its types", model.share_memory)
    model.to("cpu").float().train().eval()
    problems += refused(TypeError, "copied or pickled", copy.deepcopy, model)
    problems += refused(TypeError, "copied or pickled", pickle.dumps, model)
    model(torch.ones(1, WIDTH)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    problems += refused(RuntimeError, "'0.weight' was changed in place", model, torch.ones(1, WIDTH))
    other = small()
    offload(other, os.path.join(folder, "other"))
    problems += refused(ValueError, "different offloaded modules", spillway.AdamW, [*model.parameters(), *other.parameters()],
                        store=os.path.join(folder, "store"), host_memory="64MiB", allow_buffered=True)
    scaled = adamw(other, folder, "scaled")
    for unscales in (False, True):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(other(torch.ones(1, WIDTH)).sum()).backward()
        if unscales:
            scaler.unscale_(scaled)
        problems += refused(ValueError, "a GradScaler scales the loss", scaler.step, scaled)
    problems += refused(ValueError, "the module is offloaded", spillway.AdamW, other.parameters(), overlap=other,
                        store=os.path.join(folder, "store"), host_memory="64MiB", allow_buffered=True)
    del offloaded
    return problems


PROGRAM = """
import torch, spillway
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
spillway.offload(model, store="weights", memory="4MiB", allow_buffered=True)
optimizer = spillway.AdamW(model.named_parameters(), store="store", host_memory="64MiB", allow_buffered=True)
for _ in range(2):
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
print("done")
"""


@needs_torch
def a_compiled_module_has_the_same_bits(folder):
    """Dynamo leaves the hooks, and with them the modules' calls, to the interpreter."""
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    expected = model(torch.ones(1, WIDTH))
    offloaded = offload(model, folder, "600KiB")
    compiled = torch.compile(model, backend="eager")
    problems = [] if all(torch.equal(compiled(torch.ones(1, WIDTH)), expected) for _ in range(3)) else ["the result differs"]
    return problems if offloaded.usage().needs == 2 + 6 else [*problems, f"the hooks ran {offloaded.usage().needs} times"]


@needs_torch
def an_interpreter_ends_with_everything_open(folder):
    done = subprocess.run([sys.executable, "-B", "-c", PROGRAM], cwd=folder, env={**os.environ, "PYTHONPATH": PYTHON}, capture_output=True,
                          text=True, check=False)
    return [] if done.returncode == 0 and done.stdout == "done\n" and not done.stderr else [f"{done.returncode}: {done.stderr[-500:]}"]


@needs_torch
def the_guides_program_runs(folder):
    with open(os.path.join(os.path.dirname(PYTHON), "docs", "guide", "library.md"), encoding="utf-8") as page:
        programs = re.findall(r"^```python\n(.*?)^```$", page.read(), re.M | re.S)
    (program,) = (program for program in programs if "spillway.offload(" in program)
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=folder, env={**os.environ, "PYTHONPATH": PYTHON}, capture_output=True,
                          text=True, check=False)
    return [] if done.returncode == 0 and not done.stderr else [f"{done.returncode}: {done.stderr[-500:]}"]


script_test.run(any_module_has_the_same_bits, checkpointing_has_the_same_bits, training_has_the_same_bits_and_resumes,
                errors_and_two_models_leave_nothing_behind, interrupted_passes_hold_nothing,
                an_open_optimizer_keeps_the_stream, state_dicts_are_saved_and_loaded, weights_that_were_loaded_are_taken,
                parameters_on_meta_are_filled, what_fails_midway_leaves_the_module,
                generation_gives_the_same_tokens, mistakes_are_refused_by_name, a_compiled_module_has_the_same_bits, an_interpreter_ends_with_everything_open,
                the_guides_program_runs)
