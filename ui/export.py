"""A comparison as files: every figure as SVG, a self-contained HTML page, CSV and JSON (`ui.takeaway` makes the rest).

Every picture carries the run's caption. Nothing here needs a browser or the network: Vega-Lite is drawn by
vl-convert, the card by `ui.picture`.
"""

from __future__ import annotations

from typing import Iterator

from engine.trace import Run, to_json
from ui import picture, sheet
from ui.card import caption, card_html
from ui.charts import FIGURES
from ui.document import CHART_WIDTH, PAGE_WIDTH, chart_svg, document
from ui.ribbon import text_of, tokens_of
from ui.takeaway import NoFigure, Takeaway

CARD, RIBBON = "card", "ribbon"
TITLES = {CARD: "Card", RIBBON: "Ribbons", "speedup": "Speedup and ceilings", "speed": "Decode speed", "time": "Where the time went",
          "acceptance": "Acceptance by position", "timeline": "Tokens per verifier pass", "entropy": "Draft entropy and acceptance"}


def figure_names(run: Run, metrics: dict) -> list[str]:
    """The figures this run can fill."""
    return [CARD, RIBBON] + [name for name, chart in FIGURES.items() if chart(run, metrics, "light") is not None]


def svg(run: Run, metrics: dict, figure_name: str, theme: str = "light") -> str:
    """One figure with the caption under it, as SVG. ValueError if there is no such figure in this run."""
    if figure_name == CARD:
        return picture.card_svg(run, metrics, theme)
    if figure_name == RIBBON:
        return picture.ribbon_svg(run, metrics, theme)
    return picture.captioned(_chart_svg(run, metrics, figure_name, theme), caption(run), theme)


def _chart_svg(run: Run, metrics: dict, figure_name: str, theme: str, width: int = CHART_WIDTH) -> str:
    chart = FIGURES[figure_name](run, metrics, theme) if figure_name in FIGURES else None
    if chart is None:
        raise NoFigure(f"This run has no figure “{figure_name}”.")
    return chart_svg(chart, width)


def html(run: Run, metrics: dict, certificate=None) -> str:
    """One HTML document that needs nothing else: card, ribbons with their numbers, charts as inline SVG, light and dark."""
    charts = _charts(run, metrics, "light", PAGE_WIDTH)
    title = run.name or " ".join(run.prompt.text[:400].split())[:80] or run.id
    return document(title, card_html(run, metrics, certificate, prompt=True), charts)


def _charts(run: Run, metrics: dict, theme: str, width: int = CHART_WIDTH) -> dict[str, str]:
    return {name: _chart_svg(run, metrics, name, theme, width) for name in figure_names(run, metrics) if name in FIGURES}


COLUMNS = ("side", "state", "round", "position", "index", "id", "bytes", "text", "special", "p", "q", "draw", "probability",
           "entropy_bits", "draft_entropy_bits", "caption")


def json(run: Run, metrics: dict) -> str:
    """The run itself, which `engine.trace.from_json` reads back, with its metrics and caption beside it."""
    return to_json(run, metrics=metrics, caption=caption(run))


def csv(run: Run) -> str:
    """One row a token, with rejected and discarded ones where they fell. UTF-8 text, RFC 4180.

    `round` and `position` (in the block) count from 1, `index` (in the answer) from 0; a cell with nothing known is
    empty. `text` is exact, and empty where a token holds only part of a character: `bytes` (hex) always says it all.
    `p` and `q` are those of the accept test, `probability` is the verifier's raw softmax. The caption stands in the
    first row; texts are `ui.sheet.guarded`.
    """
    return sheet.text(COLUMNS, _rows(run))


def _rows(run: Run) -> Iterator[tuple]:
    note = caption(run)
    for side in ("plain", "speculative"):
        for t in tokens_of(run, side, dropped=True):
            yield (side, t.state, _plus_one(t.round), _plus_one(t.place), t.index, t.id, t.bytes, text_of(t), int(t.special),
                   t.p, t.q, t.draw, t.probability, t.entropy, t.draft_entropy, note)
            note = ""


def _plus_one(i: int | None) -> int | None:
    return None if i is None else i + 1


def takeaway(run: Run, metrics: dict, certificate=None) -> Takeaway:
    """Everything that can be taken away from a comparison."""
    return Takeaway(
        run.id, "compare", caption(run), TITLES, svg=lambda name, theme: svg(run, metrics, name, theme),
        html=lambda: html(run, metrics, certificate), json=lambda: json(run, metrics), tables={"tokens": lambda: csv(run)})
