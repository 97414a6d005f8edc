"""What a strategy run is asked for: prompts, a pair, strategies and draft lengths, sampling, length."""

from __future__ import annotations

from html import escape

import psutil
import streamlit as st

from engine.models.device import DEVICES, DTYPES
from engine.models.cross_pairs import CROSS, words
from engine.models.registry import Entry
from engine.request import Asked, UagRequest
from engine.trace import Sampling, Settings, UagRun
from engine.trace.uag import STRATEGIES
from ui import promptset, session
from ui.controls import engine_select, engines
from ui.session import keep, put, remembered

PREFIX = "polish"
DEFAULT = "Wisła jest najdłuższą rzeką w Polsce. Wypływa z"
READY = ("polish", "polish.encyclopaedic", "polish.instructions", "polish.questions")
OWN = "Own pair"
MEANING = {"none": "the draft's ids as they are", "naive": "draft text encoded alone", "context": "encoded with the last committed tokens",
           "tli": "draft restricted to shared tokens"}
DEFAULTS = {"preset": CROSS[0].title, "verifier": CROSS[0].verifier, "draft": CROSS[0].draft, "strategies": list(STRATEGIES), "ks": [2, 4, 6],
            "prefix": 5, "temperature": 0.0, "top_p": 1.0, "seed": 0, "tokens": 48, "repeats": 1, "raw": True, "system": "",
            "backend": "auto", "device": "auto", "dtype": "auto"}
NUMBER = 122


def draw(models: list[Entry]) -> UagRequest:
    """Draw every control but Run and Stop; returns what is asked for now."""
    left, right = st.columns([5, 4], gap="medium")
    with left:
        ready = tuple(name for name in READY if name in promptset.BUILTIN)
        found = promptset.draw(PREFIX, DEFAULT, ready=ready, most=12)
    with right:
        _pair(models)
    _method()
    keep(*DEFAULTS, prefix=PREFIX)
    return request(tuple(Asked(p.text, p.label, p.category or "") for p in found.prompts) if found else ())


def _pair(models: list[Entry]) -> None:
    st.selectbox("Pair", [*(p.title for p in CROSS), OWN], key=_key("preset"), on_change=_use_preset,
                 help="A verifier, and a draft with another tokenizer. Pairs from the hub are fetched when they are run.")
    titles = {m.name: m.title for m in models}
    with st.container(horizontal=True, gap="small"):
        for role, help in (("verifier", "The model whose answer counts. Pick one, or type a hub id, a folder or a .gguf file."),
                           ("draft", "The small model that writes ahead, in its own tokens. Pick one, or type a hub id, a folder or a .gguf file.")):
            chosen = st.session_state.get(f"{PREFIX}.{role}") or DEFAULTS[role]
            names = [m.name for m in models if role == "draft" or m.role != "draft"]
            st.selectbox(role.capitalize(), names if chosen in names else [*names, chosen], key=_key(role), accept_new_options=True,
                         format_func=lambda n: titles.get(n, n), on_change=_own, width=222, help=help)
    preset = _preset()
    if preset is not None:
        said = words(preset, psutil.virtual_memory().total) + (f" {preset.note}" if preset.note else "")
        session.draw(f'<p class="sl quiet" role="status">{escape(said)}</p>')


def _method() -> None:
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        st.pills("Strategies", list(STRATEGIES), key=_key("strategies"), selection_mode="multi",
                 help="How draft text becomes tokens of the verifier. " + "; ".join(f"{name}: {what}" for name, what in MEANING.items()) + ".")
        st.pills("k", [1, 2, 3, 4, 6, 8], key=_key("ks"), selection_mode="multi", help="Draft tokens written per round, before the verifier judges.")
        st.number_input("p", 0, 64, key=_key("prefix"), width=NUMBER - 30,
                        help="Strategy context: how many committed tokens are encoded again in front of the draft's text.")
        greedy = st.session_state.get(f"{PREFIX}.temperature", 0.0) == 0
        st.number_input("Temp. · greedy" if greedy else "Temperature", 0.0, 2.0, step=0.1, format="%.2f", key=_key("temperature"), width=NUMBER,
                        help="0 is greedy: always the likeliest token, so every strategy must give the verifier's own answer.")
        st.number_input("top-p", 0.01, 1.0, step=0.05, format="%.2f", key=_key("top_p"), width=NUMBER,
                        help="Draw only from the likeliest tokens that together hold this share of probability. 1 is off.")
        st.number_input("Seed", 0, 2**31 - 1, key=_key("seed"), width=NUMBER, help="The same for every strategy. Greedy ignores it.")
        st.number_input("Tokens", 1, 8192, step=16, key=_key("tokens"), width=NUMBER, help="Most tokens of each answer.")
        st.number_input("Repeats", 1, 20, key=_key("repeats"), width=NUMBER, help="How often each is timed; the text shown is the first one's.")
        with st.popover("More settings", key=f"{PREFIX}.more"):
            st.text_area("System text", key=_key("system"), height=80, help="Put before the prompt by each model's own chat template. Empty means none.")
            st.checkbox("Raw: no chat template", key=_key("raw"), help="Continue the prompt as plain text. The bundled Polish models are base models.")
            with st.container(horizontal=True, gap="small"):
                engine_select(_key("backend"), NUMBER)
                st.selectbox("Device", DEVICES, key=_key("device"), width=NUMBER, help="Where both models run.")
                st.selectbox("Precision", DTYPES, key=_key("dtype"), width=NUMBER + 20, help="Number format of the weights; the card says what was used.")


