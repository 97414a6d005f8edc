"""The controls of a comparison, in the house's order: prompt, models, pair check, method, sampling, length.

They are ordinary widgets, not a Streamlit form: a form tells Python nothing until it is sent, and then neither the pair check
nor the mark "settings changed" could be true. Nothing runs until Run is pressed, as in a form.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import util

import streamlit as st

from engine.machine import memory_total
from engine.models import presets, registry
from engine.models.device import DEVICES, DTYPES
from engine.models.registry import BACKENDS, Entry
from engine.request import CompareRequest
from engine.trace import Run, Settings
from ui import sampling, stopping, taking
from ui.numbers import NUMBER, number
from ui.pairline import pair_html
from ui.session import draw as draw_html, keep, put, remembered, showable

PRESETS = {
    "Explain": "Explain photosynthesis step by step.",
    "Structured (JSON)": "Write a JSON array of the eight planets. Each entry has the keys name, order, moons and rings. "
                         "Print only JSON.",
    "Code": "Write a Python class Stack with push, pop, peek, is_empty and size, a docstring for each method, and three "
            "unit tests.",
    "Summary": "Summarise in three sentences: The Baltic Sea is a shallow arm of the Atlantic Ocean, closed in by nine countries. Its water "
               "is brackish, because many rivers bring fresh water and only narrow straits let salt water in. In winter much of its "
               "northern part freezes. Shipping, fishing and farming put it under strain, and parts of its floor hold no oxygen.",
    "List": "List ten everyday uses of mathematics, numbered, one sentence each.",
    "Repetition": "Copy this line five times: The quick brown fox jumps over the lazy dog.",
    "Polish": "Wyjaśnij krok po kroku, jak powstaje tęcza.",
}
OWN = "Own text"
MODEL, LOOKUP = "Draft model", "Prompt lookup"
DRAFTERS = {MODEL: "model", LOOKUP: "lookup"}

DEFAULTS = {
    "preset": "Explain", "prompt": PRESETS["Explain"], "system": "", "raw": False,
    "verifier": "bundled:smollm2-135m", "draft": "bundled:smollm2-draft", "drafter": MODEL,
    "gamma": 4, "stop_on": False, "stop_at": 0.6, "ngram": 3, "shortest": 1,
    "tokens": 128, "repeats": 1, "backend": "auto", "device": "auto", "dtype": "auto", **sampling.DEFAULTS,
    **stopping.DEFAULTS,
}
TYPED = "speclens.typed"  # the last text that was not a preset's


def draw(models: list[Entry]) -> CompareRequest:
    """Draw every control but Run and Stop; `models` are rows of the registry. Returns what is asked for now."""
    left, right = st.columns([5, 4], gap="medium")
    with left:
        _prompt()
    with right:
        _models(models)
        draw_html(pair_html(request()))
        _fitting_pair()
    method()
    return request()


def method() -> None:
    """Method, sampling and length: the part under the pair check."""
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        number("gamma", "γ", _key("gamma"),
               help="How many tokens the draft proposes in a round before the verifier judges them all in one pass.")
        sampling.draw(_key, ", and both sides must write the same")
        number("max_tokens", "Tokens", _key("tokens"), step=16,
               help="Most tokens each side writes. It may stop sooner, at an end token.")
        number("repeats", "Repeats", _key("repeats"),
               help="How often both sides run. More repeats give a range for the speeds; the text shown is the first one's.")
        _more()
    keep(*DEFAULTS)


def _more() -> None:
    """What is seldom changed. The label counts what is not as it comes, so that nothing set is out of sight."""
    hidden = ("stop_on", "ngram", "shortest", "stop_strings", *sampling.MORE, "backend", "device", "dtype")
    set_here = sum(st.session_state.get(f"compare.{name}", DEFAULTS[name]) != DEFAULTS[name] for name in hidden)
    with st.popover("More settings" + (f" ({set_here} set)" if set_here else ""), key="compare.more"):
        with st.container(horizontal=True, gap="small"):
            st.checkbox("Stop drafting when unsure", key=_key("stop_on"), width=NUMBER * 2 + 16,
                        help="End a round's draft early once the draft model's entropy passes the bound on the right. "
                             "At least one token is drafted every round.")
            number("entropy_stop", "Entropy bound", _key("stop_at"), step=0.05,
                   disabled=not st.session_state["compare.stop_on"],
                   help="Normalised entropy of the draft: 0 is certain, 1 is every token equally likely.")
        with st.container(horizontal=True, gap="small"):
            number("lookup_ngram", "Longest n-gram", _key("ngram"),
                   help="Prompt lookup only: the longest run of tokens it looks for earlier in the text.")
            number("lookup_shortest", "Shortest n-gram", _key("shortest"),
                   help="Prompt lookup only: the shortest run of tokens whose match is copied. Short ones match often, and often wrongly.")
            stopping.draw(_key)
        sampling.more(_key)
        with st.container(horizontal=True, gap="small"):
            engine_select(_key("backend"), NUMBER)
            st.selectbox("Device", DEVICES, key=_key("device"), width=NUMBER,
                         help="Where both models run. auto takes the fastest one this machine has.")
            st.selectbox("Precision", DTYPES, key=_key("dtype"), width=NUMBER + 20,
                         help="Number format of the weights. auto is half precision on an accelerator, and on a CPU float32, which is exact, "
                              "for every model that fits its memory; the card says what was used.")


def engine_select(key: str, width: int) -> None:
    """Which engine runs the models. Whether MLX is there is told without starting it, which takes a while."""
    there = util.find_spec("mlx_lm") is not None
    st.selectbox("Engine", BACKENDS, key=key, width=width, help="What runs the models. auto takes MLX on an Apple GPU, else torch."
                 + ("" if there else " MLX is not installed here; it has builds for Apple silicon and for Linux."))


def _prompt() -> None:
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        st.selectbox("Preset", [*PRESETS, OWN], key=_key("preset"), on_change=_use_preset, width=260,
                     help="A prompt to begin with. Structured and repetitive text drafts well; free prose and Polish are harder "
                          "for this draft.")
        given = bool(st.session_state.get("compare.system")) + bool(st.session_state.get("compare.raw"))
        with st.popover("System, raw" + (f" ({given} set)" if given else ""), key="compare.how"):
            st.text_area("System text", key=_key("system"), height=80,
                         help="Instructions put before the prompt by the model's chat template. Empty means none.")
            st.checkbox("Raw: no chat template", key=_key("raw"),
                        help="Continue the prompt as plain text instead of answering it as a chat message.")
    st.text_area("Prompt", key=_key("prompt"), height=104, on_change=_own_text,
                 help="What both sides answer. It is taken letter by letter: nothing in it is interpreted.")


def _models(models: list[Entry]) -> None:
    titles = {m.name: m.title for m in models}
    verifiers = [m.name for m in models if m.role != "draft"]
    st.selectbox("Verifier", _with(verifiers, "verifier"), key=_key("verifier"), accept_new_options=True,
                 format_func=lambda n: titles.get(n, n),
                 help="The model whose answer counts. Pick one, or type a hub id, a folder or a .gguf file.")
    with st.container(horizontal=True, gap="small"):
        st.segmented_control("Drafter", list(DRAFTERS), key=_key("drafter"), required=True,
                             help="Who proposes tokens: a small model, or prompt lookup, which copies what followed the same "
                                  "words earlier in the text and needs no model.")
        st.selectbox("Draft", _with([m.name for m in models], "draft"), key=_key("draft"), accept_new_options=True, width=230,
                     format_func=lambda n: titles.get(n, n), disabled=st.session_state["compare.drafter"] == LOOKUP,
                     help="The small model that proposes. It must share the verifier's vocabulary. Pick one, or type a hub id, "
                          "a folder or a .gguf file.")


def _fitting_pair() -> None:
    """Offer the largest pair that fits this machine, where MLX has an Apple GPU: its models are packed as only MLX reads them."""
    found = presets.fitting(memory_total()) if registry.settled("auto") == "mlx" else None
    if found is None:
        return
    pair = {"verifier": found.verifier, "draft": found.draft, "drafter": MODEL, "backend": "mlx"}
    st.button(f"Use the pair for {found.title}", key="compare.fitting", type="tertiary", on_click=put, args=(pair,),
              disabled=all(st.session_state.get(f"compare.{name}") == value for name, value in pair.items()),
              help=f"Chooses two models of one family whose weights take {found.weights_gb:g} GB, and MLX to run them. "
                   "The first run fetches them from the hub.")


def _with(names: list[str], control: str) -> list[str]:
    """The list plus what is chosen now: a typed name is a choice like any other."""
    chosen = st.session_state.get(f"compare.{control}") or DEFAULTS[control]
    return names if chosen in names else [*names, chosen]


def _key(name: str) -> str:
    return remembered(name, DEFAULTS[name])


def _use_preset() -> None:
    put({"prompt": PRESETS.get(st.session_state["compare.preset"], st.session_state.get(TYPED, ""))})


def _own_text() -> None:
    text = st.session_state["compare.prompt"]
    if text not in PRESETS.values():
        st.session_state[TYPED] = text  # a preset chosen later must not lose it
    put({"preset": _preset_of(text)})


def _preset_of(text: str) -> str:
    return next((name for name, preset in PRESETS.items() if preset == text), OWN)


def request() -> CompareRequest:
    """The controls as a request."""
    value = {name: st.session_state.get(f"compare.{name}", default) for name, default in DEFAULTS.items()}
    lookup = value["drafter"] == LOOKUP
    settings = Settings(gamma=int(value["gamma"]), drafter="lookup" if lookup else "model",
                        entropy_stop=float(value["stop_at"]) if value["stop_on"] and not lookup else None,
                        lookup_ngram=int(value["ngram"]), lookup_shortest=int(value["shortest"]),
                        stop=stopping.made(value["stop_strings"]), max_tokens=int(value["tokens"]), repeats=int(value["repeats"]),
                        sampling=sampling.made(value))
    return CompareRequest(prompt=value["prompt"], verifier=(value["verifier"] or "").strip(),
                          draft=None if lookup else (value["draft"] or "").strip(), system=value["system"] or None, raw=value["raw"],
                          settings=settings, backend=value["backend"], device=value["device"], dtype=value["dtype"])


def trouble(asked: CompareRequest) -> str | None:
    """The one sentence to show if `asked` cannot even be tried, else None."""
    if not asked.prompt.strip():
        return "The prompt is empty; type what both sides shall answer."
    if not asked.verifier:
        return "No verifier is chosen; pick one, or type a hub id, a folder or a .gguf file."
    if asked.settings.drafter == "model" and not asked.draft:
        return "No draft model is chosen; pick one, or switch the drafter to prompt lookup."
    return None


def request_of(run: Run) -> CompareRequest:
    """The request that made `run`, to compare with the controls or to fill them."""
    verifier, draft = run.models["verifier"], run.models.get("draft")
    settings = replace(run.settings, entropy_stop=None) if run.settings.drafter == "lookup" else run.settings  # it had none to stop at
    return CompareRequest(prompt=run.prompt.text, verifier=verifier.name, draft=draft.name if draft else None, system=run.prompt.system,
                          raw=run.prompt.raw, settings=settings, backend=verifier.backend, device=verifier.asked_device,
                          dtype=verifier.asked_dtype)


def values(asked: CompareRequest) -> dict:
    """A request as the controls' values."""
    s = asked.settings
    return ({"prompt": showable(asked.prompt), "preset": _preset_of(asked.prompt), "system": showable(asked.system or ""), "raw": asked.raw,
             "verifier": asked.verifier, "drafter": LOOKUP if s.drafter == "lookup" else MODEL, "gamma": s.gamma,
             "stop_on": s.entropy_stop is not None, "ngram": s.lookup_ngram, "shortest": s.lookup_shortest, "stop_strings": stopping.shown(s.stop), "tokens": s.max_tokens, "repeats": s.repeats,
             "backend": asked.backend, "device": asked.device, "dtype": asked.dtype} | sampling.values(s.sampling)
            | ({"draft": asked.draft} if asked.draft else {}) | ({"stop_at": s.entropy_stop} if s.entropy_stop is not None else {}))


