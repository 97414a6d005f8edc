"""Tables as CSV that a spreadsheet may open: no cell of it is calculated, and every text can be had back exactly."""

from __future__ import annotations

import csv
import io
import unicodedata
from typing import Any, Iterable, Sequence

SIGNS = "=+-@＝＋－＠−"  # what begins a formula in Excel, LibreOffice or Google Sheets, full-width forms included
MARK = "'"
HOW = ("A text that a spreadsheet might calculate (it begins with a tab, a line break or, after blanks, with = + - @) has one ' put before it, and "
       "so has one that begins with '. Take the first ' off a text to have it exactly. Numbers are as they are.")
COLUMN = "how_to_read"  # the last column of every table; its first cell says HOW
HELP = "A text that a spreadsheet would calculate (=1+1) has one ' put before it; take that off to have the exact text. Numbers are as they are."


def text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """RFC 4180, UTF-8: texts in quotes, numbers bare, None an empty cell. Texts are `guarded`, and the first row says so."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow((*head, COLUMN))
    note = HOW
    for row in rows:
        writer.writerow([*("" if v is None else guarded(v) if isinstance(v, str) else v for v in row), note])
        note = ""
    return out.getvalue()


def guarded(cell: str) -> str:
    """A text no spreadsheet takes for a formula; `exact` is the way back."""
    return MARK + cell if cell.startswith(MARK) or _runs(cell) else cell


def exact(cell: str) -> str:
    """The text that `guarded` was given."""
    return cell.removeprefix(MARK)


def _runs(cell: str) -> bool:
    """Whether some spreadsheet might take the text for a formula: programs differ in what they drop at the start."""
    if cell[:1] in ("\t", "\r", "\n"):
        return True
    for c in cell:
        if not (c.isspace() or unicodedata.category(c) in ("Cc", "Cf")):
            return c in SIGNS
    return False
