"""Intervals around measured means and shares. All are two-sided, 95 %; None where there is too little to tell from."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean, variance
from typing import Sequence

LEVEL = 0.95
Interval = tuple[float, float]


def wilson(hits: int, trials: int) -> Interval | None:
    """Of a share hits / trials (Wilson 1927). Stays inside 0–1 and is honest for few trials and shares near 0 or 1."""
    if trials <= 0:
        return None
    z, p = NormalDist().inv_cdf((1 + LEVEL) / 2), hits / trials
    scale = 1 + z * z / trials
    centre, half = (p + z * z / (2 * trials)) / scale, z / scale * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return 0.0 if hits == 0 else max(0.0, centre - half), 1.0 if hits == trials else min(1.0, centre + half)


def welch(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Of the difference mean(a) − mean(b) of two independent samples of unequal variance (Welch 1947).

    None with fewer than two of either, or if neither varies.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    of_a, of_b = variance(a) / len(a), variance(b) / len(b)
    if of_a + of_b <= 0:
        return None
    part = of_a / (of_a + of_b)
    freedom = 1 / (part**2 / (len(a) - 1) + (1 - part) ** 2 / (len(b) - 1))
    return _around(fmean(a) - fmean(b), math.sqrt(of_a + of_b), freedom)


def of_groups(groups: Sequence[Sequence[float]]) -> Interval | None:
    """Of the mean over all values, where values of one group (the tokens of one answer) resemble each other.

    The groups are the independent units: the mean is a ratio of two sums over groups, its variance that of a ratio
    estimator, k/(k−1) Σ (S_i − m·n_i)² / (Σ n_i)² (Cochran 1977, 6.4), with k − 1 degrees of freedom. None with one group.
    """
    groups = [g for g in groups if g]
    count, total = len(groups), sum(map(len, groups))
    if count < 2:
        return None
    mean = math.fsum(v for g in groups for v in g) / total
    spread = math.fsum((math.fsum(g) - mean * len(g)) ** 2 for g in groups)
    return _around(mean, math.sqrt(count / (count - 1) * spread) / total, count - 1)


def _around(middle: float, error: float, freedom: float) -> Interval:
    half = student_quantile((1 + LEVEL) / 2, freedom) * error
    return middle - half, middle + half


def student_quantile(probability: float, freedom: float) -> float:
    """t with P(T ≤ t) = probability > ½ for Student's distribution, by bisection on its distribution function."""
    low, high = 0.0, 1.0
    while _student(high, freedom) < probability:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _student(t: float, freedom: float) -> float:
    """P(T ≤ t) for t ≥ 0: 1 − I(ν/(ν+t²); ν/2, ½)/2."""
    return 1 - _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function, by its continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    d = 1 / (1 - (a + b) * x / (a + 1) or tiny)
    c, value = 1.0, d
    for m in range(1, 500):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value
