"""How sure a model was, token by token: one or many prompts answered verifier-only by one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.trace.compare import Settings
from engine.trace.parts import SCHEMA, Generation, Machine, ModelFacts, Prompt


@dataclass(frozen=True)
class EntropyItem:
    """One prompt and its answer; where it was refused, `refused` says why in one sentence."""

    prompt: Prompt
    label: str = ""
    category: str = ""
    answer: Generation | None = None
    refused: str | None = None


@dataclass(frozen=True)
class EntropyRun:
    """`models` has one entry, "model". Of the settings, sampling and max_tokens apply."""

    id: str
    created: str  # ISO 8601, UTC, seconds
    items: tuple[EntropyItem, ...]
    settings: Settings
    models: dict[str, ModelFacts]
    machine: Machine
    tokens: dict[int, str] = field(default_factory=dict)
    special: tuple[int, ...] = ()
    kind: str = "entropy"
    status: str = "done"  # done, stopped, failed
    name: str = ""
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA
