"""A finished sinks run on a page: the list of its prompts, then for one of them the card and charts, with their own controls.

Nothing here asks the model: threshold, layers, heads, exclusion and edge correction are worked out from the sums in the run.
"""

from __future__ import annotations

import html

import streamlit as st

from engine.attention.null import DEFAULT_THRESHOLD
from engine.attention.statistics import z_scores
from engine.attention.view import SinkView, judged, learned, selected
from engine.errors import RequestError
from engine.limits import LIMITS
from engine.trace import SinksRun
from ui import session
from ui.figure import figure
from ui.preview import letters
from ui.result import theme, when
from ui.session import keep, remembered
from ui.share import share
from ui.sinks import ribbon, takeaway
from ui.sinks.card import CSS, Z_HELP, Chosen, card_html

PREFIX = "sinks.view"
KEPT = 12  # scored prompts that are kept while controls move
LAYOUT = (("histogram", "null"), ("layers", "heads"))
MISSING = "The attention of this prompt is not here: the file beside the run is missing. Run the prompt again."


def show(run: SinksRun) -> None:
    """Everything about one run."""
    session.draw(f"<style>{CSS}</style>")
    read = [i for i, item in enumerate(run.items) if item.sums is not None and item.sums.received is not None]
    for item in run.items:
        if item.refused and len(run.items) <= 3:
            session.say(f"{item.label}: {item.refused}" if len(run.items) > 1 else item.refused)
    if not read:
        if not run.items:
            session.say("The run was stopped before a prompt was read.", "note")
        elif not any(item.refused for item in run.items):
            session.say(MISSING)
        return
    st.fragment(_show)(run, read)


def _show(run: SinksRun, read: list[int]) -> None:
    controls(run)
    first, second = read[0], None
    if len(run.items) > 1:
        first, second = choose(run, read)
    if second is None:
        one(run, first, "sinks.one")
        return
    for column, at, key in zip(st.columns(2, gap="medium"), (first, second), ("sinks.one", "sinks.two")):
        with column:
            one(run, at, key, beside=True)


def controls(run: SinksRun) -> None:
    """Threshold, correction, layers and heads: they move the view, never the run."""
    facts = run.models["model"]
    item = next(i for i in run.items if i.sums is not None and i.sums.received is not None)
    layers, heads, _ = item.sums.received.shape
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="sinks-look"):
        st.slider("Threshold", LIMITS["threshold"].low, LIMITS["threshold"].high, step=0.1, key=remembered("threshold", DEFAULT_THRESHOLD, PREFIX), width=300, format="%.1f",
                  help=f"A token is a sink from this score on; the arrow keys move it. {DEFAULT_THRESHOLD:g} is the smallest threshold that "
                       "flags at most 1 % of the content tokens of ordinary text (the chart “What ordinary text has”).")
        with st.container(width=200):
            st.checkbox("Edge-corrected", key=remembered("corrected", True, PREFIX),
                        help="Score by z′, which compares tokens at equal numbers of queries. Without it the tail of any prompt looks like a sink, "
                             f"because only near queries see it. {Z_HELP}")
            st.checkbox("Leave structural out", key=remembered("exclude", True, PREFIX),
                        help="Take median and spread over the tokens that are not the chat template's.")
        _some("Layers", "layers", layers, f"Of the {layers} layers of {facts.title}; none chosen means all.")
        _some("Heads", "heads", heads, f"Of the {heads} attention heads in each layer; none chosen means all.")
        if st.session_state[f"{PREFIX}.layers"] or st.session_state[f"{PREFIX}.heads"]:
            st.button("All", on_click=_choose_head, args=(None, None), key="sinks.all", help="All layers and heads again.")
    keep("threshold", "corrected", "exclude", "layers", "heads", prefix=PREFIX)


