"""A lean forward pass for Llama-shaped networks: the same weights as the transformers module, less Python per token.

One token through thirty layers costs more in calls than a small model can afford, so each layer is about twenty calls:
query, key and value in one product, gate and up in one, keys and values written in place into a cache allocated
once. The transformers module keeps its parameters as views of the fused tensors: no weight exists twice. `fuse`
compares both passes on a probe and says no if they disagree, so anything unusual runs through transformers instead.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
PROBE = (1, 5, 3, 2, 7, 4, 6)  # ids every vocabulary has


class Layer(NamedTuple):
    norm1: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


class Llama(NamedTuple):
    """Weights and shape. `rotary` maps positions (n,) to cos and sin, each (n, head)."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    heads: int
    kv_heads: int
    head_size: int
    eps: float
    rotary: nn.Module


def fuse(network: nn.Module, rows: int | None = None) -> Llama | None:
    """The lean form of a transformers network, or None if it is not plainly Llama-shaped.

    rows: how many rows of the head are ever scored (a draft with a stored map gives the last one up).
    """
    config = network.config
    if type(network).__name__ not in FAMILIES or getattr(config, "hidden_act", "") != "silu":
        return None
    if config.rope_parameters.get("rope_type", "default") not in ("default", "linear", "llama3"):
        return None
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return None
    layers = []
    for layer in network.model.layers:
        a, m = layer.self_attn, layer.mlp
        linears = (a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj)
        if any(type(linear) is not nn.Linear for linear in linears) or any(linear.bias is not None for linear in linears[3:]):
            return None
        bias = None if a.q_proj.bias is None else _shared(a.q_proj, a.k_proj, a.v_proj, name="bias")
        layers.append(Layer(layer.input_layernorm.weight.data, _shared(a.q_proj, a.k_proj, a.v_proj), bias, a.o_proj.weight.data,
                            layer.post_attention_layernorm.weight.data, _shared(m.gate_proj, m.up_proj), m.down_proj.weight.data))
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    lean = Llama(network.model.embed_tokens.weight.data, tuple(layers), network.model.norm.weight.data, network.lm_head.weight.data[:rows],
                 config.num_attention_heads, config.num_key_value_heads, head_size, config.rms_norm_eps, network.model.rotary_emb)
    return lean if _agrees(lean, network) else None


def _shared(*linears: nn.Linear, name: str = "weight") -> Tensor:
    """One tensor of all rows; the linears' own parameters become views of it."""
    fused = torch.cat([getattr(linear, name).data for linear in linears])
    at = 0
    for linear in linears:
        rows = getattr(linear, name).shape[0]
        getattr(linear, name).data = fused[at : at + rows]
        at += rows
    return fused


@torch.inference_mode()
def _agrees(lean: Llama, network: nn.Module) -> bool:
    """Whether a prompt and a further token score as in transformers, up to the rounding of the weights' precision."""
    ids = torch.tensor(PROBE, device=lean.embedding.device) % min(lean.embedding.shape[0], 10_000)
    want = network(ids[None]).logits[0, :, : lean.head.shape[0]].float()
    session = LlamaSession(lean, 16)
    got = torch.cat([session.feed(ids[:-2], len(ids) - 2), session.feed(ids[-2:], 2)])
    scale = want.std().clamp(min=1e-6)
    allowed = 1e-3 if lean.embedding.dtype == torch.float32 else 0.15
    return bool((got - want).abs().amax() <= allowed * scale)


class LlamaSession:
    """One text read by a lean network. The cache is two tensors (layers, kv heads, capacity, head)."""

    def __init__(self, lean: Llama, capacity: int):
        self.lean, self.length = lean, 0
        self._grow(max(capacity, 16))

    def _grow(self, capacity: int) -> None:
        m = self.lean
        fresh = [m.embedding.new_empty(len(m.layers), m.kv_heads, capacity, m.head_size) for _ in range(2)]
        if self.length:
            for new, old in zip(fresh, (self.keys, self.values)):
                new[:, :, : self.length] = old[:, :, : self.length]
        self.keys, self.values = fresh
        self.capacity = capacity
        positions = torch.arange(capacity, device=m.embedding.device)[None]
        cos, sin = m.rotary(m.embedding[:1, None], positions)
        half = m.head_size // 2
        self._cos = cos[0][:, None].contiguous()
        self._sin = torch.cat((-sin[0][:, :half], sin[0][:, half:]), -1)[:, None].contiguous()  # sign of the swapped half

    def feed(self, ids: Tensor, last: int) -> Tensor | None:
        """ids (n,) on the device → float32 logits (last, width), or None. See `engine.models.base.Session`."""
        m, start, n = self.lean, self.length, len(ids)
        end = start + n
        if end > self.capacity:
            self._grow(max(end + 64, 2 * self.capacity))
        cos, sin = self._cos[start:end], self._sin[start:end]
        turned, half, group = m.heads + m.kv_heads, m.head_size // 2, m.heads // m.kv_heads
        mask = None
        if n > 1 and start:
            # Row r is query r // group: a group of query heads shares a key head, so the group is laid along the queries.
            seen = torch.arange(end, device=ids.device)[None] <= torch.arange(start, end, device=ids.device)[:, None]
            mask = seen.repeat_interleave(group, 0)
        x = F.embedding(ids, m.embedding)
        width = (x.shape[-1],)
        for keys, values, w in zip(self.keys.unbind(), self.values.unbind(), m.layers):
            qkv = F.linear(F.rms_norm(x, width, w.norm1, m.eps), w.qkv, w.qkv_bias).view(n, -1, m.head_size)
            qk = qkv[:, :turned]
            qk = torch.addcmul(qk * cos, torch.cat((qk[..., half:], qk[..., :half]), -1), sin)
            keys[:, start:end] = qk[:, m.heads :].transpose(0, 1)
            values[:, start:end] = qkv[:, turned:].transpose(0, 1)
            k, v = keys[None, :, :end], values[None, :, :end]
            if n > 1 and not start:
                a = F.scaled_dot_product_attention(qk[None, :, : m.heads].transpose(1, 2), k, v, is_causal=True, enable_gqa=group > 1)
                a = a[0].transpose(0, 1).reshape(n, -1)
            else:
                q = qk[:, : m.heads].view(n, m.kv_heads, group, -1).transpose(0, 1).reshape(1, m.kv_heads, n * group, -1)
                a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                a = a.view(m.kv_heads, n, group, -1).transpose(0, 1).reshape(n, -1)
            x = x + F.linear(a, w.out)
            gate, up = F.linear(F.rms_norm(x, width, w.norm2, m.eps), w.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w.down)
        self.length = end
        if not last:
            return None
        return F.linear(F.rms_norm(x[n - last :], width, m.norm, m.eps), m.head).float()

    def rewind(self, count: int) -> None:
        self.length -= count

    def close(self) -> None:
        self.keys = self.values = None
