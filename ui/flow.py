"""What every page with a Run button does: controls, Run and Stop, the job on its way, its result, other jobs."""

from __future__ import annotations

import html
from typing import Any, Callable

import streamlit as st

import cache
from engine.trace import AnyRun
from ui import live, session
from ui.jobs import PAGES, Desk, page_of

POLL = 0.5  # seconds between two looks at a running job


def page(desk: Desk, asking: Callable[[], None], growing: Callable[..., str], show: Callable[[AnyRun], None], empty: str,
         kinds: tuple[str, ...] = ()) -> None:
    """Draw a page. `asking` draws the controls; `growing(view, ahead, seconds_ahead)` is the running job as HTML; `show` draws a
    run; `empty` is what stands there before the first one. `kinds`: kinds of run from other pages that this one shows too."""
    desk.attach()
    view = desk.current_view()
    if view is None or not view.active:
        desk.settle(view)  # first, for the controls are compared with the run on screen
    st.fragment(asking)()
    if view is not None and view.active:
        st.fragment(running, run_every=POLL)(view.id, growing)
        return
    if view is not None and view.error:
        session.say(view.error)
    elif view is not None and view.status == "stopped" and view.run_id is None and view.run is None:
        session.say("Stopped before anything was written.", "note")
    others(desk)
    run, trouble = desk.shown()
    if trouble:
        session.say(trouble)
    if run is not None and PAGES[run.kind] != desk.page and run.kind not in kinds:
        st.switch_page(f"pages/{PAGES[run.kind]}.py", query_params={"run": run.id})
    if run is not None:
        show(run)
    elif view is None and not trouble:
        session.draw(f'<p class="sl quiet">{html.escape(empty)}</p>')


def run_row(desk: Desk, asked: Any, title: str, trouble: Callable[[Any], str | None], run_help: str,
            beside: Callable[[], None] = lambda: None) -> None:
    """Run and Stop, and `beside` them whatever the page has to say. `trouble(asked)`: why it cannot even be tried, or None."""
    job = desk.current()
    active = job is not None and job.snapshot().active
    with st.container(horizontal=True, vertical_alignment="center", key="run-row"):
        run = st.button("Run", type="primary", width=110, disabled=active, key=f"{desk.page}.run", help=run_help)
        stop = st.button("Stop", width=110, disabled=not active, key=f"{desk.page}.stop",
                         help="Ends after the current token; what was done is kept.")
        beside()
    if run and not active:
        sentence = trouble(asked)
        if sentence:
            session.say(sentence)
        else:
            desk.start(asked, title)
            st.rerun()
    if stop and job is not None:
        cache.worker().stop(job)
        st.rerun()


def running(job_id: str, growing: Callable[..., str]) -> None:
    """The job on its way. It lives in the worker: this only looks."""
    worker = cache.worker()
    job = worker.find(job_id)
    view = job.snapshot() if job else None
    if view is None or not view.active:
        st.rerun()
    session.draw(growing(view, worker.position(job), worker.seconds_ahead(job)))


def others(desk: Desk) -> None:
    """Runs of other tabs and pages, or of this one before it was reloaded without its address."""
    for view in desk.others()[:3]:
        with st.container(horizontal=True, vertical_alignment="center"):
            session.draw(f'<span class="sl quiet" role="status">Another run is {"waiting" if view.status == "queued" else "going"}: '
                         f'“{html.escape(view.title)}”.</span>', width="content")
            if st.button("Watch it", key=f"{desk.page}.watch.{view.id}", type="tertiary"):
                if page_of(view) == desk.page:
                    desk.watch(view.id)
                    st.rerun()
                st.switch_page(f"pages/{page_of(view)}.py", query_params={"job": view.id})


def changed(desk: Desk, differs: list[str], take_back: Callable[[], None]) -> None:
    """Say that the controls no longer describe the run below, and offer to take its settings back."""
    if not differs:
        return
    more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
    session.draw(f'<span class="sl quiet" role="status">Settings changed since the run below: {html.escape(", ".join(differs[:3]))}{more}.'
                 "</span>", width="content")
    st.button("Take the run's settings", type="tertiary", on_click=take_back, key=f"{desk.page}.takeback")
