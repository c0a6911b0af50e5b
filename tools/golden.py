#!/usr/bin/env python3
"""Makes the golden files under tests/data: what PyTorch, transformers and tokenizers compute, for the tests in C to
reproduce.

Everything follows from the seeds in this file, on one thread, so a second run on the same machine and versions
writes the same bytes, but for the tokenizers llama2, mistral and gemma, whose trainer breaks ties at random. The fields
of the files are described in tests/parity/README.md.
"""

import argparse
import copy
import dataclasses
import json
import math
import pathlib
import random
import sys

import numpy
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.generation.logits_process import (MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper,
                                                    TopPLogitsWarper)

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "parity"))
from live import as_saved, decays, norm_centre  # noqa: E402

TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
PROJECTIONS = 8
SAMPLES = 64
LOGIT_SAMPLES = 128
UPDATE_STEPS = 1000
UPDATE_LENGTHS = (1, 15, 16, 17, 250_003)
UPDATE_SAMPLES = 4096
GRAIN_ELEMS = 16384
IGNORED = -100  # a target without a loss, as torch has it


# --- The models: families, shapes, batches and optimizers ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """AdamW and its schedule: linear warm-up, then a cosine to min_lr at the last step."""

    steps: int = 20
    lr: float = 3e-3
    min_lr: float = 3e-4
    warmup: int = 5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, step):
        if step <= self.warmup:
            return self.lr * step / self.warmup
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.min_lr + (self.lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * done))


@dataclasses.dataclass(frozen=True)
class Family:
    """The classes of an architecture, and what its tensors' names in transformers begin with where that may be left out."""

    config: type
    model: type
    prefix: str = ""
    settings: dict = dataclasses.field(default_factory=dict)  # no dropout


