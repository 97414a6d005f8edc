"""One asked-for run on its way: what the worker writes and what a page may look at while it goes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping

from engine.decoding.clock import Load, LoadMeter
from engine.request import Event, Step
from engine.stamps import new_id
from engine.trace import AnyRun

LOOK = 1.0  # seconds between two looks at who uses the processor
QUEUED, RUNNING, DONE, STOPPED, FAILED = "queued", "running", "done", "stopped", "failed"
SIDES = ("plain", "speculative")

Task = Callable[["Control"], Iterator[Event]]


@dataclass(frozen=True)
class SideView:
    """One side so far. `steps` and `tokens` are of the current repeat, `total` of all repeats together."""

    repeat: int
    steps: tuple[Step, ...]
    tokens: int
    total: int
    tokens_per_second: float | None  # of the current repeat's decode; None before its first round
    decoding: bool
    load: Load | None = None  # whose the processor was since the current repeat began to decode; None in its first second


@dataclass(frozen=True)
class JobView:
    """A job at one moment; nothing in it changes any more. Times are `time.monotonic()` seconds.

    `tokens` gives the bytes, as hex, of the ids in the steps. `run_id` is the stored run; `run` is set only where the
    run could not be stored, so that it can still be looked at and exported. `version` grows with every change.
    """

    id: str
    request: Any
    title: str
    owner: str | None
    status: str
    error: str | None
    stage: str
    side: str | None
    repeat: int
    repeats: int
    sides: Mapping[str, SideView]
    tokens: Mapping[int, str]
    submitted: float
    started: float | None
    finished: float | None
    seconds: float  # running time so far, 0 while queued
    seconds_left: float | None  # None: nothing to estimate from yet
    done: float | None  # share of the work that is over, 0–1, where the work itself tells
    stopping: bool  # Stop was pressed and has not taken effect yet
    run_id: str | None
    run: AnyRun | None
    version: int

    @property
    def active(self) -> bool:
        return self.status in (QUEUED, RUNNING)


@dataclass
class _Side:
    repeat: int = 0
    steps: list[Step] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    decoding: bool = False
    earlier_tokens: int = 0
    earlier_seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)  # tokens of each finished repeat
    meter: LoadMeter | None = None
    load: Load | None = None
    looked: float = 0.0

    def begin(self, repeat: int) -> None:
        self.earlier_tokens += self.tokens
        self.earlier_seconds += self.seconds
        self.repeat, self.steps, self.tokens, self.seconds, self.decoding = repeat, [], 0, 0.0, True
        self.meter, self.load, self.looked = LoadMeter(), None, time.monotonic()

    def look(self) -> None:
        """Between two rounds, so that no clock runs."""
        if self.meter is not None and time.monotonic() - self.looked >= LOOK:
            self.load, self.looked = self.meter.read(), time.monotonic()

    def end(self) -> None:
        if self.decoding:
            self.decoding = False
            self.lengths.append(self.tokens)

    def rate(self) -> float | None:
        """Tokens per second over all repeats so far."""
        seconds = self.earlier_seconds + self.seconds
        return (self.earlier_tokens + self.tokens) / seconds if seconds > 0 else None

    def view(self) -> SideView:
        rate = self.tokens / self.seconds if self.seconds > 0 else None
        return SideView(self.repeat, tuple(self.steps), self.tokens, self.earlier_tokens + self.tokens, rate, self.decoding, self.load)


class Control:
    """What a task is given. Called, it says whether to stop; `hear` takes in a `Stage` when no event can come: while a model
    reads one long prompt, say."""

    def __init__(self, job: Job):
        self._stopped, self.hear = job._stop.is_set, job.hear

    def __call__(self) -> bool:
        return self._stopped()


class Job:
    """A request with its place in the queue. Only the worker changes it; `snapshot` may be called from any thread."""

    def __init__(self, request: Any, task: Task, title: str, owner: str | None, rates: Mapping[str, float]):
        self.id = new_id()  # its run gets the same, so that one address names both
        self.request, self.title, self.owner = request, title, owner
        self._lock = threading.Lock()  # held for moments only: a page that polls never waits for a token
        self._task: Task | None = task
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._rates = rates  # tokens per second of each side when the same models ran last; the worker renews them
        self._status, self._error = QUEUED, None
        self._stage, self._side, self._repeat, self._repeats = "Waiting", None, 1, 1
        self._sides: dict[str, _Side] = {}
        self._tokens: dict[int, str] = {}
        self._submitted, self._started, self._finished = time.monotonic(), None, None
        self._run_id, self._run = None, None
        self._done: float | None = None
        self._first_done: tuple[float, float] | None = None  # when the work first told how far it was, and how far
        self._version = 0

    @property
    def status(self) -> str:
        return self._status

    @property
    def error(self) -> str | None:
        return self._error

    @property
    def run_id(self) -> str | None:
        return self._run_id

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended, at most `timeout` seconds; True if it has."""
        return self._ended.wait(timeout)

    def snapshot(self) -> JobView:
        with self._lock:
            now = time.monotonic()
            seconds = 0.0 if self._started is None else (self._finished or now) - self._started
            active = self._status in (QUEUED, RUNNING)
            return JobView(
                self.id, self.request, self.title, self.owner, self._status, self._error, self._stage, self._side,
                self._repeat, self._repeats, {name: side.view() for name, side in self._sides.items()}, dict(self._tokens),
                self._submitted, self._started, self._finished, seconds, self._seconds_left() if active else None, self._done,
                active and self._stop.is_set(), self._run_id, self._run, self._version)

    # What follows is for the worker.

    def start(self) -> Iterator[Event]:
        with self._lock:
            self._status, self._stage, self._started = RUNNING, "Starting", time.monotonic()
            self._version += 1
            task, self._task = self._task, None  # what the task holds, models perhaps, is freed when it ends
        return task(Control(self))

    def ask_to_stop(self) -> None:
        self._stop.set()
        with self._lock:
            self._version += 1

    @property
    def asked_to_stop(self) -> bool:
        return self._stop.is_set()

    def hear(self, event: Event) -> None:
        """Take in a `Stage` or a `Step`."""
        with self._lock:
            self._version += 1
            if hasattr(event, "round"):
                self._close_all_but(event.side, event.repeat)
                side = self._sides.setdefault(event.side, _Side())
                if not side.decoding:
                    side.begin(event.repeat)
                side.steps.append(event)
                side.tokens += len(event.round.emitted)
                side.seconds = event.round.end
                side.look()
                self._tokens.update(event.tokens)
                self._side, self._repeat = event.side, event.repeat
            else:
                self._stage, self._side = event.text, event.side
                self._repeat, self._repeats = event.repeat, event.repeats
                if event.done is not None:
                    self._done = event.done
                    if self._first_done is None:
                        self._first_done = (time.monotonic(), event.done)
                if event.side is not None:
                    self._close_all_but(event.side, event.repeat)

    def finish(self, status: str, error: str | None = None, run_id: str | None = None, run: AnyRun | None = None) -> None:
        with self._lock:
            self._version += 1
            self._status, self._error, self._run_id, self._run = status, error, run_id, run
            self._stage, self._finished, self._task = status.capitalize(), time.monotonic(), None
            for side in self._sides.values():
                side.end()
                if run_id is not None:
                    side.steps = []  # the stored run holds them all
            if run_id is not None:
                self._tokens = {}
        self._ended.set()

    def rates(self) -> dict[str, float]:
        """Tokens per second of each side that decoded."""
        with self._lock:
            return {name: rate for name, side in self._sides.items() if (rate := side.rate())}

    def _close_all_but(self, name: str, repeat: int) -> None:
        for other, side in self._sides.items():
            if other != name or side.repeat != repeat:
                side.end()

    def _seconds_left(self) -> float | None:
        """Time still to come. Work that tells how far it is goes on as fast as it went so far. Else it is decode time: tokens
        left of each side over its rate; loading and prefill are not foreseen. A side that has not begun borrows the other's
        rate; a side that ended a repeat early is expected to do so again.
        """
        if self._first_done is not None:
            since, share = self._first_done
            gained = self._done - share
            return (time.monotonic() - since) * (1 - self._done) / gained if gained > 0 else None
        settings = getattr(self.request, "settings", None)
        if not hasattr(settings, "max_tokens"):
            return None
        known = {name: side.rate() for name, side in self._sides.items()}
        total = 0.0
        for name in SIDES:
            rate = known.get(name) or self._rates.get(name) or next(filter(None, known.values()), None)
            if rate is None:
                return None
            side = self._sides.get(name, _Side())
            length = sum(side.lengths) / len(side.lengths) if side.lengths else settings.max_tokens
            left = max(0, settings.repeats - len(side.lengths)) * length
            total += max(0.0, left - (side.tokens if side.decoding else 0)) / rate
        return total
