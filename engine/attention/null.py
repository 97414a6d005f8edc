"""The threshold above which a token is called a sink, chosen from data: `python -m bench.null` measures what z′ ordinary
text has, and `null.json` beside this file keeps the curve, the choice and where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Sequence

PATH = Path(__file__).with_name("null.json")
MOST = 0.01  # of the content tokens of ordinary text may be flagged


def choose(thresholds: Sequence[float], shares: Sequence[float], most: float = MOST) -> float:
    """The smallest threshold from which on at most `most` is flagged. ValueError if none is high enough."""
    chosen = None
    for t, share in sorted(zip(thresholds, shares), reverse=True):
        if share > most:
            break
        chosen = t
    if chosen is None:
        raise ValueError("No threshold of the curve is high enough.")
    return chosen


def measured() -> dict[str, Any]:
    """The curve and its provenance, as `bench/null.py` wrote them."""
    return json.loads(PATH.read_text(encoding="utf-8"))


DEFAULT_THRESHOLD: float = measured()["threshold"]
