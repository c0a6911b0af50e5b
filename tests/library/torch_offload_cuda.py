"""spillway.offload to a GPU: modules whose parameters stream from host memory to the emulated GPU have the bits of those whose
parameters stay, in passes, training and generation, within `device_memory`. PyTorch's kernels for the CPU stand for those of a GPU:
they compute at the GPU's addresses, and crash where none is mapped."""

import contextlib
import ctypes
import gc
import importlib
import io
import os
import sys
import types

from torch_awkward import SEED, WIDTH, awkward, tokens, train, trainable
from torch_support import needs, script_test, spillway, torch

PASSES, STEPS, MIB = 3, 4, 1 << 20
# The least that small tensors and the largest uses take, in units of 2 MiB.
MEMORY = "16MiB"
RANGES = []


class Driver:
    """The emulated driver, which the library finds in place of NVIDIA's."""

    def __init__(self, path):
        self.emulation = ctypes.CDLL(path)
        self.emulation.sw_emulation_device_bytes.restype = ctypes.c_size_t
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 0)

    def call(self, name, *arguments):
        if getattr(self.emulation, name)(*arguments) != 0:
            raise RuntimeError(name)

    def device_bytes(self, most):
        return self.emulation.sw_emulation_device_bytes(most)


class Stream:
    """Stands in for torch.cuda.Stream."""

    def __init__(self, _=None):
        self.cuda_stream = DRIVER.stream.value

    def wait_stream(self, _):
        """Kernels of the CPU have run when they return."""


def tensor_at(address, size, gpu, keep):
    """Stands in for devices.tensor_at."""
    memory = (ctypes.c_char * size).from_address(address)
    keep(memory)
    RANGES.append((address, address + size))
    return torch.frombuffer(memory, dtype=torch.uint8)


def device_of(tensor, plain=torch.Tensor.device if torch is not None else None):
    """Stands in for torch.Tensor.device."""
    where = plain.__get__(tensor)
    if where.type != "cpu" or tensor.layout != torch.strided or tensor.numel() == 0:
        return where
    address = tensor.data_ptr()
    return torch.device("cuda", 0) if any(first <= address < last for first, last in RANGES) else where


@contextlib.contextmanager
def emulated():
    """PyTorch believes that it has a GPU."""
    global DRIVER
    if "DRIVER" not in globals():
        DRIVER = Driver(os.path.abspath(sys.argv[2]))
    plain, devices = torch.Tensor.device, importlib.import_module("spillway.devices")
    torch.cuda.Stream, torch.cuda.current_stream = Stream, lambda _=None: Stream()
    devices.tensor_at, devices.to_gpu = tensor_at, lambda tensor, _: tensor
    torch.Tensor.device = property(device_of)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        del torch.Tensor.device
        RANGES.clear()
    assert torch.Tensor.device is plain


def on_gpu(check):
    @needs("torch")
    def checked(folder):
        os.makedirs(folder)
        with emulated():
            found = check(folder)
            gc.collect()
            left = DRIVER.device_bytes(False)
            return found + ([f"{left} bytes of the GPU stay taken"] if left != 0 else [])
    checked.__name__ = check.__name__
    return checked


def offload(model, memory=MEMORY, **options):
    """With a GPU that PyTorch finds, for as long as that is asked."""
    plain = torch.cuda.is_available, torch.cuda.current_device
    torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
    try:
        return spillway.offload(model, weights="host", device_memory=memory, **options)
    finally:
        torch.cuda.is_available, torch.cuda.current_device = plain


def adamw(model, folder, name):
    return spillway.AdamW(model.named_parameters(), lr=1e-3, clip=0.5, store=os.path.join(folder, name), host_memory="64MiB",
                          allow_buffered=True, missing="zero", hand_over=True)


