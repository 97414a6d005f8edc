"""What is kept: loaded models, the one worker, the runs on disk.

`worker()`, `store()` and `loaded()` give the process's own. They live in Streamlit's resource cache, not in module
globals: a saved page file makes Streamlit import the modules anew, and threads, locks and loaded models outlive that.
"""

from __future__ import annotations

from pathlib import Path

# The rooms are imported before the functions of the same names are defined, or a first `import cache.store` elsewhere
# would put the module in the function's place.
from cache.loaded import Loaded
from cache.store import Store
from cache.worker import Worker
from engine.models.home import home


def worker() -> Worker:
    """The process's one worker; its finished runs go to `store()`."""
    return _kept(_worker)


def store() -> Store:
    """The runs in the app's own folder."""
    return _kept(_store, str(home() / "runs"))


def loaded() -> Loaded:
    """The process's loaded models; to be asked on the worker's thread, inside a job."""
    return _kept(_loaded)


def _worker() -> Worker:
    return Worker(on_done=lambda run: store().save(run))


def _store(folder: str) -> Store:
    return Store(Path(folder))


def _loaded() -> Loaded:
    return Loaded()


def _kept(make, *arguments):
    import streamlit as st  # here, so that the command line can use the store without it
    return st.cache_resource(make, show_spinner=False)(*arguments)
