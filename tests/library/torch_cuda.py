"""Parameters on a GPU: spillway.AdamW with parameters and gradients in the memory of the emulated GPU has the bits of the
same ones in CPU memory. PyTorch computes on the CPU here: tensors of this test say that they are on a GPU, and have an
image in its memory."""

import copy
import ctypes
import os
import subprocess
import sys
import types

from torch_support import needs, script_test, spillway, torch

STEPS = 5
OK, FLAGS = 0, 0


class Gpu:
    """The emulated GPU by its driver, which the library finds in place of NVIDIA's."""

    def __init__(self, path):
        self.driver = ctypes.CDLL(path)
        self.images = {}
        self.context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxPushCurrent_v2", self.context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), FLAGS)
        self.asked = self.waited = 0

    def call(self, name, *arguments):
        if getattr(self.driver, name)(*arguments) != OK:
            raise RuntimeError(name)

    def current_stream(self, device):
        """Stands in for torch.cuda.current_stream."""
        self.asked += device == 0
        return types.SimpleNamespace(cuda_stream=self.stream.value)

    def stream_class(self):
        """Stands in for torch.cuda.Stream."""
        gpu = self

        class Stream:
            def __init__(self, device):
                made, self.event = ctypes.c_void_p(), ctypes.c_void_p()
                gpu.call("cuStreamCreate", ctypes.byref(made), FLAGS)
                gpu.call("cuEventCreate", ctypes.byref(self.event), FLAGS)
                self.cuda_stream = made.value

            def wait_stream(self, other):
                gpu.call("cuEventRecord", self.event, ctypes.c_void_p(other.cuda_stream))
                gpu.call("cuStreamWaitEvent", ctypes.c_void_p(self.cuda_stream), self.event, FLAGS)
                gpu.waited += 1
        return Stream

    def image(self, host, size):
        """The address of the image of so many bytes at an address of host memory."""
        if (host, size) not in self.images:
            made = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(size))
            self.images[host, size] = made.value
        return self.images[host, size]

    def upload(self, host, size):
        to = self.image(host, size)
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_void_p(host), ctypes.c_size_t(size), self.stream)
        return to

    def download(self, host, size):
        self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host), ctypes.c_uint64(self.image(host, size)), ctypes.c_size_t(size),
                  self.stream)
        self.call("cuStreamSynchronize", self.stream)


def place(tensor):
    """The address in host memory, and the bytes."""
    return torch.Tensor.data_ptr(tensor), tensor.numel() * tensor.element_size()


def on_gpu_class(gpu):
    class OnGpu(torch.Tensor):
        """A tensor whose address leads to the emulated GPU, which has its values from then on."""

        @property
        def device(self):
            return torch.device("cuda", 0)

        def data_ptr(self):
            host, size = place(self)
            return gpu.image(host, size) if (host, size) in gpu.images else gpu.upload(host, size)
        @property
        def grad(self):
            made = torch.Tensor.grad.__get__(self)
            if made is None:
                return None
            # The backward pass has made it on the stream that is current now; the memory may have been another gradient's.
            gpu.upload(*place(made))
            return made.as_subclass(OnGpu)

        @grad.setter
        def grad(self, value):
            torch.Tensor.grad.__set__(self, value)
    return OnGpu


def fetch(gpu, model):
    """Lets the host have what the library has written to the GPU."""
    for parameter in model.parameters():
        if type(parameter).__name__ == "OnGpu":
            gpu.download(*place(parameter))


def module():
    return torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.Tanh(), torch.nn.Linear(65, 129).to(torch.bfloat16),
                               torch.nn.Linear(129, 1))


def loss_of(model, step):
    hidden = model[1](model[0](torch.randn(8, 33, generator=torch.Generator().manual_seed(step))))
    return model[3](model[2](hidden.to(torch.bfloat16)).float()).square().mean()


def moved(model, gpu, picked):
    """Says of the picked parameters that they are on the GPU."""
    kind = on_gpu_class(gpu)
    gpu.images = {}  # those of other modules, whose memory this one may have
    for part in model.modules():
        for name, parameter in list(part._parameters.items()):
            if picked(name):
                part._parameters[name] = torch.nn.Parameter(parameter.detach().clone().as_subclass(kind))
    return model


