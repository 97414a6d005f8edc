"""A comparison: one prompt answered verifier-only and speculatively."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.trace.parts import SCHEMA, Generation, Machine, ModelFacts, Prompt, Sampling


@dataclass(frozen=True)
class Settings:
    """What a compare run was asked to do. `drafter` is "model" or "lookup" (prompt lookup, no draft model).

    `entropy_stop`: stop drafting once the draft's normalised entropy (0–1) passes this; None is off.
    `lookup_ngram`, `lookup_shortest`: longest and shortest n-gram that prompt lookup matches.
    `stop`: strings at whose first occurrence an answer ends, in every mode. `gamma` 0 drafts nothing.
    """

    gamma: int = 4
    drafter: str = "model"
    entropy_stop: float | None = None
    lookup_ngram: int = 3
    lookup_shortest: int = 1
    stop: tuple[str, ...] = ()
    max_tokens: int = 128
    repeats: int = 1
    sampling: Sampling = Sampling()


@dataclass(frozen=True)
class Run:
    """One comparison. `tokens` gives the exact bytes, as hex, of every id that occurs anywhere in the run;
    `special` lists those of them that are special (end of text, chat marks)."""

    id: str
    created: str  # ISO 8601, UTC, seconds
    prompt: Prompt
    settings: Settings
    models: dict[str, ModelFacts]  # "verifier" and, unless the drafter needs none, "draft"
    machine: Machine
    plain: Generation | None
    speculative: Generation | None
    tokens: dict[int, str] = field(default_factory=dict)
    special: tuple[int, ...] = ()
    kind: str = "compare"
    status: str = "done"  # done, stopped, failed
    name: str = ""  # given by a person
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA
