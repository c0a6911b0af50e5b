"""spillway.AdamW beside torch.optim.AdamW: the same steps within fp32's rounding on awkward modules, schedulers, closures,
accumulation, resumes and refusals by name. Needs PyTorch."""

import copy
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch_support as support  # noqa: E402
from torch_support import PYTHON, needs, script_test, spillway  # noqa: E402

torch = support.torch
STEPS = 300


def awkward():
    """A module with odd sizes, one element, a scalar, a shared parameter, a frozen one, and one that is larger than a chunk."""
    class Awkward(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(257, 33)
            self.wide = torch.nn.Linear(33, 1025)
            self.norm = torch.nn.LayerNorm(1025)
            self.narrow = torch.nn.Linear(1025, 33, bias=False)
            self.head = torch.nn.Linear(33, 257, bias=False)
            self.head.weight = self.embedding.weight
            self.gain = torch.nn.Parameter(torch.tensor(1.5))
            self.one = torch.nn.Parameter(torch.ones(1))
            self.frozen = torch.nn.Parameter(torch.ones(7), requires_grad=False)
            self.large = torch.nn.Parameter(torch.randn(300, 1000) * 0.02)

        def forward(self, tokens):
            hidden = self.norm(torch.tanh(self.wide(self.embedding(tokens)))) * self.gain + self.one
            return self.head(self.narrow(hidden)) + self.frozen.sum() + 0.1 * (self.large ** 2).sum()
    return Awkward()


def loss_of(model, step):
    source = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 257, (4, 9), generator=source)
    return torch.nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.roll(1, 1).flatten())


def groups_of(model, named=False):
    """Two groups: matrices decay, vectors do not and have another lr."""
    members = [(name, parameter) for name, parameter in model.named_parameters()]
    pick = (lambda pair: pair) if named else (lambda pair: pair[1])
    return [{"params": [pick(pair) for pair in members if pair[1].dim() > 1], "weight_decay": 0.1},
            {"params": [pick(pair) for pair in members if pair[1].dim() < 2], "weight_decay": 0.0, "lr": 3e-3}]


def largest_difference(model, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def compare(folder, host_memory, clip):
    """Trains two copies of a module. The gradients of the second are those of the first, so that only updates differ."""
    model = awkward()
    other = copy.deepcopy(model)
    mine = spillway.AdamW(groups_of(model, named=True), lr=1e-3, store=folder, host_memory=host_memory, clip=clip,
                          allow_buffered=True)
    theirs = torch.optim.AdamW(groups_of(other), lr=1e-3)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-3, 3e-3], STEPS, cycle_momentum=False)
                 for optimizer in (mine, theirs)]
    problems = []
    for step in range(STEPS):
        mine.zero_grad()
        loss_of(model, step).backward()
        for parameter, copied in zip(model.parameters(), other.parameters(), strict=True):
            copied.grad = None if parameter.grad is None else parameter.grad.clone()
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(other.parameters(), clip)
        mine.step()
        theirs.step()
        for schedule in schedules:
            schedule.step()
        if clip is not None and abs(mine.last_result.grad_norm - float(norm)) > 1e-5 * float(norm):
            problems.append(f"step {step}: norm {mine.last_result.grad_norm}, PyTorch's {float(norm)}")
    difference = largest_difference(model, other)
    if difference > 2e-6:
        problems.append(f"a parameter differs by {difference} after {STEPS} steps")
    for parameter, copied in zip(model.parameters(), other.parameters(), strict=True):
        if parameter.requires_grad:
            state = mine.read_state(parameter)
            close = all(torch.allclose(state[part], theirs.state[copied][part], rtol=1e-4, atol=1e-9)
                        for part in ("exp_avg", "exp_avg_sq"))
            problems += [] if close and torch.equal(state["master"], parameter) else [f"the state of {tuple(parameter.shape)} differs"]
    mine.close()
    return problems


@needs("torch")
def follows_pytorch_in_host_memory(folder):
    return compare(folder, "256MiB", None)


@needs("torch")
def follows_pytorch_on_the_drive_and_clips(folder):
    return compare(folder, "6MiB", 0.5)


