"""A run as files: PNG and SVG of every figure, a self-contained HTML page, CSV, JSON, and all of them in one ZIP.

Every picture carries the run's caption. Nothing here needs a browser or the network: Vega-Lite is drawn by vl-convert, the card by
`ui.picture`.
"""

from __future__ import annotations

import csv as csv_module
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

CHART_WIDTH = 640
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
    charts = []
    for name in figure_names(run, metrics):
        if name in FIGURES:
            both = "".join(f'<div class="{theme}-only">{_own_ids(_chart_svg(run, metrics, name, theme, 460), f"{name}-{theme}-")}</div>'
                           for theme in ("light", "dark"))
            charts.append(f'<figure aria-label="{name}">{both}</figure>')
    title = run.name or " ".join(run.prompt.text.split())[:80] or run.id
    light, dark = colours("light"), colours("dark")
    page = (f":root{{color-scheme:light dark}}body{{margin:0 auto;max-width:1180px;padding:24px 16px;background:light-dark({light.paper},{dark.paper})}}"
            ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:28px;margin:28px 0}"
            ".charts svg{max-width:100%;height:auto}.dark-only{display:none}"
            "@media (prefers-color-scheme:dark){.dark-only{display:block}.light-only{display:none}}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{page}{css()}</style></head><body>"
        f'{card_html(run, metrics, certificate, prompt=True)}<div class="sl charts">{"".join(charts)}</div>'
        "</body></html>")


def _own_ids(drawing: str, prefix: str) -> str:
    """Several drawings share a page: each gets its own ids, so that one's clip paths do not reach into another."""
    drawing = re.sub(r'\bid="', f'id="{prefix}', drawing)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", drawing)


COLUMNS = ("side", "state", "round", "position", "index", "id", "bytes", "text", "special", "p", "q", "draw", "probability",
           "entropy_bits", "draft_entropy_bits", "caption")


def json(run: Run, metrics: dict) -> str:
    """The run itself, which `engine.trace.from_json` reads back, with its metrics and caption beside it."""
    return to_json(run, metrics=metrics, caption=caption(run))


def csv(run: Run) -> str:
    """One row a token, with rejected and discarded ones where they fell. UTF-8 text, RFC 4180.

    `round` and `position` (in the block) count from 1, `index` (in the answer) from 0; a cell with nothing known is empty. `text` is exact, and empty where
    a token holds only part of a character: `bytes` (hex) always says it all. `p` and `q` are those of the accept test, `probability`
    is the verifier's raw softmax. The caption stands in the first row.
    """
    out = io.StringIO()
    writer = csv_module.writer(out, quoting=csv_module.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    note = caption(run)
    for side in ("plain", "speculative"):
        for t in tokens_of(run, side, dropped=True):
            row = (side, t.state, _plus_one(t.round), _plus_one(t.place), t.index, t.id, t.bytes, text_of(t), int(t.special), t.p, t.q,
                   t.draw, t.probability, t.entropy, t.draft_entropy, note)
            writer.writerow(["" if v is None else v for v in row])
            note = ""
    return out.getvalue()


def _plus_one(i: int | None) -> int | None:
    return None if i is None else i + 1


def zip_all(run: Run, metrics: dict, theme: str = "light") -> bytes:
    """Every export in one ZIP."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.json", json(run, metrics))
        archive.writestr("tokens.csv", csv(run))
        archive.writestr("run.html", html(run, metrics))
        archive.writestr("caption.txt", caption(run) + "\n")
        for name in figure_names(run, metrics):
            drawing = svg(run, metrics, name, theme)
            archive.writestr(f"{name}.svg", drawing)
            archive.writestr(f"{name}.png", vl_convert.svg_to_png(drawing, scale=2.0))
    return out.getvalue()
