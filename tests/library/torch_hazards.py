"""spillway.AdamW in programs that fork, use threads, or find no room. Needs PyTorch."""

import os
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch_support as support  # noqa: E402
from torch_support import needs, script_test, spillway  # noqa: E402

torch = support.torch
WIDTH = 257


def made(folder, **options):
    torch.manual_seed(support.SEED)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 3))
    options = {"host_memory": "6MiB", "allow_buffered": True, "threads": 1, **options}
    return model, spillway.AdamW(model.named_parameters(), store=folder, **options)


def train(model, optimizer, last_step):
    while optimizer.last_step < last_step:
        source = torch.Generator().manual_seed(optimizer.last_step)
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH, generator=source)).pow(2).mean().backward()
        optimizer.step()


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@needs("torch")
def workers_of_a_data_loader_may_fork(folder):
    """The workers begin after the optimizer, live as long as the loader, and end before or after the optimizer is closed."""
    model, optimizer = made(folder)
    alone, other = made(f"{folder}-alone")
    loader = torch.utils.data.DataLoader([torch.full((WIDTH,), float(i)) for i in range(12)], batch_size=2, num_workers=2,
                                         persistent_workers=True, multiprocessing_context="fork")
    for _ in range(2):
        for batch in loader:
            for module, its in ((model, optimizer), (alone, other)):
                its.zero_grad()
                module(batch).pow(2).mean().backward()
                its.step()
    problems = [] if optimizer.last_step == 12 and same(model, alone) else ["the steps beside workers differ"]
    optimizer.close()
    other.close()
    del loader
    again, optimizer = made(folder)
    problems += [] if optimizer.last_step == 12 and same(again, alone) else ["the store did not open as it was closed"]
    optimizer.close()
    return problems


@needs("torch")
def threads_take_turns(folder):
    """Two threads train two models at once, while a third asks one of the optimizers for its usage and state."""
    alone, other = made(f"{folder}-alone")
    train(alone, other, 30)
    other.close()
    both = [made(f"{folder}-{number}") for number in range(2)]
    done, asked, problems = threading.Event(), [], []

    def ask():
        while not done.is_set():
            state = both[0][1].read_state(both[0][0][0].bias)
            asked.append(len(state) + both[0][1].usage().parameters)
    threads = [threading.Thread(target=train, args=(*pair, 30)) for pair in both] + [threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    done.set()
    threads[2].join()
    problems += [] if len(asked) > 0 else ["nobody asked"]
    for model, optimizer in both:
        problems += [] if same(model, alone) else ["a thread's steps differ"]
        optimizer.close()
    return problems


@needs("torch")
def a_full_disk_is_said_and_leaves_nothing(folder):
    """The limit of a process on the size of files stands for a disk that is full."""
    code = ("import resource, sys; sys.path.insert(0, {here!r}); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18)); "
            "import torch_hazards as t\n"
            "try: t.made({folder!r})\n"
            "except t.spillway.StoreError as error: print(error.status, '|', error)").format(here=HERE, folder=folder)
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    left = os.listdir(folder) if os.path.isdir(folder) else []
    problems = [] if "MiB" in done.stdout and folder in done.stdout else [f"it says {done.stdout} {done.stderr[-300:]}"]
    problems += [] if set(left) <= {"store.lock"} else [f"it leaves {left}"]
    model, optimizer = made(folder)
    train(model, optimizer, 2)
    optimizer.close()
    return problems


if __name__ == "__main__":
    script_test.run(workers_of_a_data_loader_may_fork, threads_take_turns, a_full_disk_is_said_and_leaves_nothing)
