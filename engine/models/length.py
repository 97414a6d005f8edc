"""Whether a text is hopelessly too long for a model, told from its files alone: before torch is imported and weights are read."""

from __future__ import annotations

from engine import spelling
from engine.errors import RequestError
from engine.models.source import config, locate

SHORT = 100_000  # characters: what is shorter is counted exactly once the model is there


def refuse_hopeless(name: str, text: str) -> None:
    """RequestError if even the vocabulary's longest token, again and again, would not make `text` fit the context.

    Says nothing where that cannot be told: a model that is not here yet, a vocabulary in another file, a tokenizer that may
    shorten a text without bound.
    """
    if len(text) < SHORT:
        return
    try:
        context, file = config(name)["context"], locate(name) / "tokenizer.json"
        if not context or not file.is_file():
            return
        from tokenizers import Tokenizer  # a tenth of a second, where transformers takes several

        tokenizer = Tokenizer.from_file(str(file))
        shrink = spelling.shrink_bound(spelling.pipeline_of(tokenizer))
        longest = max(len(token.encode()) for token in tokenizer.get_vocab(with_added_tokens=True))
    except Exception:  # whatever is wrong with the model, its loader says better
        return
    least = 0 if shrink is None else len(text.strip().encode("utf-8", "replace")) // (longest * shrink)
    if least > context:
        raise RequestError(f"The prompt is too long: at least {least:,} tokens, limit {context:,}; shorten it.")
