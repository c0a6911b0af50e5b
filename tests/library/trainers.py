"""spillway.AdamW in transformers' Trainer, accelerate and Lightning, by the lines of the guide: the loss falls, and a run that
goes back to one of its checkpoints, after the store has gone on, ends with the bits of one that was not interrupted. Accumulation,
bf16 autocast, and clipping by the trainer or by the optimizer. Each needs its package and PyTorch."""

import os
import re
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch_support as support  # noqa: E402
from torch_support import needs, script_test, spillway  # noqa: E402

torch = support.torch
STEPS, KEPT, STOPPED, WIDTH = 8, 4, 6, 24
warnings.simplefilter("ignore")


def lines_of(package, folder, **changes):
    """The guide's lines for a package, with the options that a test needs."""
    with open(os.path.join(support.ROOT, "docs", "guide", "library.md"), encoding="utf-8") as page:
        lines = re.search(rf"^{package}:\n\n```python\n(.*?)^```$", page.read(), re.M | re.S)[1]
    changes = {"store": folder, "host_memory": "6MiB", "allow_buffered": True, **changes}
    known = "".join(f", {name}={value!r}" for name, value in changes.items())
    lines = re.sub(r', store="store", host_memory="32GiB"', known, lines)
    for name, written in (("clip", ", clip=1.0"), ("full_state_dict", ", full_state_dict=True")):
        lines = lines.replace(written, "") if name in changes else lines
    return lines


def model_of(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 200), torch.nn.Tanh(), torch.nn.Linear(200, 1))


def examples():
    source = torch.Generator().manual_seed(9)
    inputs = torch.randn(64, WIDTH, generator=source)
    return [{"x": x, "labels": x[:3].sum()} for x in inputs]


def loss_of(model, x, labels):
    return (model(x).squeeze(-1) - labels).pow(2).mean()


def loss_on_all(model):
    with torch.no_grad():
        return sum(float(loss_of(getattr(model, "layers", model), example["x"], example["labels"])) for example in examples())


def differences(what, left, right):
    pairs = zip(left.state_dict().items(), right.state_dict().values(), strict=True)
    return [f"{what}: {name} differs" for (name, a), b in pairs if not torch.equal(a, b)]


# transformers

def hugging_face(folder, store, stop=STEPS, resume=None, state_changes=(), **arguments):
    """Trains; returns the model and the optimizer."""
    import transformers
    transformers.logging.set_verbosity_error()

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model_of()

        def forward(self, x, labels):
            return {"loss": loss_of(self.layers, x, labels)}

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step >= stop
    arguments = {"max_grad_norm": 0.0, "gradient_accumulation_steps": 2, **arguments}
    arguments = transformers.TrainingArguments(
        folder, max_steps=STEPS, save_steps=KEPT, logging_strategy="no", per_device_train_batch_size=4, use_cpu=True, report_to=[],
        disable_tqdm=True, warmup_steps=2, seed=7, **arguments)
    names = {"spillway": spillway, "transformers": transformers, "model": Wrapped(), "arguments": arguments, "dataset": examples(),
             "resume": resume}
    first, second, last = lines_of("transformers", store, **dict(state_changes)).splitlines()
    exec(first + "\n" + second, names)
    trainer = names["trainer"]
    trainer.add_callback(Stop())
    trainer.remove_callback(transformers.PrinterCallback)
    exec(last, names)
    return names["model"], names["optimizer"]


def goes_back(train, folder, store, checkpoint, what):
    """Runs to the end; and to a stop after a checkpoint, from which another process's optimizer on that store goes on."""
    alone, optimizer = train(f"{folder}-alone", f"{store}-alone")
    before, after = loss_on_all(model_of()), loss_on_all(alone)
    problems = [] if after < before else [f"{what}: the loss rose from {before} to {after}"]
    problems += [] if optimizer.last_step == STEPS else [f"{what}: the store is at step {optimizer.last_step}"]
    optimizer.close()
    _, optimizer = train(folder, store, stop=STOPPED)
    problems += [] if optimizer.last_step == STOPPED else [f"{what}: the stopped store is at step {optimizer.last_step}"]
    optimizer.close()
    again, optimizer = train(folder, store, resume=checkpoint)
    optimizer.close()
    return problems + differences(what, alone, again)


