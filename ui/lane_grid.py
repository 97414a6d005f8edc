"""Where everything of an alignment stands on a grid of monospace cells: characters, tokens, cuts, split letters.

One cell is a character with the combining marks behind it. Places on the line are in cells' widths (one Latin letter = 1)
from the beginning of the window; a cut inside a character falls between the edges of its cell. HTML and SVG both draw
from this, so they show the same.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from engine.alignment import Alignment
from engine.lanes import Lane
from engine.tokens import hidden

LONGEST = 14  # widths of the longest block: a longer word is parted, so that it fits a narrow screen
WINDOW = 1200  # characters drawn at once: more would keep a browser busy
_PLAIN = frozenset(map(chr, [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x180)])) | frozenset("„”“’‘–—…«»")


class Cell(NamedTuple):
    """The characters from `start` up to `end`; `kind` says how it is drawn: plain (the font's own width), wide or odd
    (a box of its own), space, tab, break, or hidden (its code stands for it)."""

    start: int
    end: int
    text: str
    width: int
    kind: str


class Piece(NamedTuple):
    """One token, or the part of it that falls into one block, from `left` to `right`. `opens`: its beginning lies here,
    and a cut there is made by all lanes ("both"), by some ("lone"), or is none (the text begins)."""

    left: float
    right: float
    token: int
    opens: str


class Bracket(NamedTuple):
    """A letter that this lane splits between tokens."""

    left: float
    right: float


@dataclass(frozen=True)
class Block:
    """What moves to the next line as one: white space and the word behind it. `left` is where it begins on the line;
    `lanes` and `brackets` have an entry a lane, in places relative to that. `breaks`: a line break ends it."""

    left: int
    width: int
    cells: tuple[Cell, ...]
    lanes: tuple[tuple[Piece, ...], ...]
    brackets: tuple[tuple[Bracket, ...], ...]
    breaks: bool


def windows(text: str, most: int = WINDOW) -> list[tuple[int, int]]:
    """`text` in stretches of at most `most` characters, each ending at a line break or else a space where there is one
    in its last quarter: what is drawn at once. Empty for an empty text."""
    found, start = [], 0
    while start < len(text):
        end = min(start + most, len(text))
        if end < len(text):
            floor = start + most * 3 // 4
            cut = max(text.rfind("\n", floor, end) + 1, 0) or max(text.rfind(" ", floor, end), 0)
            end = cut if cut > start else end
            while start < end < len(text) and _joins(text[end]):  # no letter without its marks
                end += 1
        found.append((start, end))
        start = end
    return found


def blocks(a: Alignment, start: int = 0, end: int | None = None) -> list[Block]:
    """The characters of `a` from `start` up to `end` (both as `windows` gives them), laid out."""
    end = len(a.text) if end is None else end
    row = cells(a.text, start, end)
    if not row:
        return []
    x = [0]
    for cell in row:
        x.append(x[-1] + cell.width)
    drawn = [_pieces(a, number, row, x) for number in range(len(a.lanes))]
    result, first = [], 0
    for last in _ends(row, x):
        left, right = x[first], x[last]
        result.append(Block(
            left, right - left, tuple(row[first:last]),
            tuple(tuple(_clipped(pieces, left, right)) for pieces, _ in drawn),
            tuple(tuple(Bracket(b.left - left, b.right - left) for b in brackets if left <= b.left < right) for _, brackets in drawn),
            row[last - 1].kind == "break"))
        first = last
    return result


def cells(text: str, start: int, end: int) -> list[Cell]:
    """Characters with their combining marks, one cell each."""
    found, i = [], start
    while i < end:
        j = i + 1
        while j < end and _joins(text[j]) and text[i] not in "\n\t\r":
            j += 1
        found.append(_cell(text[i:j], i, j))
        i = j
    return found


def _joins(c: str) -> bool:
    return unicodedata.category(c)[0] == "M"


def _cell(text: str, start: int, end: int) -> Cell:
    c = text[0]
    if text in _PLAIN:
        return Cell(start, end, text, 1, "plain")
    if text in (" ", "\t", "\n"):
        return Cell(start, end, text, 1, {" ": "space", "\t": "tab", "\n": "break"}[text])
    if hidden(c) or _joins(c):  # a mark without a letter would land on its neighbour
        return Cell(start, end, text, 2 if ord(c) < 0x10000 else 3, "hidden")
    return Cell(start, end, text, 2 if unicodedata.east_asian_width(c) in "WF" else 1, "odd")


def _ends(row: list[Cell], x: list[int]) -> list[int]:
    """Where blocks end, as indices into `row`."""
    ends, first = [], 0
    for i in range(1, len(row)):
        word_over = row[i].kind in ("space", "tab", "break") and row[i - 1].kind not in ("space", "tab")
        if row[i - 1].kind == "break" or (word_over and row[i].kind != "break") or x[i + 1] - x[first] > LONGEST:
            ends.append(i)
            first = i
    return [*ends, len(row)]


def _pieces(a: Alignment, number: int, row: list[Cell], x: list[int]) -> tuple[list[Piece], list[Bracket]]:
    """The tokens of one lane that the row shows, and the letters it splits there."""
    lane = a.lanes[number]
    firsts = [cell.start for cell in row]
    begins = frozenset(firsts)
    low, high = row[0].start, row[-1].end

    def place(character: int, after: bool = False) -> tuple[float, float]:
        """The edges of the cell that holds a character; `after`: of the character before this boundary."""
        i = min(max(bisect_right(firsts, character - after) - 1, 0), len(row) - 1)
        return x[i], x[i + 1]

    shown = _shown(lane, low, high)
    edges: list[tuple[float, float]] = []  # between token k and the next: one place, or the stretch that they share
    for k, following in zip(shown, shown[1:]):
        one, other = lane.tokens[k], lane.tokens[following]
        if other.start < one.end:
            edges.append((place(other.start)[0], place(one.end, after=True)[1]))
        else:
            left, right = place(other.start)
            edges.append((left, left) if other.start in begins else (left, right))  # else between a letter and its mark
    at, brackets = _spread(edges)
    pieces, cut_of = [], _cut_before(a, number, shown)
    for n, k in enumerate(shown):
        token = lane.tokens[k]
        left = at[n - 1] if n else place(token.start)[0] if token.start >= low else 0
        right = at[n] if n < len(at) else place(token.end, after=True)[1] if token.end <= high else x[-1]
        pieces.append(Piece(left, right, k, cut_of[n] if token.start >= low else ""))
    return pieces, brackets


def _shown(lane: Lane, low: int, high: int) -> list[int]:
    """Tokens with a part in the window; those without a character (a space in front, alone) have no place to be drawn."""
    starts = [token.start for token in lane.tokens]
    ends = [token.end for token in lane.tokens]
    return [k for k in range(bisect_right(ends, low), bisect_left(starts, high)) if ends[k] > starts[k]]


def _spread(edges: list[tuple[float, float]]) -> tuple[list[float], list[Bracket]]:
    """Edges at one place stay; those that share a stretch part it evenly, and the stretch is bracketed."""
    at, brackets, n = [], [], 0
    while n < len(edges):
        left, right = edges[n]
        m = n
        while m < len(edges) and edges[m] == edges[n]:
            m += 1
        if left == right:
            at += [left] * (m - n)
        else:
            at += [left + (right - left) * (i + 1) / (m - n + 1) for i in range(m - n)]
            brackets.append(Bracket(left, right))
        n = m
    return at, brackets


def _cut_before(a: Alignment, number: int, shown: list[int]) -> list[str]:
    """For every shown token: whether all lanes cut before it."""
    lane = a.lanes[number]
    kinds, n = {}, 0
    for k, token in enumerate(lane.tokens):
        if not token.bytes and token.spelled is None:
            continue
        if n:
            kinds[k] = "both" if a.counts[lane.cuts[n - 1]] == len(a.lanes) else "lone"
        n += 1
    return [kinds.get(k, "") for k in shown]


def _clipped(pieces: list[Piece], left: float, right: float) -> list[Piece]:
    first = bisect_right(pieces, left, key=lambda p: p.right)
    last = bisect_left(pieces, right, key=lambda p: p.left)
    return [Piece(max(p.left, left) - left, min(p.right, right) - left, p.token, p.opens if p.left >= left else "")
            for p in pieces[first:last]]
