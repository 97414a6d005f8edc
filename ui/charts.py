"""Charts of a run. Each takes (run, metrics, theme) and gives an Altair chart, or None where the run has nothing to
draw.

Every chart carries a title, one or two plain sentences that say what to see in it, units on its axes and tooltips.
None holds more than `ROWS` rows of data. Show them with `st.altair_chart(chart, theme=None)`: colours come from
`ui.theme`.
"""

from __future__ import annotations

import textwrap
from typing import Callable, Sequence

import altair as alt

from engine.analysis.ceilings import ceiling
from engine.analysis.entropy import acceptance_bins, judged, trails
from engine.analysis.timing import spent_by
from engine.trace import BONUS, CORRECTION, PLAIN, Run
from ui.card import share, time_shares
from ui.theme import chart_config, colours

ROWS = 5000
BARS = 120  # a timeline has no more: they would be thinner than a line, and Altair checks every cell of data
PERCENT = "format(datum.value * 100, '.0f') + ' %'"
HEIGHT = 190


def acceptance_chart(run: Run, metrics: dict, theme: str = "light") -> alt.Chart | None:
    """Accepted of those judged, by position in the block, with counts."""
    rows = [dict(position=str(r["position"]), rate=r["accepted"] / r["judged"], accepted=r["accepted"], judged=r["judged"],
                 counts=f"{r['accepted']} of {r['judged']}")
            for r in metrics.get("acceptance_by_position") or [] if r["judged"]]
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    words = f"Of the draft tokens judged first in a block, {share(first['rate'])} were accepted"
    if len(rows) > 1:
        words += f"; of those judged at position {last['position']}, {share(last['rate'])}"
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("position:N", title="position in the block", sort=None, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("rate:Q", title="accepted of judged", scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(labelExpr=PERCENT, values=[0, 0.25, 0.5, 0.75, 1])),
        tooltip=[alt.Tooltip("position:N"), alt.Tooltip("counts:N", title="accepted of judged"),
                 alt.Tooltip("rate:Q", title="share", format=".1%")])
    labels = base.mark_text(baseline="bottom", dy=-4, fontSize=11, color=colours(theme).quiet).encode(
        text="counts:N" if len(rows) <= 8 else "accepted:Q")
    bars = base.mark_bar(width=alt.RelativeBandSize(0.62), cornerRadiusEnd=2)
    return finish(bars + labels, theme, "Acceptance by position", words + ".", HEIGHT)


def time_chart(run: Run, metrics: dict, theme: str = "light") -> alt.Chart | None:
    """Decode seconds of both sides, stacked: verify, draft, other."""
    c = colours(theme)
    rows = [dict(side="verifier only" if side == "plain" else "speculative", part=name, order=i, seconds=seconds, share=part)
            for side in ("plain", "speculative") for i, (name, seconds, part) in enumerate(time_shares(metrics, side))]
    if not rows:
        return None
    spent = time_shares(metrics, "speculative")
    if spent:
        total = sum(s for _, s, _ in spent)
        verify, draft, other = (share(part) for _, _, part in spent)
        words = f"Of {total:.2f} s of speculative decoding, {verify} went into the verifier, {draft} into the draft and {other} " \
                "into everything else."
    else:
        words = "Only the verifier ran."
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(height=22).encode(
        x=alt.X("seconds:Q", title="decode time by medians per pass, seconds (mean of the repeats)", stack="zero", axis=alt.Axis(tickCount=6)),
        y=alt.Y("side:N", title=None, sort=["verifier only", "speculative"], axis=alt.Axis(domain=False, ticks=False, minExtent=92)),
        color=alt.Color("part:N", scale=alt.Scale(domain=["verify", "draft", "other"], range=[c.neutral, c.accent, c.line]),
                        legend=alt.Legend(title=None)),
        order=alt.Order("order:Q"),
        tooltip=[alt.Tooltip("side:N"), alt.Tooltip("part:N"), alt.Tooltip("seconds:Q", format=".3f"),
                 alt.Tooltip("share:Q", format=".1%")])
    return finish(chart, theme, "Where the time went", words, 84)


