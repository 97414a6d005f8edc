"""One comparison: the same prompt decoded verifier-only and speculatively, in alternating order, as a `Run`."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import replace
from typing import Callable, Iterator

from engine import limits, preflight, prompts, sampling
from engine.decoding.drafters import Drafter, LookupDrafter, ModelDrafter
from engine.decoding.loop import DRAFT_STREAM, decode
from engine.errors import RequestError
from engine.machine import machine
from engine.models.base import Model
from engine.pair import check_models
from engine.request import CompareRequest, Done, Event, Stage, Step
from engine.sampling import Uniforms
from engine.trace import Generation, Prompt, Run, Settings

Load = Callable[[str, str, str, str], Model]  # (name, backend, device, dtype)
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
    for name in ("gamma", "max_tokens", "repeats", "lookup_ngram"):
        limits.require(name, getattr(s, name))
    if s.drafter not in ("model", "lookup"):
        raise RequestError(f"There is no drafter “{s.drafter}”; choose model or lookup.")
    if s.drafter == "model" and not request.draft:
        raise RequestError("No draft model was chosen; name one, or use prompt lookup, which needs none.")
    if s.entropy_stop is not None:
        limits.require("entropy_stop", s.entropy_stop)
    return replace(s, sampling=sampling.resolve(s.sampling))


def notes_on(request: CompareRequest, verifier: Model, prompt: Prompt, settings: Settings) -> Iterator[str]:
    if not prompt.template and not request.raw:
        yield f"{verifier.facts.title} has no chat template: the prompt was read as raw text."
    if note := prompts.length_note(len(prompt.ids), settings.max_tokens, verifier.facts.context):
        yield note
    if verifier.defaults:
        listed = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in verifier.defaults.items())
        yield f"The model's own sampling defaults ({listed}) are off in both modes; the settings shown are the ones used."


def compare(verifier: Model, draft: Model | None, prompt: Prompt, settings: Settings, stop: Callable[[], bool], notes: list[str]) -> Iterator[Event]:
    """Warm up, then decode both ways `settings.repeats` times. The second repeat starts with the other mode, and so on."""
    yield Stage("Warm-up")
    short = replace(settings, max_tokens=min(WARM_TOKENS, settings.max_tokens))
    for side in SIDES:
        drain(decode(verifier, drafter_for(side, verifier, draft, short, prompt), prompt.ids[:32], short, stop, watch=False))
    kept: dict[str, Generation | None] = {"plain": None, "speculative": None}
    failure: Exception | None = None
    try:
        for repeat in range(settings.repeats):
            for side in list(SIDES)[:: 1 if repeat % 2 == 0 else -1]:
                if stop():
                    break
                yield Stage(f"{SIDES[side]}{f', repeat {repeat + 1} of {settings.repeats}' if settings.repeats > 1 else ''}", side,
                            repeat + 1, settings.repeats)
                rounds = decode(verifier, drafter_for(side, verifier, draft, settings, prompt), prompt.ids, settings, stop, watch=repeat == 0)
                made = yield from stream(rounds, side, repeat, verifier)
                kept[side] = merged(kept[side], made)
    except (RequestError, RuntimeError, MemoryError) as e:
        failure = e
        notes = notes + [f"The run broke off: {e}" if isinstance(e, RequestError) else "The run broke off: the device ran out of memory or failed."]
    stopped = stop() or any(g is not None and g.finish == "stopped" for g in kept.values())
    if failure is None or any(kept.values()):
        status = "failed" if failure else "stopped" if stopped else "done"
        yield Done(assemble(verifier, draft, prompt, settings, kept["plain"], kept["speculative"], status, notes))
    if failure:
        raise failure


def drafter_for(side: str, verifier: Model, draft: Model | None, settings: Settings, prompt: Prompt) -> Drafter | None:
    if side == "plain":
        return None
    if draft is None:
        return LookupDrafter(verifier.ops, verifier.anchor, settings.lookup_ngram)
    return ModelDrafter(draft, verifier.width, settings.sampling, Uniforms(settings.sampling.seed, DRAFT_STREAM), settings.entropy_stop,
                        len(prompt.ids) + settings.max_tokens + settings.gamma)


def stream(rounds, side: str, repeat: int, verifier: Model):
    """Pass rounds on as steps; returns the generation."""
    while True:
        try:
            r = next(rounds)
        except StopIteration as end:
            return end.value
        yield Step(side, repeat + 1, r, {i: verifier.vocabulary.bytes_of(i).hex() for i in {*r.proposed, *r.emitted}})


def drain(rounds) -> Generation:
    while True:
        try:
            next(rounds)
        except StopIteration as end:
            return end.value


def merged(first: Generation | None, again: Generation) -> Generation:
    """The first repeat with the timing of a later one added. A repeat that was stopped half-way times nothing."""
    if first is None:
        return again
    if again.finish == "stopped":
        return first
    notes = first.notes
    if again.ids != first.ids and not any("repeat" in n for n in notes):
        notes += (f"Repeat {len(first.timings) + 1} gave other tokens than the first; its time is kept, its text is not.",)
    return replace(first, timings=first.timings + again.timings, notes=notes)


def assemble(verifier: Model, draft: Model | None, prompt: Prompt, settings: Settings, plain: Generation | None, speculative: Generation | None,
             status: str, notes: list[str]) -> Run:
    used = set(prompt.ids)
    for g in (plain, speculative):
        if g:
            used |= set(g.ids) | {i for position in g.top for i, _ in position} | {i for r in g.rounds for i in r.proposed}
    now = datetime.datetime.now(datetime.timezone.utc)
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", created=now.isoformat(timespec="seconds"), prompt=prompt, settings=settings,
        models={"verifier": verifier.facts, **({"draft": draft.facts} if draft else {})}, machine=machine(), plain=plain, speculative=speculative,
        tokens={i: verifier.vocabulary.bytes_of(i).hex() for i in sorted(used)},
        special=tuple(sorted(used & set(verifier.vocabulary.special))), status=status, notes=tuple(notes))
