"""What a strategy run is asked for: prompts, a pair, strategies and draft lengths, sampling, length."""

from __future__ import annotations

from html import escape

import psutil
import streamlit as st

from engine.limits import LIMITS
from engine.models.device import DEVICES, DTYPES
from engine.models.cross_pairs import CROSS, words
from engine.models.registry import Entry
from engine.request import Asked, UagRequest, ordered
from engine.trace import Settings, UagRun
from engine.trace.uag import STRATEGIES
from ui import promptset, sampling, session, stopping, taking
from ui.controls import engine_select, engines
from ui.numbers import NUMBER, number
from ui.session import keep, put, remembered

PREFIX = "polish"
DEFAULT = "Wisła jest najdłuższą rzeką w Polsce. Wypływa z"
READY = ("polish", "polish.encyclopaedic", "polish.instructions", "polish.questions")
OWN = "Own pair"
MEANING = {"none": "the draft's ids as they are", "naive": "draft text encoded alone", "context": "encoded with the last committed tokens",
           "tli": "draft restricted to shared tokens"}
DEFAULTS = {"preset": CROSS[0].title, "verifier": CROSS[0].verifier, "draft": CROSS[0].draft, "strategies": list(STRATEGIES), "ks": [2, 4, 6],
            "prefix": 5, **sampling.DEFAULTS, **stopping.DEFAULTS, "tokens": 48, "repeats": 1, "raw": True, "system": "",
            "backend": "auto", "device": "auto", "dtype": "auto"}


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
    return request(promptset.asked(found))


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
        st.multiselect("k", range(LIMITS["k"].low, LIMITS["k"].high + 1), key=_key("ks"), width=NUMBER * 2, placeholder="choose",
                       help="Draft tokens written per round, before the verifier judges. Each k is a run of its own.")
        number("prefix", "p", _key("prefix"), width=NUMBER - 30,
               help="Strategy context: how many committed tokens are encoded again in front of the draft's text.")
        sampling.draw(_key, ", so every strategy must give the verifier's own answer")
        number("max_tokens", "Tokens", _key("tokens"), step=16, help="Most tokens of each answer.")
        number("repeats", "Repeats", _key("repeats"), help="How often each is timed; the text shown is the first one's.")
        with st.popover("More settings", key=f"{PREFIX}.more"):
            st.text_area("System text", key=_key("system"), height=80, help="Put before the prompt by each model's own chat template. Empty means none.")
            st.checkbox("Raw: no chat template", key=_key("raw"), help="Continue the prompt as plain text. The bundled Polish models are base models.")
            sampling.more(_key)
            stopping.draw(_key)
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
    settings = Settings(max_tokens=int(v["tokens"]), repeats=int(v["repeats"]), sampling=sampling.made(v), stop=stopping.made(v["stop_strings"]))
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
    return UagRequest(tuple(Asked(i.prompt.text, i.label, i.category) for i in run.items), verifier.name, draft.name, *ordered(run.strategies, run.ks),
                      run.prefix, first.system if first else None, first.raw if first else True, run.settings, verifier.backend,
                      verifier.asked_device, verifier.asked_dtype)


def values(asked: UagRequest) -> dict:
    """A request's settings as the controls' values."""
    s = asked.settings
    return {"verifier": asked.verifier, "draft": asked.draft, "preset": _title_of(asked.verifier, asked.draft),
            "strategies": list(asked.strategies), "ks": list(asked.ks), "prefix": asked.prefix, "tokens": s.max_tokens, "repeats": s.repeats,
            "raw": asked.raw, "system": session.showable(asked.system or ""), "backend": asked.backend, "device": asked.device,
            "dtype": asked.dtype} | sampling.values(s.sampling) | {"stop_strings": stopping.shown(s.stop)}


def fill(asked: UagRequest) -> None:
    """Set the controls to `asked`, as far as they can take it."""
    promptset.fill(PREFIX, asked.prompts)
    put(taking.taken(values(asked)), PREFIX)


def left(asked: UagRequest, shown: UagRun) -> list[str]:
    """What `fill` cannot take of the request that made `shown`, in words."""
    return promptset.left(asked.prompts, shown.items) + taking.left(values(asked))


def changes(asked: UagRequest, shown: UagRequest) -> list[str]:
    """What differs between the controls and the run on screen."""
    a, b = asked.settings, shown.settings
    texts = [p.text for p in asked.prompts], [session.showable(p.text) for p in shown.prompts]
    pairs = [("prompt" if len(texts[1]) < 2 else "prompts", *texts), ("verifier", asked.verifier, shown.verifier), ("draft", asked.draft, shown.draft),
             ("strategies", asked.strategies, shown.strategies), ("k", asked.ks, shown.ks), ("p", asked.prefix, shown.prefix),
             ("tokens", a.max_tokens, b.max_tokens), ("repeats", a.repeats, b.repeats), ("stop strings", a.stop, b.stop),
             ("raw", asked.raw, shown.raw), ("system text", asked.system, shown.system), ("engine", *engines(asked, shown)),
             ("device", asked.device, shown.device), ("precision", asked.dtype, shown.dtype)]
    return [name for name, x, y in pairs if x != y] + sampling.changes(a.sampling, b.sampling)
