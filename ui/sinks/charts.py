"""Charts of one prompt's sinks. Each says in its subtitle what to see in it."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np

from engine.attention import statistics
from engine.attention.null import measured
from engine.attention.view import SinkView
from engine.tokens import label
from engine.trace import SinkItem, SinksRun
from ui import scale
from ui.card import share
from ui.charts import HEIGHT, finish
from ui.theme import colours

BINS, COLUMNS = 48, 160  # bars of the histogram; columns of the heat map
FLOOR, CEILING = -5.0, 0.0  # log10 of attention received, the fixed domain of the heat maps
RAMP = [scale.colour(i / 16) for i in range(17)]


def histogram(run: SinksRun, item: SinkItem, view: SinkView, theme: str = "light") -> alt.Chart | None:
    """How many tokens have which z, and where the threshold cuts."""
    c, name = colours(theme), "z′" if view.corrected else "z"
    known = ~np.isnan(view.score)
    if not known.any():
        return None
    values = view.score[known]
    low, high = math.floor(min(values.min(), -3)), math.ceil(max(values.max(), view.threshold, 3) + 0.5)
    edges = np.linspace(low, high, BINS + 1)
    rows = []
    for kind, where in (("text", ~view.structural[known]), ("template", view.structural[known])):
        counts, _ = np.histogram(values[where], edges)
        rows += [dict(low=float(a), high=float(b), kind=kind, tokens=int(n)) for a, b, n in zip(edges, edges[1:], counts) if n]
    over = int((view.sinks & ~view.structural).sum())
    content = int((~view.structural).sum())
    words = f"{over} of {content:,} tokens outside the template lie at or above the threshold {view.threshold:g}."
    if not known.all():
        words += f" {int((~known).sum())} have no {name} and are left out."
    bars = alt.Chart(alt.Data(values=rows)).mark_rect(stroke=c.paper, strokeWidth=0.5).encode(
        x=alt.X("low:Q", title=f"{name}", scale=alt.Scale(domain=[low, high])), x2="high:Q",
        y=alt.Y("tokens:Q", title="tokens (square-root scale)", scale=alt.Scale(type="sqrt"), stack=None, axis=alt.Axis(tickMinStep=1)),
        y2=alt.datum(0),
        color=alt.Color("kind:N", scale=alt.Scale(domain=["text", "template"], range=[c.accent, c.neutral]), legend=alt.Legend(title=None)),
        opacity=alt.value(0.8),
        tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("low:Q", title="from", format=".2f"), alt.Tooltip("high:Q", title="to", format=".2f"),
                 alt.Tooltip("tokens:Q")])
    cut = alt.Data(values=[dict(z=view.threshold, words=f"threshold {view.threshold:g}")])
    line = alt.Chart(cut).mark_rule(color=c.ink, strokeWidth=2, strokeDash=[5, 3]).encode(x="z:Q")
    word = alt.Chart(cut).mark_text(align="left", dx=5, baseline="top", color=c.ink, fontWeight=600).encode(x="z:Q", y=alt.value(0), text="words:N")
    return finish(alt.layer(bars, line, word), theme, f"Histogram of {name}", words, HEIGHT)


def heat_map(run: SinksRun, item: SinkItem, view: SinkView, theme: str = "light") -> alt.Chart | None:
    """Attention received, layer by position: sinks are bright columns."""
    if item.sums is None or item.sums.received is None:
        return None
    received = statistics.by_layer(item.sums)
    layers, length = received.shape
    rows = _cells(run, item, received, "layer")
    first = float(received[:, 0].mean())
    words = (f"Mean over heads. A sink is a bright column: {item.first} 0 gets {share(first)} of what each query gives, "
             f"mean over {layers} layers.")
    if length > COLUMNS:
        words += f" Each column is the brightest of {math.ceil(length / COLUMNS)} positions."
    return _heat(rows, "layer", layers, length, theme, "Attention received, layer × position", words)


def head_map(run: SinksRun, item: SinkItem, view: SinkView, theme: str = "light") -> alt.Chart | None:
    """Which heads feed the sinks: the share of each head's attention that sinks and the first token take."""
    if item.sums is None or item.sums.received is None:
        return None
    where = view.sinks.copy()
    where[0] = True
    drained = item.sums.received[:, :, where].sum(-1, dtype=np.float64) / len(view.ids)
    layers, heads = drained.shape
    rows = [dict(layer=i, head=h, value=float(drained[i, h]), share=f"{drained[i, h] * 100:.1f} %") for i in range(layers) for h in range(heads)]
    at = np.unravel_index(int(drained.argmax()), drained.shape)
    others = int(view.sinks[1:].sum())
    taken = "position 0 takes" if not others else f"position 0 and {others} other {'sink' if others == 1 else 'sinks'} take"
    words = (f"Share of each head's attention that {taken}. Most: layer {at[0]}, head {at[1]}, "
             f"{share(float(drained[at]))}. Choose a cell to look at that head alone.")
    c = colours(theme)
    chart = alt.Chart(alt.Data(values=rows)).mark_rect(stroke=c.paper, strokeWidth=1).encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
        y=alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(labelOverlap="greedy")),
        color=alt.Color("value:Q", scale=alt.Scale(domain=[0, 1], range=RAMP), legend=alt.Legend(title=None, format=".0%", gradientLength=160)),
        tooltip=[alt.Tooltip("layer:O"), alt.Tooltip("head:O"), alt.Tooltip("share:N", title="to sinks")])
    chart = chart.add_params(alt.selection_point(name="head", fields=["layer", "head"], on="click", toggle=False))
    return finish(chart, theme, "Which heads feed the sinks", words, max(120, min(14 * layers, 380)))


