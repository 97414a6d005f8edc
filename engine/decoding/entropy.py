"""How sure a model is of each token of its answers: one or many prompts answered verifier-only, as an `EntropyRun`."""

from __future__ import annotations

import datetime
import logging
import secrets
from dataclasses import replace
from typing import Callable, Iterator

from engine import limits, preflight, prompts, sampling
from engine.decoding.compare import Load
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

    A prompt that cannot be answered stands in the run with one sentence why, and the others go on. Stopping keeps what was
    written; if nothing was, there is no `Done`. Raises RequestError where nothing can be tried, and what went wrong where a
    lone prompt went wrong.
    """
    settings = checked(request)
    preflight.check(request)
    yield Stage(f"Loading {request.model}")
    model = load(request.model, request.backend, request.device, request.dtype)
    if model.support is not None:
        raise RequestError(f"{model.facts.title} is a draft that scores only {len(model.support):,} of its verifier's tokens, "
                           "so its entropy is not that of a whole vocabulary; choose another model.")
    items: list[EntropyItem] = []
    count, stopped = len(request.prompts), False
    for at, asked in enumerate(request.prompts):
        stopped = stopped or stop()
        if stopped:
            break
        yield Stage(_words(at, count), "plain", at + 1, count, at / count)
        try:
            prompt, allowed, note = _read(model, request, asked, settings)
            answer = yield from _answer(model, prompt, replace(settings, max_tokens=allowed), stop, at, count)
        except (RequestError, RuntimeError, MemoryError) as e:
            if count == 1:
                raise
            if not isinstance(e, RequestError):
                log.error("Prompt %d of %d broke off", at + 1, count, exc_info=e)
            items.append(EntropyItem(Prompt(asked.text[:REFUSED_SHOWN], (), request.system, request.raw), asked.label, asked.category,
                                     refused=str(e) if isinstance(e, RequestError) else BROKE))
            continue
        stopped = answer.finish == "stopped"
        if answer.ids:
            answer = replace(answer, notes=(*answer.notes, note)) if note else answer
            items.append(EntropyItem(prompt, asked.label, asked.category, answer))
    if items:
        notes = list(_notes(model, request, items))
        if stopped and len(items) < count:
            notes.append(f"Stopped with {len(items)} of {count} prompts answered or begun.")
        yield Done(assemble(model, tuple(items), settings, "stopped" if stopped else "done", notes))


def checked(request: EntropyRequest) -> Settings:
    """The settings, resolved. RequestError names what is out of range or missing."""
    limits.require("max_tokens", request.settings.max_tokens)
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
    if model.defaults:
        listed = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in model.defaults.items())
        yield f"The model's own sampling defaults ({listed}) are off; the settings shown are the ones used."


def assemble(model: Model, items: tuple[EntropyItem, ...], settings: Settings, status: str, notes: list[str]) -> EntropyRun:
    used: set[int] = set()
    for item in items:
        used |= set(item.prompt.ids) | _ids(item.answer)
    now = datetime.datetime.now(datetime.timezone.utc)
    return EntropyRun(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", created=now.isoformat(timespec="seconds"), items=items, settings=settings,
        models={"model": model.facts}, machine=machine(), tokens={i: model.vocabulary.bytes_of(i).hex() for i in sorted(used)},
        special=tuple(sorted(used & set(model.vocabulary.special))), status=status, notes=tuple(notes))


def _ids(answer: Generation | None) -> set[int]:
    return set() if answer is None else set(answer.ids) | {i for position in answer.top for i, _ in position}
