"""How what a draft wrote becomes candidates in the verifier's ids, when the two have different tokenizers.

A new strategy is a new file and a line in `make`.
"""

from __future__ import annotations

from engine.decoding.translators import context, naive, none, tli
from engine.decoding.translators.base import Candidates, Shared, Translator
from engine.errors import RequestError
from engine.models.base import Model
from engine.trace.uag import STRATEGIES

__all__ = ["Candidates", "Shared", "Translator", "make"]


def make(strategy: str, verifier: Model, draft: Model, prefix: int) -> Translator:
    """The translator of a strategy's name. `prefix`: committed tokens that `context` encodes again."""
    if strategy == "none":
        return none.Untranslated(verifier.vocabulary, verifier.width)
    if strategy == "naive":
        return naive.Naive(verifier.vocabulary)
    if strategy == "context":
        return context.InContext(verifier.vocabulary, prefix)
    if strategy == "tli":
        return tli.Intersection(verifier, draft)
    raise RequestError(f"There is no strategy “{strategy}”; choose among {', '.join(STRATEGIES)}.")