def speed_chart(run: Run, metrics: dict, theme: str = "light") -> alt.Chart | None:
    """Decode tokens per second: the median, the range and every repeat."""
    c = colours(theme)
    repeats, spans = [], []
    for side, name in (("plain", "verifier only"), ("speculative", "speculative")):
        answer, middle = getattr(run, side), metrics.get(f"{side}_tokens_per_second")
        if answer is None or middle is None:
            continue
        low, high = metrics[f"{side}_tokens_per_second_range"]
        spans.append(dict(side=name, median=middle, low=low, high=high, label=f"{middle:.1f}"))
        repeats += [dict(side=name, rate=d.tokens / d.decode, repeat=i + 1) for i, d in enumerate(spent_by(answer)[:ROWS // 2]) if d.decode > 0]
    if not spans:
        return None
    words = " against ".join(f"{s['label']} tok/s {s['side']}" for s in reversed(spans))
    words = words[0].upper() + words[1:] + f". Ticks are the {'repeat' if len(repeats) == len(spans) else 'repeats'}, bars the median."
    y = alt.Y("side:N", title=None, sort=["verifier only", "speculative"], axis=alt.Axis(domain=False, ticks=False, minExtent=92))
    colour = alt.Color("side:N", legend=None, scale=alt.Scale(domain=["verifier only", "speculative"], range=[c.neutral, c.accent]))
    wide = max(s["high"] for s in spans)
    x = alt.Scale(domain=[0, wide * 1.12])
    bars = alt.Chart(alt.Data(values=spans)).mark_bar(height=20, cornerRadiusEnd=2).encode(
        x=alt.X("median:Q", title="decode, tokens per second", scale=x, axis=alt.Axis(tickCount=6)), y=y, color=colour,
        tooltip=[alt.Tooltip("side:N"), alt.Tooltip("median:Q", format=".2f"), alt.Tooltip("low:Q", title="lowest", format=".2f"),
                 alt.Tooltip("high:Q", title="highest", format=".2f")])
    ticks = alt.Chart(alt.Data(values=repeats)).mark_tick(thickness=1.5, size=28, color=c.ink).encode(
        x=alt.X("rate:Q", scale=x), y=y,
        tooltip=[alt.Tooltip("side:N"), alt.Tooltip("repeat:Q"), alt.Tooltip("rate:Q", title="tok/s", format=".2f")])
    texts = alt.Chart(alt.Data(values=spans)).mark_text(align="left", dx=7, fontWeight=600, color=c.ink).encode(
        x=alt.X("high:Q", scale=x), y=y, text="label:N")
    return finish(bars + ticks + texts, theme, "Decode speed", words, 84)


def speedup_chart(run: Run, metrics: dict, theme: str = "light") -> alt.Chart | None:
    """Speedup against acceptance: the measured point, this run's ceiling, the textbook's, and where each breaks even."""
    c = colours(theme)
    gamma, r = metrics.get("proposals_per_round"), metrics.get("acceptance_rate")
    kinds = {"ceiling, this run": (metrics.get("cost_ratio"), metrics.get("mean_pass_cost")),
             "ceiling by FLOPs": (metrics.get("cost_ratio_flops"), 1.0)}
    kinds = {k: v for k, v in kinds.items() if None not in v and (k == "ceiling by FLOPs" or metrics.get("ceiling"))}
    if not gamma or r is None or not kinds:
        return None
    if "ceiling, this run" in kinds:  # in verifier-only tokens by the clock, which are a little more than passes
        cost, pass_ = kinds["ceiling, this run"]
        more = metrics["ceiling"] / ceiling(gamma, r, cost, pass_)
        kinds["ceiling, this run"] = (cost / more, pass_ / more)
    curves = [dict(kind=k, acceptance=i / 50, speedup=ceiling(gamma, i / 50, cost, pass_)) for k, (cost, pass_) in kinds.items()
              for i in range(51)]
    words = f"At {share(r)} acceptance this run could reach "
    words += " and ".join(f"{ceiling(gamma, r, cost, pass_):.2f}× ({k.replace('ceiling, ', '').replace('ceiling ', '')})"
                          for k, (cost, pass_) in kinds.items())
    measured = metrics.get("speedup")
    words += "; its own timing was disturbed." if metrics.get("disturbed") else \
        f"; it reached {measured:.2f}×." if measured is not None else "; its speedup was not measured."
    even = metrics.get("break_even")
    words += f" It breaks even at {share(even)}." if even is not None and even > 0 else \
        " It pays at any acceptance." if even is not None else " No acceptance pays." if "ceiling, this run" in kinds else ""
    domain, palette, dashes = list(kinds), [], []
    for kind in domain:
        palette.append(c.accent if kind == "ceiling, this run" else c.faint)
        dashes.append([1, 0] if kind == "ceiling, this run" else [5, 4])
    x = alt.X("acceptance:Q", title="acceptance, accepted / proposed", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(labelExpr=PERCENT))
    top = max([p["speedup"] for p in curves] + [measured or 0])
    y = alt.Y("speedup:Q", title="speedup, ×", scale=alt.Scale(domain=[0, top * 1.05], nice=True))
    lines = alt.Chart(alt.Data(values=curves)).mark_line(strokeWidth=2).encode(
        x=x, y=y,
        color=alt.Color("kind:N", scale=alt.Scale(domain=domain, range=palette), legend=alt.Legend(title=None, symbolType="stroke")),
        strokeDash=alt.StrokeDash("kind:N", scale=alt.Scale(domain=domain, range=dashes), legend=alt.Legend(title=None)),
        tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("acceptance:Q", format=".0%"), alt.Tooltip("speedup:Q", format=".2f")])
    one = alt.Chart(alt.Data(values=[dict(speedup=1)])).mark_rule(color=c.ink, strokeWidth=1, opacity=0.55).encode(y=y)
    layers = [one, lines]
    if measured is not None:
        span = metrics.get("speedup_range") or [measured, measured]
        point = alt.Data(values=[dict(acceptance=r, speedup=measured, low=span[0], high=span[1], label=f"measured {measured:.2f}×" + (", disturbed" if metrics.get("disturbed") else ""))])
        place = dict(align="left", dx=9, dy=10) if r < 0.6 else dict(align="right", dx=-9, dy=-10)
        layers += [
            alt.Chart(point).mark_rule(color=c.ink, strokeWidth=2).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            alt.Chart(point).mark_point(size=75, color=c.ink, filled=True, opacity=1).encode(
                x=x, y=y,
                tooltip=[alt.Tooltip("acceptance:Q", format=".1%"), alt.Tooltip("speedup:Q", format=".2f"),
                         alt.Tooltip("low:Q", title="lowest", format=".2f"), alt.Tooltip("high:Q", title="highest", format=".2f")]),
            alt.Chart(point).mark_text(fontWeight=600, color=c.ink, **place).encode(x=x, y=y, text="label:N")]
    return finish(alt.layer(*layers), theme, "Speedup and what it could be", words, 230)


def timeline_chart(run: Run, metrics: dict, theme: str = "light") -> alt.Chart | None:
    """Tokens kept per round over the run: accepted draft tokens, and the verifier's own on top."""
    c = colours(theme)
    rounds = run.speculative.rounds if run.speculative else ()
    if not any(r.proposed for r in rounds):
        return None
    step = -(-len(rounds) // BARS)  # longer runs: means over `step` rounds
    kinds = ["accepted", "correction", "bonus", "plain"]
    rows = []
    for start in range(0, len(rounds), step):
        group = rounds[start:start + step]
        name = str(start + 1) if len(group) == 1 else f"{start + 1}–{start + len(group)}"
        own = dict.fromkeys(kinds[1:], 0)
        accepted = 0
        for one in group:
            kept = min(one.accepted, len(one.proposed), len(one.emitted))
            accepted += kept
            if len(one.emitted) > kept:
                own[{CORRECTION: "correction", BONUS: "bonus", PLAIN: "plain"}.get(one.closing, "plain")] += len(one.emitted) - kept
        proposed = sum(len(one.proposed) for one in group) / len(group)
        for order, (kind, count) in enumerate([("accepted", accepted), *own.items()]):
            if count:
                rows.append(dict(round=start + 1, name=name, kind=kind, order=order, tokens=count / len(group), proposed=proposed))
    per = metrics.get("tokens_per_pass")
    words = f"{len(rounds)} verifier passes" + (f", {per:.2f} tokens each on average; verifier-only writes one." if per else ".")
    present = [k for k in kinds if any(r["kind"] == k for r in rows)]
    fill = dict(accepted=c.accepted, correction=c.closing, bonus=c.edge, plain=c.neutral)
    edge = dict(accepted=c.accepted, correction=c.edge, bonus=c.edge, plain=c.neutral)
    bars = alt.Chart(alt.Data(values=rows)).mark_bar(strokeWidth=0.7, width=alt.RelativeBandSize(0.86)).encode(
        x=alt.X("round:O", title="round" if step == 1 else f"round (means over {step} rounds)", sort=None,
                axis=alt.Axis(labelAngle=0, labelOverlap="greedy", ticks=False, labelSeparation=12)),
        y=alt.Y("tokens:Q", title="tokens kept", stack="zero", axis=alt.Axis(tickMinStep=1)),
        color=alt.Color("kind:N", scale=alt.Scale(domain=present, range=[fill[k] for k in present]), legend=alt.Legend(title=None)),
        stroke=alt.Stroke("kind:N", scale=alt.Scale(domain=present, range=[edge[k] for k in present]), legend=None),
        order=alt.Order("order:Q"),
        tooltip=[alt.Tooltip("name:N", title="round"), alt.Tooltip("kind:N"), alt.Tooltip("tokens:Q", format=".3~g"),
                 alt.Tooltip("proposed:Q", format=".3~g")])
    if not per:
        return finish(bars, theme, "Tokens per verifier pass", words, HEIGHT)
    mean = alt.Chart(alt.Data(values=[dict(tokens=per)])).mark_rule(color=c.ink, strokeDash=[4, 3], opacity=0.7).encode(
        y="tokens:Q", tooltip=[alt.Tooltip("tokens:Q", title="mean", format=".2f")])
    return finish(bars + mean, theme, "Tokens per verifier pass", words, HEIGHT)


def entropy_chart(run: Run, metrics: dict, theme: str = "light") -> alt.Chart | None:
    """Acceptance of judged draft tokens against the draft's own entropy when it proposed them."""
    return draft_entropy_chart([pair for t in trails(run) for pair in judged(t)], theme)


def draft_entropy_chart(pairs: Sequence[tuple[float, bool]], theme: str = "light") -> alt.Chart | None:
    """The same of any (draft entropy in bits, accepted) pairs: a bar a bin, Wilson's 95 % interval, tokens judged."""
    bins = acceptance_bins(pairs)
    if not bins:
        return None
    c = colours(theme)
    rows = [dict(low=b["low"], high=b["high"], middle=(b["low"] + b["high"]) / 2, rate=b["rate"], judged=b["judged"],
                 least=b["interval"][0], most=b["interval"][1], counts=f"{b['accepted']} of {b['judged']}") for b in bins]
    sure = [good for h, good in pairs if h < 1]
    unsure = [good for h, good in pairs if h >= 3]
    said = [f"{share(sum(g) / len(g))} of {len(g)} {name}" for g, name in ((sure, "below 1 bit"), (unsure, "at 3 bits and more")) if g]
    words = "Accepted, by how unsure the draft was: " + (", ".join(said) if said else f"{len(pairs)} tokens between 1 and 3 bits") + "."
    width = bins[0]["high"] - bins[0]["low"]
    base = alt.Chart(alt.Data(values=rows)).encode(
        tooltip=[alt.Tooltip("low:Q", title="from, bits"), alt.Tooltip("high:Q", title="to, bits"),
                 alt.Tooltip("counts:N", title="accepted of judged"), alt.Tooltip("rate:Q", title="share", format=".1%"),
                 alt.Tooltip("least:Q", title="95 % from", format=".1%"), alt.Tooltip("most:Q", title="95 % to", format=".1%")])
    y = alt.Y("rate:Q", title="accepted of judged", scale=alt.Scale(domain=[0, 1.08]),
              axis=alt.Axis(labelExpr=PERCENT, values=[0, 0.25, 0.5, 0.75, 1]))
    bars = base.mark_rect(stroke=c.paper, strokeWidth=2, color=c.accent, opacity=0.75).encode(
        x=alt.X("low:Q", title="draft entropy, bits", axis=alt.Axis(tickMinStep=width, labelOverlap="greedy", labelSeparation=6)),
        x2="high:Q", y2=alt.datum(0), y=y)
    spans = base.mark_rule(color=c.ink, strokeWidth=1.5).encode(x="middle:Q", y="least:Q", y2="most:Q")
    labels = base.mark_text(baseline="bottom", dy=-3, fontSize=11, color=c.quiet).encode(x="middle:Q", y="most:Q", text="judged:Q")
    return finish(bars + spans + labels, theme, "Draft entropy and acceptance",
                  words + " Lines: 95 % intervals (Wilson); numbers: tokens judged.", HEIGHT)


FIGURES: dict[str, Callable[[Run, dict, str], "alt.Chart | None"]] = {
    "speedup": speedup_chart, "speed": speed_chart, "time": time_chart, "acceptance": acceptance_chart,
    "timeline": timeline_chart, "entropy": entropy_chart}


def finish(chart, theme: str, title: str, words: str, height: int):
    # Chart titles do not wrap by themselves; 50 characters fit a phone.
    # The width is the whole picture's, the height that of the plot: "fit" would squeeze the plot under the title.
    return chart.properties(height=height, title=alt.TitleParams(title, subtitle=textwrap.wrap(words, 50)),
                            autosize=alt.AutoSizeParams(type="fit-x", contains="padding")).configure(**chart_config(theme))
