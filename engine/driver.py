"""How the command line does what takes long: it follows the events, hears signals, keeps the run, and tells it."""

from __future__ import annotations

from typing import Any, Callable, Iterator

from engine import interrupt
from engine.commands import Progress, keep, look_over, quiet, require_writable, write_json
from engine.interrupt import Stopping
from engine.request import Done, Event, Step
from engine.streams import out, tell
from engine.trace import AnyRun

FAILED = 1
Begin = Callable[[Stopping, Progress], Iterator[Event]]


def perform(args, asked, begin: Begin, told: Callable[[AnyRun], tuple[Callable[[], dict[str, Any]], Callable[[], str]]]) -> int:
    """Do what is `asked` for and report; the exit status. `begin(stopping, progress)` gives its events, `told(run)` makes two functions:
    the report as JSON data and the readable one.

    A run stopped by a signal is reported and saved like a finished one; the status then says which signal it was.
    """
    require_writable(args.json)
    with interrupt.stopping() as signals:
        run = follow(args.debug, asked, begin, signals)
        if run is None:
            tell("speclens: stopped before anything was written.")
            return signals.status
        unsaved = keep(run) if args.save else None
        report, describe = told(run)
        if args.json:
            write_json(report(), args.json)
        if args.json != "-":
            out(describe() + "\n")
    if unsaved:
        raise unsaved
    return {"stopped": signals.status, "failed": FAILED}.get(run.status, 0)


def follow(debug: bool, asked, begin: Begin, signals: Stopping) -> AnyRun | None:
    """The run that the events end with, told of on the terminal; None if it was stopped before anything was written."""
    with quiet(debug) as terminal, Progress(terminal) as progress:
        progress.say("Looking for what it needs", now=True)
        look_over(asked)  # before torch, which takes seconds to import
        stage, written = "", 0
        for event in begin(signals, progress):
            if isinstance(event, Done):
                signals.arm()  # what is done will be told: a signal no longer ends it, unless it comes twice
                return event.run if getattr(event.run, "items", True) else None
            if isinstance(event, Step):
                written += len(event.round.emitted)
                progress.say(f"{stage}: {written} tokens")
            elif event.text != stage:
                stage, written = event.text, 0
                if event.side is not None or event.done is not None:
                    signals.arm()
                progress.say(stage, now=True)
    return None


def load(name: str, backend: str, device: str, dtype: str):
    """A model by name, loaded for this one command."""
    from engine.models import registry

    return registry.load(name, device=device, dtype=dtype, backend=backend)
