"""A run's entropies on a page: which run and which answer, the card, the charts. Runs of other pages show theirs here too."""

from __future__ import annotations

import html
from typing import Sequence

import streamlit as st

import cache
from engine import stamps
from engine.analysis.entropy import Trail, counted, figures, refused, sides
from engine.trace import AnyRun
from ui import kinds, session
from ui.entropy import ribbon
from ui.entropy.card import CSS, card_html
from ui.entropy.takeaway import takeaway
from ui.figure import figure
from ui.jobs import Desk
from ui.preview import letters
from ui.result import theme, when
from ui.share import share
from ui.sinks import answer

KINDS = ("entropy", "compare", "uag")  # kinds of run that hold entropies
OFFERED = 200  # saved runs that can be chosen from here; the Runs page has all
SAVED, CHANGED = "entropy.saved", "entropy.saved.changed"
KEPT = 8  # runs whose sides and figures are kept
LAYOUT = (("line",), ("words", "categories"), ("acceptance", "judged"))


def saved(desk: Desk) -> None:
    """Show: any saved run that holds entropies, those of Compare and of the Polish page too."""
    runs = [s for s in cache.store().list() if s.kind in KINDS and s.tokens and not s.damaged][:OFFERED]
    view = desk.current_view()
    if not runs or (view is not None and view.active):
        return
    shown, _ = desk.shown()
    here = shown.id if shown is not None else None
    names = {s.id: f"{stamps.shown(s.created, seconds=False)} · {kinds.NAMES[s.kind]} · {s.verifier} · {letters(s.name or s.prompt, 60)}"
             for s in runs}
    if here and here not in names:
        names[here] = here
    st.session_state[SAVED] = here
    st.selectbox("Show", list(names), key=SAVED, format_func=lambda id: names.get(id, id), placeholder="a saved run", width=560,
                 on_change=_show_saved, args=(desk,),
                 help="Any run that was kept and holds entropies: of this page, of Compare (both modes) or of Polish.")
    if st.session_state.pop(CHANGED, False):
        st.rerun()  # what is shown stands outside this fragment


def _show_saved(desk: Desk) -> None:
    chosen = st.session_state[SAVED]
    if chosen:
        desk.look(chosen)
        st.session_state[CHANGED] = True


def show(run: AnyRun) -> None:
    """Everything about one run."""
    session.draw(f"<style>{CSS}</style>")
    found = _sides(run)
    if not found:
        session.say(" ".join(why for _, why in refused(run)[:3]) or
                    f"The run of {when(run)} holds no entropies: nothing was written in it, or it comes from a file without them.")
        return
    st.fragment(_show)(run, found)


def _show(run: AnyRun, found: dict[str, tuple[Trail, ...]]) -> None:
    side = next(iter(found))
    if len(found) > 1:
        key = f"entropy.side.{run.id}"
        if st.session_state.get(key) not in found:
            st.session_state[key] = side
        side = (st.segmented_control if len(found) <= 4 else st.selectbox)(
            "Mode", list(found), key=key, help="Both modes of a comparison, or each strategy, hold entropies of their own.",
            **({"required": True} if len(found) <= 4 else {"width": 320}))
    chosen = found[side]
    at = choose(run, side, chosen) if len(chosen) > 1 else 0
    one(run, side, chosen, at)


