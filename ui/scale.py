"""The one continuous colour scale: cividis over a fixed domain, with the numbers in its legend.

Cividis (Nuñez, Anderton, Renslow 2018) reads alike with and without colour vision and in print. Colours come in steps, a class
each, so that thousands of tokens need no style of their own.
"""

from __future__ import annotations

import math
from html import escape
from typing import Sequence

STEPS = 32
ANCHORS = ("#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#fee838")


def colour(share: float) -> str:
    """The colour at `share` of the scale, 0–1."""
    at = min(max(share, 0.0), 1.0) * (len(ANCHORS) - 1)
    low = min(int(at), len(ANCHORS) - 2)
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in zip(_rgb(ANCHORS[low]), _rgb(ANCHORS[low + 1])))


def ink(share: float) -> str:
    """The text colour that reads best on it."""
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(colour(share)))]
    luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def step(value: float, low: float, high: float) -> int:
    """The step, 0 to STEPS − 1, of a value on the domain `low` to `high`; what lies outside takes the end's."""
    return min(max(int((value - low) / (high - low) * STEPS), 0), STEPS - 1)


def of_step(number: int) -> float:
    """The share of the scale in the middle of a step."""
    return (number + 0.5) / STEPS


def css() -> str:
    """`.q0` … `.q31` for tokens, and the legend."""
    steps = "".join(f".sl .t.q{n}{{background-color:{colour(of_step(n))};color:{ink(of_step(n))}}}" for n in range(STEPS))
    ramp = ",".join(colour(i / 16) for i in range(17))
    return (steps + ".sl .t.nan{background-image:repeating-linear-gradient(135deg,var(--line) 0 2px,transparent 2px 6px)}"
            ".sl .ramp{display:inline-grid;grid-template-columns:minmax(150px,260px);font-size:12px;color:var(--quiet)}"
            f".sl .ramp i{{height:10px;border-radius:3px;background:linear-gradient(90deg,{ramp})}}"
            ".sl .ramp em{font-style:normal} .sl .ramp b{font-weight:400} .sl .ramp span{display:flex;justify-content:space-between;font-variant-numeric:tabular-nums}")


def legend_html(title: str, ticks: Sequence[str]) -> str:
    """The scale with its numbers, evenly spaced from one end to the other."""
    numbers = "".join(f"<b>{escape(t)}</b>" for t in ticks)
    return (f'<div class="ramp" role="img" aria-label="{escape(title)}: {escape(", ".join(ticks))}"><em>{escape(title)}</em><i></i>'
            f"<span>{numbers}</span></div>")


def is_number(value: float | None) -> bool:
    """Whether there is a value to colour."""
    return value is not None and math.isfinite(value)


def _rgb(colour: str) -> tuple[int, int, int]:
    return tuple(int(colour[i:i + 2], 16) for i in (1, 3, 5))
