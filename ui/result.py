"""A finished run on a page: the card, one round at a time, the charts, and what to take away."""

from __future__ import annotations

import html

import streamlit as st

from engine import stamps
from engine.analysis.answers import answers
from engine.analysis.metrics import metrics
from engine.trace import Run
from ui import session
from ui.card import card_html
from ui.figure import figure
from ui.ribbon import tokens_of
from ui.rounds import round_count, round_html
from ui.share import share
from ui.sinks import answer
from ui.takeaway import Takeaway

KEPT = 8  # runs whose drawing is kept
LAYOUT = ((("speedup",), ("speed", "time")), (("acceptance",), ("timeline",)), (("entropy",), ()))  # rows of two cells
_kept: dict[int, tuple] = {}
_specs: dict[tuple[int, str], tuple] = {}


def show(run: Run, key: str = "result") -> None:
    """Card, stepper and charts of one run. `key` keeps two runs on one page apart."""
    card = drawn(run)[1]
    with st.container(horizontal=True, vertical_alignment="center", key=f"{key}-head"):
        session.draw(f'<span class="sl quiet runname">{html.escape(run.name or "Run of " + when(run))}</span>')
        answer.offer(run, list(answers(run)), key)
        share(takeaway(run), theme(), key)
    session.draw(card)
    stepper(run, key)
    charts(run, key)


def takeaway(run: Run) -> Takeaway:
    """The run's exports; the rooms that draw them are entered when one is asked for."""
    from ui import export
    return export.takeaway(run, drawn(run)[0], certificate(run))


def when(run: Run) -> str:
    return stamps.shown(run.created, seconds=False)


def theme() -> str:
    """"light" or "dark": what the browser shows now."""
    return "dark" if st.context.theme.type == "dark" else "light"


def drawn(run: Run) -> tuple[dict, str, list]:
    """(metrics, card, tokens of the speculative side with the dropped ones), made once for a run object."""
    proof = certificate(run)
    found = _kept.get(id(run))
    if found is None or found[0] is not run or found[1] != proof:
        figures = metrics(run)
        found = (run, proof, figures, card_html(run, figures, proof), tokens_of(run, "speculative", dropped=True))
        _keep(_kept, id(run), found)
    return found[2:]


def _keep(shelf: dict, key, value) -> None:
    while len(shelf) >= KEPT:
        shelf.pop(next(iter(shelf)), None)
    shelf[key] = value


def certificate(run: Run) -> list[str] | None:
    """What the pair's last certificate said: the verdict and a line a check; None if there is none."""
    from engine import certify
    if "verifier" not in run.models:
        return None
    found = certify.last(certify.pair_key(run.models["verifier"], run.models.get("draft")))
    if found is None:
        return None
    head = f"{'passed' if found.passed else 'FAILED'} on {stamps.shown(found.created, seconds=False)}, {found.dtype}"
    return [head, *(("" if check.passed else "FAILED: ") + check.sentence for check in found.checks)]


@st.fragment
def stepper(run: Run, key: str) -> None:
    """One speculative round at a time, by buttons, slider or the keys J and K."""
    count = round_count(run)
    if not count:
        return
    place = f"{key}.round.{run.id}"
    st.session_state.setdefault(place, 1)

    def move(by: int) -> None:
        st.session_state[place] = min(max(st.session_state[place] + by, 1), count)

    shortcuts = {"shortcut": None} if key != "result" else {}
    with st.container(border=True, key=f"{key}-stepper"):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            st.button("◀", on_click=move, args=(-1,), key=f"{key}.back", disabled=st.session_state[place] <= 1,
                      help="The round before", **({"shortcut": "J"} | shortcuts))
            if count > 1:
                st.slider("Round", 1, count, key=place, width="stretch",
                          help="One verifier pass: what was proposed, how it was judged, what was thrown away.")
            st.button("▶", on_click=move, args=(1,), key=f"{key}.forward", disabled=st.session_state[place] >= count,
                      help="The next round", **({"shortcut": "K"} | shortcuts))
        session.draw(round_html(run, st.session_state[place] - 1, drawn(run)[2]))


@st.fragment
def charts(run: Run, key: str) -> None:
    """Every chart the run can fill, two in a row; each says in its subtitle what to see in it."""
    found = specs(run, theme())
    for row in LAYOUT:
        for column, names in zip(st.columns(2, gap="large"), row):
            with column:
                for name in filter(found.__contains__, names):
                    figure(found[name], f"{key}.chart.{name}")


def specs(run: Run, theme: str) -> dict[str, dict]:
    """Vega-Lite of the run's charts, made once for a run object and a theme."""
    found = _specs.get((id(run), theme))
    if found is None or found[0] is not run:
        from altair.utils.schemapi import debug_mode

        from ui.charts import FIGURES
        made = {}
        with debug_mode(False):  # checking each chart against the schema takes longer than drawing it; the tests do that
            for name, make in FIGURES.items():
                chart = make(run, drawn(run)[0], theme)
                if chart is not None:
                    # fit-x: the height is the plot's; else the title would be taken out of it
                    made[name] = {**chart.to_dict(validate=False), "autosize": {"type": "fit-x", "contains": "padding"}}
        found = (run, made)
        _keep(_specs, (id(run), theme), found)
    return found[1]