def _some(label: str, name: str, count: int, help: str) -> None:
    key = remembered(name, [], PREFIX)
    st.session_state[key] = [i for i in st.session_state[key] if i < count]  # chosen for another model
    st.multiselect(label, range(count), key=key, placeholder="all", width=190, help=help)


def _choose_head(layer: int | None, head: int | None) -> None:
    session.put({"layers": [] if layer is None else [layer], "heads": [] if head is None else [head]}, PREFIX)


def choose(run: SinksRun, read: list[int]) -> tuple[int, int | None]:
    """The list of prompts: one row each, sortable; tick one to see it, two to see them side by side."""
    import pandas as pd

    views = {i: viewed(run, i) for i in read}
    data = pd.DataFrame({
        "Prompt": [_cell(item.prompt.text, 120) for item in run.items],
        "Label": [_cell(item.label, 40) for item in run.items], "Category": [_cell(item.category, 40) for item in run.items],
        "Tokens": [len(item.prompt.ids) or None for item in run.items],
        "Health": [views[i].health.value if i in views else None for i in range(len(run.items))],
        "Published": [views[i].health_published if i in views else None for i in range(len(run.items))],
        "Sinks outside": [views[i].health.count if i in views else None for i in range(len(run.items))],
        "Drained": [100 * views[i].health.drained if i in views and views[i].health.drained is not None else None for i in range(len(run.items))],
        "Seconds": [item.seconds for item in run.items],
        "Note": [_cell(item.refused or (views[i].health.reason if i in views else None), 200) for i, item in enumerate(run.items)]})
    column = st.column_config
    state = st.dataframe(
        data, hide_index=True, placeholder="", key=f"sinks.list.{run.id}", on_select="rerun", selection_mode="multi-row",
        height="auto" if len(data) <= 8 else 320,
        column_config={
            "Prompt": column.TextColumn(width="medium"), "Label": column.TextColumn(width=80), "Category": column.TextColumn(width=90),
            "Tokens": column.NumberColumn(width=65), "Health": column.NumberColumn(width=65, format="%.1f", help="0–10; see the card"),
            "Published": column.NumberColumn(width=80, format="%.1f", help="10 − 10 · density − min(mean z, 5)"),
            "Sinks outside": column.NumberColumn(width=90, help="Sinks that the chat template does not explain, without the one that any text has at its first position"),
            "Drained": column.NumberColumn(width=75, format="%.1f %%", help="Of all attention, above what typical tokens get"),
            "Seconds": column.NumberColumn(width=70, format="%.2f s"), "Note": column.TextColumn(width="medium")})
    ticked = [i for i in state.selection.rows if i in read]
    refused = len(run.items) - len(read)
    session.draw(f'<p class="sl quiet">{len(read)} of {len(run.items)} prompts were read'
                 + (f"; {refused} {'was' if refused == 1 else 'were'} not, and the table says why" if refused else "")
                 + ". Tick one to see it, two to see them side by side.</p>")
    return (ticked[0] if ticked else read[0]), (ticked[1] if len(ticked) > 1 else None)


def _cell(text: str | None, limit: int) -> str:
    return letters(text, limit) if text else ""


