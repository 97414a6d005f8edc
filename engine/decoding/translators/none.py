"""No translation: the draft's ids sent as if they were the verifier's. A control that shows why translation is needed."""

from __future__ import annotations

from typing import Sequence

from engine.decoding.translators.base import Candidates
from engine.tokens import Vocabulary


class Untranslated:
    shared = None

    def __init__(self, vocabulary: Vocabulary, width: int):
        """width: columns of the verifier's logits; an id past them cannot be scored."""
        self.vocabulary, self.width = vocabulary, width

    def candidates(self, committed: Sequence[int], held: bytes, written: Sequence[int], text: str) -> Candidates:
        for n, i in enumerate(written):
            if i >= self.width or not self.vocabulary.known(i):
                return Candidates(list(written[:n]), f"The verifier has no token {i}: cut there.")
        return Candidates(list(written))
