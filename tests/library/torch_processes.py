"""Processes that share the store of spillway.AdamW by torch.distributed. Needs PyTorch."""

import os
import re
import signal
import subprocess
import sys

from torch_support import SEED, needs, script_test, spillway, torch


def refuse_change(optimizer, parameter, rank):
    """Refuses in all processes what changed in one."""
    if rank == 0:
        with torch.no_grad():
            parameter.add_(1.0)
    problems = script_test.raised(ValueError, "was changed by something else", optimizer.step)
    problems += script_test.raised(ValueError, "processes share", optimizer.take_weights)
    if problems:
        raise AssertionError(problems)


def refuse_early(module, rank, options):
    """Refuses in all processes what is wrong in one of them before there is a store, by PyTorch, the optimizer or the library."""
    wrong = {"is none of": {"missing": "maybe"}, "Invalid|lr is -1": {"lr": -1.0}, "is not a size": {"host_memory": "much"}}
    for words, changes in wrong.items():
        try:
            spillway.AdamW(module.named_parameters(), **{**options, **(changes if rank == 1 else {})})
        except ValueError as error:
            own = re.search(words, str(error)) is not None and ("process 1 failed: " in str(error)) == (rank != 1)
            if own:
                continue
            raise
        raise AssertionError(f"{changes} is taken")


def refuse_missing(optimizer, parameter, rank):
    """Refuses in all processes a gradient that one of them lacks, and takes the step once all have it."""
    kept = parameter.grad
    if rank == 1:
        parameter.grad = None
    problems = script_test.raised(ValueError, "has a gradient in process 0 and none in process 1", optimizer.step)
    parameter.grad = kept
    if problems:
        raise AssertionError(problems)


def refuse_sparse(optimizer, parameter, rank):
    """Refuses in all processes a gradient that is wrong in one of them."""
    kept = parameter.grad
    if rank == 1:
        parameter.grad = kept.to_sparse()
    words = "is sparse" if rank == 1 else "process 1 failed: the gradient of '0.bias' is sparse"
    problems = script_test.raised(ValueError, words, optimizer.step)
    parameter.grad = kept
    if problems:
        raise AssertionError(problems)


def refuse_read(store, parameter, rank):
    """Refuses in all processes a read that is wrong in one of them."""
    values = torch.empty(parameter.numel())
    words = "no tensor 99" if rank == 0 else "process 0 failed: there is no tensor 99"
    problems = script_test.raised(ValueError, words, store.read, 99 if rank == 0 else 0, "master", values.data_ptr(), 0, 1)
    if problems:
        raise AssertionError(problems)


def train_shared(folder, rank, ranks, steps):
    """All processes have the same batches. The mean of 2 or 4 equal gradients is one of them, bit by bit."""
    torch.manual_seed(SEED + int(rank))
    torch.set_num_threads(1)
    rank, ranks, module = int(rank), int(ranks), torch.nn.Sequential(torch.nn.Linear(1000, 1300), torch.nn.Tanh(),
                                                                     torch.nn.Linear(1300, 7))
    options = {"lr": 1e-2, "store": os.path.join(folder, "store"), "host_memory": "64MiB", "clip": 0.1, "threads": 1,
               "allow_buffered": True}
    model = module
    if ranks > 1:
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting{steps}", rank=rank, world_size=ranks)
        model = torch.nn.parallel.DistributedDataParallel(module)
        options["process_group"] = dist.group.WORLD
        refuse_early(module, rank, options)
    optimizer = spillway.AdamW(module.named_parameters(), overlap=module if ranks == 2 else None, **options)
    while optimizer.last_step < int(steps):
        inputs = torch.randn(4, 1000, generator=torch.Generator().manual_seed(optimizer.last_step))
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        if optimizer.last_step % 2 == 1:
            module[2].weight.grad = None
        if ranks == 2 and optimizer.last_step == 1:
            refuse_missing(optimizer, module[0].bias, rank)
            refuse_sparse(optimizer, module[0].bias, rank)
        if rank == 1:
            with torch.no_grad():
                module[0].weight.mul_(1.0)  # written to in one process only, which is no change
        optimizer.step()
    optimizer.save()
    steps = optimizer.state_dict(full=True)["state"][2]["step"]
    torch.save({"norm": optimizer.last_result.grad_norm, "steps": steps, "moment": optimizer.read_state(module[0].weight)["exp_avg"],
                **module.state_dict()}, os.path.join(folder, f"weights{rank}"))
    if ranks > 1:
        refuse_read(optimizer._store, module[0].weight, rank)
        refuse_change(optimizer, module[0].bias, rank)
    optimizer.close()
    if ranks > 1:
        dist.destroy_process_group()


