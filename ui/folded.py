"""The controls in one line, for while they are folded away: the beginning of the prompt, the models, what else matters."""

from __future__ import annotations

from html import escape
from pathlib import PurePath

from engine.request import CompareRequest, EntropyRequest, SinksRequest, UagRequest
from engine.trace import Sampling
from ui import promptset
from ui.preview import letters

START = 90  # characters of a prompt


def line(asked: CompareRequest | SinksRequest | UagRequest | EntropyRequest) -> str:
    """What Run would do now, as HTML."""
    one = isinstance(asked, CompareRequest)
    prompt = asked.prompt if one else promptset.title(asked.prompts)
    words = [*{CompareRequest: _compare, SinksRequest: _sinks, UagRequest: _uag, EntropyRequest: _entropy}[type(asked)](asked), *_changed(asked)]
    shown = f"“{letters(' '.join(prompt[: 4 * START].split()), START)}”" if prompt.strip() else "No prompt yet"
    return f'<b>{escape(shown)}</b><span>{escape(" · ".join(w for w in words if w))}</span>'


def _compare(asked: CompareRequest) -> list[str]:
    s = asked.settings
    draft = "prompt lookup" if s.drafter == "lookup" else name(asked.draft or "")
    return [f"{name(asked.verifier)} with {draft or 'no draft'}", f"γ {s.gamma}", *_length(s.sampling, s.max_tokens, s.repeats)]


def _sinks(asked: SinksRequest) -> list[str]:
    return [*(p.written.source for p in asked.prompts[:1] if p.written), name(asked.model)]


def _entropy(asked: EntropyRequest) -> list[str]:
    return [name(asked.model), *_length(asked.settings.sampling, asked.settings.max_tokens, 1)]


def _uag(asked: UagRequest) -> list[str]:
    s = asked.settings
    return [f"{name(asked.verifier)} with {name(asked.draft)}", ", ".join(asked.strategies) or "no strategy",
            f"k {', '.join(map(str, asked.ks))}" if asked.ks else "no k", *_length(s.sampling, s.max_tokens, s.repeats)]


def _length(sampling: Sampling, tokens: int, repeats: int) -> list[str]:
    drawn = "greedy" if sampling.greedy else f"T {sampling.temperature:g}" + (f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else "")
    return [drawn, f"{tokens:,} tokens", f"{repeats} repeats" if repeats > 1 else ""]


def _changed(asked) -> list[str]:
    """What is seldom set, where it is."""
    return ["system text" if asked.system else "", "raw" if asked.raw else "",
            *(value for value in (asked.backend, asked.device, asked.dtype) if value != "auto")]


def name(model: str) -> str:
    """A model's name as short as it can be told: bundled:NAME → NAME, a path → its last part, a hub id as it is."""
    short = model.removeprefix("bundled:")
    return letters(PurePath(short).name if short.startswith(("/", "~", ".")) else short, 60)