@needs("torch")
def parameters_of_16_bits_have_masters(folder):
    """PyTorch's AdamW on fp32 masters is what the update of a 16-bit parameter must follow."""
    parameters = [torch.nn.Parameter(torch.randn(5000).to(dtype)) for dtype in (torch.bfloat16, torch.float16)]
    masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in parameters]
    mine = spillway.AdamW(parameters, lr=1e-3, store=folder, host_memory="64MiB", allow_buffered=True)
    theirs = torch.optim.AdamW(masters, lr=1e-3)
    problems = []
    for _ in range(50):
        for parameter, master in zip(parameters, masters, strict=True):
            parameter.grad = torch.randn(5000).to(parameter.dtype)
            master.grad = parameter.grad.float()
        mine.step()
        theirs.step()
    for parameter, master in zip(parameters, masters, strict=True):
        own = mine.read_state(parameter)["master"]
        problems += [] if torch.allclose(own, master, rtol=0, atol=1e-6) else [f"the master of {parameter.dtype} differs"]
        problems += [] if torch.equal(own.to(parameter.dtype), parameter) else [f"{parameter.dtype} is not its rounded master"]
    mine.close()
    return problems


@needs("torch")
def closures_accumulation_and_overflow_work(folder):
    model = torch.nn.Linear(8, 3)
    optimizer = spillway.AdamW(model.named_parameters(), store=folder, host_memory="64MiB", allow_buffered=True)
    before = model.weight.detach().clone()
    model.weight.grad, model.bias.grad = torch.full((3, 8), float("inf")), torch.zeros(3)
    optimizer.step()
    problems = [] if optimizer.last_result.skipped and torch.equal(before, model.weight) else ["an overflow was not skipped"]

    # The sum of the loss's gradients is 3 for each weight: 1 of the first part and 2 of the second.
    def closure():
        optimizer.zero_grad()
        for part in range(2):
            (model(torch.ones(1, 8)).sum() * (part + 1)).backward()
        return torch.tensor(7.0)
    version = model.weight._version
    if float(optimizer.step(closure)) != 7.0 or torch.equal(before, model.weight) or optimizer.last_result.applied_steps != 1:
        problems.append("the closure was not heeded")
    if abs(optimizer.last_result.grad_norm - (27 * 9.0) ** 0.5) > 1e-5:
        problems.append(f"the norm of accumulated gradients is {optimizer.last_result.grad_norm}")
    if model.weight._version <= version:
        problems.append("autograd does not know that the weights changed")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(1, 8)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    if abs(optimizer.last_result.grad_norm - 27 ** 0.5) > 1e-5:
        problems.append(f"the norm of scaled gradients is {optimizer.last_result.grad_norm}")
    optimizer.close()
    return problems


@needs("torch")
def the_state_dict_is_small_and_checked(folder):
    model = torch.nn.Linear(100, 100)
    options = {"store": folder, "host_memory": "64MiB", "allow_buffered": True, "save_every": 100}
    optimizer = spillway.AdamW(model.named_parameters(), **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 100)).pow(2).sum().backward()
        optimizer.note = f"batch {optimizer.last_step + 1}"
        optimizer.step()
    optimizer.save()
    optimizer.param_groups[0]["lr"] = 0.5
    kept, weights = optimizer.state_dict(), model.weight.detach().clone()
    optimizer.zero_grad()
    model(torch.randn(4, 100)).pow(2).sum().backward()
    optimizer.step()
    optimizer.close()
    problems = [] if kept["state"] == {} and kept["step"] == 3 and kept["store"] == folder else [f"the state_dict is {kept}"]
    again = torch.nn.Linear(100, 100)
    optimizer = spillway.AdamW(again.named_parameters(), **options)
    if not torch.equal(again.weight, weights) or optimizer.last_step != 3 or optimizer.note != "batch 3":
        problems.append("the resume is not at the step that was saved")
    optimizer.load_state_dict(kept)
    problems += [] if optimizer.param_groups[0]["lr"] == 0.5 else ["the lr was not taken"]
    problems += script_test.raised(ValueError, "is of step 2", optimizer.load_state_dict, {**kept, "step": 2})
    optimizer.close()
    return problems


