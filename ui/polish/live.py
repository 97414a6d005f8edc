"""A strategy run on its way: how far it is, the answer that is being written, and what each way kept so far."""

from __future__ import annotations

from html import escape

from cache.job import JobView
from engine.analysis.timing import trouble
from ui import live
from ui.grow import generation
from ui.ribbon import ribbon_html, tokens_from


def growing(view: JobView, ahead: int = 0, seconds_ahead: float | None = None) -> str:
    """The whole live area as one piece, so that nothing in it can jump."""
    side = view.sides.get(view.side or "")
    if side is None or not side.steps:
        return live.progress_html(view, ahead, seconds_ahead, _kept(view))
    tokens = tokens_from([step.round for step in side.steps[-live.TAIL:]], view.tokens, dropped=True)
    body = ribbon_html(tokens, label="The answer so far", growing=True, frame=False)
    note = f"{view.side}: {side.tokens} of at most {view.request.settings.max_tokens} tokens" + (
        f" · {side.tokens_per_second:.1f} tok/s" if side.tokens_per_second else "")
    so_far = generation(view.side, [step.round for step in side.steps], load=side.load)
    if why := trouble(so_far.timings[0], side.load.cores if side.load else 0, so_far.rounds):
        note += f" · disturbed: {why}"
    return live.progress_html(view, ahead, seconds_ahead, f'<p class="quiet num">{escape(note)}</p><div class="tail">{body}</div>{_kept(view)}')


def _kept(view: JobView) -> str:
    """Candidates kept so far of the last answer of each way."""
    said = []
    for name, side in view.sides.items():
        proposed = sum(len(step.round.proposed) for step in side.steps)
        if proposed:
            said.append(f"{name} {sum(step.round.accepted for step in side.steps)} of {proposed}")
    return f'<p class="quiet num">Candidates kept, last prompt of each: {escape(" · ".join(said))}</p>' if said else ""
