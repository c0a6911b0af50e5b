#!/usr/bin/env python3
"""Trains a small model by direct preference optimization in trl and in spillway, from the same weights and pairs, and
compares losses and rewards of each step. Prints a line a form of the data; exits 1 where one differs by too much.

  dpo.py [--spillway build/spillway] [--golden tests/data/dpo.json]

--golden keeps trl's numbers for the test e2e/cli_dpo and runs no spillway.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import datasets
import torch
import transformers
import trl

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import preference_pairs as pairs  # noqa: E402

NEAR = 1e-5
FORMS = {"plain": pairs.plain, "chats": pairs.chats}
# spillway's names, and those of trl's log.
FIELDS = {"loss": "loss", "chosen": "rewards/chosen", "rejected": "rewards/rejected", "margin": "rewards/margins",
          "accuracy": "rewards/accuracies"}


class Notes(transformers.TrainerCallback):
    """Keeps every step's log: the trainer's own history rounds."""

    def __init__(self):
        self.steps = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and "rewards/chosen" in logs:
            self.steps.append({name: logs[field] for name, field in FIELDS.items()})


def by_trl(folder, made, work):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = trl.DPOConfig(output_dir=work, per_device_train_batch_size=pairs.PAIRS, max_steps=pairs.STEPS,
                           learning_rate=pairs.LR, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0,
                           adam_beta1=pairs.BETAS[0], adam_beta2=pairs.BETAS[1], adam_epsilon=pairs.EPS, beta=pairs.BETA,
                           max_length=pairs.SEQ, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
                           bf16=False, disable_tqdm=True)
    notes = Notes()
    trainer = trl.DPOTrainer(model=model, args=config, train_dataset=datasets.Dataset.from_list(made),
                             processing_class=transformers.AutoTokenizer.from_pretrained(folder), callbacks=[notes])
    losses = []
    inner = trainer.compute_loss

    def compute_loss(*arguments, **named):
        """The log rounds losses, so each is noted where it is computed."""
        found = inner(*arguments, **named)
        losses.append(float((found[0] if isinstance(found, tuple) else found).detach()))
        return found

    trainer.compute_loss = compute_loss
    trainer.train()
    return [{**step, "loss": loss} for step, loss in zip(notes.steps, losses)]


def by_spillway(program, folder, data, run):
    arguments = [program, *map(str, pairs.flags(data, run)), "--model", folder]
    ended = subprocess.run(arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode != 0:
        sys.exit(f"dpo.py: spillway failed: {ended.stderr.strip()}")
    with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as log:
        steps = [line for line in map(json.loads, log) if "rewards" in line]
    return [{"loss": step["loss"], **step["rewards"]} for step in steps]


def errors(found, wanted):
    return {name: max(abs(a[name] - b[name]) for a, b in zip(found, wanted)) for name in FIELDS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", default="build/spillway")
    parser.add_argument("--golden")
    given = parser.parse_args()
    golden = {"made_by": f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"}
    bad = False
    with tempfile.TemporaryDirectory() as work:
        folder = pairs.model(os.path.join(work, "model"))
        for name, make in FORMS.items():
            wanted = by_trl(folder, make(), os.path.join(work, "trl"))
            golden[name] = wanted
            if given.golden is not None:
                continue
            data = pairs.write(os.path.join(work, name + ".jsonl"), make())
            found = by_spillway(given.spillway, folder, data, os.path.join(work, name))
            largest = errors(found, wanted)
            bad |= len(found) != pairs.STEPS or len(wanted) != pairs.STEPS or max(largest.values()) > NEAR
            print(f"{name}: {len(found)} steps, loss {wanted[0]['loss']:.6f} to {wanted[-1]['loss']:.6f}; largest differences "
                  + ", ".join(f"{field} {error:.2g}" for field, error in largest.items()))
    if given.golden is not None:
        with open(given.golden, "w", encoding="utf-8") as file:
            json.dump(golden, file, indent=1)
            file.write("\n")
    sys.exit(1 if bad else 0)


main()
