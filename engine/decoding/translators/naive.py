"""The draft's text encoded on its own, as if a text began there: a tokenizer that marks the start puts a space in front."""

from __future__ import annotations

from typing import Sequence

from engine.decoding.translators.base import Candidates, usable
from engine.tokens import Vocabulary


class Naive:
    shared = None

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    def candidates(self, committed: Sequence[int], held: bytes, written: Sequence[int], text: str) -> Candidates:
        if not text:
            return Candidates([])
        if held:  # what the draft wrote begins inside a letter, and half a letter is no text
            return Candidates([], "The draft's text begins inside a letter.")
        return Candidates(usable(self.vocabulary.encode(text), self.vocabulary.control))
