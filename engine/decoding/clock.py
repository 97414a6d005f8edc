"""What a decode took, pass by pass, and who else used the processor meanwhile."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Iterator, Sequence

import psutil

from engine.trace import Round, Timing

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # where a system counts them; stolen time went to another machine
TICK = 0.02  # seconds that a core's counters may lag behind
MISFIT = 0.1  # of the window: counters that give this process more than the cores were busy for are not to be used


@dataclass(frozen=True)
class Load:
    """Processor seconds of a stretch of time, on the cores this process may use: its own, those of other programs, idle ones.

    Their sum is cores × seconds. The last two are None where the system does not count them, and where the stretch was
    shorter than its counters can tell (a tenth of a second).
    """

    own: float
    others: float | None = None
    idle: float | None = None
    cores: int = 0  # how many those are, where it is known


class LoadMeter:
    """Counts from when it was made. Reading the counters takes under a millisecond on a small machine: do it outside clocks."""

    def __init__(self):
        self._own, self._cores = process_time(), _cores()

    def read(self) -> Load:
        own, cores = process_time() - self._own, _cores()
        if self._cores is None or cores is None:
            return Load(own)
        busy, idle, count = cores[0] - self._cores[0], cores[1] - self._cores[1], cores[2]
        if busy + idle < 5 * TICK * count or own - busy > MISFIT * (busy + idle):  # too short, or a sandbox that counts nothing
            return Load(own)
        return Load(own, max(busy - own, 0.0), max(idle, 0.0), count)


def _cores() -> tuple[float, float, int] | None:
    """(busy, idle) seconds since the machine started, summed over the cores this process may use, and how many those are."""
    try:
        every = psutil.cpu_times(percpu=True)
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
        cores = [every[i] for i in usable]
    except (OSError, IndexError, AttributeError, NotImplementedError, RuntimeError):
        return None
    return (sum(getattr(c, name, 0.0) for c in cores for name in BUSY), sum(c.idle + getattr(c, "iowait", 0.0) for c in cores), len(cores))


@dataclass
class Clock:
    """One decode. Make it just before its first round; `fed` takes the number of tokens each verifier pass was over.

    It stands still while the trail looks, and while whoever reads the rounds has one.
    """

    fed: list[int] = field(default_factory=list)
    load: LoadMeter = field(default_factory=LoadMeter)
    paused: float = 0.0
    start: float = field(default_factory=perf_counter)  # the last field: read once all else is made

    def now(self) -> float:
        """Seconds of decode so far."""
        return perf_counter() - self.start - self.paused

    @contextmanager
    def standing(self) -> Iterator[None]:
        began = perf_counter()
        yield
        self.paused += perf_counter() - began

    def timing(self, prefill_seconds: float, decode_seconds: float, rounds: Sequence[Round], joules: float | None) -> Timing:
        """The timing of the decode that ends now. `decode_seconds` is used where it had no round."""
        load, begun, rest = self.load.read(), 0.0, []
        for r in rounds:
            rest.append(max(r.end - begun - r.verify_seconds - r.draft_seconds, 0.0))
            begun = r.end
        verify, draft = [r.verify_seconds for r in rounds], [r.draft_seconds for r in rounds]
        return Timing(prefill_seconds, rounds[-1].end if rounds else decode_seconds, sum(verify), sum(draft), sum(len(r.emitted) for r in rounds),
                      len(rounds), joules, tuple(self.fed), _micro(verify), _micro(draft), _micro(rest), load.own, load.others, load.idle)


def _micro(column: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(v, 6) for v in column)
