"""How much attention each key receives, and how unusual that is: pure functions of `engine.trace.sinks.Sums`.

Attention received by key j is the mean over the chosen layers and heads and the queries that can see j; in a model whose
layers see differently far it is the mean of the layers' own means. z = (ln a − median) / (1.4826 · MAD), median and MAD of
ln a over the non-structural keys. Late keys are seen by few, near queries, so a plain mean makes any prompt's tail look
like a sink; hence the edge-corrected z′ (DESIGN.md): keys seen by at least W = 64 queries are scored among themselves, a
key seen by n < W queries by a_n, the mean over its own and the next n − 1 queries, against a_n of every other key that
at least n queries saw. A layer with a window w counts min(n, w) queries.

z′ is undefined for a key so early that fewer than `LEAST` others were seen by as many queries. Such a key is judged by z if
at least `LEAST` of the keys that z compares with come after it: those are read too high, so z reads it low rather than high.

In arrays NaN stands for "undefined"; `Scores` says why for each position. Nothing here is ever infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from engine.errors import RequestError
from engine.trace.sinks import NEAR, NEAR_SCALE, Sums

W = NEAR + 1  # 64: a key that at least so many queries see is judged by all of them
LEAST = 8  # z′ is undefined where fewer keys can be compared: of normal noise 0.9 % would pass z′ = 5 beside 8, 10 % beside 3
MAD_TO_SIGMA = 1.4826  # the MAD of a normal distribution times this is its standard deviation
NO_SPREAD = 1e-6  # of ln a; the sums are float32, so what lies below is rounding


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


@dataclass(frozen=True, eq=False)
class Scores:
    """z and z′ of S keys, NaN where undefined: `why` and `why_corrected` give position → reason.

    `judged` (S,) is z′, or z where the key is too early for z′ (`early`, (S,) bool); what `sinks` and health go by.
    `median` and `scaled_mad` are those of ln a that z was taken with; None with `reason` where no z can be.
    `typical` and `typical_judged` (S,): the attention of the typical key that z and `judged` compare with, NaN where undefined.
    """

    attention: np.ndarray
    share: np.ndarray
    queries: np.ndarray
    z: np.ndarray
    z_corrected: np.ndarray
    judged: np.ndarray
    early: np.ndarray
    typical: np.ndarray
    typical_judged: np.ndarray
    median: float | None
    scaled_mad: float | None
    reason: str | None
    why: dict[int, str]
    why_corrected: dict[int, str]


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


def z_scores(selection: Selection, structural: Sequence[bool] | np.ndarray, exclude_structural: bool = True) -> Scores:
    """z and z′ of every key, structural ones too. `exclude_structural`: these are left out of medians and MADs."""
    length = len(selection.attention)
    base = ~np.asarray(structural, bool) if exclude_structural else np.ones(length, bool)
    whose = "tokens outside the template" if exclude_structural and not base.all() else "tokens"
    with np.errstate(divide="ignore"):
        logs = np.log(selection.attention)
    median, scaled, reason = _centre(logs[base], 1, whose)
    z, why = _z(logs, median, scaled), {}
    for j in np.flatnonzero(np.isnan(z)):
        why[int(j)] = reason or "it received no attention at all"
    corrected, compared, few, why_corrected = _corrected(selection, logs, base, whose)
    typical = np.full(length, math.nan if reason else math.exp(median))
    after = base.sum() - np.cumsum(base)
    early = few & (after >= LEAST) & ~np.isnan(z)
    for j in np.flatnonzero(early):
        why_corrected[int(j)] += "; so early a token is judged by z, which reads it low rather than high"
    return Scores(selection.attention, selection.share, selection.queries, z, corrected, np.where(early, z, corrected), early, typical,
                  np.where(early, typical, np.exp(compared)), None if reason else median, None if reason else scaled, reason, why, why_corrected)


def sinks(scores: Scores, threshold: float, corrected: bool = True) -> np.ndarray:
    """(S,) bool: keys whose `judged` (z if not `corrected`) is at least `threshold`. Where it is undefined: False."""
    with np.errstate(invalid="ignore"):
        return (scores.judged if corrected else scores.z) >= threshold


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


def _corrected(selection: Selection, logs: np.ndarray, base: np.ndarray, whose: str):
    """z′, the median of ln a each key was compared with (both NaN where undefined), whether too few were to be compared
    with, and why: position → reason."""
    z, compared, few, why = np.full(len(logs), math.nan), np.full(len(logs), math.nan), np.zeros(len(logs), bool), {}

    def note(keys, reason):
        why.update((int(j), reason or "it received no attention at all") for j in keys if np.isnan(z[j]))

    wide = selection.queries >= W
    if wide.any():
        median, scaled, reason = _centre(logs[wide & base], LEAST, f"{whose} seen by {W} queries or more")
        z[wide] = _z(logs[wide], median, scaled)
        compared[wide] = median
        few[wide] = (wide & base).sum() < LEAST
        note(np.flatnonzero(wide), reason)
    for n in np.unique(selection.queries[~wide]):
        keys = np.flatnonzero(selection.queries == n)
        if selection.recent is None:
            note(keys, selection.missing)
            continue
        seen = np.flatnonzero(selection.queries >= n)
        with np.errstate(divide="ignore"):
            values = np.log(selection.recent[n - 1, seen])
        counted = base[seen]
        own = np.searchsorted(seen, keys)
        told = f"other {whose} seen by {n} {'query' if n == 1 else 'queries'} or more"
        within, population = counted[own], values[counted]
        few[keys] = len(population) - within < LEAST
        if not within.all():  # keys that are no part of the population: all of it is "the others"
            median, scaled, reason = _centre(population, LEAST, told)
            outside = keys[~within]
            z[outside], compared[outside] = _z(values[own[~within]], median, scaled), median
            note(outside, reason)
        if within.any():
            inside = keys[within]
            place = np.cumsum(counted)[own[within]] - 1  # where in the population each key stands
            z[inside], compared[inside], reason = _against_the_others(population, place, told)
            note(inside, reason)
    compared[np.isnan(z)] = math.nan
    return z, compared, few, why


def _centre(logs: np.ndarray, least: int, whose: str) -> tuple[float, float, str | None]:
    """Median and scaled MAD, or NaNs with the reason."""
    if len(logs) < max(least, 1):
        return math.nan, math.nan, _too_few(len(logs), least, whose)
    median = float(np.median(logs))
    with np.errstate(invalid="ignore"):
        scaled = MAD_TO_SIGMA * float(np.median(np.abs(logs - median))) if np.isfinite(median) else math.nan
    reason = _flat(len(logs), median, scaled, whose)
    return (math.nan, math.nan, reason) if reason else (median, scaled, None)


def _z(logs: np.ndarray, median: float, scaled: float) -> np.ndarray:
    z = (logs - median) / scaled
    return np.where(np.isfinite(z), z, math.nan)


def _against_the_others(logs: np.ndarray, place: np.ndarray, whose: str) -> tuple[np.ndarray, np.ndarray, str | None]:
    """z of the keys at `place` in `logs`, each against all of `logs` but itself; the medians; the reason if one has none."""
    nothing = np.full(len(place), math.nan)
    if len(logs) - 1 < LEAST:
        return nothing, nothing, _too_few(len(logs) - 1, LEAST, whose)
    medians = _median_without(logs, place)
    scaled = np.full(len(place), math.nan)
    for median in np.unique(medians[np.isfinite(medians)]):  # three at the most
        same = medians == median
        scaled[same] = MAD_TO_SIGMA * _median_without(np.abs(logs - median), place[same])
    bad = np.flatnonzero(~(scaled > NO_SPREAD) | ~np.isfinite(scaled))
    reason = _flat(len(logs) - 1, medians[bad[0]], scaled[bad[0]], whose) if len(bad) else None
    medians[bad] = scaled[bad] = math.nan
    return _z(logs[place], medians, scaled), medians, reason


def _median_without(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The median of `values` without the one at each of `place`."""
    if len(place) <= 4:  # where every query sees all keys before it there is one place: no need to sort
        return np.array([np.median(np.delete(values, i)) for i in place])
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), int)
    rank[order] = np.arange(len(values))
    ordered, own, rest = values[order], rank[place], len(values) - 1
    low, high = (rest - 1) // 2, rest // 2
    return (ordered[low + (own <= low)] + ordered[high + (own <= high)]) / 2


def _too_few(count: int, least: int, whose: str) -> str:
    number = "no" if count == 0 else f"only {count}"
    return f"there are {number} {whose} to compare with" + (f", and at least {least} are needed" if least > 1 else "")


def _flat(count: int, median: float, scaled: float, whose: str) -> str | None:
    if count == 1:
        return f"there is only one of the {whose}, so there is no spread to measure by"
    if not math.isfinite(median):
        return f"half of the {count:,} {whose} received no attention at all, so there is no spread to measure by"
    if not (math.isfinite(scaled) and scaled > NO_SPREAD):
        return f"half of the {count:,} {whose} received the same attention, so there is no spread to measure by"
    return None
