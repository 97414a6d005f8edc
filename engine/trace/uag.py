"""Translation strategies compared: a draft with another tokenizer, one verifier, the same prompts and seed for all."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.trace.compare import Settings
from engine.trace.parts import SCHEMA, Generation, Machine, ModelFacts, Prompt

STRATEGIES = ("none", "naive", "context", "tli")
BOUNDARY, DIACRITIC, TIE, DISAGREEMENT = "boundary", "diacritic boundary", "near tie", "disagreement"
CAUSES = (BOUNDARY, DIACRITIC, TIE, DISAGREEMENT)


@dataclass(frozen=True)
class UagResult:
    """One strategy at one k (draft tokens asked for per round). Its rounds say what crossed and why it was refused."""

    strategy: str
    k: int
    answer: Generation


@dataclass(frozen=True)
class UagItem:
    """One prompt: the verifier's own answer and each strategy's. `refused`: why it was not run, in one sentence."""

    prompt: Prompt
    label: str = ""
    category: str = ""
    plain: Generation | None = None
    results: tuple[UagResult, ...] = ()
    refused: str | None = None


@dataclass(frozen=True)
class UagRun:
    """`models`: "verifier" and "draft". `prefix`: committed tokens that strategy `context` encodes again before the draft's text.

    `tokens` are the verifier's (id → bytes as hex), `draft_tokens` the draft's. Of the settings, sampling, max_tokens and
    repeats apply; gamma is each result's k.
    """

    id: str
    created: str  # ISO 8601, UTC, seconds
    items: tuple[UagItem, ...]
    strategies: tuple[str, ...]
    ks: tuple[int, ...]
    prefix: int
    settings: Settings
    models: dict[str, ModelFacts]
    machine: Machine
    tokens: dict[int, str] = field(default_factory=dict)
    draft_tokens: dict[int, str] = field(default_factory=dict)
    special: tuple[int, ...] = ()
    kind: str = "uag"
    status: str = "done"  # done, stopped, failed
    name: str = ""
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA
