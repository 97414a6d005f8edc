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
    import torch

    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    survival = torch.special.gammaincc(torch.tensor(df / 2, dtype=torch.float64), torch.tensor(statistic / 2, dtype=torch.float64))
    return statistic, df, float(survival)
