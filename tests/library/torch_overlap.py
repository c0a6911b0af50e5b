"""spillway.AdamW while a step runs: what a program does meanwhile finds whole weights, and leaves the gradients that the
step reads alone. Needs PyTorch."""

import os
import sys
import threading
import warnings
import weakref

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch_support as support  # noqa: E402
from torch_support import needs, script_test, spillway  # noqa: E402

torch = support.torch
WIDTH = 300


def chain():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def made(folder, parameters, overlap):
    return spillway.AdamW(parameters, lr=1e-2, store=folder, host_memory="6MiB", threads=1, allow_buffered=True, overlap=overlap)


def give_gradients(model):
    model(torch.randn(2, WIDTH)).pow(2).mean().backward()


def is_new(optimizer, parameter, value):
    return torch.equal(value, optimizer.read_state(parameter)["master"])


@needs("torch")
def gradients_stay_until_the_step_is_done(folder):
    model = chain()
    optimizer = made(folder, model.named_parameters(), model)
    give_gradients(model)
    optimizer.step()
    optimizer.zero_grad()
    kept = [weakref.ref(gradient) for gradient in optimizer._running.values()]
    store, alive = optimizer._store, []
    wait = store.wait

    def observed():
        alive.extend(gradient() is not None for gradient in kept)
        return wait()
    store.wait = observed
    optimizer.wait()
    problems = [] if alive and all(alive) else [f"while wait waits, gradients that are kept: {alive}"]
    problems += [] if all(gradient() is None for gradient in kept) else ["gradients are kept after the step"]
    optimizer.close()
    return problems


@needs("torch")
def an_interrupted_step_is_still_waited_for(folder):
    """Ctrl-C during a step raises once the call of the library returns: the step runs then."""
    model = chain()
    optimizer = made(folder, model.named_parameters(), model)
    store = optimizer._store
    step = store.step

    def interrupted(**rates):
        step(**rates)
        raise KeyboardInterrupt
    give_gradients(model)
    store.step = interrupted
    problems = script_test.raised(KeyboardInterrupt, "", optimizer.step)
    problems += [] if all(gradient is not None for gradient in optimizer._running.values()) else ["gradients are not kept"]
    optimizer.zero_grad()
    kept = model[2].weight.detach().clone()
    problems += [] if optimizer._running and model[2].weight not in optimizer._running else ["the weight was not waited for"]
    problems += [] if is_new(optimizer, model[2].weight, kept) else ["the weight that was read is not new"]
    store.step = step
    give_gradients(model)
    optimizer.step()
    optimizer.wait()
    problems += [] if optimizer.last_step == 2 and optimizer.last_result.committed else [f"the last step is {optimizer.last_result}"]
    optimizer.param_groups[0]["lr"] = -1.0
    give_gradients(model)
    problems += script_test.raised(ValueError, "lr is -1", optimizer.step)
    problems += [] if not optimizer._running else ["a step that was refused keeps gradients"]
    optimizer.close()
    return problems


@needs("torch")
def threads_wait_for_one_weight(folder):
    """A second thread reads the weight while the first one waits for it."""
    model = chain()
    optimizer = made(folder, model.named_parameters(), model)
    store = optimizer._store
    wait_tensor = store.wait_tensor

    def beside_another_thread(index):
        store.wait_tensor = wait_tensor
        second = threading.Thread(target=lambda: model[1].weight)
        second.start()
        second.join()
        wait_tensor(index)
    give_gradients(model)
    optimizer.step()
    store.wait_tensor = beside_another_thread
    kept = model[1].weight.detach().clone()
    problems = [] if is_new(optimizer, model[1].weight, kept) else ["the weight that two threads read is not new"]
    optimizer.close()
    return problems


@needs("torch")
def every_reader_waits(folder):
    """Two optimizers have one model, and a module without parameters is given one later."""
    os.makedirs(folder)
    model = chain()
    model.append(torch.nn.Module())
    matrices, vectors = ([parameter for parameter in model.parameters() if parameter.dim() == dim] for dim in (2, 1))
    first = made(os.path.join(folder, "first"), matrices, model)
    second = made(os.path.join(folder, "second"), vectors, model)
    model[3].tied = model[0].weight
    give_gradients(model[:3])
    for optimizer in (first, second):
        optimizer.step()
        optimizer.zero_grad()
    problems = [] if is_new(first, matrices[2], model[2].weight.detach().clone()) else ["the first optimizer is not waited for"]
    problems += [] if matrices[2] not in first._running else ["no wait for the first optimizer"]
    model[3].tied
    problems += [] if matrices[0] not in first._running else ["no wait for a parameter that was tied later"]
    model[2].bias
    problems += [] if vectors[2] not in second._running else ["no wait for the second optimizer"]
    first.close()
    give_gradients(model[:3])
    second.step()
    problems += [] if is_new(second, vectors[0], model[0].bias.detach().clone()) else ["closing one ends the waits for the other"]
    second.close()
    problems += [] if all(type(module._parameters) is dict for module in model.modules()) else ["traces are left in the module"]
    return problems


@needs("torch")
def modules_that_would_not_wait_are_refused(folder):
    model = chain()
    problems = script_test.raised(ValueError, "no parameter '1.weight'", made, folder, model.named_parameters(), model[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(chain())
    problems += script_test.raised(ValueError, "is compiled", made, folder, scripted.named_parameters(), scripted)
    problems += ["a refusal leaves a store"] if os.path.exists(folder) else []
    optimizer = made(folder, model.named_parameters(), model)
    compiled = torch.compile(model, backend="eager")
    problems += script_test.raised(Exception, "overlap: the module is compiled", compiled, torch.randn(2, WIDTH))
    optimizer.close()
    return problems


script_test.run(gradients_stay_until_the_step_is_done, an_interrupted_step_is_still_waited_for,
                threads_wait_for_one_weight, every_reader_waits, modules_that_would_not_wait_are_refused)
