"""One comparison: the same prompt decoded verifier-only and speculatively, in alternating order, as a `Run`."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterator

from engine import limits, preflight, prompts, sampling, stops
from engine.decoding import guard
from engine.decoding.drafters import Drafter, LookupDrafter, ModelDrafter
from engine.decoding.frame import (FAILURES, Load, broke_off, caught, defaults_off, drain, ids_in, merged, signed, spelled, status,
                                   stream)
from engine.decoding.loop import DRAFT_STREAM, decode
from engine.errors import RequestError
from engine.machine import machine
from engine.models.base import Model
from engine.pair import check_models
from engine.request import CompareRequest, Done, Event, Stage
from engine.sampling import Uniforms
from engine.trace import Generation, Prompt, Run, Settings

SIDES = {"plain": "Verifier only", "speculative": "Speculative"}
WARM_TOKENS = 8


def run(request: CompareRequest, load: Load, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Do what the request says; the last event is `Done`. Raises RequestError where it cannot be done."""
    settings = checked(request)
    lookup = settings.drafter == "lookup"
    names = [request.verifier] if lookup else [request.verifier, request.draft or ""]
    models: list[Model] = []
    preflight.check(request)
    for name in names:
        yield Stage(f"Loading {name}")
        models.append(load(name, request.backend, request.device, request.dtype))
        if stop():
            return
    verifier, draft = models[0], None if lookup else models[1]
    check_models(verifier, draft or verifier)
    prompt = prompts.build(verifier.vocabulary, request.prompt, system=request.system, raw=request.raw,
                           context=verifier.facts.context)
    allowed = prompts.check_length(len(prompt.ids), settings.max_tokens, verifier.facts.context)
    notes = list(notes_on(request, verifier, prompt, settings))
    yield from compare(verifier, draft, prompt, replace(settings, max_tokens=allowed), stop, notes)


def checked(request: CompareRequest) -> Settings:
    """The request's settings, resolved. Raises RequestError naming what is out of range or missing."""
    s = request.settings
    for name in ("gamma", "max_tokens", "repeats", "lookup_ngram", "lookup_shortest"):
        limits.require(name, getattr(s, name))
    if s.drafter not in ("model", "lookup"):
        raise RequestError(f"There is no drafter “{s.drafter}”; choose model or lookup.")
    if s.drafter == "model" and not request.draft:
        raise RequestError("No draft model was chosen; name one, or use prompt lookup, which needs none.")
    if s.lookup_shortest > s.lookup_ngram:
        raise RequestError(f"The shortest n-gram is {s.lookup_shortest} and the longest {s.lookup_ngram}; the shortest cannot be longer.")
    stops.check(s.stop)
    if s.entropy_stop is not None:
        limits.require("entropy_stop", s.entropy_stop)
    return replace(s, sampling=sampling.resolve(s.sampling))


def notes_on(request: CompareRequest, verifier: Model, prompt: Prompt, settings: Settings) -> Iterator[str]:
    if not prompt.template and not request.raw:
        yield f"{verifier.facts.title} has no chat template: the prompt was read as raw text."
    if settings.stop:
        yield stops.NOTE
    if note := prompts.length_note(len(prompt.ids), settings.max_tokens, verifier.facts.context):
        yield note
    yield from defaults_off(verifier, " in both modes")


def compare(verifier: Model, draft: Model | None, prompt: Prompt, settings: Settings, stop: Callable[[], bool], notes: list[str]) -> Iterator[Event]:
    """Warm up, then decode both ways `settings.repeats` times. The second repeat starts with the other mode, and so on.

    Where nothing was written, because it was stopped or broke off before, there is no `Done`.
    """
    yield Stage("Warm-up")
    short = replace(settings, max_tokens=min(WARM_TOKENS, settings.max_tokens))
    for side in SIDES:
        drain(decode(verifier, drafter_for(side, verifier, draft, short, prompt), prompt.ids[:32], short, stop, watch=False))
    slack = guard.slack(verifier, prompt.ids, settings.gamma) if settings.sampling.greedy and not stop() else 0.0
    kept: dict[str, Generation | None] = dict.fromkeys(SIDES)
    failure: Exception | None = None
    try:
        for repeat in range(settings.repeats):
            for side in list(SIDES)[:: 1 if repeat % 2 == 0 else -1]:
                if stop():
                    break
                yield Stage(f"{SIDES[side]}{f', repeat {repeat + 1} of {settings.repeats}' if settings.repeats > 1 else ''}", side,
                            repeat + 1, settings.repeats)
                rounds = decode(verifier, drafter_for(side, verifier, draft, settings, prompt), prompt.ids, settings, stop, repeat == 0, slack)
                kept[side] = merged(kept[side], (yield from stream(rounds, side, repeat, verifier)))
    except FAILURES as e:
        failure, kept[side] = caught(e, kept[side])
        notes = [*notes, broke_off(failure)]
    stopped = stop() or any(g is not None and g.finish == "stopped" for g in kept.values())
    if any(g is not None and g.ids for g in kept.values()):
        yield Done(assemble(verifier, draft, prompt, settings, kept["plain"], kept["speculative"], status(failure, stopped), notes))
    if failure:
        raise failure


def drafter_for(side: str, verifier: Model, draft: Model | None, settings: Settings, prompt: Prompt) -> Drafter | None:
    if side == "plain":
        return None
    if draft is None:
        return LookupDrafter(verifier.ops, verifier.anchor, settings.lookup_ngram, settings.lookup_shortest)
    return ModelDrafter(draft, verifier.width, settings.sampling, Uniforms(settings.sampling.seed, DRAFT_STREAM), settings.entropy_stop,
                        len(prompt.ids) + settings.max_tokens + settings.gamma)


def assemble(verifier: Model, draft: Model | None, prompt: Prompt, settings: Settings, plain: Generation | None, speculative: Generation | None,
             status: str, notes: list[str]) -> Run:
    used = set(prompt.ids) | ids_in((plain, speculative))
    return Run(
        **signed(), prompt=prompt, settings=settings, models={"verifier": verifier.facts, **({"draft": draft.facts} if draft else {})},
        machine=machine(), plain=plain, speculative=speculative, tokens=spelled(verifier, used),
        special=tuple(sorted(used & set(verifier.vocabulary.special))), status=status, notes=tuple(notes))
