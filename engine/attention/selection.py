"""Means of attention over layers and heads of one prompt: pure functions of `engine.trace.sinks.Sums`.

Attention received by key j is the mean over the chosen layers and heads and the queries that can see j; in a model whose
layers see differently far it is the mean of the layers' own means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from engine.errors import RequestError
from engine.trace.sinks import NEAR, NEAR_SCALE, Sums


@dataclass(frozen=True, eq=False)
class Selection:
    """Means over some layers and heads of one prompt of S keys. All arrays are float64.

    `attention` (S,): attention received, 0–1. `share` (S,): the part of all attention each key holds; they add up to 1
    (less where a learned sink takes some). `queries` (S,): how many queries see the key, the most in any chosen layer.
    `recent` (n, S): row m − 1 holds a_m, for the keys that at least m queries see; None where it cannot be had, which
    `missing` explains.
    """

    attention: np.ndarray
    share: np.ndarray
    queries: np.ndarray
    recent: np.ndarray | None
    missing: str | None = None


def select(sums: Sums, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Selection:
    """The mean over `layers` and `heads` (all of them: None). RequestError for one that the model lacks, or for none."""
    count, width, length = sums.received.shape
    chosen, kept = _chosen(layers, count, "layer"), _chosen(heads, width, "head")
    windows = [sums.windows[i] if sums.windows else None for i in chosen]
    part = sums.received if len(chosen) == count else sums.received[chosen]
    by_layer = (part if len(kept) == width else part[:, kept]).mean(axis=1, dtype=np.float64)
    seen = {w: queries_in(length, w) for w in set(windows)}
    attention = sum(by_layer[i] / seen[w] for i, w in enumerate(windows)) / len(windows)
    share = by_layer.mean(axis=0) / length
    groups, missing = _near(sums, chosen, kept, windows)
    recent = None if groups is None else sum(weight * _recent(near, reach) for weight, reach, near in groups)
    return Selection(attention, share, np.max(list(seen.values()), axis=0), recent, missing)


def queries_in(length: int, window: int | None) -> np.ndarray:
    """How many queries see each of `length` keys, itself included, in a layer where a query sees `window` keys (None: all)."""
    left = np.arange(length, 0, -1)
    return left if window is None else np.minimum(left, window)


def queries(sums: Sums, layers: Sequence[int] | None = None) -> np.ndarray:
    """(S,): the most queries that see each key in any of `layers` (None: all)."""
    count, _, length = sums.received.shape
    return np.max([queries_in(length, sums.windows[i] if sums.windows else None) for i in _chosen(layers, count, "layer")], axis=0)


def by_layer(sums: Sums, heads: Sequence[int] | None = None) -> np.ndarray:
    """(L, S) attention received in each layer, mean over `heads` (None: all): for a heat map."""
    kept = _chosen(heads, sums.received.shape[1], "head")
    return np.stack([sums.received[i][kept].mean(axis=0, dtype=np.float64) / n for i, n in enumerate(_counts(sums))])


def by_head(sums: Sums, layer: int) -> np.ndarray:
    """(H, S) attention received in each head of one layer."""
    _chosen([layer], sums.received.shape[0], "layer")
    return sums.received[layer].astype(np.float64) / _counts(sums)[layer]


def _chosen(asked: Sequence[int] | None, count: int, what: str) -> list[int]:
    if asked is None:
        return list(range(count))
    chosen = sorted(set(asked))
    if not chosen:
        raise RequestError(f"No {what} is chosen; choose at least one.")
    wrong = [i for i in chosen if not 0 <= i < count]
    if wrong:
        raise RequestError(f"There is no {what} {wrong[0]}; the model has {what}s 0 to {count - 1}.")
    return chosen


def _counts(sums: Sums) -> list[np.ndarray]:
    count, _, length = sums.received.shape
    return [queries_in(length, sums.windows[i] if sums.windows else None) for i in range(count)]


def _near(sums: Sums, layers: list[int], heads: list[int], windows: list[int | None]):
    """[(weight, reach, (S, n) mean)]: the chosen layers grouped by how many of the n near queries see a key; or None and why."""
    count, width, length = sums.received.shape
    n = min(NEAR, length)
    reaches = [n if w is None else min(w, n) for w in windows]
    whole = len(layers) == count and len(heads) == width
    if whole and sums.near_mean is not None and len(set(reaches)) == 1:
        return [(1.0, reaches[0], sums.near_mean)], None
    if sums.near is None:
        kept = "the mean of all layers and heads" if sums.near_mean is not None else "no layer"
        apart = ", while its layers look back differently far" if whole and sums.near_mean is not None else ""
        return None, f"of the attention from near queries, which the edge correction needs, this run keeps {kept} only{apart}"
    return [(reaches.count(reach) / len(layers), reach, _mean_near(sums.near, [i for i, r in zip(layers, reaches) if r == reach], heads))
            for reach in sorted(set(reaches))], None


def _mean_near(near: Any, layers: list[int], heads: list[int]) -> np.ndarray:
    """(S, n) float32 mean of some slices of a float16 (L, H, S, n), read one by one: it may be a mapped file.

    A float16 that is not negative becomes a float32 by moving its bits up by 13 and the scale by 2¹¹²: four times as
    fast as numpy's own conversion.
    """
    shape = near.shape[2:]
    total, bits = np.zeros(shape, np.float32), np.empty(shape, np.uint32)
    for layer in layers:
        for head in heads:
            np.left_shift(np.asarray(near[layer, head]).view(np.uint16), 13, out=bits, dtype=np.uint32, casting="unsafe")
            total += bits.view(np.float32)
    return total * np.float32(2.0**112 / NEAR_SCALE / (len(layers) * len(heads)))


def _recent(near: np.ndarray, reach: int) -> np.ndarray:
    """(n, S): row m − 1 is the mean attention of key j from query j and the next, m queries or `reach` if that is less."""
    n = near.shape[1]
    return np.cumsum(near.T, axis=0, dtype=np.float64) / np.minimum(np.arange(1, n + 1), reach)[:, None]
