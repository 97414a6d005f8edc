"""Context health: how much of a prompt's attention drains into sinks that the chat template does not explain.

The published formula, 10 − 10 · density − min(mean z, 5), is kept under its name because people will compare with it. It
saturates: at any threshold of 5 or more the last term is always 5, so a single sink among thousands of tokens costs half
the scale, however little attention it takes; a token that crosses the threshold makes it jump; and a longer prompt with
the same trouble gets a better mark, because density counts tokens.

Ours asks what it is about: attention that the text should have had. Let share_j be the part of all attention that key j
holds, typical_j the attention of the median key it was compared with at equal numbers of queries, and z_j its score.

    weight_j  = clip(z_j − threshold, 0, 1)                   a soft edge one z wide, so health is continuous in the threshold
    drained   = Σ weight_j · share_j · (1 − typical_j / a_j)  over judged keys: only the excess is drained
    health    = 10 · (1 − drained)⁴

Judged are the keys outside the template but for the opening sink. Whatever the text, the first position takes about half of
all attention in most models, whichever token stands there (Xiao et al., Efficient Streaming Language Models with Attention
Sinks, 2024); that says nothing of the text. In a chat template it is the template's; in a raw text it would condemn every
one. So the first position is not counted, nor are the next ones, four in all at the most, as far as each from the first on
has a z of at least the measured default threshold: some models, and texts that begin with a token doubled, spread the sink.
Which these are does not depend on the threshold chosen. `Health` names them and their share. A token further on that drains
as the first does is the text's own and counts. The published formula counts what is outside the template, as published.

It is 10 just when nothing lies above the threshold and 0 when everything drains away; it falls with every bit of attention
drained, and a share of all attention does not depend on how long the prompt is. The power only sets the scale: the first
1 % drained costs 0.4 points, 3 % leave 8.9, 16 % leave 5. Good is 8 or more (at most 5.4 % drained), fair 5 or more
(at most 15.9 %), poor below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.attention.null import DEFAULT_THRESHOLD
from engine.attention.statistics import Scores, sinks

POWER = 4
WORDS = ((8.0, "good"), (5.0, "fair"), (0.0, "poor"))  # from this health on
OPENING = 4  # positions at the most that the sink of the first one can reach over
UNJUDGED = 0.1  # of all attention: where tokens without a score hold more, health would be a guess

_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


@dataclass(frozen=True)
class Health:
    """`value` 0–10 and its `word`, or None with the `reason`. `count`: sinks outside the template but for the opening sink;
    `held`: their share of all attention; `drained`: the excess of it over typical keys, weighted, which `value` is made from.
    `opening`: the positions outside the template that belong to the opening sink, which is not counted; `opening_held`: their
    share of all attention. `drained_answer`: how much of `drained` the tokens of an answer hold; None where there is no answer.
    Shares are 0–1."""

    value: float | None
    word: str | None
    reason: str | None
    count: int
    held: float
    drained: float | None
    sentence: str
    opening: tuple[int, ...] = ()
    opening_held: float = 0.0
    drained_answer: float | None = None


def health(scores: Scores, structural: np.ndarray, threshold: float, corrected: bool = True, first: str = "first token",
           answer_start: int | None = None) -> Health:
    """The health of one text, from z′ (z if not `corrected`). `first`: what position 0 is called, for the sentence.
    `answer_start`: where an answer begins, if the text is a prompt and its answer; the health is that of both together."""
    judged = ~np.asarray(structural, bool)
    opening = np.flatnonzero(opening_sink(scores, corrected) & judged)
    judged[opening] = False
    over = sinks(scores, threshold, corrected)
    count, held = int((over & judged).sum()), float(scores.share[over & judged].sum())
    apart = tuple(int(j) for j in opening), float(scores.share[opening].sum())
    also = f" {_opening_said(first, *apart)}" if over[opening].any() else ""
    head = "Context health" + (" of prompt and answer" if answer_start is not None else "")
    reason = _undefined(scores, judged, bool(len(opening)), corrected)
    if reason:
        return Health(None, None, reason, count, held, None, f"{head} n/a: {reason}.{also}", *apart)
    drained = share_drained(scores, judged, threshold, corrected)
    value = 10 * (1 - drained) ** POWER
    word = next(w for low, w in WORDS if value >= low)
    by_answer = None
    if answer_start is not None:
        by_answer = share_drained(scores, judged & (np.arange(len(judged)) >= answer_start), threshold, corrected)
    return Health(value, word, None, count, held, drained, f"{head} {value:.1f} — {word}. {_said(count, held)}{also}", *apart, by_answer)


def opening_sink(scores: Scores, corrected: bool = True) -> np.ndarray:
    """(S,) bool: the first position, and the next ones that its sink reaches over, be they the template's or not."""
    z = scores.z_corrected if corrected else scores.z
    found = np.zeros(len(z), bool)
    found[:1] = True
    for j in range(min(OPENING, len(z))):
        if not z[j] >= DEFAULT_THRESHOLD:  # NaN: it cannot be told
            break
        found[j] = True
    return found


def share_drained(scores: Scores, content: np.ndarray, threshold: float, corrected: bool = True) -> float:
    """0–1: the attention above what typical keys get, held by keys of `content` above the threshold, softly weighted."""
    z, typical = (scores.z_corrected, scores.typical_corrected) if corrected else (scores.z, scores.typical)
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


def _undefined(scores: Scores, judged: np.ndarray, opening: bool, corrected: bool) -> str | None:
    if not judged.any():
        return f"every token belongs to the template{' or to the sink at the first position' if opening else ''}"
    z, why = (scores.z_corrected, scores.why_corrected) if corrected else (scores.z, scores.why)
    lacking = np.flatnonzero(judged & np.isnan(z))
    if len(lacking) == judged.sum():
        return why[int(lacking[0])]
    held = float(scores.share[lacking].sum())
    if held > UNJUDGED:
        biggest = int(lacking[np.argmax(scores.share[lacking])])
        return (f"{len(lacking):,} of {int(judged.sum()):,} tokens to be judged hold {percent(held)} of all attention "
                f"and have no score (at position {biggest} {why[biggest]})")
    return None


def _opening_said(first: str, opening: tuple[int, ...], held: float) -> str:
    """The opening sink, named."""
    if opening[0] > 0:  # the first position is the template's, and what it drains spreads to the text's first tokens
        who = f"Position {opening[0]}" if len(opening) == 1 else f"Positions {opening[0]} to {opening[-1]}"
    else:
        who = f"The {first}" if len(opening) == 1 else f"The first {_NUMBERS[len(opening)].lower()} tokens"
    verb, it = ("holds", "it is") if len(opening) == 1 else ("hold", "they are")
    return f"{who} {verb} {percent(held)} as the opening sink that any text has; {it} not counted."


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
