"""The screens there are, in the order of the menu."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

PAGES = Path(__file__).resolve().parent.parent / "pages"
SCREENS = {"start": "Start", "compare": "Compare", "sinks": "Sinks", "polish": "Polish", "entropy": "Entropy", "runs": "Runs"}  # file and address → title
IN_APP = "speclens.in_app"


def navigate():
    """Put the menu up and return the page asked for."""
    st.set_page_config(page_title="SpecLens", layout="wide", initial_sidebar_state="collapsed")
    st.session_state[IN_APP] = True
    return st.navigation([st.Page(PAGES / f"{name}.py", title=title, default=name == "start") for name, title in SCREENS.items()],
                         position="top")


def through_the_front_door() -> None:
    """Send a page that was run without app.py through it.

    Until `st.navigation` was called once in the process, Streamlit takes a `pages/` folder for the whole menu and runs the file
    that a deep link names by itself. Calling it here ends that, and the second pass goes through app.py.
    """
    if not st.session_state.get(IN_APP):
        navigate()
        st.rerun()
