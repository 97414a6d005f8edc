"""A finished strategy run on a page: the card, one round at a time, two strategies side by side, the charts."""

from __future__ import annotations

import html

import streamlit as st

from engine.analysis.uag import Figures, figures
from engine.trace import UagItem, UagResult, UagRun
from ui import session
from ui.figure import figure
from ui.preview import letters
from ui.result import theme, when
from ui.ribbon import legend_html, ribbon_html, tokens_from
from ui.session import keep, remembered
from ui.share import share
from ui.sinks import answer as read
from ui.polish import stepper
from ui.polish.card import CSS, card_html
from ui.polish.takeaway import takeaway

PREFIX = "polish.view"
KEPT = 8
LAYOUT = (("acceptance", "speed"), ("causes", ""))
_kept: dict[int, tuple] = {}


def drawn(run: UagRun) -> tuple[Figures, str]:
    """(figures, card), made once for a run object."""
    found = _kept.get(id(run))
    if found is None or found[0] is not run:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)), None)
        f = figures(run)
        found = _kept[id(run)] = (run, f, card_html(run, f))
    return found[1:]


def show(run: UagRun) -> None:
    """Everything about one run."""
    session.draw(f"<style>{CSS}{stepper.CSS}</style>")
    f, card = drawn(run)
    for item in run.items:
        if item.refused:
            session.say(f"{item.label}: {item.refused}" if item.label and len(run.items) > 1 else item.refused)
    with st.container(horizontal=True, vertical_alignment="center", key="polish-head"):
        session.draw(f'<span class="sl quiet runname">{html.escape(run.name or "Run of " + when(run))}</span>')
        share(takeaway(run, f), theme(), "polish.result")
    session.draw(card)
    if any(item.results for item in run.items):
        st.fragment(_look)(run)
    charts(run, f)


def _look(run: UagRun) -> None:
    """One prompt's answers: the stepper, and two of them beside each other."""
    items = [item for item in run.items if item.results]
    at = 0
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="polish-look"):
        if len(items) > 1:
            at = st.selectbox("Prompt", range(len(items)), format_func=lambda i: letters(items[i].prompt.text, 60), key=f"{PREFIX}.prompt.{run.id}",
                              width=420, help="Whose rounds and answers are shown below.")
        item = items[at]
        names = [_name(r) for r in item.results]
        first = st.selectbox("Step through", names, index=_first(item), key=f"{PREFIX}.one.{run.id}.{at}", width=170,
                             help="The strategy and k whose rounds are shown.")
        second = st.selectbox("Beside it", ["nothing", "verifier-only", *names], key=f"{PREFIX}.two.{run.id}.{at}", width=170,
                              help="A second answer to the same prompt, drawn beside the first.")
        chosen = item.results[names.index(first)]
        read.offer(run, read.of_generation(run, chosen.answer), "polish.result")
    rounds(run, chosen, f"{run.id}.{at}.{first}")
    answers(run, item, chosen, second)


def _name(result: UagResult) -> str:
    return f"{result.strategy}, k = {result.k}"


def _first(item: UagItem) -> int:
    """context is where most is to be seen."""
    return next((i for i, r in enumerate(item.results) if r.strategy == "context"), 0)


def rounds(run: UagRun, result: UagResult, key: str) -> None:
    """One round at a time, by buttons, slider or the keys J and K."""
    count = stepper.round_count(result)
    if not count:
        return
    place = f"{PREFIX}.round.{key}"
    st.session_state.setdefault(place, 1)

    def move(by: int) -> None:
        st.session_state[place] = min(max(st.session_state[place] + by, 1), count)

    with st.container(border=True, key="polish-stepper"):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            st.button("◀", on_click=move, args=(-1,), key="polish.back", disabled=st.session_state[place] <= 1, help="The round before", shortcut="J")
            if count > 1:
                st.slider("Round", 1, count, key=place, width="stretch", help="One verifier pass: what the draft said, how it was cut, what survived.")
            st.button("▶", on_click=move, args=(1,), key="polish.forward", disabled=st.session_state[place] >= count, help="The next round", shortcut="K")
        session.draw(stepper.round_html(run, result, st.session_state[place] - 1))


def answers(run: UagRun, item: UagItem, chosen: UagResult, second: str) -> None:
    """The answer as a ribbon; two of them side by side."""
    shown = [(_name(chosen), chosen.answer)]
    if second == "verifier-only" and item.plain is not None:
        shown.append(("verifier-only", item.plain))
    elif second != "nothing":
        other = next((r for r in item.results if _name(r) == second), None)
        shown += [(second, other.answer)] if other else []
    sides = "".join(f'<section class="side"><h3><b>{html.escape(name)}</b></h3>{_ribbon(run, answer)}</section>' for name, answer in shown)
    states = {t.state for _, answer in shown for t in tokens_from(answer.rounds, run.tokens, run.special, answer, True)}
    grid = "sides" if len(shown) > 1 else ""
    session.draw(f'<div class="sl" style="display:grid;gap:10px"><div class="{grid}">{sides}</div>{legend_html(states)}</div>')


def _ribbon(run: UagRun, answer) -> str:
    return ribbon_html(tokens_from(answer.rounds, run.tokens, run.special, answer, True), frame=False)


def charts(run: UagRun, f: Figures) -> None:
    from altair.utils.schemapi import debug_mode

    from ui.polish.charts import FIGURES
    with debug_mode(False):  # checking each chart against the schema takes longer than drawing it; the tests do that
        made = {name: chart.to_dict(validate=False) | {"autosize": {"type": "fit-x", "contains": "padding"}}
                for name, make in FIGURES.items() if (chart := make(run, f, theme())) is not None}
    for row in LAYOUT:
        for column, name in zip(st.columns(2, gap="large"), row):
            if name in made:
                with column:
                    figure(made[name], f"polish.chart.{name}")
