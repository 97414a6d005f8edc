"""The card and the ribbon of one prompt's sinks as SVG; see `ui.picture` for how such drawings are made."""

from __future__ import annotations

import math

from engine.attention.view import SinkView, anomalous_rows, structural_rows
from engine.trace import SinkItem, SinksRun
from ui import scale
from ui.picture import CELL, EDGE, GAP, LINE, SIZE, WIDTH, cells, document, ribbon_lines, text, wrap
from ui.ribbon import number
from ui.sinks.card import Chosen, _z, caption, counted, has_opening, share, sink_word
from ui.sinks.ribbon import HIGH, LOW, TICKS, tokens_of
from ui.theme import Colours, colours

CARD_LINES, RIBBON_LINES, ROWS = 14, 160, 10


def card_svg(run: SinksRun, item: SinkItem, view: SinkView, chosen: Chosen, theme: str = "light") -> str:
    """Headline, health, ribbon, both tables and the caption."""
    c = colours(theme)
    parts, y = _head(view, c)
    drawn, y = _ribbon(run, item, view, y, c, CARD_LINES)
    parts += drawn
    half = (WIDTH - 2 * EDGE - GAP) / 2
    structural = structural_rows(view, run.tokens, run.special)
    tables = (("Structural", f"{len(structural)} tokens of {len(view.ids):,}", structural),
              ("Anomalous", f"outside the template, {counted(view)}", anomalous_rows(view, run.tokens, run.special)))
    ends = []
    for i, (title, of, rows) in enumerate(tables):
        drawn, end = _table(EDGE + i * (half + GAP), y, half, title, of, rows, c)
        parts += drawn
        ends.append(end)
    return _foot(parts, max(ends), caption(run, item, view, chosen), view.sentence, c)


def ribbon_svg(run: SinksRun, item: SinkItem, view: SinkView, chosen: Chosen, theme: str = "light") -> str:
    """The whole ribbon with its scale and the caption."""
    c = colours(theme)
    parts, y = _head(view, c)
    drawn, y = _ribbon(run, item, view, y, c, RIBBON_LINES)
    return _foot(parts + drawn, y, caption(run, item, view, chosen), view.sentence, c)


def _head(view: SinkView, c: Colours) -> tuple[list[str], float]:
    parts, y = [], EDGE + 18
    for line in wrap(view.sentence, WIDTH - 2 * EDGE, 19):
        parts.append(text(EDGE, y, line, 19, c.ink, weight=600))
        y += 26
    h = view.health
    published = "n/a" if view.health_published is None else f"{view.health_published:.1f}"
    drained = "n/a" if h.drained is None else share(h.drained)
    by_answer = "" if h.drained_answer is None else f", {share(h.drained_answer)} by the answer"
    opening = f"opening sink, not counted: {share(h.opening_held)} · " if has_opening(view) else ""
    words = (f"published formula: {published} · drained outside the template: {drained} of all attention{by_answer} · {opening}"
             f"held by the template: {share(view.structural_share)}")
    for line in wrap(words, WIDTH - 2 * EDGE, 13):
        parts.append(text(EDGE, y, line, 13, c.quiet))
        y += 18
    return parts, y - 2


def _ribbon(run: SinksRun, item: SinkItem, view: SinkView, y: float, c: Colours, most: int) -> tuple[list[str], float]:
    tokens = list(tokens_of(run, item))
    rows, left = ribbon_lines(tokens, WIDTH - 2 * EDGE - 16, most=most)
    height = LINE * len(rows) + 16
    out = [f'<rect x="{EDGE}" y="{y:.1f}" width="{WIDTH - 2 * EDGE}" height="{height}" rx="6" fill="none" stroke="{c.line}"/>']
    top = y + 8
    for n, row in enumerate(rows):
        for at, words, token in row:
            out += _token(view, token.index, words, EDGE + 8 + at * CELL, top + n * LINE, c)
    y += height + 8
    if left:
        out.append(text(EDGE, y + 10, f"… {left:,} more tokens; the HTML and CSV files hold all of them", 12, c.quiet))
        y += 18
    return out + _legend(view, y, c), y + 52


