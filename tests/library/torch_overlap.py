"""spillway.AdamW while a step runs: what a program does meanwhile finds whole weights, and leaves the gradients that the
step reads alone. Needs PyTorch."""

import gc
import os
import subprocess
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


def watched(optimizer):
    """Lets the gradients that a step reads be looked at when its store is closed. Returns what is found."""
    kept, alive = [weakref.ref(gradient) for gradient in optimizer._running.values()], []
    store, close = optimizer._store, optimizer._store.close

    def observed():
        alive.extend(gradient() is not None for gradient in kept)
        close()
    store.close = observed
    return alive


@needs("torch")
def an_optimizer_may_be_forgotten_while_its_step_runs(folder):
    """With its module, and without it, which then waits for nothing any more. The step is whole, and the store is free."""
    problems = []
    for number, with_module in enumerate((False, True)):
        model = chain()
        optimizer = made(folder, model.named_parameters(), model)
        if optimizer.last_step != number:
            problems.append(f"step {number} was lost: {optimizer.last_step}")
        give_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        alive, kept = watched(optimizer), weakref.ref(optimizer)
        if with_module:
            del model
        del optimizer
        problems += [] if kept() is None else ["something keeps the optimizer alive"]
        problems += [] if len(alive) == 6 and all(alive) else [f"gradients that are there when the store closes: {alive}"]
        if not with_module:
            problems += [] if all(type(module._parameters) is dict for module in model.modules()) else ["traces are left in the module"]
            weight = model[1].weight.detach().clone()
            again = made(folder, model.named_parameters(), model)
            problems += [] if is_new(again, model[1].weight, weight) else ["the step was not whole when the optimizer was gone"]
            again.close()
    return problems


@needs("torch")
def a_module_may_own_its_optimizer(folder):
    """As in Lightning, and with a schedule, which refers to the optimizer: only the collector finds that nobody needs them."""
    model = chain()
    model.optimizer = made(folder, model.named_parameters(), model)
    model.schedule = torch.optim.lr_scheduler.ConstantLR(model.optimizer)
    give_gradients(model)
    model.optimizer.step()
    model.zero_grad()
    alive, kept = watched(model.optimizer), weakref.ref(model.optimizer)
    del model
    gc.collect()
    problems = [] if kept() is None else ["the optimizer lives on"]
    return problems + ([] if len(alive) == 6 and all(alive) else [f"gradients that are there when the store closes: {alive}"])


ENDS = """
import os, sys
sys.argv = ["", {library!r}]
sys.path.insert(0, {here!r})
import torch_overlap as t
model = t.chain()
optimizer = t.made({folder!r}, model.named_parameters(), model)
for _ in range({steps}):
    t.give_gradients(model)
    optimizer.step()
{ending}
"""


@needs("torch")
def an_interpreter_may_end_while_a_step_runs(folder):
    """However it ends by itself, the step is committed; if it is torn away, the step before is there, or this one."""
    problems, steps = [], 0
    for ending, most_lost in (("", 0), ("sys.exit(3)", 0), ("raise KeyboardInterrupt", 0), ("os._exit(0)", 1)):
        program = ENDS.format(library=sys.argv[1], here=HERE, folder=folder, steps=2, ending=ending)
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)
        model = chain()
        optimizer = made(folder, model.named_parameters(), model)
        found = optimizer.last_step
        if not steps + 2 - most_lost <= found <= steps + 2:
            problems.append(f"{ending}: it goes on from step {found}, not {steps + 2}: {done.stderr[-300:]}")
        steps = found
        optimizer.close()
    return problems


@needs("torch")
def a_fork_is_refused_and_leaves_the_step(folder):
    """A worker of a DataLoader that begins while a step runs has halves of parameters: reading one is refused there, and what
    the worker forgets or leaves is not the parent's."""
    class Reads(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, number):
            nonlocal optimizer
            try:
                model[number].weight
            except ValueError as error:
                said = str(error)
            else:
                said = "the weight was read"
            optimizer = None
            return said
    model = chain()
    optimizer = made(folder, model.named_parameters(), model)
    give_gradients(model)
    optimizer.step()
    optimizer.zero_grad()
    loader = torch.utils.data.DataLoader(Reads(), num_workers=2, multiprocessing_context="fork", batch_size=None)
    said = list(loader)
    problems = [] if all("is a fork" in text for text in said) else [f"a worker says: {said}"]
    optimizer.wait()
    weight = model[2].weight.detach().clone()
    give_gradients(model)
    optimizer.step()
    optimizer.wait()
    problems += [] if optimizer.last_step == 2 and not torch.equal(weight, model[2].weight) else ["the parent's steps do not go on"]
    optimizer.close()
    return problems


if __name__ == "__main__":
    script_test.run(gradients_stay_until_the_step_is_done, an_interrupted_step_is_still_waited_for,
                    threads_wait_for_one_weight, every_reader_waits, modules_that_would_not_wait_are_refused,
                    an_optimizer_may_be_forgotten_while_its_step_runs, a_module_may_own_its_optimizer,
                    an_interpreter_may_end_while_a_step_runs, a_fork_is_refused_and_leaves_the_step)
