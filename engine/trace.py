"""What happened in a run: plain frozen data, JSON both ways.

Every number, table, chart, export and saved file is a pure function of a `Run`. Nothing here knows a model.
Times are seconds, entropies bits, probabilities 0–1. `None` stands for "not measured" or "undefined"; a stored file
is strict JSON without NaN or infinity.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from dataclasses import dataclass, field

SCHEMA = 1

PLAIN, ACCEPTED, REJECTED, DISCARDED, CORRECTION, BONUS = (
    "plain", "accepted", "rejected", "discarded", "correction", "bonus")


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits; the very same setting for verifier and draft.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch a filter off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Settings:
    """What a compare run was asked to do. `drafter` is "model" or "lookup" (prompt lookup, no draft model).

    `entropy_stop`: stop drafting once the draft's normalised entropy (0–1) passes this; None is off.
    `lookup_ngram`: longest n-gram that prompt lookup matches.
    """

    gamma: int = 4
    drafter: str = "model"
    entropy_stop: float | None = None
    lookup_ngram: int = 3
    max_tokens: int = 128
    repeats: int = 1
    sampling: Sampling = Sampling()


@dataclass(frozen=True)
class Prompt:
    """`text` as typed; `ids` as the verifier read it (chat template applied unless `raw`)."""

    text: str
    ids: tuple[int, ...]
    system: str | None = None
    raw: bool = False
    template: bool = True  # False: raw text, because it was asked for or the model has no template


@dataclass(frozen=True)
class ModelFacts:
    """What a loaded model is. `asked_*` is what the request said, the plain name what was really used."""

    name: str  # as asked for: bundled:NAME, hub id, folder, .gguf file
    title: str  # short, for a legend
    path: str  # where the weights lie
    revision: str | None  # hub commit or the first 12 hex digits of the weights' sha256
    architecture: str
    layers: int
    width: int
    parameters: int
    flops_per_token: int  # 2 × weights a token passes through (a tied head counts once, an untied input embedding not)
    vocabulary: int  # usable token ids
    context: int | None  # positions
    tied_head: bool
    weights: str  # how the weights are stored, e.g. "Q4_1 → bfloat16"
    backend: str
    backend_version: str
    device: str
    asked_device: str
    dtype: str
    asked_dtype: str
    bytes: int  # memory of the loaded weights
    load_seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    system: str  # "Linux 6.1", "macOS 15.2"
    chip: str
    cores: int
    memory_bytes: int
    python: str
    packages: dict[str, str]  # name → version


@dataclass(frozen=True)
class Round:
    """One verifier pass. Without proposals it is an ordinary decoding step.

    The columns `q` … `draft_normalised` run over `proposed`. Proposal i was accepted if i < accepted, rejected if
    i == accepted and i < len(proposed), discarded after that. `judged` ≤ accepted + 1.
    """

    proposed: tuple[int, ...] = ()
    accepted: int = 0
    emitted: tuple[int, ...] = ()  # accepted proposals, then the closing token unless an end token came first
    closing: str | None = PLAIN  # plain, correction or bonus; None when the round ended inside the accepted tokens
    q: tuple[float | None, ...] = ()  # draft's probability of each proposal; None for a point mass (prompt lookup)
    p: tuple[float | None, ...] = ()  # verifier's probability of each proposal, where it was scored
    draw: tuple[float | None, ...] = ()  # uniform draw that judged it; None if not judged, or greedy
    draft_entropy: tuple[float | None, ...] = ()  # bits, raw softmax of the draft
    draft_normalised: tuple[float | None, ...] = ()  # the same / log2(usable vocabulary of the draft)
    draft_seconds: float = 0.0  # inside the draft's forwards
    verify_seconds: float = 0.0  # inside the verifier's forward
    end: float = 0.0  # seconds from the start of decode to the end of this round
    note: str | None = None  # e.g. why the draft proposed nothing


@dataclass(frozen=True)
class Timing:
    """One repeat of one mode. Load and warm-up are outside; prefill and decode are separate windows."""

    prefill_seconds: float
    decode_seconds: float
    verify_seconds: float  # inside verifier forwards, decode only
    draft_seconds: float  # inside draft forwards, decode only
    tokens: int  # emitted
    passes: int  # verifier passes in decode


@dataclass(frozen=True)
class Generation:
    """One mode's answer. `rounds` are those of the first repeat; `timings` has one entry a repeat.

    `entropy`, `top` and `probability` run over `ids`: the verifier's model entropy in bits, its five best
    (id, probability) pairs, and the probability it gave the emitted token — all of the raw softmax.
    """

    mode: str  # "plain" or "speculative"
    ids: tuple[int, ...] = ()
    text: str = ""
    finish: str = "length"  # eos, length, stopped, context
    entropy: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    probability: tuple[float, ...] = ()
    rounds: tuple[Round, ...] = ()
    timings: tuple[Timing, ...] = ()
    notes: tuple[str, ...] = ()


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


def to_json(run: Run, **extra) -> str:
    """The run as strict JSON; `extra` top-level keys (metrics, say) are for readers and ignored by `from_json`."""
    return json.dumps({**plain_data(run), **{k: plain_data(v) for k, v in extra.items()}}, ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> Run:
    """Read a run. Unknown keys are ignored, missing ones take their default; raises ValueError in one sentence."""
    try:
        data = json.loads(text)
    except (ValueError, UnicodeDecodeError) as e:
        raise ValueError(f"This is not JSON: {e}.") from None
    if not isinstance(data, dict) or data.get("kind") != "compare" or "prompt" not in data:
        raise ValueError("This JSON is not a SpecLens run: it has no kind and prompt.")
    if not isinstance(data.get("schema"), int) or data["schema"] > SCHEMA:
        raise ValueError(f"This run was written by a newer SpecLens (schema {data.get('schema')}, known up to {SCHEMA}).")
    try:
        return _build(Run, data)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as e:
        raise ValueError(f"This run file is damaged: {e}.") from None


def plain_data(value):
    """Dataclasses, tuples and numbers → dicts, lists and JSON numbers. NaN and infinity become None."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): plain_data(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _build(kind, value):
    """Rebuild a value of annotated type `kind` from plain data."""
    return _builder(kind)(value)


@functools.cache
def _builder(kind) -> typing.Callable:
    """The function that rebuilds a value of one annotated type. Types are looked into once, not at each of many values."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        parts = [(f.name, _builder(hints[f.name])) for f in dataclasses.fields(kind)]
        return lambda value: kind(**{name: build(value[name]) for name, build in parts if name in value})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = _builder(next(a for a in arguments if a is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple and arguments[-1] is Ellipsis:
        if arguments[0] in (int, float, str):
            return tuple
        each = _builder(arguments[0])
        return lambda value: tuple([each(v) for v in value])
    if origin is tuple:
        if all(a in (int, float, str) for a in arguments):
            return tuple
        items = [_builder(a) for a in arguments]
        return lambda value: tuple(build(v) for build, v in zip(items, value))
    if origin is dict:
        key, item = (_builder(a) for a in arguments)
        return lambda value: {key(k): item(v) for k, v in value.items()}
    if kind in (int, float, str):
        return lambda value: value if value is None else kind(value)
    return lambda value: value
