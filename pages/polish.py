"""Polish: how tokenizers cut a text, and what a draft with another tokenizer is worth, strategy by strategy."""

import streamlit as st

from engine.models import registry
from ui import again, flow, jobs, promptset, session
from ui.polish import card, controls, live, result, text
from ui.session import keep, remembered

session.setup()
session.heading("polish")
session.draw(f"<style>{card.CSS}{live.CSS}</style>")
desk = jobs.Desk("polish")
TEXT, RUN = "Text", "Run"


def asking() -> None:
    """Controls, Run and Stop. Moving a widget redraws this part alone; only Run starts anything."""
    with flow.folding():
        asked = controls.draw(registry.listing())
    flow.run_row(desk, asked, promptset.title(asked.prompts), controls.trouble,
                 "The verifier answers alone, then with the draft by every strategy and k chosen.", lambda: beside(asked))


def beside(asked) -> None:
    if told := controls.amount(asked):
        session.draw(f'<span class="sl quiet" role="status">{told}</span>', width="content")
    shown, _ = desk.shown()
    if shown is not None and shown.kind == "uag":
        made_from = desk.asked_for(shown) or controls.request_of(shown)
        flow.changed(desk, controls.changes(asked, made_from), lambda: controls.fill(made_from),
                     controls.left(made_from, shown))


if session.query("run") or session.query("job"):
    session.put({"mode": RUN}, "polish")


def leave_run() -> None:
    """The text view has no run: the address forgets it, or it would bring the run view back."""
    if st.session_state["polish.mode"] == TEXT:
        session.set_query(run=None, job=None)


def show(run) -> None:
    again.offer(desk, run, result.drawn(run)[0].disturbed, controls.request_of, lambda asked: promptset.title(asked.prompts), controls.trouble)
    result.show(run)


mode = st.segmented_control("View", [RUN, TEXT], key=remembered("mode", RUN, "polish"), required=True, label_visibility="collapsed", on_change=leave_run,
                            help="Run: translation strategies on a real pair. Text: how tokenizers cut a text of yours, no model needed.")
keep("mode", prefix="polish")
if mode == TEXT:
    st.fragment(text.show)()
else:
    flow.page(desk, asking, live.growing, show,
              "Press Run: the verifier answers alone, then with a draft that has another tokenizer, once for each strategy and k. Every refused "
              "candidate says why.", lambda run: controls.fill(controls.request_of(run)))
session.warm_up()
