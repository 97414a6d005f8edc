"""Which device and precision a model really runs in, settled once, before it loads.

"auto" takes the best device there is, and there bfloat16 on cuda, float16 on mps, and on a cpu float32 for every model whose
weights leave room enough in it: float32 is exact where half precision can part at near ties. What was asked for and cannot be had falls back, and a note says so: speeds can only be
compared where the real device is known. The mps and cuda lines have not been tried on such hardware. MLX has two devices of
its own: "metal", which is what mps means to it, and "cpu".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import RequestError
from engine.machine import memory_total
from engine.models import metal

DEVICES = ("auto", "cpu", "mps", "cuda")
DTYPES = ("auto", "float32", "float16", "bfloat16")
FLOAT32_SHARE = 0.5
_NEXT = {  # what stands in for a precision that a device cannot do
    "cpu": {"bfloat16": "float32", "float16": "float32"},
    "mps": {"bfloat16": "float16", "float16": "float32"},
    "cuda": {"bfloat16": "float16", "float16": "float32"},
}


@dataclass(frozen=True)
class Resolved:
    """Asked → used. `notes` has a sentence for everything that was asked for and not had."""

    device: str
    dtype: str
    asked_device: str
    asked_dtype: str
    notes: tuple[str, ...] = ()


def resolve(device: str = "auto", dtype: str = "auto", parameters: int = 0) -> Resolved:
    """Settle both for a model of so many parameters. RequestError for a name that is no device or precision; never for one that is merely missing here."""
    _require_names(device, dtype)
    import torch

    notes = []
    used = device
    if device == "auto":
        used = next((name for name in ("cuda", "mps") if _available(torch, name)), "cpu")
    elif not _available(torch, device):
        used = "cpu"
        notes.append(f"Device {device} is not available on this machine; cpu was used.")

    wanted = default_dtype(used, parameters) if dtype == "auto" else dtype
    chosen = _settle_dtype(torch, used, wanted)
    if chosen is None:  # not even float32 works: the device is there in name only
        notes.append(f"Device {used} cannot multiply two small matrices; cpu was used.")
        used, wanted = "cpu", default_dtype("cpu", parameters) if dtype == "auto" else dtype
        chosen = _settle_dtype(torch, used, wanted) or "float32"
    if chosen != wanted:
        notes.append(f"Precision {wanted} is not available on {used}; {chosen} was used.")
    return Resolved(used, chosen, device, dtype, tuple(notes))


def resolve_mlx(device: str = "auto", dtype: str = "auto", stored: str = "bfloat16") -> Resolved:
    """Settle both for MLX, without torch. "auto" is, on Metal, the half precision the weights are `stored` in (float16 for
    others), as mlx-lm has it; on a CPU float32, which MLX computes fastest there."""
    _require_names(device, dtype)
    used = "metal" if device in ("auto", "mps") and metal.available() else "cpu"
    notes = (f"Device {device} is not available to MLX on this machine; cpu was used.",) if used == "cpu" and device not in ("auto", "cpu") else ()
    half = stored if stored in ("bfloat16", "float16") else "float16"
    return Resolved(used, dtype if dtype != "auto" else half if used == "metal" else "float32", device, dtype, notes)


def _require_names(device: str, dtype: str) -> None:
    if device not in DEVICES:
        raise RequestError(f"There is no device {device!r}; choose one of {', '.join(DEVICES)}.")
    if dtype not in DTYPES:
        raise RequestError(f"There is no precision {dtype!r}; choose one of {', '.join(DTYPES)}.")


def default_dtype(device: str, parameters: int = 0) -> str:
    """The precision "auto" stands for on a device. On a CPU that is float32 unless the weights would take more than
    FLOAT32_SHARE of the machine's memory in it, free or not: the same model means the same precision every time."""
    if device == "cpu":
        return "float32" if 4 * parameters <= FLOAT32_SHARE * memory_total() else "bfloat16"
    return "float16" if device == "mps" else "bfloat16"


def synchronise(device: str) -> None:
    """Wait until the device has done all it was given, so that a clock may be read. mps never ran in our tests."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def _settle_dtype(torch: Any, device: str, dtype: str) -> str | None:
    while dtype is not None and not _works(torch, device, dtype):
        dtype = _NEXT[device].get(dtype)
    return dtype


def _available(torch: Any, device: str) -> bool:
    if device == "cuda":
        return torch.cuda.is_available()
    if device == "mps":
        return torch.backends.mps.is_available()
    return True


def _works(torch: Any, device: str, dtype: str) -> bool:
    """Whether the device can hold and multiply a tiny matrix of this precision."""
    try:
        x = torch.ones(4, 4, device=device).to(getattr(torch, dtype))
        return float((x @ x).sum()) == 64.0
    except (RuntimeError, TypeError, NotImplementedError, AssertionError):
        return False
