"""One analysis: each prompt of a set read once by one model, with its attention added up, as a `SinksRun`."""

from __future__ import annotations

import datetime
import secrets
import time
from dataclasses import replace
from typing import Callable, Iterator

from engine import preflight, prompts
from engine.attention.answer import item_of
from engine.attention.peak import measure_peak
from engine.attention.structural import structural
from engine.errors import RequestError
from engine.machine import machine
from engine.models.base import Model
from engine.request import REFUSED_SHOWN, Asked, Done, Event, SinksRequest, Stage
from engine.trace import Prompt, SinkItem, SinksRun

Load = Callable[[str, str, str, str], Model]  # (name, backend, device, dtype)
WARM_TOKENS = 32


def run(request: SinksRequest, load: Load, stop: Callable[[], bool] = lambda: False,
        hear: Callable[[Stage], None] = lambda stage: None) -> Iterator[Event]:
    """Do what the request says; the last event is `Done`. A prompt that cannot be read is refused alone; the others are read.

    `hear` is told how far a long prompt is while it is being read, when no event can come. After `stop()` says so the
    prompts read so far are kept; if none was, there is no `Done`. Raises RequestError where there is no prompt, where the
    only one is refused, and where the model's attention cannot be captured at all.
    """
    if not request.prompts:
        raise RequestError("There is no prompt; type some text.")
    preflight.check(request)
    yield Stage(f"Loading {request.model}")
    model = load(request.model, request.backend, request.device, request.dtype)
    yield Stage("Splitting the prompts into tokens" if len(request.prompts) > 1 else "Splitting the prompt into tokens")
    items = []
    for asked in request.prompts:
        if stop():
            break
        items.append(prepared(model, asked, request))
    if len(request.prompts) == 1 and items and items[0].refused:
        raise RequestError(items[0].refused)
    readable = [item for item in items if not item.refused]
    if readable and not stop():
        yield Stage("Warm-up")
        model.attention(readable[0].prompt.ids[:WARM_TOKENS], lambda share: stop())  # says too whether it can be captured
    total, over, done = sum(len(item.prompt.ids) for item in readable), 0, []
    for item in items:
        if item.refused:
            done.append(item)
            continue
        if stop():
            break
        count = len(item.prompt.ids)
        text = "Reading" + (f" prompt {len(done) + 1:,} of {len(items):,}" if len(items) > 1 else "") + f", {count:,} tokens"
        yield Stage(text, done=over / total)

        def progress(share: float) -> bool:
            hear(Stage(text, done=(over + count * share) / total))
            return stop()

        finished = read(model, item, progress)
        if finished is None:
            break
        done.append(finished)
        over += count
    if not done:
        return  # stopped before the first prompt was read: there is nothing to keep
    read_all = len(done) == len(request.prompts)
    yield Done(assemble(model, request, tuple(done), "done" if read_all else "stopped"))


def prepared(model: Model, asked: Asked, request: SinksRequest) -> SinkItem:
    """The prompt as the model will read it, or why it cannot."""
    context = model.facts.context
    try:
        if asked.written is not None:
            return item_of(model, asked, asked.written)
        prompt = prompts.build(model.vocabulary, asked.text, system=request.system, raw=request.raw, context=context)
        prompts.check_length(len(prompt.ids), 0, context)
    except RequestError as e:
        return _refused(Prompt(asked.text, (), request.system, request.raw, False), asked, str(e))
    found = structural(model.vocabulary, prompt)
    return SinkItem(prompt, asked.label, asked.category, found.flags, found.first)


def read(model: Model, item: SinkItem, progress: Callable[[float], bool] = lambda share: False) -> SinkItem | None:
    """The item with its sums, time and memory; refused if the memory does not do for it; None if `progress` stopped it."""
    model.synchronise()
    start = time.perf_counter()
    try:
        with measure_peak(model.facts.device) as peak:
            sums = model.attention(item.prompt.ids, progress)
            model.synchronise()
        seconds = time.perf_counter() - start
    except RequestError as e:
        return replace(item, refused=str(e))
    except (MemoryError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and "memory" not in str(e).lower():
            raise
        return replace(item, refused=f"There was not enough memory for this prompt of {len(item.prompt.ids):,} tokens; shorten it.")
    return None if sums is None else replace(item, seconds=seconds, peak_extra_bytes=peak.extra_bytes, sums=sums)


def assemble(model: Model, request: SinksRequest, items: tuple[SinkItem, ...], status: str) -> SinksRun:
    used = {i for item in items for i in item.prompt.ids}
    now = datetime.datetime.now(datetime.timezone.utc)
    return SinksRun(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", created=now.isoformat(timespec="seconds"), items=items,
        models={"model": model.facts}, machine=machine(), tokens={i: model.vocabulary.bytes_of(i).hex() for i in sorted(used)},
        special=tuple(sorted(used & set(model.vocabulary.special))), status=status, notes=tuple(_notes(model, request, items)))


def _notes(model: Model, request: SinksRequest, items: tuple[SinkItem, ...]) -> Iterator[str]:
    kept = [item for item in items if not item.refused]
    if kept and not kept[0].prompt.template and not kept[0].prompt.raw:
        what = "the prompt was" if len(request.prompts) == 1 else "the prompts were"
        yield f"{model.facts.title} has no chat template: {what} read as raw text."
    refused = len(items) - len(kept)
    if refused:
        yield f"{refused:,} of {len(items):,} prompts could not be read."


def _refused(prompt: Prompt, asked: Asked, why: str) -> SinkItem:
    text = prompt.text if len(prompt.text) <= REFUSED_SHOWN else prompt.text[:REFUSED_SHOWN] + "…"
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be kept in a file
    return SinkItem(replace(prompt, text=text), asked.label, asked.category, refused=why)
