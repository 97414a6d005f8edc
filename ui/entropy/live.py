"""An entropy run on its way: how far it is, and the answer that is being written. Entropies are worked out when it is whole."""

from __future__ import annotations

from cache.job import JobView
from ui import live
from ui.ribbon import ribbon_html, tokens_from


def growing(view: JobView, ahead: int = 0, seconds_ahead: float | None = None) -> str:
    """The whole live area as one piece, so that nothing in it can jump."""
    side = view.sides.get("plain")
    if side is None or not side.steps:
        return live.progress_html(view, ahead, seconds_ahead)
    tokens = tokens_from([step.round for step in side.steps[-live.TAIL:]], view.tokens)
    body = ribbon_html(tokens, label="The answer so far", growing=True, frame=False)
    note = f"{side.tokens} of at most {view.request.settings.max_tokens} tokens" + (
        f" · {side.tokens_per_second:.1f} tok/s" if side.tokens_per_second else "")
    return live.progress_html(view, ahead, seconds_ahead, f'<p class="quiet num">{note}</p><div class="tail">{body}</div>')
