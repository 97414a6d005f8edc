"""The control for stop strings, alike on every page that writes text: one a line, as at the command line."""

from __future__ import annotations

from typing import Callable, Sequence

import streamlit as st

from engine import stops
from ui.session import showable

DEFAULTS = {"stop_strings": ""}


def draw(key: Callable[[str], str]) -> None:
    st.text_area("Stop strings", key=key("stop_strings"), height=68, placeholder="one a line", help=f"One a line. {stops.HELP}")


def made(text: str) -> tuple[str, ...]:
    """The control's text as a setting; empty lines are none, and one that stands twice counts once."""
    return tuple(dict.fromkeys(stops.read(line) for line in text.split("\n") if line))


def shown(strings: Sequence[str]) -> str:
    """A setting as the control's text."""
    return "\n".join(showable(stops.written(s)) for s in strings)
