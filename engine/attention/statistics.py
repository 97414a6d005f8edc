"""How unusual the attention is that each key receives: pure functions of a `Selection`.

z = (ln a − median) / (1.4826 · MAD), median and MAD of ln a over the non-structural keys. Late keys are seen by few, near
queries, so a plain mean makes any prompt's tail look like a sink; hence the edge-corrected z′ (DESIGN.md): keys seen by at
least W = 64 queries are scored among themselves, a key seen by n < W queries by a_n, the mean over its own and the next
n − 1 queries, against a_n of every other key that at least n queries saw. A layer with a window w counts min(n, w) queries.

z′ is undefined for a key so early that fewer than `LEAST` others were seen by as many queries. Such a key is judged by z if
at least `LEAST` of the keys that z compares with come after it: those are read too high, so z reads it low rather than high.

In arrays NaN stands for "undefined"; `Scores` says why for each position. Nothing here is ever infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from engine.attention.selection import Selection, by_head, by_layer, queries, queries_in, select
from engine.trace.sinks import NEAR

__all__ = ["LEAST", "W", "Scores", "Selection", "by_head", "by_layer", "queries", "queries_in", "select", "sinks", "z_scores"]

W = NEAR + 1  # 64: a key that at least so many queries see is judged by all of them
LEAST = 8  # z′ is undefined where fewer keys can be compared: of normal noise 0.9 % would pass z′ = 5 beside 8, 10 % beside 3
LEAST_PLAIN = 3  # z is undefined where fewer keys are there: of two it is ±0.67 whatever they hold
MAD_TO_SIGMA = 1.4826  # the MAD of a normal distribution times this is its standard deviation
NO_SPREAD = 1e-6  # of ln a; the sums are float32, so what lies below is rounding


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
    number = {0: f"are no {whose}", 1: f"is only one of the {whose}"}.get(count, f"are only {count} {whose}")
    return f"there {number} to compare with, and at least {least} are needed"


def _flat(count: int, median: float, scaled: float, whose: str) -> str | None:
    if not math.isfinite(median):
        return f"half or more of the {count:,} {whose} received no attention at all, so there is no spread to measure by"
    if not (math.isfinite(scaled) and scaled > NO_SPREAD):
        return f"half or more of the {count:,} {whose} received the same attention, so there is no spread to measure by"
    return None
