"""What is particular to each kind of run, for those who show runs of any kind."""

from __future__ import annotations

import importlib

from engine.trace import AnyRun
from ui.takeaway import Takeaway

NAMES = {"compare": "Compare", "sinks": "Sinks", "entropy": "Entropy", "uag": "Polish"}  # kind → as a person reads it
ROOMS = {"compare": "ui.result", "sinks": "ui.sinks.takeaway", "entropy": "ui.entropy.takeaway", "uag": "ui.polish.takeaway"}


def takeaway(run: AnyRun) -> Takeaway:
    """The run's exports; the rooms that draw them are entered when one is asked for."""
    return importlib.import_module(ROOMS[run.kind]).takeaway(run)
