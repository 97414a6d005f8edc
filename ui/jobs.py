"""Which job and which run a browser session is looking at on each page. The jobs live in the worker, the runs in the store."""

from __future__ import annotations

import importlib
from typing import Any

import streamlit as st

import cache
from cache import recorded
from engine import preflight
from engine.errors import RequestError
from engine.models import source
from engine.request import Stage
from engine.trace import AnyRun
from ui import session

# The page a request belongs to, and what does it. By name: a saved page file makes Streamlit import the classes anew.
REQUESTS = {"CompareRequest": ("compare", "engine.decoding.compare"), "SinksRequest": ("sinks", "engine.attention.run"),
            "EntropyRequest": ("entropy", "engine.decoding.entropy"), "UagRequest": ("polish", "engine.decoding.uag"),
            "ImportRequest": ("runs", "")}
PAGES = {"compare": "compare", "sinks": "sinks", "entropy": "entropy", "uag": "polish"}  # kind of run → the page that shows it


def task(asked: Any):
    """What the worker does for `asked`. The engine, and torch with it, is imported there and nowhere else."""
    def run(control):
        page, engine = REQUESTS[type(asked).__name__]
        told = {"hear": control.hear} if page == "sinks" else {}  # one prompt may take a minute to read, without an event
        yield Stage("Looking for the models")
        source.require(*preflight.models(asked))  # all of them, before the first is loaded
        with cache.loaded().using() as load:
            yield from importlib.import_module(engine).run(asked, load, control, **told)
    return run


def refused(asked: Any) -> str | None:
    """The one sentence why `asked` cannot be done, as far as the models' files tell: before it waits in the queue. Milliseconds, and a
    tokenizer's reading the first time."""
    try:
        preflight.files(asked, held=sum(row.bytes for row in cache.loaded().peek()))
    except RequestError as e:
        return str(e)
    return None


def load(run_id: str) -> AnyRun:
    """The stored run (the store keeps the last few open) or a recorded one; RequestError in one sentence if it cannot be had."""
    return recorded.by_id(run_id) or cache.store().get(run_id)


def page_of(view) -> str:
    """The page on which a job is watched."""
    return REQUESTS.get(type(view.request).__name__, ("compare",))[0]


class Desk:
    """What one page shows in this session: a job on its way or a run. A run has its job's id, and the address names it (`?run=`,
    in older links `?job=`), so the address is the same from Run to the finished run, and one run is one step back."""

    def __init__(self, page: str):
        """page: the page's file and address; its runs are those of the kinds that `PAGES` sends there."""
        self.page = page

    def start(self, asked: Any, title: str) -> None:
        """Queue `asked` for this session and look at it. Each page checks first whether it can be tried at all."""
        title = " ".join(title[:400].split())[:60]
        self.look(cache.worker().submit(asked, task(asked), title, session.owner()).id)

    def look(self, id: str) -> None:
        """Show this job or run from now on; the address says so, so that a reload finds it again."""
        self._at(id)
        session.set_query(job=None, run=id)

    def attach(self) -> None:
        """Show what the address names. A bare address shows what this session showed last, but nothing if it was on this page
        with an address that named something: then somebody went back to the start."""
        asked, stayed = session.query("run") or session.query("job"), session.stayed(self.page)
        if asked:
            if asked != self._get("at"):
                self._at(asked)
        elif stayed:
            self._at(None)
        elif self._get("at"):
            session.set_query(run=self._get("at"))

    def current(self):
        """The job this session looks at, or None (a run from the store, or a job that the worker has forgotten)."""
        found = self._get("at")
        return cache.worker().find(found) if found else None

    def current_view(self):
        job = self.current()
        return job.snapshot() if job else None

    def shown(self) -> tuple[AnyRun | None, str | None]:
        """The run this session shows, and the one sentence why there is none, if one was asked for. While a job is on its way,
        and where it ended without a run, that is the run before it."""
        view, id = self.current_view(), self._get("at")
        if view is not None and view.run is not None:
            return view.run, None  # it could not be stored
        if view is not None and view.run_id is None:
            id = self._get("before")
        if not id:
            return None, None
        try:
            return load(id), None
        except RequestError as e:
            return None, str(e)

    def asked_for(self, run: AnyRun) -> Any | None:
        """What was asked for when `run` was made, if this session asked; the run itself tells only what was done."""
        job = cache.worker().find(run.id)
        return job.request if job is not None and job.owner == session.owner() else None

    def others(self) -> list:
        """Active jobs that this session does not look at here."""
        mine = self._get("at")
        return [view for job in cache.worker().jobs() if job.id != mine and (view := job.snapshot()).active and page_of(view) != "runs"]

    def _at(self, id: str | None) -> None:
        run, _ = self.shown()
        self._set(at=id, before=run.id if run is not None and id is not None else None)

    def _get(self, name: str):
        return st.session_state.get(f"speclens.{self.page}.{name}")

    def _set(self, **values) -> None:
        for name, value in values.items():
            st.session_state[f"speclens.{self.page}.{name}"] = value
