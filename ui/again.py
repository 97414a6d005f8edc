"""Run again: what a page offers beside a result whose timing was disturbed."""

from __future__ import annotations

import html
from typing import Any, Callable

import streamlit as st

from cache.recorded import is_recorded
from engine.trace import AnyRun
from ui import session
from ui.jobs import Desk


def offer(desk: Desk, run: AnyRun, why: str | None, asked: Callable[[AnyRun], Any], title: Callable[[Any], str],
          trouble: Callable[[Any], str | None]) -> None:
    """If the timing of `run` was disturbed (`why`), a line that says what still holds, and a button that asks for the same once
    more: `asked(run)`, where this session does not know what was asked for. `title` and `trouble` are the page's own."""
    if not why or is_recorded(run.id):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"{desk.page}-again"):
        session.draw(f'<p class="sl quiet" role="status" title="{html.escape(why)}">Timing disturbed: tokens and acceptance hold, speeds are no result.</p>',
                     width="content")
        pressed = st.button("Run again", key=f"{desk.page}.again", help="The same prompt, models and settings once more.")
    if pressed:
        request = desk.asked_for(run) or asked(run)
        sentence = trouble(request)
        if sentence:
            session.say(sentence)
        else:
            desk.start(request, title(request))
            st.rerun()
