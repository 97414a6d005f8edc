"""A run while it goes: two growing ribbons, how far it is, and one sentence. Drawn from a job's snapshot alone."""

from __future__ import annotations

from html import escape

from cache.job import QUEUED, JobView
from engine.analysis.metrics import metrics
from engine.trace import Run
from ui.card import SIDES
from ui.grow import growing, so_far
from ui.ribbon import ribbon_html, tokens_of

TAIL = 160  # rounds of a growing ribbon that are drawn twice a second, beside a model that wants the time; the card shows all

CSS = """
.stMainBlockContainer{max-width:1320px;padding-top:4.5rem;padding-bottom:3rem}
.sl.live{display:grid;gap:12px;border:1px solid var(--line);border-radius:10px;background:var(--paper);padding:16px 22px}
.sl .status{display:flex;flex-wrap:wrap;gap:2px 18px;align-items:baseline;font-size:13px;color:var(--quiet);min-height:1.45em}
.sl .status b{font-weight:600;color:var(--ink)} .sl .status .right{margin-left:auto}
.sl .bar{height:4px;border-radius:2px;background:var(--line);overflow:hidden}
.sl .bar i{display:block;height:100%;background:var(--accent);border-radius:2px;transition:width .4s linear}
.sl .bar.unknown i{width:30%;animation:sl-slide 1.6s ease-in-out infinite alternate}
@keyframes sl-slide{from{margin-left:0}to{margin-left:70%}}
@media (prefers-reduced-motion:reduce){.sl .bar i{transition:none;animation:none!important}}
.sl.live .headline,.sl.replay .headline{min-height:1.35em;font-size:17px}
.sl .tail{height:var(--reserved,17.5em);overflow:auto;display:flex;flex-direction:column-reverse;scrollbar-width:thin;
  scrollbar-color:var(--line) transparent;border:1px solid var(--line);border-radius:6px}
.sl .tail>.ribbon{border:0;margin-bottom:auto} .sl .tail .tokens{max-height:none;overflow:visible}
.sl.pairline{font-size:13px;color:var(--quiet);min-height:1.45em} .sl.pairline b{font-weight:600;color:var(--ink);margin-right:6px}
.sl.pairline.warn{color:light-dark(#9a4410,#f09a55)}
.sl .empty{padding:8px 12px;color:var(--quiet);font-size:13px;margin-bottom:auto}
.sl .speed .note{margin-left:auto} .sl .explained{font-size:13px;min-height:2.9em}
.sl.quiet{color:var(--quiet);font-size:13px}
.sl.lead{max-width:860px} .sl.head{display:flex;flex-wrap:wrap;align-items:baseline;gap:0 14px}
.sl:is(.lead,.head) h1{font-size:26px;line-height:1.25;font-weight:650;letter-spacing:-.015em;margin:0;padding:0;color:var(--ink)}
.sl.lead h1{margin-bottom:6px} .sl.head p{color:var(--quiet)}
.sl.folded{display:flex;flex-wrap:wrap;gap:0 16px;align-items:baseline;font-size:14px;color:var(--quiet)}
.sl.folded b{font-weight:500;color:var(--ink);overflow-wrap:anywhere}
.stMain:has(.sl.folded) div:is(.st-key-asked,:has(>.st-key-asked)),
.stElementContainer:has(.sl.unfolded){display:none}
.sl.chart h3{font-size:14px;font-weight:600;line-height:1.4} .sl.chart p{font-size:13px;color:var(--quiet);text-wrap:pretty}
p.sl{margin:0}
.sl.provenance{font-size:13px;color:var(--quiet)} .sl.provenance .mark{margin:0 8px 0 0;vertical-align:1px;color:var(--ink)}
.sl.lead p{font-size:16px;line-height:1.55} .sl.small{font-size:13px}
.sl.oneline{white-space:nowrap;overflow:hidden;text-overflow:ellipsis;font-size:14px}
.sl .difference{border-collapse:collapse;table-layout:fixed;font-size:13px;width:100%}
.sl .difference :is(th,td){padding:5px 12px 5px 0;text-align:left;vertical-align:top;
  border-bottom:1px solid var(--line);font-weight:400;overflow-wrap:anywhere}
.sl .difference th[scope=row]{color:var(--quiet)} .sl .difference thead th{font-weight:600}
.sl .difference tbody+tbody td{font-variant-numeric:tabular-nums}
.sl-narrow .sl .sides,.sl-narrow .sl .pair{grid-template-columns:1fr}
.sl-say{font:400 15px/1.45 system-ui,sans-serif;padding:10px 14px;border-radius:6px;border:1px solid;border-left-width:4px;
  overflow-wrap:anywhere;white-space:pre-wrap;color:light-dark(#111,#fff)}
.sl-say-error{border-color:light-dark(#b3541e,#f09a55);background:light-dark(#fdf3ec,#2a1608)}
.sl-say-note{border-color:light-dark(#c9ced6,#3a424c);background:light-dark(#f5f6f8,#1a1f27)}
@media (max-width:640px){.stHorizontalBlock:is(.st-key-result-head,.st-key-polish-head,.st-key-sinks-one-head,.st-key-entropy-head)>:first-child{flex:1 1 5em!important;min-width:0!important;width:auto!important}
.st-key-sinks-look{gap:8px 12px!important}
.st-key-sinks-look>*{width:calc(50% - 6px)!important;flex:0 0 calc(50% - 6px)!important;min-width:0!important}
.sl.live{padding:14px} .sl .tail{--reserved:11em}}
"""


