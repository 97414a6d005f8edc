"""Runs: every run that was kept, on this page or the command line; open, name, delete, compare, take away, bring in."""

import html

import streamlit as st

import cache
from cache import recorded
from cache.importing import LIMIT_MB
from engine.errors import RequestError
from ui import difference, importing, jobs, kinds, replay, result, runlist, session
from ui.share import share

session.setup()
session.heading("runs")

POLL = 1.0  # seconds between two looks at whether the runs changed
CHOSEN, DELETED, SAID = "runs.chosen", "runs.deleted", "runs.said"


@st.fragment(run_every=POLL)
def watching(seen: int) -> None:
    """Runs that came from elsewhere, the command line say, appear by themselves."""
    if cache.store().version() != seen:
        st.rerun()


def main() -> None:
    opened = session.query("run")
    if opened:
        st.switch_page("pages/compare.py", query_params={"run": opened})  # which passes a run of another kind on
    version = cache.store().version()
    watching(version)
    for text, kind in st.session_state.pop(SAID, []):
        session.say(text, kind)
    runs = attempt(cache.store().list)
    undo()
    if runs is None:
        return
    if not runs:
        nothing_yet()
        bring_in()
        return
    table(runs)
    bring_in()
    both()


def nothing_yet() -> None:
    """What to do, and the recorded runs to look at meanwhile."""
    session.draw('<div class="sl"><p class="headline">No runs yet.</p><p class="quiet">Every run is kept here by itself. Go to Compare, Sinks, '
                 'Polish or Entropy and press Run, run <code>python -m engine compare … --save</code>, or bring in a JSON file.</p></div>')
    for kind, name in kinds.NAMES.items():
        run, _ = recorded.recorded(kind)
        if run is None:
            continue
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"runs-recorded-{kind}"):
            if st.button(name, key=f"runs.recorded.{kind}", width=110, help="Open this recorded run on the page that makes such."):
                st.switch_page(f"pages/{jobs.PAGES[kind]}.py", query_params={"run": run.id})
            session.draw(f'<p class="sl provenance"><span class="mark">recorded</span>{html.escape(replay.recorded_words(run))}</p>', width="stretch")


def table(runs: list) -> None:
    """The list with its filters, and what can be done with the rows that are ticked."""
    with st.container(horizontal=True, gap="small"):
        text = st.text_input("Filter", key=session.remembered("text", "", "runs"), placeholder="name, prompt, model or id", width=320)
        kind = st.selectbox("Page", ["all", *runlist.kinds(runs)], key=session.remembered("kind", "all", "runs"), width=130,
                            help="The page that made the run.")
        status = st.selectbox("Status", ["all", *runlist.statuses(runs)], key=session.remembered("status", "all", "runs"), width=130)
        model = st.selectbox("Model", ["all", *runlist.models(runs)], key=session.remembered("model", "all", "runs"), width=240)
    session.keep("text", "kind", "status", "model", prefix="runs")
    shown = runlist.chosen(runs, text, status, model, kind)
    if not shown:
        session.draw(f'<p class="sl quiet">None of the {len(runs)} runs passes this filter.</p>')
        return
    ticked = runlist.table(shown, st.session_state.get(CHOSEN, []))
    st.session_state[CHOSEN] = ticked
    actions([s for s in shown if s.id in ticked], len(shown), len(runs))


