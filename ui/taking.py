"""What of a run's settings a page's controls can take: what was stored by an older version or imported may lie outside today's bounds."""

from __future__ import annotations

from typing import Any, Mapping

from engine.limits import LIMITS
from engine.models.device import DEVICES, DTYPES
from engine.models.registry import BACKENDS
from engine.trace.uag import STRATEGIES
from ui import sampling

BOUNDS = {"gamma": "gamma", "stop_at": "entropy_stop", "ngram": "lookup_ngram", "shortest": "lookup_shortest", "prefix": "prefix", "tokens": "max_tokens",
          "repeats": "repeats", "ks": "k", **sampling.FIELDS}  # control → bound
CHOICES = {"backend": ("engine", BACKENDS), "device": ("device", DEVICES), "dtype": ("precision", DTYPES),
           "strategies": ("strategy", STRATEGIES)}  # control → its word, what it offers


def taken(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of the controls' values those that the controls can show; of a list the part of it."""
    fit = {name: [one for one in value if _fits(name, one)] if isinstance(value, list) else value for name, value in values.items()}
    return {name: value for name, value in fit.items() if isinstance(value, list) or _fits(name, value)}


def left(values: Mapping[str, Any]) -> list[str]:
    """In words what `taken` leaves out: "seed 9,007,199,254,740,992 (from 0 to 9,007,199,254,740,991)"."""
    flat = [(name, one) for name, value in values.items() for one in (value if isinstance(value, list) else [value])]
    return [_words(name, one) for name, one in flat if not _fits(name, one)]


def _fits(name: str, value: Any) -> bool:
    if name in BOUNDS:
        return LIMITS[BOUNDS[name]].holds(value)
    return name not in CHOICES or value in CHOICES[name][1]


def _words(name: str, value: Any) -> str:
    if name in CHOICES:
        return f"{CHOICES[name][0]} “{str(value)[:40]}”"
    bound = LIMITS[BOUNDS[name]]
    return f"{bound.title} {value:,} ({bound.span})" if isinstance(value, int) else f"{bound.title} {value:g} ({bound.span})"