def wrong_arguments_are_refused_early(model, folder):
    """Before anything is made in the folder."""
    problems, parameters, make = [], list(model.parameters()), spillway.AdamW
    wrong = [("lr is -1", {"lr": -1}), ("lr is '0.1'", {"lr": "0.1"}), ("betas is 0.9", {"betas": 0.9}), ("betas[1] is 1.5", {"betas": (0.9, 1.5)}),
             ("weight_decay is -0.1", {"weight_decay": -0.1}), ("clip is '1'", {"clip": "1"}), ("eps is nan", {"eps": float("nan")}),
             ("state", {"state": 8}), ("0 is not a size", {"host_memory": 0}), ("-1 is not a size", {"host_memory": -1}),
             ("[] is not a size", {"host_memory": []})]
    for words, arguments in wrong:
        problems += script_test.raised(ValueError, words, make, parameters, **{"store": folder, **arguments})
    for words, given, arguments in (("is a Sequential", model, {}), ("is a Parameter", parameters[0], {}), ("overlap is True", parameters, {"overlap": True}),
                                    ("save_every is 1000.0", parameters, {"save_every": 1e3}), ("threads is 'two'", parameters, {"threads": "two"})):
        problems += script_test.raised(TypeError, words, make, given, store=folder, **arguments)
    for name in ("amsgrad", "maximize"):
        problems += script_test.raised(ValueError, f"asks for {name}", make, [{"params": parameters, name: True}], store=folder)
    problems += script_test.raised(ValueError, "there are no parameters", make, [], store=folder)
    frozen = [torch.nn.Parameter(torch.ones(3), requires_grad=False), torch.nn.Parameter(torch.ones(0))]
    problems += script_test.raised(ValueError, "none of the 2 parameters can be trained", make, frozen, store=folder)
    return problems + (["a wrong argument leaves a folder"] if os.path.exists(folder) else [])


@needs("torch")
def mistakes_are_refused_by_name(folder):
    options = {"store": folder, "host_memory": "64MiB", "allow_buffered": True}
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    make = spillway.AdamW
    problems = script_test.raised(ValueError, "'0.weight' is of torch.float64", make, model.double().named_parameters(), **options)
    model = model.float()
    problems += script_test.raised(ValueError, "'0.weight' is on meta", make, copy.deepcopy(model).to("meta").named_parameters(), **options)
    problems += script_test.raised(ValueError, "'turned' is not contiguous", make, [("turned", torch.nn.Parameter(torch.ones(3, 2).t()))], **options)
    first, second = list(model[0].parameters()), list(model[1].parameters())
    problems += script_test.raised(ValueError, "differ in betas", make, [{"params": first}, {"params": second, "betas": (0.5, 0.9)}], **options)
    problems += script_test.raised(ValueError, "weight decays [0.1, 0.2]", make,
                       [{"params": first, "weight_decay": 0.1}, {"params": second, "weight_decay": 0.2}], **options)
    problems += script_test.raised(ValueError, "is none of", make, first, missing="none", **options)
    problems += script_test.raised(ValueError, "is not a size", make, first, store=folder, host_memory="32GB")
    problems += wrong_arguments_are_refused_early(model, folder)
    optimizer = make(model.named_parameters(), missing="error", **options)
    problems += script_test.raised(spillway.StoreError, "already open in this process", make, model.named_parameters(), **options)
    problems += script_test.raised(ValueError, "'0.weight' has no gradient in step 1", optimizer.step)
    model(torch.ones(1, 8)).sum().backward()
    problems += script_test.raised(ValueError, "made with", optimizer.add_param_group, {"params": [torch.nn.Parameter(torch.ones(1))]})
    problems += script_test.raised(TypeError, "copied or pickled", copy.deepcopy, optimizer)
    problems += script_test.raised(ValueError, "none of the optimizer's", optimizer.read_state, torch.nn.Parameter(torch.ones(1)))
    optimizer.note = 5
    problems += script_test.raised(TypeError, "the note is 5", optimizer.step)
    optimizer.note = ""
    optimizer.step()
    problems += forked(optimizer)
    data = model[1].bias.data
    model[1].bias.data = data.clone()
    problems += script_test.raised(ValueError, "'1.bias' has moved", optimizer.step)
    model[1].bias.data = data
    optimizer.step()
    optimizer.close()
    renamed = {name.replace("1.", "last."): parameter for name, parameter in model.named_parameters()}
    problems += script_test.raised(ValueError, "none of the name 'last.weight'", make, renamed.items(), **options)
    problems += script_test.raised(ValueError, "the state of a tensor '1.weight'", make, model[:1].named_parameters(), **options)
    options["host_memory"] = None
    with_zeros = make(model.named_parameters(), missing="zero", **options)
    problems += [] if with_zeros.usage().state_host_bytes > 0 else ["half of what is free does not hold the state"]
    with_zeros.zero_grad()
    with_zeros.step()
    with_zeros.close()
    return problems


