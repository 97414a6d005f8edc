"""Where an answer ends: at its first end token, or with the token that completes the first stop string."""

from __future__ import annotations

from typing import Sequence

from engine.models.base import Model
from engine.tokens import Assembler
from engine.trace import STOP_STRING


class Ending:
    """One answer's. Stop strings are looked for in the bytes of its text, wherever tokens and rounds begin and end in them."""

    def __init__(self, model: Model, stop: Sequence[str] = ()):
        self.model, self.ends = model, frozenset(model.ends)
        self.strings = tuple(s.encode("utf-8", "surrogatepass") for s in stop)
        self._longest = max(map(len, self.strings), default=1)
        self._tail = b""  # end of the text so far, in which a string may have begun

    def cut(self, ids: Sequence[int]) -> tuple[list[int], str | None]:
        """Those of the next `ids` that belong to the answer, and why it ends with them ("eos", "stop string") if it does."""
        for at, token in enumerate(ids):
            if token in self.ends:
                return list(ids[: at + 1]), "eos"
            if self.strings and token not in self.model.vocabulary.special:
                self._tail += self.model.vocabulary.bytes_of(token)
                if any(s in self._tail for s in self.strings):
                    return list(ids[: at + 1]), STOP_STRING
                self._tail = self._tail[len(self._tail) - self._longest + 1 :] if len(self._tail) >= self._longest else self._tail
        return list(ids), None


def text_of(model: Model, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
    """Text of an answer, from its tokens' bytes, up to the first of the strings `stop`. Special tokens are no text."""
    data = b"".join(model.vocabulary.bytes_of(i) for i in ids if i not in model.vocabulary.special)
    places = [at for s in stop if (at := data.find(s.encode("utf-8", "surrogatepass"))) >= 0]
    assembler = Assembler()
    return assembler.feed(data[: min(places, default=len(data))]) + assembler.finish()
