"""Number controls whose bounds are the engine's, and the controls of sampling that pages share."""

from __future__ import annotations

import streamlit as st

from engine.limits import LIMITS

NUMBER = 122  # pixels: six of these and their gaps make one row at 1280, two at 390


def number(bound: str, label: str, key: str, *, step: float | None = None, width: int = NUMBER, help: str = "", disabled: bool = False) -> None:
    """A number input for the bound of that name. It shows every digit of its value: 0.001 must not read 0.00."""
    b = LIMITS[bound]
    st.number_input(label, b.least, b.high, step=step, format=None if b.whole else "%g", key=key, width=width, help=help, disabled=disabled)
