"""What every page with a Run button does: controls, Run and Stop, the job on its way, its result, other jobs."""

from __future__ import annotations

import html
from typing import Any, Callable

import streamlit as st

import cache
from cache.recorded import is_recorded, recorded
from engine.errors import RequestError
from engine.trace import AnyRun
from ui import folded, session
from ui import kinds as kinds_
from ui.jobs import PAGES, Desk, load, page_of, refused
from ui.replay import recorded_words

POLL = 0.5  # seconds between two looks at a running job


def page(desk: Desk, asking: Callable[[], None], growing: Callable[..., str], show: Callable[[AnyRun], None], empty: str,
         take: Callable[[AnyRun], None], kinds: tuple[str, ...] = ()) -> None:
    """Draw a page. `asking` draws the controls; `growing(view, ahead, seconds_ahead)` is the running job as HTML; `show` draws a
    run, `take` sets the controls to it; `empty` is what stands there where there is none. `kinds`: kinds of run from other pages
    that this one shows too."""
    desk.attach()
    view = desk.current_view()
    if view is not None and page_of(view) != desk.page:
        st.switch_page(f"pages/{page_of(view)}.py", query_params={"run": view.id})
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
        return
    if run is not None and PAGES[run.kind] != desk.page and run.kind not in kinds:
        st.switch_page(f"pages/{PAGES[run.kind]}.py", query_params={"run": run.id})
    mine = run is not None and not is_recorded(run.id)
    if run is None:
        run, mine = opening(desk)
    if run is None:
        session.draw(f'<p class="sl quiet">{html.escape(empty)}</p>')
        return
    if not mine:
        provenance(desk, run, take)
    try:
        kinds_.sound(run)
        kinds_.made(show, run)
    except RequestError as e:
        session.say(str(e))


def opening(desk: Desk) -> tuple[AnyRun | None, bool]:
    """What a page shows at its bare address: the newest run of one's own there was when this session first came, so that a step back
    shows what was on screen before; else the recorded one. And whether it is one's own."""
    place, kind = f"speclens.{desk.page}.opening", next(kind for kind, page in PAGES.items() if page == desk.page)
    try:
        if place not in st.session_state:
            runs = (s for s in cache.store().list() if s.kind == kind and not s.damaged)
            st.session_state[place] = next((s.id for s in runs), None)
        if st.session_state[place]:
            return load(st.session_state[place]), True
    except RequestError:  # the folder cannot be read, or the file went since
        pass
    return recorded(kind)[0], False


def provenance(desk: Desk, run: AnyRun, take: Callable[[AnyRun], None]) -> None:
    """Above a recorded run: that it is one, when and on what it was made, and how to have it made here."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="provenance"):
        session.draw(f'<p class="sl provenance"><span class="mark">recorded</span>{html.escape(recorded_words(run))}. Press Run for one of '
                     "your own.</p>", width="stretch")
        st.button("Take its settings", type="tertiary", on_click=take, args=(run,), key=f"{desk.page}.takerecorded",
                  help="Sets prompt, models and settings to those of this recorded run.")


def folding():
    """Where a page's controls are drawn. They are there always, so that nothing typed is lost; folded they are hidden (`ui.live.CSS`)."""
    return st.container(key="asked")


def is_open(desk: Desk) -> bool:
    """Whether the controls are unfolded: as the person left them, else only where there is nothing to look at."""
    kept = st.session_state.get(f"speclens.{desk.page}.open")
    if kept is not None:
        return kept
    view = desk.current_view()
    run, trouble = desk.shown()
    return run is None and (bool(trouble) or not (view is not None and view.active) and opening(desk)[0] is None)


def set_open(desk: Desk, value: bool) -> None:
    st.session_state[f"speclens.{desk.page}.open"] = value


def run_row(desk: Desk, asked: Any, title: str, trouble: Callable[[Any], str | None], run_help: str,
            beside: Callable[[], None] = lambda: None) -> None:
    """The controls in a line while they are folded; Run, Stop and Settings, and `beside` them whatever the page has to say.
    `trouble(asked)`: why it cannot even be tried, or None."""
    job = desk.current()
    active = job is not None and job.snapshot().active
    line = st.container(key="asked-line")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="run-row"):
        run = st.button("Run", type="primary", width=96, disabled=active, key=f"{desk.page}.run", help=run_help)
        stop = st.button("Stop", width=96, disabled=not active, key=f"{desk.page}.stop",
                         help="Ends after the current token; what was done is kept.")
        st.button("Settings", key=f"{desk.page}.fold", on_click=set_open, args=(desk, not is_open(desk)),
                  help="Prompt, models and settings: unfold them, or fold them away. Nothing typed is lost.")
        beside()
    sentence = (trouble(asked) or refused(asked)) if run and not active else None
    if run and not active:
        set_open(desk, bool(sentence))
        if sentence:
            session.say(sentence)
        else:
            desk.start(asked, title)
            st.rerun()
    if stop and job is not None:
        cache.worker().stop(job)
        st.rerun()
    with line:
        session.draw('<i class="sl unfolded"></i>' if is_open(desk) else f'<div class="sl folded">{folded.line(asked)}</div>')


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
                    desk.look(view.id)
                    st.rerun()
                st.switch_page(f"pages/{page_of(view)}.py", query_params={"run": view.id})


def changed(desk: Desk, differs: list[str], take_back: Callable[[], None], left: list[str]) -> None:
    """Say that the controls no longer describe the run below, and offer to take its settings back; `left` names what they cannot take."""
    if not differs:
        return
    more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
    session.draw(f'<span class="sl quiet" role="status">Settings changed since the run below: {html.escape(", ".join(differs[:3]))}{more}.'
                 "</span>", width="content")
    st.button("Take the run's settings", type="tertiary", on_click=take_back, key=f"{desk.page}.takeback")
    if left:
        session.draw(f'<span class="sl quiet" role="status">Of the run\'s settings the controls cannot take: {html.escape("; ".join(left))}. '
                     "All others are taken.</span>", width="content")
