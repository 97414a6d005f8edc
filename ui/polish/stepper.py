"""One round in two lanes: what the draft said, how it was cut for the verifier, what survived, and why the first refused one was not."""

from __future__ import annotations

from html import escape

from engine.diacritics import letters
from engine.tokens import label
from engine.trace import ACCEPTED, BONUS, CORRECTION, DISCARDED, REJECTED, Round, UagResult, UagRun
from ui.polish.card import MEANING

CSS = """
.sl.cross{display:grid;gap:10px} .sl.cross .row{display:grid;grid-template-columns:9.5em 1fr;gap:4px 14px;align-items:baseline;font-size:13px}
.sl.cross .row>b{font-weight:500;color:var(--quiet)} .sl.cross .lane{display:flex;flex-wrap:wrap;gap:3px 2px}
.sl.cross .t{border:1px solid var(--line);padding:2px 5px;white-space:pre} .sl.cross .t.a{border-bottom:2px solid var(--ink)}
.sl.cross .t b{font-weight:inherit;outline:1px solid var(--edge);outline-offset:1px;border-radius:2px}
.sl.cross .t small{font:400 11px/1 system-ui,sans-serif;margin-left:4px;opacity:.8}
.sl.cross .cause{font-size:14px} .sl.cross .cause b{font-weight:600}
@media (max-width:640px){.sl.cross .row{grid-template-columns:1fr}}
"""

SIGNS = {ACCEPTED: ("a", "✓"), REJECTED: ("r", "✗"), DISCARDED: ("x", "┄")}  # state → class and second cue


def round_count(result: UagResult) -> int:
    return len(result.answer.rounds)


def round_html(run: UagRun, result: UagResult, index: int) -> str:
    """Round `index` (from 0, clamped) of one strategy's answer."""
    count = round_count(result)
    if not count:
        return '<div class="sl quiet">No round was recorded.</div>'
    index = max(0, min(index, count - 1))
    one = result.answer.rounds[index]
    rows = [("draft said", _draft(run, one)), ("cut for the verifier", _candidates(run, one)), ("verifier put", _closing(run, one))]
    body = "".join(f'<div class="row"><b>{escape(name)}</b><div class="lane">{lane}</div></div>' for name, lane in rows if lane)
    return (f'<div class="sl cross" role="group" aria-label="Round {index + 1} of {count}"><p class="round-line">{escape(sentence(run, result, index))}</p>'
            f"{body}{_cause(one)}<p class=\"round-line num\">{escape(times(one))}</p></div>")


def sentence(run: UagRun, result: UagResult, index: int) -> str:
    """What happened in the round, in words."""
    one = result.answer.rounds[index]
    head = f"Round {index + 1} of {round_count(result)}, {result.strategy}, k = {result.k}: "
    note = f" Note: {one.note}." if one.note else ""
    if not one.proposed:
        wrote = f"the draft wrote {_count(len(one.draft_ids), 'token')}, none of which could be sent" if one.draft_ids else "the draft wrote nothing"
        return f"{head}{wrote}; the verifier went on by itself.{note}"
    words = f"{_count(len(one.draft_ids), 'draft token')} became {_count(len(one.proposed), 'candidate')}; the verifier "
    if one.closing == CORRECTION:
        lost = len(one.proposed) - one.accepted - 1
        words += f"accepted {one.accepted} and refused the next" + (f"; {lost} {'was' if lost == 1 else 'were'} never judged" if lost else "")
    elif one.closing == BONUS:
        words += ("accepted it" if len(one.proposed) == 1 else f"accepted all {len(one.proposed)}") + " and added one of its own"
    else:
        words += f"accepted {one.accepted}" + ("; the answer ended there" if one.tie is None else "")
    return f"{head}{words}.{note}"


def times(one: Round) -> str:
    return (f"draft {one.draft_seconds * 1000:.1f} ms · translation {one.translate_seconds * 1000:.2f} ms · verify {one.verify_seconds * 1000:.1f} ms · "
            f"{_count(len(one.emitted), 'token')} kept")


def _draft(run: UagRun, one: Round) -> str:
    return "".join(_token(run.draft_tokens.get(i, ""), "p", f"draft id {i}") for i in one.draft_ids)


def _candidates(run: UagRun, one: Round) -> str:
    out = []
    for place, i in enumerate(one.proposed):
        kind, sign = SIGNS[one.state(place)]
        p, q = (column[place] if place < len(column) else None for column in (one.p, one.q))
        facts = [f"verifier id {i}", {"a": "accepted", "r": "rejected", "x": "discarded: never judged"}[kind]]
        facts += [f"p {p:.3f}"] if p is not None else []
        facts += [f"q {q:.3f}" if q is not None else "a point mass: no q"]
        out.append(_token(run.tokens.get(i, ""), kind, " · ".join(facts), sign, i in run.special))
    return "".join(out)


def _closing(run: UagRun, one: Round) -> str:
    if one.closing is None or len(one.emitted) <= one.accepted:
        return ""
    return "".join(_token(run.tokens.get(i, ""), "c" if one.closing == CORRECTION else "b", f"verifier id {i}", "↻" if one.closing == CORRECTION else "+",
                          i in run.special) for i in one.emitted[one.accepted:])


def _cause(one: Round) -> str:
    if one.cause is None:
        return ""
    apart = "less than 0.001" if one.gap is not None and one.gap < 0.001 else f"{one.gap or 0:.3f}"
    gap = f" The verifier's two best tokens there were {apart} apart." if one.gap is not None else ""
    return f'<p class="cause">Refused because of a <b>{escape(one.cause)}</b>: {escape(MEANING.get(one.cause, ""))}.{gap}</p>'


def _token(raw: str, kind: str, facts: str, sign: str = "", special: bool = False) -> str:
    data = bytes.fromhex(raw)
    detail = f"{label(data, special)}\n{facts}\nbytes {data.hex(' ').upper() or 'none'}"
    mark = f"<small>{sign}</small>" if sign else ""
    return f'<span class="t {kind}" tabindex="0" data-d="{escape(detail).replace(chr(10), "&#10;")}">{marked(label(data, special))}{mark}</span>'


def marked(name: str) -> str:
    """Escaped text with every letter that has a Polish diacritic outlined."""
    out, at = [], 0
    for letter in letters(name):
        out += [escape(name[at:letter.start]), f"<b>{escape(name[letter.start:letter.end])}</b>"]
        at = letter.end
    return "".join(out) + escape(name[at:])


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")
