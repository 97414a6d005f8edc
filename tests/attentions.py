"""Attention matrices made up for tests, their sums, and every statistic worked out the slow way from the matrices alone."""

from __future__ import annotations

import math
import statistics

import numpy as np

from engine.trace import Prompt, SinkItem, Sums
from engine.trace.sinks import NEAR, NEAR_SCALE


def normalised(scores: np.ndarray, window: int | None = None) -> np.ndarray:
    """Non-negative (…, S, S) → each query's attention on itself and the keys before it, adding up to 1."""
    length = scores.shape[-1]
    query, key = np.indices((length, length))
    seen = (key <= query) & (True if window is None else query - key < window)
    weights = np.where(seen, scores, 0.0)
    return weights / weights.sum(axis=-1, keepdims=True)


def random_attention(layers: int, heads: int, length: int, windows=None, seed: int = 0) -> np.ndarray:
    windows = windows or (None,) * layers
    rng = np.random.default_rng(seed)
    return np.stack([normalised(np.exp(1.5 * rng.standard_normal((heads, length, length))), w) for w in windows])


def recency(length: int, power: float | None = 1.0, reach: float = 20.0) -> np.ndarray:
    """(1, 1, S, S): attention depends on the distance alone, as 1/(1 + distance)^power, or exponentially with `power` None.
    What a query has no keys for goes to key 0, as in models it does."""
    query, key = np.indices((length, length))
    distance = query - key
    weights = np.where(distance >= 0, np.exp(-np.maximum(distance, 0) / reach) if power is None else (1.0 + np.maximum(distance, 0)) ** -power, 0)
    weights = weights * 0.5 / weights[-1].sum()
    weights[:, 0] += 1 - weights.sum(axis=1)
    return weights[None, None]


def noisy(attention: np.ndarray, amount: float = 0.5, seed: int = 0) -> np.ndarray:
    """Every key is a little more or less attended to, as tokens of a text are."""
    rng = np.random.default_rng(seed)
    return normalised(attention * np.exp(amount * rng.standard_normal(attention.shape[-1])))


def planted(attention: np.ndarray, keys, strength: float) -> np.ndarray:
    """Each of `keys` takes `strength` of the attention of every query that sees it; all else shrinks to make room."""
    made = attention.copy()
    for key in keys:
        made[..., key:, :] *= 1 - strength
        made[..., key:, key] += strength
    return made


def sums_of(attention: np.ndarray, windows=None, keep_near: bool = True) -> Sums:
    """The sums of (L, H, S, S), as `Model.attention` gives them."""
    layers, heads, length, _ = attention.shape
    n = min(NEAR, length)
    near = np.zeros((layers, heads, length, n))
    for d in range(n):
        near[:, :, :length - d, d] = np.diagonal(attention, -d, axis1=2, axis2=3)
    return Sums(received=attention.sum(axis=2).astype(np.float32), near=(near * NEAR_SCALE).astype(np.float16) if keep_near else None,
                near_mean=near.mean(axis=(0, 1)).astype(np.float32), windows=tuple(windows or (None,) * layers))


def item_of(attention: np.ndarray, structural=(), windows=None, first: str = "first token") -> SinkItem:
    length = attention.shape[-1]
    flags = tuple(i in set(structural) for i in range(length))
    return SinkItem(Prompt("text", tuple(range(length)), raw=True, template=False), structural=flags, first=first, seconds=1.0,
                    sums=sums_of(attention, windows))


def slowly(attention: np.ndarray, structural, windows=None, layers=None, heads=None, exclude: bool = True, least: int = 8, w: int = 64,
           enough: int = 24):
    """(attention received, z, z′) of every key by the words of engine/attention/statistics.py, None where undefined."""
    chosen = range(attention.shape[0]) if layers is None else layers
    kept = list(range(attention.shape[1])) if heads is None else list(heads)
    length = attention.shape[-1]
    windows = windows or (None,) * attention.shape[0]

    def seen(layer, key):
        return min(length - key, windows[layer] or length)

    def mean_over(key, most):  # over the key's own and the next most − 1 queries
        return statistics.fmean(statistics.fmean(
            attention[layer, head, key:key + min(most, seen(layer, key)), key].mean() for head in kept) for layer in chosen)

    received = [mean_over(key, length) for key in range(length)]
    queries = [max(seen(layer, key) for layer in chosen) for key in range(length)]
    base = [key for key in range(length) if not (exclude and structural[key])]
    place = [math.log(1 + key) for key in range(length)]

    def z(value, logs, least):
        if len(logs) < least:
            return None
        median = statistics.median(logs)
        mad = statistics.median(abs(v - median) for v in logs)
        return (value - median) / (1.4826 * mad) if mad > 1e-6 else None

    def within(x, those):  # a trend is not drawn on beyond the keys it comes from
        return min(max(x, min(those)), max(those)) if those else x

    def narrow(key):
        others = [k for k in base if k != key]
        as_many = [k for k in base if queries[k] >= queries[key]]
        if queries[key] < w and len(as_many) > enough:
            n = queries[key]
            tilt = slowly_tilted([place[k] for k in as_many], [math.log(mean_over(k, n)) for k in as_many], least)
            logs = [math.log(mean_over(k, n)) - tilt * place[k] for k in as_many if k != key]
            return z(math.log(mean_over(key, n)) - tilt * within(place[key], [place[k] for k in as_many]), logs, least)
        few = [k for k in others if queries[k] >= queries[key]]
        if len(few) < enough:
            few = sorted(others, key=lambda k: -queries[k])[:enough]
        both = [min(queries[k], queries[key], w - 1) for k in few]
        logs = [math.log(mean_over(k, m)) - math.log(mean_over(key, m)) for k, m in zip(few, both)]
        tilt = slowly_tilted([place[k] for k in few], logs, least)
        return z(-tilt * within(place[key], [place[k] for k in few]), [v - tilt * place[k] for k, v in zip(few, logs)], least)

    plain = [z(math.log(received[key]), [math.log(received[k]) for k in base], 3) for key in range(length)]
    wide = [k for k in base if queries[k] >= w]
    tilt = slowly_tilted([math.log(queries[k]) for k in wide], [math.log(received[k]) for k in wide], least)

    def flat(key):
        return math.log(received[key]) - tilt * within(math.log(queries[key]), [math.log(queries[k]) for k in wide])

    corrected = [z(flat(key), [flat(k) for k in wide], least) if queries[key] >= w and len(wide) >= enough else narrow(key) for key in range(length)]
    return received, plain, corrected


def slowly_tilted(x: list[float], y: list[float], least: int) -> float:
    """The slope of Tukey's resistant line."""
    if not x or max(x) - min(x) < 0.5:
        return 0.0
    third = (max(x) - min(x)) / 3
    left, right = ([i for i, v in enumerate(x) if near(v)] for near in (lambda v: v <= min(x) + third, lambda v: v >= min(x) + 2 * third))
    if min(len(left), len(right)) < least:
        return 0.0
    rise, run = (statistics.median(of[i] for i in right) - statistics.median(of[i] for i in left) for of in (y, x))
    return rise / run
