"""A self-contained HTML document around cards and charts, and charts as SVG: no browser, no network, light and dark."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from html import escape
from typing import Mapping

from ui.theme import colours, css

CHART_WIDTH, PAGE_WIDTH = 640, 370  # pixels: as a picture, and in a page, where it must read on a phone
LETTER = 6.6  # pixels: a letter of a chart's subtitle, on average and with some to spare
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def chart_svg(chart, width: int = CHART_WIDTH) -> str:
    """An Altair chart as SVG."""
    import vl_convert  # a renderer that no page needs before it is asked

    spec = chart.properties(width=width).to_dict()
    title = spec.get("title", {})  # its lines are cut for a phone; here they may be as wide as the picture
    title["subtitle"] = textwrap.wrap(" ".join(title.get("subtitle", [])), int(width / LETTER))
    return vl_convert.vegalite_to_svg(spec)


def document(title: str, body: str, charts: Mapping[str, str] = {}, style: str = "") -> str:
    """One HTML document: `body` (escaped HTML), then `charts` (name → light SVG); `style` is more CSS for the body."""
    page = (f":root{{color-scheme:light dark}}body{{margin:0 auto;max-width:1180px;padding:24px 16px;"
            f"background:light-dark({colours('light').paper},{colours('dark').paper})}}"
            ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,350px),1fr));gap:32px 24px;"
            "align-items:start;margin:32px 0}"
            ".charts svg{max-width:100%;height:auto}")
    figures = "".join(f'<figure aria-label="{escape(name)}">{inline(drawing, name)}</figure>' for name, drawing in charts.items())
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
            f"<title>{escape(title)}</title><style>{page}{css()}{style}</style></head><body>"
            f'{body}<div class="sl charts">{figures}</div></body></html>')


def inline(drawing: str, name: str) -> str:
    """A light chart as part of a page: its colours become the page's variables, so that it turns dark with it.

    Its ids get the figure's name, so that one drawing's clip paths do not reach into another's.
    """
    names = {colour: variable for variable, colour in dataclasses.asdict(colours("light")).items()}
    drawing = re.sub(
        r'="(#[0-9a-fA-F]{6})"', lambda m: f'="var(--{names[m[1].lower()]})"' if m[1].lower() in names else m[0], drawing)
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", drawing)
