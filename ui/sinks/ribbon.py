"""A prompt's tokens coloured by how much more attention they receive than their like."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Sequence

from engine.attention.view import SinkView
from engine.tokens import label
from engine.trace import Round, SinkItem, SinksRun
from ui import scale
from ui.ribbon import RibbonToken, number, token_html, tokens_from

LOW, HIGH = -2.0, 8.0  # the fixed domain of z
TICKS = ("≤ −2", "0", "2", "4", "6", "≥ 8")
WINDOW = 1000  # tokens drawn at a time: a browser lays out that many in a tenth of a second

CSS = scale.css() + """
.sl .t.sk{box-shadow:inset 0 0 0 2px var(--ink);font-weight:700;padding:1px 2px}
.sl .t.st{border-bottom:2px dotted var(--ink)}
.sl .t.an{border-top:2px solid var(--accent)}
.sl .keyed{display:flex;flex-wrap:wrap;gap:6px 22px;align-items:end;font-size:13px;color:var(--quiet)}
.sl .keyed .t{color:var(--ink);padding:1px 4px;margin-right:5px}
"""


@lru_cache(maxsize=64)
def _tokens(ids: tuple[int, ...], tokens: tuple[tuple[int, str], ...], special: tuple[int, ...]) -> tuple[RibbonToken, ...]:
    return tuple(tokens_from((Round(emitted=ids),), dict(tokens), special))


def tokens_of(run: SinksRun, item: SinkItem) -> Sequence[RibbonToken]:
    """The prompt's tokens as a ribbon knows them, made once."""
    return _tokens(item.prompt.ids, tuple(run.tokens.items()), run.special)


def ribbon_html(run: SinksRun, item: SinkItem, view: SinkView, start: int = 0, count: int | None = WINDOW) -> str:
    """Tokens `start` to `start + count` (None: to the end) with their colours; needs `CSS` on the page."""
    tokens = tokens_of(run, item)
    end = len(tokens) if count is None else min(len(tokens), start + count)
    faces: dict = {}
    body = "".join(token_html(tokens[j], faces, look(view, j), details(run, view, j)) for j in range(start, end))
    return f'<div class="ribbon"><div class="tokens" role="group" aria-label="Tokens coloured by z">{body}</div></div>'


def look(view: SinkView, j: int) -> str:
    """The classes of token j: its colour, and whether it is a sink, the template's or an answer's."""
    z = view.score[j]
    return ("nan" if math.isnan(z) else f"q{scale.step(z, LOW, HIGH)}") + (" sk" if view.sinks[j] else "") + (
        " st" if view.structural[j] else " an" if view.segment(j) == "answer" else "")


def details(run: SinksRun, view: SinkView, j: int) -> str:
    """Everything known of token j as a few plain lines."""
    raw, s = run.tokens.get(view.ids[j], ""), view.scores
    kinds = [f"position {j}"] + (["structural"] if view.structural[j] else [] if view.answer_start is None else [f"of the {view.segment(j)}"])
    kinds += ["opening sink, not counted" if j in view.health.opening else "sink"] if view.sinks[j] else []
    queries = int(s.queries[j])
    lines = [label(bytes.fromhex(raw), view.ids[j] in run.special) + "   " + " · ".join(kinds),
             f"id {view.ids[j]} · bytes {bytes.fromhex(raw).hex(' ').upper() or 'none'}",
             f"attention {number(float(s.attention[j]))} of each of {queries:,} {'query' if queries == 1 else 'queries'} · "
             f"{s.share[j] * 100:.2g} % of all",
             f"z {z_words(s.z[j], s.why.get(j))}", f"z′ {z_words(s.z_corrected[j], s.why_corrected.get(j))}"]
    return "\n".join(lines)


def z_words(z: float, why: str | None = None) -> str:
    """A z with its sign in two places, or n/a with the reason."""
    if math.isnan(z):
        return "n/a" + (f": {why}" if why else "")
    return f"{z:+.2f}".replace("-", "−")


def legend_html(view: SinkView) -> str:
    """What the colours and marks mean, with numbers."""
    name = "z′, corrected for the edge" if view.corrected else "z"
    return (f'<div class="keyed">{scale.legend_html(f"{name} (fixed scale)", TICKS)}'
            f'<span><span class="t sk">sink</span>{name[:2].strip(",")} ≥ {view.threshold:g}</span>'
            '<span><span class="t st">structural</span>put there by the chat template or the tokenizer</span>'
            + ("" if view.answer_start is None else '<span><span class="t an">answer</span>written by the model</span>') +
            '<span><span class="t nan">&nbsp;&nbsp;</span>undefined</span></div>')
