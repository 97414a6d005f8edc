"""What a person asks for, and what they hear while it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable

from engine.trace import AnyRun, Prompt, Round, Settings
from engine.trace.uag import STRATEGIES


@dataclass(frozen=True)
class CompareRequest:
    """One comparison as asked for on a page or the command line. Models are names for `engine.models.registry`."""

    prompt: str
    verifier: str
    draft: str | None = None  # None with settings.drafter == "lookup"
    system: str | None = None
    raw: bool = False
    settings: Settings = Settings()
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Written:
    """An answer that a model has written, to be read after its prompt as the ids stand; nothing is tokenised anew.

    `source` says where it comes from, in words; `model` is the title of the model that wrote it. `tokens`: (id, bytes as hex) of
    the ids in prompt and answer, by which a model with another tokenizer is told.
    """

    source: str
    model: str
    prompt: Prompt
    ids: tuple[int, ...]
    tokens: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Asked:
    """One prompt of a set, with the name and the category it goes by in tables. `written`: an answer to read after it (Sinks)."""

    text: str
    label: str = ""
    category: str = ""
    written: Written | None = None


REFUSED_SHOWN = 1_000  # characters kept of a refused text: a run need not hold a million that it did nothing with


@dataclass(frozen=True)
class SinksRequest:
    """Where attention drains in each of `prompts`, read by `model`."""

    prompts: tuple[Asked, ...]
    model: str
    system: str | None = None
    raw: bool = False
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class EntropyRequest:
    """How sure `model` is of each token of its answers to `prompts`. Of the settings, sampling and max_tokens apply."""

    prompts: tuple[Asked, ...]
    model: str
    system: str | None = None
    raw: bool = False
    settings: Settings = Settings()
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class UagRequest:
    """Each strategy at each k on each prompt, beside verifier-only. `prefix` is strategy context's p."""

    prompts: tuple[Asked, ...]
    verifier: str
    draft: str
    strategies: tuple[str, ...] = STRATEGIES
    ks: tuple[int, ...] = (2, 4, 6)
    prefix: int = 5
    system: str | None = None
    raw: bool = False
    settings: Settings = Settings()
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"


def ordered(strategies: Iterable[str], ks: Iterable[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Both in the order in which tables show them, whatever order they were asked for in; an unknown strategy stays, at the end."""
    place = {name: n for n, name in enumerate(STRATEGIES)}
    return tuple(sorted(strategies, key=lambda s: place.get(s, len(place)))), tuple(sorted(ks))


@dataclass(frozen=True)
class Stage:
    """What is being done now, in words: "Loading SmolLM2-135M", "Warm-up", "Verifier only, repeat 2 of 3"."""

    text: str
    side: str | None = None  # "plain" or "speculative" while one of them decodes
    repeat: int = 1
    repeats: int = 1
    done: float | None = None  # share of the whole work that is over, 0–1, where the work itself can tell


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

    run: AnyRun


Event = Stage | Step | Done
