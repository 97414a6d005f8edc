"""A run's entropies as files. A picture shows one answer of one side as it is on screen; CSV, HTML and JSON hold every answer."""

from __future__ import annotations

import functools
from typing import Iterator

from engine import stamps
from engine.analysis.entropy import Trail, figures, refused, sentence, sides
from engine.tokens import own_text
from engine.trace import AnyRun, to_json
from ui import sheet
from ui.document import CHART_WIDTH, PAGE_WIDTH, document
from ui.entropy import picture
from ui.entropy.card import CSS, caption, card_html
from ui.entropy.charts import FIGURES, line_chart
from ui.picture import captioned
from ui.takeaway import NoFigure, Takeaway

TITLES = {"card": "Card", "ribbon": "Ribbon", "line": "Entropy, token by token", "words": "Where the model commits",
          "categories": "Entropy by category", "acceptance": "Draft entropy and acceptance", "judged": "Draft entropy, accepted and rejected"}
STILL = {**FIGURES, "line": functools.partial(line_chart, still=True)}
COLUMNS = ("side", "answer", "category", "index", "id", "bytes", "text", "special", "state", "piece", "entropy_bits", "sampling_entropy_bits",
           "normalised", "probability", *(f"top{n}_{what}" for n in range(1, 6) for what in ("text", "probability")), "caption")


def takeaway(run: AnyRun, side: str | None = None, at: int = 0) -> Takeaway:
    """Everything that can be taken away. `side`: the way of writing that is shown (the first), `at`: the answer of it."""
    found = sides(run)
    chosen = found.get(side) or next(iter(found.values()), ())
    trail = chosen[min(at, len(chosen) - 1)] if chosen else None
    words = caption(run, chosen, trail) if trail else f"no entropy was recorded · {stamps.shown(run.created)}"
    f = figures(chosen)

    def svg(name: str, theme: str) -> str:
        if trail is None:
            raise NoFigure("No answer of this run holds entropies, so there is no picture.")
        if name in ("card", "ribbon"):
            return getattr(picture, f"{name}_svg")(run, chosen, trail, f, theme)
        chart = STILL[name](run, chosen, trail, theme) if name in STILL else None
        if chart is None:
            raise NoFigure(f"This run has no figure “{name}”.")
        return captioned(drawn(chart, CHART_WIDTH), words, theme)

    empty = {"categories": len(f["categories"]) < 2, "acceptance": not f["draft"]["judged"], "judged": not f["draft"]["judged"]}
    return Takeaway(run.id, "entropy", words, {name: title for name, title in TITLES.items() if not empty.get(name)}, svg,
                    html=lambda: html(run, found, chosen, trail), json=lambda: json(run, found), tables={"tokens": lambda: csv(run, found)})


def drawn(chart, width: int) -> str:
    """A chart as SVG, `width` pixels wide; of charts one above the other each."""
    import vl_convert  # a renderer that no page needs before it is asked

    return vl_convert.vegalite_to_svg(widened(chart.to_dict(), width))


def widened(spec: dict, width: int) -> dict:
    """A Vega-Lite specification with its width set, of charts one above the other each."""
    if "vconcat" in spec:
        return {**spec, "vconcat": [{**part, "width": width - 40} for part in spec["vconcat"]]}
    return {**spec, "width": width}


def html(run: AnyRun, found: dict[str, tuple[Trail, ...]], chosen: tuple[Trail, ...], trail: Trail | None) -> str:
    """One document with the answer shown, whole, a card for every other answer, and the charts of what is shown."""
    cards = [card_html(run, chosen, trail, figures(chosen), count=None, prompt=True)] if trail else []
    cards += [card_html(run, (other,), other, figures((other,)), count=None, prompt=True)
              for group in found.values() for other in group if other is not trail]
    charts = {name: drawn(chart, PAGE_WIDTH) for name, make in STILL.items() if trail and (chart := make(run, chosen, trail, "light"))}
    title = run.name or (" ".join(trail.prompt.text[:400].split())[:80] if trail else "") or run.id
    return document(title, "".join(cards), charts, CSS + ".sl.card{margin-bottom:24px}")


def json(run: AnyRun, found: dict[str, tuple[Trail, ...]]) -> str:
    """The run itself, which `engine.trace.from_json` reads back, and beside it the figures of every side."""
    made = {side: {**(f := figures(chosen)), "sentence": sentence(run, f)} for side, chosen in found.items()}
    return to_json(run, entropy=made, refused=[{"label": name, "reason": why} for name, why in refused(run)])


def csv(run: AnyRun, found: dict[str, tuple[Trail, ...]]) -> str:
    """One row a token of every answer, UTF-8, RFC 4180; entropies in bits, what was not recorded is an empty cell. `text` is
    exact, and empty where a token holds only part of a character. The caption stands in a side's first row; texts are `ui.sheet.guarded`."""
    return sheet.text(COLUMNS, _rows(run, found))


def _rows(run: AnyRun, found: dict[str, tuple[Trail, ...]]) -> Iterator[tuple]:
    for side, chosen in found.items():
        note = caption(run, chosen, chosen[0])
        for n, t in enumerate(chosen):
            for i, token in enumerate(t.ids):
                best = [(own_text(bytes.fromhex(run.tokens.get(b, ""))), p) for b, p in (t.answer.top[i] if i < len(t.answer.top) else ())][:5]
                best += [(None, None)] * (5 - len(best))
                yield (side, t.label or str(n + 1), t.category, i, token, t.bytes[i].hex(), own_text(t.bytes[i]), int(t.special[i]), t.states[i],
                       t.pieces[i], t.bits[i], t.sampling_bits[i], t.normalised[i],
                       t.answer.probability[i] if i < len(t.answer.probability) else None, *(v for pair in best for v in pair), note)
                note = ""
