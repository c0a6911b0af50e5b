#!/usr/bin/env python3
"""Compares adapters with the torch, transformers and peft that are installed, for a model of each family.

Makes a random model and lets peft make an adapter of it; trains the adapter in both, on the same tokens and from the
same start; exports it, loads the export in peft, merges it, loads the merged model in transformers, and compares; and
the gradients of a first step, tensor by tensor. Prints a line of errors for each family; exits 1 where one is above
what is allowed.

transformers 5 keeps the matrices of a layer's experts in two tensors, and peft joins the adapters of gate and up to one
of twice the rank, whose B has a block for each and zeros beside them. Those zeros are not trained here: they are no
part of adapters of gate and up. The experts of gpt-oss are two tensors in its checkpoints too, and peft's adapters of
them are target_parameters here as well.

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
import safetensors.torch
import torch
import transformers

SEQ, LOSS, LOGITS, WEIGHTS, GRADIENTS = 32, 1e-5, 1e-4, 1e-6, 1e-4
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
    ("bloom", {"vocab_size": 256, "hidden_size": 64, "n_layer": 2, "n_head": 4, "pad_token_id": None},
     {"r": 4, "lora_alpha": 8, "target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]}),
    ("mixtral", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
     {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "w1", "w2", "w3"], "init_lora_weights": False}),
    ("qwen3_moe", {**SIZES, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                   "norm_topk_prob": True},
     {"r": 3, "lora_alpha": 6, "target_modules": ["o_proj", "gate_proj", "up_proj", "down_proj"], "init_lora_weights": False}),
    ("gpt_oss", {**SIZES, "head_dim": 16, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
                 "sliding_window": 16},
     {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "o_proj"], "init_lora_weights": False,
      "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}),
    ("gpt_oss", {**SIZES, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
     {"r": 3, "lora_alpha": 6, "target_modules": ["k_proj"], "init_lora_weights": False, "use_rslora": True,
      "target_parameters": ["mlp.experts.down_proj"]}),
]


# Models of tests/data, and how peft makes adapters of them.
GOLDEN_STEPS = 8
GOLDEN = [
    ("gpt2-a", {"r": 2, "lora_alpha": 6, "target_modules": ["attn.c_proj", "c_fc"], "fan_in_fan_out": True}),
    ("qwen2-a", {"r": 3, "lora_alpha": 4, "target_modules": r".*\.(1|2)\.self_attn\.[qv]_proj", "use_rslora": True,
                 "modules_to_save": ["model.norm"], "init_lora_weights": False}),
    ("mixtral-a", {"r": 2, "lora_alpha": 3, "target_modules": ["o_proj", "w1", "w2", "w3"], "init_lora_weights": False}),
    ("gptoss-a", {"r": 2, "lora_alpha": 3, "target_modules": ["v_proj"], "init_lora_weights": False,
                  "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}),
]


def joins_adapters(config):
    """Tells whether peft joins the adapters of experts, which have names of their own in the folder."""
    return hasattr(config, "num_local_experts") and config.model_type != "gpt_oss"


def halves(config, factor, tensor):
    """Returns the parts of a factor that gate and up of each expert have, or that down has."""
    experts = config.num_local_experts
    if factor.endswith("lora_A.weight"):
        tensor = tensor.reshape(experts, -1, tensor.shape[-1])
        return tensor.chunk(2, 1) if "base_layer" in factor else (tensor,)
    tensor = tensor.reshape(tensor.shape[0], -1, experts).permute(2, 0, 1)
    outputs, rank = tensor.shape[1] // 2, tensor.shape[2] // 2
    return (tensor[:, :outputs, :rank], tensor[:, outputs:, rank:]) if "base_layer" in factor else (tensor,)


def by_expert(config, tensors):
    """Names adapters as spillway does, and peft with transformers 4: each expert's by its number."""
    gate, up, down = live.EXPERT_MATRICES.get(config.model_type, ("gate_proj", "up_proj", "down_proj"))
    mlp = "block_sparse_moe" if config.model_type == "mixtral" else "mlp"
    named = {}
    for name, tensor in tensors.items():
        block, _, factor = name.partition(".mlp.experts.")
        parts = halves(config, factor, tensor) if factor else ()
        for part, matrix in zip(parts, (gate, up) if len(parts) == 2 else (down,)):
            for expert, own in enumerate(part):
                named[f"{block}.{mlp}.experts.{expert}.{matrix}.{factor.removeprefix('base_layer.')}"] = own.contiguous()
        if not factor:
            named[name] = tensor
    return named


