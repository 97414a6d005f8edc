"""What the Entropy page asks for: prompts, the model, how its tokens are drawn, and how many."""

from __future__ import annotations

import streamlit as st

from engine.models.registry import Entry
from engine.request import Asked, EntropyRequest
from engine.trace import EntropyRun, Settings
from ui import onemodel, promptset, sampling, session, stopping, taking
from ui.numbers import number
from ui.session import keep, put, remembered

PREFIX = "entropy"
DEFAULT = "Explain photosynthesis step by step."
DEFAULTS = {**sampling.DEFAULTS, **stopping.DEFAULTS, "tokens": 96}


def draw(models: list[Entry]) -> EntropyRequest:
    """Draw every control but Run and Stop; returns what is asked for now."""
    found = promptset.draw(PREFIX, DEFAULT, ready=tuple(promptset.BUILTIN))
    how = onemodel.draw(PREFIX, models)
    settings = method()
    return EntropyRequest(promptset.asked(found), settings=settings, **how)


def method() -> Settings:
    """Sampling and length."""
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        sampling.draw(_key, ", and sampling entropy is 0. Model entropy does not depend on it")
        number("max_tokens", "Tokens", _key("tokens"), step=16,
               help="Most tokens each answer has. It may stop sooner, at an end token.")
        given = sum(st.session_state.get(f"{PREFIX}.{name}", DEFAULTS[name]) != DEFAULTS[name] for name in (*sampling.MORE, *stopping.DEFAULTS))
        with st.popover("More settings" + (f" ({given} set)" if given else ""), key=f"{PREFIX}.more"):
            sampling.more(_key)
            stopping.draw(_key)
    keep(*DEFAULTS, prefix=PREFIX)
    value = {name: st.session_state.get(f"{PREFIX}.{name}", default) for name, default in DEFAULTS.items()}
    return Settings(max_tokens=int(value["tokens"]), sampling=sampling.made(value), stop=stopping.made(value["stop_strings"]))


def _key(name: str) -> str:
    return remembered(name, DEFAULTS[name], PREFIX)


def trouble(asked: EntropyRequest) -> str | None:
    """The one sentence to show if `asked` cannot even be tried, else None."""
    if not asked.prompts:
        return "There is no prompt to answer; type one, or choose a set or a file."
    if not asked.model:
        return "No model is chosen; pick one, or type a hub id, a folder or a .gguf file."
    return None


def request_of(run: EntropyRun) -> EntropyRequest:
    """The request that made `run`, to compare with the controls or to fill them."""
    facts, first = run.models["model"], run.items[0].prompt if run.items else None
    return EntropyRequest(tuple(Asked(i.prompt.text, i.label, i.category) for i in run.items), facts.name, first.system if first else None,
                          first.raw if first else False, run.settings, facts.backend, facts.asked_device, facts.asked_dtype)


def values(asked: EntropyRequest) -> dict:
    """A request's settings as the controls' values."""
    return onemodel.values(asked) | sampling.values(asked.settings.sampling) | {"tokens": asked.settings.max_tokens, "stop_strings": stopping.shown(asked.settings.stop)}


def fill(asked: EntropyRequest) -> None:
    """Set the controls to `asked`, as far as they can take it."""
    promptset.fill(PREFIX, asked.prompts)
    put(taking.taken(values(asked)), PREFIX)


def left(asked: EntropyRequest, shown: EntropyRun) -> list[str]:
    """What `fill` cannot take of the request that made `shown`, in words."""
    return promptset.left(asked.prompts, shown.items) + taking.left(values(asked))


def changes(asked: EntropyRequest, shown: EntropyRequest) -> list[str]:
    """What differs between the controls and the run on screen, in the controls' words."""
    texts = [p.text for p in asked.prompts] != [session.showable(p.text) for p in shown.prompts]
    found = (["prompts" if len(shown.prompts) > 1 else "prompt"] if texts else []) + onemodel.changes(asked, shown)
    a, b = asked.settings, shown.settings
    return found + sampling.changes(a.sampling, b.sampling) + [name for name, x, y in
            (("tokens", a.max_tokens, b.max_tokens), ("stop strings", a.stop, b.stop)) if x != y]
