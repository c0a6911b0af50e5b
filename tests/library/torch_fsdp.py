"""spillway.AdamW on the parameters of fully_shard (FSDP2), of which each process has a part. Needs PyTorch."""

import os
import re
import socket
import subprocess
import sys
import traceback

from torch_support import PYTHON, ROOT, SEED, found, needs, script_test, spillway, torch

STEPS = 20


class Model(torch.nn.Module if torch else object):
    """Rows that no number of processes divides, fewer rows than processes, and a branch that some steps leave out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(37, 101), torch.nn.Linear(101, 3)
        self.other = torch.nn.Linear(37, 3, bias=False)
        self.gain = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs, uses_other):
        hidden = self.second(torch.tanh(self.first(inputs))) * self.gain
        return hidden + self.other(inputs) if uses_other else hidden


def model_of(is_sharded):
    torch.manual_seed(SEED)
    model = Model()
    if not is_sharded:
        return model
    from torch.distributed.fsdp import fully_shard
    fully_shard(model.second)
    return fully_shard(model)


def train(model, optimizer, first, last):
    for step in range(first, last):
        inputs = torch.randn(8, 37, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs, step % 3 > 0).pow(2).mean().backward()
        if step % 3 == 0:
            model.other.weight.grad = None
        optimizer.step()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def values_of(model, optimizer):
    """The weights, and the state that spillway keeps, of whole parameters."""
    state = optimizer.state_dict(full=True)["state"]
    return {"weights": {name: whole(parameter.detach()) for name, parameter in model.named_parameters()},
            "moments": [whole(state[number][part]) for number in state for part in ("exp_avg", "exp_avg_sq")],
            "steps": [int(state[number]["step"]) for number in state]}


def refuse(group, rank):
    """Refuses what the parts of parameters do not allow."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = DeviceMesh.from_group(group, "cpu")
    part = torch.nn.Parameter(distribute_tensor(torch.ones(8), mesh, [Shard(0)]))
    copied = torch.nn.Parameter(distribute_tensor(torch.ones(8), mesh, [Replicate()]))
    options = {"store": "nowhere", "host_memory": "64MiB"}
    problems = script_test.raised(ValueError, "name their group", spillway.AdamW, [("part", part)], **options)
    problems += script_test.raised(ValueError, "a part of 'part' and the whole of 'copied'", spillway.AdamW,
                                   [("part", part), ("copied", copied)], process_group=group, **options)
    alone = dist.new_group([rank], use_local_synchronization=True)
    problems += script_test.raised(ValueError, "and process_group has 1", spillway.AdamW, [("part", part)], process_group=alone,
                                   **options)
    if problems:
        raise AssertionError(problems)


