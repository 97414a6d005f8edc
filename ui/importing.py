"""Runs from files, read and tried by the worker, so that the page answers meanwhile."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Iterator

import streamlit as st

import cache
from cache.importing import LIMIT_MB
from engine.errors import RequestError
from engine.request import Stage
from ui import kinds, session

HELP = (f"Files of up to {LIMIT_MB} MB that Share ▾ JSON or the command line's --json wrote: compare, sinks, entropy and uag. Every figure of "
        "a run is tried before it is taken in.")


@dataclass
class ImportRequest:
    """Files to take in. `said` grows: what became of each, as (sentence, "note" or "error")."""

    files: list[tuple[str, bytes]]
    said: list[tuple[str, str]] = field(default_factory=list)
    makes_run = False  # it stores the runs itself


def start(files: list[tuple[str, bytes]]) -> str:
    """Queue the files and return the job's id."""
    asked, store = ImportRequest(files), cache.store()
    session.warm_up()  # what charts need is imported here: two threads that import it at once can see it half made
    names = files[0][0] if len(files) == 1 else f"{len(files)} files"
    return cache.worker().submit(asked, lambda control: _take_in(asked, store, control), f"Import of {names}"[:60], session.owner()).id


def _take_in(asked: ImportRequest, store, control) -> Iterator[Stage]:
    """One file after the other; each is let go once it is read. A bad one is named in a sentence and stops no other."""
    count = len(asked.files)
    while asked.files and not control():
        name, content = asked.files.pop(0)
        n = count - len(asked.files) - 1

        def told(share: float) -> None:
            control.hear(Stage(f"Reading {name}", done=(n + 0.9 * share) / count))

        yield Stage(f"Reading {name}", done=n / count)
        try:
            store.import_json(content, kinds.check, told)
            asked.said.append((f"{name} is imported.", "note"))
        except RequestError as e:
            asked.said.append((f"{name}: {e}", "error"))
        del content
    asked.said += [(f"{name} was not read: the import was stopped.", "note") for name, _ in asked.files]
    asked.files.clear()


@st.fragment(run_every=0.5)
def progress(job_id: str, key: str) -> None:
    """How far an import is; once it has ended, what became of each file is said by the pass after, under the key `key`."""
    job = cache.worker().find(job_id)
    view = job.snapshot() if job else None
    if view is not None and view.active:
        ahead = cache.worker().position(job)
        words = f"Waiting: {ahead} ahead." if ahead else f"{view.stage} …"
        session.draw(f'<p class="sl quiet" role="status">{html.escape(words)}</p>')
        st.progress(min(max(view.done or 0.0, 0.0), 1.0))
        return
    said = [*view.request.said, *([(view.error, "error")] if view.error else [])] if view else [("The import is not known any more.", "error")]
    st.session_state.setdefault(key, []).extend(said)
    st.session_state.pop(f"{key}.job", None)
    st.rerun()
