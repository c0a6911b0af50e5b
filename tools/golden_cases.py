"""The models that tools/golden.py makes golden files of: their families, shapes, batches and optimizers."""

import dataclasses
import math

import transformers


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
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model's shape, how its file is written, and the batches that it is trained on."""

    name: str
    seed: int
    config: dict
    weight_std: float  # large enough that some steps clip
    # As files were first published: GPT-2's without the prefix and with causal masks, the others' rope_theta and
    # rope_scaling apart.
    published_form: bool
    micro_batches: int
    batch: int
    seq: int
    optimizer: Optimizer
    family: str = "gpt2"
    documents: int = 0  # packed into each sequence; 0: a sequence is text without documents

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
        published_form=False,
        micro_batches=3,
        batch=2,
        seq=64,
        optimizer=Optimizer(),
    ),
    Case(
        name="gpt2-b",
        seed=20240602,
        config={"vocab_size": 515, "n_embd": 52, "n_head": 4, "n_layer": 3, "n_positions": 41, "n_inner": 72,
                "activation_function": "gelu", "layer_norm_epsilon": 1e-6},
        weight_std=0.1,
        published_form=True,
        micro_batches=2,
        batch=3,
        seq=33,
        optimizer=Optimizer(lr=2e-3, min_lr=1e-4),
    ),
    # Llama 2: as many key heads as heads, own output table.
    Case(
        name="llama-a",
        family="llama",
        seed=20240603,
        config=LLAMA_SHAPE | {"num_key_value_heads": 4, "rms_norm_eps": 1e-5},
        weight_std=0.14,
        published_form=False,
        micro_batches=3,
        batch=2,
        seq=64,
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
        micro_batches=2,
        batch=3,
        seq=53,
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
        published_form=False,
        micro_batches=1,
        batch=1,
        seq=4200,
        optimizer=ten_steps(1.2),
    ),
    Case(
        name="mistral-a",
        family="mistral",
        seed=20240606,
        config=LLAMA_SHAPE | {"sliding_window": 9, "head_dim": 14, "max_position_embeddings": 200,
                              "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        weight_std=0.14,
        published_form=False,
        micro_batches=2,
        batch=2,
        seq=150,
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
        published_form=False,
        micro_batches=3,
        batch=2,
        seq=64,
        optimizer=ten_steps(1.55),
    ),
    Case(
        name="qwen3-a",
        family="qwen3",
        seed=20240618,
        config=LLAMA_SHAPE | {"head_dim": 32, "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}},
        weight_std=0.12,
        published_form=False,
        micro_batches=2,
        batch=3,
        seq=60,
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
        published_form=False,
        micro_batches=2,
        batch=2,
        seq=64,
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
        micro_batches=2,
        batch=2,
        seq=64,
        optimizer=ten_steps(1.55),
    ),
    # Packed documents, with learned positions.
    Case(
        name="gpt2-documents",
        seed=20240619,
        config={"vocab_size": 128, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 72},
        weight_std=0.17,
        published_form=False,
        micro_batches=3,
        batch=2,
        seq=72,
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
        published_form=False,
        micro_batches=2,
        batch=2,
        seq=140,
        optimizer=ten_steps(1.105),
        documents=5,
    ),
)
