"""Names to models: which there are on this machine, what they are, and loading one. No torch until something is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import RequestError
from engine.models import bundled, home, hub
from engine.models.base import Model
from engine.models.source import Source, config, locate, resolve, shown

__all__ = ["Entry", "Source", "config", "listing", "load", "locate", "resolve"]

BACKENDS = ("torch",)


@dataclass(frozen=True)
class Entry:
    """One row of the list of models. `why` says what is missing where `available` is False, else is empty."""

    name: str
    title: str
    path: str
    available: bool
    why: str
    bytes: int
    family: str  # model type: llama, qwen2, …
    parameters: int
    weights: str
    role: str  # "draft": scores only some of its verifier's ids, so it cannot stand alone; else "model"


def listing() -> list[Entry]:
    """Bundled models, then those in `SPECLENS_HOME/models`, then those in the hub's local cache.

    Never raises; takes milliseconds a model.
    """
    names = [bundled.PREFIX + name for name in bundled.TABLE]
    try:
        own = sorted((home.home() / "models").iterdir())
        names += [str(p) for p in own if not p.name.startswith(".") and (p.is_dir() or p.suffix.lower() == ".gguf")]
    except (OSError, RequestError):
        pass
    try:
        names += [name for name in hub.cached_names() if hub.is_id(name)]
    except ImportError:
        pass
    return [_entry(name) for name in names]


def load(name: str, device: str = "auto", dtype: str = "auto", backend: str = "torch") -> Model:
    """Load a model, fetching or converting it first if that was never done.

    RequestError in one sentence if it cannot be had, does not fit into the free memory, or is of a kind the backend
    does not know. What was asked of device and precision and could not be had is in `facts.notes`.
    """
    if backend not in BACKENDS:
        raise RequestError(f"There is no backend {backend!r}; this version has {', '.join(BACKENDS)}.")
    from engine.models import device as devices
    from engine.models import memory

    source = resolve(name)
    settled = devices.resolve(device, dtype)
    memory.require(name, settled.dtype, settled.device)
    from engine.models import torch_model

    try:
        return torch_model.load(source, device=settled.device, dtype=settled.dtype, asked_device=device, asked_dtype=dtype,
                                notes=settled.notes)
    except RequestError:
        raise
    except MemoryError:
        raise RequestError(f"There is not enough memory to load {shown(name)}; close something, or choose a smaller model.") from None
    except Exception as e:  # transformers and torch raise many kinds for a model they cannot make sense of
        raise RequestError(f"{shown(name)} cannot be loaded ({type(e).__name__}: {_first_line(e)}).") from e


def _entry(name: str) -> Entry:
    try:
        c = config(name)
        return Entry(name, c["title"], c["path"], True, "", c["bytes"], c["family"], c["parameters"], c["weights"],
                     "draft" if c["draft"] else "model")
    except Exception as e:  # a list must never fail for one bad entry
        why = str(e) if isinstance(e, RequestError) else f"It cannot be read ({type(e).__name__})."
        if not name.startswith(bundled.PREFIX):
            return Entry(name, Path(name).name, name if Path(name).exists() else "", False, why, 0, "", 0, "", "model")
        b = bundled.entry(name)
        path, role = (str(bundled.ROOT / b.folder), "draft") if b.folder else ("", "model")
        return Entry(name, b.title, path, False, why, 0, "", 0, "", role)


def _first_line(error: Exception) -> str:
    """The start of a library's message, without anything that could be an access token."""
    line = (str(error).strip().splitlines() or ["no details"])[0]
    return re.sub(r"(hf_|Bearer\s+)\S+", "…", line)[:160].rstrip(".")
