"""What every kind of decoding run does around the loop: pass rounds on, put repeats together, say what broke, sign the run."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import replace
from typing import Callable, Iterable, Iterator

from engine.decoding.loop import BrokeOff
from engine.errors import RequestError
from engine.models.base import Model
from engine.request import Event, Step
from engine.trace import FAILED, Generation, Round

Load = Callable[[str, str, str, str], Model]  # (name, backend, device, dtype)
FAILURES = (RequestError, RuntimeError, MemoryError, BrokeOff)
DEVICE_BROKE = "the device ran out of memory or failed."


def stream(rounds: Iterator[Round], side: str, repeat: int, verifier: Model) -> Iterator[Event]:
    """Pass rounds on as steps; returns the generation."""
    while True:
        try:
            r = next(rounds)
        except StopIteration as end:
            return end.value
        yield Step(side, repeat + 1, r, {i: verifier.vocabulary.bytes_of(i).hex() for i in {*r.proposed, *r.emitted}})


def drain(rounds: Iterator[Round]) -> Generation:
    """Decode to the end and return the generation."""
    while True:
        try:
            next(rounds)
        except StopIteration as end:
            return end.value


def merged(first: Generation | None, again: Generation) -> Generation:
    """The first repeat with the timing of a later one added. A repeat that was stopped or broke off half-way times nothing."""
    if first is None:
        return again
    if again.finish in ("stopped", FAILED):
        return first
    differing = first.differing + ((len(first.timings) + 1,) if again.ids != first.ids else ())
    return replace(first, timings=first.timings + again.timings, differing=differing,
                   notes=(*(n for n in first.notes if n != _others(first.differing)), *_noted(differing)))


def _noted(differing: tuple[int, ...]) -> tuple[str, ...]:
    return (_others(differing),) if differing else ()


def _others(differing: tuple[int, ...]) -> str:
    if len(differing) == 1:
        return f"Repeat {differing[0]} gave other tokens than the first; its time is kept, its text is not."
    named = ", ".join(map(str, differing[:-1])) + f" and {differing[-1]}" if differing else ""
    return f"{len(differing)} repeats ({named}) gave other tokens than the first; their times are kept, their texts are not."


def caught(error: Exception, kept: Generation | None) -> tuple[Exception, Generation | None]:
    """What really went wrong, and what there is of the answer that it ended; `kept` are the repeats before it."""
    if isinstance(error, BrokeOff):
        return error.cause, merged(kept, error.generation)
    return error, kept


def broke_off(failure: Exception) -> str:
    """The note of a run that a failure ended."""
    return f"The run broke off: {failure if isinstance(failure, RequestError) else DEVICE_BROKE}"


def status(failure: Exception | None, stopped: bool) -> str:
    return FAILED if failure else "stopped" if stopped else "done"


def signed() -> dict[str, str]:
    """A new run's id and the time it was made (ISO 8601, UTC, seconds)."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"id": f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", "created": now.isoformat(timespec="seconds")}


def defaults_off(model: Model, where: str) -> Iterator[str]:
    """A note on sampling defaults hidden in the model's own generation config, which no run honours."""
    if model.defaults:
        listed = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in model.defaults.items())
        yield f"The model's own sampling defaults ({listed}) are off{where}; the settings shown are the ones used."


def ids_in(generations: Iterable[Generation | None]) -> set[int]:
    """Every id of the verifier's vocabulary that occurs in them."""
    used: set[int] = set()
    for g in (g for g in generations if g is not None):
        used |= set(g.ids) | {i for position in g.top for i, _ in position} | {i for r in g.rounds for i in r.proposed}
    return used


def spelled(model: Model, ids: set[int]) -> dict[int, str]:
    """The bytes, as hex, of each id."""
    return {i: model.vocabulary.bytes_of(i).hex() for i in sorted(ids)}
