"""Names to models: which there are on this machine, what they are, and loading one. No torch until something is loaded."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from engine.errors import RequestError
from engine.models import bundled, home, hub, metal
from engine.models.base import Model
from engine.models.source import Source, config, locate, resolve, shown

__all__ = ["BACKENDS", "Backend", "Entry", "Source", "backends", "config", "listing", "load", "locate", "resolve", "settled", "twin"]

BACKENDS = ("auto", "torch", "mlx")  # auto: MLX where it has an Apple GPU to run on, else torch


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


@dataclass(frozen=True)
class Backend:
    """An engine that can run models. `why` says in one sentence what is missing where `available` is False, else is empty."""

    name: str
    available: bool
    why: str = ""


def backends() -> tuple[Backend, ...]:
    """The engines and whether they can be had here. The first call may take half a second, where MLX has to be tried."""
    missing = without_mlx()
    return Backend("torch", True), Backend("mlx", not missing, missing)


def settled(backend: str) -> str:
    """The engine that a name stands for here: "torch" or "mlx". RequestError for a name that is none."""
    if backend not in BACKENDS:
        raise RequestError(f"There is no backend {backend!r}; this version has {', '.join(BACKENDS)}.")
    if backend != "auto":
        return backend
    return "mlx" if metal.available() and not without_mlx() else "torch"


@functools.cache
def without_mlx() -> str:
    """Why MLX cannot run here, in one sentence; empty where it can."""
    if sys.platform not in ("darwin", "linux") or (sys.platform == "darwin" and not metal.possible()):
        system = "an Intel Mac" if sys.platform == "darwin" else "Windows" if sys.platform == "win32" else sys.platform
        return f"MLX has builds for Apple silicon and for Linux, and this is {system}."
    if util.find_spec("mlx") is None or util.find_spec("mlx_lm") is None:
        return "MLX is not installed; make setup installs it, as pip install -r requirements.txt does."
    try:
        import mlx.core
    except Exception as e:  # a build for another system, or a library it needs is missing
        return f"MLX is installed and does not start ({type(e).__name__}: {_first_line(e)})."
    return ""


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
    backend = settled(backend)
    require_engine(None, backend)
    from engine.models import device as devices
    from engine.models import fit, memory, weights

    source = resolve(name)
    contents = weights.check(source.folder)
    require_engine(name, backend)
    found = devices.resolve_mlx(device, dtype, contents.stored) if backend == "mlx" else devices.resolve(device, dtype, config(name)["parameters"])
    odd = fit.check(name)
    memory.require(name, found.dtype, found.device)
    try:
        if backend == "mlx":
            from engine.models import mlx_model as adapter
        else:
            from engine.models import torch_model as adapter
        return adapter.load(source, device=found.device, dtype=found.dtype, asked_device=device, asked_dtype=dtype,
                            notes=(*found.notes, *([odd] if odd else [])))
    except RequestError:
        raise
    except MemoryError:
        raise RequestError(f"There is not enough memory to load {shown(name)}; close something, or choose a smaller model.") from None
    except Exception as e:  # the libraries raise many kinds for a model they cannot make sense of
        raise RequestError(f"{shown(name)} cannot be loaded ({type(e).__name__}: {_first_line(e)}).") from e


def require_engine(name: str | None, backend: str) -> None:
    """RequestError if the engine cannot be had here or, if a model on this machine is named, cannot read how its weights are packed."""
    backend = settled(backend)
    missing = without_mlx() if backend == "mlx" else ""
    if missing:
        raise RequestError(f"The backend mlx is not available: {missing}")
    facts = config(name) if name is not None and backend == "torch" else {}
    if facts.get("packed"):
        raise RequestError(f"The weights of {shown(name)} are packed by MLX ({facts['weights']}), which torch cannot read; choose the backend "
                           "mlx, or the same model unpacked.")


def twin(model: Model) -> Model:
    """The same weights in the other engine, on the same kind of device and in the same precision; RequestError if it cannot be."""
    facts = model.facts
    other = "torch" if facts.backend == "mlx" else "mlx"
    return load(facts.name, facts.asked_device, facts.dtype, other)


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
