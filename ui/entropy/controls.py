"""What the Entropy page asks for: prompts, the model, how its tokens are drawn, and how many."""

from __future__ import annotations

import streamlit as st

from engine.models.registry import Entry
from engine.request import Asked, EntropyRequest
from engine.trace import EntropyRun, Sampling, Settings
from ui import onemodel, promptset, session
from ui.session import keep, put, remembered

PREFIX = "entropy"
DEFAULT = "Explain photosynthesis step by step."
DEFAULTS = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.0, "seed": 0, "tokens": 96}
SAMPLING = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty": "repetition_penalty",
            "seed": "seed"}  # control → field
NUMBER = 122  # pixels: five of these and a popover make one row at 1280, two at 390


def draw(models: list[Entry]) -> EntropyRequest:
    """Draw every control but Run and Stop; returns what is asked for now."""
    found = promptset.draw(PREFIX, DEFAULT, ready=tuple(promptset.BUILTIN))
    how = onemodel.draw(PREFIX, models)
    settings = method()
    several = bool(found) and len(found.prompts) > 1
    prompts = tuple(Asked(p.text, p.label if several else "", p.category or "") for p in found.prompts) if found else ()
    return EntropyRequest(prompts, settings=settings, **how)


def method() -> Settings:
    """Sampling and length."""
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        greedy = st.session_state.get(f"{PREFIX}.temperature", DEFAULTS["temperature"]) == 0
        st.number_input("Temp. · greedy" if greedy else "Temperature", 0.0, 2.0, step=0.1, format="%.2f", key=_key("temperature"),
                        width=NUMBER,
                        help="0 is greedy: always the likeliest token, and sampling entropy is 0. Model entropy does not depend on it.")
        st.number_input("top-p", 0.01, 1.0, step=0.05, format="%.2f", key=_key("top_p"), width=NUMBER,
                        help="Draw only from the likeliest tokens that together hold this share of probability. 1 is off. Greedy ignores it.")
        st.number_input("Seed", 0, 2**31 - 1, key=_key("seed"), width=NUMBER,
                        help="The same seed, settings, model and machine give the same tokens. Greedy ignores it.")
        st.number_input("Tokens", 1, 8192, step=16, key=_key("tokens"), width=NUMBER,
                        help="Most tokens each answer has. It may stop sooner, at an end token.")
        given = sum(st.session_state.get(f"{PREFIX}.{name}", DEFAULTS[name]) != DEFAULTS[name] for name in ("top_k", "min_p", "penalty"))
        with st.popover("More settings" + (f" ({given} set)" if given else ""), key=f"{PREFIX}.more"):
            with st.container(horizontal=True, gap="small"):
                st.number_input("top-k", 0, 100_000, key=_key("top_k"), width=NUMBER,
                                help="Draw only from this many likeliest tokens. 0 is off. Greedy ignores it.")
                st.number_input("min-p", 0.0, 1.0, step=0.01, format="%.2f", key=_key("min_p"), width=NUMBER,
                                help="Leave out tokens less likely than this share of the likeliest one. 0 is off. Greedy ignores it.")
                st.number_input("Repetition penalty", 0.1, 2.0, step=0.05, format="%.2f", key=_key("penalty"), width=NUMBER + 40,
                                help="Above 1, tokens that already occurred become less likely. 1 is off.")
    keep(*DEFAULTS, prefix=PREFIX)
    value = {name: st.session_state.get(f"{PREFIX}.{name}", default) for name, default in DEFAULTS.items()}
    made = {field: type(DEFAULTS[name])(value[name]) for name, field in SAMPLING.items()}
    return Settings(max_tokens=int(value["tokens"]), sampling=Sampling(**made))


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


def fill(asked: EntropyRequest) -> None:
    """Set the controls to `asked`; of a set of prompts the first, for the others live in their file."""
    if asked.prompts:
        promptset.fill(PREFIX, asked.prompts[0].text)
    onemodel.fill(PREFIX, asked)
    s = asked.settings.sampling
    put({name: type(DEFAULTS[name])(getattr(s, field)) for name, field in SAMPLING.items()} | {"tokens": asked.settings.max_tokens}, PREFIX)


def changes(asked: EntropyRequest, shown: EntropyRequest) -> list[str]:
    """What differs between the controls and the run on screen, in the controls' words."""
    texts = [p.text for p in asked.prompts] != [session.showable(p.text) for p in shown.prompts]
    found = (["prompts" if len(shown.prompts) > 1 else "prompt"] if texts else []) + onemodel.changes(asked, shown)
    a, b = asked.settings, shown.settings
    # What greedy ignores does not differ: a run says the settings that were used.
    names = ["temperature", "penalty"] if a.sampling.greedy and b.sampling.greedy else list(SAMPLING)
    for name in names:
        if getattr(a.sampling, SAMPLING[name]) != getattr(b.sampling, SAMPLING[name]):
            found.append({"top_k": "top-k", "top_p": "top-p", "min_p": "min-p", "penalty": "repetition penalty"}.get(name, name))
    return found + (["tokens"] if a.max_tokens != b.max_tokens else [])
