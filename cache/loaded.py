"""The models that are loaded: each only once, and no more of them than the machine can hold."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator

import psutil

from engine.errors import RequestError
from engine.models.registry import settled

if TYPE_CHECKING:  # the loader brings torch along, which no first screen waits for
    from engine.models.base import Model

log = logging.getLogger(__name__)

LIMIT = 4
FORECAST_TOKENS = 512  # positions whose KV cache must fit as well, as the loader itself asks for
Key = tuple[str, str, str, str]  # name, backend, device, dtype as asked for
WEIGHTS = {".safetensors", ".gguf", ".json", ".model", ".jinja"}


@dataclass
class _Entry:
    model: Any
    source: tuple | None
    used: float
    users: int = 0


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model as a list shows it. `idle` is seconds since it was last asked for."""

    name: str
    backend: str
    device: str
    dtype: str
    title: str
    bytes: int
    idle: float
    busy: bool


class Loaded:
    """Loaded models by (name, backend, device, dtype), and by what lies at the name: changed weights load anew.

    Over `limit` models, or `budget` bytes of weights (half the machine's memory), the least recently used are closed;
    so are idle ones where free memory is short of what a load needs.
    """

    def __init__(self, load: Callable[..., Model] | None = None, limit: int = LIMIT, budget: int | None = None,
                 source: Callable[[str], tuple | None] | None = None,
                 shortfall: Callable[[str, str, str, str], int] | None = None):
        self._load, self._limit = load or _registry, limit
        self._source, self._shortfall = source or fingerprint, shortfall or memory_shortfall
        self._budget = budget if budget is not None else psutil.virtual_memory().total // 2
        self._loading = threading.RLock()  # held through a load: whoever asks for the same meanwhile waits for it
        self._table = threading.RLock()  # held for moments: a page may list what is loaded during a load
        self._entries: dict[Key, _Entry] = {}

    def get(self, name: str, backend: str = "torch", device: str = "auto", dtype: str = "auto") -> Model:
        """The model, loaded if it is not; a failed load leaves the others as they were.

        A later `get` may close it. Whoever works with several at once, or lets others load meanwhile, takes `using`.
        """
        return self._get((name, settled(backend), device, dtype)).model

    @contextmanager
    def using(self) -> Iterator[Callable[..., Model]]:
        """A `get` whose models stay until the end of the `with` block, even over the limits.

            with loaded.using() as get:
                verifier, draft = get("bundled:smollm2-135m"), get("bundled:smollm2-draft")
        """
        held: list[_Entry] = []

        def get(name: str, backend: str = "torch", device: str = "auto", dtype: str = "auto") -> Model:
            entry = self._get((name, settled(backend), device, dtype), held)
            return entry.model

        try:
            yield get
        finally:
            with self._table:
                for entry in held:
                    entry.users -= 1
            held.clear()
            self._trim(keep=None)

    def peek(self) -> list[LoadedModel]:
        """What is loaded, most recently used first. Never waits for a load."""
        with self._table:
            now = time.monotonic()
            rows = [LoadedModel(*key, entry.model.facts.title, entry.model.facts.bytes, now - entry.used, entry.users > 0)
                    for key, entry in self._entries.items()]
        return sorted(rows, key=lambda row: row.idle)

    def free(self) -> None:
        """Close every model that is not in use."""
        self._trim(keep=None, room=float("inf"))

    def _get(self, key: Key, held: list[_Entry] | None = None) -> _Entry:
        with self._loading:
            stamp = self._source(key[0])
            with self._table:
                entry = self._entries.get(key)
                stale = entry is not None and entry.source != stamp
                if stale:
                    del self._entries[key]
            if stale and entry.users == 0:  # a user of the replaced weights keeps them to the end
                _close(entry)
            if entry is None or stale:
                entry = _Entry(self._make(key), stamp, 0.0)
                # A load may fetch or convert: then the model is known by what lies there afterwards.
                after = self._source(key[0])
                if stamp is None or after is None or stamp[0] != after[0]:
                    entry.source = after
            with self._table:
                self._entries[key] = entry
                entry.used = time.monotonic()
                if held is not None:
                    entry.users += 1
                    held.append(entry)
            self._trim(keep=entry)
            return entry

    def _make(self, key: Key) -> Model:
        name, backend, device, dtype = key
        missing = self._shortfall(name, device, dtype, backend)
        with self._table:
            idle = sum(entry.model.facts.bytes for entry in self._entries.values() if entry.users == 0)
        if 0 < missing <= idle:  # else closing them would not help, and the loader says what is missing
            self._trim(keep=None, room=missing)
        return self._load(name, backend=backend, device=device, dtype=dtype)

    def _trim(self, keep: _Entry | None, room: float = 0) -> None:
        """Close idle models, the least recently used first, until the limits hold and `room` bytes were given back."""
        closing = []
        with self._table:
            while room > 0 or len(self._entries) > self._limit or self._bytes() > self._budget:
                idle = [key for key, entry in self._entries.items() if entry.users == 0 and entry is not keep]
                if not idle:
                    break
                closing.append(self._entries.pop(min(idle, key=lambda key: self._entries[key].used)))
                room -= closing[-1].model.facts.bytes
        for entry in closing:
            _close(entry)

    def _bytes(self) -> int:
        return sum(entry.model.facts.bytes for entry in self._entries.values())


def fingerprint(name: str) -> tuple[str, int, int] | None:
    """What lies at a model's name now: the path of its weights, their newest change (ns) and their size in bytes.

    None where nothing lies there yet. Of a hub model the path holds the downloaded commit.
    """
    from engine.models.source import locate
    try:
        path = locate(name)
        files = [path] if path.is_file() else [f for f in path.iterdir() if f.suffix in WEIGHTS]
        stats = [f.stat() for f in files]
    except (RequestError, OSError):  # what is wrong with it, the loader says
        return None
    return str(path), max((s.st_mtime_ns for s in stats), default=0), sum(s.st_size for s in stats)


def memory_shortfall(name: str, device: str, dtype: str, backend: str) -> int:
    """Bytes by which the free memory is too small for a model in one of the engines; 0 where it fits or cannot be foreseen."""
    from engine.models.memory import forecast
    try:
        f = forecast([name], dtype, FORECAST_TOKENS, device, backend=settled(backend))
    except (RequestError, OSError):
        return 0
    return max(0, f.total_bytes - f.available_bytes)


def _registry(name: str, **how: str) -> Model:
    from engine.models.registry import load
    return load(name, **how)


def _close(entry: _Entry) -> None:
    """Close a model and give its memory back to the device, where the device keeps some."""
    model, entry.model = entry.model, None
    device = model.facts.device
    try:
        model.close()
    except Exception as e:  # the memory is given back when the object goes
        log.warning("A model could not be closed: %s", repr(e))  # as text: the error's traceback holds the model
    del model
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif torch is not None and device.startswith("mps"):
        torch.mps.empty_cache()
