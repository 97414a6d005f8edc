"""What a person asks for, and what they hear while it is done."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.trace import Round, Run, Settings


@dataclass(frozen=True)
class CompareRequest:
    """One comparison as asked for on a page or the command line. Models are names for `engine.models.registry`."""

    prompt: str
    verifier: str
    draft: str | None = None  # None with settings.drafter == "lookup"
    system: str | None = None
    raw: bool = False
    settings: Settings = Settings()
    backend: str = "torch"
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Stage:
    """What is being done now, in words: "Loading SmolLM2-135M", "Warm-up", "Verifier only, repeat 2 of 3"."""

    text: str
    side: str | None = None  # "plain" or "speculative" while one of them decodes
    repeat: int = 1
    repeats: int = 1


@dataclass(frozen=True)
class Step:
    """One finished round. `tokens` gives the bytes, as hex, of every id in the round."""

    side: str
    repeat: int
    round: Round
    tokens: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """The finished (or stopped) run."""

    run: Run


Event = Stage | Step | Done
