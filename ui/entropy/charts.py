"""Charts of entropies. Each takes (run, trails of one side, the trail shown, theme) and gives a chart, or None if it would be empty.

Every chart carries a title, a sentence that says what to see in it, and bits on its axes.
"""

from __future__ import annotations

import textwrap
from typing import Callable, Sequence

import altair as alt

from engine.analysis.entropy import CONTINUATION, FIRST, OTHER, UNSURE, Trail, categories, counted, draft, judged, shown, words
from engine.tokens import label
from engine.trace import AnyRun
from ui.charts import HEIGHT, ROWS, draft_entropy_chart, finish
from ui.entropy.ribbon import WINDOW
from ui.ribbon import number
from ui.theme import MONO, chart_config, colours

BRUSHED = 48  # tokens the detail shows before anybody brushes: their labels just fit
# Labels of the vertical axis within the plot: Streamlit makes each part as wide as the page, with no room beside it.
INSIDE = dict(labelExpr="datum.value == 0 ? '' : datum.label + (datum.value == 1 ? ' bit' : ' bits')", labelAlign="left",
              labelBaseline="bottom", labelPadding=-4, ticks=False, domain=False, minExtent=0, maxExtent=0)
SERIES = ("model entropy", "sampling entropy")


def line_chart(run: AnyRun, chosen: Sequence[Trail], trail: Trail, theme: str = "light", start: int = 0, still: bool = False):
    """Both entropies token by token: WINDOW tokens from `start` above, with a brush, and what is brushed below with its tokens named.

    `still`: for a picture, in which nothing can be brushed.
    """
    rows = _rows(run, trail, start)
    if not rows:
        return None
    c = colours(theme)
    sampled = any(r["sampling"] is not None for r in rows)
    named = SERIES if sampled else SERIES[:1]
    highest = max(rows, key=lambda r: r["model"] if r["model"] is not None else -1)
    part = f"Of tokens {start + 1:,} to {start + len(rows):,} of {len(trail.ids):,} the" if len(rows) < len(trail.ids) else "The"
    said = f"{part} model was least sure at token {highest['at']:,}, {highest['token']}: {shown(highest['model'])} bits. "
    said += f"Below: the first {min(BRUSHED, len(rows))} tokens." if still else \
        "Drag over the upper chart to choose what the lower one shows; double-click to see all."
    if not sampled:
        said += " Sampling entropy was not recorded in this run."
    at_first = {"value": {"x": [start + 0.5, start + BRUSHED + 0.5]}} if len(rows) > BRUSHED else {}
    brush = alt.selection_interval(name="brush", encodings=["x"], **at_first)
    legend = alt.Legend(title=None, symbolType="stroke")
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(named), range=[c.accent, c.faint]), legend=legend)
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=list(named), range=[[1, 0], [4, 3]]), legend=legend)
    fields = ["model", "sampling"] if sampled else ["model"]
    name = "datum.series == 'model' ? 'model entropy' : 'sampling entropy'"

    def folded(chart):
        return chart.transform_fold(fields, as_=["series", "bits"]).transform_filter("isValid(datum.bits)").transform_calculate(series=name)

    overview = folded(alt.Chart()).mark_line(strokeWidth=1.2, interpolate="linear").encode(
        x=alt.X("at:Q", title="token", scale=alt.Scale(domain=[start + 0.5, start + len(rows) + 0.5], nice=False),
                axis=alt.Axis(tickMinStep=1, format="d")),
        y=alt.Y("bits:Q", title=None, axis=alt.Axis(tickCount=3, **INSIDE)), color=colour, strokeDash=dash)
    overview = overview.add_params(brush).properties(height=70)
    x = alt.X("name:N", title="tokens brushed", sort=alt.EncodingSortField("at", op="min"),
              axis=alt.Axis(labelAngle=-90, labelLimit=90, labelOverlap="greedy", ticks=False, labelFont=MONO, labelFontSize=10))
    below = folded(alt.Chart().transform_filter(brush)).encode(
        x=x, y=alt.Y("bits:Q", title=None, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5, **INSIDE)), color=colour,
        tooltip=[alt.Tooltip("token:N"), alt.Tooltip("at:Q", title="place"), alt.Tooltip("series:N"), alt.Tooltip("bits:Q", format=".2f"),
                 alt.Tooltip("top:N", title="best")])
    rule = alt.Chart(alt.Data(values=[dict(bits=UNSURE)])).mark_rule(color=c.faint, strokeDash=[2, 3]).encode(y="bits:Q")
    detail = alt.layer(rule, below.mark_line(strokeWidth=1.6).encode(strokeDash=dash), below.mark_point(size=26, filled=True, opacity=1))
    detail = detail.properties(height=170)
    title = alt.TitleParams("Entropy, token by token", subtitle=textwrap.wrap(said, 50))
    sides = dict(left=0, right=0, top=6, bottom=6)  # the parts are as wide as the page already
    # The data stand once, for all parts.
    return alt.vconcat(overview, detail, data=alt.Data(values=rows), spacing=14, title=title, padding=sides).configure(**chart_config(theme))


