"""The lanes and their figures as SVG, laid out by hand like `ui.picture`, so that a picture needs no browser."""

from __future__ import annotations

from itertools import groupby

from engine.alignment import Alignment, sentences
from engine.tokens import code_name
from ui.lane_grid import WINDOW, Block, Cell, blocks, windows
from ui.lanes import EVERY
from ui.picture import CELL, EDGE, SIZE, WIDTH, document, text, wrap
from ui.theme import Colours, colours

NAME, LANE, ROW = 110, 27, 24  # pixels: the column of names, a lane, the ruler's line
MOST = 60  # lines of a picture


def lanes_svg(a: Alignment, theme: str = "light", start: int = 0, end: int | None = None, caption: str = "") -> str:
    """The window at `start` (see `ui.lane_grid.windows`), a legend, the sentences, and a caption. For export."""
    c = colours(theme)
    if end is None:
        end = start + windows(a.text[start:start + 2 * WINDOW])[0][1] if a.text else 0
    out, y = [], float(EDGE)
    lines = _lines(blocks(a, start, end), (WIDTH - 2 * EDGE - NAME) / CELL)
    for line in lines[:MOST]:
        out += _line(a, line, y, c)
        y += 40 + LANE * len(a.lanes) + 10
    if start or end < len(a.text) or len(lines) > MOST:
        shown = lines[:MOST][-1][-1].cells[-1].end if lines else start
        out.append(text(EDGE, y + 8, f"Characters {start + 1:,} to {shown:,} of {len(a.text):,}; the figures are of the whole text.", 12, c.quiet))
        y += 24
    drawn, y = _legend(a, y, c)
    out += drawn
    for words, colour, size in [*((s, c.ink, 14) for s in sentences(a)), *((n, c.quiet, 12) for one in a.lanes for n in one.notes),
                                *([(caption, c.quiet, 12)] if caption else [])]:
        for one in wrap(words, WIDTH - 2 * EDGE, size):
            out.append(text(EDGE, y, one, size, colour))
            y += size + 6
    return document(out, WIDTH, y + 8, c, " ".join(sentences(a)) or "Tokens of a text")


def _lines(laid: list[Block], columns: float) -> list[list[Block]]:
    lines: list[list[Block]] = [[]]
    at = 0
    for block in laid:
        if lines[-1] and at + block.width > columns:
            lines.append([])
            at = 0
        lines[-1].append(block)
        at += block.width
        if block.breaks:
            lines.append([])
            at = 0
    return [line for line in lines if line]


