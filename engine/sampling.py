"""One resolved sampling setting for verifier and draft, and the stream of uniform draws behind a seed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from engine import limits
from engine.trace import Sampling

SMALLEST_TEMPERATURE = 1e-3  # below this the scaled logits of a tie differ by rounding alone: greedy


def resolve(sampling: Sampling) -> Sampling:
    """Check a setting and bring it to its one canonical form.

    A temperature under 0.001 is greedy: dividing by it would only blow up rounding. Greedy needs no filters, since
    each of them keeps the best token; they are switched off so that the record says what was really used.
    Raises RequestError naming the setting that is out of range.
    """
    for f in fields(sampling):
        limits.require(f.name, getattr(sampling, f.name))
    if sampling.temperature < SMALLEST_TEMPERATURE:
        return replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    return sampling


class Uniforms:
    """Uniform draws in [0, 1) from a seed and a stream number; the same on every machine and backend (Philox)."""

    def __init__(self, seed: int, stream: int):
        self._generator = np.random.Generator(np.random.Philox(key=[seed, stream]))

    def take(self, count: int) -> list[float]:
        return self._generator.random(count, dtype=np.float32).tolist()
