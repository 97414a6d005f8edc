"""The card and the ribbons as SVG, laid out by hand, so that a picture needs no browser.

Tokens stand on a grid of monospace cells; every run of text says how long it is, so a reader's other font cannot
shift a box. All text is escaped, and characters that XML forbids never reach it: they are drawn by name, as in the
ribbon.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from html import escape
from typing import Sequence

from engine.tokens import label, visible
from engine.trace import ACCEPTED, BONUS, CORRECTION, DISCARDED, PLAIN, REJECTED, Run
from ui.card import SIDES, all_notes, caption, first_split, key_figures, share, span_of, time_shares
from ui.ribbon import RibbonToken, tokens_of
from ui.theme import MONO, SANS, STATES, Colours, colours

WIDTH, EDGE, GAP = 1120, 28, 24
SIZE, CELL, LINE = 14, 8.43, 26  # pixels: token font, cell width (0.602 em, as in DejaVu Sans Mono, Menlo), line height
CARD_LINES, RIBBON_LINES = 16, 160


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    fill: str,
    *,
    weight: int = 400,
    mono: bool = False,
    length: float | None = None,
    anchor: str = "start",
) -> str:
    """One line of SVG text with its baseline at y; `length` squeezes or stretches it to so many pixels."""
    fit = f' textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"' if length and words.strip() else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{escape(MONO if mono else SANS)}" font-size="{size:g}" font-weight="{weight}" '
        f'fill="{fill}" text-anchor="{anchor}"{fit} xml:space="preserve">{_plain(words)}</text>'
    )


def _plain(words: str) -> str:
    """Escaped text in which a control character is named instead of written."""
    return escape(
        "".join(
            c if c == " " or unicodedata.category(c) not in ("Cc", "Cs", "Cf", "Zl", "Zp", "Cn") else f"⟨U+{ord(c):04X}⟩"
            for c in words
        )
    )


def wrap(words: str, width: float, size: float) -> list[str]:
    """Lines no wider than `width` pixels in a sans font of `size`, by a generous mean letter width."""
    return textwrap.wrap(words, max(8, int(width / (size * 0.57)))) or [""]


def document(parts: Sequence[str], width: float, height: float, c: Colours, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:.0f}" '
        f'viewBox="0 0 {width:g} {height:.0f}" role="img">'
        f'<title>{_plain(title)}</title><rect width="100%" height="100%" fill="{c.paper}"/>{"".join(parts)}</svg>'
    )


def captioned(svg: str, words: str, theme: str) -> str:
    """A drawing with the caption baked in below it."""
    c = colours(theme)
    width, height = (float(re.search(rf'<svg[^>]*\b{side}="([\d.]+)', svg).group(1)) for side in ("width", "height"))
    lines = wrap(words, width - 32, 11)
    inside = re.sub(r"^.*?<svg[^>]*>", "", svg, count=1, flags=re.S)
    parts = [f'<svg x="12" y="12" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}">{inside}']
    y = height + 34
    for line in lines:
        parts.append(text(20, y, line, 11, c.quiet))
        y += 16
    return document(parts, width + 24, y + 4, c, words)


# ── tokens on a grid ──────────────────────────────────────────────────────────────────────────────


def cells(words: str) -> int:
    """Width in monospace cells: wide East Asian characters and emoji take two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in words)


def face(token: RibbonToken) -> str:
    """A token as one visible string; the letter that a token completes stands after its bytes."""
    if token.special:
        return label(bytes.fromhex(token.bytes), True)
    return "".join(f"⟨{part}⟩" if kind == "byte" else visible(part) for kind, part in token.pieces) or "⟨empty⟩"


def ribbon_lines(
    tokens: Sequence[RibbonToken], width: float, split: int | None = None, most: int = RIBBON_LINES
) -> tuple[list, int]:
    """Lay tokens on lines: ([[(column, words, token)…]…], tokens that no longer fitted). The marker of `split` has no
    token.

    A token moves to the next line whole if it fits there; a longer one is cut at the edge.
    """
    columns = max(12, int(width / CELL))
    rows: list[list] = [[]]
    at = 0
    for number, token in enumerate(tokens):
        if split is not None and token.index == split:
            rows[-1].append((at, "▲", None))
            at += 1
        sign = STATES[token.state][1] if token.state in (REJECTED, CORRECTION, BONUS) else ""
        words = sign + face(token)
        if at and at + cells(words) > columns:
            rows.append([])
            at = 0
        while words:
            room = 0
            while room < len(words) and cells(words[: room + 1]) <= columns - at:
                room += 1
            part, words = words[: max(room, 1)], words[max(room, 1) :]
            rows[-1].append((at, part, token))
            at += cells(part)
            if words:
                rows.append([])
                at = 0
        if token.state not in (REJECTED, DISCARDED) and any(kind == "text" and "\n" in part for kind, part in token.pieces):
            rows += [[] for _ in range(sum(part.count("\n") for kind, part in token.pieces if kind == "text"))]
            at = 0
        if len(rows) > most:
            return rows[:most], len(tokens) - number
    return rows, 0