def choose(run: AnyRun, side: str, chosen: Sequence[Trail]) -> int:
    """The list of answers: one row each, sortable; tick one to see its tokens."""
    import pandas as pd

    of = _kept("each", run, side, lambda: [figures((t,)) for t in chosen])
    column = st.column_config
    state = st.dataframe(
        pd.DataFrame({
            "Prompt": [letters(t.prompt.text, 120) for t in chosen], "Label": [letters(t.label, 40) if t.label else "" for t in chosen],
            "Category": [letters(t.category, 40) if t.category else "" for t in chosen],
            "Mean": [f["entropy_bits"] for f in of], "Sampling": [f["sampling_entropy_bits"] for f in of],
            "Highest": [f["entropy_bits_max"] for f in of], "Above 4": [f["unsure"] for f in of], "Tokens": [f["tokens"] for f in of]}),
        hide_index=True, placeholder="", key=f"entropy.list.{run.id}.{side}", on_select="rerun", selection_mode="single-row",
        height="auto" if len(chosen) <= 8 else 320,
        column_config={
            "Prompt": column.TextColumn(width="medium"), "Label": column.TextColumn(width=90), "Category": column.TextColumn(width=110),
            "Mean": column.NumberColumn(width=80, format="%.2f bits", help="Mean model entropy: of the raw softmax"),
            "Sampling": column.NumberColumn(width=80, format="%.2f bits", help="Mean sampling entropy: after temperature and filters"),
            "Highest": column.NumberColumn(width=80, format="%.2f bits"),
            "Above 4": column.NumberColumn(width=70, help="Tokens above 4 bits of model entropy"), "Tokens": column.NumberColumn(width=70)})
    gone = refused(run)
    said = (f" {counted(len(gone), 'prompt')} {'was' if len(gone) == 1 else 'were'} refused; the card says why." if gone else "")
    session.draw(f'<p class="sl quiet">{len(chosen)} answers. The figures are of all of them; tick one to see its tokens.{said}</p>')
    ticked = [i for i in state.selection.rows if i < len(chosen)]
    return ticked[0] if ticked else 0


def one(run: AnyRun, side: str, chosen: Sequence[Trail], at: int) -> None:
    """What to take away, the card, the charts."""
    trail, length = chosen[at], len(chosen[at].ids)
    parts = -(-length // ribbon.WINDOW)
    with st.container(horizontal=True, vertical_alignment="center", key="entropy-head"):
        session.draw(f'<span class="sl quiet runname">{html.escape(run.name or "Run of " + when(run))}</span>')
        start = 0
        if parts > 1:
            start = ribbon.WINDOW * (st.number_input(
                f"Part of {parts}", 1, parts, key=f"entropy.part.{run.id}.{side}.{at}", width=122,
                help=f"The ribbon and the line chart show {ribbon.WINDOW:,} tokens at a time; the figures and the CSV file cover all.") - 1)
        answer.offer(run, answer.of_generation(run, trail.answer), "entropy.result")
        share(takeaway(run, side, at), theme(), "entropy.result")
    session.draw(card_html(run, chosen, trail, _figures(run, side, chosen), start=start))
    made = specs(run, side, chosen, at, start)
    for row in LAYOUT:
        names = [name for name in row if name in made]
        for column, name in zip(st.columns(max(len(row), 1), gap="large"), names):
            with column:
                figure(made[name], f"entropy.chart.{name}")


def _sides(run: AnyRun) -> dict[str, tuple[Trail, ...]]:
    return _kept("sides", run, "", lambda: sides(run))


def _figures(run: AnyRun, side: str, chosen: Sequence[Trail]) -> dict:
    return _kept("figures", run, side, lambda: figures(chosen))


def specs(run: AnyRun, side: str, chosen: Sequence[Trail], at: int, start: int) -> dict[str, dict]:
    """Vega-Lite of the charts this side can fill, made once; the line chart begins at token `start`."""
    def make() -> dict[str, dict]:
        from altair.utils.schemapi import debug_mode

        from ui.entropy.charts import FIGURES
        made = {}
        with debug_mode(False):  # checking each chart against the schema takes longer than drawing it; the tests do that
            for name, draw in FIGURES.items():
                chart = draw(run, chosen, chosen[at], theme(), **({"start": start} if name == "line" else {}))
                if chart is not None:
                    spec = chart.to_dict(validate=False)
                    made[name] = spec if "vconcat" in spec else {**spec, "autosize": {"type": "fit-x", "contains": "padding"}}
        return made

    return _kept("specs", run, (side, at, start, theme()), make)


def _kept(what: str, run: AnyRun, more, make):
    """What `make` gives, kept in the session for this run object."""
    shelf = st.session_state.setdefault(f"entropy.{what}", {})
    found = shelf.get((run.id, more))
    if found is None or found[0] is not run:
        while len(shelf) >= KEPT:
            shelf.pop(next(iter(shelf)))
        found = shelf[run.id, more] = (run, make())
    return found[1]
