"""A run as files: `ID.json`, and beside it `ID.safetensors` where the run has arrays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from engine.errors import RequestError
from engine.models.home import write_atomic
from engine.trace import AnyRun, arrays, arrays_of, from_json, pieces, with_arrays

MISSING = "The arrays of this run are missing beside its file, so what attention did cannot be shown."


def write(run: AnyRun, path: Path) -> None:
    """Write `run` to `path` (`….json`), its arrays first: a reader that sees the JSON finds them. RequestError if it cannot be."""
    held = arrays_of(run)
    beside = path.with_suffix(arrays.SUFFIX)
    already = [getattr(a, "filename", None) for a in held.values()]
    if held and not (beside.exists() and all(name and Path(name) == beside for name in already)):  # renamed only: they lie there
        try:
            arrays.save(held, beside)
        except OSError as e:
            raise RequestError(f"{beside} cannot be written ({e.strerror or e}).") from None
        except Exception as e:  # safetensors has an error class of its own for a full disk
            raise RequestError(f"{beside} cannot be written ({' '.join(str(e).split())[:120]}).") from None
    write_atomic(path, (piece.encode("utf-8", "surrogatepass") for piece in pieces(run)))  # half a surrogate pair may stand in a prompt


def read(path: Path) -> AnyRun:
    """The run in a file, under the id its name gives. ValueError says in one sentence why it is none."""
    try:
        if not path.is_file():  # a folder or a pipe of that name, or nothing
            raise ValueError("This is not a file.")
        run = from_json(path.read_bytes())
    except OSError as e:
        raise ValueError(f"This file cannot be read ({e.strerror}).") from None
    except RecursionError:
        raise ValueError("This run file is damaged: it is nested too deeply.") from None
    run = dataclasses.replace(run, id=path.stem)
    beside = path.with_suffix(arrays.SUFFIX)
    if beside.exists() and run.kind == "sinks":
        run = with_arrays(run, arrays.mapped(beside))
    return dataclasses.replace(run, notes=(*run.notes, MISSING)) if without_arrays(run) and MISSING not in run.notes else run


def without_arrays(run: AnyRun) -> bool:
    """Whether a prompt of this run was read but the arrays that say what attention did are not here."""
    return run.kind == "sinks" and any(item.sums is not None and item.sums.received is None for item in run.items)
