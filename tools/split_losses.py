#!/usr/bin/env python3
"""Trains a small GPT-2 and a small Llama in fp32 on every split of 1, 2, 4 and 8 ranks into data ranks, tensor groups and
pipeline stages, and prints how far each step's loss is from that of one rank, as a share of it. The last rows are of one
rank that adds up in another order: by other threads, or by larger micro-batches. The text is any file of some 100 kB;
other flags are train's."""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import tempfile

LAUNCHER = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n")
VOCAB, SEQ, SEQUENCES, HIDDEN, LAYERS, HEADS = 256, 64, 8, 64, 6, 8
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": SEQ, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS},
    "llama": {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": HEADS, "intermediate_size": 176, "max_position_embeddings": SEQ, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False},
}
PLAIN = ("--threads", 1, "--micro-batch", 1)
ORDERS = (("2 threads", ("--threads", 2, "--micro-batch", 1)), ("micro-batches of 2", ("--threads", 1, "--micro-batch", 2)),
          ("micro-batches of 8", ("--threads", 1, "--micro-batch", 8)))


def splits(ranks):
    """All (data ranks, tensor ranks, stages) of so many ranks."""
    return [split for split in itertools.product(range(1, ranks + 1), repeat=3) if split[0] * split[1] * split[2] == ranks]


def train(asked, folder, model, ranks, *flags):
    """Returns the losses of all steps, and the norms of their gradients."""
    run = os.path.join(folder, "run")
    shape = ("--seq", SEQ, "--batch-tokens", SEQ * SEQUENCES, "--precision", "fp32", "--device", "cpu")
    words = ("train", "--model", os.path.join(folder, model), "--init", "--data", asked.text, "--run", run, "--steps", asked.steps,
             "--save-every", asked.steps, *shape, *flags, *asked.flags)
    start = (asked.program,)
    if ranks > 1:
        start = (asked.thread_ranks, ranks) if asked.thread_ranks else (*LAUNCHER, ranks, asked.program)
    done = subprocess.run([str(word) for word in (*start, *words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{model} with {' '.join(map(str, flags))} by {ranks} ranks: {done.stderr[-1000:]}")
    with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as file:
        lines = [line for line in map(json.loads, file) if "loss" in line]
    shutil.rmtree(run)
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


def off(found, reference):
    return [abs(a / b - 1) for a, b in zip(found, reference, strict=True)]


def compare(model, ways, asked, folder):
    """Prints a line for each way to train. Returns the largest difference of a loss in all of them."""
    reference, norms = train(asked, folder, model, 1, *PLAIN)
    print(f"\n{model}, loss from {reference[0]:.4f} to {reference[-1]:.4f}\n\n| way | loss, step 1 | loss, most | at step | norm, most |\n"
          "| --- | --- | --- | --- | --- |", flush=True)
    most = 0.0
    for name, ranks, flags in ways:
        losses, found = train(asked, folder, model, ranks, *flags)
        share = off(losses, reference)
        most = max(most, *share)
        print(f"| {name} | {share[0]:.1e} | {max(share):.1e} | {share.index(max(share)) + 1} | {max(off(found, norms)):.1e} |", flush=True)
    return most


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--program", default="build/spillway")
    parser.add_argument("--thread-ranks", help="the test program whose ranks are threads, which need no MPI: "
                        "build/tests/e2e/test_e2e_thread_ranks")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--models", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    asked, asked.flags = parser.parse_known_args()  # the rest are flags of train
    ways = [(f"{data} x {tensor} x {stages}", ranks, (*PLAIN, "--tensor", tensor, "--pipeline", stages))
            for ranks in asked.ranks for data, tensor, stages in splits(ranks)]
    ways += [(name, 1, flags) for name, flags in ORDERS]
    print(f"data ranks x tensor ranks x stages, {asked.steps} steps of {SEQ * SEQUENCES} tokens: differences from one rank")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for model in asked.models:
            os.mkdir(os.path.join(folder, model))
            with open(os.path.join(folder, model, "config.json"), "w", encoding="utf-8") as file:
                json.dump(CONFIGS[model], file)
            most = compare(model, ways, asked, folder)
            print(f"\n{model}: a loss is at most {most:.1e} of itself away from that of one rank", flush=True)


main()
