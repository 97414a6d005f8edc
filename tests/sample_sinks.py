"""A sinks run made by hand: real softmax attention of random scores, with sinks where they are wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.trace import ModelFacts, Prompt, SinkItem, SinksRun, Sums
from engine.trace.sinks import NEAR, NEAR_SCALE
from tests.sample import sample_run

WORDS = [" the", " cat", " sat", "\n", " żó", "łć", " on", " mat", ".", " a", "<b>", " x"]


def sums_of(attention: np.ndarray, windows: tuple[int | None, ...] | None = None) -> Sums:
    """Sums of causal attention (L, H, S, S), rows queries."""
    layers, heads, length, _ = attention.shape
    n = min(NEAR, length)
    near = np.zeros((layers, heads, length, n), np.float32)
    for d in range(n):
        near[:, :, : length - d, d] = np.diagonal(attention, -d, 2, 3)
    return Sums(attention.sum(2).astype(np.float32), (near * NEAR_SCALE).astype(np.float16), near.mean((0, 1)),
                windows or (None,) * layers, None, float(np.abs(attention.sum(-1) - 1).max()))


def attention_with(length: int, sinks: dict[int, float], layers: int = 3, heads: int = 2, seed: int = 0) -> np.ndarray:
    """Causal attention whose scores are random, with `sinks` (position → added score)."""
    scores = np.random.default_rng(seed).normal(0, 0.7, (layers, heads, length, length))
    for at, extra in sinks.items():
        if at < length:
            scores[..., at] += extra
    scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def facts() -> ModelFacts:
    return sample_run().models["verifier"]


def sample_item(length: int = 90, sinks: dict[int, float] | None = None, structural: int = 4, label: str = "p1", seed: int = 0) -> SinkItem:
    ids = tuple(7 + (i * 5 + seed) % len(WORDS) for i in range(length))
    text = "".join(WORDS[i - 7] for i in ids)
    flags = tuple(i < structural or i >= length - structural for i in range(length))
    return SinkItem(Prompt(text, ids), label, "story", flags, "begin-of-text token", 0.42, 3_000_000,
                    sums_of(attention_with(length, {0: 4.0, 40: 3.5} if sinks is None else sinks, seed=seed)))


def sample_sinks(*items: SinkItem, **changes) -> SinksRun:
    run = sample_run()
    made = SinksRun("20261201-120000-51a551", "2026-12-01T12:00:00+00:00", items or (sample_item(),), {"model": facts()}, run.machine,
                    tokens={7 + i: w.encode().hex() for i, w in enumerate(WORDS)})
    return replace(made, **changes)