def train(model, optimizer, gpu, passes=1):
    for step in range(optimizer.last_step, STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            loss_of(model, step * passes + number).backward()
        optimizer.step()
        optimizer.wait()
        if gpu is not None:
            fetch(gpu, model)
    return [parameter.detach().as_subclass(torch.Tensor).clone() for parameter in model.parameters()]


GPU = None


def gpu():
    """The emulated GPU, in place of torch's, made once."""
    global GPU
    if GPU is None:
        GPU = Gpu(os.path.abspath(sys.argv[2]))
        torch.cuda.current_stream, torch.cuda.Stream = GPU.current_stream, GPU.stream_class()
    return GPU


def options(**more):
    return {"lr": 1e-2, "host_memory": "64MiB", "clip": 0.5, "allow_buffered": True, **more}


def compare(folder, picked, **more):
    """Trains a module of which some parameters are on the GPU, and a copy in CPU memory."""
    passes = 2 if more.get("hand_over") else 1
    model = module()
    plain = copy.deepcopy(model)
    with_gpu = moved(model, gpu(), picked)
    asked = gpu().asked
    mine = spillway.AdamW(with_gpu.named_parameters(), store=folder, **options(**more))
    got = train(with_gpu, mine, gpu(), passes)
    state = [mine.read_state(parameter) for parameter in with_gpu.parameters()]
    mine.close()
    theirs = spillway.AdamW(plain.named_parameters(), store=folder + ".cpu", **options(**more))
    want = train(plain, theirs, None, passes)
    masters = [theirs.read_state(parameter) for parameter in plain.parameters()]
    theirs.close()
    problems = [f"parameter {number} differs" for number, (a, b) in enumerate(zip(got, want, strict=True)) if not torch.equal(a, b)]
    problems += [f"the {part} of parameter {number} differs" for number, (a, b) in enumerate(zip(state, masters, strict=True))
                 for part in a if not torch.equal(a[part], b[part])]
    return problems + ([] if gpu().asked > asked else ["torch was not asked for its stream"])


@needs("torch")
def parameters_on_a_gpu_have_the_bits_of_the_cpu(folder):
    return compare(folder, lambda name: True)


@needs("torch")
def parameters_may_be_on_both_sides(folder):
    return compare(folder, lambda name: name == "weight", state="8bit")


@needs("torch")
def gradients_leave_the_gpu_as_they_are_made(folder):
    before = gpu().waited
    problems = compare(folder, lambda name: True, hand_over=True) + compare(folder + ".both", lambda name: name == "weight", hand_over=True)
    return problems + ([] if gpu().waited - before == 2 * STEPS * (6 + 3) else [f"{gpu().waited - before} gradients trailed"])


@needs("torch")
def steps_overlap(folder):
    model = module()
    plain = copy.deepcopy(model)
    with_gpu = moved(model, gpu(), lambda name: True)
    with_overlap = spillway.AdamW(with_gpu.named_parameters(), store=folder, overlap=with_gpu, **options())
    got = train(with_gpu, with_overlap, gpu())
    with_overlap.close()
    theirs = spillway.AdamW(plain.named_parameters(), store=folder + ".cpu", **options())
    want = train(plain, theirs, None)
    theirs.close()
    return [] if all(torch.equal(a, b) for a, b in zip(got, want, strict=True)) else ["a parameter differs"]


@needs("torch")
def a_resume_writes_to_the_gpu(folder):
    model = moved(module(), gpu(), lambda name: True)
    optimizer = spillway.AdamW(model.named_parameters(), store=folder, **options())
    want = train(model, optimizer, gpu())
    optimizer.close()
    again = moved(module(), gpu(), lambda name: True)
    resumed = spillway.AdamW(again.named_parameters(), store=folder, **options())
    fetch(gpu(), again)
    resumed.close()
    same = all(torch.equal(a, b) for a, b in zip(want, (p.detach().as_subclass(torch.Tensor) for p in again.parameters()), strict=True))
    return [] if same and resumed.last_result is None else ["the parameters of the last commit were not written to the GPU"]


@needs("torch")
def gradients_are_handed_over(folder):
    """By hooks, in CPU memory, and twice a step: `.grad` is free again, and the bits are those of sums in fp32."""
    model = module().float()
    plain, kept = copy.deepcopy(model), []
    mine = spillway.AdamW(model.named_parameters(), store=folder, **options(hand_over=True))
    theirs = spillway.AdamW(plain.named_parameters(), store=folder + ".plain", **options())
    for step in range(STEPS):
        for optimizer, trained in ((mine, model), (theirs, plain)):
            optimizer.zero_grad()
            for number in range(2):
                trained[3](trained[2](trained[1](trained[0](torch.randn(8, 33, generator=torch.Generator().manual_seed(2 * step + number))))))\
                    .square().mean().backward()
            kept += [parameter.grad for parameter in model.parameters() if optimizer is mine and parameter.grad is not None]
            optimizer.step()
    problems = ["a parameter differs"] if not all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True)) else []
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model[0].weight.sum()).backward()
    problems += script_test.raised(ValueError, "GradScaler", scaler.step, mine)
    mine.close()
    theirs.close()
    return problems + (["gradients stay in .grad"] if kept else [])


