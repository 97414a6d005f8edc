"""Tiny random networks of many kinds saved as folders, which both engines load."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.models import registry
from tests.networks import LLAMA3
from tests.scripted import letters

WIDTH = 50
SHAPE = dict(vocab_size=WIDTH, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=8, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0)
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 128}
LONG = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 128}
ALTERNATING = ["sliding_attention", "full_attention"]
KINDS = {  # each leaves mlx-lm something to misread
    "untied, which is a default": ("Llama", {}),
    "tied": ("Llama", dict(tie_word_embeddings=True)),
    "another RoPE base": ("Llama", dict(rope_parameters={"rope_type": "default", "rope_theta": 500.0})),
    "llama3 rope": ("Llama", dict(rope_parameters=LLAMA3)),
    "linear rope": ("Llama", dict(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0})),
    "yarn": ("Llama", dict(rope_parameters=YARN)),
    "longrope": ("Phi3", dict(original_max_position_embeddings=128, rope_parameters=LONG)),
    "a turn of half the head": ("Phi", dict(partial_rotary_factor=0.5)),
    "biases": ("Qwen2", dict(use_sliding_window=False)),
    "normed keys": ("Qwen3", {}),
    "a scale and soft caps of its own": ("Gemma2", dict(sliding_window=512, query_pre_attn_scalar=16, attn_logit_softcapping=5.0)),
    "two RoPE bases, every second layer slides": ("Gemma3Text", dict(sliding_window=8, query_pre_attn_scalar=16, layer_types=ALTERNATING)),
    "every second layer slides, no rope elsewhere": ("Cohere2", dict(sliding_window=8, layer_types=ALTERNATING)),
    "multipliers": ("Granite", dict(attention_multiplier=0.3, embedding_multiplier=2.0, residual_multiplier=0.5, logits_scaling=3.0)),
    "experts": ("Qwen3Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1, mlp_only_layers=[])),
}
SLIDING = tuple(name for name in KINDS if "slides" in name)


def save(folder: Path, kind: str, seed: int = 0, **config) -> Path:
    """A random network in `folder`; matrices × 3, so that near-ties are rare, and biases that are not zero."""
    made = getattr(transformers, f"{kind}Config")(**{**SHAPE, **config})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        net = transformers.AutoModelForCausalLM.from_config(made).float()
        for name, parameter in net.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
            elif name.endswith(("bias", "sinks")):
                parameter.normal_(0, 0.5)
    net.save_pretrained(folder)
    letters(WIDTH).tokenizer.save_pretrained(folder)
    return folder


def gpt_oss(folder: Path) -> tuple[Path, Path]:
    """A network with learned sinks, once in transformers' names and once, its experts named and turned round, in mlx-lm's."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": True}
    theirs = save(folder / "theirs", "GptOss", sliding_window=8, num_local_experts=4, num_experts_per_tok=2, rope_parameters=yarn)
    ours = Path(shutil.copytree(theirs, folder / "ours"))
    weights = {}
    for name, tensor in load_file(theirs / "model.safetensors").items():
        if name.endswith("gate_up_proj"):
            both = tensor.transpose(1, 2)
            weights[name.replace("gate_up_proj", "gate_proj.weight")] = both[:, ::2].contiguous()
            weights[name.replace("gate_up_proj", "up_proj.weight")] = both[:, 1::2].contiguous()
        elif name.endswith("gate_up_proj_bias"):
            weights[name.replace("gate_up_proj_bias", "gate_proj.bias")] = tensor[:, ::2].contiguous()
            weights[name.replace("gate_up_proj_bias", "up_proj.bias")] = tensor[:, 1::2].contiguous()
        elif name.endswith("down_proj"):
            weights[name + ".weight"] = tensor.transpose(1, 2).contiguous()
        elif name.endswith("down_proj_bias"):
            weights[name.replace("down_proj_bias", "down_proj.bias")] = tensor
        else:
            weights[name] = tensor
    save_file(weights, ours / "model.safetensors", {"format": "pt"})
    return theirs, ours


def load(folder: Path, backend: str = "mlx", dtype: str = "float32"):
    return registry.load(str(folder), "cpu", dtype, backend)
