"""Translation strategies compared: each prompt answered verifier-only, then with every strategy at every k, as a `UagRun`."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass, replace
from typing import Callable, Iterator

from engine import limits, preflight, prompts, sampling
from engine.decoding import translators
from engine.decoding.causes import explained
from engine.decoding.compare import WARM_TOKENS, Load, drain, merged, stream
from engine.decoding.cross import CrossDrafter
from engine.decoding.cuts import ids_by_bytes
from engine.decoding.loop import DRAFT_STREAM, decode
from engine.errors import RequestError
from engine.machine import machine
from engine.models.base import Model
from engine.pair import check_cross
from engine.request import REFUSED_SHOWN, Asked, Done, Event, Stage, UagRequest
from engine.sampling import Uniforms
from engine.trace import Generation, Prompt, Settings, UagItem, UagResult, UagRun
from engine.trace.uag import STRATEGIES

PLAIN = "plain"


@dataclass(frozen=True)
class Pair:
    """Two loaded models, and what has to be worked out once for them. `by_bytes` is of the draft's vocabulary."""

    verifier: Model
    draft: Model
    translators: dict[str, translators.Translator]
    by_bytes: dict[tuple[bytes, bool], int]


@dataclass(frozen=True)
class Ready:
    """One prompt as both models read it, and how many tokens may follow; or why it is not run."""

    asked: Asked
    prompt: Prompt
    draft: Prompt | None = None
    allowed: int = 0
    refused: str | None = None


def run(request: UagRequest, load: Load, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Do what the request says; the last event is `Done`. Raises RequestError where it cannot be done, and where none of the
    prompts can. A side is called "plain" or, say, "context k=4"."""
    settings = checked(request)
    preflight.check(request)
    models: list[Model] = []
    for name in (request.verifier, request.draft):
        yield Stage(f"Loading {name}")
        models.append(load(name, request.backend, request.device, request.dtype))
    verifier, draft = models
    same = check_cross(verifier, draft)
    yield Stage("Reading the prompts and both vocabularies")
    ready = [prepared(asked, request, verifier, draft) for asked in request.prompts]
    if all(r.refused for r in ready):
        first = ready[0].refused
        raise RequestError(first if len(ready) == 1 else f"None of the {len(ready)} prompts can be run. The first: {first}")
    made = pair(verifier, draft, request.strategies, request.prefix)
    notes = ([same] if same else []) + list(notes_on(request, made, ready, settings))
    yield from compare(made, ready, request, settings, stop, notes)


def checked(request: UagRequest) -> Settings:
    """The request's settings, resolved. Raises RequestError naming what is out of range or missing."""
    s = request.settings
    for name, value in (("max_tokens", s.max_tokens), ("repeats", s.repeats), *(("k", k) for k in request.ks), ("prefix", request.prefix)):
        limits.require(name, value)
    for strategy in request.strategies:
        if strategy not in STRATEGIES:
            raise RequestError(f"There is no strategy “{strategy}”; choose among {', '.join(STRATEGIES)}.")
    for name, chosen in (("prompt", request.prompts), ("strategy", request.strategies), ("k", request.ks)):
        if not chosen:
            raise RequestError(f"No {name} was chosen; choose at least one.")
        if name != "prompt" and len(set(chosen)) < len(chosen):
            raise RequestError(f"A {name} was chosen twice; choose each once.")
    if not request.draft:
        raise RequestError("No draft model was chosen; name one.")
    return replace(s, sampling=sampling.resolve(s.sampling))


def pair(verifier: Model, draft: Model, strategies: tuple[str, ...], prefix: int) -> Pair:
    return Pair(verifier, draft, {s: translators.make(s, verifier, draft, prefix) for s in strategies}, ids_by_bytes(draft.vocabulary))


def prepared(asked: Asked, request: UagRequest, verifier: Model, draft: Model) -> Ready:
    """The prompt rendered by each model's own template from the same text. The draft's context limits only the draft."""
    try:
        prompt = prompts.build(verifier.vocabulary, asked.text, system=request.system, raw=request.raw, context=verifier.facts.context)
        allowed = prompts.check_length(len(prompt.ids), request.settings.max_tokens, verifier.facts.context)
        own = prompts.build(draft.vocabulary, asked.text, system=request.system, raw=request.raw)
    except RequestError as e:
        return Ready(asked, Prompt(asked.text[:REFUSED_SHOWN], (), request.system, request.raw), refused=str(e))
    return Ready(asked, prompt, own, allowed)


def notes_on(request: UagRequest, made: Pair, ready: list[Ready], settings: Settings) -> Iterator[str]:
    verifier, draft = made.verifier.facts, made.draft.facts
    running = [r for r in ready if r.refused is None]
    for facts, rendered in ((verifier, [r.prompt for r in running]), (draft, [r.draft for r in running])):
        if not request.raw and not all(p.template for p in rendered):
            yield f"{facts.title} has no chat template: it read the prompt as raw text."
    for r in running:
        if note := prompts.length_note(len(r.prompt.ids), settings.max_tokens, verifier.context):
            yield note if len(ready) == 1 else f"{r.asked.label or r.asked.text[:40]}: {note}"
        if draft.context is not None and len(r.draft.ids) >= draft.context:
            yield (f"{draft.title} reads at most {draft.context:,} tokens, and the prompt is {len(r.draft.ids):,} of its own: "
                   "the verifier goes on alone.")
    if made.verifier.defaults:
        listed = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in made.verifier.defaults.items())
        yield f"The verifier's own sampling defaults ({listed}) are off throughout; the settings shown are the ones used."
    if "tli" in made.translators:
        shared = len(made.translators["tli"].shared.draft)
        yield f"tli: the draft draws from the {shared:,} tokens that both vocabularies have, of its {draft.vocabulary:,}."


