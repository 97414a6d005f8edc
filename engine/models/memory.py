"""How much memory models will take, before they are loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from engine.errors import RequestError
from engine.machine import memory_available, memory_total
from engine.models import cost, metal
from engine.models.device import default_dtype
from engine.models.source import config

_GB = 2**30  # memory is sold in these and called GB


@dataclass(frozen=True)
class Part:
    """One model's share, in bytes. `weights_bytes` is 0 for a model that is in the list already (a self-draft)."""

    name: str
    weights_bytes: int
    kv_cache_bytes: int
    working_bytes: int


@dataclass(frozen=True)
class Forecast:
    """`sentence` is "0.6 of 16 GB". `fits`: the whole goes into what is free now (and what `held` gives back)."""

    parts: tuple[Part, ...]
    total_bytes: int
    machine_bytes: int
    available_bytes: int
    fits: bool
    sentence: str
    dtype: str = ""  # the precision forecast for, of the first of them: what "auto" stands for, where that was asked for


def forecast(names: Sequence[str], dtype: str = "auto", tokens: int = 1024, device: str = "auto", held: int = 0,
             backend: str = "torch") -> Forecast:
    """Weights, KV caches for `tokens` positions and working memory of models on this machine, from their headers.

    `held`: bytes that some of them take already, so that a loaded model does not count against itself. RequestError if
    one of them is not here. The working memory is an estimate; the rest is exact but for allocator waste.
    """
    if dtype == "auto" and backend == "mlx":
        dtype = "float16" if metal.possible() and device != "cpu" else "float32"
    parts, seen, settled = [], set(), dtype
    for at, name in enumerate(names):
        facts = config(name)
        used = dtype
        if dtype == "auto":  # without torch an accelerator is not known here; all of them take a half precision
            used = default_dtype("cpu" if device == "auto" and sys.platform != "darwin" else device, facts["parameters"])
        settled, width = settled if at else used, 4 if used == "float32" else 2
        length = min(tokens, facts["context"] or tokens)
        stored = facts["bytes"] if facts["packed"] else facts["parameters"] * width  # packed weights stay packed in memory
        weights = 0 if facts["path"] in seen else stored
        seen.add(facts["path"])
        parts.append(Part(name, weights, cost.kv_cache_bytes(facts, length, width), cost.working_bytes(facts, length, width)))
    total = sum(p.weights_bytes + p.kv_cache_bytes + p.working_bytes for p in parts)
    machine, available = room(device)
    return Forecast(tuple(parts), total, machine, available, total <= available + held,
                    f"{total / _GB:.1f} of {machine / _GB:.0f} GB", settled)


def require(name: str, dtype: str, device: str, tokens: int = 512) -> Forecast:
    """The forecast of one model; RequestError if it does not fit into what is free."""
    f = forecast([name], dtype, tokens, device)
    if not f.fits:
        raise RequestError(f"{name} needs about {f.total_bytes / _GB:.1f} GB of memory in {dtype}, and {f.available_bytes / _GB:.1f} of "
                           f"{f.machine_bytes / _GB:.0f} GB are free; close something, or choose a smaller model.")
    return f


def require_together(names: Sequence[str], dtype: str, device: str, tokens: int, held: int, backend: str) -> Forecast | None:
    """The forecast of all models of a request; RequestError if they do not fit together. `tokens`, `held`, `backend`: see `forecast`.

    None, and no word, where an accelerator may bring memory of its own, which only its library can tell.
    """
    if device != "cpu" and "torch" not in sys.modules and backend == "torch" and Path("/dev/nvidiactl").exists():
        return None
    f = forecast(names, dtype, tokens, device, held, backend)
    if not f.fits:
        needs = "needs" if len(names) == 1 else "together need"
        raise RequestError(f"{' and '.join(names)} {needs} about {f.total_bytes / _GB:.1f} GB of memory for {tokens:,} tokens, and "
                           f"{(f.available_bytes + held) / _GB:.1f} of {f.machine_bytes / _GB:.0f} GB are free; close something, or choose "
                           "smaller models, fewer tokens or half precision.")
    return f


def room(device: str) -> tuple[int, int]:
    """Bytes in all and free on the device. Apple's GPU shares the machine's, and may hold only a part of it; cuda has its
    own (both untried on such hardware)."""
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return total, free
    total, free = memory_total(), memory_available()
    return total, min(free, metal.limit(total)) if metal.possible() and device != "cpu" else free