def actions(ticked: list, shown: int, all_runs: int) -> None:
    sound = [s for s in ticked if not s.damaged]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if st.button("Open", type="primary", disabled=len(sound) != 1 or len(ticked) != 1, help="On the page that made it."):
            st.switch_page(f"pages/{jobs.PAGES[sound[0].kind]}.py", query_params={"run": sound[0].id})
        comparisons = [s for s in sound if s.kind == "compare"]
        if st.button("Compare two", disabled=len(comparisons) != 2 or len(ticked) != 2,
                     help="Two cards of the Compare page side by side, and what differs."):
            st.session_state["runs.two"] = [s.id for s in sorted(sound, key=lambda s: (s.created, s.id))]
        with st.popover("Rename", disabled=len(sound) != 1 or len(ticked) != 1):
            if len(sound) == 1:
                rename(sound[0])
        if st.button(f"Delete {len(ticked)}" if len(ticked) > 1 else "Delete", disabled=not ticked,
                     help="Kept for 30 days; Undo brings it back."):
            delete(ticked)
        if len(sound) == 1 and len(ticked) == 1:
            run = attempt(jobs.load, sound[0].id)
            if run is not None:
                take = attempt(kinds.takeaway, run)
                if take is not None:
                    share(take, result.theme(), "runs")
        count = f"{shown} of {all_runs} runs" if shown != all_runs else f"{all_runs} run{'' if all_runs == 1 else 's'}"
        hint = f", {len(ticked)} ticked" if ticked else ". Tick one to open it, two to compare them"
        session.draw(f'<span class="sl quiet">{count}{hint}.</span>', width="content")
    for one in (s for s in ticked if s.damaged):
        session.say(f"{one.id}: {one.damaged}")


def rename(summary) -> None:
    with st.form("runs.rename", border=False):
        name = st.text_input("Name", value=session.showable(summary.name), max_chars=120, key=f"runs.name.{summary.id}")
        if st.form_submit_button("Rename") and attempt(cache.store().rename, summary.id, name):
            st.rerun()


def delete(summaries: list) -> None:
    gone = [s.id for s in summaries if attempt(cache.store().delete, s.id, later=True)]
    st.session_state[DELETED], st.session_state[CHOSEN] = gone, []
    if set(gone) & set(st.session_state.get("runs.two", [])):
        st.session_state.pop("runs.two")
    st.rerun()


def undo() -> None:
    """Offer to take the last deletion back."""
    gone = st.session_state.get(DELETED, [])
    if not gone:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        session.draw(f'<span class="sl" role="status">{len(gone)} run{"" if len(gone) == 1 else "s"} deleted.</span>', width="content")
        if st.button("Undo", key="runs.undo"):
            for run_id in gone:
                attempt(cache.store().undo, run_id, later=True)
            st.session_state[DELETED] = []
            st.rerun()
        if st.button("Dismiss", type="tertiary", key="runs.dismiss"):
            st.session_state[DELETED] = []
            st.rerun()


def bring_in() -> None:
    """Runs from JSON files, several at once: the worker reads them, and this page answers meanwhile."""
    going = st.session_state.get(f"{SAID}.job")
    if going:
        importing.progress(going, SAID)
        return
    with st.expander("Import runs"):
        turn = st.session_state.setdefault("runs.turn", 0)
        files = st.file_uploader("JSON files of runs", accept_multiple_files=True, key=f"runs.import.{turn}", max_upload_size=LIMIT_MB,
                                 help=importing.HELP)
        if files:
            st.session_state[f"{SAID}.job"] = importing.start([(file.name, file.getvalue()) for file in files])
            st.session_state["runs.turn"] = turn + 1  # an empty uploader takes its place: the worker alone holds the files now
            st.rerun()


def both() -> None:
    """Two runs side by side, and a table of what differs."""
    two = [run for run in (attempt(jobs.load, i) for i in st.session_state.get("runs.two", [])) if run is not None]
    if len(two) != 2:
        return
    st.divider()
    drawn = [found for run in two if (found := attempt(kinds.made, result.drawn, run)) is not None]
    if len(drawn) != 2:
        return
    figures = [found[0] for found in drawn]
    session.draw(difference.difference_html(two, figures))
    for column, run, card, name in zip(st.columns(2, gap="medium"), two, drawn, "AB"):
        with column:
            session.draw(difference.heading_html(run, name))
            session.draw(f'<div class="sl-narrow">{card[1]}</div>')


def attempt(what, *arguments, later: bool = False):
    """Do it and return what it gives (True for nothing); if it cannot be done, say so in its sentence and go on with None.

    `later`: say it in the next pass, because this one is about to end.
    """
    try:
        made = what(*arguments)
    except RequestError as e:
        if later:
            st.session_state.setdefault(SAID, []).append((str(e), "error"))
        else:
            session.say(str(e))
        return None
    return True if made is None else made


main()
session.warm_up()