def compare(made: Pair, ready: list[Ready], request: UagRequest, settings: Settings, stop: Callable[[], bool],
            notes: list[str]) -> Iterator[Event]:
    """Warm up, then answer every prompt in every way, `settings.repeats` times; every second repeat goes backwards."""
    ways: list[tuple[str, int] | None] = [None, *((s, k) for s in request.strategies for k in request.ks)]
    running = [r for r in ready if r.refused is None]
    yield Stage("Warm-up")
    for way in [None, *((s, request.ks[-1]) for s in request.strategies)]:
        drain(_decode(made, running[0], way, replace(settings, max_tokens=WARM_TOKENS), stop, watch=False))
    total, finished = len(running) * settings.repeats * len(ways), 0
    items: list[UagItem] = []
    failure: Exception | None = None
    for r in ready:
        if r.refused is not None:
            items.append(UagItem(r.prompt, r.asked.label, r.asked.category, refused=r.refused))
            continue
        kept: dict = dict.fromkeys(ways)
        try:
            for repeat in range(settings.repeats):
                for way in ways[:: 1 if repeat % 2 == 0 else -1]:
                    if stop():
                        break
                    yield Stage(_title(way, running.index(r), len(running), repeat, settings.repeats), side_of(way), repeat + 1,
                                settings.repeats, finished / total)
                    answer = yield from stream(_decode(made, r, way, settings, stop, watch=repeat == 0), side_of(way), repeat, made.verifier)
                    if way and repeat == 0:
                        answer = explained(answer, made.verifier.vocabulary, made.draft.vocabulary)
                    kept[way] = merged(kept[way], answer)
                    finished += 1
        except (RequestError, RuntimeError, MemoryError) as e:
            failure = e
        results = tuple(UagResult(*way, answer) for way, answer in kept.items() if way and answer)
        if kept[None] or results:
            items.append(UagItem(r.prompt, r.asked.label, r.asked.category, kept[None], results))
        if failure or stop():
            break
    if failure:
        notes = notes + [f"The run broke off: {failure}" if isinstance(failure, RequestError) else
                         "The run broke off: the device ran out of memory or failed."]
    stopped = finished < total or any(g.finish == "stopped" for i in items for g in _answers(i))
    if any(_answers(i) for i in items):  # else nothing was written, and there is nothing to keep
        status = "failed" if failure else "stopped" if stopped else "done"
        yield Done(assemble(made, tuple(items), request, settings, status, notes))
    if failure:
        raise failure


def _decode(made: Pair, r: Ready, way: tuple[str, int] | None, settings: Settings, stop, watch: bool):
    settings = replace(settings, max_tokens=min(settings.max_tokens, r.allowed), gamma=way[1] if way else settings.gamma)
    drafter = None
    if way:
        drafter = CrossDrafter(made.draft, made.verifier, made.translators[way[0]], (r.prompt, r.draft), settings,
                               Uniforms(settings.sampling.seed, DRAFT_STREAM), made.by_bytes)
    return decode(made.verifier, drafter, r.prompt.ids, settings, stop, watch)


def side_of(way: tuple[str, int] | None) -> str:
    return PLAIN if way is None else f"{way[0]} k={way[1]}"


def _title(way, number: int, of: int, repeat: int, repeats: int) -> str:
    what = "Verifier only" if way is None else f"{way[0]}, k = {way[1]}"
    return (f"Prompt {number + 1} of {of}: " if of > 1 else "") + what + (f", repeat {repeat + 1} of {repeats}" if repeats > 1 else "")


def _answers(item: UagItem) -> list[Generation]:
    return [g for g in (item.plain, *(r.answer for r in item.results)) if g is not None]


def assemble(made: Pair, items: tuple[UagItem, ...], request: UagRequest, settings: Settings, status: str, notes: list[str]) -> UagRun:
    used, theirs = {i for item in items for i in item.prompt.ids}, set()
    for g in (g for item in items for g in _answers(item)):
        used |= set(g.ids) | {i for position in g.top for i, _ in position} | {i for r in g.rounds for i in r.proposed}
        theirs |= {i for r in g.rounds for i in r.draft_ids}
    now, vocabulary = datetime.datetime.now(datetime.timezone.utc), made.verifier.vocabulary
    return UagRun(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", created=now.isoformat(timespec="seconds"), items=items,
        strategies=tuple(request.strategies), ks=tuple(request.ks), prefix=request.prefix, settings=settings,
        models={"verifier": made.verifier.facts, "draft": made.draft.facts}, machine=machine(),
        tokens={i: vocabulary.bytes_of(i).hex() for i in sorted(used)},
        draft_tokens={i: made.draft.vocabulary.bytes_of(i).hex() for i in sorted(theirs)},
        special=tuple(sorted(used & set(vocabulary.special))), status=status, notes=tuple(notes))
