"""What is particular to each kind of run, for those who show runs of any kind."""

from __future__ import annotations

import functools
import importlib
import json
import logging
from collections import deque
from typing import Any, Callable

from engine.analysis import entropy, metrics, uag
from engine.errors import RequestError
from engine.trace import AnyRun, plain_data
from ui.takeaway import NoFigure, Takeaway, encoded

log = logging.getLogger(__name__)

DAMAGED = "This run is damaged: its figures do not fit together or are too large to work with. It can be deleted on the Runs page."
_sound: deque[AnyRun] = deque(maxlen=8)  # runs whose figures were found to be in order
LONG = 5_000  # tokens in all; drawing so many whole takes seconds

NAMES = {"compare": "Compare", "sinks": "Sinks", "entropy": "Entropy", "uag": "Polish"}  # kind → as a person reads it
ROOMS = {"compare": "ui.result", "sinks": "ui.sinks.takeaway", "entropy": "ui.entropy.takeaway", "uag": "ui.polish.takeaway"}


def takeaway(run: AnyRun) -> Takeaway:
    """The run's exports; the rooms that draw them are entered when one is asked for. RequestError if its figures cannot be made."""
    return made(importlib.import_module(ROOMS[run.kind]).takeaway, run)


def made(make: Callable[..., Any], *arguments: Any) -> Any:
    """What `make` makes of a run; where its figures cannot be worked out, whatever the reason, a RequestError that says so."""
    try:
        return make(*arguments)
    except RequestError:
        raise
    except Exception as e:  # a file from another hand may hold figures of any size
        log.warning("The figures of a run cannot be made", exc_info=e)
        raise RequestError(DAMAGED) from None


def check(run: AnyRun) -> None:
    """RequestError unless everything can be made of `run` that its page and its files show: each of them is made once. Of a run
    longer than `LONG` only the figures are, for they stand on all of it; its ribbon and tables repeat what was looked at token by token."""
    sound(run)
    if _tokens(run) > LONG:
        return
    take = takeaway(run)
    for make in (take.html, take.json, *take.tables.values(), *(functools.partial(_picture, take, name) for name in ("card", "ribbon"))):
        encoded(made(make))


def sound(run: AnyRun) -> None:
    """RequestError unless every figure of `run` can be worked out: asked of a run before it is taken in, and before it is shown."""
    if not any(run is kept for kept in _sound):
        made(_figures, run)
        _sound.append(run)


def _figures(run: AnyRun) -> str:
    """Every figure of the run, as text."""
    if run.kind == "compare":
        found = metrics.metrics(run)
    elif run.kind == "uag":
        found = uag.figures(run)
    else:
        found = [entropy.figures(trails) for trails in entropy.sides(run).values()] if run.kind == "entropy" else _views(run)
    return json.dumps(plain_data(found), allow_nan=False)


def _views(run: AnyRun) -> list[str]:
    from engine.attention.view import view  # brings numpy's statistics, which only such a run needs

    return [view(item).sentence for item in run.items if item.sums is not None and item.sums.received is not None]


def _picture(take: Takeaway, name: str) -> str:
    """One picture, or nothing where this run has none of that name."""
    try:
        return take.svg(name, "light") if name in take.figures else ""
    except NoFigure:
        return ""


def _tokens(run: AnyRun) -> int:
    if run.kind == "compare":
        return sum(len(side.ids) for side in (run.plain, run.speculative) if side)
    answers = [a for item in run.items for a in ((item.answer,) if run.kind == "entropy" else (item.plain, *(r.answer for r in item.results)))
               if a] if run.kind != "sinks" else ()
    return sum(len(a.ids) for a in answers) + sum(len(item.prompt.ids) for item in run.items)