def _key(name: str) -> str:
    return remembered(name, DEFAULTS[name], PREFIX)


def _preset():
    return next((p for p in CROSS if p.title == st.session_state.get(f"{PREFIX}.preset")), None)


def _use_preset() -> None:
    preset = _preset()
    if preset is not None:
        chat = not preset.verifier.startswith("bundled:")
        put({"verifier": preset.verifier, "draft": preset.draft, "raw": not chat,
             "backend": preset.backend if chat else "auto"}, PREFIX)


def _own() -> None:
    pair = (st.session_state[f"{PREFIX}.verifier"], st.session_state[f"{PREFIX}.draft"])
    put({"preset": _title_of(*pair)}, PREFIX)


def _title_of(verifier: str, draft: str) -> str:
    return next((p.title for p in CROSS if (p.verifier, p.draft) == (verifier, draft)), OWN)


def request(prompts: tuple[Asked, ...]) -> UagRequest:
    """The controls as a request."""
    v = {name: st.session_state.get(f"{PREFIX}.{name}", default) for name, default in DEFAULTS.items()}
    sampling = Sampling(temperature=float(v["temperature"]), top_p=float(v["top_p"]), seed=int(v["seed"]))
    settings = Settings(max_tokens=int(v["tokens"]), repeats=int(v["repeats"]), sampling=sampling)
    strategies = tuple(s for s in STRATEGIES if s in (v["strategies"] or ()))
    return UagRequest(prompts, (v["verifier"] or "").strip(), (v["draft"] or "").strip(), strategies, tuple(sorted(v["ks"] or ())),
                      int(v["prefix"]), v["system"] or None, v["raw"], settings, v["backend"], v["device"], v["dtype"])


def trouble(asked: UagRequest) -> str | None:
    """The one sentence to show if `asked` cannot even be tried, else None."""
    if not asked.prompts:
        return "There is no prompt to run; type one, or choose a set or a file."
    if not asked.verifier or not asked.draft:
        return "A verifier and a draft are needed; pick a pair, or type a hub id, a folder or a .gguf file."
    if not asked.strategies:
        return "No strategy is chosen; pick at least one."
    if not asked.ks:
        return "No k is chosen; pick how many tokens the draft writes a round."
    return None


def amount(asked: UagRequest) -> str:
    """How much work Run means."""
    answers = len(asked.prompts) * (1 + len(asked.strategies) * len(asked.ks)) * asked.settings.repeats
    return f"{answers} answers of at most {asked.settings.max_tokens} tokens" if asked.prompts else ""


def request_of(run: UagRun) -> UagRequest:
    """The request that made `run`, to compare with the controls or to fill them."""
    verifier, draft, first = run.models["verifier"], run.models["draft"], run.items[0].prompt if run.items else None
    return UagRequest(tuple(Asked(i.prompt.text, i.label, i.category) for i in run.items), verifier.name, draft.name, run.strategies, run.ks,
                      run.prefix, first.system if first else None, first.raw if first else True, run.settings, verifier.backend,
                      verifier.asked_device, verifier.asked_dtype)


def fill(asked: UagRequest) -> None:
    """Set the controls to `asked`; of a set of prompts the first, for the others live in their file."""
    s = asked.settings
    if asked.prompts:
        promptset.fill(PREFIX, asked.prompts[0].text)
    put({"verifier": asked.verifier, "draft": asked.draft, "preset": _title_of(asked.verifier, asked.draft), "strategies": list(asked.strategies),
         "ks": [k for k in asked.ks if k in (1, 2, 3, 4, 6, 8)], "prefix": asked.prefix, "temperature": float(s.sampling.temperature),
         "top_p": float(s.sampling.top_p), "seed": s.sampling.seed, "tokens": s.max_tokens, "repeats": s.repeats, "raw": asked.raw,
         "system": session.showable(asked.system or ""), "backend": asked.backend, "device": asked.device, "dtype": asked.dtype}, PREFIX)


def changes(asked: UagRequest, shown: UagRequest) -> list[str]:
    """What differs between the controls and the run on screen."""
    a, b = asked.settings, shown.settings
    texts = [p.text for p in asked.prompts], [session.showable(p.text) for p in shown.prompts]
    pairs = [("prompt" if len(texts[1]) < 2 else "prompts", *texts), ("verifier", asked.verifier, shown.verifier), ("draft", asked.draft, shown.draft),
             ("strategies", asked.strategies, shown.strategies), ("k", asked.ks, shown.ks), ("p", asked.prefix, shown.prefix),
             ("sampling", a.sampling, b.sampling), ("tokens", a.max_tokens, b.max_tokens), ("repeats", a.repeats, b.repeats),
             ("raw", asked.raw, shown.raw), ("system text", asked.system, shown.system), ("engine", *engines(asked, shown)),
             ("device", asked.device, shown.device), ("precision", asked.dtype, shown.dtype)]
    return [name for name, x, y in pairs if x != y]
