"""How sure a model is of each token of its answers: one or many prompts answered verifier-only, as an `EntropyRun`."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Callable, Iterator

from engine import limits, preflight, prompts, sampling, stops
from engine.decoding.frame import FAILURES, Load, broke_off, caught, defaults_off, ids_in, signed, spelled, status
from engine.decoding.loop import decode
from engine.errors import RequestError
from engine.machine import machine
from engine.models.base import Model
from engine.request import REFUSED_SHOWN, Asked, Done, EntropyRequest, Event, Stage, Step
from engine.trace import EntropyItem, EntropyRun, Generation, Prompt, Settings

log = logging.getLogger(__name__)

BROKE = "The device ran out of memory or failed on this prompt; shorten it or choose a smaller model."
NOTICED = 0.01  # share of the whole work after which progress is told again


def run(request: EntropyRequest, load: Load, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Answer the prompts one after the other; the last event is `Done`.

    A prompt that cannot be answered stands in the run with one sentence why, and the others go on. What was written is kept,
    whether it was stopped or broke off; if nothing was, there is no `Done`. Raises RequestError where nothing can be tried, and
    what went wrong where a lone prompt went wrong.
    """
    settings = checked(request)
    preflight.check(request)
    yield Stage(f"Loading {request.model}")
    model = load(request.model, request.backend, request.device, request.dtype)
    if model.support is not None:
        raise RequestError(f"{model.facts.title} is a draft that scores only {len(model.support):,} of its verifier's tokens, "
                           "so its entropy is not that of a whole vocabulary; choose another model.")
    items: list[EntropyItem] = []
    count, stopped, failure = len(request.prompts), False, None
    for at, asked in enumerate(request.prompts):
        stopped = stopped or stop()
        if stopped:
            break
        yield Stage(_words(at, count), "plain", at + 1, count, at / count)
        prompt, answer, trouble = None, None, None
        try:
            prompt, allowed, note = _read(model, request, asked, settings)
            answer = yield from _answer(model, prompt, replace(settings, max_tokens=allowed), stop, at, count)
            answer = replace(answer, notes=(*answer.notes, note)) if note else answer
        except FAILURES as e:
            trouble, answer = caught(e, None)
            if not isinstance(trouble, RequestError):
                log.error("Prompt %d of %d broke off", at + 1, count, exc_info=e)
            failure = trouble if count == 1 else None
        stopped = answer is not None and answer.finish == "stopped"
        if answer is not None and answer.ids:  # what was written is kept, whatever ended it
            answer = replace(answer, notes=(*answer.notes, broke_off(trouble))) if trouble else answer
            items.append(EntropyItem(prompt, asked.label, asked.category, answer))
        elif trouble and count > 1:
            items.append(EntropyItem(Prompt(asked.text[:REFUSED_SHOWN], (), request.system, request.raw), asked.label, asked.category,
                                     refused=str(trouble) if isinstance(trouble, RequestError) else BROKE))
    if items:
        notes = list(_notes(model, request, items))
        if failure:
            notes.append(broke_off(failure))
        if stopped and len(items) < count:
            notes.append(f"Stopped with {len(items)} of {count} prompts answered or begun.")
        yield Done(assemble(model, tuple(items), settings, status(failure, stopped), notes))
    if failure:
        raise failure


def checked(request: EntropyRequest) -> Settings:
    """The settings, resolved. RequestError names what is out of range or missing."""
    limits.require("max_tokens", request.settings.max_tokens)
    stops.check(request.settings.stop)
    if not request.prompts:
        raise RequestError("There is no prompt; give at least one.")
    if not request.model:
        raise RequestError("No model was chosen; name one.")
    return replace(request.settings, sampling=sampling.resolve(request.settings.sampling))


def _read(model: Model, request: EntropyRequest, asked: Asked, settings: Settings) -> tuple[Prompt, int, str | None]:
    """The prompt as ids, how many tokens may follow it, and a note if those are fewer than asked for."""
    context = model.facts.context
    prompt = prompts.build(model.vocabulary, asked.text, system=request.system, raw=request.raw, context=context)
    allowed = prompts.check_length(len(prompt.ids), settings.max_tokens, context)
    return prompt, allowed, prompts.length_note(len(prompt.ids), settings.max_tokens, context)


def _answer(model: Model, prompt: Prompt, settings: Settings, stop: Callable[[], bool], at: int, count: int):
    """Decode one answer, passing its rounds on; returns the generation."""
    rounds = decode(model, None, prompt.ids, settings, stop)
    told, written = at / count, 0
    while True:
        try:
            r = next(rounds)
        except StopIteration as end:
            return end.value
        yield Step("plain", at + 1, r, {i: model.vocabulary.bytes_of(i).hex() for i in r.emitted})
        written += len(r.emitted)
        done = (at + written / settings.max_tokens) / count
        if done >= told + NOTICED:
            told = done
            yield Stage(_words(at, count), "plain", at + 1, count, done)


def _words(at: int, count: int) -> str:
    return "Answering" if count == 1 else f"Answering prompt {at + 1} of {count}"


def _notes(model: Model, request: EntropyRequest, items: list[EntropyItem]) -> Iterator[str]:
    if not request.raw and any(i.answer and not i.prompt.template for i in items):
        yield f"{model.facts.title} has no chat template: the prompt was read as raw text."
    if request.settings.stop:
        yield stops.NOTE
    yield from defaults_off(model, "")


def assemble(model: Model, items: tuple[EntropyItem, ...], settings: Settings, how: str, notes: list[str]) -> EntropyRun:
    used = {i for item in items for i in item.prompt.ids} | ids_in(item.answer for item in items)
    return EntropyRun(**signed(), items=items, settings=settings, models={"model": model.facts}, machine=machine(), tokens=spelled(model, used),
                      special=tuple(sorted(used & set(model.vocabulary.special))), status=how, notes=tuple(notes))
