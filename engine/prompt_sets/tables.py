"""CSV and its kin: which separator, whether the first row names the columns, and rows that know their line in the file."""

from __future__ import annotations

import csv
import re
from typing import Iterator

from engine.prompt_sets.columns import is_known
from engine.prompt_sets.shapes import Rows, flaw

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe", "": "none: one column"}
_ABSENT = "\x1f"  # stands in where there is no separator; csv wants one
_SAMPLE = 200  # rows that the separator and the header are judged by
_AGAIN = 10  # how often, on average, a line may be read again after a broken quote; bounds the time of a hostile file

Row = tuple[int, list[str] | None, str | None]  # line, cells, or why there are none


def table(text: str, separator: str | None = None, header: bool | None = None) -> Rows:
    """Rows of a table. `separator` a key of SEPARATORS and `header`: None to detect.

    A row whose quotes do not close, or with more cells than the header, is refused with its line; the rows after it are read.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    said = re.fullmatch(r"sep=([,;\t|])", lines[0]) if lines else None  # Excel's own first line
    if said:
        lines[0] = ""
    if separator is None:
        separator = said.group(1) if said else detect_separator(lines)
    taken = Rows(separator=separator, skipped_blank=-bool(said))
    found = _records(lines, separator)
    first: list[Row] = []
    sound: list[list[str]] = []
    for row in found:
        first.append(row)
        if row[1]:
            sound.append(row[1])
        if len(sound) == _SAMPLE:
            break
    if not sound:
        for line, cells, why in first:
            if cells is None:
                taken.refuse(line, why or "cannot be read.")
        taken.skipped_blank += sum(cells == [] for _, cells, _ in first)
        return taken
    if header is None:
        header = _has_header(sound)
        if not header:
            taken.notes.append("The first row does not look like names of columns, so it is read as a prompt.")
    taken.header = header
    width = len(sound[0]) if header else max(map(len, sound))
    taken.columns = _names(sound[0]) if header else [f"column {i + 1}" for i in range(width)]
    named = not header

    def take(row: Row) -> None:
        nonlocal named
        line, cells, why = row
        if cells is None:
            taken.refuse(line, why or "cannot be read.")
        elif not cells:
            taken.skipped_blank += 1
        elif not named:
            named = True  # this row is the header itself
        elif wrong := next(filter(None, map(flaw, cells)), None):
            taken.refuse(line, wrong)
        elif len(cells) > width and any(cells[width:]):
            taken.refuse(line, f"has {len(cells)} cells, but there are {width} columns; put text that holds the separator in quotes.")
        else:
            taken.rows.append((line, dict(zip(taken.columns, cells))))

    for row in first:
        take(row)
    for row in found:
        take(row)
    return taken


def detect_separator(lines: list[str]) -> str:
    """The separator that cuts most rows into as many cells as the first, two or more; "" if none does."""
    best, chosen = (0.0, False, 0), ""
    for separator in (";", "\t", "|", ","):
        rows = []
        for _, cells, _ in _records(lines[:2000], separator):
            if cells:
                rows.append(cells)
            if len(rows) == _SAMPLE:
                break
        if not rows or len(rows[0]) < 2:
            continue
        same = sum(len(r) == len(rows[0]) for r in rows) / len(rows)
        score = (same, any(map(is_known, rows[0])), len(rows[0]))
        if any(map(is_known, rows[0])):
            score = (same + 1, True, len(rows[0]))  # names of columns are better evidence than even rows
        if score > best and score[0] > 0.5:
            best, chosen = score, separator
    return chosen


def _records(lines: list[str], separator: str) -> Iterator[Row]:
    """Every record with the line it begins in. [] is a blank one. After a broken record reading goes on at the next line."""
    csv.field_size_limit(2**31 - 1)  # a prompt of a million tokens is one cell
    at, budget = 0, _AGAIN * len(lines) + 1000
    while at < len(lines):
        start = at
        reader = csv.reader((lines[i] + "\n" for i in range(start, len(lines))), delimiter=separator or _ABSENT, strict=True)
        while True:
            before = start + reader.line_num
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as e:
                after = start + reader.line_num
                yield before + 1, None, _why(e, lines[before:after])
                budget -= after - before
                at = before + 1 if budget > 0 else after
                break
            yield before + 1, cells if any(c.strip() for c in cells) else [], None


def _why(error: csv.Error, lines: list[str]) -> str:
    nul = next((line for line in lines if "\0" in line), None)
    if nul is not None:  # Python 3.10 refuses these itself
        return flaw(nul) or str(error)
    if "unexpected end" in str(error):
        return "opens a quote that is never closed."
    return "has a quote that is closed in the middle of a cell; a quote inside quotes is written twice."


def _names(cells: list[str]) -> list[str]:
    """Column names from a header: never empty, never twice the same."""
    names: list[str] = []
    for i, cell in enumerate(cells):
        name = cell.strip() or f"column {i + 1}"
        n, made = 2, name
        while made in names:
            made, n = f"{name} ({n})", n + 1
        names.append(made)
    return names


def _has_header(rows: list[list[str]]) -> bool:
    """Known names, or a row of names over rows that are plainly something else."""
    head, rest = rows[0], rows[1:]
    if any(map(is_known, head)):
        return True
    if not rest or not all(re.fullmatch(r"[^\W\d][\w .-]{0,39}", cell.strip()) for cell in head) or len(set(head)) < len(head):
        return False
    for i, name in enumerate(head):
        below = [r[i].strip() for r in rest if i < len(r) and r[i].strip()]
        if below and all(re.fullmatch(r"[-+]?\d+([.,]\d+)?", b) for b in below):
            return True
        if len(below) > 1 and " " not in name.strip() and all(" " in b for b in below):
            return True
    return False
