"""Tiny random networks of many kinds behind the torch adapter."""

from __future__ import annotations

import torch
import transformers

from engine.models.torch_model import TorchModel
from engine.tokens import Vocabulary
from engine.trace import ModelFacts
from tests.scripted import letters

torch.set_num_threads(1)
WIDTH = 50
SHAPE = dict(vocab_size=WIDTH, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
PARTIAL = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
LEAN = {  # what the lean pass must take
    "grouped queries, tied": ("Llama", {}),
    "untied": ("Llama", dict(tie_word_embeddings=False)),
    "every head its own keys": ("Llama", dict(num_key_value_heads=4)),
    "one key head": ("Llama", dict(num_key_value_heads=1)),
    "wide heads": ("Llama", dict(head_dim=16)),
    "llama3 rope": ("Llama", dict(rope_parameters=LLAMA3)),
    "linear rope": ("Llama", dict(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0})),
    "a partial turn, which Llama ignores": ("Llama", dict(rope_parameters=PARTIAL)),
    "mistral": ("Mistral", dict(sliding_window=None, head_dim=8)),
    "qwen2 with bias": ("Qwen2", dict(use_sliding_window=False)),
}
OTHER = {  # what it must leave to transformers
    "sliding window": ("Mistral", dict(sliding_window=8, head_dim=8)),
    "sliding and full layers": ("Gemma2", dict(sliding_window=8, head_dim=8, query_pre_attn_scalar=8,
                                               layer_types=["sliding_attention", "full_attention"])),
    "qwen2 with a window": ("Qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=0)),
    "other activation": ("Llama", dict(hidden_act="gelu")),
    "bias on the way out": ("Llama", dict(attention_bias=True)),
    "bias in the mlp": ("Llama", dict(mlp_bias=True)),
    "normed keys": ("Qwen3", dict(head_dim=8)),
    "learned positions": ("GPT2", dict(n_embd=32, n_layer=2, n_head=4, n_positions=512, n_inner=64)),
}


def network(kind: str, seed: int = 0, **config):
    """A random network; weights × 3, so that near-ties are rare, and biases that are not zero."""
    made = getattr(transformers, f"{kind}Config")(**({**SHAPE, **config} if kind != "GPT2" else
                                                     dict(vocab_size=WIDTH, bos_token_id=None, eos_token_id=None, pad_token_id=0, **config)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = transformers.AutoModelForCausalLM.from_config(made).float().eval().requires_grad_(False)
        for name, parameter in net.named_parameters():
            parameter.mul_(3)
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)
    return net


def model(net, ends=(), support=None, context=512, vocabulary: Vocabulary | None = None) -> TorchModel:
    usable = WIDTH if support is None else len(support)
    facts = ModelFacts(
        name="tiny", title="Tiny", path="", revision=None, architecture=type(net).__name__, layers=2, width=32, parameters=1,
        flops_per_token=2,
        vocabulary=usable, context=context, tied_head=True, weights="", backend="torch", backend_version=torch.__version__, device="cpu",
        asked_device="cpu", dtype="float32", asked_dtype="float32", bytes=0)
    return TorchModel(net, facts, vocabulary or letters(WIDTH), tuple(ends), {}, torch.device("cpu"), support)


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, WIDTH, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


@torch.inference_mode()
def fresh(net, ids) -> torch.Tensor:
    """Logits of every position by a forward without any cache."""
    return net(torch.tensor([list(ids)]), use_cache=False).logits[0].float()