def _line(a: Alignment, line: list[Block], y: float, c: Colours) -> list[str]:
    out, left = [], EDGE + NAME
    marked = {t.letter.start: t.lone for t in a.letters if line[0].cells[0].start <= t.letter.start < line[-1].cells[-1].end}
    for number, lane in enumerate(a.lanes):
        title = lane.title if len(lane.title) <= 15 else lane.title[:14] + "…"
        out.append(text(EDGE, y + 57 + number * LANE, title, 12, c.quiet))
    for block in line:
        x = left + 0.0
        for number, (pieces, brackets) in enumerate(zip(block.lanes, block.brackets)):
            top = y + 41 + number * LANE
            for piece in pieces:
                fill = c.line if piece.token % 2 else c.area
                out.append(_box(left + piece.left * CELL, top, (piece.right - piece.left) * CELL, 23, fill))
            for piece in (p for p in pieces if p.opens):
                out.append(_bar(left + piece.left * CELL, top, piece.opens == "lone", c))
            for b in brackets:
                l, r = left + b.left * CELL + 1, left + b.right * CELL - 1
                out.append(f'<path d="M{l:.1f} {top + 19:.1f}v5H{r:.1f}v-5" fill="none" stroke="{c.ink}" stroke-width="1.5"/>')
        for cell in block.cells:
            wide = cell.width * CELL
            if any(i % EVERY == 0 for i in range(cell.start, cell.end)):
                out.append(text(x + 2, y + 10, str(-(-cell.start // EVERY) * EVERY), 10, c.quiet))
                out.append(f'<path d="M{x:.1f} {y:.1f}v12" stroke="{c.faint}"/>')
            if cell.start in marked:
                hit = marked[cell.start]
                out.append(f'<rect x="{x + .5:.1f}" y="{y + 15.5:.1f}" width="{wide - 1:.1f}" height="21" rx="3" '
                           f'fill="{c.closing if hit else "none"}" stroke="{c.edge if hit else c.quiet}"/>')
            x += wide
        out += _faces(block, left, (y + 31, *(y + 57 + n * LANE for n in range(len(a.lanes)))), c)
        left += block.width * CELL
    return out


def _faces(block: Block, x: float, bases: tuple[float, ...], c: Colours) -> list[str]:
    """The characters of a block, once on every base line. Those of the font's own width are written in one run."""
    out = []
    for kind, cells in groupby(block.cells, key=lambda cell: cell.kind if cell.kind == "plain" else id(cell)):
        run = list(cells)
        wide = sum(cell.width for cell in run) * CELL
        shown, size, colour = _face(run[0], c) if kind != "plain" else ("".join(cell.text for cell in run), SIZE, c.ink)
        place = dict(x=x, length=wide) if kind == "plain" else dict(x=x + wide / 2, anchor="middle")
        out += [text(y=base, words=shown, size=size, fill=colour, mono=True, **place) for base in bases]
        x += wide
    return out


def _face(cell: Cell, c: Colours) -> tuple[str, float, str]:
    signs = {"space": "·", "tab": "→", "break": "⏎"}
    if cell.kind in signs:
        return signs[cell.kind], SIZE, c.faint
    if cell.kind == "hidden":
        return code_name(cell.text[0]).removeprefix("U+"), 8, c.quiet
    return cell.text, SIZE, c.ink


def _box(x: float, y: float, wide: float, high: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high}" fill="{fill}"/>'


def _bar(x: float, top: float, lone: bool, c: Colours) -> str:
    if lone:
        return f'<path d="M{x:.1f} {top - 2:.1f}v27" stroke="{c.accent}" stroke-width="2" stroke-dasharray="4 3"/>'
    return f'<path d="M{x:.1f} {top:.1f}v23" stroke="{c.ink}" stroke-width="1.5"/>'


def _legend(a: Alignment, y: float, c: Colours) -> tuple[list[str], float]:
    """The marks and what they mean; returns the drawing and the y of the line below it."""
    several = len(a.lanes) > 1
    x, out = float(EDGE), []
    items = [("bar", "every tokenizer cuts here" if several else "a token ends and the next begins")]
    items += [("lone", "only some of them do")] if several else []
    items += [("letter", "letter with a diacritic")]
    items += [("hit", "touched by a cut that only some make")] if several else []
    items += [("split", "letter split between tokens")]
    for kind, words in items:
        if kind in ("bar", "lone"):
            out += [_box(x, y, 9, 16, c.area), _box(x + 9, y, 9, 16, c.line), _bar(x + 9, y - 4, kind == "lone", c)]
        elif kind == "split":
            out.append(f'<path d="M{x + 3:.1f} {y + 10:.1f}v5h12v-5" fill="none" stroke="{c.ink}" stroke-width="1.5"/>')
        else:
            out.append(f'<rect x="{x + 3:.1f}" y="{y - 2:.1f}" width="12" height="20" rx="3" fill="{c.closing if kind == "hit" else "none"}" '
                       f'stroke="{c.edge if kind == "hit" else c.quiet}"/>')
            out.append(text(x + 9, y + 13, "ż", SIZE, c.ink, mono=True, anchor="middle"))
        out.append(text(x + 26, y + 13, words, 12, c.quiet))
        x += 26 + 6.4 * len(words) + 18
    return out, y + 48
