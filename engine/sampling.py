"""One resolved sampling setting for verifier and draft, and the stream of uniform draws behind a seed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from engine.errors import RequestError
from engine.trace import Sampling

LIMITS = {  # name: (lowest, highest, what it is)
    "temperature": (0.0, 10.0, "temperature (0 is greedy)"),
    "top_k": (0, 1_000_000, "top-k (0 is off)"),
    "top_p": (0.0, 1.0, "top-p (1 is off)"),
    "min_p": (0.0, 1.0, "min-p (0 is off)"),
    "repetition_penalty": (0.1, 10.0, "repetition penalty (1 is off)"),
    "seed": (0, 2**63 - 1, "seed"),
}
SMALLEST_TEMPERATURE = 1e-3  # below this the scaled logits of a tie differ by rounding alone: greedy


def resolve(sampling: Sampling) -> Sampling:
    """Check a setting and bring it to its one canonical form.

    A temperature under 0.001 is greedy: dividing by it would only blow up rounding. Greedy needs no filters, since
    each of them keeps the best token; they are switched off so that the record says what was really used.
    Raises RequestError naming the setting that is out of range.
    """
    for name, (low, high, title) in LIMITS.items():
        value = getattr(sampling, name)
        if not math.isfinite(value) or not low <= value <= high or (name == "top_p" and value == 0):
            raise RequestError(f"{title.capitalize()} is {value}; it must lie between {low} and {high}.")
    if sampling.temperature < SMALLEST_TEMPERATURE:
        return replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    return sampling


class Uniforms:
    """Uniform draws in [0, 1) from a seed and a stream number; the same on every machine and backend (Philox)."""

    def __init__(self, seed: int, stream: int):
        self._generator = np.random.Generator(np.random.Philox(key=[seed, stream]))

    def take(self, count: int) -> list[float]:
        return self._generator.random(count, dtype=np.float32).tolist()
