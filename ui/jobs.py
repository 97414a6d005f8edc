"""Which job and which run a browser session is looking at. The jobs live in the worker, the runs in the store."""

from __future__ import annotations

import streamlit as st

import cache
from engine.errors import RequestError
from engine.request import CompareRequest
from engine.trace import Run
from ui import controls, session

JOB, SHOWN, UNSAVED, SETTLED, ASKED = ("speclens.job", "speclens.shown", "speclens.unsaved", "speclens.settled", "speclens.asked")


def start(asked: CompareRequest) -> str | None:
    """Queue `asked` for this session and look at it. Returns the one sentence to show if it cannot even be tried, else None."""
    if not asked.prompt.strip():
        return "The prompt is empty; type what both sides shall answer."
    if not asked.verifier:
        return "No verifier is chosen; pick one, or type a hub id, a folder or a .gguf file."
    if asked.settings.drafter == "model" and not asked.draft:
        return "No draft model is chosen; pick one, or switch the drafter to prompt lookup."
    title = " ".join(asked.prompt[:400].split())[:60]
    job = cache.worker().submit(asked, task(asked), title, session.owner())
    watch(job.id)
    return None


def task(asked: CompareRequest):
    """What the worker does for `asked`. The engine, and torch with it, is imported there and nowhere else."""
    def run(stop):
        from engine.decoding import compare
        with cache.loaded().using() as load:
            yield from compare.run(asked, load, stop)
    return run


def watch(job_id: str) -> None:
    """Look at this job from now on; the address says so, so that a reload finds it again."""
    st.session_state[JOB] = job_id
    session.set_query(job=job_id, run=None)


def attach() -> None:
    """Make what the address asks for what this session shows; without a wish, what it showed last."""
    asked_run, asked_job = session.query("run"), session.query("job")
    if asked_job and asked_job != st.session_state.get(JOB) and cache.worker().find(asked_job):
        st.session_state[JOB] = asked_job
    elif asked_run and asked_run != st.session_state.get(SHOWN):
        show(asked_run)
    view = current_view()
    if view is not None and view.active:
        session.set_query(job=view.id, run=None)
    elif st.session_state.get(SHOWN):
        session.set_query(job=None, run=st.session_state[SHOWN])
    elif asked_job:
        session.set_query(job=None)


def current():
    """The job this session looks at, or None (never asked, or forgotten by the worker since)."""
    found = st.session_state.get(JOB)
    return cache.worker().find(found) if found else None


def current_view():
    job = current()
    return job.snapshot() if job else None


def settle(view) -> None:
    """Once a job has ended, its run is what this session shows."""
    if view is None or st.session_state.get(SETTLED) == view.id:
        return
    st.session_state[SETTLED] = view.id
    st.session_state[UNSAVED] = view.run
    if view.run_id:
        show(view.run_id)
        st.session_state[ASKED] = (view.run_id, view.request)
        session.set_query(job=None, run=view.run_id)


def show(run_id: str) -> None:
    st.session_state[SHOWN] = run_id
    st.session_state[UNSAVED] = None


def shown() -> tuple[Run | None, str | None]:
    """The run this session shows, and the one sentence why there is none, if one was asked for."""
    if st.session_state.get(UNSAVED) is not None:
        return st.session_state[UNSAVED], None
    run_id = st.session_state.get(SHOWN)
    if not run_id:
        return None, None
    try:
        return load(run_id), None
    except RequestError as e:
        return None, str(e)


def asked_for(run: Run) -> CompareRequest:
    """What was asked for when `run` was made: known in this session, else read from the run, whose length may have been cut
    to the context."""
    kept = st.session_state.get(ASKED)
    return kept[1] if kept and kept[0] == run.id else controls.request_of(run)


def load(run_id: str) -> Run:
    """The stored run (the store keeps the last few open); RequestError in one sentence if it cannot be had."""
    return cache.store().get(run_id)


def others() -> list:
    """Active jobs that this session does not look at."""
    mine = st.session_state.get(JOB)
    return [view for job in cache.worker().jobs() if job.id != mine and (view := job.snapshot()).active]
