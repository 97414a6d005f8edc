"""Context health: how much of a prompt's attention drains into sinks that the chat template does not explain.

The published formula, 10 − 10 · density − min(mean z, 5), is kept under its name because people will compare with it. It
saturates: at any threshold of 5 or more the last term is always 5, so a single sink among thousands of tokens costs half
the scale, however little attention it takes; a token that crosses the threshold makes it jump; and a longer prompt with
the same trouble gets a better mark, because density counts tokens.

Ours asks what it is about: attention that the text should have had. Let share_j be the part of all attention that key j
holds, typical_j the attention of the median key it was compared with at equal numbers of queries, and z_j its score.

    weight_j  = clip(z_j − threshold, 0, 1)                   a soft edge one z wide, so health is continuous in the threshold
    drained   = Σ weight_j · share_j · (1 − typical_j / a_j)  over keys outside the template: only the excess is drained
    health    = 10 · (1 − drained)⁴

It is 10 just when nothing lies above the threshold and 0 when everything drains away; it falls with every bit of attention
drained, and a share of all attention does not depend on how long the prompt is. The power only sets the scale: the first
1 % drained costs 0.4 points, 3 % leave 8.9, 16 % leave 5. Good is 8 or more (at most 5.4 % drained), fair 5 or more
(at most 15.9 %), poor below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.attention.statistics import Scores, sinks

POWER = 4
WORDS = ((8.0, "good"), (5.0, "fair"), (0.0, "poor"))  # from this health on
UNJUDGED = 0.1  # of all attention: where tokens without a score hold more, health would be a guess

_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


@dataclass(frozen=True)
class Health:
    """`value` 0–10 and its `word`, or None with the `reason`. `count`: sinks outside the template; `held`: their share of
    all attention; `drained`: the excess of it over typical keys, weighted, which `value` is made from. Shares are 0–1."""

    value: float | None
    word: str | None
    reason: str | None
    count: int
    held: float
    drained: float | None
    sentence: str


def health(scores: Scores, structural: np.ndarray, threshold: float, corrected: bool = True, first: str = "first token") -> Health:
    """The health of one prompt, from z′ (z if not `corrected`). `first`: what position 0 is called, for the sentence."""
    content = ~np.asarray(structural, bool)
    flagged = sinks(scores, threshold, corrected) & content
    count, held = int(flagged.sum()), float(scores.share[flagged].sum())
    reason = _undefined(scores, content, corrected)
    if reason:
        return Health(None, None, reason, count, held, None, f"Context health n/a: {reason}.")
    drained = share_drained(scores, content, threshold, corrected)
    value = 10 * (1 - drained) ** POWER
    word = next(w for low, w in WORDS if value >= low)
    sentence = f"Context health {value:.1f} — {word}. {_said(count, held)}"
    if flagged[0]:
        sentence += f" {'It' if count == 1 else 'One of them'} is the {first}, which drains attention in most models."
    return Health(value, word, None, count, held, drained, sentence)


def share_drained(scores: Scores, content: np.ndarray, threshold: float, corrected: bool = True) -> float:
    """0–1: the attention above what typical keys get, held by keys of `content` above the threshold, softly weighted."""
    z, typical = (scores.judged, scores.typical_judged) if corrected else (scores.z, scores.typical)
    judged = content & ~np.isnan(z)
    weight = np.clip(z[judged] - threshold, 0, 1)
    excess = np.clip(1 - typical[judged] / scores.attention[judged], 0, 1)
    return min(1.0, float((weight * excess * scores.share[judged]).sum()))


def health_published(scores: Scores, structural: np.ndarray, threshold: float) -> tuple[float | None, str | None]:
    """10 − 10 · density − min(mean z, 5), never below 0; or None and the reason. Plain z, as published: density is the
    part of the keys outside the template with z ≥ threshold, mean z theirs. 10 where there is none."""
    content = ~np.asarray(structural, bool)
    if not content.any():
        return None, "every token belongs to the template"
    if scores.reason:
        return None, scores.reason
    flagged = sinks(scores, threshold, corrected=False) & content
    if not flagged.any():
        return 10.0, None
    return max(0.0, 10 - 10 * float(flagged.sum() / content.sum()) - min(float(scores.z[flagged].mean()), 5.0)), None


def _undefined(scores: Scores, content: np.ndarray, corrected: bool) -> str | None:
    if not content.any():
        return "every token belongs to the template"
    z, why = (scores.judged, scores.why_corrected) if corrected else (scores.z, scores.why)
    lacking = np.flatnonzero(content & np.isnan(z))
    if len(lacking) == content.sum():
        return why[int(lacking[0])]
    held = float(scores.share[lacking].sum())
    if held > UNJUDGED:
        biggest = int(lacking[np.argmax(scores.share[lacking])])
        return (f"{len(lacking):,} of {int(content.sum()):,} tokens outside the template hold {percent(held)} of all attention "
                f"and have no score (at position {biggest} {why[biggest]})")
    return None


def _said(count: int, held: float) -> str:
    if count == 0:
        return "No sink outside the template."
    number = _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"
    return f"{number} {'sink' if count == 1 else 'sinks'} outside the template {'holds' if count == 1 else 'hold'} {percent(held)} of all attention."


def percent(share: float) -> str:
    """3 %, 0.4 %, under 0.1 %: no more digits than say something."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    if share == 0:
        return "0 %"
    return f"{100 * share:.1f} %" if share < 0.0095 else f"{100 * share:.0f} %"
