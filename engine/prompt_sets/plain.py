"""Text without columns: one prompt a line, paragraphs, or all of it."""

from __future__ import annotations

import re

from engine.prompt_sets.shapes import Rows, flaw


def lines(text: str) -> Rows:
    """Every line that is not blank is a prompt, with its white space."""
    rows = Rows()
    for number, line in enumerate(_split(text), 1):
        _take(rows, number, line)
    return rows


def paragraphs(text: str) -> Rows:
    """Runs of lines that are not blank, each one prompt with its inner line breaks. Blank lines between count as skipped."""
    rows, held, start = Rows(), [], 1
    for number, line in enumerate([*_split(text), ""], 1):
        if line.strip():
            start = start if held else number
            held.append(line)
        elif held:
            _take(rows, start, "\n".join(held))
            held = []
        else:
            rows.skipped_blank += 1
    rows.skipped_blank = sum(not line.strip() for line in _split(text))
    return rows


def whole(text: str) -> Rows:
    """One prompt, without the last line's end."""
    rows = Rows()
    _take(rows, 1, text.removesuffix("\n"))
    return rows


def _split(text: str) -> list[str]:
    """Lines end at LF alone: other characters that Unicode lets break a line are text."""
    return text.removesuffix("\n").split("\n") if text else []


def _take(rows: Rows, line: int, text: str) -> None:
    why = flaw(text)
    if why:
        found = re.search("[\0\ud800-\udfff]", text)
        rows.refuse(line + text.count("\n", 0, found.start()), why)
    elif text.strip():
        rows.rows.append((line, {"": text}))
    else:
        rows.skipped_blank += 1
