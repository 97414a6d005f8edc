"""Tokens, shown the same way everywhere.

A ribbon is text cut at its tokens. Whitespace is made visible by CSS alone, so what a person copies is the text
itself. A token's numbers stand in one attribute and appear beside it on hover and keyboard focus, without a script.
Token bytes are data: each piece is escaped on its own, line breaks are written as character references so that
nothing around the HTML can reindent them.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from html import escape
from typing import Iterable, Sequence

from engine.tokens import code_name, hidden, label as name_of
from engine.trace import ACCEPTED, BONUS, CORRECTION, PLAIN, REJECTED, Generation, Round, Run
from ui.letters import Piece, cut
from ui.theme import STATES


@dataclass(frozen=True)
class RibbonToken:
    """One token and what is known of it. Entropies are in bits; `p` and `q` those of the accept test, after filters.

    `index` counts emitted tokens (None for a rejected or discarded one), `round` rounds from 0, `place` proposals
    from 0. `joined` is the whole character of which this token holds a part. `top` are (label, probability) pairs.
    """

    id: int
    bytes: str
    state: str = PLAIN
    special: bool = False
    index: int | None = None
    round: int | None = None
    place: int | None = None
    q: float | None = None
    p: float | None = None
    draw: float | None = None
    probability: float | None = None
    entropy: float | None = None
    draft_entropy: float | None = None
    top: tuple[tuple[str, float], ...] = ()
    pieces: tuple[Piece, ...] = ()
    joined: str = ""


def tokens_of(run: Run, side: str, dropped: bool = False) -> list[RibbonToken]:
    """The tokens of `run.plain` or `run.speculative`; with `dropped` also rejected and discarded ones, where they fell."""
    answer = getattr(run, side)
    if answer is None:
        return []
    rounds = answer.rounds or tuple(Round(emitted=(i,)) for i in answer.ids)
    return tokens_from(rounds, run.tokens, run.special, answer, dropped)


def tokens_from(
    rounds: Sequence[Round],
    tokens: dict[int, str],
    special: Iterable[int] = (),
    answer: Generation | None = None,
    dropped: bool = False,
) -> list[RibbonToken]:
    """The same from bare rounds, for a run that is still going. `answer` adds entropy, top-5 and raw probability."""
    special = frozenset(special)
    shown: list[RibbonToken] = []
    waiting = b""  # bytes of a character that is not finished yet,
    parts: list[int] = []  # and the places in `shown` that hold them
    index = 0

    def emit(token: int, state: str, **detail) -> None:
        nonlocal waiting, index
        raw = tokens.get(token, "")
        pieces, rest, finished = cut(waiting, b"" if token in special else bytes.fromhex(raw))
        if answer is not None:
            best = tuple((name_of(bytes.fromhex(tokens.get(t, "")), t in special), p) for t, p in _at(answer.top, index) or ())
            detail.update(entropy=_at(answer.entropy, index), probability=_at(answer.probability, index), top=best)
        shown.append(
            RibbonToken(token, raw, state, token in special, index=index, pieces=pieces, joined=finished, **detail)
        )
        if finished:
            for i in parts:
                shown[i] = replace(shown[i], joined=finished)
        if finished or not rest:
            parts.clear()
        if rest and raw and token not in special:
            parts.append(len(shown) - 1)
        waiting, index = rest, index + 1

    for number, one in enumerate(rounds):
        taken = min(one.accepted, len(one.proposed), len(one.emitted))
        for place, token in enumerate(one.proposed):
            detail = dict(
                round=number,
                place=place,
                q=_at(one.q, place),
                p=_at(one.p, place),
                draw=_at(one.draw, place),
                draft_entropy=_at(one.draft_entropy, place),
            )
            if place < taken:
                emit(token, ACCEPTED, **detail)
                branch = waiting  # what is dropped continues the draft's text, not the answer's
                continue
            if place == 0:
                branch = waiting
            pieces, branch, _ = cut(branch, b"" if token in special else bytes.fromhex(tokens.get(token, "")))
            if dropped:
                shown.append(RibbonToken(token, tokens.get(token, ""), one.state(place), token in special, pieces=pieces, **detail))
        for token in one.emitted[taken:]:
            emit(token, one.closing or PLAIN, round=number)
    return shown


def _at(column, i):
    return column[i] if i < len(column) else None


def text_of(token: RibbonToken) -> str:
    """The characters this token finishes; empty for a special token and for the first part of a split letter."""
    return "" if token.special else "".join(t for kind, t in token.pieces if kind == "text")


# ── HTML ──────────────────────────────────────────────────────────────────────────────────────────


def ribbon_html(
    tokens: Sequence[RibbonToken],
    *,
    label: str = "Tokens",
    split: int | None = None,
    split_text: str = "first difference",
    growing: bool = False,
    frame: bool = True,
) -> str:
    """Tokens as HTML; needs `ui.theme.css()` on the page once.

    `split`: emitted index before which the marker of the first difference stands. `growing` puts a caret at the end.
    """
    faces: dict = {}
    out = []
    for token in tokens:
        if split is not None and token.index == split:
            out.append(f'<i class="split" data-m="▲ {escape(split_text)}"></i>')
        out.append(token_html(token, faces))
    if split is not None and split == sum(t.index is not None for t in tokens):
        out.append(f'<i class="split" data-m="▲ {escape(split_text)}"></i>')
    if growing:
        out.append('<i class="caret"></i>')
    body = f'<div class="tokens" role="group" aria-label="{escape(label)}">{"".join(out)}</div>'
    return f'<div class="sl"><div class="ribbon">{body}</div></div>' if frame else f'<div class="ribbon">{body}</div>'


def token_html(token: RibbonToken, faces: dict | None = None, look: str | None = None, detail: str | None = None) -> str:
    """One token. `faces` remembers the drawn form of tokens that come up again.

    `look`: classes in place of its state's; `detail`: lines beside it on hover and focus in place of `details(token)`.
    """
    faces = {} if faces is None else faces
    key = (token.bytes, token.special, token.pieces, token.index is None)
    face = faces.get(key)
    if face is None:
        face = faces[key] = _face(token)
    letter, sign, _ = STATES[token.state]
    mark = f'<i class="m" data-m="{sign}"></i>' if look is None and token.state in (REJECTED, CORRECTION, BONUS) else ""
    lead, wrap, inner = face
    if mark and inner[0] == " ":  # the sign stands before the space, which then needs its own element
        lead, inner = lead.replace(" w", ""), '<i class="s"> </i>' + inner[1:]
    said = _attribute(details(token) if detail is None else detail)
    return f'{wrap}<span class="t {look or letter}{lead}" tabindex="0" data-d="{said}">{mark}{inner}</span>'


def _face(token: RibbonToken) -> tuple[str, str, str]:
    """(extra classes, wrap point before the token, inner HTML).

    A line may break before a token's leading space, not after it, so that no token leaves its space behind. That
    space gets its dot from the token's own class, to keep the page small. A line break that was thrown away is shown,
    not made.
    """
    if token.special:
        return "", "", f'<i class="k e" data-m="{_attribute(name_of(bytes.fromhex(token.bytes), True))}"></i>'
    if not token.pieces:
        return "", "", '<i class="k" data-m="⟨empty⟩"></i>'
    out, lead, text = [], "", text_of(token)
    for kind, part in token.pieces:
        if kind == "byte":
            out.append(f'<i class="k" data-m="⟨{part}⟩"></i>')
            continue
        for c in part:
            if c == " " and not out and len(part) > 1 and part[1] != " ":
                lead = " w"
                out.append(" ")
            elif c == " ":
                out.append('<i class="s"> </i>')
            elif c == "\n":
                out.append(f'<i class="n">{"" if token.index is None and token.state != PLAIN else "&#10;"}</i>')
            elif c == "\t":
                out.append('<i class="h">&#9;</i>')
            elif hidden(c):
                out.append(f'<i class="k o" data-m="⟨{code_name(c)}⟩">{_kept(c)}</i>')
            else:
                out.append(escape(c))
    return lead + (" l" if len(text) > 20 else ""), "<wbr>" if text[:1] == " " else "", "".join(out)


def _kept(c: str) -> str:
    """A hidden character so that HTML keeps it. References to control characters mean something else there (&#128; is
    €), a bare carriage return becomes a line break, and NUL cannot be written at all.
    """
    if c == "\x00":
        return ""
    return c if unicodedata.category(c) in ("Cc", "Cn") and c != "\r" else f"&#{ord(c)};"


def _attribute(text: str) -> str:
    return escape(text).replace("\n", "&#10;")


def details(token: RibbonToken) -> str:
    """Everything known of a token as a few plain lines: state and place, id and bytes, the accept test, entropy, top 5."""
    where = token.state
    if token.round is not None:
        where += f" · round {token.round + 1}" + (f", proposal {token.place + 1}" if token.place is not None else "")
    elif token.index is not None:
        where += f" · token {token.index + 1}"
    lines = [
        name_of(bytes.fromhex(token.bytes), token.special) + "   " + where,
        f"id {token.id} · bytes {' '.join(token.bytes[i : i + 2] for i in range(0, len(token.bytes), 2)).upper() or 'none'}",
    ]
    if token.joined and any(kind == "byte" for kind, _ in token.pieces):
        lines.append(f"part of the letter {token.joined}" if token.joined.isalpha() else f"part of {token.joined}")
    test = accept_test(token)
    if test:
        lines.append(test)
    facts = []
    if token.probability is not None:
        facts.append(f"probability {number(token.probability)}")
    if token.entropy is not None:
        facts.append(f"entropy {token.entropy:.2f} bits")
    if token.draft_entropy is not None:
        facts.append(f"draft entropy {token.draft_entropy:.2f} bits")
    if facts:
        lines.append(" · ".join(facts))
    if token.top:
        lines.append("top 5  " + "  ".join(f"{name} {number(p)}" for name, p in token.top))
    return "\n".join(lines)


def accept_test(token: RibbonToken) -> str:
    """The numbers that judged a proposal: p of the verifier, q of the draft, and the draw against min(1, p/q)."""
    parts = []
    if token.p is not None:
        parts.append(f"p {number(token.p)}")
    if token.q is not None:
        parts.append(f"q {number(token.q)}")
    if token.draw is not None:
        bar = acceptance_bar(token)
        sign = "" if bar is None else f" {'<' if token.draw < bar else '≥'} {number(bar)}"
        parts.append(f"draw {number(token.draw)}{sign}")
    return " · ".join(parts)


def acceptance_bar(token: RibbonToken) -> float | None:
    """min(1, p/q), what the draw must stay below (Leviathan et al. 2023); a proposal without q is a point mass: p
    itself."""
    if token.p is None:
        return None
    if token.q is None:
        return min(1.0, token.p)
    return min(1.0, token.p / token.q) if token.q > 0 else None


def number(value: float) -> str:
    """A probability in three places; what would round to nothing or to certainty says so instead."""
    if 0 < value < 0.0005:
        return "<.001"
    if 0.9995 <= value < 1:
        return ">.999"
    return f"{value:.3f}".lstrip("0") if value < 1 else f"{value:.2f}"


def legend_html(states: Iterable[str]) -> str:
    """One line that names each state, drawn as it is drawn in the ribbon."""
    words = dict.fromkeys(states)
    items = []
    for state, (letter, sign, meaning) in STATES.items():
        if state in words and state != PLAIN:
            mark = f'<i class="m" data-m="{sign}"></i>' if state in (REJECTED, CORRECTION, BONUS) else ""
            items.append(f'<span><span class="t {letter}">{mark}{state}</span>{meaning}</span>')
    return f'<div class="legend">{"".join(items)}</div>'
