"""The draft's network, a plain Llama, and the optimiser it is trained with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

LONGEST = 16  # longest match the copy head tells apart


@dataclass(frozen=True)
class Shape:
    """The draft's size. `heads × head` is the attention width."""

    vocabulary: int = 8192
    width: int = 256
    layers: int = 3
    heads: int = 4
    head: int = 64
    mlp: int = 768
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    context: int = 8192


class Layer(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.shape = s
        inner = s.heads * s.head
        self.norm1, self.norm2 = nn.Parameter(torch.ones(s.width)), nn.Parameter(torch.ones(s.width))
        self.qkv = nn.Linear(s.width, 3 * inner, bias=False)
        self.o = nn.Linear(inner, s.width, bias=False)
        self.gate_up = nn.Linear(s.width, 2 * s.mlp, bias=False)
        self.down = nn.Linear(s.mlp, s.width, bias=False)

    def forward(self, x, cos, sin):
        s, (b, t, _) = self.shape, x.shape
        q, k, v = self.qkv(F.rms_norm(x, (s.width,), self.norm1, s.norm_eps)).view(b, t, 3, s.heads, s.head).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(F.rms_norm(x, (s.width,), self.norm2, s.norm_eps)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    """Rotary position embedding in the half-split convention of Llama checkpoints."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Draft(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.shape = s
        self.embed = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.Parameter(torch.ones(s.width))
        self.head = nn.Linear(s.width, s.vocabulary, bias=False)
        self.gate = nn.Parameter(torch.linspace(-3.0, 2.0, LONGEST + 1))  # logit of λ by length of the match
        for layer in self.layers:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            layer.o.weight.data.mul_(0.3)
            layer.down.weight.data.mul_(0.3)

    def hidden(self, ids):
        t = ids.shape[1]
        inverse = self.shape.rope_theta ** (-torch.arange(0, self.shape.head, 2).float() / self.shape.head)
        angle = torch.outer(torch.arange(t).float(), inverse)
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.rms_norm(x, (self.shape.width,), self.norm, self.shape.norm_eps)

    def start_from(self, teacher_embedding):
        """Start from the teacher's (tied) embedding, projected to the draft's width by its principal directions."""
        centred = teacher_embedding - teacher_embedding.mean(0)
        _, _, v = torch.linalg.svd(centred, full_matrices=False)
        projected = teacher_embedding @ v[: self.shape.width].T
        self.embed.weight.data.copy_(projected / projected.std())
        self.head.weight.data.copy_(projected / projected.std() * self.shape.width**-0.5)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal by Newton-Schulz steps (Jordan et al. 2024), in float32.

    torch.optim.Muon computes in bfloat16, which CPUs without bfloat16 units do forty times more slowly.
    The update is scaled to the size of an AdamW update (Liu et al. 2025).
    """

    def __init__(self, matrices, momentum=0.95, weight_decay=0.05):
        super().__init__(matrices, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                velocity = state.setdefault("velocity", torch.zeros_like(p))
                velocity.lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(velocity, group["momentum"])  # Nesterov
                tall = x.shape[0] > x.shape[1]
                x = (x.T if tall else x) / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x.T if tall else x, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)
