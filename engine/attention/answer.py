"""A finished answer read after its prompt: the ids as they stand, which only a model with the same tokenizer can read."""

from __future__ import annotations

from dataclasses import replace

from engine.attention.structural import structural
from engine.errors import RequestError
from engine.models.base import Model
from engine.request import Asked, Written
from engine.tokens import Vocabulary, label
from engine.trace import SinkItem


def item_of(model: Model, asked: Asked, written: Written) -> SinkItem:
    """Prompt and answer as `model` will read them. RequestError if it cannot."""
    require_readable(model.vocabulary, model.facts.context, written)
    if model.support is not None:
        raise RequestError(f"{model.facts.title} knows only some of the tokens; {_way_out(written)}.")
    found = structural(model.vocabulary, written.prompt)
    return SinkItem(replace(written.prompt, ids=(*written.prompt.ids, *written.ids)), asked.label, asked.category,
                    found.flags + (False,) * len(written.ids), found.first, answer_start=len(written.prompt.ids), source=written.source)


def require_readable(vocabulary: Vocabulary, context: int | None, written: Written) -> None:
    """RequestError if these ids are not this vocabulary's, the prompt's template unknown to it, or `context` positions too few."""
    _require_own(vocabulary, written)
    count = len(written.prompt.ids) + len(written.ids)
    if context is not None and count > context:
        raise RequestError(f"Prompt and answer are too long together: {count:,} tokens, limit {context:,}; read a shorter answer.")
    if written.prompt.template and vocabulary.template is None:
        raise RequestError(f"{vocabulary.model} has no chat template, so the template's tokens cannot be told from the prompt's; {_way_out(written)}.")


def _require_own(vocabulary: Vocabulary, written: Written) -> None:
    tokens, name = dict(written.tokens), vocabulary.model
    for i in sorted({*written.prompt.ids, *written.ids}):
        theirs = tokens.get(i)
        if vocabulary.known(i) and theirs in (None, vocabulary.bytes_of(i).hex()):
            continue
        ours = f"is “{label(vocabulary.bytes_of(i))}”" if vocabulary.known(i) else "does not exist"
        there = "" if theirs is None else f", and “{label(bytes.fromhex(theirs))}” to {written.model}"
        raise RequestError(f"{name} has another tokenizer than this answer: to it, token {i:,} {ours}{there}; {_way_out(written)}.")


def _way_out(written: Written) -> str:
    return f"choose {written.model}, which wrote this answer"
