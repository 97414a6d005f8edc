"""What a screen and the command line show of one prompt's sinks: a pure function of its sums and a few controls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np

from engine.attention.health import Health, health, health_published
from engine.attention.null import DEFAULT_THRESHOLD
from engine.attention.statistics import Scores, Selection, select, sinks, z_scores
from engine.errors import RequestError
from engine.tokens import label
from engine.trace import SinkItem


@dataclass(frozen=True, eq=False)
class SinkView:
    """`structural` and `sinks`, (S,) bool, are independent flags. `score` (S,) is what `sinks` compares with the threshold:
    z′, or z where `corrected` is off; NaN where undefined. `learned_share`: the part of all attention that learned sinks, which
    are no tokens, take in the chosen layers and heads; None where the model has none. `answer_start`: the position from which on
    tokens are an answer's; None where all are the prompt's. Shares are 0–1."""

    ids: tuple[int, ...]
    scores: Scores
    structural: np.ndarray
    sinks: np.ndarray
    threshold: float
    corrected: bool
    health: Health
    health_published: float | None
    published_reason: str | None
    learned_share: float | None
    answer_start: int | None = None

    @property
    def score(self) -> np.ndarray:
        return self.scores.z_corrected if self.corrected else self.scores.z

    @property
    def sentence(self) -> str:
        return self.health.sentence

    def segment(self, j: int) -> str:
        """Whose token j is: "template", "prompt" or "answer"."""
        if self.structural[j]:
            return "template"
        return "answer" if self.answer_start is not None and j >= self.answer_start else "prompt"

    @property
    def structural_share(self) -> float:
        """The part of all attention that the template's tokens hold."""
        return float(self.scores.share[self.structural].sum())


def selected(item: SinkItem, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Selection:
    """The slow part of `view`: worth keeping while only the threshold moves. RequestError for a layer or head that the model
    lacks, and for a run whose arrays are lost."""
    if item.sums is None or item.sums.received is None:
        raise RequestError(item.refused or "The arrays of this run are missing beside its file; analyse the prompt again.")
    return select(item.sums, layers, heads)


def view(item: SinkItem, threshold: float | None = None, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None,
         exclude_structural: bool = True, corrected: bool = True) -> SinkView:
    """`threshold` None: the one measured on the null (`engine.attention.null`). `layers`, `heads` None: all of them.

    RequestError as in `selected`.
    """
    scores = z_scores(selected(item, layers, heads), np.asarray(item.structural, bool), exclude_structural)
    return judged(item, scores, threshold, corrected, learned(item, layers, heads))


def learned(item: SinkItem, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> float | None:
    """The mean attention that learned sinks took in the chosen layers and heads; None where there are none."""
    if not item.sums.learned:
        return None
    taken = np.asarray(item.sums.learned)
    taken = taken if layers is None else taken[sorted(set(layers))]
    return float((taken if heads is None else taken[:, sorted(set(heads))]).mean())


def judged(item: SinkItem, scores: Scores, threshold: float | None = None, corrected: bool = True,
           learned_share: float | None = None) -> SinkView:
    """The quick part of `view`: what a threshold makes of scores."""
    threshold = DEFAULT_THRESHOLD if threshold is None else threshold
    structural = np.asarray(item.structural, bool)
    published, why = health_published(scores, structural, threshold)
    return SinkView(item.prompt.ids, scores, structural, sinks(scores, threshold, corrected), threshold, corrected,
                    health(scores, structural, threshold, corrected, item.first, item.answer_start), published, why, learned_share,
                    item.answer_start)


def rows(view: SinkView, tokens: Mapping[int, str], special: Sequence[int] = (), where: np.ndarray | None = None) -> list[dict[str, Any]]:
    """One dict a position, those where `where` (S,) is True (None: all). `text` is the token's readable name, `tokens` and
    `special` those of the run. Undefined numbers are None, and `why` gives the reason. `score` is what `sink` was judged by;
    `opening`: whether the token belongs to the opening sink, which health does not count; `segment` as in `SinkView`."""
    s, marked = view.scores, set(special)
    chosen = range(len(view.ids)) if where is None else np.flatnonzero(where)
    why = s.why_corrected if view.corrected else s.why
    return [{
        "index": int(j), "id": view.ids[j], "text": label(bytes.fromhex(tokens.get(view.ids[j], "")), view.ids[j] in marked),
        "structural": bool(view.structural[j]), "queries": int(s.queries[j]), "attention": float(s.attention[j]),
        "z": _number(s.z[j]), "z_corrected": _number(s.z_corrected[j]), "score": _number(view.score[j]), "sink": bool(view.sinks[j]),
        "why": why.get(int(j)), "segment": view.segment(j), "opening": int(j) in view.health.opening,
    } for j in chosen]


def structural_rows(view: SinkView, tokens: Mapping[int, str], special: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The template's tokens, sinks or not."""
    return rows(view, tokens, special, view.structural)


def anomalous_rows(view: SinkView, tokens: Mapping[int, str], special: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The sinks outside the template, the opening sink too, the highest score first."""
    found = rows(view, tokens, special, view.sinks & ~view.structural)
    return sorted(found, key=lambda row: -row["score"])


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
