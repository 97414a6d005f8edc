"""The last committed tokens' text and the draft's, encoded together; the committed part is taken off by its bytes.

Taking it off by the *number* of its tokens would be wrong wherever the text behind it changes how it is cut.
"""

from __future__ import annotations

from typing import Sequence

from engine.decoding.cuts import cut
from engine.decoding.translators.base import Candidates, usable
from engine.tokens import Vocabulary


class InContext:
    shared = None

    def __init__(self, vocabulary: Vocabulary, prefix: int):
        """prefix: p, how many committed tokens go along."""
        self.vocabulary, self.prefix = vocabulary, prefix

    def candidates(self, committed: Sequence[int], held: bytes, written: Sequence[int], text: str) -> Candidates:
        """The candidates continue the committed bytes exactly: a token must begin where these end.

        If none does with p tokens in front (a token reaches across), the longest shorter prefix after which one does is
        taken, down to none at all; a space that only marks the start of a text is dropped. No prefix crosses a control
        token or begins inside a character.
        """
        tried = 0
        for count, before, begins in self._prefixes(committed, held):
            whole = before + text.encode()
            made = cut(self.vocabulary, whole.decode(), begins)
            done = len(before) + len(held)  # bytes that are committed
            if made.exact <= done:
                continue
            first = 0 if not done else _edge(made.ends, done)
            while not done and first < len(made.ids) and made.ends[first] <= 0:
                first += 1  # only the mark of a text's start
            if first is not None and (done or self._begins_plainly(made, first)):
                last = next((n for n, end in enumerate(made.ends) if end > made.exact), len(made.ids))
                note = f"No token ends after {tried} committed tokens; translated after {count}." if tried else None
                return Candidates(usable(made.ids[first:last], self.vocabulary.control), note)
            tried = tried or count
        return Candidates([], "No cut of the draft's text begins where the committed text ends.")

    def _begins_plainly(self, made, first: int) -> bool:
        """Whether the first token of a text has no start mark in it: " kot" would not continue a word as "kot" does."""
        return first < len(made.ids) and len(self.vocabulary.bytes_of(made.ids[first])) == made.ends[first]

    def _prefixes(self, committed: Sequence[int], held: bytes):
        """(tokens, their bytes without `held`, whether they begin a text), the longest first, none at last."""
        vocabulary, pieces, size = self.vocabulary, [], 0
        for i in reversed(committed):
            enough = len(pieces) >= self.prefix and size >= len(held) and not (pieces and _inside(pieces[-1]))
            if enough or i in vocabulary.control:
                break
            pieces.append(vocabulary.bytes_of(i))
            size += len(pieces[-1])
        at_start = len(pieces) == len(committed) or (len(pieces) < len(committed) and committed[-len(pieces) - 1] in vocabulary.control)
        for count in range(len(pieces), -1, -1):
            data = b"".join(reversed(pieces[:count]))
            if len(data) < len(held) or (count and _inside(pieces[count - 1])):
                continue
            before = data[: len(data) - len(held)]
            try:
                before.decode()
            except UnicodeDecodeError:  # bytes that are no text, deeper in: a shorter prefix may lie behind them
                continue
            yield count, before, at_start and count == len(pieces) and count > 0


def _inside(piece: bytes) -> bool:
    """Whether a token begins inside a character."""
    return bool(piece) and piece[0] & 0xC0 == 0x80


def _edge(ends: Sequence[int], at: int) -> int | None:
    """The token that begins at byte `at`; None if none does."""
    for n, end in enumerate(ends):
        if end >= at:
            return n + 1 if end == at and n + 1 < len(ends) else None
    return None
