"""How fast speculative decoding can be: the formulas, and nothing else.

Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, section 3.
Two quantities are easily confused and are kept apart by name everywhere:

- r, the acceptance rate: accepted / proposed draft tokens (discarded ones count as proposed);
- α, the per-token acceptance: the chance that a draft token *that is judged* is accepted.

c is the cost of one draft token and v the cost of one verifier pass over γ+1 tokens, both in one-token verifier
passes. Where rounds are shorter than γ, give the mean proposal length as `gamma` (it need not be a whole number in
the formulas in r) and r = accepted / proposed: then γ·r is accepted tokens a round, which is what counts.
"""

from __future__ import annotations

from typing import Callable

LARGEST_GAMMA = 16


def tokens_per_round(r: float, gamma: float) -> float:
    """Tokens a verifier pass yields: 1 + γ·r, the accepted ones and the verifier's own."""
    return 1 + gamma * r


def rate_from_alpha(alpha: float, gamma: int) -> float:
    """Acceptance rate r of rounds of γ when each judged token is accepted with chance α: α(1−α^γ)/(1−α)/γ."""
    return sum(alpha**i for i in range(1, gamma + 1)) / gamma


def alpha_from_rate(r: float, gamma: int) -> float:
    """Per-token acceptance α that gives the acceptance rate r: solves α(1−α^γ)/(1−α)/γ = r on [0, 1].

    The left side grows with α, so bisection finds the one root. Raises ValueError if r is outside 0–1 or γ < 1.
    """
    if not 0 <= r <= 1 or gamma < 1:
        raise ValueError(f"An acceptance rate lies between 0 and 1 and gamma is at least 1 (r = {r}, gamma = {gamma}).")
    low, high = 0.0, 1.0
    if r in (low, high):
        return r
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_from_alpha(middle, gamma) < r else (low, middle)
    return (low + high) / 2


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens a round, (1−α^(γ+1))/(1−α) (equation 1): 1 + α + … + α^γ, which also holds at α = 1."""
    return sum(alpha**i for i in range(gamma + 1))


def ceiling(gamma: float, r: float, c: float, v: float = 1) -> float:
    """Largest possible speedup, without any orchestration: (1 + γ·r) / (γ·c + v). The textbook's v is 1."""
    return tokens_per_round(r, gamma) / (gamma * c + v)


def ceiling_alpha(alpha: float, gamma: int, c: float, v: float = 1) -> float:
    """The same in terms of α: (1−α^(γ+1)) / ((1−α)(γ·c + v)) (theorem 3.8, with v = 1)."""
    return expected_tokens(alpha, gamma) / (gamma * c + v)


def break_even(c: float, v: float, gamma: float) -> float | None:
    """Acceptance rate r from which speculation pays: c + (v−1)/γ, where the ceiling is 1.

    None when that is above 1: no acceptance rate pays. A measured v can fall below 1; then the answer is at least 0.
    """
    rate = c + (v - 1) / gamma
    return None if rate > 1 else max(0.0, rate)


def best_gamma(alpha: float, c: float, v: float | Callable[[int], float] = 1) -> int | None:
    """The γ from 1 to 16 with the highest ceiling, the smallest of equals; None if no γ beats verifier-only.

    `v` is one number, or a function that gives the cost of a verifier pass over n tokens.
    """
    def at(gamma: int) -> float:
        return ceiling_alpha(alpha, gamma, c, v(gamma + 1) if callable(v) else v)

    best = max(range(1, LARGEST_GAMMA + 1), key=at)
    return best if at(best) > 1 else None
