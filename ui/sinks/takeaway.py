"""A sinks run as files. A picture shows one prompt as it is on screen; CSV, HTML and JSON hold every prompt of the run."""

from __future__ import annotations

from typing import Iterator

from engine import stamps
from engine.attention.view import SinkView, rows, view
from engine.tokens import own_text
from engine.trace import SinkItem, SinksRun, arrays_of, to_json, with_arrays
from ui import sheet
from ui.document import CHART_WIDTH, PAGE_WIDTH, chart_svg, document
from ui.picture import captioned
from ui.sinks import picture
from ui.sinks.card import CSS, Chosen, caption, card_html
from ui.sinks.charts import FIGURES
from ui.takeaway import NoFigure, Takeaway

TITLES = {"card": "Card", "ribbon": "Ribbon", "histogram": "Histogram of z", "layers": "Attention, layer × position",
          "heads": "Heads that feed the sinks", "null": "What ordinary text has"}
JSON_LIMIT = 80 * 2**20  # bytes of arrays; past that the attention of near queries per head stays out of the file
COLUMNS = ("prompt", "category", "index", "id", "bytes", "text", "structural", "sink", "attention", "share_of_all", "queries", "z", "z_corrected",
           "why_undefined", "segment", "opening_sink", "caption")


def takeaway(run: SinksRun, at: int | None = None, seen: SinkView | None = None, chosen: Chosen = Chosen()) -> Takeaway:
    """Everything that can be taken away. `at`: the prompt the pictures show (the first that was read), `seen` how it is shown."""
    shown = [i for i, item in enumerate(run.items) if item.sums is not None and item.sums.received is not None]
    at = at if at is not None else shown[0] if shown else None
    item = run.items[at] if at is not None else None
    if item is not None and seen is None:
        seen = view(item)
    words = caption(run, item, seen, chosen) if item is not None else f"no prompt could be read · {stamps.shown(run.created)}"

    def svg(name: str, theme: str) -> str:
        if item is None:
            raise NoFigure("No prompt of this run was read, so there is no picture.")
        if name in ("card", "ribbon"):
            return getattr(picture, f"{name}_svg")(run, item, seen, chosen, theme)
        chart = FIGURES[name](run, item, seen, theme) if name in FIGURES else None
        if chart is None:
            raise NoFigure(f"This run has no figure “{name}”.")
        return captioned(chart_svg(chart, CHART_WIDTH), words, theme)

    def views() -> list[tuple[SinkItem, SinkView]]:
        """Every prompt, scored as the one on screen."""
        return [(run.items[i], seen if i == at else view(run.items[i], seen.threshold, chosen.layers, chosen.heads, chosen.exclude_structural,
                                                         seen.corrected)) for i in shown]

    return Takeaway(run.id, "sinks", words, TITLES, svg, html=lambda: html(run, views(), chosen), json=lambda: json(run, views()),
                    tables={"tokens": lambda: csv(run, views(), chosen)})


def html(run: SinksRun, views: list[tuple[SinkItem, SinkView]], chosen: Chosen) -> str:
    """One document with a card for every prompt that was read, whole, and the charts of the first."""
    cards = "".join(card_html(run, item, seen, chosen, count=None, prompt=True) for item, seen in views)
    charts = {name: chart_svg(chart, PAGE_WIDTH) for name, make in FIGURES.items() if views and (chart := make(run, *views[0], "light"))}
    title = run.name or (" ".join(run.items[0].prompt.text[:400].split())[:80] if run.items else "") or run.id
    return document(title, cards, charts, CSS + ".sl.card{margin-bottom:24px}")


def json(run: SinksRun, views: list[tuple[SinkItem, SinkView]]) -> str:
    """The run itself, which `engine.trace.from_json` reads back, and every token's scores as shown."""
    held = arrays_of(run)
    if sum(a.nbytes for a in held.values()) > JSON_LIMIT:
        run = with_arrays(run, {name: None for name in held if name.endswith(".near")})
    scored = [{"prompt": item.label, "threshold": seen.threshold, "edge_corrected": seen.corrected, "health": seen.health.value,
               "health_published": seen.health_published, "positions": rows(seen, run.tokens, run.special)} for item, seen in views]
    return to_json(run, arrays=True, scored=scored)


def csv(run: SinksRun, views: list[tuple[SinkItem, SinkView]], chosen: Chosen) -> str:
    """One row a token, UTF-8, RFC 4180; an undefined number is an empty cell and says why. `text` is exact, and empty where a
    token holds only part of a character. The caption stands in a prompt's first row; texts are `ui.sheet.guarded`."""
    return sheet.text(COLUMNS, _rows(run, views, chosen))


def _rows(run: SinksRun, views: list[tuple[SinkItem, SinkView]], chosen: Chosen) -> Iterator[tuple]:
    for item, seen in views:
        note = caption(run, item, seen, chosen)
        for row in rows(seen, run.tokens, run.special):
            raw = run.tokens.get(row["id"], "")
            yield (item.label, item.category, row["index"], row["id"], raw, own_text(bytes.fromhex(raw)), int(row["structural"]), int(row["sink"]),
                   row["attention"], float(seen.scores.share[row["index"]]), row["queries"], row["z"], row["z_corrected"], row["why"], row["segment"],
                   int(row["opening"]), note)
            note = ""
