"""One round at a time: what the draft proposed, how it was judged, what was thrown away, what the verifier put there."""

from __future__ import annotations

from html import escape

from engine.trace import ACCEPTED, BONUS, CORRECTION, DISCARDED, ENTROPY_CUT, PLAIN, REJECTED, ROOM_CUT, Round, Run
from ui.ribbon import RibbonToken, accept_test, acceptance_bar, number, token_html, tokens_of

JUDGED = {ACCEPTED: "✓ accepted", REJECTED: "✗ rejected", DISCARDED: "┄ discarded"}
MEANING = {
    "q draft": "The draft's probability of this token, after the sampling filters",
    "p verifier": "The verifier's probability of this token, after the sampling filters",
    "draw": "A uniform random number; the token is accepted if it is below min(1, p/q)",
    "must be <": "min(1, p/q): the chance that this token is accepted",
    "H draft": "Entropy of the draft's own distribution here, before temperature and filters",
    "H verifier": "Entropy of the verifier's own distribution here, before temperature and filters",
    "probability": "The verifier's probability of this token, before temperature and filters",
}
CUT = {  # why a block is shorter than γ
    ENTROPY_CUT: " Of {asked} asked for: the draft stopped where its entropy passed the bound.",
    ROOM_CUT: " Of {asked} asked for: there was no room for more.",
}
PUT = {CORRECTION: "↻ verifier put", BONUS: "+ verifier added", PLAIN: "verifier wrote"}


def round_count(run: Run) -> int:
    """Rounds of the speculative side."""
    return len(run.speculative.rounds) if run.speculative else 0


def round_html(run: Run, index: int, tokens: list[RibbonToken] | None = None) -> str:
    """Round `index` (from 0, clamped) as HTML. `tokens` is `tokens_of(run, "speculative", dropped=True)`, if already
    made."""
    count = round_count(run)
    if not count:
        return '<div class="sl quiet">No speculative round was recorded.</div>'
    index = max(0, min(index, count - 1))
    one = run.speculative.rounds[index]
    tokens = tokens_of(run, "speculative", dropped=True) if tokens is None else tokens
    inside = [t for t in tokens if t.round == index]
    cells = "".join(_cell(t, run.settings.sampling.greedy) for t in inside)
    return (
        f'<div class="sl round" role="group" aria-label="Round {index + 1} of {count}">'
        f'<p class="round-line">{escape(sentence(run, index))}</p><div class="cells">{cells}</div>'
        f'<p class="round-line num">{escape(times(one))}</p></div>'
    )


def sentence(run: Run, index: int) -> str:
    """What happened in the round, in words."""
    one = run.speculative.rounds[index]
    proposed, accepted = len(one.proposed), min(one.accepted, len(one.proposed))
    head = f"Round {index + 1} of {round_count(run)}: "
    if not proposed:
        why = f" ({one.note})" if one.note else ""
        return head + f"nothing was proposed{why}; the verifier wrote {_tokens(len(one.emitted))} by itself."
    words = f"the draft proposed {_tokens(proposed)}; the verifier "
    if one.closing == CORRECTION:
        lost = proposed - accepted - 1
        words += (
            f"accepted {accepted}, refused the next and put its own token there"
            if accepted
            else "refused the first and put its own token there"
        )
        words += f"; {lost} {'was' if lost == 1 else 'were'} never judged." if lost > 0 else "."
    elif one.closing == BONUS:
        words += ("accepted it" if proposed == 1 else f"accepted all {proposed}") + " and added one of its own."
    else:
        words += f"accepted {accepted}" + ("; the answer ended there." if one.closing is None and one.tie is None else ".")
    return head + words + CUT.get(one.cut or "", "").format(asked=one.asked) + (f" Note: {one.note}." if one.note else "")


def times(one: Round) -> str:
    """Milliseconds inside the draft's and the verifier's forwards, and what they bought."""
    spent = one.draft_seconds + one.verify_seconds
    each = f" · {spent * 1000 / len(one.emitted):.1f} ms a token" if one.emitted and spent > 0 else ""
    return f"draft {one.draft_seconds * 1000:.1f} ms · verify {one.verify_seconds * 1000:.1f} ms · {_tokens(len(one.emitted))} kept{each}"


def _tokens(n: int) -> str:
    return f"{n} token" + ("" if n == 1 else "s")


def _cell(token: RibbonToken, greedy: bool) -> str:
    if token.place is None:
        rows = _rows(
            [
                ("probability", None if token.probability is None else number(token.probability)),
                ("H verifier", None if token.entropy is None else f"{token.entropy:.2f} bits"),
            ]
        )
        return f'<div class="cell put"><b>{PUT.get(token.state, token.state)}</b>{token_html(token)}{rows}</div>'
    bar = None if greedy else acceptance_bar(token)
    rows = [
        ("q draft", "point mass" if token.q is None else number(token.q)),
        ("p verifier", None if token.p is None else number(token.p)),
    ]
    if token.state != DISCARDED and not greedy:
        rows.append(("draw", None if token.draw is None else number(token.draw)))
        if bar is not None and token.draw is not None:
            rows.append(("must be <", number(bar)))
    if token.draft_entropy is not None:
        rows.append(("H draft", f"{token.draft_entropy:.2f} bits"))
    title = f' title="{escape(accept_test(token))}"' if accept_test(token) else ""
    return f'<div class="cell"{title}><b>{JUDGED.get(token.state, token.state)}</b>{token_html(token)}{_rows(rows)}</div>'


def _rows(rows) -> str:
    return (
        "<dl>"
        + "".join(
            f'<dt><abbr title="{escape(MEANING[name])}">{escape(name)}</abbr></dt>'
            f"<dd>{'n/a' if shown is None else escape(shown)}</dd>"
            for name, shown in rows
        )
        + "</dl>"
    )
