"""How unusual the attention is that each key receives: pure functions of a `Selection`.

z = (ln a − median) / (1.4826 · MAD), median and MAD of ln a over the non-structural keys. The median of an even number of
values is the midpoint of the two in the middle: of ln a = −6, −5, −3, −2 it is −4, the MAD 1.5, and the z −0.8993, −0.4497,
0.4497, 0.8993.

Late keys are seen by few, near queries, so a plain mean makes any prompt's tail look like a sink; hence the edge-corrected z′.
It has the same form, with what is compared made comparable. W = 64.

1. Keys seen by n ≥ W queries are scored among themselves by ln a less its trend over ln n: in a long text even the mean over
   64 or 100 queries is one over near queries, and without the trend such keys read 2 to 3 too high (`bench.null`).
2. A key seen by n < W queries is scored by ln a_n, a_n the mean over its own and the next n − 1 queries, against that of every
   other key that at least n queries saw, less the trend over ln(1 + position): a late query shares its attention among more keys.
3. Where that leaves fewer than `ENOUGH` keys to compare with (the beginning of a short text), the keys with the most queries fill
   them up to `ENOUGH`, each pair compared at the number of queries that both have, 63 at the most.

A trend is the slope of Tukey's resistant line (Exploratory Data Analysis, 1977, ch. 5): the range of x cut into thirds, the slope
from the medians of the outer two; 0 where one holds fewer than `LEAST` keys or x spans less than `SPAN`. It is taken from the
keys that are compared with, so it asks for nothing but the run's own sums, and is not drawn on beyond them. A layer with a window w counts min(n, w) queries.

In arrays NaN stands for "undefined"; `Scores` says why for each position. Nothing here is ever infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from engine.attention.selection import Selection, by_head, by_layer, queries, queries_in, select
from engine.trace.sinks import NEAR

__all__ = ["ENOUGH", "LEAST", "W", "Scores", "Selection", "by_head", "by_layer", "queries", "queries_in", "select", "sinks", "z_scores"]

W = NEAR + 1  # 64: a key that at least so many queries see is judged by all of them
LEAST = 8  # z′ is undefined where fewer keys can be compared: of normal noise 0.9 % would pass z′ = 5 beside 8, 10 % beside 3
ENOUGH = 24  # keys to compare with before others, seen by fewer queries, are called in: a MAD of fewer wavers by a quarter
SPAN = 0.5  # of ln n or ln(1 + position), below which no trend is taken
LEAST_PLAIN = 3  # z is undefined where fewer keys are there: of two it is ±0.67 whatever they hold
MAD_TO_SIGMA = 1.4826  # the MAD of a normal distribution times this is its standard deviation
NO_SPREAD = 1e-6  # of ln a; the sums are float32, so what lies below is rounding


@dataclass(frozen=True, eq=False)
class Scores:
    """z and z′ of S keys, NaN where undefined: `why` and `why_corrected` give position → reason.

    `median` and `scaled_mad` are those of ln a that z was taken with; None with `reason` where no z can be.
    `typical` and `typical_corrected` (S,): the attention that the typical key would have in this key's place by z and by z′,
    NaN where undefined.
    """

    attention: np.ndarray
    share: np.ndarray
    queries: np.ndarray
    z: np.ndarray
    z_corrected: np.ndarray
    typical: np.ndarray
    typical_corrected: np.ndarray
    median: float | None
    scaled_mad: float | None
    reason: str | None
    why: dict[int, str]
    why_corrected: dict[int, str]


def z_scores(selection: Selection, structural: Sequence[bool] | np.ndarray, exclude_structural: bool = True) -> Scores:
    """z and z′ of every key, structural ones too. `exclude_structural`: these are left out of medians and MADs."""
    length = len(selection.attention)
    base = ~np.asarray(structural, bool) if exclude_structural else np.ones(length, bool)
    whose = "tokens outside the template" if exclude_structural and not base.all() else "tokens"
    with np.errstate(divide="ignore"):
        logs = np.log(selection.attention)
    median, scaled, reason = _centre(logs[base], LEAST_PLAIN, whose)
    z, why = _z(logs, median, scaled), {}
    for j in np.flatnonzero(np.isnan(z)):
        why[int(j)] = reason or "it received no attention at all"
    corrected, excess, why_corrected = _corrected(selection, logs, base, whose)
    typical = np.full(length, math.nan if reason else math.exp(median))
    with np.errstate(over="ignore"):
        typical_corrected = selection.attention * np.exp(-excess)
    return Scores(selection.attention, selection.share, selection.queries, z, corrected, typical, typical_corrected,
                  None if reason else median, None if reason else scaled, reason, why, why_corrected)


def sinks(scores: Scores, threshold: float, corrected: bool = True) -> np.ndarray:
    """(S,) bool: keys whose z′ (z if not `corrected`) is at least `threshold`. Where it is undefined: False."""
    with np.errstate(invalid="ignore"):
        return (scores.z_corrected if corrected else scores.z) >= threshold


def _corrected(selection: Selection, logs: np.ndarray, base: np.ndarray, whose: str) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """z′, by how much ln a exceeds that of the typical key compared with (both NaN where undefined), and why: position → reason."""
    z, excess, why = np.full(len(logs), math.nan), np.full(len(logs), math.nan), {}

    def take(keys: np.ndarray, found: tuple[np.ndarray, np.ndarray, str | None]) -> None:
        z[keys], excess[keys], reason = found
        excess[keys] = np.where(np.isnan(z[keys]), math.nan, excess[keys])
        why.update((int(j), reason or "it received no attention at all") for j in keys if np.isnan(z[j]))

    seen = selection.queries
    wide = seen >= W
    if (wide & base).sum() >= (LEAST if selection.recent is None else ENOUGH):
        within = np.flatnonzero(wide & base)
        flat = without_trend(logs, np.log(seen), within)
        take(np.flatnonzero(wide), _against(flat[wide], flat[within], f"{whose} seen by {W} queries or more"))
        seen = np.where(wide, 0, seen)  # done
    if selection.recent is None:
        take(np.flatnonzero(seen > 0), (math.nan, math.nan, selection.missing))
        return z, excess, why
    with np.errstate(divide="ignore"):
        recent = np.log(selection.recent)
    place, most = np.log1p(np.arange(len(logs))), len(recent)
    for n in np.unique(seen[seen > 0]):
        keys, counted = np.flatnonzero(seen == n), np.flatnonzero(base & (selection.queries >= n))
        if n > most or len(counted) <= ENOUGH:
            for j in keys:
                take(np.array([j]), _pair_by_pair(j, recent, selection.queries, base, place, f"other {whose}"))
            continue
        flat = without_trend(recent[n - 1], place, counted)
        told = f"other {whose} seen by {n} {'query' if n == 1 else 'queries'} or more"
        outside, inside = keys[~base[keys]], keys[base[keys]]
        take(outside, _against(flat[outside], flat[counted], told))
        take(inside, _against_the_others(flat[counted], np.searchsorted(counted, inside), told))
    return z, excess, why


def without_trend(y: np.ndarray, x: np.ndarray, population: np.ndarray) -> np.ndarray:
    """y less the trend over x of the keys in `population`. A key beyond them (a template's token before the text) gets that of their
    nearest end: how the trend goes on there is not known."""
    if not len(population):
        return y
    among = x[population]
    return y - slope(among, y[population]) * np.clip(x, among.min(), among.max())


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of Tukey's resistant line through (x, y); 0 where there is too little to tell it by."""
    low, third = x.min(), np.ptp(x) / 3
    left, right = x <= low + third, x >= low + 2 * third
    if 3 * third < SPAN or min(left.sum(), right.sum()) < LEAST:
        return 0.0
    found = (np.median(y[right]) - np.median(y[left])) / (np.median(x[right]) - np.median(x[left]))
    return float(found) if np.isfinite(found) else 0.0


def _pair_by_pair(j: int, recent: np.ndarray, queries: np.ndarray, base: np.ndarray, place: np.ndarray, told: str):
    """z′ of key j where few keys were seen by as many queries: see 3 above."""
    others = np.flatnonzero(base)
    others = others[others != j]
    as_many = others[queries[others] >= queries[j]]
    if len(as_many) < ENOUGH:
        as_many = others[np.argsort(-queries[others], kind="stable")[:ENOUGH]]
    both = np.minimum(np.minimum(queries[as_many], queries[j]), len(recent)) - 1
    with np.errstate(invalid="ignore"):
        above = recent[both, as_many] - recent[both, j]
        flat = without_trend(np.append(above, 0.0), np.append(place[as_many], place[j]), np.arange(len(above)))
    return _against(flat[-1:], flat[:-1], told)


def _against(logs: np.ndarray, population: np.ndarray, told: str) -> tuple[np.ndarray, np.ndarray, str | None]:
    """z of `logs` by the median and MAD of `population`, their excess over the median, and the reason if there is none."""
    median, scaled, reason = _centre(population, LEAST, told)
    return _z(logs, median, scaled), logs - median, reason


def _centre(logs: np.ndarray, least: int, whose: str) -> tuple[float, float, str | None]:
    """Median and scaled MAD, or NaNs with the reason."""
    if len(logs) < least:
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
    """z of the keys at `place` in `logs`, each against all of `logs` but itself; their excess over the medians; the reason if
    one has none."""
    medians = _median_without(logs, place)
    scaled = np.full(len(place), math.nan)
    for median in np.unique(medians[np.isfinite(medians)]):  # three at the most
        same = medians == median
        scaled[same] = MAD_TO_SIGMA * _median_without(np.abs(logs - median), place[same])
    bad = np.flatnonzero(~(scaled > NO_SPREAD) | ~np.isfinite(scaled))
    reason = _flat(len(logs) - 1, medians[bad[0]], scaled[bad[0]], whose) if len(bad) else None
    medians[bad] = scaled[bad] = math.nan
    return _z(logs[place], medians, scaled), logs[place] - medians, reason


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
    number = {0: f"are no {whose}", 1: f"is only one of the {whose}"}.get(count, f"are only {count} {whose}")
    return f"there {number} to compare with, and at least {least} are needed"


def _flat(count: int, median: float, scaled: float, whose: str) -> str | None:
    if not math.isfinite(median):
        return f"half or more of the {count:,} {whose} received no attention at all, so there is no spread to measure by"
    if not (math.isfinite(scaled) and scaled > NO_SPREAD):
        return f"half or more of the {count:,} {whose} received the same attention, so there is no spread to measure by"
    return None
