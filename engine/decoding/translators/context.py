"""The last committed tokens' text and the draft's, encoded together; the committed part is taken off by its bytes.

Taking it off by the *number* of its tokens would be wrong wherever the text behind it changes how it is cut.
"""

from __future__ import annotations

from typing import Iterator, Sequence

from engine.decoding.cuts import Cut, cut
from engine.decoding.translators.base import Candidates, usable
from engine.tokens import Vocabulary

GUARD = "\n"  # a line break: nothing merges with it, and behind it no tokenizer marks the start of a text
NOTHING = Candidates([], "No cut of the draft's text begins where the committed text ends.")


class InContext:
    shared = None

    def __init__(self, vocabulary: Vocabulary, prefix: int):
        """prefix: p, how many committed tokens go along."""
        self.vocabulary, self.prefix = vocabulary, prefix

    def candidates(self, committed: Sequence[int], held: bytes, written: Sequence[int], text: str) -> Candidates:
        """The candidates continue the committed bytes exactly: a token must begin where these end.

        If none does with p tokens in front, one reaches across. A prefix that holds its beginning would only be read so
        again; the longest that does not is next, down to none at all. Alone, the text would get the mark of a text's start
        from some tokenizers, so it is then read behind a line break. No prefix crosses a control token or begins inside a
        character.
        """
        if not text:
            return Candidates([])
        said, tried, longest, across = text.encode(), None, 0, 0
        for count, before, begins in self._prefixes(committed, held):
            longest = max(longest, len(before))
            if tried is not None and longest - len(before) <= across:
                continue
            done = len(before) + len(held)  # bytes that are committed
            made = self._alone(text) if not done else cut(self.vocabulary, (before + said).decode(), begins)
            if made.exact > done:
                first = sum(end <= 0 for end in made.ends) if not done else _edge(made.ends, done)
                if first is not None:
                    last = next((n for n, end in enumerate(made.ends) if end > made.exact), len(made.ids))
                    note = None if tried is None else f"No token ends after {tried} committed tokens; translated after {count}."
                    return Candidates(usable(made.ids[first:last], self.vocabulary.control), note)
                across = longest - len(before) + max((end for end in made.ends if end < done), default=0)
            tried = tried if tried is not None else count
        return NOTHING

    def _alone(self, text: str) -> Cut:
        """The text without anything before it, and without the mark of a start. `exact` is 0 where that cannot be had."""
        for guard in ("", GUARD):
            made, lead = cut(self.vocabulary, guard + text), len(guard)
            first = sum(end <= lead for end in made.ends)
            if made.exact <= lead or first == len(made.ids) or (lead and made.ends[first - 1] != lead):
                continue
            if len(self.vocabulary.bytes_of(made.ids[first])) == made.ends[first] - lead:  # no mark is glued to it
                return Cut(made.ids[first:], [end - lead for end in made.ends[first:]], made.exact - lead)
        return Cut([], [], 0)

    def _prefixes(self, committed: Sequence[int], held: bytes) -> Iterator[tuple[int, bytes, bool]]:
        """(tokens, their bytes without `held`, whether they begin a text), the longest first, none at last."""
        vocabulary, pieces, size = self.vocabulary, [], 0
        for i in reversed(committed):
            enough = len(pieces) >= self.prefix and size >= len(held) and not (pieces and _inside(pieces[-1]))
            if enough or i in vocabulary.control:
                break
            pieces.append(vocabulary.bytes_of(i))
            size += len(pieces[-1])
        at_start = len(pieces) == len(committed) or committed[-len(pieces) - 1] in vocabulary.control
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