FAMILIES = {
    "gpt2": Family(transformers.GPT2Config, transformers.GPT2LMHeadModel, "transformer.",
                   {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "llama": Family(transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": Family(transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": Family(transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": Family(transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "phi3": Family(transformers.Phi3Config, transformers.Phi3ForCausalLM, settings={"pad_token_id": None}),
    "mixtral": Family(transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": Family(transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "gemma3": Family(transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, settings={"pad_token_id": None}),
    "gpt_oss": Family(transformers.GptOssConfig, transformers.GptOssForCausalLM),
    "qwen2_moe": Family(transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
    "bloom": Family(transformers.BloomConfig, transformers.BloomForCausalLM, "transformer."),
    "olmoe": Family(transformers.OlmoeConfig, transformers.OlmoeForCausalLM, settings={"pad_token_id": None}),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model's shape, how its file is written, and the batches that it is trained on."""

    name: str
    seed: int
    config: dict
    weight_std: float  # large enough that some steps clip
    micro_batches: int
    batch: int
    seq: int
    optimizer: Optimizer
    family: str = "gpt2"
    documents: int = 0  # packed into each sequence; 0: a sequence is text without documents
    # As files were first published: GPT-2's without the prefix and with causal masks, BLOOM's without the prefix and with
    # other names of sizes, the others' rope_theta and rope_scaling apart.
    published_form: bool = False

    @property
    def prefix(self):
        return FAMILIES[self.family].prefix


LLAMA_SHAPE = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


def ten_steps(clip):
    return Optimizer(steps=10, warmup=3, clip=clip)


CASES = (
    Case(
        name="gpt2-a",
        seed=20240601,
        config={"vocab_size": 256, "n_embd": 48, "n_head": 3, "n_layer": 2, "n_positions": 64},
        weight_std=0.14,
        micro_batches=3, batch=2, seq=64,
        optimizer=Optimizer(),
    ),
    Case(
        name="gpt2-b",
        seed=20240602,
        config={"vocab_size": 515, "n_embd": 52, "n_head": 4, "n_layer": 3, "n_positions": 41, "n_inner": 72,
                "activation_function": "gelu", "layer_norm_epsilon": 1e-6},
        weight_std=0.1,
        published_form=True,
        micro_batches=2, batch=3, seq=33,
        optimizer=Optimizer(lr=2e-3, min_lr=1e-4),
    ),
    # Llama 2: as many key heads as heads, own output table.
    Case(
        name="llama-a",
        family="llama",
        seed=20240603,
        config=LLAMA_SHAPE | {"num_key_value_heads": 4, "rms_norm_eps": 1e-5},
        weight_std=0.14,
        micro_batches=3, batch=2, seq=64,
        optimizer=ten_steps(1.55),
    ),
    # Llama 3: grouped heads of a size apart from the hidden one, its scaling, tied; and every bias. The rotation is fast
    # enough here that softmax does not ignore the key biases, see undetermined().
    Case(
        name="llama-b",
        family="llama",
        seed=20240604,
        config=LLAMA_SHAPE | {
            "vocab_size": 515, "hidden_size": 52, "head_dim": 22, "tie_word_embeddings": True, "attention_bias": True,
            "mlp_bias": True, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
        weight_std=0.1,
        published_form=True,
        micro_batches=2, batch=3, seq=53,
        optimizer=ten_steps(1.3),
    ),
    # More than 4,096 tokens.
    Case(
        name="llama-long",
        family="llama",
        seed=20240605,
        config=LLAMA_SHAPE | {
            "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
            "num_key_value_heads": 1, "max_position_embeddings": 4608, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}},
        weight_std=0.25,
        micro_batches=1, batch=1, seq=4200,
        optimizer=ten_steps(1.2),
    ),
    Case(
        name="mistral-a",
        family="mistral",
        seed=20240606,
        config=LLAMA_SHAPE | {"sliding_window": 9, "head_dim": 14, "max_position_embeddings": 200,
                              "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        weight_std=0.14,
        micro_batches=2, batch=2, seq=150,
        optimizer=ten_steps(1.315),
    ),
    # The last of three layers has a window.
    Case(
        name="qwen2-a",
        family="qwen2",
        seed=20240607,
        config=LLAMA_SHAPE | {"num_hidden_layers": 3, "tie_word_embeddings": True, "use_sliding_window": True,
                              "sliding_window": 20, "max_window_layers": 2, "rope_parameters": {
                                  "rope_type": "default", "rope_theta": 50.0}},
        weight_std=0.12,
        micro_batches=3, batch=2, seq=64,
        optimizer=ten_steps(1.55),
    ),
    Case(
        name="qwen3-a",
        family="qwen3",
        seed=20240618,
        config=LLAMA_SHAPE | {"head_dim": 32, "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}},
        weight_std=0.12,
        micro_batches=2, batch=3, seq=60,
        optimizer=ten_steps(1.54),
    ),
    # Windows in some layers, before and behind one without.
    Case(
        name="qwen3-b",
        family="qwen3",
        seed=20240622,
        config=LLAMA_SHAPE | {
            "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 16,
            "use_sliding_window": True, "sliding_window": 9, "layer_types": [
                "sliding_attention", "full_attention", "sliding_attention"]},
        weight_std=0.17,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.55),
    ),
    # Fused matrices, with a window.
    Case(
        name="phi3-a",
        family="phi3",
        seed=20240624,
        config=LLAMA_SHAPE | {
            "hidden_size": 32, "intermediate_size": 48, "sliding_window": 13, "rope_parameters": {
                "rope_type": "default", "rope_theta": 250000.0}},
        weight_std=0.17,
        published_form=True,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.55),
    ),
    # Two of four experts for each token, whose weights add up to 1.
    Case(
        name="mixtral-a",
        family="mixtral",
        seed=20240625,
        config=LLAMA_SHAPE | {"hidden_size": 32, "intermediate_size": 24, "num_local_experts": 4,
                              "num_experts_per_tok": 2},
        weight_std=0.17,
        published_form=True,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.48),
    ),
    # The loss that balances experts, over all layers of each micro-batch. With this seed no two experts are so nearly tied
    # for a token that rounding decides.
    Case(
        name="mixtral-balanced",
        family="mixtral",
        seed=20241130,
        config=LLAMA_SHAPE | {"hidden_size": 32, "intermediate_size": 24, "num_local_experts": 6,
                              "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.5},
        weight_std=0.17,
        published_form=True,
        micro_batches=3, batch=2, seq=64,
        optimizer=ten_steps(1.23),
    ),
    # Every token goes through all experts, so that rounding changes no choice, and bf16 can be compared.
    Case(
        name="mixtral-all",
        family="mixtral",
        seed=20240627,
        config=LLAMA_SHAPE | {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 24, "num_local_experts": 3,
                              "num_experts_per_tok": 3},
        weight_std=0.17,
        published_form=True,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.4),
    ),
    # Three of seven narrow experts, tied.
    Case(
        name="qwen3-moe-a",
        family="qwen3_moe",
        seed=20240626,
        config=LLAMA_SHAPE | {"hidden_size": 32, "head_dim": 10, "moe_intermediate_size": 14,
                              "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True,
                              "tie_word_embeddings": True},
        weight_std=0.17,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.35),
    ),
    # Two of five experts, whose weights do not add up to 1, a shared one behind a gate, and biases.
    Case(
        name="qwen2-moe-a",
        family="qwen2_moe",
        seed=20240628,
        config=LLAMA_SHAPE | {"hidden_size": 32, "moe_intermediate_size": 14, "shared_expert_intermediate_size": 26,
                              "num_experts": 5, "num_experts_per_tok": 2},
        weight_std=0.17,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.45),
    ),
    # Weights that do not add up to 1, and norms of all queries and keys of a token at once.
    Case(
        name="olmoe-a",
        family="olmoe",
        seed=20240627,
        config=LLAMA_SHAPE | {"hidden_size": 32, "intermediate_size": 20, "num_experts": 5,
                              "num_experts_per_tok": 2, "num_key_value_heads": 2},
        weight_std=0.17,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.31),
    ),
    # gpt-oss: sinks, biases everywhere, joined experts of alternating columns, a window in the first of two layers, YaRN.
    Case("gptoss-a", 20240701, LLAMA_SHAPE | {
        "hidden_size": 32, "intermediate_size": 24, "head_dim": 10, "num_local_experts": 5, "num_experts_per_tok": 2,
        "sliding_window": 9, "rope_parameters": {"rope_type": "yarn", "rope_theta": 150.0, "factor": 4.0, "beta_fast": 8.0,
                                                 "original_max_position_embeddings": 16, "truncate": False}},
        0.17, False, 2, 2, 64, ten_steps(1.6), "gpt_oss"),
    # Every token goes to all experts, so that a rounding error chooses no other ones and bf16 can be compared.
    Case("gptoss-all", 20240702, LLAMA_SHAPE | {
        "hidden_size": 32, "intermediate_size": 24, "head_dim": 10, "num_local_experts": 3, "num_experts_per_tok": 3,
        "sliding_window": 9, "vocab_size": 128},
        0.17, False, 2, 2, 64, ten_steps(1.66), "gpt_oss"),
    # Gemma 3: windows in two layers, whose rotary positions have a base of their own and no scaling.
    Case(
        name="gemma3-a",
        family="gemma3",
        seed=20240622,
        config=LLAMA_SHAPE | {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 14,
            "query_pre_attn_scalar": 20, "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}},
        weight_std=0.1,
        micro_batches=2, batch=2, seq=48,
        optimizer=ten_steps(1.698),
    ),
    # BLOOM, with heads whose number is no power of two.
    Case(
        name="bloom-a",
        family="bloom",
        seed=20241128,
        config={"vocab_size": 256, "hidden_size": 48, "n_head": 6, "n_layer": 2},
        weight_std=0.14,
        published_form=True,
        micro_batches=2, batch=2, seq=64,
        optimizer=ten_steps(1.05),
    ),
    # Packed documents, with learned positions.
    Case(
        name="gpt2-documents",
        seed=20240619,
        config={"vocab_size": 128, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 72},
        weight_std=0.17,
        micro_batches=3, batch=2, seq=72,
        optimizer=ten_steps(0.78),
        documents=3,
    ),
    # Packed documents, with rotary positions and a window that is shorter than some of them.
    Case(
        name="mistral-documents",
        family="mistral",
        seed=20240620,
        config=LLAMA_SHAPE | {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "sliding_window": 11,
                              "max_position_embeddings": 140},
        weight_std=0.17,
        micro_batches=2, batch=2, seq=140,
        optimizer=ten_steps(1.105),
        documents=5,
    ),
)


# --- Writing ---------------------------------------------------------------------------------------------------------


def rounded(value):
    """Nine significant digits, which identify a float32."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def write_json(path, content):
    """One line a field, and one line an entry of a list of objects or lists, so that differences can be read."""

    def compact(value):
        return json.dumps(rounded(value), separators=(",", ":"), allow_nan=False)

    def field(value):
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            return "[\n" + ",\n".join(compact(item) for item in value) + "\n]"
        return compact(value)

    lines = [f"{json.dumps(key)}:{field(value)}" for key, value in content.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path}: {path.stat().st_size:,} bytes")


def versions():
    return {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": numpy.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability()}


def splitmix64(values):
    """The output of the SplitMix64 generator in state `values` (uint64 array), element by element."""
    z = values + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


# --- Models ----------------------------------------------------------------------------------------------------------


def make_model(case, generator):
    """A model whose every parameter is random, so that no bias is zero and no scale is one."""
    family = FAMILIES[case.family]
    config = family.config(**case.config, **family.settings, bos_token_id=None, eos_token_id=None)
    model = family.model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(case.weight_std * noise)
            elif (".ln_" in name or "norm" in name) and name.endswith(".weight"):
                parameter.copy_(norm_centre(config) + 0.1 * noise)
            else:
                parameter.copy_(0.05 * noise)
    return model


def save_model(case, model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tensors = {name: tensor.detach().contiguous()
               for name, tensor in as_saved(model.config, dict(model.named_parameters())).items()}
    if case.published_form and case.family == "gpt2":
        positions = case.config["n_positions"]
        mask = torch.tril(torch.ones(positions, positions)).reshape(1, 1, positions, positions)
        tensors = {name.removeprefix(case.prefix): tensor for name, tensor in tensors.items()}
        tensors |= {f"h.{layer}.attn.bias": mask.clone() for layer in range(case.config["n_layer"])}
    elif case.published_form and case.family == "bloom":
        tensors = {name.removeprefix(case.prefix): tensor for name, tensor in tensors.items()}
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config |= {"n_embed": config.pop("hidden_size"), "num_attention_heads": config.pop("n_head"), "n_inner": None,
                   "masked_softmax_fusion": True, "offset_alibi": 100, "seq_length": 2048, "skip_bias_add": True,
                   "skip_bias_add_qkv": False, "bias_dropout_fusion": True, "attention_softmax_in_fp32": True}
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    elif case.published_form:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["rope_scaling"] = config.pop("rope_parameters")
        config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def make_tokens(case, generator):
    """[step, micro-batch, sequence, seq+1] tokens in which the next can mostly be guessed from the one before."""
    vocab = case.config["vocab_size"]
    shape = (case.optimizer.steps, case.micro_batches, case.batch)
    tokens = torch.empty(*shape, case.seq + 1, dtype=torch.int64)
    tokens[..., 0] = torch.randint(vocab, shape, generator=generator)
    for position in range(1, case.seq + 1):
        follow = (5 * tokens[..., position - 1] + 17 + torch.randint(3, shape, generator=generator)) % vocab
        jump = torch.randint(vocab, shape, generator=generator)
        tokens[..., position] = torch.where(torch.rand(shape, generator=generator) < 0.1, jump, follow)
    return tokens


def make_document_starts(case, generator):
    """[step][micro-batch][sequence]: where each of the sequence's documents begins, or None where there are none.

    As many in every sequence, so that as many targets have a loss in every micro-batch.
    """
    if case.documents == 0:
        return None

    def sequence():
        return [0, *sorted((1 + torch.randperm(case.seq - 1, generator=generator)[:case.documents - 1]).tolist())]

    return [[[sequence() for _ in range(case.batch)] for _ in range(case.micro_batches)]
            for _ in range(case.optimizer.steps)]


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    tokens: torch.Tensor  # [sequence, seq+1]
    starts: list | None  # of each sequence's documents

    def targets(self):
        targets = self.tokens[:, 1:].clone()
        for row, starts in zip(targets, self.starts or []):
            row[torch.tensor(starts[1:]) - 1] = IGNORED
        return targets

    def inputs(self, window, dtype):
        """Documents are told by a mask of what each token sees, and by positions that begin anew."""
        inputs = {"input_ids": self.tokens[:, :-1], "use_cache": False}
        if self.starts is None:
            return inputs
        place = torch.arange(self.tokens.shape[1] - 1)
        begin = torch.stack([torch.tensor([max(s for s in starts if s <= t) for t in place]) for starts in self.starts])
        query, key = place[:, None], place[None, :]
        seen = (key <= query) & (key > query - window) & (key >= begin[:, :, None])
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        return inputs | {"position_ids": place - begin, "attention_mask": mask[:, None]}

    def alone(self):
        """Each document as a micro-batch of its own; a target in the next document is none."""
        for row, starts in zip(self.tokens, self.starts):
            for begin, end in zip(starts, [*starts[1:], len(row)]):
                if end - begin > 1:
                    yield MicroBatch(row[None, begin:end], None)


def micro_batches_of(tokens, starts):
    """[step][micro-batch] of all tokens."""
    return [[MicroBatch(part, starts and starts[s][m]) for m, part in enumerate(step)] for s, step in enumerate(tokens)]


class Run:
    """Trains a copy of the model in a compute type, with master parameters in fp32, or fp64 for fp64."""

    def __init__(self, case, folder, dtype):
        self.case = case
        # Eager, as grouped products of experts do not exist in fp64.
        self.model = FAMILIES[case.family].model.from_pretrained(folder, dtype=torch.float32,
                                                                 experts_implementation="eager")
        self.model.eval()
        master_type = torch.float64 if dtype == torch.float64 else torch.float32
        self.master = {name.removeprefix(case.prefix): parameter.detach().to(master_type).clone()
                       for name, parameter in self.model.named_parameters()}
        self.model.to(dtype)
        self.compute = {name.removeprefix(case.prefix): parameter for name, parameter in self.model.named_parameters()}
        o = case.optimizer
        groups = [{"params": [p for name, p in self.master.items() if decays(name, p) == decayed],
                   "weight_decay": o.weight_decay if decayed else 0.0} for decayed in (True, False)]
        self.adamw = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, foreach=False)

    def result(self, micro_batch):
        window = self.case.config.get("sliding_window", self.case.seq)
        return self.model(**micro_batch.inputs(window, self.model.dtype))

    def logits(self, micro_batch):
        return self.result(micro_batch).logits

    def gradients(self, micro_batches):
        """Leaves the mean gradient of the micro-batches in the masters; returns the mean loss, without the balancing
        loss of experts, whose mean is left in self.balance."""
        total, self.balance = 0.0, 0.0
        for parameter in self.master.values():
            parameter.grad = torch.zeros_like(parameter)
        for micro_batch in micro_batches:
            result = self.result(micro_batch)
            logits = result.logits.float() if result.logits.dtype == torch.bfloat16 else result.logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), micro_batch.targets().flatten())
            all_losses = loss
            if self.case.config.get("output_router_logits"):
                all_losses = loss + self.model.config.router_aux_loss_coef * result.aux_loss
                self.balance += result.aux_loss.item() / len(micro_batches)
            self.model.zero_grad()
            (all_losses / len(micro_batches)).backward()
            for name, parameter in self.master.items():
                parameter.grad += self.compute[name].grad.to(parameter.dtype)
            total += loss.item()
        return total / len(micro_batches)

    def update(self, step):
        """Clips, updates the masters and refreshes the compute parameters; returns the norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(list(self.master.values()), self.case.optimizer.clip, foreach=False)
        for group in self.adamw.param_groups:
            group["lr"] = self.case.optimizer.rate(step)
        self.adamw.step()
        with torch.no_grad():
            for name, parameter in self.master.items():
                self.compute[name].copy_(parameter)
        return norm.item()

    def train(self, all_micro_batches):
        """Returns each step's loss and gradient norm, the first step's gradients and the last weights."""
        losses, norms, self.balances, first = [], [], [], None
        for step, micro_batches in enumerate(all_micro_batches, start=1):
            losses.append(self.gradients(micro_batches))
            self.balances.append(self.balance)
            first = first or self.saved({name: p.grad.clone() for name, p in self.master.items()})
            norms.append(self.update(step))
        return losses, norms, first, self.saved(self.master)

    def saved(self, tensors):
        return {name: t.detach().double() for name, t in as_saved(self.model.config, tensors).items()}


def logit_samples(runs, micro_batches, generator):
    """Logits of the initial weights at random places of the first step's batch."""
    sampled = {name: torch.stack([run.logits(m).detach().double() for m in micro_batches])
               for name, run in runs.items()}
    sizes = sampled["f32"].shape
    at = torch.stack([torch.randint(size, (LOGIT_SAMPLES,), generator=generator) for size in sizes], dim=1)
    values = {name: all_logits[tuple(at.T)].tolist() for name, all_logits in sampled.items()}
    return {"at": at.tolist(), **values}


def projections(tensor):
    """Dot products with the sign vectors given by bits 0, 1, ... of splitmix64(index): bit set means minus."""
    flat = tensor.double().flatten().numpy()
    bits = splitmix64(numpy.arange(flat.size, dtype=numpy.uint64))
    signs = (1.0 - 2.0 * ((bits >> numpy.uint64(k)) & numpy.uint64(1)).astype(numpy.float64)
             for k in range(PROJECTIONS))
    return [float(numpy.dot(flat, sign)) for sign in signs]


def undetermined(case, name, count):
    """The runs of elements, begin and end of each, whose gradient is zero in exact arithmetic: softmax ignores what the key biases add to a row.

    AdamW turns the rounding errors there into steps of any sign, which change nothing that the model computes.
    """
    if name.endswith("query_key_value.bias"):  # head by head
        head = count // 3 // case.config["n_head"]
        return [bound for begin in range(head, count, 3 * head) for bound in (begin, begin + head)]
    return [count // 3, 2 * count // 3] if name.endswith("c_attn.bias") else [0, 0]


def tensor_record(case, name, initial, first, final, generator):
    """Returns the kept parts of a tensor: norms, projections and samples of its first gradient and of its last value."""
    bounds = undetermined(case, name, initial.numel())
    determined = torch.ones(initial.numel(), dtype=torch.float64)
    for begin, end in zip(bounds[::2], bounds[1::2]):
        determined[begin:end] = 0
    candidates = determined.nonzero().flatten()
    at = candidates[torch.randperm(len(candidates), generator=generator)[:SAMPLES]].sort().values
    grad, truth = first["f32"][name], first["f64"][name]
    initial, weight, weight64, weight_bf16 = (
        tensor * determined.reshape(tensor.shape) for tensor in (initial, *(final[t][name] for t in TYPES)))
    return {
        "name": name,
        "shape": list(initial.shape),
        "at": at.tolist(),
        "undetermined": bounds,
        "grad_norm": grad.norm().item(),
        "grad_projections": projections(grad),
        "grad": grad.flatten()[at].tolist(),
        "grad_norm64": truth.norm().item(),
        "grad_projections64": projections(truth),
        "grad_error": ((grad - truth).norm() / truth.norm()).item(),
        "grad_error_bf16": ((first["bf16"][name] - truth).norm() / truth.norm()).item(),
        "weight_norm": weight.norm().item(),
        "weight_change": (weight - initial).norm().item(),
        "weight_projections": projections(weight),
        "weight": weight.flatten()[at].tolist(),
        "weight_error": (weight - weight64).norm().item(),
        "weight_error_bf16": (weight_bf16 - weight64).norm().item(),
    }


def check_documents(case, run, micro_batch):
    """Packed documents must have the losses that transformers gives to each of them alone."""

    def loss_sum(part):
        return torch.nn.functional.cross_entropy(run.logits(part).flatten(0, 1), part.targets().flatten(),
                                                 reduction="sum").item()

    packed, alone = loss_sum(micro_batch), sum(loss_sum(part) for part in micro_batch.alone())
    if not abs(packed - alone) <= 1e-9 * alone:
        raise SystemExit(f"{case.name}: a packed micro-batch has a loss of {packed}, its documents alone {alone}")


def check_steps(case, losses, norms):
    """The golden run must exercise what it is for, and be well enough conditioned to be a target."""
    clipped = sum(norm > case.optimizer.clip for norm in norms["f32"])
    drift = max(abs(a - b) / b for a, b in zip(losses["f32"], losses["f64"]))
    print(f"{case.name}: loss {losses['f32'][0]:.4f} -> {losses['f32'][-1]:.4f}, {clipped} of {len(norms['f32'])} "
          f"steps clipped, fp32 to fp64 loss {drift:.1e}")
    if not 3 <= clipped <= len(norms["f32"]) - 3:
        raise SystemExit(f"{case.name}: {clipped} steps clip; choose a learning rate with some that do and some not")
    if drift > 2e-6:
        raise SystemExit(f"{case.name}: fp32 and fp64 losses differ by {drift:.1e}; choose a smaller learning rate")


def model_golden(case, out):
    generator = torch.Generator().manual_seed(case.seed)
    folder = out / case.name
    save_model(case, make_model(case, generator), folder)
    tokens, starts = make_tokens(case, generator), make_document_starts(case, generator)
    micro_batches = micro_batches_of(tokens, starts)
    runs = {name: Run(case, folder, dtype) for name, dtype in TYPES.items()}
    initial = {name: p.clone() for name, p in runs["f32"].saved(runs["f32"].master).items()}
    if starts:
        check_documents(case, runs["f64"], micro_batches[0][0])
    logits = logit_samples(runs, micro_batches[0], generator)
    results = {name: run.train(micro_batches) for name, run in runs.items()}
    losses, norms, first, final = ({name: result[i] for name, result in results.items()} for i in range(4))
    check_steps(case, losses, norms)
    steps = [{"lr": case.optimizer.rate(i + 1), "loss": losses["f32"][i], "grad_norm": norms["f32"][i],
              "loss64": losses["f64"][i], "grad_norm64": norms["f64"][i], "loss_bf16": losses["bf16"][i],
              "grad_norm_bf16": norms["bf16"][i]} for i in range(case.optimizer.steps)]
    if case.config.get("output_router_logits"):
        steps = [step | {"aux_loss": balance} for step, balance in zip(steps, runs["f32"].balances)]
    write_json(out / f"{case.name}.json", {
        "versions": versions(),
        "model": case.name,
        "seed": case.seed,
        "prefix": "" if case.published_form else case.prefix,
        "micro_batches": case.micro_batches,
        "batch": case.batch,
        "seq": case.seq,
        "optimizer": dataclasses.asdict(case.optimizer),
        "steps": steps,
        "tensors": [tensor_record(case, name, initial[name], first, final, generator) for name in initial],
        "logits": logits,
        "tokens": tokens.tolist(),
    } | ({"document_starts": starts} if starts else {}))


# --- The update ------------------------------------------------------------------------------------------------------

# The power of two that bounds the gradients of element i is class i % 8; None is an element without gradient. They
# reach from squares that are subnormal, past the optimizer's eps (2^-27), to far above what clipping would let through.
GRADIENT_EXPONENTS = (-7, 0, -14, -26, None, -66, 6, 12)
UPDATE_CASES = (
    {"name": "decay", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    {"name": "no_decay", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
)


def hashed(step, count):
    return splitmix64(numpy.arange(count, dtype=numpy.uint64) + (numpy.uint64(step) << numpy.uint64(32)))


def initial_parameters(count):
    index = numpy.arange(count)
    offset = (hashed(0, count) >> numpy.uint64(44)).astype(numpy.float32) - numpy.float32(2**19)
    around = (index // 8 % 4 == 3).astype(numpy.float32)
    return around + offset * numpy.float32(2.0**-23)


def gradient_scales(count):
    scales = [0.0 if e is None else 2.0 ** (e - 23) for e in GRADIENT_EXPONENTS]
    return numpy.asarray(scales, dtype=numpy.float32)[numpy.arange(count) % len(scales)]


def gradients(step, scales):
    bits = hashed(step, scales.size)
    mantissa = (bits >> numpy.uint64(40)).astype(numpy.float32) - numpy.float32(2**23)
    return numpy.where((bits & numpy.uint64(15)) == 0, numpy.float32(0), mantissa * scales)


def update_rate(step):
    return (1 + step % 64) * 2.0**-16


def run_update(case, count):
    parameter = torch.from_numpy(initial_parameters(count))
    adamw = torch.optim.AdamW([parameter], betas=(case["beta1"], case["beta2"]), eps=case["eps"],
                              weight_decay=case["weight_decay"], foreach=False)
    scales = gradient_scales(count)
    for step in range(1, UPDATE_STEPS + 1):
        parameter.grad = torch.from_numpy(gradients(step, scales))
        adamw.param_groups[0]["lr"] = update_rate(step)
        adamw.step()
    state = adamw.state[parameter]
    return parameter.numpy(), state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()


def update_record(case, count):
    parameter, m, v = run_update(case, count)
    samples = min(count, UPDATE_SAMPLES if case["weight_decay"] else UPDATE_SAMPLES // 4)
    at = numpy.arange(samples) * (count - 1) // max(samples - 1, 1)
    sums = numpy.add.reduceat(parameter.astype(numpy.float64), numpy.arange(0, count, GRAIN_ELEMS))
    return {**case, "length": count, "samples": samples, "grain_sums": sums.tolist(),
            "p": parameter[at].tolist(), "m": m[at].tolist(), "v": v[at].tolist()}


def update_golden(out):
    runs = [update_record(case, count) for case in UPDATE_CASES for count in UPDATE_LENGTHS]
    write_json(out / "update.json", {"versions": versions(), "steps": UPDATE_STEPS, "grain_elems": GRAIN_ELEMS,
                                     "runs": runs})


# --- The sampler -----------------------------------------------------------------------------------------------------


def probabilities(case, swapped=False):
    """The probabilities that transformers' warpers leave of the logits, in the order of its generate(): temperature,
    top-k, top-p, min-p."""
    scores = torch.tensor([case["logits"]], dtype=torch.float32)
    steps = [TemperatureLogitsWarper(case["temperature"])]
    steps += [TopKLogitsWarper(case["top_k"])] if case["top_k"] else []
    last = [TopPLogitsWarper(case["top_p"])] if case["top_p"] < 1 else []
    last += [MinPLogitsWarper(case["min_p"])] if case["min_p"] else []
    for step in steps + (last[::-1] if swapped else last):
        scores = step(None, scores)
    return [round(value, 6) for value in torch.softmax(scores, -1)[0].tolist()]


def sampler_golden(out):
    draw, cases = random.Random(3), []
    fixed = [[1.0, 3.0, 1.0, 2.0, 1.0, 1.0], [0.0] * 6]
    while len(cases) < 40:
        number = len(cases)
        logits = fixed[number // 2] if number % 2 == 0 and number // 2 < len(fixed) else [round(draw.uniform(-2, 2), 3) for _ in range(9)]
        case = {"temperature": draw.choice((1.0, 0.7, 1.6)), "top_k": draw.choice((0, 0, 4, 6)),
                "top_p": draw.choice((1, 0.9, 0.6, 0.35)), "min_p": draw.choice((0, 0.1, 0.2, 0.45)), "logits": logits}
        left = probabilities(case)
        # Half of the cases are those in which the order of top-p and min-p matters.
        if number % 2 == 0 or left != probabilities(case, swapped=True):
            cases.append({**case, "probabilities": left})
    path = out / "sampler.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{path}: {len(cases)} cases")


# --- Tokenizers ------------------------------------------------------------------------------------------------------

# Small tokenizers, trained on the text of the LICENSE, and the ids that the package gives awkward texts. Each file is
# {"tokenizer": what a tokenizer.json holds, "cases": [{"text", "bytes", "ids", "decoded"}...]}: `bytes` in hexadecimal
# where the text is not UTF-8; `special` where special tokens in the text are taken for these; `whole` where the template
# is put around it.

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
SCRIPTS = "naïve café Žluťoučký Ελληνικά русский язык עברית العربية हिन्दी ภาษาไทย 日本語 中文 한국어 "


def split(pattern, marked=False):
    """Where `marked` is set, a space before each piece shows in the ids where the text was cut."""
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=marked, use_regex=False),
    ])


def byte_level(text, size, pre, normalizer=None, special=("<|end|>", "<|turn|>"), ignore_merges=False):
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def metaspace(text, size, legacy):
    """Llama 2's pipeline: spaces become U+2581, characters that no token has become the tokens of their bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=80,
                                  special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)])
    tokenizer.train_from_iterator([text], trainer)
    json_text = json.loads(tokenizer.to_str())
    json_text["added_tokens"] = json_text["added_tokens"][:3]
    if legacy:
        json_text["pre_tokenizer"] = None
        json_text["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    else:
        json_text["pre_tokenizer"]["split"] = False
    json_text["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(json_text))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def gemma(text, size):
    """Gemma's pipeline: Llama 2's without a space in front, with runs of lines and of spaces as added tokens."""
    json_text = json.loads(metaspace(text, size, legacy=True).to_str())
    json_text["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    json_text["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                  "invert": False}
    json_text["decoder"]["decoders"].pop()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(json_text))
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in ("\n\n", "\u2581\u2581", "\t")])
    return tokenizer


# Letters, digits, marks, punctuation and symbols of Unicode 15 and 16, a code point of 17, and one that 16 moved.
NEW = ("\u1c89\u1c8a \ua7cb\ua7dc \U00031350\U000323af \U00010d40\U00010d49 \u0897a\u0897 \u0cf3 \u1b4e\u1b7f \U0001fae9 "
       "\u2427 \U00016100\U0001611e \U0001ccf0\U0001ccf9 \U00011de0 \U0001171e \U0002ebf0x \U0001d2c0 \U00010ec2.")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Constructs that Oniguruma has in another form than PCRE2, one after the other.
SYNTAX = (r"\h{2,}|\b\w{,2}\d(?!\W)|^#.|;$|(?m:q.)|[a-f[x-z]&&[^b]]+(?<n>!)|\R|[[:space:]]{2}|\x{e9}|\u00df|[\v\f]|a++b|\P{Cn}\Z"
          r"|(?i:k)|(?<=~)\D")


def awkward_texts(special):
    rng = random.Random(5)
    texts = ["", " ", "  ", "Hello, world!", "  two  spaces ", "it's IT'S it\u017f 'Re \u2019s", "1234567 3.14 \u00bd \u2167",
             "line\n\nline\r\n\ttab  \n ", SCRIPTS, "e\u0301 \u00e9 \ufb01 \u212b \u1100\u1161\u11a8 \uac01 \u32ff \U0001fbf7",
             "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u270a\U0001f3ff", "a\x00b\x07\x1f\x7f", "\u180e\u2003x\u3000\u2028",
             "\u2581\u2581 \u2581a", "word" * 40, "ab" * 100, " " * 90 + "x", f"a {special} b{special}{special} c",
             "wordy Wordy xword word-word word", "trim \n me", "the end of the text is the text"]
    texts += [NEW, NEW[::-1], "x" + NEW.replace(" ", ""), "#a ab1 12 face #b\n#c;\nq\nx!cz!  \r\n\u00e9\u00df\x0b aab K\u212a ~~x"]
    spaces = [" ", "\n", "\t", "\u00a0", "\u2003", "\r\n"]
    for _ in range(12):
        texts.append("".join(rng.choice(spaces) * rng.randrange(1, 4) if rng.random() < 0.4 else
                             "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xA0, 0x530), rng.randrange(
                                 0x4E00, 0x4E40), rng.randrange(0x1F600, 0x1F640)))) for _ in range(rng.randrange(1, 9)))
                             for _ in range(rng.randrange(2, 12))))
    broken = [b"\xff", b"a\xc3", b"\xe2\x82 x", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf\xf4\x90\x80\x80", b"ok \x80\x81 ok"]
    broken += [bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40))) for _ in range(6)]
    return texts, broken


def write_tokenizer(out, name, tokenizer, special):
    cases = []
    texts, broken = awkward_texts(special)
    inputs = [{"text": text} for text in texts] + [{"bytes": data.hex()} for data in broken]
    inputs += [{"text": text, "special": True} for text in texts if special in text]
    inputs += [{"text": text, "whole": True} for text in texts[:4]]
    for case in inputs:
        text = case["text"] if "text" in case else bytes.fromhex(case["bytes"]).decode("utf-8", "replace")
        tokenizer.encode_special_tokens = not case.get("special", False)
        case["ids"] = tokenizer.encode(text, add_special_tokens=case.get("whole", False)).ids
        case["decoded"] = tokenizer.decode(case["ids"], skip_special_tokens=False)
        cases.append(case)
    made = json.loads(tokenizer.to_str())
    path = out / "tokenizers" / f"{name}.json"
    path.write_text(json.dumps({"tokenizer": made, "cases": cases}, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path}: {tokenizer.get_vocab_size()} tokens, {len(cases)} cases, {path.stat().st_size} bytes")


def with_added(tokenizer):
    """Tokens of every kind that added_tokens has."""
    tokenizer.add_tokens([tokenizers.AddedToken("word", single_word=True, normalized=False),
                          tokenizers.AddedToken("trim", lstrip=True, rstrip=True, normalized=True),
                          tokenizers.AddedToken("\u00e9!", normalized=True)])
    return tokenizer


def tokenizers_golden(out):
    (out / "tokenizers").mkdir(exist_ok=True)
    text = (ROOT / "LICENSE").read_text() + 20 * SCRIPTS
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    write_tokenizer(out, "gpt2", byte_level(text, 400, gpt2), "<|end|>")
    write_tokenizer(out, "gpt2-prefix", byte_level(text, 300, pre_tokenizers.ByteLevel(add_prefix_space=True)), "<|end|>")
    write_tokenizer(out, "llama3", byte_level(text, 400, split(LLAMA3), ignore_merges=True), "<|turn|>")
    write_tokenizer(out, "qwen", with_added(byte_level(text, 400, split(QWEN), normalizers.NFC())), "<|turn|>")
    write_tokenizer(out, "nfkc", byte_level(text, 400, gpt2, normalizers.NFKC()), "<|end|>")
    write_tokenizer(out, "llama3-marked", byte_level(text, 300, split(LLAMA3, marked=True)), "<|end|>")
    write_tokenizer(out, "gpt4o", byte_level(text, 300, split(GPT4O, marked=True)), "<|end|>")
    write_tokenizer(out, "kimi", byte_level(text, 300, split(KIMI, marked=True)), "<|end|>")
    write_tokenizer(out, "syntax", byte_level(text, 300, split(SYNTAX, marked=True)), "<|end|>")
    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), copy.deepcopy(gpt2)])
    write_tokenizer(out, "smollm", byte_level(text, 400, smollm), "<|end|>")
    write_tokenizer(out, "llama2", metaspace(text, 500, legacy=True), "</s>")
    write_tokenizer(out, "mistral", metaspace(text, 500, legacy=False), "</s>")
    write_tokenizer(out, "gemma", gemma(text, 400), "</s>")


def main():
    parts = {case.name: lambda out, case=case: model_golden(case, out) for case in CASES}
    parts |= {"update": update_golden, "sampler": sampler_golden, "tokenizers": tokenizers_golden}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where to write (default: tests/data)",
                        default=ROOT / "tests" / "data")
    parser.add_argument("--only", choices=parts, help="make one part only (default: all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, make in parts.items():
        if arguments.only in (None, name):
            make(arguments.out)


if __name__ == "__main__":
    main()
