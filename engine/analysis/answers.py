"""Every answer that a run holds, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

from engine.errors import RequestError
from engine.request import Asked, Written
from engine.trace import AnyRun, Generation, ModelFacts, Prompt

PLAIN_SIDE = "Verifier only"
PLAIN_KEY = "plain"


@dataclass(frozen=True)
class Answer:
    """`side` is how it was written, in words; `key` the same in short: "plain", "speculative", or strategy and k, "context-4".
    `facts`: the model whose ids they are, None where the run does not say."""

    facts: ModelFacts | None
    label: str
    category: str
    side: str
    key: str
    prompt: Prompt
    generation: Generation


def answers(run: AnyRun) -> Iterator[Answer]:
    """In the order they come. Kinds by name: a reloaded page has other classes."""
    if run.kind == "compare":
        facts = run.models.get("verifier")
        how = "prompt lookup" if run.settings.drafter == "lookup" else f"γ = {run.settings.gamma}"
        for side, key, made in ((PLAIN_SIDE, PLAIN_KEY, run.plain), (f"Speculative, {how}", "speculative", run.speculative)):
            if made is not None:
                yield Answer(facts, "", "", side, key, run.prompt, made)
    elif run.kind == "entropy":
        for n, item in enumerate(run.items):
            if item.answer is not None:
                yield Answer(run.models.get("model"), label_of(item, n, len(run.items)), item.category, PLAIN_SIDE, PLAIN_KEY, item.prompt, item.answer)
    elif run.kind == "uag":
        for n, item in enumerate(run.items):
            named = run.models.get("verifier"), label_of(item, n, len(run.items)), item.category
            if item.plain is not None:
                yield Answer(*named, PLAIN_SIDE, PLAIN_KEY, item.prompt, item.plain)
            for made in item.results:
                yield Answer(*named, f"{made.strategy}, k = {made.k}", f"{made.strategy}-{made.k}", item.prompt, made.answer)


def label_of(item, n: int, count: int) -> str:
    return item.label or (f"prompt {n + 1}" if count > 1 else "")


def readable(run: AnyRun) -> list[Answer]:
    """The answers that hold tokens, with the model and the prompt that another reading needs."""
    return [a for a in answers(run) if a.generation.ids and a.prompt.ids and a.facts is not None]


def asked(run: AnyRun, answer: Answer) -> Asked:
    """What to ask of a reading of this answer (`SinksRequest`): its prompt's ids and its own, as they stand."""
    used = {*answer.prompt.ids, *answer.generation.ids}
    tokens = tuple((i, run.tokens[i]) for i in sorted(used) if i in run.tokens)
    written = Written(f"answer of run {run.id}, {answer.side[:1].lower()}{answer.side[1:]}", answer.facts.title, answer.prompt,
                      answer.generation.ids, tokens)
    return Asked(answer.prompt.text, answer.label, answer.category, written)


def of_side(run: AnyRun, key: str | None) -> list[Answer]:
    """The answers of one side, by its key; None: the first side there is. RequestError where the run holds none."""
    found = readable(run)
    if not found:
        what = "is itself a reading with Sinks" if run.kind == "sinks" else "holds no answer: nothing was written in it"
        raise RequestError(f"The run {run.id} {what}; choose one of Compare, Entropy or Polish.")
    keys = list(dict.fromkeys(a.key for a in found))
    if key is not None and key not in keys:
        raise RequestError(f"The run {run.id} has no side “{key}”; it has {', '.join(keys)}.")
    return [a for a in found if a.key == (key or keys[0])]
