"""The parts that workers share. A worker is one contender, in the Python of the peers' folder. It trains some steps on one batch and
prints one line of JSON: the seconds and the loss of each step, and the bytes written to drives within the steps."""

import argparse
import json
import time

BETAS, EPSILON, CLIP = (0.9, 0.95), 1e-8, 1.0


def parser(what):
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--model", required=True, help="Hugging Face folder of the initial weights")
    made.add_argument("--tokens", required=True, help="file of the tokens, one target longer than the batch")
    made.add_argument("--type", choices=("H", "I"), required=True, help="type of the tokens, as array names it")
    made.add_argument("--seq", type=int, required=True)
    made.add_argument("--batch", type=int, required=True, help="sequences of a step, over all ranks")
    made.add_argument("--steps", type=int, required=True)
    made.add_argument("--lr", type=float, required=True)
    made.add_argument("--threads", type=int, required=True)
    return made


def batch(torch, options):
    """Inputs and targets of every step, each [batch, seq]."""
    import array
    import os
    tokens = array.array(options.type)
    with open(options.tokens, "rb") as file:
        tokens.fromfile(file, os.path.getsize(options.tokens) // tokens.itemsize)
    tokens = torch.tensor(tokens.tolist(), dtype=torch.long)
    count = options.batch * options.seq
    shape = (options.batch, options.seq)
    return tokens[:count].view(shape), tokens[1:count + 1].view(shape)


def loss_of(torch, model, inputs, targets):
    """The mean loss over all targets, in fp32."""
    logits = model(input_ids=inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))


def device_of(torch):
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def written_bytes():
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("write_bytes"))


def train(torch, options, step, device=None):
    """Calls `step`, which returns the loss as a tensor, and returns the fields of the report."""
    seconds, losses, written = [], [], []
    for _ in range(options.steps):
        before, begun = written_bytes(), time.perf_counter()
        loss = step()
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize()
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begun)
        written.append(written_bytes() - before)
    return {"seconds": seconds, "losses": losses, "step_written_bytes": written}


def report(**fields):
    print(json.dumps(fields), flush=True)
