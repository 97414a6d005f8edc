"""The card and the ribbon of entropies as SVG; see `ui.picture` for how such drawings are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from engine.analysis.entropy import Trail, sentence
from engine.trace import PLAIN, AnyRun
from ui import scale
from ui.entropy.card import caption, key_figures, notes, which
from ui.entropy.ribbon import HIGH, LOW, TICKS, band, clipped, legend_words, tokens_of
from ui.picture import CELL, EDGE, LINE, SIZE, WIDTH, cells, document, ribbon_lines, text, wrap
from ui.theme import Colours, colours

CARD_LINES, RIBBON_LINES = 16, 160
COLUMNS = 4


def card_svg(run: AnyRun, chosen: Sequence[Trail], trail: Trail, figures: dict, theme: str = "light") -> str:
    """Sentence, ribbon, key figures, notes and the caption."""
    c = colours(theme)
    parts, y = _head(run, chosen, trail, figures, c)
    drawn, y = _ribbon(run, trail, y, c, CARD_LINES)
    parts += drawn
    wide = (WIDTH - 2 * EDGE) / COLUMNS
    rows = key_figures(figures)
    for i, (name, figure, remark, _) in enumerate(rows):
        x, top = EDGE + (i % COLUMNS) * wide, y + (i // COLUMNS) * 66
        parts += [text(x, top, name, 13, c.quiet), text(x, top + 22, figure or "n/a", 18, c.ink if figure else c.quiet, weight=600),
                  text(x, top + 39, remark, 12, c.quiet)]
    y += 66 * -(-len(rows) // COLUMNS)
    for note in notes(run, chosen):
        for line in wrap(note, WIDTH - 2 * EDGE, 13):
            parts.append(text(EDGE, y, line, 13, c.quiet))
            y += 18
    return _foot(parts, y, caption(run, chosen, trail), sentence(run, figures), c)


def ribbon_svg(run: AnyRun, chosen: Sequence[Trail], trail: Trail, figures: dict, theme: str = "light") -> str:
    """The whole ribbon with its scale and the caption."""
    c = colours(theme)
    parts, y = _head(run, chosen, trail, figures, c)
    drawn, y = _ribbon(run, trail, y, c, RIBBON_LINES)
    return _foot(parts + drawn, y, caption(run, chosen, trail), sentence(run, figures), c)


def _head(run: AnyRun, chosen: Sequence[Trail], trail: Trail, figures: dict, c: Colours) -> tuple[list[str], float]:
    parts, y = [], EDGE + 18
    for line in wrap(sentence(run, figures), WIDTH - 2 * EDGE, 19):
        parts.append(text(EDGE, y, line, 19, c.ink, weight=600))
        y += 26
    if len(chosen) > 1 or trail.label:
        parts.append(text(EDGE, y, which(trail), 13, c.quiet))
        y += 20
    return parts, y - 8


def _ribbon(run: AnyRun, trail: Trail, y: float, c: Colours, most: int) -> tuple[list[str], float]:
    tokens = [replace(token, state=PLAIN) for token in tokens_of(run, trail)]  # colours and lines speak of entropy alone
    rows, left = ribbon_lines(tokens, WIDTH - 2 * EDGE - 16, most=most)
    height = LINE * len(rows) + 16
    out = [f'<rect x="{EDGE}" y="{y:.1f}" width="{WIDTH - 2 * EDGE}" height="{height}" rx="6" fill="none" stroke="{c.line}"/>']
    for n, row in enumerate(rows):
        for at, words, token in row:
            out += _token(trail.bits[token.index], words, EDGE + 8 + at * CELL, y + 8 + n * LINE, c)
    y += height + 8
    if left:
        out.append(text(EDGE, y + 10, f"… {left:,} more tokens; the HTML and CSV files hold all of them", 12, c.quiet))
        y += 18
    return out + _legend(trail, y, c), y + 74


def _token(bits: float | None, words: str, x: float, y: float, c: Colours) -> list[str]:
    width = cells(words) * CELL
    place = None if bits is None else scale.of_step(scale.step(bits, LOW, HIGH))
    fill, ink = ("none", c.quiet) if place is None else (scale.colour(place), scale.ink(place))
    out = [f'<rect x="{x:.1f}" y="{y + 2:.1f}" width="{max(width - 1, 1):.1f}" height="{LINE - 7}" rx="2" fill="{fill}"/>']
    if bits is not None and band(bits):
        out += _line(band(bits), x, x + width - 1, y + LINE - 3, c)
    return out + [text(x, y + 16, words, SIZE, ink, mono=True, length=width)]


def _line(number: int, left: float, right: float, y: float, c: Colours) -> list[str]:
    """The line below a token: 1 to 3 pixels, or two lines."""
    tops, thick = ((y - 1.5, y + 1.5), 1) if number == 4 else ((y,), number)
    return [f'<path d="M{left:.1f} {top:.1f}H{max(right, left + 1):.1f}" stroke="{c.ink}" stroke-width="{thick}"/>' for top in tops]


def _legend(trail: Trail, y: float, c: Colours) -> list[str]:
    out, width = [text(EDGE, y + 12, "model entropy, bits (fixed scale)", 12, c.quiet)], 220
    for n in range(scale.STEPS):
        out.append(f'<rect x="{EDGE + n * width / scale.STEPS:.2f}" y="{y + 17}" width="{width / scale.STEPS + 0.4:.2f}" height="9" '
                   f'fill="{scale.colour(scale.of_step(n))}"/>')
    for i, tick in enumerate(TICKS):
        anchor = "start" if i == 0 else "end" if i == len(TICKS) - 1 else "middle"
        out.append(text(EDGE + width * i / (len(TICKS) - 1), y + 39, tick, 11, c.quiet, anchor=anchor))
    x = EDGE + width + 36
    for name, _, meaning in legend_words(trail):
        if name.startswith("u"):
            out += _line(int(name[1:]), x, x + 30, y + 24, c)
        else:
            out.append(f'<rect x="{x}" y="{y + 14}" width="30" height="14" rx="2" fill="none" stroke="{c.line}"/>')
        out.append(text(x + 38, y + 27, meaning, 12, c.quiet))
        x += 54 + 7 * len(meaning)
    over = clipped([trail])
    return out + ([text(x, y + 27, f"{over} above {HIGH:g} bits, last colour", 12, c.quiet)] if over else [])


def _foot(parts: list[str], y: float, words: str, title: str, c: Colours) -> str:
    out = [*parts, f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{y:.1f}" y2="{y:.1f}" stroke="{c.line}"/>']
    y += 18
    for line in wrap(words, WIDTH - 2 * EDGE, 11):
        out.append(text(EDGE, y, line, 11, c.quiet))
        y += 16
    return document(out, WIDTH, y + 8, c, title)
