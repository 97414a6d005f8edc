"""Whether a benchmark had the machine for itself: every one prints it beside its figures."""

from __future__ import annotations

from engine.analysis.timing import crowd
from engine.decoding.clock import LoadMeter


class Watch:
    """Watches from when it is made, in the process that does the work."""

    def __init__(self):
        self._meter = LoadMeter()

    def found(self) -> dict:
        """Cores that other programs used on average so far, of how many, and why the figures are no result; None: not counted,
        not disturbed."""
        load = self._meter.read()
        counted = load.others is not None and load.idle is not None and load.cores > 0
        whole = load.own + load.others + load.idle if counted else 0.0
        return {"other cores": round(load.others / whole * load.cores, 2) if whole else None, "cores": load.cores,
                "disturbed": crowd(load.own, load.others, load.idle, load.cores)}

    def say(self) -> dict:
        """`found`, printed too."""
        found = self.found()
        print(words(found), flush=True)
        return found


def words(found: dict) -> str:
    if found["disturbed"]:
        return f"DISTURBED: {found['disturbed']}. These figures are no result; measure again on an idle machine."
    if found["other cores"] is None:
        return "whether other programs disturbed this is not known: the system does not count processor time by core"
    return f"not disturbed: other programs used {found['other cores']:.1f} of {found['cores']} cores"
