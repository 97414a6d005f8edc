"""An answer's tokens coloured by how sure the model was of each: cividis over 0–8 bits, thicker lines below for more."""

from __future__ import annotations

from functools import lru_cache
from typing import Sequence

from engine.analysis.entropy import Trail, counted, shown
from engine.tokens import label
from engine.trace import PLAIN, AnyRun, Generation, Round
from ui import scale
from ui.ribbon import RibbonToken, number, token_html, tokens_from

LOW, HIGH = 0.0, 8.0  # bits, the fixed domain
TICKS = ("0", "2", "4", "6", "≥ 8")
BANDS = (1.0, 2.0, 4.0)  # bits from which the line below a token is 1, 2 and 3 pixels thick; from HIGH on it is double
WINDOW = 1000  # tokens drawn at a time: a browser lays out that many in a tenth of a second

CSS = scale.css() + """
.sl .t.u1{border-bottom:1px solid var(--ink)} .sl .t.u2{border-bottom:2px solid var(--ink)} .sl .t.u3{border-bottom:3px solid var(--ink)}
.sl .t.u4{border-bottom:4px double var(--ink)}
.sl .keyed{display:flex;flex-wrap:wrap;gap:6px 22px;align-items:end;font-size:13px;color:var(--quiet)}
.sl .keyed .t{color:var(--ink);padding:1px 4px;margin-right:5px}
"""


@lru_cache(maxsize=64)
def _tokens(answer: Generation, tokens: tuple[tuple[int, str], ...], special: tuple[int, ...]) -> tuple[RibbonToken, ...]:
    return tuple(tokens_from(answer.rounds or (Round(emitted=answer.ids),), dict(tokens), special, answer))


def tokens_of(run: AnyRun, trail: Trail) -> Sequence[RibbonToken]:
    """The answer's tokens as a ribbon knows them, made once; rejected and discarded ones are no part of it."""
    used = {*trail.ids, *(i for position in trail.answer.top for i, _ in position)}
    return _tokens(trail.answer, tuple((i, run.tokens.get(i, "")) for i in sorted(used)), tuple(run.special))


def ribbon_html(run: AnyRun, trail: Trail, start: int = 0, count: int | None = WINDOW) -> str:
    """Tokens `start` to `start + count` (None: to the end) with their colours; needs `CSS` on the page."""
    tokens = tokens_of(run, trail)
    end = len(tokens) if count is None else min(len(tokens), start + count)
    faces: dict = {}
    body = "".join(token_html(tokens[i], faces, look(trail.bits[i]), details(trail, tokens[i], i)) for i in range(start, end))
    return f'<div class="ribbon"><div class="tokens" role="group" aria-label="Tokens coloured by model entropy">{body}</div></div>'


def look(bits: float | None) -> str:
    """The classes of a token: its colour and the line below it."""
    if bits is None:
        return "nan"
    return f"q{scale.step(bits, LOW, HIGH)}" + (f" u{band(bits)}" if band(bits) else "")


def band(bits: float) -> int:
    """0 to 4: how thick the line below a token is."""
    return 4 if bits >= HIGH else sum(bits >= edge for edge in BANDS)


def details(trail: Trail, token: RibbonToken, i: int) -> str:
    """Everything known of token i as a few plain lines: both entropies, its probability, and the five best one a line."""
    where = [f"token {i + 1}"] + ([] if token.state == PLAIN else [token.state]) + [trail.pieces[i]]
    lines = [label(trail.bytes[i], trail.special[i]) + "   " + " · ".join(where),
             f"id {token.id} · bytes {trail.bytes[i].hex(' ').upper() or 'none'}",
             f"model entropy {_bits(trail.bits[i])} · sampling entropy {_bits(trail.sampling_bits[i])}",
             f"normalised {shown(trail.normalised[i], 3)}" + ("" if token.probability is None else f" · probability {number(token.probability)}")]
    if token.draft_entropy is not None:
        lines.append(f"draft entropy {_bits(token.draft_entropy)}")
    lines += [f"{f'top {len(token.top)}' if n == 0 else '':<6}{number(p):>6}  {name}" for n, (name, p) in enumerate(token.top)]
    return "\n".join(lines)


def _bits(value: float | None) -> str:
    return "not recorded" if value is None else f"{shown(value)} bits"


def clipped(trails: Sequence[Trail]) -> int:
    """Tokens above the end of the scale."""
    return sum(b is not None and b > HIGH for t in trails for b in t.bits)


def legend_words(trail: Trail) -> list[tuple[str, str, str]]:
    """(class, sample, meaning) of every mark beside the colours."""
    keys = [(f"u{n}", "token", f"≥ {edge:g} bit{'' if edge == 1 else 's'}") for n, edge in enumerate(BANDS, 1)]
    keys.append(("u4", "token", f"≥ {HIGH:g} bits"))
    return keys + ([("nan", "  ", "not recorded")] if None in trail.bits else [])


def legend_html(trail: Trail) -> str:
    """What the colours and lines mean, with numbers; how many tokens lie beyond the scale."""
    over = clipped([trail])
    keys = "".join(f'<span><span class="t {name}">{sample}</span>{meaning}</span>' for name, sample, meaning in legend_words(trail))
    beyond = f"<span>{counted(over)} above {HIGH:g} bits {'has' if over == 1 else 'have'} the last colour</span>" if over else ""
    return f'<div class="keyed">{scale.legend_html("model entropy, bits (fixed scale)", TICKS)}{keys}{beyond}</div>'
