"""The state of spillway.AdamW as tensors: from store to store with the same bits, from torch.optim.AdamW and back, and
refusals by name. Weights that something else changes are noticed. Needs PyTorch."""

import copy
import io
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch_support as support  # noqa: E402
from torch_support import needs, script_test, spillway  # noqa: E402

torch = support.torch
STEPS, MORE, SHAPES = 5, 6, ((300, 70), (9000,), (33,), ())


def made(folder, seed=1, **options):
    """Parameters, one of them of 16 bits, and their optimizer."""
    source = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=source)) for shape in SHAPES]
    parameters.append(torch.nn.Parameter(torch.randn(5000, generator=source).to(torch.bfloat16)))
    return parameters, spillway.AdamW(enumerated(parameters), store=folder, allow_buffered=True, **options)


def enumerated(parameters):
    return [(f"p{i}", parameter) for i, parameter in enumerate(parameters)]


def give_gradients(parameters, step):
    """The second parameter has no gradient in any step, and each other one in some."""
    source = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=source).to(parameter.dtype)
        parameter.grad = None if number == 1 or (step + number) % 4 == 3 else gradient


def train(parameters, optimizer, first, last):
    for step in range(first, last):
        give_gradients(parameters, step)
        optimizer.step()


def through_a_file(state):
    """As trainers keep it: written, and read without code of its own."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@needs("torch")
def a_full_state_goes_to_another_store_with_the_same_bits(folder):
    problems = []
    for state in ("fp32", "bf16", "8bit"):
        first, second = (f"{folder}-{state}-{number}" for number in range(2))
        parameters, optimizer = made(first, state=state, host_memory="256MiB")
        train(parameters, optimizer, 0, STEPS)
        kept = through_a_file(optimizer.state_dict(full=True))
        train(parameters, optimizer, STEPS, STEPS + MORE)
        optimizer.close()
        others, other = made(second, 2, state=state, host_memory="6MiB")
        train(others, other, 0, STEPS + 2)
        other.load_state_dict(kept)
        problems += [] if other.last_step == STEPS else [f"{state}: the other store is at step {other.last_step}"]
        train(others, other, STEPS, STEPS + MORE)
        other.close()
        problems += [f"{state}: {a.dtype} of {tuple(a.shape)} differs" for a, b in zip(parameters, others, strict=True)
                     if not torch.equal(a, b)]
    return problems


@needs("torch")
def its_own_state_is_not_written_again(folder):
    """Accelerate gives an optimizer its own state_dict back."""
    parameters, optimizer = made(folder, host_memory="6MiB", full_state_dict=True)
    train(parameters, optimizer, 0, STEPS)
    kept = optimizer.state_dict()
    before = optimizer.usage().written_bytes
    optimizer.load_state_dict(kept)
    problems = [] if optimizer.usage().written_bytes == before else ["its own state was written"]
    train(parameters, optimizer, STEPS, STEPS + 1)
    optimizer.load_state_dict(kept)
    problems += [] if optimizer.last_step == STEPS else [f"it is at step {optimizer.last_step}, not back at {STEPS}"]
    optimizer.close()
    return problems


def far_apart(what, parameters, others):
    difference = max(float((a - b).detach().abs().max()) for a, b in zip(parameters, others, strict=True))
    return [f"what was {what} differs by {difference}"] if difference > 2e-6 else []


@needs("torch")
def pytorchs_state_comes_and_goes_back(folder):
    """Three optimizers get the same gradients: torch's, one that takes its state over, and a torch one that takes it back."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = torch.optim.AdamW(parameters, lr=2e-3)
    train(parameters, theirs, 0, STEPS)
    others = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    mine = spillway.AdamW(enumerated(others), store=folder, host_memory="64MiB", allow_buffered=True)
    with torch.no_grad():
        for parameter, other in zip(parameters, others, strict=True):
            other.copy_(parameter)
    mine.load_state_dict(through_a_file(theirs.state_dict()))
    # PyTorch has the parameters' own counts of steps, and no other.
    most = max(int(state["step"]) for state in theirs.state.values())
    problems = [] if mine.param_groups[0]["lr"] == 2e-3 and mine.last_step == most else ["the rates or the step were not taken"]
    train(parameters, theirs, STEPS, STEPS + MORE)
    train(others, mine, STEPS, STEPS + MORE)
    problems += far_apart("taken over", parameters, others)
    back = [torch.nn.Parameter(other.detach().clone()) for other in others]
    again = torch.optim.AdamW(back)
    again.load_state_dict(through_a_file(mine.state_dict(full=True)))
    train(parameters, theirs, STEPS + MORE, STEPS + 2 * MORE)
    train(back, again, STEPS + MORE, STEPS + 2 * MORE)
    problems += far_apart("given back", parameters, back)
    for number, parameter in enumerate(parameters):
        steps = [int(optimizer.state[own].get("step", 0)) for optimizer, own in ((theirs, parameter), (again, back[number]))]
        problems += [] if steps[0] == steps[1] else [f"'p{number}' has {steps[1]} steps and should have {steps[0]}"]
    mine.close()
    return problems