def _rows(run: AnyRun, trail: Trail, start: int) -> list[dict]:
    """One row a token, at most WINDOW of them; `name` is a token's unique name on the axis."""
    special = frozenset(run.special)
    rows = []
    for i in range(start, min(len(trail.ids), start + WINDOW)):
        token = label(trail.bytes[i], trail.special[i])[:16]
        best = "  ".join(f"{label(bytes.fromhex(run.tokens.get(t, '')), t in special)} {number(p)}"
                         for t, p in (trail.answer.top[i] if i < len(trail.answer.top) else ()))
        rows.append(dict(at=i + 1, name=f"{token} {i + 1}", token=token, model=_round(trail.bits[i]),
                         sampling=_round(trail.sampling_bits[i]), top=best))
    return rows if any(r["model"] is not None for r in rows) else []


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def words_chart(run: AnyRun, chosen: Sequence[Trail], trail: Trail, theme: str = "light"):
    """Mean entropy of first pieces of words, of continuations, and of tokens without a letter, with counts."""
    f = words(chosen)
    rows = [dict(kind=kind, bits=f[kind]["bits"], tokens=f[kind]["tokens"], said=f"{shown(f[kind]['bits'])} (n = {f[kind]['tokens']:,})")
            for kind in (FIRST, CONTINUATION, OTHER) if f[kind]["tokens"]]
    if not rows:
        return None
    said = "No token of this text begins a word."
    if f["difference"] is not None:
        said = commitment(f)
    elif f[FIRST]["tokens"]:
        said = "No word of this text has more than one token."
    said += " n: tokens."
    c = colours(theme)
    top = max(r["bits"] for r in rows)
    x = alt.X("bits:Q", title="mean model entropy, bits", axis=alt.Axis(tickCount=5),
              scale=alt.Scale(domain=[0, max(top * 1.6, 0.5)], nice=False))
    y = alt.Y("kind:N", title=None, sort=[FIRST, CONTINUATION, OTHER], axis=alt.Axis(domain=False, ticks=False, minExtent=84))
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=x, y=y, tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("bits:Q", format=".3f"), alt.Tooltip("tokens:Q")])
    bars = base.mark_bar(height=20, cornerRadiusEnd=2).encode(
        color=alt.Color("kind:N", legend=None, scale=alt.Scale(domain=[FIRST, CONTINUATION, OTHER], range=[c.accent, c.accepted, c.neutral])))
    return finish(bars + base.mark_text(align="left", dx=6).encode(text="said:N"), theme, "Where the model commits", said, 110)


def commitment(f: dict) -> str:
    """What the difference between first pieces and continuations is, with its interval. `f`: of `engine.analysis.entropy.words`."""
    by, span = f["difference"], f["interval"]
    between = f" (95 %: {shown(span[0])} to {shown(span[1])}, Welch, tokens taken as independent)" if span else ""
    if span and span[0] <= 0 <= span[1]:
        return f"No clear difference between the first piece of a word and a continuation: {shown(by)} bits{between}."
    return f"The first piece of a word carries {shown(abs(by))} bits {'more' if by >= 0 else 'less'} than a continuation{between}."