def draw_lines(rows: list, x: float, y: float, c: Colours) -> list[str]:
    """Laid-out tokens as SVG; y is the top of the first line."""
    fills = {ACCEPTED: c.accepted, REJECTED: c.rejected, CORRECTION: c.closing, BONUS: c.closing}
    out = []
    for row in rows:
        base = y + 17
        for column, words, token in row:
            left, wide = x + column * CELL, cells(words) * CELL
            if token is None:
                out.append(text(left, base, words, 10, c.accent, weight=700))
                continue
            fill = fills.get(token.state)
            if fill:
                border = f' stroke="{c.edge}"' if token.state in (CORRECTION, BONUS) else ""
                out.append(f'<rect x="{left + 0.5:.1f}" y="{y + 2.5:.1f}" width="{max(wide - 1, 1):.1f}" height="20" rx="2" '
                           f'fill="{fill}"{border}/>')
            out.append(
                text(left, base, words, SIZE, c.quiet if token.state == DISCARDED else c.ink, mono=True, length=wide)
            )
            if token.state == ACCEPTED:
                out.append(_rule(left, left + wide - 1, y + 22, c.ink, 2))
            elif token.state == REJECTED:
                out.append(_rule(left, left + wide, y + 12.5, c.ink, 1))
            elif token.state == DISCARDED:
                out.append(_rule(left, left + wide - 1, y + 22, c.faint, 1.5, "3 3"))
        y += LINE
    return out


def _rule(x1, x2, y, colour, thick, dashes="") -> str:
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{x1:.1f} {y:.1f}H{x2:.1f}" stroke="{colour}" stroke-width="{thick}"{dash}/>'


# ── whole pictures ────────────────────────────────────────────────────────────────────────────────


def _sides(run: Run, metrics: dict, y: float, c: Colours, most: int) -> tuple[list[str], float]:
    """Both ribbons side by side with their speeds, and the legend; returns the drawing and the y below it."""
    out, bottom, seen = [], y, set()
    sides = [s for s in SIDES if getattr(run, s) is not None]
    wide = (WIDTH - 2 * EDGE - GAP * (len(sides) - 1)) / max(len(sides), 1)
    where, words = first_split(run, metrics)
    for i, side in enumerate(sides):
        x, answer = EDGE + i * (wide + GAP), getattr(run, side)
        title = SIDES[side].upper() + (f"  γ = {run.settings.gamma}" if side == "speculative" else "")
        out.append(text(x, y + 12, title, 12, c.quiet, weight=600))
        rate, span = metrics.get(f"{side}_tokens_per_second"), metrics.get(f"{side}_tokens_per_second_range")
        prefill = metrics.get(f"{side}_prefill_tokens_per_second")
        figure = "n/a" if rate is None else f"{rate:.1f}"
        rest = "tok/s" + (f"  {span_of(span)}" if span and span[0] != span[1] else "")
        rest += f"   prefill {'n/a' if prefill is None else f'{prefill:.0f}'} tok/s   {len(answer.ids)} tokens"
        colour = c.accent if side == "speculative" else c.ink
        out.append(
            f'<text x="{x:.1f}" y="{y + 40:.1f}" font-family="{escape(SANS)}" font-size="13" fill="{c.quiet}" xml:space="preserve">'
            f'<tspan font-size="22" font-weight="600" fill="{colour}">{figure}</tspan><tspan dx="5">{_plain(rest)}</tspan></text>'
        )
        tokens = tokens_of(run, side, dropped=True)
        seen |= {t.state for t in tokens}
        rows, left = ribbon_lines(tokens, wide - 20, where, most)
        out += draw_lines(rows, x + 10, y + 58, c)
        end = y + 58 + len(rows) * LINE
        if left:
            out.append(
                text(x + 10, end + 14, f"… {left} more tokens; the HTML and CSV files hold all of them", 12, c.quiet)
            )
            end += 20
        bottom = max(bottom, end)
    for i in range(len(sides)):
        out.append(f'<rect x="{EDGE + i * (wide + GAP):.1f}" y="{y + 50:.1f}" width="{wide:.1f}" height="{bottom - y - 42:.1f}" '
                   f'rx="6" fill="none" stroke="{c.line}"/>')
    y = bottom + 26
    x = float(EDGE)
    for state, (letter, sign, meaning) in STATES.items():
        if state in seen and state != PLAIN:
            length = 12 + (cells(state) + 2) * CELL + 6.5 * len(meaning)
            if x + length > WIDTH - EDGE:
                x, y = float(EDGE), y + LINE
            sample = RibbonToken(0, state.encode().hex(), state, pieces=(("text", state),))
            out += draw_lines(ribbon_lines([sample], 400)[0], x, y - 6, c)
            out.append(text(x + (cells(state) + bool(sign)) * CELL + 8, y + 11, meaning, 12, c.quiet))
            x += length
    if where is not None:
        out.append(text(x, y + 11, f"▲ {words}", 12, c.accent, weight=600))
    return out, y + 30