@needs("torch", "transformers", "accelerate")
def transformers_trains_and_goes_back(store):
    folder = f"{store}-run"
    return goes_back(hugging_face, folder, store, os.path.join(folder, f"checkpoint-{KEPT}"), "transformers")


@needs("torch", "transformers", "accelerate")
def transformers_clips_in_bf16(store):
    """Trainer or optimizer clips, to the same norm."""
    norms = []
    for number, (trainer, own) in enumerate(((0.3, None), (0.0, 0.3))):
        _, optimizer = hugging_face(f"{store}-{number}", f"{store}-{number}-store", state_changes=[("clip", own)],
                                    max_grad_norm=trainer, bf16=True)
        norms.append(optimizer.last_result.grad_norm)
        optimizer.close()
    return [] if norms[0] <= 0.3001 and norms[1] > 0.31 else [f"the norms that reached the optimizer are {norms}"]


@needs("torch", "transformers", "accelerate")
def a_small_checkpoint_resumes_at_the_step_of_the_store(store):
    folder, small = f"{store}-run", [("full_state_dict", False)]

    def train(folder, store, **options):
        return hugging_face(folder, store, state_changes=small, **options)
    alone, optimizer = train(f"{folder}-alone", f"{store}-alone")
    optimizer.close()
    _, optimizer = train(folder, store, stop=KEPT)
    optimizer.close()
    checkpoint = os.path.join(folder, f"checkpoint-{KEPT}")
    again, optimizer = train(folder, store, resume=checkpoint)
    optimizer.close()
    problems = differences("a small checkpoint", alone, again)
    return problems + script_test.raised(ValueError, f"is of step {KEPT}", train, folder, store, resume=checkpoint)


# accelerate

def with_accelerate(folder, store, stop=STEPS, resume=None):
    import accelerate
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = model_of()

    def train(accelerator, model, optimizer, loader, schedule):
        """Two micro-batches a step."""
        if resume is not None:
            accelerator.load_state(resume)
        batches = list(loader)
        for micro in range(2 * optimizer.optimizer.last_step, 2 * stop):
            with accelerator.accumulate(model):
                loss = loss_of(model, **batches[micro % len(batches)])
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if micro + 1 == 2 * KEPT and resume is None:
                accelerator.save_state(folder)
    loader = torch.utils.data.DataLoader(examples(), batch_size=4)
    names = {"spillway": spillway, "accelerator": accelerator, "model": model, "loader": loader, "train": train}
    first, *others = lines_of("accelerate", store).splitlines()
    exec(first, names)
    optimizer = names["optimizer"]
    names["schedule"] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    exec("\n".join(others), names)
    return model, optimizer


@needs("torch", "accelerate")
def accelerate_trains_and_goes_back(store):
    folder = f"{store}-state"
    return goes_back(with_accelerate, folder, store, folder, "accelerate")


# Lightning

def with_lightning(folder, store, stop=STEPS, resume=None):
    import logging

    import lightning
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Base(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = model_of()

        def training_step(self, batch, _):
            return loss_of(self.layers, **batch)
    names = {"spillway": spillway, "Base": Base}
    exec(lines_of("Lightning", store), names)
    module = names["Module"]()
    keep = lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="{step}", every_n_train_steps=KEPT, save_top_k=-1)
    trainer = lightning.Trainer(accelerator="cpu", max_steps=stop, accumulate_grad_batches=2, callbacks=[keep], logger=False,
                                enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
    # Its checkpoints hold no position within an epoch, so KEPT steps are one.
    trainer.fit(module, torch.utils.data.DataLoader(examples(), batch_size=64 // KEPT // 2), ckpt_path=resume)
    return module, trainer.optimizers[0]


@needs("torch", "lightning")
def lightning_trains_and_goes_back(store):
    folder = f"{store}-state"
    return goes_back(with_lightning, folder, store, os.path.join(folder, f"step={KEPT}.ckpt"), "Lightning")


script_test.run(transformers_trains_and_goes_back, transformers_clips_in_bf16, a_small_checkpoint_resumes_at_the_step_of_the_store,
                accelerate_trains_and_goes_back, lightning_trains_and_goes_back)
