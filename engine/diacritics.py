"""Polish letters with diacritics in a text, composed or not."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

POLISH = frozenset("ąćęłńóśźżĄĆĘŁŃÓŚŹŻ")
_MARKS = "[\u0300-\u036f]"
_CANDIDATE = re.compile(f"[ąćęłńóśźżĄĆĘŁŃÓŚŹŻ]{_MARKS}*|[aceonszACEONSZ]{_MARKS}+")


class Letter(NamedTuple):
    """One letter at the characters from `start` up to `end`; its combining marks belong to it, so it may be several."""

    start: int
    end: int
    text: str


def letters(text: str) -> list[Letter]:
    """Every ą ć ę ł ń ó ś ź ż of `text` and their capitals, in order; a base letter with its combining mark is one letter."""
    found = (Letter(m.start(), m.end(), m[0]) for m in _CANDIDATE.finditer(text))
    return [letter for letter in found if unicodedata.normalize("NFC", letter.text)[0] in POLISH]
