"""The one worker: a single thread on which every model is loaded and run, and the queue before it.

Backends keep state per thread and caches that cannot be re-entered, so nothing else in the process calls a model. A
job belongs to no page: switching pages, moving a widget or losing the connection does not touch it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from typing import Any, Callable

from cache.job import DONE, FAILED, QUEUED, RUNNING, STOPPED, Job, Task
from engine.trace import AnyRun

log = logging.getLogger(__name__)

KEEP = 50  # ended jobs that can still be looked at


class Worker:
    """Runs jobs one after the other, in the order they came.

    `on_done` is given each finished or stopped run, on the worker's thread; if it returns a text, that is the stored
    run's id. A run goes by the id of its job.
    """

    def __init__(self, on_done: Callable[[AnyRun], str | None] | None = None, keep: int = KEEP):
        self._on_done, self._keep = on_done, keep
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._jobs: dict[str, Job] = {}
        self._rates: dict[Any, dict[str, float]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="speclens-worker", daemon=True)
        self._thread.start()

    def submit(self, request: Any, task: Task, title: str, owner: str | None = None) -> Job:
        """Queue `task(stop)`, an iterator of events that asks `stop()` at least once a token and then ends with `Done`."""
        with self._changed:
            job = Job(request, task, title, owner, self._rates.setdefault(_models(request), {}))
            self._jobs[job.id] = job
            self._queue.append(job)
            self._changed.notify()
        return job

    def stop(self, job: Job | str) -> bool:
        """Take a queued job out, or tell the running one to end after its token. False if it had already ended."""
        with self._changed:
            found = self.find(job) if isinstance(job, str) else job
            if found is not None and found in self._queue:
                self._queue.remove(found)
                found.finish(STOPPED)
                self._forget_old()
                return True
            if found is not None and found is self._running:
                found.ask_to_stop()
                return True
            return False

    def position(self, job: Job) -> int:
        """Jobs ahead of this one: 0 when it is running or has ended."""
        with self._changed:
            return len(self._ahead(job))

    def seconds_ahead(self, job: Job) -> float | None:
        """Estimated seconds until this job starts; None where a job ahead gives nothing to estimate from."""
        with self._changed:
            ahead = self._ahead(job)
        left = [other.snapshot().seconds_left for other in ahead]
        return None if None in left else sum(left)

    def jobs(self, owner: str | None = None) -> list[Job]:
        """All jobs still known, oldest first; with `owner`, that session's."""
        with self._changed:
            return [job for job in self._jobs.values() if owner is None or job.owner == owner]

    def find(self, id: str) -> Job | None:
        return self._jobs.get(id)

    def close(self, timeout: float | None = None) -> None:
        """Stop the running job, empty the queue and end the thread."""
        with self._changed:
            self._closing = True
            for job in [*self._queue, *([self._running] if self._running else [])]:
                self.stop(job)
            self._changed.notify()
        self._thread.join(timeout)

    def _ahead(self, job: Job) -> list[Job]:
        if job not in self._queue:
            return []
        waiting = list(self._queue)
        return [*([self._running] if self._running else []), *waiting[:waiting.index(job)]]

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                job = self._running = self._queue.popleft()
            outcome = self._run(job)
            with self._changed:
                self._running = None
                if rates := job.rates():
                    self._rates[_models(job.request)].update(rates)
                job.finish(*outcome)
                self._forget_old()
            del job, outcome  # or an idle worker would hold the last run for as long as it waits

    def _run(self, job: Job) -> tuple[str, str | None, str | None, AnyRun | None]:
        """Run a job to its end: status, error, id of the stored run, and the run itself if it could not be stored."""
        run = error = None
        try:
            for event in job.start():
                # Told apart by what they hold, not by class: a saved page file makes Streamlit import the modules
                # anew, and this thread, which outlives that, would know none of the new classes.
                if hasattr(event, "run"):
                    run = dataclasses.replace(event.run, id=job.id)
                else:
                    job.hear(event)
        except BaseException as failure:  # whatever a job raises, the thread lives for the next one
            error = _sentence(failure, f"“{job.title}” broke off")
        if run is None:
            if error is None and job.asked_to_stop:
                return STOPPED, None, None, None
            if error is None and not getattr(job.request, "makes_run", True):  # an import, say, which keeps its runs itself
                return DONE, None, None, None
            return FAILED, error or "The run ended without a result; please run it again.", None, None
        status = run.status if run.status in (DONE, STOPPED, FAILED) else DONE
        if status == FAILED:
            error = error or (run.notes[-1] if run.notes else "The run failed; its notes say how far it came.")
        if self._on_done is None:
            return status, error, None, run
        try:
            return status, error, self._on_done(run) or run.id, None
        except BaseException as failure:
            return status, _sentence(failure, "The run is complete but could not be saved"), None, run

    def _forget_old(self) -> None:
        ended = [id for id, job in self._jobs.items() if job.status not in (QUEUED, RUNNING)]
        for id in ended[:max(0, len(ended) - self._keep)]:
            del self._jobs[id]


def _models(request: Any) -> tuple:
    """Requests that agree in this run at about the same speed."""
    return tuple(getattr(request, name, None) for name in ("verifier", "model", "draft", "backend", "device", "dtype"))


def _sentence(failure: BaseException, what: str) -> str:
    """What a person is told of a failure. Anything but a `RequestError` goes to the log in full and is only named here."""
    if any(kind.__name__ == "RequestError" for kind in type(failure).__mro__):
        return str(failure)
    log.error("%s", what, exc_info=failure)
    if isinstance(failure, MemoryError):
        return f"{what}: there was not enough memory; free some or choose a smaller model."
    return f"{what} because of an error inside SpecLens ({type(failure).__name__}); the log has the details."
