"""Everything that can be known of a request from files alone, said before any model loads.

One place for pages and command line. It reads configs, headers and tokenizers, imports no torch and reads no weights. What a
folder lacks in itself (a damaged field, an encoder, layers left over) `engine.models.weights.check` says, for whoever looks a
model up. A model that is not on this machine yet is left to whoever fetches it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

from engine import pair, prompts
from engine.attention.answer import require_readable
from engine.errors import RequestError
from engine.models import fit, memory, registry, source
from engine.models.length import refuse_too_long
from engine.request import Asked
from engine.tokens import Vocabulary

SLACK = 8  # tokens by which a class of transformers may cut a text otherwise than the tokenizer.json that it reads


def check(request: Any, held: int | None = None) -> None:
    """`files`, then `texts`: RequestError in one sentence for whatever cannot be done. `request`: any of `engine.request`."""
    files(request, held)
    texts(request)


def files(request: Any, held: int | None = None) -> None:
    """RequestError for what the files of the models rule out, and for a prompt that no tokenizer makes short enough. Takes milliseconds; the
    first time as long as the `tokenizers` library takes to read theirs.

    `held`: bytes that models loaded by this process take and can give back; None leaves the memory to the loader.
    """
    names = models(request)
    here = [name for name in names if _here(name)]
    for name in here:
        registry.require_engine(name, request.backend)
        fit.check(name)
    if names[0] not in here:
        return
    if hasattr(request, "verifier"):
        pair.require(names[0], names[1] if names == here and len(names) > 1 else None, cross=hasattr(request, "strategies"))
    elif hasattr(request, "settings"):
        pair.require_whole(names[0])
    asked = _prompts(request)
    _refuse_all(request, asked, lambda a: a.written or refuse_too_long(names[0], a.text, SLACK))
    if held is not None and names == here:
        longest = max((len(a.text.encode("utf-8", "replace")) for a in asked), default=0) // 4  # bytes a token, and more of them in most texts
        memory.require_together(names, request.dtype, request.device, longest + _new_tokens(request), held, registry.settled(request.backend))


def texts(request: Any) -> None:
    """RequestError where no prompt can be read: a template that fails or drops a role, a character the vocabulary lacks, a text
    that does not fit. Of several prompts each is refused alone by whoever runs them, unless nothing can run without one.

    By the tokenizers as their files stand; transformers is imported for its templates, without torch: seconds, the first time.
    """
    names = models(request)
    readers = [(reader, _context(name) if i == 0 else None)  # a draft whose context is full only ends its drafting
               for i, name in enumerate(names[:2 if hasattr(request, "strategies") else 1]) if (reader := _reader(name)) is not None]
    _refuse_all(request, _prompts(request), lambda a: [_read(reader, context, a, request) for reader, context in readers])


def models(request: Any) -> list[str]:
    """Names of the models a request needs, the verifier first; each once."""
    if not hasattr(request, "verifier"):
        return [request.model]
    alone = not request.draft or request.settings.drafter == "lookup"
    return [request.verifier] if alone or request.draft == request.verifier else [request.verifier, request.draft]


def _here(name: str) -> bool:
    """Whether a model lies on this machine; RequestError if it does and is damaged."""
    try:
        source.locate(name)
        return True
    except RequestError:
        if source.lies_here(name):
            raise
        return False


def _prompts(request: Any) -> tuple[Asked, ...]:
    return (Asked(request.prompt),) if hasattr(request, "prompt") else request.prompts


def _new_tokens(request: Any) -> int:
    return request.settings.max_tokens + 1 if hasattr(request, "settings") else 0


def _refuse_all(request: Any, asked: tuple[Asked, ...], read: Callable[[Asked], Any]) -> None:
    """RequestError if `read` refuses each prompt and the request can do nothing then."""
    if len(asked) > 1 and not hasattr(request, "strategies"):
        return
    first = None
    for one in asked:
        try:
            read(one)
            return
        except RequestError as e:
            first = first or e
    if first is not None:
        raise first if len(asked) == 1 else RequestError(f"None of the {len(asked)} prompts can be run. The first: {first}")


def _read(vocabulary: Vocabulary, context: int | None, asked: Asked, request: Any) -> None:
    if asked.written is not None:
        require_readable(vocabulary, context, asked.written)
        return
    prompt = prompts.build(vocabulary, asked.text, system=request.system, raw=request.raw, context=context)
    if context is not None and len(prompt.ids) + min(_new_tokens(request), 1) > context + SLACK:
        raise RequestError(f"The prompt is too long: about {len(prompt.ids):,} tokens, limit {context:,}; shorten it.")


def _context(name: str) -> int | None:
    return source.config(name)["context"]


def _reader(name: str) -> Vocabulary | None:
    """The model's vocabulary, from its tokenizer.json and what lies beside it; None where that cannot be had without loading."""
    try:
        folder = source.reads_with(name)
        files = [f for f in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja") if (folder / f).is_file()]
        if not folder.is_dir() or "tokenizer.json" not in files:
            return None
        stamp = tuple((f, (folder / f).stat().st_size, (folder / f).stat().st_mtime_ns) for f in files)
        vocabulary = _vocabulary(str(folder), source.title(name), stamp)
        rows = fit.rows(name)
        if rows is not None:
            vocabulary.limit(rows)
        return vocabulary
    except Exception:  # not here yet, or of a kind that only its own class reads: the loader says what is wrong with it
        return None


@lru_cache(maxsize=4)
def _vocabulary(folder: str, title: str, _stamp: tuple) -> Vocabulary:
    from transformers import PreTrainedTokenizerFast  # AutoTokenizer brings torch along

    return Vocabulary(PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True), title)