class Scaler(torch.amp.GradScaler if torch is not None else object):
    """A GradScaler whose arithmetic on gradients, which PyTorch would give the GPU, runs where their values are."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        kept = [torch.Tensor.grad.__get__(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [gradient.as_subclass(torch.Tensor) for gradient in kept if gradient is not None]
        for dtype in {gradient.dtype for gradient in gradients}:
            torch._amp_foreach_non_finite_check_and_unscale_([gradient for gradient in gradients if gradient.dtype == dtype], found_inf, inv_scale)
        return {found_inf.device: found_inf}


def train_scaled(model, optimizer, gpu):
    """The second step overflows, and is left out. The gradients of the fourth are looked at before it."""
    scaler = Scaler("cpu", init_scale=2.0 ** 10)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step).as_subclass(torch.Tensor)
        scaler.scale(loss * 1e38 if step == 1 else loss).backward()
        if step == 3:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.wait()
        if gpu is not None:
            fetch(gpu, model)
    return [parameter.detach().as_subclass(torch.Tensor).clone() for parameter in model.parameters()], scaler.get_scale(), optimizer.last_step


@needs("torch")
def a_grad_scaler_works_on_a_gpu(folder):
    problems = []
    os.makedirs(folder)
    for name, picked in (("all", lambda name: True), ("some", lambda name: name == "weight")):
        for overlaps in (False, True):
            model = module()
            plain, found = copy.deepcopy(model), []
            for trained, where in ((moved(model, gpu(), picked), gpu()), (plain, None)):
                optimizer = spillway.AdamW(trained.named_parameters(), store=os.path.join(folder, f"{name}-{overlaps}-{where is None}"),
                                           overlap=trained if overlaps else None, **options())
                found.append(train_scaled(trained, optimizer, where))
                optimizer.close()
            (got, *mine), (want, *theirs) = found
            problems += [f"{name}, overlap {overlaps}: parameter {number} differs" for number, pair in enumerate(zip(got, want, strict=True))
                         if not torch.equal(*pair)]
            problems += [] if mine == theirs == [2.0 ** 9, STEPS - 1] else [f"the scale and the steps are {mine}, in CPU memory {theirs}"]
    return problems


@needs("torch")
def a_gpu_that_is_not_there_is_refused(folder):
    """In another process, in which the library finds no driver."""
    program = f"""
import subprocess
import sys
sys.path[:0] = {sys.path!r}
import spillway
store = spillway.Store({folder!r}, host_memory="64MiB", allow_buffered=True)
try:
    store.use_cuda(0)
except spillway.StoreError as error:
    print(error.status, "|", error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    has_driver = os.path.exists("/dev/nvidiactl")
    return [] if has_driver or "NVIDIA's driver cannot be loaded" in done.stdout else [done.stdout + done.stderr]


@needs("torch")
def other_devices_are_refused(folder):
    class Elsewhere(torch.Tensor):
        where = torch.device("cuda", 0)

        @property
        def device(self):
            return self.where

    class OnAnother(Elsewhere):
        where = torch.device("cuda", 1)

    first, second = torch.nn.Parameter(torch.ones(3).as_subclass(Elsewhere)), torch.nn.Parameter(torch.ones(3).as_subclass(OnAnother))
    problems = script_test.raised(ValueError, "'b' on cuda:1", spillway.AdamW, [("a", first), ("b", second)], store=folder, **options())
    meta = torch.nn.Parameter(torch.ones(3, device="meta"))
    problems += script_test.raised(ValueError, "'m' is on meta", spillway.AdamW, [("m", meta)], store=folder, **options())
    problems += script_test.raised(ValueError, "hand_over and process_group", spillway.AdamW, [torch.nn.Parameter(torch.ones(3))],
                                   store=folder, process_group=object(), **options(hand_over=True))
    return problems + (["a refused optimizer left a store"] if os.path.exists(folder) else [])


script_test.run(parameters_on_a_gpu_have_the_bits_of_the_cpu, parameters_may_be_on_both_sides,
                gradients_leave_the_gpu_as_they_are_made, steps_overlap,
                a_resume_writes_to_the_gpu, gradients_are_handed_over, a_grad_scaler_works_on_a_gpu, a_gpu_that_is_not_there_is_refused,
                other_devices_are_refused)