def one(run: SinksRun, at: int, key: str, beside: bool = False) -> None:
    """One prompt: what to take away, the card, the charts."""
    item = run.items[at]
    try:
        view = viewed(run, at)
    except RequestError as e:
        session.say(str(e))
        return
    chosen = chosen_now()
    length = len(item.prompt.ids)
    name = run.name or "Run of " + when(run)
    label = f" · {letters(item.label, 60)}" if len(run.items) > 1 else ""
    with st.container(horizontal=True, vertical_alignment="center", key=f"{key}-head"):
        session.draw(f'<span class="sl quiet runname">{html.escape(name + label)}</span>')
        start = 0
        if length > ribbon.WINDOW:
            start = ribbon.WINDOW * (st.number_input(
                f"Part of {-(-length // ribbon.WINDOW)}", 1, -(-length // ribbon.WINDOW), key=f"{key}.part.{run.id}.{at}", width=122,
                help=f"The ribbon shows {ribbon.WINDOW:,} tokens at a time; tables and charts cover all.") - 1)
        share(takeaway.takeaway(run, at, view, chosen), theme(), key)
    session.draw(f'<div class="{"sl-narrow" if beside else ""}">{card_html(run, item, view, chosen, start=start)}</div>')
    charts(run, at, view, key, beside)


def charts(run: SinksRun, at: int, view: SinkView, key: str, beside: bool) -> None:
    """Every chart, two in a row; a cell of the head map chooses that head."""
    made = specs(run, at, view)
    for row in LAYOUT:
        for column, name in zip(st.columns(1 if beside else 2, gap="large") * 2, row):
            if name not in made:
                continue
            with column:
                picked = figure(made[name], f"{key}.chart.{name}", **({"on_select": "rerun", "selection_mode": "head"} if name == "heads" else {}))
                if name == "heads":
                    _picked(picked, key)


def _picked(state, key: str) -> None:
    """A cell of the head map was chosen: look at that head alone."""
    cells = state.selection.get("head") if state else None
    cell = cells[0] if isinstance(cells, list) and cells else None
    place = f"{key}.picked"
    if cell and st.session_state.get(place) != cell:
        st.session_state[place] = cell
        _choose_head_later(int(cell["layer"]), int(cell["head"]))


def _choose_head_later(layer: int, head: int) -> None:
    """The pickers were drawn above: their values change in the next pass, which begins at once."""
    for name, value in (("layers", [layer]), ("heads", [head])):
        st.session_state.setdefault(session.MEMORY, {})[f"{PREFIX}.{name}"] = value
        st.session_state.pop(f"{PREFIX}.{name}", None)
    st.rerun(scope="fragment")


def chosen_now() -> Chosen:
    value = st.session_state
    return Chosen(tuple(value[f"{PREFIX}.layers"]) or None, tuple(value[f"{PREFIX}.heads"]) or None, value[f"{PREFIX}.exclude"])


def viewed(run: SinksRun, at: int) -> SinkView:
    """The prompt as the controls want it; scores are kept, so that moving the threshold costs no work on the sums."""
    chosen, item = chosen_now(), run.items[at]
    key = (run.id, run.created, at, chosen)
    shelf = st.session_state.setdefault("sinks.scores", {})
    if key not in shelf:
        while len(shelf) >= max(KEPT, len(run.items)):
            shelf.pop(next(iter(shelf)))
        shelf[key] = z_scores(selected(item, chosen.layers, chosen.heads), item.structural, chosen.exclude_structural)
    return judged(item, shelf[key], st.session_state[f"{PREFIX}.threshold"], st.session_state[f"{PREFIX}.corrected"],
                  learned(item, chosen.layers, chosen.heads))


def specs(run: SinksRun, at: int, view: SinkView) -> dict[str, dict]:
    """Vega-Lite of the prompt's charts. Only those are made anew that what moved can change."""
    from altair.utils.schemapi import debug_mode

    from ui.sinks.charts import FIGURES
    moved = {"layers": (), "null": (view.threshold,), "heads": (view.threshold, view.corrected, chosen_now()),
             "histogram": (view.threshold, view.corrected, chosen_now())}
    shelf = st.session_state.setdefault("sinks.specs", {})
    made = {}
    with debug_mode(False):  # checking each chart against the schema takes longer than drawing it; the tests do that
        for name, make in FIGURES.items():
            place, stamp = (name, at), (run.id, run.created, theme(), moved[name])
            if shelf.get(place, (None,))[0] != stamp:
                chart = make(run, run.items[at], view, theme())
                shelf[place] = stamp, None if chart is None else {**chart.to_dict(validate=False), "autosize": {"type": "fit-x", "contains": "padding"}}
            if shelf[place][1] is not None:
                made[name] = shelf[place][1]
    return made
