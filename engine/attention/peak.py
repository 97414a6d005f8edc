"""The most memory that something took while it ran, over what was taken before it."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from typing import Callable, Iterator

import psutil

PERIOD = 0.01  # seconds between two looks where the system keeps no peak of its own


@dataclass
class Peak:
    """`extra_bytes` is set when the block ends. None: not measured."""

    extra_bytes: int | None = None


@contextlib.contextmanager
def measure_peak(device: str = "cpu") -> Iterator[Peak]:
    """`with measure_peak() as peak: …`, then `peak.extra_bytes`: resident memory at its highest over that before, in bytes.

    Linux keeps the peak itself; elsewhere a thread looks every hundredth of a second. On cuda, mps and metal the device's own
    counters are read instead (untried on such hardware; MLX's were tried on its CPU build). The whole process is measured,
    whichever thread took the memory.
    """
    peak, torch, mlx = Peak(), sys.modules.get("torch"), sys.modules.get("mlx.core")
    if device == "cuda" and torch is not None:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield peak
        peak.extra_bytes = max(0, torch.cuda.max_memory_allocated() - before)
    elif device == "mps" and torch is not None:
        with _watched(torch.mps.current_allocated_memory) as highest:
            yield peak
        peak.extra_bytes = highest()
    elif device == "metal" and mlx is not None:
        mlx.reset_peak_memory()
        before = mlx.get_active_memory()
        yield peak
        peak.extra_bytes = max(0, mlx.get_peak_memory() - before)
    elif _reset():
        before = _status("VmRSS")
        yield peak
        peak.extra_bytes = max(0, _status("VmHWM") - before)
    else:
        with _watched(lambda: psutil.Process().memory_info().rss) as highest:
            yield peak
        peak.extra_bytes = highest()


def _reset() -> bool:
    """Let Linux forget the peak it has seen; False where that cannot be asked for."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
            f.write("5")
        return True
    except OSError:
        return False


def _status(name: str) -> int:
    """A size of this process from /proc, in bytes."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(name + ":"))


@contextlib.contextmanager
def _watched(read: Callable[[], int]) -> Iterator[Callable[[], int]]:
    """Look at `read()` again and again; gives a function that says how far it rose."""
    before = read()
    seen, done = [before], threading.Event()

    def look() -> None:
        while not done.wait(PERIOD):
            seen[0] = max(seen[0], read())

    thread = threading.Thread(target=look, daemon=True, name="peak memory")
    thread.start()
    try:
        yield lambda: max(seen[0], read()) - before
    finally:
        done.set()
        thread.join()
