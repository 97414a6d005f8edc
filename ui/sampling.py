"""How a token is drawn: the same six controls on every page that writes text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping

import streamlit as st

from engine.trace import Sampling
from ui.numbers import NUMBER, number

FIELDS = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty": "repetition_penalty",
          "seed": "seed"}  # control → field
WORDS = {"top_k": "top-k", "top_p": "top-p", "min_p": "min-p", "penalty": "repetition penalty"}
MORE = ("top_k", "min_p", "penalty")  # what `more` draws
DEFAULTS = {name: getattr(Sampling(), field) for name, field in FIELDS.items()}


def draw(key: Callable[[str], str], greedy_means: str = "") -> None:
    """Temperature, top-p and seed. `key` gives a control's widget key; `greedy_means` is what temperature 0 does on this page."""
    greedy = st.session_state.get(key("temperature")) == 0
    number("temperature", "Temp. · greedy" if greedy else "Temperature", key("temperature"), step=0.1,
           help=f"0 is greedy: always the likeliest token{greedy_means}. Higher draws more freely.")
    number("top_p", "top-p", key("top_p"), step=0.05,
           help="Draw only from the likeliest tokens that together hold this share of probability. 1 is off. Greedy ignores it.")
    number("seed", "Seed", key("seed"), help="The same seed, settings, models and machine give the same tokens. Greedy ignores it.")


def more(key: Callable[[str], str]) -> None:
    """What is seldom changed, in a row of its own."""
    with st.container(horizontal=True, gap="small"):
        number("top_k", "top-k", key("top_k"), help="Draw only from this many likeliest tokens. 0 is off. Greedy ignores it.")
        number("min_p", "min-p", key("min_p"), step=0.01,
               help="Leave out tokens less likely than this share of the likeliest one. 0 is off. Greedy ignores it.")
        number("repetition_penalty", "Repetition penalty", key("penalty"), step=0.05, width=NUMBER + 40,
               help="Above 1, tokens that already occurred become less likely. 1 is off.")


def made(value: Mapping[str, Any]) -> Sampling:
    """The controls' values as a setting."""
    return Sampling(**{field: type(DEFAULTS[name])(value[name]) for name, field in FIELDS.items()})


def values(sampling: Sampling) -> dict[str, Any]:
    """A setting as the controls' values."""
    return {name: type(DEFAULTS[name])(getattr(sampling, field)) for name, field in FIELDS.items()}


def changes(asked: Sampling, shown: Sampling) -> list[str]:
    """What differs, in the controls' words. What greedy ignores does not differ: a run says the settings that were used."""
    if asked.greedy and shown.greedy:
        asked, shown = (replace(Sampling(), repetition_penalty=s.repetition_penalty) for s in (asked, shown))
    return [WORDS.get(name, name) for name, field in FIELDS.items() if getattr(asked, field) != getattr(shown, field)]