def passes_have_the_same_bits(checkpointing=None):
    plain, streamed, problems = awkward(), awkward(checkpointing), []
    streamed.register_buffer("counts", torch.ones(3))
    streamed.twice.register_buffer("same", streamed.counts)
    offloaded = offload(streamed)
    problems += [] if streamed.counts is streamed.twice.same else ["a shared buffer is two"]
    for step in range(PASSES):
        results = []
        for model in (plain, streamed):
            model.zero_grad()
            output = model(tokens(step))
            output.pow(2).mean().backward()
            results.append([output, *(parameter.grad for parameter in model.parameters())])
        problems += [f"pass {step} differs in tensor {i}" for i, (a, b) in enumerate(zip(*results, strict=True))
                     if (a is None) != (b is None) or (a is not None and not torch.equal(a, b))]
        with torch.no_grad():
            problems += [] if torch.equal(plain(tokens(-1)), streamed(tokens(-1))) else [f"evaluation {step} differs"]
            # Nobody announces these.
            problems += [f"'{name}' differs" for (name, a), b in zip(plain.named_parameters(), streamed.parameters(), strict=True)
                         if not torch.equal(a, b)]
    usage, most = offloaded.usage(), DRIVER.device_bytes(True)
    if usage.memory_bytes > 16 * MIB or most > 16 * MIB or usage.drive_bytes != 0 or usage.read_bytes < 2 * usage.tensor_bytes:
        problems.append(f"the most that was taken of the GPU is {most}, and the usage {usage}")
    kept = streamed.frozen.weight.detach()[1:]
    offloaded.close()
    problems += [] if torch.equal(plain(tokens(0)), streamed(tokens(0))) else ["the closed module differs"]
    return problems + ([] if torch.equal(kept, plain.frozen.weight[1:]) else ["a view of a closed module's parameter differs"])


@on_gpu
def any_module_has_the_same_bits(_):
    return passes_have_the_same_bits()


@on_gpu
def checkpointing_has_the_same_bits(_):
    return [problem for reentrant in (True, False) for problem in passes_have_the_same_bits(reentrant)]


@on_gpu
def training_has_the_same_bits_and_resumes(folder):
    plain, streamed = trainable(), trainable()
    offload(streamed)
    optimizers = [adamw(plain, folder, "plain"), adamw(streamed, folder, "streamed")]
    losses = [train(model, optimizer, 0, STEPS) for model, optimizer in zip((plain, streamed), optimizers, strict=True)]
    problems = [] if losses[0] == losses[1] else [f"the losses are {losses}"]
    problems += [f"'{name}' has kept its gradient" for name, parameter in streamed.named_parameters() if parameter.grad is not None]
    optimizers[1].close()
    again = trainable()
    offload(again)
    optimizer = adamw(again, folder, "streamed")
    problems += [] if train(plain, optimizers[0], STEPS, 2 * STEPS) == train(again, optimizer, STEPS, 2 * STEPS) else ["the resumed losses differ"]
    problems += [f"'{name}' differs" for (name, a), b in zip(plain.named_parameters(), again.parameters(), strict=True) if not torch.equal(a, b)]
    optimizer.close()
    optimizers[0].close()
    return problems


@on_gpu
def state_dicts_are_saved_loaded_and_taken(folder):
    plain, streamed, other = trainable(), trainable(), trainable()
    offloaded = offload(streamed)
    optimizer = adamw(streamed, folder, "store")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    file, problems = io.BytesIO(), []
    torch.save({name: value.clone() for name, value in streamed.state_dict().items()}, file)
    file.seek(0)
    problems += [f"'{name}' differs" for name, value in torch.load(file).items() if not torch.equal(value, plain.state_dict()[name])]
    streamed.load_state_dict(other.state_dict())
    problems += [] if torch.equal(other(tokens(0)), streamed(tokens(0))) else ["what was loaded differs"]
    optimizer.take_weights()
    problems += [] if torch.equal(optimizer.read_state(streamed.gain)["master"], other.gain) else ["the master was not loaded"]
    optimizer.close()
    with offloaded.changing(streamed.gain), torch.no_grad():
        streamed.gain.fill_(0.5)
        other.gain.fill_(0.5)
    return problems + ([] if torch.equal(other(tokens(0)), streamed(tokens(0))) else ["what was changed differs"])


@on_gpu
def parameters_on_meta_are_filled(_):
    plain = awkward()
    values = dict(plain.named_parameters())
    with torch.device("meta"):
        streamed = awkward()
    offload(streamed, fill=lambda name, tensor: tensor.copy_(values[name]))
    return [] if torch.equal(plain(tokens(0)), streamed(tokens(0))) else ["the result differs"]


