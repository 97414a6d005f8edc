"""A text cut by a tokenizer, with the byte at which each token ends."""

from __future__ import annotations

import codecs
from typing import NamedTuple
from weakref import WeakKeyDictionary

from engine.tokens import Vocabulary


_tables: WeakKeyDictionary[Vocabulary, dict] = WeakKeyDictionary()  # of a large vocabulary it takes a second


class Cut(NamedTuple):
    """`ends[i]`: bytes of the text up to the end of token i. The first `exact` bytes of the text are spelled by the tokens
    as they stand; behind them the tokenizer wrote something else (composed a letter, dropped a space, knew no token).

    A space that the tokenizer puts in front of every text counts as no byte, so a token that is only that ends at 0.
    """

    ids: list[int]
    ends: list[int]
    exact: int


def cut(vocabulary: Vocabulary, text: str, begins: bool = False) -> Cut:
    """`text` encoded on its own. `begins`: it starts a text, and a space at its front is that mark, not a second one."""
    raw = text.encode()
    if begins:
        bare = vocabulary.without_mark(text)
        if bare != text:
            whole = _placed(vocabulary, vocabulary.encode(bare), raw)
            if whole.exact == len(raw):
                return whole
    return _placed(vocabulary, vocabulary.encode(text), raw)


def _placed(vocabulary: Vocabulary, ids: list[int], raw: bytes) -> Cut:
    """Where the tokens lie in `raw`."""
    pieces = [vocabulary.bytes_of(i) for i in ids]
    spelled = b"".join(pieces)
    lead = 0
    if spelled != raw:
        # A mark in front of the text: one space more than there is.
        lead = int(spelled[:1] == b" " and (spelled[1:] == raw or _alike(spelled[1:], raw) > _alike(spelled, raw)))
    ends, at = [], -lead
    for piece in pieces:
        at += len(piece)
        ends.append(at)
    return Cut(ids, ends, len(raw) if spelled[lead:] == raw else _alike(spelled[lead:], raw))


def _alike(a: bytes, b: bytes) -> int:
    """How many bytes two byte strings begin with in common."""
    return next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def ids_by_bytes(vocabulary: Vocabulary) -> dict[tuple[bytes, bool], int]:
    """(bytes, whether a control token) → id. Of several tokens with the same bytes it is the one spelled as it reads:
    that is what text becomes (`A`, not the byte token `<0x41>`). Tokens without bytes are left out."""
    table = _tables.get(vocabulary)
    if table is None:
        found: dict[tuple[bytes, bool], tuple[bool, int]] = {}
        for token, i in vocabulary.ids_by_token().items():
            data = vocabulary.bytes_of(i)
            if data:
                key, rank = (data, i in vocabulary.control), (token.replace("\u2581", " ").encode() != data, i)
                if key not in found or rank < found[key]:
                    found[key] = rank
        table = _tables[vocabulary] = {key: i for key, (_, i) in found.items()}
    return table


def characters(data: bytes) -> tuple[str, bytes]:
    """The complete characters of `data`, without bytes that can be no UTF-8, and the bytes of one begun at its end."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError:
        pass
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    return decoder.decode(data), decoder.getstate()[0]


def text_ahead(data: bytes) -> str:
    """The characters that `data` begins with, up to the first byte that is no text, or a U+FFFD, which nobody meant."""
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        text = data[: e.start].decode()
    return text.split("\ufffd", 1)[0] if "\ufffd" in text else text
