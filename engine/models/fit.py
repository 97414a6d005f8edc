"""Whether a tokenizer fits a model's embedding: the ids it can make against the rows there are.

Fewer ids than rows is common padding: nobody hears of it, and the rows past the last id are never scored. More ids than rows
is told with both sizes: where only added tokens lack a row (an image mark in a text model's tokenizer, say) the model
can be used and no such id may reach it; where ordinary pieces of text lack one, tokenizer and weights are of different models.
"""

from __future__ import annotations

from typing import Collection, Mapping

from engine.errors import RequestError
from engine.models import cost, gguf_header, packed, source, weights


def check(name: str) -> str | None:
    """Look a model on this machine over, from its headers and its tokenizer: no torch, no weights.

    Returns `compare`'s note. RequestError if they do not fit, if one is damaged, or if the model is not here.
    """
    place, height = source.locate(name), rows(name)
    if place.is_file():
        return compare(source.title(name), source.ids_by_token(name), (), height)
    if (place / weights.DRAFT_VOCABULARY).is_file():
        require_map(weights.read_header(place / weights.DRAFT_VOCABULARY), height, str(place / weights.DRAFT_VOCABULARY))
        return None
    if source.tokenizer(name) is None:  # spelled in another file, which transformers turns into one, with tokens of its own making
        return None
    return compare(source.title(name), source.ids_by_token(name), source.added_ids(name), height)


def rows(name: str) -> int | None:
    """Rows of a model's embedding, from its headers; None where it cannot be told."""
    place = source.locate(name)
    if place.is_file():
        return cost.rows({n: t.shape for n, t in gguf_header.read_header(place).tensors.items()})
    contents = weights.check(place)
    return cost.rows(packed.shapes(contents.tensors, contents.config))


def compare(title: str, ids: Mapping[str, int], added: Collection[int], rows: int | None) -> str | None:
    """A note with both sizes if tokens lack a row, else None. `ids`: token → id, `added` ones too; `rows` None: not known.

    RequestError if ordinary pieces of text lack one.
    """
    beyond = {token: i for token, i in ids.items() if rows is not None and i >= rows}
    if not beyond:
        return None
    sizes = f"the tokenizer of {title} has ids up to {max(ids.values()):,}, and the embedding of its weights has {rows:,} rows"
    ordinary = sorted((i, token) for token, i in beyond.items() if i not in added)
    if ordinary:
        i, token = ordinary[0]
        raise RequestError(f"The tokenizer does not belong to these weights: {sizes}; token {i:,} ({_told(token)}) and {len(beyond) - 1:,} more have none. "
                           "Use the tokenizer.json of the same model.")
    token, i = min(beyond.items(), key=lambda item: item[1])
    more = f" and {len(beyond) - 1:,} more" if len(beyond) > 1 else ""
    return f"{sizes[0].upper()}{sizes[1:]}: the added token {_told(token)}{more} is none to the model, and its text is read as letters."


def require_map(tensors: Mapping[str, weights.Tensor], rows: int | None, file: str) -> None:
    """RequestError unless a draft's stored map has one verifier id for each of its rows but the last, its “other” id."""
    stored = tensors.get("to_verifier")
    if stored is None or len(stored.shape) != 1 or not stored.shape[0] or (rows is not None and stored.shape[0] >= rows):
        raise RequestError(f"{file} is damaged: it must map each row of the draft but the last to a token; fetch the draft again.")


def highest_mapped(name: str) -> int | None:
    """The highest of its verifier's ids that a draft's stored map names; None for a model without a map. RequestError if it is damaged."""
    place = source.locate(name)
    file = place / weights.DRAFT_VOCABULARY
    if place.is_file() or not file.is_file():
        return None
    from safetensors import safe_open

    try:
        with safe_open(file, "numpy") as stored:
            ids = stored.get_tensor("to_verifier")
        if ids.min() < 0:
            raise ValueError
        return int(ids.max())
    except Exception:  # the library raises kinds of its own
        raise RequestError(f"{file} is damaged: it must map each row of the draft but the last to a token; fetch the draft again.") from None


def _told(token: str) -> str:
    return repr(token if len(token) <= 30 else token[:29] + "…")
