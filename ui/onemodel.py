"""Controls of the pages that look at one model: which it is, how it reads the prompt, and on what it runs."""

from __future__ import annotations

from typing import Sequence

import streamlit as st

from engine.models.device import DEVICES, DTYPES
from engine.models.registry import Entry
from ui.controls import engine_select, engines
from ui.session import keep, remembered, showable

DEFAULTS = {"model": "bundled:smollm2-135m", "system": "", "raw": False, "backend": "auto", "device": "auto", "dtype": "auto"}


def draw(prefix: str, models: Sequence[Entry]) -> dict:
    """Draw them in one row; returns the values by the names of `DEFAULTS`, ready for a request."""
    titles = {m.name: m.title for m in models}
    names = [m.name for m in models if m.role != "draft"]
    chosen = st.session_state.get(f"{prefix}.model") or DEFAULTS["model"]
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        st.selectbox("Model", names if chosen in names else [*names, chosen], key=remembered("model", DEFAULTS["model"], prefix),
                     accept_new_options=True, format_func=lambda n: titles.get(n, n), width=320,
                     help="Pick one, or type a hub id, a folder or a .gguf file.")
        value = {name: st.session_state.get(f"{prefix}.{name}", default) for name, default in DEFAULTS.items()}
        given = bool(value["system"]) + bool(value["raw"]) + sum(value[name] != DEFAULTS[name] for name in ("backend", "device", "dtype"))
        with st.popover("System, raw, device" + (f" ({given} set)" if given else ""), key=f"{prefix}.how"):
            st.text_area("System text", key=remembered("system", "", prefix), height=80,
                         help="Instructions put before the prompt by the model's chat template. Empty means none.")
            st.checkbox("Raw: no chat template", key=remembered("raw", False, prefix), help="Read the prompt as plain text, not as a chat message.")
            with st.container(horizontal=True, gap="small"):
                engine_select(remembered("backend", "auto", prefix), 122)
                st.selectbox("Device", DEVICES, key=remembered("device", "auto", prefix), width=122,
                             help="Where the model runs. auto takes the fastest one this machine has.")
                st.selectbox("Precision", DTYPES, key=remembered("dtype", "auto", prefix), width=142,
                             help="Number format of the weights. auto is half precision on an accelerator, and on a CPU float32, which is exact, "
                                  "for every model that fits its memory; the card says what was used.")
    keep(*DEFAULTS, prefix=prefix)
    value = {name: st.session_state.get(f"{prefix}.{name}", default) for name, default in DEFAULTS.items()}
    return {**value, "model": (value["model"] or "").strip(), "system": value["system"] or None}


def values(asked) -> dict:
    """Those of a request as the controls' values."""
    return {name: getattr(asked, name) for name in ("model", "raw", "backend", "device", "dtype")} | {"system": showable(asked.system or "")}


def changes(asked, shown) -> list[str]:
    """What differs between two requests, in the controls' words."""
    names = {"model": "model", "system": "system text", "raw": "raw", "device": "device", "dtype": "precision"}
    differ = [word for name, word in names.items() if getattr(asked, name) != getattr(shown, name)]
    return differ + (["engine"] if len(set(engines(asked, shown))) > 1 else [])
