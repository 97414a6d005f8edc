"""What happened: plain frozen data, JSON both ways.

Every number, table, chart, export and saved file is a pure function of a run. Nothing here knows a model. There is one
class a kind of run; all share id, created, kind, status, name, notes, models, machine and schema. A stored file is strict
JSON without NaN or infinity; the arrays of a run, if it has any, lie beside it (`engine.trace.arrays`).
"""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping

from engine.trace.arrays import from_text, to_text
from engine.trace.compare import Run, Settings
from engine.trace.entropy import EntropyItem, EntropyRun
from engine.trace.parts import (ACCEPTED, BONUS, CORRECTION, DISCARDED, ENTROPY_CUT, FAILED, FINISHES, PLAIN, REJECTED, ROOM_CUT,
                                SCHEMA, STOP_STRING, Generation, Machine, ModelFacts, Prompt, Round, Sampling, Timing)
from engine.trace.plain import WordError, arrays_of, build, one_of, pieces, plain_data, with_arrays
from engine.trace.sinks import SinkItem, SinksRun, Sums
from engine.trace.uag import UagItem, UagResult, UagRun

__all__ = ["ACCEPTED", "BONUS", "CORRECTION", "DISCARDED", "ENTROPY_CUT", "FAILED", "FINISHES", "KINDS", "PLAIN", "REJECTED",
           "ROOM_CUT", "SCHEMA", "STOP_STRING", "AnyRun", "EntropyItem",
           "EntropyRun", "Generation", "Machine", "ModelFacts", "Prompt", "Round", "Run", "Sampling", "Settings", "SinkItem",
           "SinksRun", "Sums", "Timing", "UagItem", "UagResult", "UagRun", "WordError", "arrays_of", "assembled", "build", "from_json", "one_of", "pieces", "plain_data", "to_json",
           "with_arrays"]

AnyRun = Run | SinksRun | EntropyRun | UagRun
KINDS: dict[str, type] = {"compare": Run, "sinks": SinksRun, "entropy": EntropyRun, "uag": UagRun}


def to_json(run: AnyRun, arrays: bool = False, **extra) -> str:
    """The run as strict JSON; `extra` top-level keys (metrics, say) are for readers and ignored by `from_json`.

    `arrays` True puts its arrays into the text as well, for a file that must stand alone.
    """
    data = {**plain_data(run), **{k: plain_data(v) for k, v in extra.items()}}
    held = arrays_of(run) if arrays else {}
    if held:
        data["arrays"] = to_text(held)
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> AnyRun:
    """Read a run. Unknown keys are ignored, missing ones take their default; raises ValueError in one sentence."""
    try:
        data = json.loads(text)
    except (ValueError, UnicodeDecodeError) as e:
        raise ValueError(f"This is not JSON: {e}.") from None
    kind: Any = KINDS.get(data.get("kind")) if isinstance(data, dict) and isinstance(data.get("kind"), str) else None
    return assembled(kind, data if kind else {}, data.get("arrays") if kind else None, lambda: build(kind, data))


def assembled(kind: Any, fields: Mapping[str, Any], held: Any = None, make: Callable[[], AnyRun] | None = None) -> AnyRun:
    """The run of class `kind` (None: no run) that has these `fields`, with the arrays that its text held. `make` builds it from
    plain data; without it the fields are built already. ValueError in one sentence."""
    if kind is None or ("prompt" if kind is Run else "items") not in fields:
        raise ValueError("This JSON is not a SpecLens run: it has no kind and prompt.")
    schema = fields.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ValueError(f"This run was written by a newer SpecLens (schema {schema}, known up to {SCHEMA}).")
    try:
        run = make() if make else kind(**fields)
        return with_arrays(run, from_text(held)) if held else run
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as e:
        raise ValueError(f"This run file is damaged: {e}.") from None
