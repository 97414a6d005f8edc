"""Which job and which run a browser session is looking at on each page. The jobs live in the worker, the runs in the store."""

from __future__ import annotations

import importlib
from typing import Any

import streamlit as st

import cache
from cache import recorded
from engine.errors import RequestError
from engine.trace import AnyRun
from ui import session

# The page a request belongs to, and what does it. By name: a saved page file makes Streamlit import the classes anew.
REQUESTS = {"CompareRequest": ("compare", "engine.decoding.compare"), "SinksRequest": ("sinks", "engine.attention.run"),
            "EntropyRequest": ("entropy", "engine.decoding.entropy"), "UagRequest": ("polish", "engine.decoding.uag")}
PAGES = {"compare": "compare", "sinks": "sinks", "entropy": "entropy", "uag": "polish"}  # kind of run → the page that shows it


def task(asked: Any):
    """What the worker does for `asked`. The engine, and torch with it, is imported there and nowhere else."""
    def run(control):
        page, engine = REQUESTS[type(asked).__name__]
        told = {"hear": control.hear} if page == "sinks" else {}  # one prompt may take a minute to read, without an event
        with cache.loaded().using() as load:
            yield from importlib.import_module(engine).run(asked, load, control, **told)
    return run


def load(run_id: str) -> AnyRun:
    """The stored run (the store keeps the last few open) or a recorded one; RequestError in one sentence if it cannot be had."""
    return recorded.by_id(run_id) or cache.store().get(run_id)


def page_of(view) -> str:
    """The page on which a job is watched."""
    return REQUESTS.get(type(view.request).__name__, ("compare",))[0]


class Desk:
    """One page's job and run in this session, and what its address says of them (`?job=`, `?run=`)."""

    def __init__(self, page: str):
        """page: the page's file and address; its runs are those of the kinds that `PAGES` sends there."""
        self.page = page

    def start(self, asked: Any, title: str) -> None:
        """Queue `asked` for this session and look at it. Each page checks first whether it can be tried at all."""
        title = " ".join(title[:400].split())[:60]
        self.watch(cache.worker().submit(asked, task(asked), title, session.owner()).id)

    def watch(self, job_id: str) -> None:
        """Look at this job from now on; the address says so, so that a reload finds it again."""
        self._set(job=job_id)
        session.set_query(job=job_id, run=None)

    def attach(self) -> None:
        """Make what the address asks for what this session shows; without a wish, what it showed last."""
        asked_run, asked_job = session.query("run"), session.query("job")
        found = cache.worker().find(asked_job) if asked_job and asked_job != self._get("job") else None
        if found is not None and page_of(found) == self.page:
            self._set(job=asked_job)
        elif asked_run and asked_run != self._get("shown"):
            self.show(asked_run)
        view = self.current_view()
        if view is not None and view.active:
            session.set_query(job=view.id, run=None)
        elif self._get("shown"):
            session.set_query(job=None, run=self._get("shown"))
        elif asked_job:
            session.set_query(job=None)

    def current(self):
        """The job this session looks at, or None (never asked, or forgotten by the worker since)."""
        found = self._get("job")
        return cache.worker().find(found) if found else None

    def current_view(self):
        job = self.current()
        return job.snapshot() if job else None

    def settle(self, view) -> None:
        """Once a job has ended, its run is what this session shows."""
        if view is None or self._get("settled") == view.id:
            return
        self._set(settled=view.id, unsaved=view.run)
        if view.run_id:
            self.show(view.run_id)
            self._set(asked=(view.run_id, view.request))
            session.set_query(job=None, run=view.run_id)

    def show(self, run_id: str) -> None:
        self._set(shown=run_id, unsaved=None)

    def shown(self) -> tuple[AnyRun | None, str | None]:
        """The run this session shows, and the one sentence why there is none, if one was asked for."""
        if self._get("unsaved") is not None:
            return self._get("unsaved"), None
        run_id = self._get("shown")
        if not run_id:
            return None, None
        try:
            return load(run_id), None
        except RequestError as e:
            return None, str(e)

    def asked_for(self, run: AnyRun) -> Any | None:
        """What was asked for when `run` was made, if this session asked; the run itself tells only what was done."""
        kept = self._get("asked")
        return kept[1] if kept and kept[0] == run.id else None

    def others(self) -> list:
        """Active jobs that this session does not look at here."""
        mine = self._get("job")
        return [view for job in cache.worker().jobs() if job.id != mine and (view := job.snapshot()).active]

    def _get(self, name: str):
        return st.session_state.get(f"speclens.{self.page}.{name}")

    def _set(self, **values) -> None:
        for name, value in values.items():
            st.session_state[f"speclens.{self.page}.{name}"] = value