def null_curve(run: SinksRun, item: SinkItem, view: SinkView, theme: str = "light") -> alt.Chart | None:
    """What threshold ordinary text asks for: the measured null."""
    null = measured()
    if "curve" not in null:
        return None
    c = colours(theme)
    names = {"share_corrected": "z′", "share_plain": "z"}
    rows = [dict(threshold=p["threshold"], kind=name, share=p[key]) for p in null["curve"] for key, name in names.items() if p.get(key)]
    words = " ".join(filter(None, (null["sentence"], null.get("queries_sentence"))))
    lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=2).encode(
        x=alt.X("threshold:Q", title="threshold"),
        y=alt.Y("share:Q", title="content tokens flagged (log scale)", scale=alt.Scale(type="log"), axis=alt.Axis(format=".2~%", tickCount=5)),
        color=alt.Color("kind:N", scale=alt.Scale(domain=list(names.values()), range=[c.accent, c.faint]), legend=alt.Legend(title=None)),
        tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("threshold:Q", format=".1f"), alt.Tooltip("share:Q", format=".3%")])
    limit = alt.Chart(alt.Data(values=[dict(share=0.01)])).mark_rule(color=c.faint, strokeDash=[3, 3]).encode(y="share:Q")
    here = alt.Chart(alt.Data(values=[dict(threshold=view.threshold)])).mark_rule(color=c.ink, strokeWidth=2, strokeDash=[5, 3]).encode(x="threshold:Q")
    return finish(alt.layer(limit, lines, here), theme, "What ordinary text has", words, HEIGHT)


FIGURES = {"histogram": histogram, "layers": heat_map, "heads": head_map, "null": null_curve}


def _cells(run: SinksRun, item: SinkItem, received: np.ndarray, what: str) -> list[dict[str, Any]]:
    """One row a cell; long prompts are gathered into columns, each as bright as its brightest position."""
    count, length = received.shape
    width = math.ceil(length / COLUMNS)
    rows = []
    for start in range(0, length, width):
        block = received[:, start:start + width]
        best = block.argmax(axis=1)
        for i in range(count):
            j = start + int(best[i])
            value = float(block[i, best[i]])
            name = label(bytes.fromhex(run.tokens.get(item.prompt.ids[j], "")), item.prompt.ids[j] in run.special)
            # Half a column wider than it is: neighbours on fractions of a pixel would leave light seams between them.
            rows.append({what: i, "from": start, "to": min(start + width * 1.5, length), "value": max(math.log10(value), FLOOR) if value > 0 else FLOOR,
                         "position": j, "token": name[:24], "attention": value})
    return rows


def _heat(rows: list[dict], what: str, count: int, length: int, theme: str, title: str, words: str) -> alt.Chart:
    chart = alt.Chart(alt.Data(values=rows)).mark_rect().encode(
        x=alt.X("from:Q", title="position", scale=alt.Scale(domain=[0, length], nice=False), axis=alt.Axis(tickMinStep=1)), x2="to:Q",
        y=alt.Y(f"{what}:O", title=what, sort="descending", axis=alt.Axis(labelOverlap="greedy")),
        color=alt.Color("value:Q", scale=alt.Scale(domain=[FLOOR, CEILING], range=RAMP, clamp=True), legend=alt.Legend(
            title="attention received", values=[-5, -3, -1], labelExpr="datum.value <= -5 ? '≤ 0.00001' : format(pow(10, datum.value), '.5~f')", gradientLength=240)),
        tooltip=[alt.Tooltip(f"{what}:O"), alt.Tooltip("position:Q"), alt.Tooltip("token:N"), alt.Tooltip("attention:Q", format=".3~g")])
    return finish(chart, theme, title, words, max(120, min(11 * count, 340)))
