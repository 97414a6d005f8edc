"""The screens there are, in the order of the menu."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

PAGES = Path(__file__).resolve().parent.parent / "pages"
SCREENS = {"start": "Start", "compare": "Compare", "sinks": "Sinks", "polish": "Polish", "entropy": "Entropy", "runs": "Runs"}  # file and address → title
QUESTIONS = {  # what each screen answers, said under its name
    "compare": "Does drafting ahead make this model faster on this prompt, and which guesses does it keep?",
    "sinks": "Which tokens of a prompt soak up attention, and is it the chat template or the text that makes them?",
    "polish": "Where do two tokenizers cut Polish differently, and what is a draft worth whose words must be translated?",
    "entropy": "How unsure was the model of each token it wrote, and what else could it have written?",
    "runs": "What was run here so far, with what, and what came out?"}
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
