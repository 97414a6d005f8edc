"""Translation strategies compared: each prompt answered verifier-only, then with every strategy at every k, as a `UagRun`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Iterator

from engine import limits, preflight, prompts, sampling, stops
from engine.decoding import guard, translators
from engine.decoding.causes import as_judged, explained
from engine.decoding.compare import WARM_TOKENS
from engine.decoding.cross import CrossDrafter
from engine.decoding.cuts import ids_by_bytes
from engine.decoding.frame import FAILURES, Load, broke_off, caught, defaults_off, drain, ids_in, merged, signed, spelled, status, stream
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
    slack: float = 0.0  # engine.decoding.guard


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
        if stop():
            return
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
    stops.check(s.stop)
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
    if settings.stop:
        yield stops.NOTE
    yield from defaults_off(made.verifier, " throughout")
    if "tli" in made.translators:
        shared = len(made.translators["tli"].shared.draft)
        yield f"tli: the draft draws from the {shared:,} tokens that both vocabularies have, of its {draft.vocabulary:,}."


def compare(made: Pair, ready: list[Ready], request: UagRequest, settings: Settings, stop: Callable[[], bool],
            notes: list[str]) -> Iterator[Event]:
    """Warm up, then answer every prompt in every way, `settings.repeats` times; every second repeat goes backwards.

    Where nothing was written, because it was stopped or broke off before, there is no `Done`.
    """
    ways: list[tuple[str, int] | None] = [None, *((s, k) for s in request.strategies for k in request.ks)]
    running = [r for r in ready if r.refused is None]
    yield Stage("Warm-up")
    for way in [None, *((s, request.ks[-1]) for s in request.strategies)]:
        drain(_decode(made, running[0], way, replace(settings, max_tokens=WARM_TOKENS), stop, watch=False))
    if settings.sampling.greedy and not stop():
        made = replace(made, slack=guard.slack(made.verifier, running[0].prompt.ids, min(2 * max(request.ks), 16)))
    plan, finished = Plan(ways, len(running), settings.repeats), 0
    items: list[UagItem] = []
    failure: Exception | None = None
    for r in ready:
        if r.refused is not None:
            items.append(UagItem(r.prompt, r.asked.label, r.asked.category, refused=r.refused))
            continue
        kept: dict = dict.fromkeys(ways)
        try:
            for repeat, way in plan.order():
                if stop():
                    break
                yield plan.stage(way, running.index(r), repeat, finished)
                answer = yield from stream(_decode(made, r, way, settings, stop, watch=repeat == 0), side_of(way), repeat, made.verifier)
                kept[way] = merged(kept[way], answer)
                finished += 1
        except FAILURES as e:
            failure, kept[way] = caught(e, kept[way])
        answers = {way: _why(answer, made) if way and answer else answer for way, answer in kept.items()}
        results = tuple(UagResult(*way, answer) for way, answer in answers.items() if way and answer)
        if kept[None] or results:
            items.append(UagItem(r.prompt, r.asked.label, r.asked.category, kept[None], results))
        if failure or stop():
            break
    notes = [*notes, broke_off(failure)] if failure else notes
    stopped = finished < plan.total or any(g.finish == "stopped" for i in items for g in _answers(i))
    if any(g.ids for i in items for g in _answers(i)):
        yield Done(assemble(made, tuple(items), request, settings, status(failure, stopped), notes))
    if failure:
        raise failure


@dataclass(frozen=True)
class Plan:
    """Every way at every repeat of one prompt, and how it is told."""

    ways: list
    prompts: int
    repeats: int

    @property
    def total(self) -> int:
        return len(self.ways) * self.prompts * self.repeats

    def order(self) -> Iterator[tuple[int, tuple[str, int] | None]]:
        for repeat in range(self.repeats):
            for way in self.ways[:: 1 if repeat % 2 == 0 else -1]:
                yield repeat, way

    def stage(self, way: tuple[str, int] | None, prompt: int, repeat: int, finished: int) -> Stage:
        return Stage(_title(way, prompt, self.prompts, repeat, self.repeats), side_of(way), repeat + 1, self.repeats, finished / self.total)


def _why(answer: Generation, made: Pair) -> Generation:
    return explained(answer, made.verifier.vocabulary, made.draft.vocabulary)


def _decode(made: Pair, r: Ready, way: tuple[str, int] | None, settings: Settings, stop, watch: bool):
    settings = replace(settings, max_tokens=min(settings.max_tokens, r.allowed), gamma=way[1] if way else settings.gamma)
    drafter = None
    if way:
        drafter = CrossDrafter(made.draft, made.verifier, made.translators[way[0]], (r.prompt, r.draft), settings,
                               Uniforms(settings.sampling.seed, DRAFT_STREAM), made.by_bytes)
    rounds = decode(made.verifier, drafter, r.prompt.ids, settings, stop, watch, made.slack)
    return as_judged(rounds, made.verifier.vocabulary, made.draft.vocabulary) if way and watch else rounds


def side_of(way: tuple[str, int] | None) -> str:
    return PLAIN if way is None else f"{way[0]} k={way[1]}"


def _title(way, number: int, of: int, repeat: int, repeats: int) -> str:
    what = "Verifier only" if way is None else f"{way[0]}, k = {way[1]}"
    return (f"Prompt {number + 1} of {of}: " if of > 1 else "") + what + (f", repeat {repeat + 1} of {repeats}" if repeats > 1 else "")


def _answers(item: UagItem) -> list[Generation]:
    return [g for g in (item.plain, *(r.answer for r in item.results)) if g is not None]


def assemble(made: Pair, items: tuple[UagItem, ...], request: UagRequest, settings: Settings, how: str, notes: list[str]) -> UagRun:
    answers = [g for item in items for g in _answers(item)]
    used = {i for item in items for i in item.prompt.ids} | ids_in(answers)
    return UagRun(
        **signed(), items=items, strategies=tuple(request.strategies), ks=tuple(request.ks), prefix=request.prefix, settings=settings,
        models={"verifier": made.verifier.facts, "draft": made.draft.facts}, machine=machine(), tokens=spelled(made.verifier, used),
        draft_tokens=spelled(made.draft, {i for g in answers for r in g.rounds for i in r.draft_ids}),
        special=tuple(sorted(used & set(made.verifier.vocabulary.special))), status=how, notes=tuple(notes))