def _token(view: SinkView, j: int, words: str, x: float, y: float, c: Colours) -> list[str]:
    width, z = cells(words) * CELL, view.score[j]
    place = scale.of_step(scale.step(z, LOW, HIGH)) if not math.isnan(z) else None
    fill, ink = (scale.colour(place), scale.ink(place)) if place is not None else ("none", c.ink)
    edge = f' stroke="{c.ink}" stroke-width="2.5"' if view.sinks[j] else f' stroke="{c.paper}" stroke-width="1"'
    out = [f'<rect x="{x:.1f}" y="{y + 2:.1f}" width="{width:.1f}" height="{LINE - 5}" rx="2" fill="{fill}"{edge}/>']
    if view.structural[j]:
        out.append(f'<line x1="{x:.1f}" x2="{x + width:.1f}" y1="{y + LINE - 1:.1f}" y2="{y + LINE - 1:.1f}" stroke="{c.ink}" stroke-width="2" '
                   'stroke-dasharray="2 2"/>')
    if view.segment(j) == "answer":
        out.append(f'<line x1="{x:.1f}" x2="{x + width:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{c.accent}" stroke-width="2"/>')
    return out + [text(x, y + 17, words, SIZE, ink, mono=True, length=width, weight=700 if view.sinks[j] else 400)]


def _legend(view: SinkView, y: float, c: Colours) -> list[str]:
    name = "z′, corrected for the edge" if view.corrected else "z"
    out, width = [text(EDGE, y + 12, name, 12, c.quiet)], 220
    for n in range(scale.STEPS):
        out.append(f'<rect x="{EDGE + n * width / scale.STEPS:.2f}" y="{y + 17}" width="{width / scale.STEPS + 0.4:.2f}" height="9" '
                   f'fill="{scale.colour(scale.of_step(n))}"/>')
    for i, tick in enumerate(TICKS):
        anchor = "start" if i == 0 else "end" if i == len(TICKS) - 1 else "middle"
        out.append(text(EDGE + width * i / (len(TICKS) - 1), y + 39, tick, 11, c.quiet, anchor=anchor))
    x = EDGE + width + 36
    out.append(f'<rect x="{x}" y="{y + 12}" width="38" height="18" rx="2" fill="none" stroke="{c.ink}" stroke-width="2.5"/>')
    out.append(text(x + 46, y + 26, f"sink: at or above {view.threshold:g}", 12, c.quiet))
    out.append(f'<line x1="{x + 230}" x2="{x + 268}" y1="{y + 27}" y2="{y + 27}" stroke="{c.ink}" stroke-width="2" stroke-dasharray="2 2"/>')
    out.append(text(x + 276, y + 26, "structural: put there by the chat template or the tokenizer", 12, c.quiet))
    if view.answer_start is not None:
        out += [f'<line x1="{x}" x2="{x + 38}" y1="{y + 40}" y2="{y + 40}" stroke="{c.accent}" stroke-width="2"/>',
                text(x + 46, y + 44, "answer: written by the model", 12, c.quiet)]
    return out


def _table(x: float, y: float, width: float, title: str, of: str, rows: list[dict], c: Colours) -> tuple[list[str], float]:
    out = [text(x, y + 12, f"{title}: {of}", 13, c.ink, weight=600)]
    edges = [x + width * share for share in (0.09, 0.12, 0.54, 0.67, 0.80, 0.92, 1.0)]
    names = ("position", "token", "attention", "z", "z′", "queries", "sink?")
    anchors = ("end", "start", "end", "end", "end", "end", "end")
    y += 32
    for at, name, anchor in zip(edges, names, anchors):
        out.append(text(at + (6 if anchor == "start" else 0), y, name, 11, c.quiet, anchor=anchor))
    for row in rows[:ROWS]:
        y += 19
        token = row["text"] if len(row["text"]) <= 18 else row["text"][:17] + "…"
        values = (str(row["index"]), token, number(row["attention"]), _z(row["z"]), _z(row["z_corrected"]), f"{row['queries']:,}",
                  sink_word(row))
        weight = 600 if row["sink"] else 400
        for at, value, anchor in zip(edges, values, anchors):
            out.append(text(at + (6 if anchor == "start" else 0), y, value, 12, c.ink, weight=weight, anchor=anchor,
                            mono=anchor == "start", length=cells(value) * 7.23 if anchor == "start" else None))
    if not rows:
        y += 19
        out.append(text(x, y, "none", 12, c.quiet))
    if len(rows) > ROWS:
        y += 19
        out.append(text(x, y, f"and {len(rows) - ROWS:,} more, in the CSV file", 12, c.quiet))
    return out, y + 18


def _foot(parts: list[str], y: float, words: str, title: str, c: Colours) -> str:
    out = [*parts, f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{y}" y2="{y}" stroke="{c.line}"/>']
    y += 18
    for line in wrap(words, WIDTH - 2 * EDGE, 11):
        out.append(text(EDGE, y, line, 11, c.quiet))
        y += 16
    return document(out, WIDTH, y + 8, c, title)