def forked(optimizer):
    """A worker of a data loader that forks has the optimizer, too, and ends like any process."""
    child = os.fork()
    if child == 0:
        try:
            optimizer.step()
        except spillway.StoreError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [] if status == 0 else [f"a forked step ended with {status}"]


def overlapping():
    """A module that reads a parameter of a part without calling that part."""
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(support.SEED)
            self.first, self.read = torch.nn.Linear(300, 700), torch.nn.Linear(700, 300)
            self.attention = torch.nn.MultiheadAttention(300, 4, batch_first=True)

        def forward(self, inputs):
            hidden = torch.nn.functional.linear(torch.tanh(self.first(inputs)), self.read.weight, self.read.bias)
            return self.attention(hidden, hidden, hidden)[0]
    return Reader()


def train_overlapping(folder, overlaps, after_a_step):
    """Returns the weights and the norms after some steps."""
    model, norms = overlapping(), []
    optimizer = spillway.AdamW(model.named_parameters(), lr=1e-2, store=folder, host_memory="6MiB", clip=0.1, threads=1,
                               allow_buffered=True, overlap=model if overlaps else None)
    for step in range(8):
        inputs = torch.randn(2, 5, 300, generator=torch.Generator().manual_seed(step))
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        norms.append(optimizer.last_result.grad_norm)
        after_a_step(step, model, optimizer)
    optimizer.wait()
    if not optimizer.last_result.committed or optimizer.last_step != 8:
        norms.append("a step was not committed")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer.close()
    if any(type(module._parameters) is not dict for module in model.modules()):
        norms.append("a closed optimizer leaves its traces in the module")
    return weights, norms


def forget_in_many_ways(step, model, optimizer):
    if step % 4 == 0:
        optimizer.zero_grad()
    elif step % 4 == 1:
        model.zero_grad()
    else:
        (optimizer if step % 4 == 2 else model).zero_grad(set_to_none=False)


@needs("torch")
def an_overlapping_step_has_the_same_bits(folder):
    os.makedirs(folder)
    wanted, norms = train_overlapping(os.path.join(folder, "whole"), False, forget_in_many_ways)
    found, others = train_overlapping(os.path.join(folder, "overlapping"), True, forget_in_many_ways)
    problems = [] if norms == others else [f"the norms are {others}, not {norms}"]
    return problems + [f"{name} differs" for name in wanted if not torch.equal(wanted[name], found[name])]


@needs("torch")
def reading_the_module_waits(folder):
    """A weight that is read right after a step is new, and calls that need no weight do not wait."""
    problems, seen, waits = [], [], {}

    def look(step, model, optimizer):
        optimizer.zero_grad()
        model.zero_grad()
        waits.setdefault("zero_grad", []).append(len(optimizer._running))
        read = [lambda: model.state_dict()["first.weight"], lambda: copy.deepcopy(model).first.weight,
                lambda: dict(model.named_parameters())["first.weight"], lambda: model.first.weight][step % 4]
        kept = read().detach().clone()
        seen.append(torch.equal(kept, optimizer.read_state(model.first.weight)["master"]))
    train_overlapping(folder, True, look)
    problems += [] if all(seen) else [f"the weights that were read are new: {seen}"]
    problems += [] if all(waits["zero_grad"]) else [f"zero_grad has waited: {waits}"]
    model = overlapping()
    model.compile()
    return problems + script_test.raised(ValueError, "compiled", spillway.AdamW, model.parameters(), store=folder + "2",
                                         host_memory="64MiB", allow_buffered=True, overlap=model)


@needs("torch")
def the_guides_program_runs(folder):
    with open(os.path.join(os.path.dirname(PYTHON), "docs", "guide", "library.md"), encoding="utf-8") as page:
        program = re.search(r"^```python\n(.*?)^```$", page.read(), re.M | re.S)[1]
    os.makedirs(folder)
    problems = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-B", "-c", program], cwd=folder, env={**os.environ, "PYTHONPATH": PYTHON},
                              capture_output=True, text=True, check=False)
        problems += [done.stderr[-500:]] if done.returncode != 0 or done.stderr else []
    return problems if "from step 100" in done.stdout else [*problems, f"the second run says {done.stdout}"]


script_test.run(follows_pytorch_in_host_memory, follows_pytorch_on_the_drive_and_clips, parameters_of_16_bits_have_masters,
                closures_accumulation_and_overflow_work, an_overlapping_step_has_the_same_bits, reading_the_module_waits,
                the_state_dict_is_small_and_checked, mistakes_are_refused_by_name,
                the_guides_program_runs)
