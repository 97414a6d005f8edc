"""An analysis of where attention drains: one or many prompts read once by one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.trace.parts import SCHEMA, Machine, ModelFacts, Prompt
from engine.trace.plain import ARRAY

NEAR = 63  # how many queries, beginning with the key's own, are kept one by one
NEAR_SCALE = 32_768.0  # `near` times this is stored, so that float16 keeps small values: attention never exceeds 1


@dataclass(frozen=True, eq=False)
class Sums:
    """Per-key attention of one prompt: L layers, H heads, S keys. All that a view needs, without the model.

    `received`: float32 (L, H, S), attention that key k got, summed over all queries that see it.
    `near`: float16 (L, H, S, n), attention that key k got from query k + d, d from 0 to n − 1 = min(NEAR, S) − 1, times
    NEAR_SCALE; 0 where there is no such query or the layer's window ends before. None in an export that had to be kept small.
    `near_mean`: float32 (S, n), the unscaled mean of the same over all layers and heads.
    `windows`: for each layer how many keys a query sees (itself included), None: all before it.
    `learned`: for each layer and head the mean attention a learned sink (no token) took; None: the model has none.
    `row_error`: largest |sum of a query's attention − 1|, learned sinks counted.
    """

    received: Any = field(default=None, metadata=ARRAY)
    near: Any = field(default=None, metadata=ARRAY)
    near_mean: Any = field(default=None, metadata=ARRAY)
    windows: tuple[int | None, ...] = ()
    learned: tuple[tuple[float, ...], ...] | None = None
    row_error: float = 0.0


@dataclass(frozen=True)
class SinkItem:
    """One prompt of the analysis. Where it was refused, `refused` says why in one sentence and there are no sums.

    `structural`: for each position whether the chat template (or the tokenizer, its opening token) put it there.
    `first`: what the first token is: "begin-of-text token" or "first token".
    `answer_start`: where in `prompt.ids` a model's answer begins, which was read after its prompt as it stands; None: all is
    prompt. `source`: then, the run and the side of it that the answer comes from.
    """

    prompt: Prompt
    label: str = ""
    category: str = ""
    structural: tuple[bool, ...] = ()
    first: str = "first token"
    seconds: float | None = None  # reading the prompt with the sums taken
    peak_extra_bytes: int | None = None  # resident memory above that before the reading, at its highest; None: not measured
    sums: Sums | None = None
    refused: str | None = None
    answer_start: int | None = None
    source: str = ""


@dataclass(frozen=True)
class SinksRun:
    """`models` has one entry, "model". `tokens` gives the exact bytes, as hex, of every id in the prompts."""

    id: str
    created: str  # ISO 8601, UTC, seconds
    items: tuple[SinkItem, ...]
    models: dict[str, ModelFacts]
    machine: Machine
    tokens: dict[int, str] = field(default_factory=dict)
    special: tuple[int, ...] = ()
    kind: str = "sinks"
    status: str = "done"  # done, stopped, failed
    name: str = ""
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA
