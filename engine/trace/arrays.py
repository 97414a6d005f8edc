"""The arrays of a run: in a file of their own beside it (safetensors), or as text inside it.

A stored file is mapped, not read: a view touches only the layers and heads it shows.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any, Mapping

from engine import interrupt

SUFFIX = ".safetensors"
TYPES = {"F32": "<f4", "F16": "<f2"}
HEADER_LIMIT = 10_000_000  # bytes


def save(arrays: Mapping[str, Any], path: Path) -> None:
    """Write the arrays to `path`, whole or not at all. OSError if that cannot be done."""
    from safetensors.numpy import save_file

    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with interrupt.unfinished(part):
            save_file({name: _contiguous(array) for name, array in arrays.items()}, str(part))
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def mapped(path: Path) -> dict[str, Any]:
    """The arrays in a file, mapped into memory read-only. ValueError in one sentence if it is not such a file."""
    import numpy as np

    try:
        size = path.stat().st_size
        with open(path, "rb") as f:
            length = int.from_bytes(f.read(8), "little")
            if not 0 < length <= min(HEADER_LIMIT, size - 8):
                raise ValueError
            header = json.loads(f.read(length))
        found = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            kind, shape = np.dtype(TYPES[entry["dtype"]]), tuple(entry["shape"])
            if end - start != kind.itemsize * int(np.prod(shape, dtype=np.int64)) or 8 + length + end > size:
                raise ValueError
            found[name] = np.memmap(path, kind, "r", 8 + length + start, shape) if end > start else np.zeros(shape, kind)
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else "it is damaged"
        raise ValueError(f"The arrays in {path.name} cannot be read ({why}).") from None


def to_text(arrays: Mapping[str, Any]) -> dict[str, dict]:
    """JSON data of the arrays: little-endian bytes, compressed, in base64."""
    made = {}
    for name, array in arrays.items():
        kind = {"f4": "F32", "f2": "F16"}[array.dtype.str[1:]]
        packed = zlib.compress(_contiguous(array).astype(TYPES[kind], copy=False).tobytes(), 1)
        made[name] = {"dtype": kind, "shape": list(array.shape), "data": base64.b64encode(packed).decode()}
    return made


def from_text(data: Mapping[str, Mapping]) -> dict[str, Any]:
    """What `to_text` wrote. ValueError if it is damaged."""
    import numpy as np

    found = {}
    for name, entry in data.items():
        kind, shape = np.dtype(TYPES[entry["dtype"]]), [int(n) for n in entry["shape"]]
        size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        inflate = zlib.decompressobj()
        try:
            raw = inflate.decompress(base64.b64decode(entry["data"], validate=True), size + 1)
        except zlib.error:
            raw = b""
        if len(raw) != size or min(shape, default=0) < 0:
            raise ValueError(f"the array {name[:80]} does not have the size it names")
        found[name] = np.frombuffer(raw, kind).reshape(shape)
    return found


def _contiguous(array: Any) -> Any:
    import numpy as np
    return np.ascontiguousarray(array)