def category_chart(run: AnyRun, chosen: Sequence[Trail], trail: Trail, theme: str = "light"):
    """Mean entropy by prompt category with counts; only where there are several."""
    found = categories(chosen)
    if len(found) < 2:
        return None
    rows = [dict(category=(c["category"] or "(no category)")[:60], bits=c["bits"], low=(c["interval"] or (None, None))[0],
                 high=(c["interval"] or (None, None))[1], end=max(c["bits"], (c["interval"] or (0, 0))[1]),
                 counts=f"{c['tokens']:,} tokens, {c['answers']}")
            for c in sorted(found, key=lambda c: -c["bits"]) if c["bits"] is not None][:40]
    if len(rows) < 2:
        return None
    said = (f"Most unsure: {rows[0]['category']}, {shown(rows[0]['bits'])} bits; surest: {rows[-1]['category']}, {shown(rows[-1]['bits'])}. "
            "Lines: 95 % intervals with answers as the independent units, where there are two or more. Numbers: tokens, answers.")
    c = colours(theme)
    order = [r["category"] for r in rows]
    x = alt.Scale(domain=[0, max(r["end"] for r in rows) * 1.35])
    y = alt.Y("category:N", title=None, sort=order, axis=alt.Axis(domain=False, ticks=False, labelLimit=140))
    base = alt.Chart(alt.Data(values=rows)).encode(y=y, tooltip=[
        alt.Tooltip("category:N"), alt.Tooltip("bits:Q", format=".3f"), alt.Tooltip("low:Q", title="95 % from", format=".3f"),
        alt.Tooltip("high:Q", title="95 % to", format=".3f"), alt.Tooltip("counts:N", title="tokens, answers")])
    spans = base.transform_filter("isValid(datum.low)").mark_rule(color=c.ink, strokeWidth=1.5).encode(x=alt.X("low:Q", scale=x), x2="high:Q")
    points = base.mark_point(size=70, filled=True, opacity=1).encode(x=alt.X("bits:Q", title="mean model entropy, bits", scale=x))
    texts = base.mark_text(align="left", dx=9, fontSize=11, color=c.quiet).encode(x=alt.X("end:Q", scale=x), text="counts:N")
    return finish(spans + points + texts, theme, "Entropy by category", said, max(90, 26 * len(rows)))


def judged_chart(run: AnyRun, chosen: Sequence[Trail], trail: Trail, theme: str = "light"):
    """Draft entropy of accepted and of rejected draft tokens: every token a tick, the means a bar."""
    pairs = [pair for t in chosen for pair in judged(t)]
    f = draft(pairs)
    if not pairs:
        return None
    c = colours(theme)
    step = -(-len(pairs) // (ROWS - 2))
    rows = [dict(kind="accepted" if good else "rejected", bits=round(h, 4)) for h, good in pairs[::step]]
    means = [dict(kind=kind, bits=f[f"{kind}_bits"], said=f"mean {shown(f[f'{kind}_bits'])}, {counted(f[kind])}")
             for kind in ("accepted", "rejected") if f[kind]]
    said = " ".join(f"Draft tokens that were {m['kind']} had {shown(m['bits'])} bits of draft entropy in the mean "
                    f"({counted(f[m['kind']])})." for m in means)
    domain = ["accepted", "rejected"]
    y = alt.Y("kind:N", title=None, sort=domain, axis=alt.Axis(domain=False, ticks=False, minExtent=64))
    wide = max(h for h, _ in pairs) or 1.0
    scale_ = alt.Scale(domain=[0, wide * 1.05])
    ticks = alt.Chart(alt.Data(values=rows)).mark_tick(thickness=1, size=26, opacity=0.45).encode(
        x=alt.X("bits:Q", title="draft entropy, bits", scale=scale_), y=y,
        tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("bits:Q", format=".2f")],
        color=alt.Color("kind:N", legend=None, scale=alt.Scale(domain=domain, range=[c.accent, c.ink])))
    base = alt.Chart(alt.Data(values=means)).encode(y=y, x=alt.X("bits:Q", scale=scale_))
    marks = base.mark_tick(thickness=3, size=40, color=c.ink)
    texts = base.mark_text(align="left", dx=7, dy=-18, fontSize=11, color=c.quiet).encode(text="said:N")
    return finish(ticks + marks + texts, theme, "How sure the draft was of what it proposed", said, 130)


def acceptance_chart(run: AnyRun, chosen: Sequence[Trail], trail: Trail, theme: str = "light"):
    """Acceptance by draft entropy, with intervals."""
    return draft_entropy_chart([pair for t in chosen for pair in judged(t)], theme)


FIGURES: dict[str, Callable] = {"line": line_chart, "words": words_chart, "categories": category_chart, "acceptance": acceptance_chart,
                                "judged": judged_chart}
