"""What to take away from a run. A file is made when it is asked for, not when the page is drawn."""

from __future__ import annotations

from typing import Callable

import streamlit as st

from engine.trace import Run

CARD = "card"
FIGURES = {CARD: "Card", "ribbon": "Ribbons", "speedup": "Speedup and ceilings", "speed": "Decode speed", "time": "Where the time went",
           "acceptance": "Acceptance by position", "timeline": "Tokens per verifier pass", "entropy": "Draft entropy and acceptance"}


def share(run: Run, figures: dict, certificate: list[str] | None, theme: str, key: str) -> None:
    """Share ▾: the link, every figure as PNG or SVG, the run as HTML, CSV and JSON, and all of it as ZIP."""
    with st.popover("Share", key=f"{key}.share"):
        st.caption("Link to this run, on this machine")
        st.code(f"{address()}?run={run.id}", language=None)
        figure = st.selectbox("Figure", list(FIGURES), format_func=FIGURES.get, key=f"{key}.figure",
                              help="Each picture carries the run’s settings in its caption.")
        stem = f"speclens-{run.id}"
        with st.container(horizontal=True, gap="small"):
            _download("PNG", f"{stem}-{figure}.png", "image/png", lambda: _export().png(run, figures, figure, theme), key)
            _download("SVG", f"{stem}-{figure}.svg", "image/svg+xml", lambda: _export().svg(run, figures, figure, theme), key)
        with st.container(horizontal=True, gap="small"):
            _download("HTML", f"{stem}.html", "text/html", lambda: _export().html(run, figures, certificate), key)
            _download("CSV", f"{stem}.csv", "text/csv", lambda: _export().csv(run), key)
            _download("JSON", f"{stem}.json", "application/json", lambda: _export().json(run, figures), key)
            _download("All (ZIP)", f"{stem}.zip", "application/zip", lambda: _export().zip_all(run, figures, theme), key)


def address() -> str:
    """Where the Compare page is, as this browser sees it."""
    here = (st.context.url or "http://localhost:8501/").split("?")[0]
    base = here.rstrip("/")
    for name in ("compare", "runs", "start"):
        base = base.removesuffix(f"/{name}")
    return f"{base}/compare"


def _export():
    from ui import export  # drawing pictures loads a renderer that no page needs before it is asked
    return export


def _download(label: str, name: str, mime: str, make: Callable[[], str | bytes], key: str) -> None:
    def data() -> bytes:
        made = make()
        return made.encode("utf-8", "surrogatepass") if isinstance(made, str) else made

    st.download_button(label, data, file_name=name, mime=mime, on_click="ignore", key=f"{key}.get.{label}")