@needs("torch")
def other_state_is_refused_by_name(folder):
    parameters, optimizer = made(folder, host_memory="64MiB")
    train(parameters, optimizer, 0, STEPS)
    kept = optimizer.state_dict(full=True)
    train(parameters, optimizer, STEPS, STEPS + 1)
    values = [parameter.detach().clone() for parameter in parameters]

    def refused(words, change):
        wrong = copy.deepcopy(kept)
        change(wrong)
        return script_test.raised(ValueError, words, optimizer.load_state_dict, wrong)

    def set_in(state, number, **changes):
        state["state"][number].update(changes)
    problems = refused("amsgrad=True", lambda state: state["param_groups"][0].update(amsgrad=True))
    problems += refused("'p1' with -1 steps", lambda state: set_in(state, 1, step=torch.tensor(-1.0)))
    problems += refused("exp_avg of 'p0' has the shape (2,)", lambda state: set_in(state, 0, exp_avg=torch.zeros(2)))
    problems += refused("lacks the exp_avg_sq of 'p3'", lambda state: state["state"][3].pop("exp_avg_sq"))
    problems += refused("element 7 of the second moment of 'p1' is -1",
                        lambda state: state["state"][1]["exp_avg_sq"].__setitem__(7, -1.0) or state["param_groups"][0].update(lr=9.0))
    problems += refused("is of step 5", lambda state: state.update(state={}))
    problems += refused("of 4 parameters", lambda state: state["param_groups"][0]["params"].pop())
    if optimizer.param_groups[0]["lr"] != 1e-3 or optimizer.last_step != STEPS + 1:
        problems.append("a refusal has changed the rates or the step")
    problems += [] if all(map(torch.equal, values, parameters)) else ["a refusal has changed parameters"]
    train(parameters, optimizer, STEPS + 1, STEPS + 2)
    optimizer.close()
    return problems


@needs("torch")
def changed_weights_are_noticed(folder):
    parameters, optimizer = made(folder, host_memory="64MiB")
    train(parameters, optimizer, 0, STEPS)
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(parameter.clone())
    train(parameters, optimizer, STEPS, STEPS + 1)
    with torch.no_grad():
        parameters[1].mul_(2.0)
    give_gradients(parameters, STEPS + 1)
    problems = script_test.raised(ValueError, "'p1' was changed by something else", optimizer.step)
    state = optimizer.read_state(parameters[0])
    optimizer.take_weights()
    problems += [] if torch.equal(optimizer.read_state(parameters[1])["master"], parameters[1]) else ["the weights were not taken"]
    after = optimizer.read_state(parameters[0])
    problems += [] if all(torch.equal(state[part], after[part]) for part in state) else ["other state has changed"]
    optimizer.step()
    problems += [] if optimizer.last_step == STEPS + 2 else [f"the step is {optimizer.last_step}"]
    optimizer.close()
    return problems


@needs("torch")
def its_own_state_comes_back_from_any_change(folder):
    """The step alone does not tell that the store, or the dictionary, has changed since."""
    parameters, optimizer = made(folder, host_memory="64MiB")
    train(parameters, optimizer, 0, STEPS)
    kept = optimizer.state_dict(full=True)
    with torch.no_grad():
        parameters[0].mul_(2.0)
    optimizer.take_weights()
    optimizer.load_state_dict(kept)
    problems = [] if torch.equal(parameters[0], kept["state"][0]["master"]) else ["weights that were taken stay"]
    with torch.no_grad():
        parameters[0].mul_(2.0)
    optimizer.load_state_dict(kept)
    problems += [] if torch.equal(parameters[0], kept["state"][0]["master"]) else ["a changed parameter stays"]
    kept["state"][1]["exp_avg"].zero_()
    optimizer.load_state_dict(kept)
    problems += [] if not optimizer.read_state(parameters[1])["exp_avg"].any() else ["a changed dictionary is not taken"]
    optimizer.close()
    return problems


@needs("torch")
def moved_parameters_are_not_written_to(folder):
    parameters, optimizer = made(folder, host_memory="64MiB")
    train(parameters, optimizer, 0, STEPS)
    kept, before = optimizer.state_dict(full=True), parameters[0].data
    parameters[0].data = before.to(torch.bfloat16)
    problems = script_test.raised(ValueError, "'p0' has moved", optimizer.take_weights)
    problems += script_test.raised(ValueError, "'p0' has moved", optimizer.load_state_dict, kept)
    parameters[0].data = before
    optimizer.load_state_dict(kept)
    optimizer.close()
    return problems


script_test.run(a_full_state_goes_to_another_store_with_the_same_bits, its_own_state_is_not_written_again,
                pytorchs_state_comes_and_goes_back, other_state_is_refused_by_name, changed_weights_are_noticed,
                its_own_state_comes_back_from_any_change, moved_parameters_are_not_written_to)
