"""What a draft reads: the committed text in its own tokens, kept up to date as the text grows."""

from __future__ import annotations

from typing import Mapping, Sequence

from engine.decoding.cuts import characters, cut
from engine.tokens import Vocabulary

LEAD = 8  # tokens before the new text that are encoded again with it


class Reading:
    """`ids` are the prompt as the draft was given it and the text committed since, cut in context by the draft's tokenizer.

    Only the last LEAD tokens are encoded again when text is added. The new cut is taken over from the first token on that
    both cuts have, so what lies before stays, and the work does not grow with the text. An incomplete character at the end
    is read as byte tokens, where the draft has them, until its other bytes come.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], floor: int, by_bytes: Mapping[tuple[bytes, bool], int]):
        """floor: ids of the prompt that are never cut anew (all of a rendered chat template, the opening of a raw text).
        by_bytes: `cuts.ids_by_bytes` of the vocabulary."""
        self.vocabulary, self.floor, self._by_bytes = vocabulary, floor, by_bytes
        self.ids = list(prompt)
        self.held = b""  # bytes of a character that is not complete
        self._loose = 0  # ids at the end that stand for `held`
        self.agreed = len(self.ids)  # how many ids are what they were before the last `begin`

    def begin(self) -> None:
        """Changes are counted from here."""
        self.agreed = len(self.ids)

    def control(self, token: int | None) -> None:
        """A control token of the verifier: the draft's of the same name, or nothing. It is never read as letters."""
        self._drop_loose()
        self.held = b""  # whatever was begun will never be complete
        if token is not None:
            self.ids.append(token)

    def text(self, data: bytes) -> None:
        """More of the committed text."""
        if not data:
            return
        self._drop_loose()
        text, self.held = characters(self.held + data)
        if text:
            self._append(text)
        loose = self._byte_tokens()
        self.ids += loose
        self._loose = len(loose)

    @property
    def complete(self) -> bool:
        """Whether the draft has read every byte: it may lack the tokens for an incomplete character."""
        return not self.held or bool(self._loose)

    def _byte_tokens(self) -> list[int]:
        """Single-byte tokens for what is held; none at all if the vocabulary lacks one of them."""
        found = [self._by_bytes.get((bytes([b]), False)) for b in self.held]
        return [] if None in found else found

    def _drop_loose(self) -> None:
        if self._loose:
            self._keep(len(self.ids) - self._loose)
            self._loose = 0

    def _keep(self, count: int) -> None:
        del self.ids[count:]
        self.agreed = min(self.agreed, count)

    def _append(self, text: str) -> None:
        ids, vocabulary = self.ids, self.vocabulary
        start, pieces = len(ids), []
        while start and ids[start - 1] not in vocabulary.control:
            piece = vocabulary.bytes_of(ids[start - 1])
            pieces.insert(0, piece)
            start -= 1
            if len(pieces) >= LEAD and piece and piece[0] & 0xC0 != 0x80:
                break
        before = b"".join(pieces)
        try:
            made = cut(vocabulary, before.decode() + text, begins=not start or ids[start - 1] in vocabulary.control)
        except UnicodeDecodeError:  # the prompt's own ids are no text here
            made = None
        at = None if made is None or made.exact < len(before) + len(text.encode()) else self._joint(start, pieces, made)
        if at is None:  # the tokenizer changes what it reads: the new text on its own
            alone = cut(vocabulary, text)
            ids += [i for i, end in zip(alone.ids, alone.ends) if end > 0]
            return
        kept, first = at
        self._keep(kept)
        ids += made.ids[first:]

    def _joint(self, start: int, pieces: list[bytes], made) -> tuple[int, int] | None:
        """(how many old ids to keep, the first new token behind them): behind the first token that both cuts have, at the
        floor, or at the very start of the window if nothing was cut away there."""
        n, at, begun = start, 0, 0  # an old token and the byte it begins at; the byte at which a new one begins
        for m, (token, end) in enumerate(zip(made.ids, made.ends)):
            while at < begun and n < len(self.ids):
                at += len(pieces[n - start])
                n += 1
            if at == begun < end and n >= self.floor:
                if n == self.floor:
                    return n, m
                if n < len(self.ids) and token == self.ids[n] and end == at + len(pieces[n - start]):
                    return n + 1, m + 1
            begun = max(end, 0)
        alone = self.floor <= start and (not start or self.ids[start - 1] in self.vocabulary.control)
        return (start, sum(end <= 0 for end in made.ends)) if alone else None  # without a mark that stands alone in front
