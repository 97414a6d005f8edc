"""The pair check in one line: what can be said of two models from their files, before anything is loaded."""

from __future__ import annotations

from functools import lru_cache
from html import escape

import cache
from cache.loaded import fingerprint
from engine import pair
from engine.analysis.sentence import percent
from engine.errors import RequestError
from engine.models import memory, registry
from engine.request import CompareRequest


def pair_html(asked: CompareRequest) -> str:
    """Vocabulary, sizes, memory and break-even of what is asked for; the reason, in place of all that, if it cannot be."""
    names = [n for n in (asked.verifier, asked.draft) if n]
    if not names:
        return _line("Choose a verifier.", "warn")
    held = sum(row.bytes for row in cache.loaded().peek() if row.name in names)
    tokens = 1024 + asked.settings.max_tokens
    try:
        backend = registry.settled(asked.backend)
        if asked.draft is None:
            forecast = memory.forecast((asked.verifier,), asked.dtype, tokens, asked.device, held, backend)
            pair.require(asked.verifier, None)
            said = pair.notes((asked.verifier,), forecast.dtype, backend)
            return _line(" · ".join(["Prompt lookup needs no draft model", _memory(forecast)]), notes=said)
        found = _checked(asked.verifier, asked.draft, asked.dtype, tokens, asked.device, held, backend,
                         tuple(map(fingerprint, names)))
    except RequestError as e:
        return _line(escape(str(e)), "warn")
    if not found.same_vocabulary:
        return _line(escape(found.reason), "warn")
    even = percent(found.break_even) if found.break_even is not None else None
    parts = [
        _hover("same vocabulary ✓", found.reason),
        _hover(_sizes(found.size_ratio), "Parameters of the verifier to those of the draft."),
        _memory(found.forecast),
        _hover(f"break-even {even}" if even else "no break-even",
               "Acceptance above which drafting pays by the textbook: one draft token by FLOPs over one verifier token"
               f" ({found.flops_ratio:.3f}). The card shows the one measured in the run."),
    ]
    return _line(" · ".join(parts), "" if found.forecast.fits else "warn", found.notes)


@lru_cache(maxsize=64)
def _checked(verifier: str, draft: str, dtype: str, tokens: int, device: str, held: int, backend: str, stamp: tuple):
    return pair.check(verifier, draft, dtype, tokens, device, held, backend)


def _sizes(ratio: float) -> str:
    if ratio >= 1:
        return f"{ratio:.0f}:1" if ratio >= 10 else f"{ratio:.1f}:1".replace(".0:", ":")
    return f"1:{1 / ratio:.1f}".removesuffix(".0")


def _memory(forecast) -> str:
    text = forecast.sentence if forecast.fits else f"{forecast.sentence}: more than is free now"
    return _hover(text, "Forecast of the memory both models and their caches take, of all this machine has.")


def _hover(text: str, meaning: str) -> str:
    return f'<abbr title="{escape(meaning)}">{escape(text)}</abbr>'


def _line(html: str, kind: str = "", notes: tuple[str, ...] = ()) -> str:
    told = "".join(f'<br><span class="quiet">{escape(note)}</span>' for note in notes)
    return f'<div class="sl pairline {kind}" role="status"><b>Pair</b> {html}{told}</div>'
