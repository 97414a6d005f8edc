"""A run as files: PNG and SVG of every figure, a self-contained HTML page, CSV, JSON, and all of them in one ZIP.

Every picture carries the run's caption. Nothing here needs a browser or the network: Vega-Lite is drawn by
vl-convert, the card by `ui.picture`.
"""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
import re
import zipfile
from html import escape

import vl_convert

from engine.trace import Run, to_json
from ui import picture
from ui.card import caption, card_html
from ui.charts import FIGURES
from ui.ribbon import text_of, tokens_of
from ui.theme import colours, css

CHART_WIDTH, PAGE_WIDTH = 640, 370  # pixels: as a picture, and in a page, where it must read on a phone
CARD, RIBBON = "card", "ribbon"


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


def png(run: Run, metrics: dict, figure_name: str, theme: str = "light", scale: float = 2.0) -> bytes:
    """The same as PNG, `scale` pixels to a CSS pixel."""
    return vl_convert.svg_to_png(svg(run, metrics, figure_name, theme), scale=scale)


def _chart_svg(run: Run, metrics: dict, figure_name: str, theme: str, width: int = CHART_WIDTH) -> str:
    chart = FIGURES[figure_name](run, metrics, theme) if figure_name in FIGURES else None
    if chart is None:
        raise ValueError(f"This run has no figure “{figure_name}”.")
    return vl_convert.vegalite_to_svg(chart.properties(width=width).to_dict())


def html(run: Run, metrics: dict, certificate=None) -> str:
    """One HTML document that needs nothing else: card, ribbons with their numbers, charts as inline SVG, light and dark."""
    charts = _charts(run, metrics, "light", PAGE_WIDTH)
    figures = "".join(f'<figure aria-label="{name}">{inline(drawing, name)}</figure>' for name, drawing in charts.items())
    title = run.name or " ".join(run.prompt.text[:400].split())[:80] or run.id
    page = (
        f":root{{color-scheme:light dark}}body{{margin:0 auto;max-width:1180px;padding:24px 16px;"
        f"background:light-dark({colours('light').paper},{colours('dark').paper})}}"
        ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,350px),1fr));gap:32px 24px;"
        "align-items:start;margin:32px 0}"
        ".charts svg{max-width:100%;height:auto}"
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{page}{css()}</style></head><body>"
        f'{card_html(run, metrics, certificate, prompt=True)}<div class="sl charts">{figures}</div></body></html>'
    )


def _charts(run: Run, metrics: dict, theme: str, width: int = CHART_WIDTH) -> dict[str, str]:
    return {name: _chart_svg(run, metrics, name, theme, width) for name in figure_names(run, metrics) if name in FIGURES}


def inline(drawing: str, name: str) -> str:
    """A light chart as part of a page: its colours become the page's variables, so that it turns dark with it.

    Its ids get the figure's name, so that one drawing's clip paths do not reach into another's.
    """
    names = {colour: variable for variable, colour in dataclasses.asdict(colours("light")).items()}
    drawing = re.sub(
        r'="(#[0-9a-fA-F]{6})"', lambda m: f'="var(--{names[m[1].lower()]})"' if m[1].lower() in names else m[0], drawing
    )
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", drawing)


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
    first row.
    """
    out = io.StringIO()
    writer = csv_module.writer(out, quoting=csv_module.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    note = caption(run)
    for side in ("plain", "speculative"):
        for t in tokens_of(run, side, dropped=True):
            row = (side, t.state, _plus_one(t.round), _plus_one(t.place), t.index, t.id, t.bytes, text_of(t), int(t.special),
                   t.p, t.q, t.draw, t.probability, t.entropy, t.draft_entropy, note)
            writer.writerow(["" if v is None else v for v in row])
            note = ""
    return out.getvalue()


def _plus_one(i: int | None) -> int | None:
    return None if i is None else i + 1


def zip_all(run: Run, metrics: dict, theme: str = "light") -> bytes:
    """Every export in one ZIP."""
    note = caption(run)
    figures = {name: picture.captioned(drawing, note, theme) for name, drawing in _charts(run, metrics, theme).items()}
    figures[CARD], figures[RIBBON] = picture.card_svg(run, metrics, theme), picture.ribbon_svg(run, metrics, theme)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.json", json(run, metrics))
        archive.writestr("tokens.csv", csv(run))
        archive.writestr("run.html", html(run, metrics))
        archive.writestr("caption.txt", note + "\n")
        for name, drawing in figures.items():
            archive.writestr(f"{name}.svg", drawing)
            archive.writestr(f"{name}.png", vl_convert.svg_to_png(drawing, scale=2.0))
    return out.getvalue()
