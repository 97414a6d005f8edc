"""The card of a strategy run as SVG; see `ui.picture` for how such drawings are made."""

from __future__ import annotations

from engine.analysis.uag import Figures, Row
from engine.trace import UagRun
from engine.trace.uag import BOUNDARY, CAUSES, DIACRITIC, DISAGREEMENT, TIE
from ui.card import joules
from ui.picture import EDGE, WIDTH, document, text, wrap
from ui.polish.card import MEANING, beside, between, caption, no_energy, notes_of, number, percent
from ui.theme import Colours, colours

NOTED = 8  # notes in a picture


def card_svg(run: UagRun, f: Figures, theme: str = "light") -> str:
    """Sentences, the table strategy × k with its causes, caption."""
    c = colours(theme)
    parts, y = [], EDGE + 18
    for i, sentence in enumerate(f.sentences or ("No strategy ran.",)):
        size = 14 if i else 19
        for line in wrap(sentence, WIDTH - 2 * EDGE, size):
            parts.append(text(EDGE, y, line, size, c.ink, weight=400 if i else 600))
            y += size + 6
    y += 12
    ks = [k for k in run.ks if any(r.k == k for r in f.rows)]
    column = (WIDTH - 2 * EDGE - 90) / max(len(ks), 1)
    for n, k in enumerate(ks):
        parts.append(text(EDGE + 90 + n * column, y, f"k = {k}", 13, c.quiet))
    y += 10
    for strategy in dict.fromkeys(r.strategy for r in f.rows):
        parts.append(f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{y}" y2="{y}" stroke="{c.line}"/>')
        parts.append(text(EDGE, y + 24, strategy, 14, c.ink, weight=600))
        for n, k in enumerate(ks):
            row = f.row(strategy, k)
            if row is not None:
                parts += _cell(row, EDGE + 90 + n * column, y, column - 24, c)
        y += 149
    y += 14
    energy = f", {joules(f.plain_joules.value)} per token" if f.plain_joules.value is not None else ""
    said = f"Verifier-only: {number(f.plain, '.1f')} tok/s{energy}. Acceptance is of candidates; intervals are 95 %. {no_energy(run, f)}"
    for line in wrap(said, WIDTH - 2 * EDGE, 12):
        parts.append(text(EDGE, y + 4, line, 12, c.quiet))
        y += 17
    y += 9
    for cause in CAUSES:
        parts.append(f'<rect x="{EDGE}" y="{y - 9}" width="12" height="12" fill="{_fill(c)[cause]}"/>')
        parts.append(text(EDGE + 20, y + 1, f"{cause}: {MEANING[cause]} ({sum(r.causes[cause] for r in f.rows):,})", 12, c.quiet))
        y += 18
    for note in notes_of(run)[:NOTED]:
        for line in wrap(note, WIDTH - 2 * EDGE, 12):
            parts.append(text(EDGE, y + 1, line, 12, c.quiet))
            y += 17
    parts.append(f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{y}" y2="{y}" stroke="{c.line}"/>')
    y += 18
    for line in wrap(caption(run), WIDTH - 2 * EDGE, 11):
        parts.append(text(EDGE, y, line, 11, c.quiet))
        y += 16
    return document(parts, WIDTH, y + 8, c, (f.sentences or ("No strategy ran.",))[0])


def _cell(row: Row, x: float, y: float, width: float, c: Colours) -> list[str]:
    lines = [f"{row.acceptance.above:,} of {row.acceptance.below:,} candidates{between(row.acceptance)}",
             f"{percent(row.draft_acceptance)} of {row.draft_acceptance.below:,} draft tokens",
             f"{number(row.tokens_per_pass, '.2f')} tokens/pass · {number(row.tokens_per_second, '.1f')} tok/s",
             f"{number(row.speedup, '.2f', '×')} verifier-only{', disturbed' if row.disturbed else ''}", *beside(row)]
    out = [text(x, y + 24, percent(row.acceptance), 16, c.ink, weight=600)]
    out += [text(x, y + 42 + 15 * i, line, 11.5, c.quiet) for i, line in enumerate(lines)]
    at = x
    for cause in CAUSES:
        part = width * row.causes[cause] / row.refused if row.refused else 0
        if part:
            out.append(f'<rect x="{at:.1f}" y="{y + 129}" width="{part:.1f}" height="8" fill="{_fill(c)[cause]}"/>')
        at += part
    return out


def _fill(c: Colours) -> dict[str, str]:
    return {BOUNDARY: c.accent, DIACRITIC: c.edge, TIE: c.neutral, DISAGREEMENT: c.rejected}