def save_by_expert(model, adapter, folder):
    model.save_pretrained(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"target_modules": adapter["target_modules"], "target_parameters": None, "rank_pattern": {}, "alpha_pattern": {}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = folder / "adapter_model.safetensors"
    safetensors.torch.save_file(by_expert(model.config, safetensors.torch.load_file(weights)), weights)


def keep_zeros(model):
    """Keeps the zeros beside the blocks of B of the joined adapters."""
    for name, parameter in model.named_parameters():
        if ".experts.base_layer.lora_B." in name:
            mask = torch.zeros_like(parameter)
            for half in halves(model.config, "base_layer.lora_B", mask):
                half.fill_(1.0)
            parameter.register_hook(lambda gradient, mask=mask: gradient * mask)


def gradients_of(model, tokens):
    """Returns the gradients of the factors of a step, by name."""
    parts = tokens.split(live.MICRO_BATCH)
    model.zero_grad()
    for part in parts:
        logits = model(input_ids=part[:, :-1], use_cache=False).logits
        (torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / len(parts)).backward()
    found = {name.replace(".default.", "."): p.grad.clone() for name, p in model.named_parameters() if ".lora_" in name}
    model.zero_grad()
    return by_expert(model.config, found) if joins_adapters(model.config) else found


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


def train_here(arguments, scratch, run, steps, *more):
    spillway(arguments, "train", "--model", scratch / "base", "--adapter", scratch / "start", "--data", scratch / "data.bin",
             "--run", run, "--steps", steps, "--seq", SEQ, "--micro-batch", live.MICRO_BATCH, "--batch-tokens",
             live.WINDOWS * SEQ, "--schedule", "constant", "--warmup", 0, "--precision", "fp32", "--beta1", live.BETAS[0], "--beta2",
             live.BETAS[1], *more)


def gradient_error(arguments, scratch, wanted):
    """A step of AdamW with eps 1 tells its gradient (live.py)."""
    train_here(arguments, scratch, scratch / "probe", 1, "--lr", live.PROBE_LR, "--eps", live.PROBE_EPS, "--weight-decay", 0,
               "--clip", 0)
    spillway(arguments, "export", scratch / "probe", scratch / "probed")
    before, after = (safetensors.torch.load_file(scratch / name / "adapter_model.safetensors") for name in ("start", "probed"))
    taken = {name: (before[name].double() - after[name].double()) / live.PROBE_LR for name in wanted}
    return max(live.gradient_errors({name: change / (1.0 - change.abs()) for name, change in taken.items()}, wanted))


def largest(a, b):
    return (a - b).abs().max().item()


def begin(base, adapter, folder, name=None):
    """Saves an adapter that peft made, and returns the model with it."""
    model = peft.get_peft_model(load_base(base), peft.LoraConfig(task_type="CAUSAL_LM", **adapter))
    model.peft_config["default"].base_model_name_or_path = name or str(base)
    if not joins_adapters(model.config):
        model.save_pretrained(folder)
        return model
    save_by_expert(model, adapter, folder)
    model = peft.PeftModel.from_pretrained(load_base(base), folder, is_trainable=True).eval()
    keep_zeros(model)
    return model


def compare(arguments, family, sizes, adapter, scratch):
    """Returns the errors of a family, by name."""
    base, start, run = scratch / "base", scratch / "start", scratch / "run"
    live.make_model(transformers.AutoConfig.for_model(family, **sizes), arguments.seed, base)
    tokens = live.make_data(sizes["vocab_size"], SEQ, arguments.seed, scratch / "data.bin")
    torch.manual_seed(arguments.seed)
    model = begin(base, adapter, start)
    gradients = gradient_error(arguments, scratch, gradients_of(model, tokens))
    train_here(arguments, scratch, run, arguments.steps, "--lr", live.LR, "--weight-decay", live.DECAY, "--eps", live.EPS,
               "--clip", live.CLIP)
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
    return {"gradients": gradients,
            "losses": max(abs(a - b) for a, b in zip(losses, expected)) if len(losses) == arguments.steps else float("nan"),
            "logits in peft": largest(ours, logits_of(model.eval(), tokens)),
            "merged logits": largest(ours, logits_of(merged, tokens)),
            "merged weights": max(largest(value, whole[name]) for name, value in merged.state_dict().items()),
            "merged twice": 0.0 if same else 1.0,
            "fell": expected[0] - expected[-1]}


def make_golden(folder, seed, only):
    for base, settings in GOLDEN:
        if only not in (None, base):
            continue
        target = folder / f"adapter-{base}"
        tokens = live.make_data(256, SEQ, seed, folder / "adapter.bin")
        torch.manual_seed(seed)
        model = begin(folder / base, settings, target, base)
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
    parser.add_argument("--only", help="a family, or with --golden a model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.golden:
        return make_golden(arguments.golden, arguments.seed, arguments.only)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}; {arguments.steps} steps")
    good = True
    allowed = {"gradients": GRADIENTS, "losses": LOSS, "logits in peft": LOGITS, "merged logits": LOGITS, "merged weights": WEIGHTS, "merged twice": 0.0}
    for family, sizes, adapter in CASES:
        if arguments.only not in (None, family):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            errors = compare(arguments, family, sizes, adapter, pathlib.Path(scratch))
        fell = errors.pop("fell")
        wrong = [name for name, error in errors.items() if not error <= allowed[name]]
        print(f"{family}: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()) +
              f"; the loss fell by {fell:.3f}" + (f"  FAILED: {', '.join(wrong)}" if wrong else ""), flush=True)
        good = good and not wrong
    return 0 if good else 1


sys.exit(main())
