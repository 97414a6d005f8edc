"""Charts of a strategy run: (run, figures, theme) → an Altair chart, or None where there is nothing to draw."""

from __future__ import annotations

import altair as alt

from engine.analysis.uag import Figures, Ratio
from engine.trace import UagRun
from engine.trace.uag import BOUNDARY, CAUSES, DIACRITIC, DISAGREEMENT, STRATEGIES, TIE
from ui.card import share
from ui.charts import HEIGHT, PERCENT, finish
from ui.theme import colours

BESIDE = 0.09  # of a k, between two strategies


def acceptance_chart(run: UagRun, f: Figures, theme: str = "light") -> alt.Chart | None:
    """Candidates accepted of those proposed, by k, a line a strategy, with intervals over prompts."""
    rows = [_point(r.strategy, r.k, r.acceptance) for r in f.rows if r.acceptance.value is not None]
    best = max((r for r in f.rows if r.acceptance.value), key=lambda r: r.acceptance.value, default=None)
    words = f"Highest: {best.strategy} at k = {best.k}, {share(best.acceptance.value)} of {best.acceptance.below:,} candidates." if best else \
        "No candidate was accepted."
    axis = alt.Y("value:Q", title="accepted of proposed candidates", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(labelExpr=PERCENT))
    return _lines(rows, axis, theme, "Acceptance by strategy and k", words) if rows else None


def speed_chart(run: UagRun, f: Figures, theme: str = "light") -> alt.Chart | None:
    """Speed against verifier-only, by k, a line a strategy."""
    rows = [_point(r.strategy, r.k, r.speedup) for r in f.rows if r.speedup.value is not None]
    if not rows:
        return None
    pays = [r for r in f.rows if (r.speedup.value or 0) > 1]
    words = f"{len(pays)} of {len(rows)} combinations are faster than the verifier alone, the line at 1." if pays else \
        "None is faster than the verifier alone, the line at 1."
    if f.disturbed:
        words = f"{f.disturbed} {words}"
    axis = alt.Y("value:Q", title="speedup, ×", scale=alt.Scale(domainMin=0))
    return _lines(rows, axis, theme, "Speed against verifier-only", words, one=True)


def causes_chart(run: UagRun, f: Figures, theme: str = "light") -> alt.Chart | None:
    """Why candidates were refused: shares by cause, a bar a strategy."""
    c = colours(theme)
    rows = []
    for strategy in dict.fromkeys(r.strategy for r in f.rows):
        of = [r for r in f.rows if r.strategy == strategy]
        total = sum(r.refused for r in of)
        for order, cause in enumerate(CAUSES):
            count = sum(r.causes[cause] for r in of)
            if count:
                rows.append(dict(strategy=strategy, cause=cause, order=order, count=count, share=count / total, counts=f"{count:,} of {total:,}"))
    if not rows:
        return None
    cuts = sum(r["count"] for r in rows if r["cause"] in (BOUNDARY, DIACRITIC))
    total = sum(r["count"] for r in rows)
    words = f"{cuts:,} of {total:,} refusals are only another cut of the same text; the rest are another opinion or a close call."
    fill = {BOUNDARY: c.accent, DIACRITIC: c.edge, TIE: c.neutral, DISAGREEMENT: c.rejected}
    present = [x for x in CAUSES if any(r["cause"] == x for r in rows)]
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(stroke=c.paper, strokeWidth=1).encode(
        y=alt.Y("strategy:N", title=None, sort=list(STRATEGIES)), x=alt.X("share:Q", title="share of refusals", stack="zero", axis=alt.Axis(labelExpr=PERCENT)),
        color=alt.Color("cause:N", scale=alt.Scale(domain=present, range=[fill[x] for x in present]), legend=alt.Legend(title=None, columns=2)),
        order=alt.Order("order:Q"),
        tooltip=[alt.Tooltip("strategy:N"), alt.Tooltip("cause:N"), alt.Tooltip("counts:N", title="refusals"), alt.Tooltip("share:Q", format=".1%")])
    return finish(chart, theme, "Why candidates were refused", words, 34 * len(dict.fromkeys(r["strategy"] for r in rows)) + 20)


FIGURES = {"acceptance": acceptance_chart, "speed": speed_chart, "causes": causes_chart}


def _point(strategy: str, k: int, ratio: Ratio) -> dict:
    low, high = ratio.interval or (ratio.value, ratio.value)
    return dict(strategy=strategy, k=k, value=ratio.value, low=low, high=high)


def _lines(rows: list[dict], y: alt.Y, theme: str, title: str, words: str, one: bool = False) -> alt.Chart:
    c = colours(theme)
    palette = dict(zip(STRATEGIES, (c.faint, c.rejected, c.accent, c.edge)))
    dashes = dict(zip(STRATEGIES, ([2, 3], [6, 3], [1, 0], [8, 3, 2, 3])))
    present = [s for s in STRATEGIES if any(r["strategy"] == s for r in rows)]
    ks = sorted({r["k"] for r in rows})
    for r in rows:  # side by side, so that one interval does not hide another
        r["at"] = r["k"] + BESIDE * (present.index(r["strategy"]) - (len(present) - 1) / 2)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("at:Q", title="k, draft tokens per round", scale=alt.Scale(domain=[min(ks) - 0.4, max(ks) + 0.4], nice=False), axis=alt.Axis(values=ks, format="d")),
        color=alt.Color("strategy:N", scale=alt.Scale(domain=present, range=[palette[s] for s in present]), legend=alt.Legend(title=None, symbolType="stroke")))
    tips = [alt.Tooltip("strategy:N"), alt.Tooltip("k:Q"), alt.Tooltip("value:Q", format=".3f"), alt.Tooltip("low:Q", title="from (95 %)", format=".3f"),
            alt.Tooltip("high:Q", title="to (95 %)", format=".3f")]
    layers = [base.mark_line(strokeWidth=2).encode(y=y, strokeDash=alt.StrokeDash("strategy:N", scale=alt.Scale(
        domain=present, range=[dashes[s] for s in present]), legend=alt.Legend(title=None))),
        base.mark_rule(opacity=0.6).encode(y="low:Q", y2="high:Q"), base.mark_point(size=60, filled=True, opacity=1).encode(y=y, tooltip=tips)]
    if one:
        layers.insert(0, alt.Chart(alt.Data(values=[dict(value=1)])).mark_rule(color=c.ink, opacity=0.5).encode(y="value:Q"))
    return finish(alt.layer(*layers), theme, title, words, HEIGHT)
