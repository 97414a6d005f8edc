"""What each number of a request may be: one table, read by the engine's checks, the command line's options and the pages' controls.

So no page offers what the engine refuses, and nothing can be asked for at the command line that a page could not show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import RequestError


@dataclass(frozen=True)
class Bound:
    """A finite number from `low` (not `low` itself if `above`) to `high`; whole numbers where `low` is one."""

    low: float
    high: float
    title: str
    above: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int)

    @property
    def least(self) -> float:
        """The smallest value that is allowed."""
        return math.nextafter(self.low, self.high) if self.above else self.low

    @property
    def span(self) -> str:
        low, high = f"{self.low:,}" if self.whole else f"{self.low:g}", f"{self.high:,}" if self.whole else f"{self.high:g}"
        return f"above {low} and at most {high}" if self.above else f"from {low} to {high}"

    def holds(self, value: float) -> bool:
        kind = int if self.whole else (int, float)
        return isinstance(value, kind) and not isinstance(value, bool) and self.least <= value <= self.high  # NaN fits nowhere


LIMITS = {
    "temperature": Bound(0.0, 10.0, "temperature"),
    "top_k": Bound(0, 1_000_000, "top-k"),
    "top_p": Bound(0.0, 1.0, "top-p", above=True),
    "min_p": Bound(0.0, 1.0, "min-p"),
    "repetition_penalty": Bound(0.1, 10.0, "repetition penalty"),
    "seed": Bound(0, 2**53 - 1, "seed"),  # the largest whole number that a browser and JSON readers keep exactly
    "gamma": Bound(0, 16, "gamma"),  # 0 drafts nothing
    "k": Bound(1, 16, "k"),
    "prefix": Bound(0, 64, "prefix"),
    "entropy_stop": Bound(0.0, 1.0, "entropy at which drafting stops"),
    "lookup_ngram": Bound(1, 8, "longest n-gram of lookup"),
    "lookup_shortest": Bound(1, 8, "shortest n-gram of lookup"),
    "max_tokens": Bound(1, 32_768, "max tokens"),
    "repeats": Bound(1, 20, "repeats"),
    "certified_tokens": Bound(4, 1024, "max tokens"),  # the fewest that the checks say anything with
    "first": Bound(1, 1_000_000, "number of prompts"),
    "words": Bound(0, 100_000, "words of each prompt"),
    "threshold": Bound(0.0, 15.0, "threshold"),
}


def require(name: str, value: float) -> None:
    """RequestError unless `value` is one that the bound called `name` holds."""
    bound = LIMITS[name]
    if not bound.holds(value):
        raise RequestError(f"{bound.title[0].upper()}{bound.title[1:]} is {value}; it must be {bound.span}.")
