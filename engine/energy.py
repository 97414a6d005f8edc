"""Joules that a stretch of work took, where the machine counts them: Apple chips, NVIDIA through NVML, Intel and AMD through RAPL.

All by `zeus`, which is not among the app's requirements: `pip install zeus` (on a Mac `pip install 'zeus[apple]'`). Without it,
or without a counter that may be read, energy is "not available", and `why` says why. The Apple and NVIDIA lines never ran
in our tests.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

APPLE_PARTS = ("cpu_total_mj", "gpu_mj", "dram_mj", "ane_mj")  # of the chip, in millijoules; a chip may lack some


class Meter:
    """Windows of measured energy. `why` is empty where energy can be measured, else a sentence."""

    def __init__(self, monitor: Any = None, why: str = ""):
        self._monitor, self.why = monitor, why
        self._names = (f"speclens {n}" for n in itertools.count())

    @property
    def available(self) -> bool:
        return not self.why

    def begin(self) -> str | None:
        """Open a window; the caller has synchronised the device. None where energy is not available."""
        if self._monitor is None:
            return None
        name = next(self._names)
        try:
            self._monitor.begin_window(name, sync_execution=False)
        except Exception:  # a counter that stops answering must not end a run
            return None
        return name

    def end(self, window: str | None) -> float | None:
        """Joules since `begin`, of everything that is counted; None where nothing is, or a counter stopped answering."""
        if self._monitor is None or window is None:
            return None
        try:
            return joules(self._monitor.end_window(window, sync_execution=False))
        except Exception:
            return None


def joules(measured: Any) -> float | None:
    """The sum of a `zeus` measurement: graphics processors, packages and memory, and the parts of an Apple chip."""
    found = [v for part in (measured.gpu_energy, measured.cpu_energy, measured.dram_energy) for v in (part or {}).values()]
    chip = measured.soc_energy
    found += [getattr(chip, part) / 1000 for part in APPLE_PARTS if getattr(chip, part, None) is not None]
    return float(sum(found)) if found else None


@functools.cache
def meter() -> Meter:
    """This machine's meter. The first call takes a moment; it never raises."""
    try:
        zeus = importlib.import_module("zeus.monitor")
    except ImportError as e:
        missing = (e.name or "zeus").split(".")[0]
        return Meter(why=f"Energy is not available: the package {missing} is not installed (pip install zeus; on a Mac pip install 'zeus[apple]').")
    except Exception as e:
        return Meter(why=f"Energy is not available: zeus does not start ({type(e).__name__}).")
    try:
        found = Meter(zeus.ZeusMonitor())
        if found.end(found.begin()) is not None:
            return found
    except Exception as e:  # counters that only root may read, a driver that is not there
        return Meter(why=f"Energy is not available: zeus cannot read this machine's counters ({type(e).__name__}).")
    return Meter(why="Energy is not available: this machine has no energy counter that may be read.")