def follow_replicated(folder, group):
    """Replicated DTensors are whole parameters, which the processes share."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, distribute_tensor
    mesh, values = DeviceMesh.from_group(group, "cpu"), torch.randn(500, generator=torch.Generator().manual_seed(1))
    copied = torch.nn.Parameter(distribute_tensor(values.clone(), mesh, [Replicate()]))
    plain = torch.nn.Parameter(values.clone())
    mine = spillway.AdamW([("copied", copied)], store=os.path.join(folder, "copied"), host_memory="64MiB", allow_buffered=True,
                          process_group=group)
    theirs = torch.optim.AdamW([plain])
    for _ in range(3):
        copied.grad, plain.grad = distribute_tensor(values.clone(), mesh, [Replicate()]), values.clone()
        mine.step()
        theirs.step()
    difference = float((copied.to_local() - plain).detach().abs().max())
    if difference > 1e-6 or abs(mine.last_result.grad_norm - float(values.norm())) > 1e-4:
        raise AssertionError(f"replicated parameters differ by {difference}, with a norm of {mine.last_result.grad_norm}")
    mine.close()


def keep_theirs(kept):
    """Trains torch.optim.AdamW on the same module."""
    other = model_of(True)
    theirs = torch.optim.AdamW(other.parameters(), lr=1e-2)
    train(other, theirs, 0, STEPS)
    kept["theirs"] = {name: whole(parameter.detach()) for name, parameter in other.named_parameters()}
    kept["norm of theirs"] = torch.nn.utils.get_total_norm([parameter.grad for parameter in other.parameters()
                                                            if parameter.grad is not None]).full_tensor()
    kept["their steps"] = [int(theirs.state[parameter]["step"]) for parameter in other.parameters()]
    kept["their moments"] = [whole(theirs.state[parameter][part]) for parameter in other.parameters()
                             for part in ("exp_avg", "exp_avg_sq")]


def run_process(folder, rank, ranks, steps, kind):
    """Trains to a step, beside torch.optim.AdamW where it begins and ends. kind: "sharded" parameters, or "whole" ones."""
    import torch.distributed as dist
    torch.set_num_threads(1)
    group, model = None, model_of(False)
    if ranks > 1 or kind == "sharded":
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting{ranks}-{steps}", rank=rank, world_size=ranks)
        group, model = dist.group.WORLD, model_of(kind == "sharded")
    if ranks == 3 and steps < STEPS:
        refuse(group, rank)
        follow_replicated(folder, group)
    optimizer = spillway.AdamW(model.named_parameters(), lr=1e-2, store=os.path.join(folder, "store"), host_memory="6MiB", threads=1,
                               allow_buffered=True, process_group=group)
    kept = {"from": optimizer.last_step, "opened": values_of(model, optimizer)}
    train(model, optimizer, optimizer.last_step, steps)
    kept.update(values_of(model, optimizer), norm=optimizer.last_result.grad_norm)
    if kept["from"] == 0 and steps == STEPS:
        keep_theirs(kept)
    torch.save(kept, os.path.join(folder, f"kept{rank}"))
    optimizer.close()
    if group is not None:
        dist.destroy_process_group()


def start(folder, rank, ranks, steps, kind):
    """Forks, because importing PyTorch takes longer than the steps."""
    child = os.fork()
    if child == 0:
        try:
            run_process(folder, rank, ranks, steps, kind)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def run(folder, ranks, steps, kind="sharded"):
    """Returns what process 0 ends with."""
    os.makedirs(folder, exist_ok=True)
    children = [start(folder, rank, ranks, steps, kind) for rank in range(ranks)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(statuses):
        raise AssertionError(f"{ranks} processes ended with {statuses}")
    return torch.load(os.path.join(folder, "kept0"))


def differences(before, after):
    """The names of what differs between two sets of values."""
    return [name for name in before["weights"] if not torch.equal(before["weights"][name], after["weights"][name])] + [
        f"moment {number}" for number, (one, other) in enumerate(zip(before["moments"], after["moments"], strict=True))
        if not torch.equal(one, other)] + ([] if before["steps"] == after["steps"] else ["the counts of steps"])


def farthest(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@needs("torch")
def each_process_has_its_part(folder):
    """Steps follow torch.optim.AdamW's on the same module, and processes that go on after a stop have the bits of one run."""
    if not hasattr(found("torch.distributed.fsdp"), "fully_shard"):
        raise script_test.Skip("no fully_shard in this PyTorch")
    wanted = run(os.path.join(folder, "whole"), 3, STEPS)
    difference = farthest(wanted["weights"], wanted["theirs"])
    problems = [] if difference < 2e-6 else [f"weights differ from those of torch.optim.AdamW by {difference}"]
    problems += [] if wanted["steps"] == wanted["their steps"] else [f"the steps are {wanted['steps']}"]
    far = [number for number, (mine, theirs) in enumerate(zip(wanted["moments"], wanted["their moments"], strict=True))
           if not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-9)]
    problems += [f"moments {far} differ"] if far else []
    if abs(wanted["norm"] - float(wanted["norm of theirs"])) > 1e-5 * wanted["norm"]:
        problems.append(f"the norm is {wanted['norm']}, and PyTorch's {float(wanted['norm of theirs'])}")
    resumed = os.path.join(folder, "resumed")
    run(resumed, 3, 7)
    again = run(resumed, 3, STEPS)
    problems += [f"{name} has other bits after a stop" for name in wanted["weights"]
                 if not torch.equal(wanted["weights"][name], again["weights"][name])]
    return problems


@needs("torch")
def other_processes_go_on(folder):
    """Other numbers of processes, replicas of whole parameters, and one process open the store with equal state, and follow the
    steps of one run."""
    if not hasattr(found("torch.distributed.fsdp"), "fully_shard"):
        raise script_test.Skip("no fully_shard in this PyTorch")
    wanted = run(os.path.join(folder, "alone"), 1, 18, "whole")
    changed, before, problems = os.path.join(folder, "changed"), None, []
    for ranks, steps, kind in ((3, 4, "sharded"), (2, 7, "sharded"), (1, 9, "whole"), (5, 12, "sharded"), (2, 15, "whole"),
                               (2, 18, "sharded")):
        after = run(changed, ranks, steps, kind)
        if before is not None:
            problems += [f"{ranks} processes with {kind} parameters find another {name}" for name in differences(before, after["opened"])]
        before = after
    difference = farthest(wanted["weights"], before["weights"])
    problems += [] if difference < 2e-6 else [f"weights differ from those of one process by {difference}"]
    return problems + ([] if wanted["steps"] == before["steps"] else [f"the steps are {before['steps']}"])


@needs("torch")
def the_guides_program_changes_its_processes(folder):
    """The example of FSDP2 in the guide, by 3, 2 and 1 processes, one after the other on one store."""
    with open(os.path.join(ROOT, "docs", "guide", "library.md"), encoding="utf-8") as page:
        program = next(text for text in re.findall(r"^```python\n(.*?)^```$", page.read(), re.M | re.S) if "fully_shard" in text)
    if not hasattr(found("torch.distributed.fsdp"), "fully_shard"):
        raise script_test.Skip("no fully_shard in this PyTorch")
    os.makedirs(folder)
    problems = []
    for number, ranks in enumerate((3, 2, 1)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        places = [{**os.environ, "PYTHONPATH": PYTHON, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"} for rank in range(ranks)]
        started = [subprocess.Popen([sys.executable, "-c", program], cwd=folder, env=place, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True) for place in places]
        wanted = f"{ranks} processes: steps {3 * number + 1} to {3 * number + 3}"
        output = [process.communicate(timeout=120)[0] for process in started]
        problems += [text[-800:] for text in output if wanted not in text]
    return problems


script_test.run(each_process_has_its_part, other_processes_go_on, the_guides_program_changes_its_processes)
