"""Read with Sinks: the button beside a finished answer of any page."""

from __future__ import annotations

from typing import Sequence

import streamlit as st

from engine.analysis import answers
from engine.analysis.answers import Answer
from engine.request import SinksRequest
from engine.trace import AnyRun
from ui.sinks import controls

HELP = "Opens Sinks with prompt and answer of this run, as the ids stand: where attention went while it was written."


def offer(run: AnyRun, found: Sequence[Answer], key: str) -> None:
    """Read with Sinks: a button, or one for each answer where they differ. Nothing where no answer holds a token."""
    found = [a for a in answers.readable(run) if any(a.generation is one.generation for one in found)]
    if not found:
        return
    if len({a.generation.ids for a in found}) == 1:
        if st.button("Read with Sinks", key=f"{key}.sinks", help=HELP):
            _open(run, found[0])
        return
    with st.popover("Read with Sinks", key=f"{key}.sinks", help=HELP):
        for answer in found:
            if st.button(answer.side, key=f"{key}.sinks.{answer.key}"):
                _open(run, answer)


def of_generation(run: AnyRun, generation) -> list[Answer]:
    """The answers of `run` that are this one."""
    return [a for a in answers.answers(run) if a.generation is generation]


def _open(run: AnyRun, answer: Answer) -> None:
    """Fill the Sinks page in with this answer and the model that wrote it, and go there."""
    facts, prompt = answer.facts, answer.prompt
    controls.fill(SinksRequest((answers.asked(run, answer),), facts.name, prompt.system, prompt.raw, facts.backend, facts.asked_device, facts.asked_dtype))
    st.session_state["speclens.sinks.open"] = True
    st.switch_page("pages/sinks.py")