def fill(asked: CompareRequest) -> None:
    """Set the controls to `asked`, as far as they can take it. Only before they are drawn in this pass, or from another page."""
    put(taking.taken(values(asked)))


def left(asked: CompareRequest, shown: Run) -> list[str]:
    """What `fill` cannot take of the request that made `shown`, in words."""
    return taking.left(values(asked))


def engines(asked, shown) -> tuple[str, str]:
    """The engines of two requests to compare: auto is whatever ran."""
    return shown.backend if asked.backend == "auto" else asked.backend, asked.backend if shown.backend == "auto" else shown.backend


def changes(asked: CompareRequest, shown: CompareRequest) -> list[str]:
    """What differs between the controls and the run on screen, in the controls' words."""
    a, b = asked.settings, shown.settings
    pairs = [("prompt", asked.prompt, shown.prompt), ("system text", asked.system, shown.system), ("raw", asked.raw, shown.raw),
             ("verifier", asked.verifier, shown.verifier), ("draft", asked.draft, shown.draft), ("drafter", a.drafter, b.drafter),
             ("γ", a.gamma, b.gamma), ("entropy bound", a.entropy_stop, b.entropy_stop), ("tokens", a.max_tokens, b.max_tokens),
             ("repeats", a.repeats, b.repeats), ("stop strings", a.stop, b.stop), ("engine", *engines(asked, shown)), ("device", asked.device, shown.device),
             ("precision", asked.dtype, shown.dtype)]
    if a.drafter == b.drafter == "lookup":
        pairs += [("longest n-gram", a.lookup_ngram, b.lookup_ngram), ("shortest n-gram", a.lookup_shortest, b.lookup_shortest)]
    return [name for name, x, y in pairs if x != y] + sampling.changes(a.sampling, b.sampling)
