"""Whether a draft fits a verifier: the vocabularies, what the pair weighs, and what it would have to reach to pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping

from engine.analysis.ceilings import break_even
from engine.analysis.sentence import HALF
from engine.errors import RequestError
from engine.models import fit
from engine.models.base import Model
from engine.models.memory import Forecast, forecast
from engine.models.registry import require_engine
from engine.models.source import config, ids_by_token, spelled
from engine.spelling import PADDING

HALF_NOTE = ("In {} the two greedy answers may part at near ties, since one token and a block of them round differently: an extra pass decides those "
             "within the rounding measured, which are most, not surely all. float32 leaves far less room.")
CROSS = "Pairs whose tokenizers differ run on the Polish page (`python -m engine uag`)."
LONGEST = 2**40  # rows: more than any model has
_SHOWN = 3  # differing tokens named in a reason


@dataclass(frozen=True)
class Pair:
    """`size_ratio`: the verifier's parameters / the draft's. `flops_ratio`: c, one draft token / one verifier token by FLOPs.

    `break_even`: the acceptance rate from which the pair pays by the textbook (v = 1, so it is c); None above 1.
    """

    same_vocabulary: bool
    reason: str  # in one or two sentences, also when all is well
    size_ratio: float
    flops_ratio: float
    forecast: Forecast
    break_even: float | None
    notes: tuple[str, ...] = ()  # what else is known beforehand, a sentence each


def check(verifier: str, draft: str, dtype: str = "auto", tokens: int = 1024, device: str = "auto", held: int = 0,
          backend: str = "torch") -> Pair:
    """Look a pair over by name, from headers and tokenizers alone: no torch, no weights.

    `tokens`: the length both KV caches are forecast for. `held`, `backend` ("torch" or "mlx"): see `memory.forecast`. RequestError if one of the
    models is not on this machine or is damaged.
    """
    of_verifier, of_draft = config(verifier), config(draft)
    require(verifier, draft, cross=True)
    difference = None
    if verifier != draft:
        difference = differ(ids_by_token(verifier), ids_by_token(draft))
    reason = (f"{difference} {CROSS}" if difference else
              f"Same vocabulary: every token of {of_verifier['title']} has the same id in {of_draft['title']}.")
    c = of_draft["flops_per_token"] / of_verifier["flops_per_token"]
    foreseen = forecast((verifier, draft), dtype, tokens, device, held, backend)
    return Pair(difference is None, reason, of_verifier["parameters"] / of_draft["parameters"], c, foreseen, break_even(c, 1, 1),
                notes(dict.fromkeys((verifier, draft)), foreseen.dtype, backend))


def notes(names: Iterable[str], dtype: str, backend: str) -> tuple[str, ...]:
    """What is known of models on this machine, and of a precision, before they run, a sentence each. RequestError if one cannot run."""
    found = []
    for name in names:
        require_engine(name, backend)
        found.append(fit.check(name))
    return tuple(n for n in (*found, HALF_NOTE.format(dtype) if dtype in HALF else None) if n)


def require(verifier: str, draft: str | None, cross: bool = False) -> None:
    """RequestError if two models on this machine cannot run as a pair, by name, from their files alone: what `check_models` and, with
    `cross`, `check_cross` say of loaded ones. draft None: the verifier is looked at alone."""
    of_verifier = config(verifier)
    if of_verifier["draft"]:
        raise RequestError(f"{of_verifier['title']} is a draft that scores only some of its verifier's tokens, so it cannot be a verifier; "
                           "choose another.")
    for facts in (of_verifier, *([config(draft)] if draft else [])):
        if facts["stateful"]:
            raise RequestError(_stateful(facts["title"]))
    if draft is None or cross or not (spelled(verifier) and spelled(draft)):
        return
    difference = differ(ids_by_token(verifier), ids_by_token(draft))
    if difference:
        raise RequestError(_apart(config(draft)["title"], of_verifier["title"], difference))
    mapped, scored = fit.highest_mapped(draft), min(fit.rows(verifier) or LONGEST, 1 + max(_real(ids_by_token(verifier)).values(), default=-1))
    if mapped is not None and mapped >= scored:
        raise RequestError(_unscored(config(draft)["title"], of_verifier["title"], mapped, scored))


def require_whole(name: str) -> None:
    """RequestError if a model on this machine scores only some of its verifier's tokens, so that it has no entropy of its own."""
    if config(name)["draft"]:
        raise RequestError(f"{config(name)['title']} is a draft that scores only some of its verifier's tokens, so its entropy is not that of a "
                           "whole vocabulary; choose another model.")