def ribbon_svg(run: Run, metrics: dict, theme: str = "light") -> str:
    """Both answers, token by token, and the caption."""
    c = colours(theme)
    out, y = _sides(run, metrics, EDGE, c, RIBBON_LINES)
    return _captioned_page(run, out, y, c)


def card_svg(run: Run, metrics: dict, theme: str = "light") -> str:
    """The card: sentence, both sides, key figures, acceptance by position, time, notes, caption."""
    c = colours(theme)
    out, y = [], EDGE + 18.0
    for line in wrap(metrics.get("sentence") or "", WIDTH - 2 * EDGE, 19):
        out.append(text(EDGE, y, line, 19, c.ink, weight=600))
        y += 26
    prompt = " ".join(run.prompt.text[:600].split()) or "(empty prompt)"
    lines = textwrap.wrap(prompt, 120)[:2]
    if len(prompt) > sum(map(len, lines)) + 1 or len(run.prompt.text) > 600:
        lines[-1] += " …"
    for line in lines:
        out.append(text(EDGE, y + 2, line, 13, c.quiet, mono=True))
        y += 20
    drawing, y = _sides(run, metrics, y + 10, c, CARD_LINES)
    out += drawing
    column = (WIDTH - 2 * EDGE) / 5
    out.append(_rule(EDGE, WIDTH - EDGE, y, c.line, 1))
    y += 22
    for i, (_, name, figure, remark, _) in enumerate(key_figures(metrics)):
        x, top = EDGE + (i % 5) * column, y + (i // 5) * 66
        out += [
            text(x, top, name, 13, c.quiet),
            text(x, top + 22, figure or "n/a", 18, c.ink if figure else c.quiet, weight=600),
            text(x, top + 39, remark, 12, c.quiet),
        ]
    y += 66 * -(-len(key_figures(metrics)) // 5) + 4
    drawing = _bars(metrics, y, c)
    out += drawing
    y += 112 if drawing else 0
    for note in all_notes(run):
        for line in wrap(note, WIDTH - 2 * EDGE, 13):
            out.append(text(EDGE, y, line, 13, c.quiet))
            y += 19
    return _captioned_page(run, out, y, c)


def _bars(metrics: dict, y: float, c: Colours) -> list[str]:
    """Acceptance by position on the left, time on the right."""
    out, half = [], (WIDTH - 2 * EDGE + GAP) / 2
    rows = [r for r in metrics.get("acceptance_by_position") or [] if r["judged"]][:8]
    if rows:
        out.append(text(EDGE, y, "Accepted of those judged, by position in the block", 13, c.quiet))
    for i, r in enumerate(rows):
        x, rate = EDGE + i * 64, r["accepted"] / r["judged"]
        out += [
            f'<rect x="{x}" y="{y + 10:.1f}" width="54" height="44" rx="3" fill="{c.area}"/>',
            f'<rect x="{x}" y="{y + 54 - 44 * rate:.1f}" width="54" height="{44 * rate:.1f}" rx="3" fill="{c.accent}"/>',
            text(x, y + 71, share(rate), 13, c.ink, weight=600),
            text(x, y + 86, f"{r['accepted']} of {r['judged']}", 11, c.quiet),
        ]
    spent = time_shares(metrics)
    if spent:
        x, wide = EDGE + half, half - GAP
        out.append(text(x, y, "Where the speculative decode time went", 13, c.quiet))
        key = x
        for (name, seconds, part), fill in zip(spent, (c.neutral, c.accent, c.line)):
            out.append(
                f'<rect x="{x:.1f}" y="{y + 10:.1f}" width="{max(wide * part - 1, 0):.1f}" height="18" fill="{fill}"/>'
            )
            out += [
                f'<rect x="{key:.1f}" y="{y + 39:.1f}" width="10" height="10" rx="2" fill="{fill}"/>',
                text(key + 16, y + 48, f"{name} {share(part)} · {seconds:.2f} s", 13, c.quiet),
            ]
            x, key = x + wide * part, key + 172
    return out


def _captioned_page(run: Run, out: list[str], y: float, c: Colours) -> str:
    words = caption(run)
    out.append(_rule(EDGE, WIDTH - EDGE, y + 4, c.line, 1))
    y += 24
    for line in wrap(words, WIDTH - 2 * EDGE, 12):
        out.append(text(EDGE, y, line, 12, c.quiet))
        y += 17
    out.append(f'<rect x="4" y="4" width="{WIDTH - 8}" height="{y + 4:.0f}" rx="10" fill="none" stroke="{c.line}"/>')
    return document(out, WIDTH, y + 12, c, words)
