"""What the certificate measures with: sessions that remember, forwards without a cache, the rounding of a model.

Logits come to the host as float64 arrays of shape (positions, width).
"""

from __future__ import annotations

import math
from typing import Any, Sequence

import numpy as np

from engine.models.base import Model


class Recorder:
    """A model whose sessions remember what they read and what they scored: `scored` holds (ids, logits) pairs."""

    def __init__(self, model: Model):
        self._model, self.scored = model, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, capacity: int | None = None) -> "_Audit":
        return _Audit(self._model.session(capacity), self)


class _Audit:
    """A session that keeps its own account of the ids it should hold."""

    def __init__(self, session, recorder: Recorder):
        self._session, self._recorder, self._ids = session, recorder, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def feed(self, ids, last: int):
        self._ids += [int(i) for i in ids]
        logits = self._session.feed(ids, last)
        if last:
            self._recorder.scored.append((list(self._ids), np.array(self._recorder.ops.to_host(logits))))
        return logits

    def rewind(self, count: int) -> None:
        self._session.rewind(count)
        del self._ids[len(self._ids) - count:]


def rounding(model: Model, ids: Sequence[int], block: int) -> float:
    """ε: largest difference of any logit when `ids` are read one at a time and `block` at a time."""
    one, several = model.session(len(ids)), model.session(len(ids))
    try:
        worst = 0.0
        for start in range(0, len(ids) - block + 1, block):
            part = list(ids[start:start + block])
            rows = np.concatenate([np.array(model.ops.to_host(one.feed([i], 1))) for i in part])
            worst = max(worst, float(np.abs(rows - np.array(model.ops.to_host(several.feed(part, block)))).max()))
        return worst
    finally:
        one.close(), several.close()


def read(model: Model, ids: Sequence[int], last: int):
    """Logits (last, width) on the device, from a fresh session that reads everything at once."""
    session = model.session(len(ids))
    try:
        return session.feed(list(ids), last)
    finally:
        session.close()


def forward(model: Model, ids: Sequence[int], last: int) -> np.ndarray:
    return np.array(model.ops.to_host(read(model, ids, last)))


def gap(model: Model, ids: Sequence[int]) -> float:
    """Gap of the two best logits after `ids`."""
    best = np.sort(forward(model, ids, 1)[0])[-2:]
    return float(best[1] - best[0])


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def apart(model: Model, other: Model, ids: Sequence[int]) -> tuple[float, float, float]:
    """How far two models' scores of all positions of `ids` are apart: the largest difference of a logit, the largest of the
    entropy in bits, and the mean total variation of the distributions."""
    here, there = forward(model, ids, len(ids)), forward(other, ids, len(ids))
    p, q = softmax(here), softmax(there)
    a, b = (-(r * np.log2(np.maximum(r, 1e-300))).sum(-1) for r in (p, q))
    return float(np.abs(here - there).max()), float(np.abs(a - b).max()), float(np.abs(p - q).sum(-1).mean() / 2)


def chi_square(observed: np.ndarray, expected: np.ndarray, smallest: float = 5.0) -> tuple[float, int, float]:
    """Pearson's statistic, degrees of freedom and p-value of counts against probabilities.

    Cells that expect fewer than `smallest` are pooled into one, joined with the rarest other if still too small.
    A count where nothing is expected gives p = 0. With a single cell nothing can be tested: p = 1.
    """
    total = observed.sum()
    expected = expected / expected.sum() * total
    if observed[expected == 0].any():
        return math.inf, 0, 0.0
    order = np.argsort(-expected, kind="stable")
    seen, wanted = observed[order].astype(float), expected[order]
    large = int((wanted >= smallest).sum())
    if large < len(wanted):
        rest = wanted[large:].sum()
        large -= bool(large and 0 < rest < smallest)
        seen = np.append(seen[:large], seen[large:].sum())
        wanted = np.append(wanted[:large], wanted[large:].sum())
        if wanted[-1] == 0:
            seen, wanted = seen[:-1], wanted[:-1]
    df = len(wanted) - 1
    if df < 1:
        return 0.0, 0, 1.0
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return statistic, df, upper_gamma(df / 2, statistic / 2)


def upper_gamma(a: float, x: float) -> float:
    """Regularised upper incomplete gamma function Q(a, x), a > 0, x ≥ 0: the survival function of a χ² of 2a degrees of
    freedom at 2x. Series below a + 1, continued fraction above it (Press et al., Numerical Recipes, 6.2)."""
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > abs(total) * 1e-16:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - front * total)
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    fraction = d
    for i in range(1, 100_000):
        step = -i * (i - a)
        b += 2
        d = step * d + b
        d = 1 / (d if abs(d) > tiny else tiny)
        c = b + step / c
        c = c if abs(c) > tiny else tiny
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * fraction