def check_models(verifier: Model, draft: Model | None) -> None:
    """RequestError if two loaded models cannot run as a pair: unequal vocabularies, or a cache that cannot be rolled back.

    draft None: prompt lookup, which asks of the verifier alone that it can be rolled back. A draft with a stored map
    scores only some of its verifier's tokens, under ids of its own, so it verifies nothing.
    """
    _check_kinds(verifier, draft)
    if draft is None or draft is verifier:
        return
    difference = differ(verifier.vocabulary.ids_by_token(), draft.vocabulary.ids_by_token())
    if difference:
        raise RequestError(_apart(draft.facts.title, verifier.facts.title, difference))
    if draft.support is not None and int(draft.support.max()) >= verifier.width:
        raise RequestError(_unscored(draft.facts.title, verifier.facts.title, int(draft.support.max()), verifier.width))


def check_cross(verifier: Model, draft: Model) -> str | None:
    """RequestError if two loaded models cannot run as a pair even with a translator between them.

    Returns a sentence where the pair needs none, because both have the same vocabulary.
    """
    _check_kinds(verifier, draft)
    if draft is verifier or differ(verifier.vocabulary.ids_by_token(), draft.vocabulary.ids_by_token()) is None:
        return (f"{draft.facts.title} has the same vocabulary as {verifier.facts.title}: its ids need no translation, "
                "and what a translator does to them is loss.")
    return None


def _check_kinds(verifier: Model, draft: Model | None) -> None:
    if verifier.support is not None:
        raise RequestError(f"{verifier.facts.title} is a draft that scores only {len(verifier.support):,} of its verifier's tokens, "
                           "so it cannot be a verifier; choose another.")
    for model in (verifier, draft):
        if model is not None and not model.can_rewind:
            raise RequestError(_stateful(model.facts.title))


def _stateful(title: str) -> str:
    return (f"{title} keeps a state that cannot be rolled back (recurrent layers), so it cannot be used in speculative decoding; choose "
            "another model.")


def _unscored(draft: str, verifier: str, mapped: int, scored: int) -> str:
    return f"{draft} cannot draft for {verifier}: its stored map names token {mapped}, and the verifier scores only {scored}."


def _apart(draft: str, verifier: str, difference: str) -> str:
    return f"{draft} cannot draft for {verifier}: {difference[0].lower()}{difference[1:]} {CROSS}"


def differ(verifier: Mapping[str, int], draft: Mapping[str, int]) -> str | None:
    """How two token → id maps differ, in one sentence naming the first few tokens; None if they do not.

    Sizes are not compared: a vocabulary may be padded to any width.
    """
    if verifier == draft:
        return None
    a, b = _real(verifier), _real(draft)
    if a == b:
        return None
    apart = [t for t in {**a, **b} if a.get(t) != b.get(t)]
    apart.sort(key=lambda t: (min(a.get(t, b.get(t, 0)), b.get(t, a.get(t, 0))), t))
    named = "; ".join(_told(t, a.get(t), b.get(t)) for t in apart[:_SHOWN])
    more = f" and {len(apart) - _SHOWN:,} more" if len(apart) > _SHOWN else ""
    return f"The vocabularies differ in {len(apart):,} of {len({**a, **b}):,} tokens: {named}{more}."


def _real(ids: Mapping[str, int]) -> dict[str, int]:
    return {token: i for token, i in ids.items() if not PADDING.fullmatch(token)}


def _told(token: str, in_verifier: int | None, in_draft: int | None) -> str:
    text = repr(token if len(token) <= 30 else token[:29] + "…")
    if in_draft is None:
        return f"{text} is missing in the draft"
    if in_verifier is None:
        return f"{text} is missing in the verifier"
    return f"{text} is {in_verifier} in the verifier and {in_draft} in the draft"