def train_until_killed(folder, rank):
    """Process 1 is killed between two steps. The other one raises instead of waiting for it."""
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=2)
    module = torch.nn.Linear(100, 7)
    optimizer = spillway.AdamW(module.named_parameters(), store=os.path.join(folder, "store"), host_memory="64MiB", threads=1,
                               allow_buffered=True, process_group=dist.group.WORLD)
    for step in range(3):
        module(torch.ones(2, 100)).sum().backward()
        if step == 2 and rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if step < 2:
            optimizer.step()
    problems = script_test.raised(spillway.StoreError, "gather has returned 1 on rank 0", optimizer.step)
    problems += script_test.raised(ValueError, "can only be closed", optimizer.save)
    print(problems or "heard", flush=True)
    os._exit(1 if problems else 0)  # gloo waits for the dead process at an orderly end


def start_processes(folder, ranks, *words):
    os.makedirs(folder, exist_ok=True)
    command = [sys.executable, "-B", os.path.abspath(__file__), os.environ["SPILLWAY_LIBRARY"], folder]
    return [subprocess.Popen([*command, str(rank), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(ranks)]


def run_shared(folder, ranks, steps):
    """Returns what the processes end with."""
    processes = start_processes(folder, ranks, str(ranks), str(steps))
    output = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise AssertionError("\n".join(text[-800:] for text in output))
    return [torch.load(os.path.join(folder, f"weights{rank}")) for rank in range(ranks)]


@needs("torch")
def processes_share_a_store(folder):
    """Two processes, then four, and then one, end where one does alone."""
    wanted = run_shared(os.path.join(folder, "alone"), 1, 6)[0]
    shared = os.path.join(folder, "shared")
    run_shared(shared, 2, 3)
    parts = sorted(name for name in os.listdir(os.path.join(shared, "store")) if name.startswith("rank"))
    problems = [] if parts == ["rank-0-of-2", "rank-1-of-2"] else [f"the store has {parts}"]
    found = [*run_shared(shared, 4, 5), *run_shared(shared, 1, 6)]
    if found[0]["norm"] != found[3]["norm"] or any(not torch.equal(found[0][name], found[1][name]) for name in wanted if name != "norm"):
        problems.append("the processes differ from each other")
    return problems + [f"{name} differs" for name in wanted if name != "norm" and not torch.equal(wanted[name], found[4][name])]


@needs("torch")
def a_killed_process_ends_the_others(folder):
    """Whoever is left raises, and one process goes on from the step that both had."""
    processes = start_processes(folder, 2)
    output = [process.communicate(timeout=120)[0] for process in processes]
    if processes[0].returncode != 0 or processes[1].returncode != -signal.SIGKILL:
        return [text[-800:] for text in output]
    module = torch.nn.Linear(100, 7)
    optimizer = spillway.AdamW(module.named_parameters(), store=os.path.join(folder, "store"), host_memory="64MiB",
                               allow_buffered=True)
    step = optimizer.last_step
    optimizer.close()
    return [] if step == 2 else [f"the store is at step {step}"]


if len(sys.argv) > 4:
    train_shared(*sys.argv[2:])
elif len(sys.argv) > 2:
    train_until_killed(*sys.argv[2:])
else:
    script_test.run(processes_share_a_store, a_killed_process_ends_the_others)
