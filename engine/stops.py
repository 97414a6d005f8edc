"""Stop strings: the texts at whose first occurrence an answer ends, as they are written at the command line and on a page."""

from __future__ import annotations

import re
from typing import Sequence

from engine.errors import RequestError

MOST, LENGTH = 16, 500  # how many, and how many characters each
NOTE = "An answer ends with the token that completes a stop string; the string is among the tokens and left out of the text."
HELP = r"An answer ends where this text first occurs, which is then left out of it. \n is a line break, \t a tab, \\ a backslash."

_WRITTEN = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}
_READ = {written: text for text, written in _WRITTEN.items()}


def read(written: str) -> str:
    r"""The text that is meant by one line: \n, \t, \r and \\ stand for what cannot be typed; any other backslash is itself."""
    return re.sub(r"\\[ntr\\]", lambda m: _READ[m[0]], written)


def written(text: str) -> str:
    """A stop string on one line; `read` gives it back."""
    return "".join(_WRITTEN.get(c, c) for c in text)


def check(strings: Sequence[str]) -> None:
    """RequestError if stop strings are too many, too long or empty (an empty one ends every answer before it begins)."""
    if len(strings) > MOST:
        raise RequestError(f"There are {len(strings)} stop strings; at most {MOST} are looked for.")
    for s in strings:
        if not 0 < len(s) <= LENGTH:
            raise RequestError("A stop string is empty; leave it out, or give some text." if not s else
                               f"A stop string has {len(s):,} characters; at most {LENGTH} are looked for.")
