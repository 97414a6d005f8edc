"""A strategy run on its way: every way's answer as it grows, in the grid in which the results will stand, and why candidates were refused
as soon as they were."""

from __future__ import annotations

from collections import Counter
from html import escape

from cache.job import JobView, SideView
from engine.analysis.timing import trouble
from engine.tokens import label
from engine.trace import CORRECTION, Round
from engine.trace.uag import CAUSES
from ui import live
from ui.card import share
from ui.grow import generation
from ui.polish.card import LETTER, MEANING, bar_html, counts_words
from ui.ribbon import ribbon_html, tokens_from

CSS = """
.sl .way{display:grid;grid-template-columns:7em 1fr;gap:4px 14px;align-items:start}
.sl .way h3{font-size:13px;font-weight:400;line-height:1.6} .sl .way h3 b{font-weight:600}
.sl .ks{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,15em),1fr));gap:10px 14px;min-width:0}
.sl .way .cell{display:grid;gap:4px;min-width:0;padding:0;border:0;font-size:12px} .sl .way .cell b{display:inline;color:var(--ink);font-weight:600;margin:0}
.sl .way .tail{--reserved:6.4em} .sl .way .now .tail{border-color:var(--accent)} .sl .way .one .tail{--reserved:4.6em}
.sl.live .disturbed{font-size:13px;min-height:1.45em}
.sl .way .tokens{padding:4px 7px} .sl .way :is(.cell p,.refused){font-size:12px;line-height:1.45} .sl .refused{min-height:5.2em} .sl .refused p{overflow-wrap:anywhere}
@media (max-width:640px){.sl .way{grid-template-columns:1fr}}
"""

PLAIN = "plain"
TAIL = 24  # rounds of each answer that are drawn twice a second, beside models that want the time; the result shows all


def growing(view: JobView, ahead: int = 0, seconds_ahead: float | None = None) -> str:
    """The whole live area as one piece of fixed height, so that nothing in it can jump."""
    asked = view.request
    ways = "".join(f'<section class="way"><h3><b>{escape(strategy)}</b></h3><div class="ks">'
                   + "".join(_way(view, f"{strategy} k={k}", f"k = {k}") for k in asked.ks) + "</div></section>" for strategy in asked.strategies)
    body = (f'<p class="headline" aria-live="off">{escape(so_far(view))}</p><p class="quiet disturbed">{escape(disturbed(view))}</p>'
            f'<section class="way"><h3><b>Verifier only</b></h3><div class="ks one">{_way(view, PLAIN, "")}</div></section>{ways}{legend_html()}')
    return live.progress_html(view, ahead, seconds_ahead, body)


def so_far(view: JobView) -> str:
    """One sentence about the answers there are."""
    counts = {name: (sum(s.round.accepted for s in side.steps), sum(len(s.round.proposed) for s in side.steps))
              for name, side in view.sides.items()}
    sent = {name: (kept, of) for name, (kept, of) in counts.items() if of}
    if not sent:
        return "So far only the verifier wrote." if view.sides else "Nothing written yet."
    best = max(sent, key=lambda name: sent[name][0] / sent[name][1])
    kept, of = sent[best]
    if not kept:
        return f"So far none of {sum(of for _, of in sent.values()):,} candidates was kept."
    return f"So far {best.replace(' k=', ' at k = ')} keeps most of its candidates: {share(kept / of)} of {of:,}."


def disturbed(view: JobView) -> str:
    """What disturbs the answer that is being written, if anything does."""
    side = view.sides.get(view.side or "")
    if side is None or not side.steps:
        return ""
    made = generation(view.side, [step.round for step in side.steps], load=side.load)
    why = trouble(made.timings[0], side.load.cores if side.load else 0, made.rounds)
    return f"Its timing is disturbed: {why}." if why else ""


def _way(view: JobView, name: str, title: str) -> str:
    """One way's answer so far, its counts, and its refusals."""
    side = view.sides.get(name)
    now = side is not None and side.decoding and view.side == name
    note = _note(view, side, name) if side else "not begun yet"
    body = ribbon_html(tokens_from([s.round for s in side.steps[-TAIL:]], view.tokens, dropped=name != PLAIN), label=f"{name}: the answer so far",
                       growing=now, frame=False) if side and side.steps else ""
    head = f"<b>{escape(title)}</b> " if title else ""
    return (f'<div class="cell{" now" if now else ""}"><p class="quiet">{head}<span class="num">{escape(note)}</span></p>'
            f'<div class="tail">{body}</div>{"" if name == PLAIN else _refused(view, side)}</div>')


def _note(view: JobView, side: SideView, name: str) -> str:
    sent = sum(len(s.round.proposed) for s in side.steps)
    words = [f"{sum(s.round.accepted for s in side.steps)} of {sent} kept"] if name != PLAIN else []
    words.append(f"{side.tokens} of {view.request.settings.max_tokens} tokens")
    words += [f"{side.tokens_per_second:.1f} tok/s"] if side.tokens_per_second else []
    words += [f"repeat {side.repeat} of {view.repeats}"] if view.repeats > 1 else []
    return " · ".join(words)


def _refused(view: JobView, side: SideView | None) -> str:
    """The causes so far as a bar, and the last refusal in words. Two lines are kept free for them from the start."""
    refused = [s.round for s in side.steps if s.round.closing == CORRECTION and s.round.cause] if side else []
    if not refused:
        return '<div class="refused quiet"></div>'
    counts = Counter(r.cause for r in refused)
    return (f'<div class="refused quiet">{bar_html(counts)}<p>{len(refused)} refused: {counts_words(counts)}</p>'
            f"<p>Last: {_last(view, refused[-1])}</p></div>")


def _last(view: JobView, r: Round) -> str:
    sent, put = (label(bytes.fromhex(view.tokens.get(i, ""))) for i in (r.proposed[r.accepted], r.emitted[-1]))
    return f'<code>{escape(sent)}</code> ✗, <code>{escape(put)}</code> ↻: {escape(r.cause or "")}'


def legend_html() -> str:
    items = "".join(f'<span title="{escape(MEANING[c])}"><i class="{LETTER[c]}"></i>{escape(c)}</span>' for c in CAUSES)
    return f'<div class="because">{items}</div>'
