"""The runs that come with the program, one of each kind, made by `python -m bench.record`: what a page shows before there is a run of
one's own. They lie beside the program, not in the store, so no list has them and nobody can delete them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from engine.trace import KINDS, AnyRun, from_json

FOLDER = Path(__file__).resolve().parent.parent / "recorded"
PREFIX = "recorded-"  # of their ids, which no run of the store has


def path(kind: str) -> Path:
    return FOLDER / f"{kind}.json"


def id_of(kind: str) -> str:
    return f"{PREFIX}{kind}"


def is_recorded(run_id: str) -> bool:
    return run_id.startswith(PREFIX)


def recorded(kind: str) -> tuple[AnyRun | None, str | None]:
    """The recorded run of that kind, or why there is none in one sentence."""
    file = path(kind)
    try:
        return _read(file, kind, file.stat().st_mtime_ns), None
    except OSError:
        return None, f"No recorded run is in this copy (recorded/{file.name} is missing); press Run to make one."
    except ValueError as e:
        return None, f"The recorded run cannot be shown. {e}"


def by_id(run_id: str) -> AnyRun | None:
    """The recorded run of that id, or None."""
    kind = run_id.removeprefix(PREFIX)
    return recorded(kind)[0] if is_recorded(run_id) and kind in KINDS else None


@lru_cache(maxsize=8)
def _read(file: Path, kind: str, mtime: int) -> AnyRun:
    run = from_json(file.read_bytes())
    if run.kind != kind:
        raise ValueError(f"recorded/{file.name} holds a run of the kind {run.kind}.")
    return run