def live_html(view: JobView, ahead: int = 0, seconds_ahead: float | None = None) -> str:
    """The whole live area as one piece, so that nothing in it can jump."""
    steps = {name: side.steps[-TAIL:] for name, side in view.sides.items()}
    whole = growing(view.request, {name: side.steps for name, side in view.sides.items()}, view.tokens,
                    {name: side.load for name, side in view.sides.items()})
    drawn = growing(view.request, steps, view.tokens)
    return (f'<div class="sl live" aria-busy="true">{_status(view, ahead, seconds_ahead)}{_bar(view)}'
            f'<p class="headline" aria-live="off">{escape(_sentence(view, whole))}</p>'
            f'<div class="sides">{"".join(_side(view, drawn, name) for name in SIDES)}</div></div>')


def progress_html(view: JobView, ahead: int = 0, seconds_ahead: float | None = None, body: str = "") -> str:
    """How far any job is; `body` is HTML of what there is to see of it already."""
    return f'<div class="sl live" aria-busy="true">{_status(view, ahead, seconds_ahead)}{_bar(view)}{body}</div>'


def queue_words(ahead: int, seconds: float | None) -> str:
    """1 run ahead of yours · about 12 s"""
    words = f"{ahead} run{'' if ahead == 1 else 's'} ahead of yours"
    return words + (f" · about {duration(seconds)}" if seconds is not None else "")


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s"""
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def _status(view: JobView, ahead: int, seconds_ahead: float | None) -> str:
    if view.status == QUEUED:
        return f'<div class="status" role="status"><b>Waiting</b><span>{escape(queue_words(ahead, seconds_ahead))}</span></div>'
    stage = "Stopping after this token" if view.stopping else view.stage
    left = f"about {duration(view.seconds_left)} left" if view.seconds_left is not None and (view.side or view.done) else ""
    return (f'<div class="status" role="status"><b>{escape(stage)}</b><span class="right">{escape(left)}</span>'
            f'<span class="num">{duration(view.seconds)}</span></div>')


def _bar(view: JobView) -> str:
    share = done(view)
    if share is None:
        return '<div class="bar unknown" role="progressbar" aria-label="Progress not known yet"><i></i></div>'
    return (f'<div class="bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{share * 100:.0f}"><i style="width:{share * 100:.1f}%"></i></div>')


def done(view: JobView) -> float | None:
    """Share of the expected decode time that is over, 0–1; None while there is nothing to tell it from."""
    if view.status == QUEUED:
        return 0.0
    if view.done is not None:
        return view.done
    spent = sum(_seconds(side) for side in view.sides.values())
    if view.seconds_left is None or not spent:
        return None
    return spent / (spent + view.seconds_left)


def _seconds(side) -> float:
    """Decode time of all repeats so far, the earlier ones at the current one's rate."""
    return side.total / side.tokens_per_second if side.tokens_per_second else 0.0


def _sentence(view: JobView, run: Run) -> str:
    if view.status == QUEUED:
        return "Another run has the models; yours starts by itself when it is done."
    return so_far(run, metrics(run)) if run.plain or run.speculative else "Nothing written yet."


def _side(view: JobView, run: Run, name: str) -> str:
    side = view.sides.get(name)
    note = ""
    if side:
        most = view.request.settings.max_tokens
        note = f"{side.tokens} of at most {most} tokens" + (f" · repeat {side.repeat} of {view.repeats}" if view.repeats > 1 else "")
        if len(side.steps) > TAIL:
            note += " · the last rounds shown"
    rate = side.tokens_per_second if side else None
    return panel_html(run, name, note, bool(side and side.decoding and view.side == name), rate, view.request.settings.gamma)


def panel_html(run: Run, name: str, note: str, is_growing: bool, rate: float | None = None, gamma: int | None = None) -> str:
    """One side of an unfinished run: speed, `note`, and its ribbon in a box of reserved height that stays at its end."""
    answer = getattr(run, name)
    if rate is None and answer and answer.timings and answer.timings[0].decode_seconds:
        rate = answer.timings[0].tokens / answer.timings[0].decode_seconds
    gamma = run.settings.gamma if gamma is None else gamma
    title = f"<b>{SIDES[name]}</b>" + (f" γ = {gamma}" if name == "speculative" else "")
    speed = f"{rate:.1f}" if rate else "–"
    if answer:
        body = ribbon_html(tokens_of(run, name, dropped=True), label=SIDES[name], growing=is_growing, frame=False)
    else:
        body = f'<div class="empty">{"Begins when the other side is done." if name == "speculative" else "Not begun yet."}</div>'
    return (f'<section class="side{" fast" if name == "speculative" else ""}"><h3>{title}</h3><div class="speed">'
            f'<span><b>{speed}</b> tok/s</span><span class="note num">{escape(note)}</span></div>'
            f'<div class="tail">{body}</div></section>')
