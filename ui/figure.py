"""One chart on a page: its title and what to see in it stand above it as text, as wide as the chart; a drawing cannot break its lines."""

from __future__ import annotations

import copy
from html import escape
from typing import Any

import streamlit as st

from ui import session


def figure(spec: dict, key: str, **how: Any):
    """Draw a Vega-Lite specification with a title and subtitle; returns what `st.vega_lite_chart` does."""
    spec = copy.deepcopy(spec)  # Streamlit takes the data out of the specification it is given
    title = spec.pop("title")
    with st.container(gap="xsmall"):
        session.draw(f'<div class="sl chart"><h3>{escape(title["text"])}</h3><p>{escape(" ".join(title["subtitle"]))}</p></div>')
        return st.vega_lite_chart(spec=spec, theme=None, key=key, width="stretch", **how)
