"""A lean forward pass for Llama-shaped networks: the same weights as the transformers module, less Python per token.

One token through thirty layers costs more in calls than a small model can afford, so each layer is about twenty calls:
query, key and value in one product, gate and up in one, keys and values written in place into a cache allocated
once. The transformers module keeps its parameters as views of the fused tensors: no weight exists twice. `fuse`
compares both passes on a probe and says no if they disagree, so anything unusual runs through transformers instead.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
FEW = 16  # rows that are a block and not a prefill
QUERIES, KEYS = 8, 64  # what a block's attention is laid out in where that makes it exact
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
    """Whether a prompt and a further block score as in transformers, up to the rounding of the weights' precision.

    In half precision two right passes part: on this probe, which no model was trained on, by 0.7 of the logits' spread at most
    and 0.11 in the mean (SmolLM2, bfloat16, each row's correlation 0.97 or more). A pass that loses its first token is off by
    4.4 and 0.88, with correlations down to 0.2.
    """
    ids = torch.tensor(PROBE, device=lean.embedding.device) % min(lean.embedding.shape[0], 10_000)
    want = network(ids[None]).logits[0, :, : lean.head.shape[0]].float()
    session = LlamaSession(lean, 16)
    got = torch.cat([session.feed(ids[:-2], len(ids) - 2), session.feed(ids[-2:], 2)])
    scale = want.std().clamp(min=1e-6)
    apart = (got - want).abs() / scale
    if lean.embedding.dtype == torch.float32:
        return bool(apart.amax() <= 1e-3)
    return bool(apart.mean() <= 0.2 and F.cosine_similarity(got - got.mean(-1, True), want - want.mean(-1, True)).amin() >= 0.95)


def _padded(n: int, like: Tensor) -> int | None:
    """Rows to pad a block of n to on a CPU; None: multiply as usual.

    In float32 with MKL, a row times a weight runs on one core, and a few rows times a weight pack the whole weight anew each
    time. The weight times 2, 4, 8 or 16 columns does neither: about 1.3 × the speed for one row and 2 × for a block.
    In half precision the weight times two columns or more adds up each of them in one order, however many they are.
    """
    if n > FEW or like.device.type != "cpu":
        return None
    if like.dtype != torch.float32:
        return max(2, n)
    return max(2, 1 << (n - 1).bit_length()) if torch.backends.mkl.is_available() else None


def _few_rows(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T, (rows, out), for contiguous x."""
    return torch.mm(weight, x.t()).t()


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a whole text: q (heads, n, head), k and v (kv heads, n, head) → (heads, n, head)."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=len(q) > len(k))[0]


class FewQueries(NamedTuple):
    """How the few queries of a block attend: over how many keys, how many rows they are, and in which shape it is worked out."""

    over: int
    rows: int
    shape: int | None  # rows at a time; None: all at once
    mask: Tensor | None  # (rows, over), added to the scores

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (1, kv heads, rows, head) over k and v (1, kv heads, keys, head) → like q."""
        if self.shape is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        parts = []
        for at in range(0, self.rows, self.shape):
            part = q[:, :, at : at + self.shape]
            part = F.pad(part, (0, 0, 0, self.shape - part.shape[2]))
            parts.append(F.scaled_dot_product_attention(part, k, v, attn_mask=self.mask[at : at + self.shape]))
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 2))[:, :, : self.rows]


class LlamaSession:
    """One text read by a lean network. The cache is two tensors (layers, kv heads, capacity, head).

    In half precision on a CPU a few rows are attended to in one shape whatever their number, QUERIES queries over a
    multiple of KEYS keys: so a block of rows scores bit for bit like single rows (measured on AVX-512 with bfloat16 units;
    `engine.decoding.guard` looks whether it holds).
    """

    def __init__(self, lean: Llama, capacity: int):
        self.lean, self.length = lean, 0
        self._one_shape = lean.embedding.device.type == "cpu" and lean.embedding.dtype != torch.float32
        self._grow(max(capacity, 16))

    def _grow(self, capacity: int) -> None:
        m = self.lean
        capacity = -(-capacity // KEYS) * KEYS
        fresh = [m.embedding.new_zeros(len(m.layers), m.kv_heads, capacity, m.head_size) for _ in range(2)]
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

    def feed(self, ids: Tensor, last: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None) -> Tensor | None:
        """ids (n,) on the device → float32 logits (last, width), or None. See `engine.models.base.Session`.

        attend: reads an empty session's first block in place of `causal`, to look on.
        """
        m, start, n = self.lean, self.length, len(ids)
        end = start + n
        if end > self.capacity:
            self._grow(max(end + 64, 2 * self.capacity))
        cos, sin = self._cos[start:end], self._sin[start:end]
        turned, half, group = m.heads + m.kv_heads, m.head_size // 2, m.heads // m.kv_heads
        few = self._few(start, n) if start or n == 1 else None
        rows = _padded(n, m.embedding)
        product = F.linear if rows is None else _few_rows
        x = F.embedding(ids, m.embedding)
        if rows:
            x = F.pad(x, (0, 0, 0, rows - n))
        mixed = x.new_zeros(rows or n, m.heads * m.head_size)
        width = (x.shape[-1],)
        for keys, values, w in zip(self.keys.unbind(), self.values.unbind(), m.layers):
            qkv = product(F.rms_norm(x, width, w.norm1, m.eps), w.qkv)[:n]
            if w.qkv_bias is not None:
                qkv = qkv + w.qkv_bias
            qkv = qkv.reshape(n, -1, m.head_size)
            qk = qkv[:, :turned]
            qk = torch.addcmul(qk * cos, torch.cat((qk[..., half:], qk[..., :half]), -1), sin)
            keys[:, start:end] = qk[:, m.heads :].transpose(0, 1)
            values[:, start:end] = qkv[:, turned:].transpose(0, 1)
            if not start and (n > 1 or attend):
                a = (attend or causal)(qk[:, : m.heads].transpose(0, 1), keys[:, :end], values[:, :end])
                mixed[:n].view(n, m.heads, -1).copy_(a.transpose(0, 1))
            else:
                # A group of query heads shares a key head, so the group is laid along the queries.
                q = qk[:, : m.heads].view(n, m.kv_heads, group, -1).transpose(0, 1).reshape(1, m.kv_heads, n * group, -1)
                a = few.attend(q, keys[None, :, : few.over], values[None, :, : few.over])
                mixed[:n].view(n, m.kv_heads, group, -1).copy_(a.view(m.kv_heads, n, group, -1).transpose(0, 1))
            x = x + product(mixed, w.out)
            gate, up = product(F.rms_norm(x, width, w.norm2, m.eps), w.gate_up).chunk(2, -1)
            x = x + product((F.silu(gate) * up).contiguous(), w.down)
        self.length = end
        if not last:
            return None
        scores = F.rms_norm(x if rows else x[n - last :], width, m.norm, m.eps)
        return product(scores, m.head)[n - last if rows else 0 : n if rows else last].float().contiguous()

    def _few(self, start: int, n: int) -> "FewQueries":
        m, rows, over = self.lean, n, start + n
        if self._one_shape:
            rows, over = -(-n // QUERIES) * QUERIES, -(-over // KEYS) * KEYS
        mask = None
        if rows > 1:
            last_seen = torch.arange(start, start + rows).clamp(max=start + n - 1)
            seen = (torch.arange(over)[None] <= last_seen[:, None]).repeat_interleave(m.heads // m.kv_heads, 0)
            mask = torch.zeros_like(seen, dtype=m.embedding.dtype).masked_fill_(~seen, -torch.inf).to(m.embedding.device)
        return FewQueries(over, n * m.heads // m.kv_heads, QUERIES * m.heads // m.kv_heads if self._one_shape else None, mask)

    def rewind(self, count: int) -> None:
        self.length -= count

    def close(self) -> None:
        self.keys = self.values = None