@on_gpu
def errors_and_interrupts_hold_nothing(_):
    """Two parameters of the three fit beside the small ones."""
    def interrupt(*_):
        raise KeyboardInterrupt("on purpose")
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)])
    expected = model(torch.ones(1, WIDTH))
    offloaded, problems = offload(model, "6MiB"), []
    for interrupted in (1, 2):
        hook = model[interrupted].register_forward_pre_hook(interrupt)
        problems += script_test.raised(KeyboardInterrupt, "on purpose", model, torch.ones(1, WIDTH))
        hook.remove()
        problems += script_test.raised(RuntimeError, "cannot be multiplied", model, torch.ones(1, 3))
        problems += [] if torch.equal(model(torch.ones(1, WIDTH)), expected) else ["the result differs"]
    return problems + ([f"{len(offloaded._stack())} passes are open"] if offloaded._stack() else [])


@needs("torch", "transformers")
def generation_gives_the_same_tokens(_):
    with emulated():
        return generate(sys.modules["transformers"])


def generate(transformers):
    config = transformers.LlamaConfig(vocab_size=500, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = [model.generate(tokens(1), **options, num_beams=beams) for beams in (1, 3)]
    offloaded = offload(model, "10MiB")
    # The library's own choice of a device would be that of a GPU, on which the tokens are not.
    type(model).device = property(lambda _: torch.device("cpu"))
    try:
        got = [model.generate(tokens(1), **options, num_beams=beams) for beams in (1, 3)]
    finally:
        del type(model).device
    waits = offloaded.usage().waits / offloaded.usage().needs
    problems = [] if waits < 0.5 else [f"{waits} of the needs waited"]
    return problems + [f"the tokens differ in {i}" for i, (a, b) in enumerate(zip(got, expected, strict=True)) if not torch.equal(a, b)]


@needs("torch")
def mistakes_are_refused_by_name(folder):
    def small():
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    refused, problems = script_test.raised, []
    if not torch.cuda.is_available():
        problems += refused(ValueError, "PyTorch finds none here", spillway.offload, small(), weights="host", device_memory="1GiB")
    problems += refused(ValueError, "give device_memory", spillway.offload, small(), weights="host")
    problems += refused(ValueError, "are for weights='nvme'", spillway.offload, small(), weights="host", device_memory="1GiB", memory="1GiB")
    problems += refused(ValueError, "a GPU cannot read a file", spillway.offload, small(), store=folder, memory="1GiB", device_memory="1GiB")
    problems += refused(ValueError, "give `store`", spillway.offload, small(), memory="1GiB")
    class Elsewhere(torch.nn.Parameter):
        device = torch.device("cuda", 1)
    class Here(torch.nn.Parameter):
        device = torch.device("cuda", 0)
    both = small()
    both[0].weight, both[1].weight = Here(both[0].weight.detach()), Elsewhere(both[1].weight.detach())
    problems += refused(ValueError, "'0.weight' and '1.weight' are on different GPUs", spillway.offload, both, weights="host", device_memory="1GiB")
    with emulated():
        problems += refused(spillway.StoreError, "too small: the largest tensor alone takes 4.00 MiB", offload, small(), "3MiB")
        model = small()
        offloaded = offload(model)
        problems += refused(ValueError, "'0.weight' is offloaded already", offload, model)
        problems += refused(RuntimeError, "keeps its types", model.half)
        torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            model[0].weight.add_(1)
        problems += refused(RuntimeError, "'0.weight' was changed in place", model, torch.ones(1, WIDTH))
        problems += refused(ValueError, "the module is offloaded", spillway.AdamW, model.parameters(), overlap=model, store=folder,
                            host_memory="64MiB", allow_buffered=True)
        del offloaded, model
        gc.collect()
    return problems


script_test.run(mistakes_are_refused_by_name, any_module_has_the_same_bits, checkpointing_has_the_same_bits, training_has_the_same_bits_and_resumes,
                state_dicts_are_saved_loaded_and_taken, parameters_on_meta_are_filled, errors_and_interrupts_hold_nothing,
                generation_gives_the_same_tokens)
