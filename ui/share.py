"""What to take away from a run. A file is made when it is asked for, not when the page is drawn."""

from __future__ import annotations

from typing import Callable

import streamlit as st

from ui import sheet, takeaway
from ui.navigation import SCREENS
from ui.takeaway import Takeaway


def share(take: Takeaway, theme: str, key: str) -> None:
    """Share ▾: the link, every figure as PNG or SVG, the run as HTML, CSV and JSON, and all of it as ZIP."""
    with st.popover("Share", key=f"{key}.share"):
        st.caption("Link to this run, on this machine")
        st.code(f"{address(take.page)}?run={take.run_id}", language=None)
        downloads(take, theme, key)


def downloads(take: Takeaway, theme: str, key: str) -> None:
    """Every file, as a button each."""
    with st.container():
        figure = st.selectbox("Figure", list(take.figures), format_func=lambda name: take.figures.get(name, name), key=f"{key}.figure",
                              help="Each picture carries the run’s settings in its caption.")
        with st.container(horizontal=True, gap="small"):
            _download("PNG", f"{take.stem}-{figure}.png", "image/png", lambda: takeaway.png(take.svg(figure, theme)), key)
            _download("SVG", f"{take.stem}-{figure}.svg", "image/svg+xml", lambda: take.svg(figure, theme), key)
        with st.container(horizontal=True, gap="small"):
            _download("HTML", f"{take.stem}.html", "text/html", take.html, key)
            for name, make in take.tables.items():
                one = len(take.tables) == 1
                _download("CSV" if one else f"CSV: {name}", f"{take.stem}{'' if one else f'-{name}'}.csv", "text/csv", make, key, sheet.HELP)
            _download("JSON", f"{take.stem}.json", "application/json", take.json, key)
            _download("All (ZIP)", f"{take.stem}.zip", "application/zip", lambda: takeaway.zip_all(take, theme), key)


def address(page: str) -> str:
    """Where a page is, as this browser sees it."""
    here = (st.context.url or "http://localhost:8501/").split("?")[0]
    base = here.rstrip("/")
    for name in SCREENS:
        base = base.removesuffix(f"/{name}")
    return f"{base}/{page}"


def _download(label: str, name: str, mime: str, make: Callable[[], str | bytes], key: str, help: str | None = None) -> None:
    st.download_button(label, lambda: takeaway.encoded(make()), file_name=name, mime=mime, on_click="ignore", key=f"{key}.get.{label}",
                       help=help)
