"""Scores that are no numbers: damaged weights, or activations that overflow in half precision."""

from __future__ import annotations

import math
from typing import Sequence

from engine.errors import RequestError
from engine.trace import ModelFacts


def require_numbers(best: Sequence[Sequence[float]], facts: ModelFacts, written: int, what: str = "") -> None:
    """RequestError if the best score of a row is NaN or infinite.

    best: rows of scores, best first, of the positions after `written` tokens of the answer.
    """
    for row, scores in enumerate(best):
        if not math.isfinite(scores[0]):
            way = ("its weights are damaged; fetch the model again" if facts.dtype == "float32" else
                   "its activations overflow in this precision, or its weights are damaged; try float32")
            raise RequestError(f"The scores of {facts.title} are not numbers from token {written + row + 1:,} of the answer on{what} "
                               f"(precision {facts.dtype}): {way}.")
