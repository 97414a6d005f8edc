"""Whether a text is hopelessly too long for a model, told from its files alone: before torch is imported and weights are read."""

from __future__ import annotations

from engine import spelling
from engine.errors import RequestError
from engine.models.source import config, tokenizer

SHORT = 100_000  # characters: what is shorter is counted, what is longer is told from its length


def refuse_too_long(name: str, text: str, slack: int = 0) -> None:
    """RequestError if `text` cannot fit the context: counted by the tokenizer alone, with no template around it and `slack` tokens to
    spare, or, of a long text, if even the vocabulary's longest token, again and again, would not make it fit.

    Says nothing where that cannot be told: a model that is not here yet, a vocabulary in another file, a tokenizer that may
    shorten a text without bound.
    """
    try:
        context, reader = config(name)["context"], tokenizer(name)
        if not context or reader is None:
            return
        text = text.strip().encode("utf-8", "replace")
        if len(text) < SHORT:
            least, said = len(reader.encode(text.decode(), add_special_tokens=False).ids) - slack, "about"
        else:
            shrink = spelling.shrink_bound(spelling.pipeline_of(reader))
            longest = max(len(token.encode()) for token in reader.get_vocab(with_added_tokens=True))
            least, said = 0 if shrink is None else len(text) // (longest * shrink), "at least"
    except Exception:  # whatever is wrong with the model, its loader says better
        return
    if least > context:
        least += slack if said == "about" else 0
        raise RequestError(f"The prompt is too long: {said} {least:,} tokens, limit {context:,}; shorten it.")
