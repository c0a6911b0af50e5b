#!/usr/bin/env python3
"""Compares adapters with the torch, transformers and peft that are installed, for a model of each family.

Makes a random model and lets peft make an adapter of it; trains the adapter in both, on the same tokens and from the
same start; exports it, loads the export in peft, merges it, loads the merged model in transformers, and compares.
Prints a line of errors for each family; exits 1 where one is above what is allowed.

  adapters.py [--steps N] [--seed N] [--spillway build/spillway]

With --golden tests/data, makes the adapters there and what peft has trained them to, for tests without torch.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import live
import peft
import torch
import transformers

SEQ, LOSS, LOGITS, WEIGHTS = 32, 1e-5, 1e-4, 1e-6
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 256, "max_position_embeddings": 64}
# A family, its sizes, and how peft makes its adapter.
CASES = [
    ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 3, "vocab_size": 256, "n_positions": 64, "bos_token_id": None,
              "eos_token_id": None},
     {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    ("llama", SIZES, {"r": 8, "lora_alpha": 12, "target_modules": "all-linear", "use_rslora": True}),
    ("mistral", {**SIZES, "sliding_window": 16}, {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}),
    ("qwen2", SIZES, {"r": 4, "lora_alpha": 4, "target_modules": r".*\.(self_attn\.[qkvo]_proj|mlp\.gate_proj)",
                      "modules_to_save": ["lm_head", "norm"], "init_lora_weights": False}),
    ("qwen3", {**SIZES, "head_dim": 16, "tie_word_embeddings": True},
     {"r": 5, "lora_alpha": 10, "target_modules": ["up_proj", "down_proj", "k_proj"], "layers_to_transform": [1]}),
    ("phi3", {**SIZES, "pad_token_id": None},
     {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
]


# Models of tests/data, and how peft makes adapters of them.
GOLDEN_STEPS = 8
GOLDEN = [
    ("gpt2-a", {"r": 2, "lora_alpha": 6, "target_modules": ["attn.c_proj", "c_fc"], "fan_in_fan_out": True}),
    ("qwen2-a", {"r": 3, "lora_alpha": 4, "target_modules": r".*\.(1|2)\.self_attn\.[qv]_proj", "use_rslora": True,
                 "modules_to_save": ["model.norm"], "init_lora_weights": False}),
]


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[:, :-1], use_cache=False).logits.double()


def train(model, tokens, steps):
    """Returns the losses before each step, as spillway logs them."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim >= 2], "weight_decay": live.DECAY},
              {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=live.LR, betas=live.BETAS, eps=live.EPS)
    losses = []
    for _ in range(steps):
        parts, total = tokens.split(live.MICRO_BATCH), 0.0
        adamw.zero_grad()
        for part in parts:
            logits = model(input_ids=part[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
            (loss / len(parts)).backward()
            total += loss.item() / len(parts)
        norm = sum(p.grad.double().square().sum() for p in trained).sqrt()
        torch.nn.utils.clip_grads_with_norm_(trained, live.CLIP, norm)
        adamw.step()
        losses.append(total)
    return losses


def spillway(arguments, *more):
    live.spillway(arguments.spillway, *more)


def load_base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def largest(a, b):
    return (a - b).abs().max().item()


def compare(arguments, family, sizes, adapter, scratch):
    """Returns the errors of a family, by name."""
    base, start, run = scratch / "base", scratch / "start", scratch / "run"
    live.make_model(transformers.AutoConfig.for_model(family, **sizes), arguments.seed, base)
    tokens = live.make_data(sizes["vocab_size"], SEQ, arguments.seed, scratch / "data.bin")
    torch.manual_seed(arguments.seed)
    model = peft.get_peft_model(load_base(base), peft.LoraConfig(task_type="CAUSAL_LM", **adapter))
    model.save_pretrained(start)
    spillway(arguments, "train", "--model", base, "--adapter", start, "--data", scratch / "data.bin", "--run", run, "--steps",
             arguments.steps, "--seq", SEQ, "--micro-batch", live.MICRO_BATCH, "--batch-tokens", live.WINDOWS * SEQ, "--schedule",
             "constant", "--warmup", 0, "--lr", live.LR, "--precision", "fp32", "--beta1", live.BETAS[0], "--beta2", live.BETAS[1],
             "--weight-decay", live.DECAY, "--eps", live.EPS, "--clip", live.CLIP)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log if "loss" in line]
    expected = train(model, tokens, arguments.steps)
    spillway(arguments, "export", run, scratch / "adapter")
    spillway(arguments, "export", run, scratch / "merged", "--merge")
    spillway(arguments, "export", base, scratch / "merged-folder", "--merge", "--adapter", scratch / "adapter")
    loaded = peft.PeftModel.from_pretrained(load_base(base), scratch / "adapter").eval()
    ours, merged = logits_of(loaded, tokens), load_base(scratch / "merged")
    whole = {name: value for name, value in loaded.merge_and_unload().state_dict().items()}
    same = all(torch.equal(value, merged.state_dict()[name])
               for name, value in load_base(scratch / "merged-folder").state_dict().items())
    return {"losses": max(abs(a - b) for a, b in zip(losses, expected)) if len(losses) == arguments.steps else float("nan"),
            "logits in peft": largest(ours, logits_of(model.eval(), tokens)),
            "merged logits": largest(ours, logits_of(merged, tokens)),
            "merged weights": max(largest(value, whole[name]) for name, value in merged.state_dict().items()),
            "merged twice": 0.0 if same else 1.0,
            "fell": expected[0] - expected[-1]}


def make_golden(folder, seed):
    for base, settings in GOLDEN:
        target = folder / f"adapter-{base}"
        tokens = live.make_data(256, SEQ, seed, folder / "adapter.bin")
        torch.manual_seed(seed)
        model = peft.get_peft_model(load_base(folder / base), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
        model.peft_config["default"].base_model_name_or_path = base
        model.save_pretrained(target)
        (target / "README.md").unlink()
        (target / "adapter_model.safetensors").chmod(0o644)
        losses = train(model, tokens, GOLDEN_STEPS)
        golden = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__},
                  "base": base, "seed": seed, "seq": SEQ, "micro_batch": live.MICRO_BATCH, "windows": live.WINDOWS, "lr": live.LR,
                  "beta1": live.BETAS[0], "beta2": live.BETAS[1], "eps": live.EPS, "weight_decay": live.DECAY, "clip": live.CLIP,
                  "tokens": [int(t) for t in tokens[:, :-1].flatten()] + [int(tokens[-1, -1])], "losses": losses}
        (folder / f"adapter-{base}.json").write_text(json.dumps(golden) + "\n")
        (folder / "adapter.bin").unlink()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spillway", default="build/spillway")
    parser.add_argument("--golden", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.golden:
        return make_golden(arguments.golden, arguments.seed)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}; {arguments.steps} steps")
    good = True
    allowed = {"losses": LOSS, "logits in peft": LOGITS, "merged logits": LOGITS, "merged weights": WEIGHTS, "merged twice": 0.0}
    for family, sizes, adapter in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            errors = compare(arguments, family, sizes, adapter, pathlib.Path(scratch))
        fell = errors.pop("fell")
        wrong = [name for name, error in errors.items() if not error <= allowed[name]]
        print(f"{family}: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()) +
              f"; the loss fell by {fell:.3f}" + (f"  FAILED: {', '.join(wrong)}" if wrong else ""), flush=True)
        good = good and not wrong
    return 0 if good else 1


sys.exit(main())
