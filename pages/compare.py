"""Compare: verifier-only against speculative decoding, live, then as one card."""

import html

import streamlit as st

import cache
from engine.models import registry
from ui import controls, jobs, result, session
from ui.live import live_html

session.setup()

POLL = 0.5  # seconds between two looks at a running job


@st.fragment
def asking() -> None:
    """Controls, Run and Stop. Moving a widget redraws this part alone; only Run starts anything."""
    asked = controls.draw(registry.listing())
    job = jobs.current()
    active = job is not None and job.snapshot().active
    with st.container(horizontal=True, vertical_alignment="center", key="run-row"):
        run = st.button("Run", type="primary", width=110, disabled=active, key="compare.run",
                        help="Both sides answer the prompt, one after the other.")
        stop = st.button("Stop", width=110, disabled=not active, help="Ends after the current token; what was written is kept.",
                         key="compare.stop")
        _changed(asked)
    if run and not active:
        trouble = jobs.start(asked)
        if trouble:
            session.say(trouble)
        else:
            st.rerun()
    if stop and job is not None:
        cache.worker().stop(job)
        st.rerun()


def _changed(asked) -> None:
    """Say that the controls no longer describe the run below, and offer to take its settings back."""
    shown, _ = jobs.shown()
    if shown is None:
        return
    differs = controls.changes(asked, jobs.asked_for(shown))
    if not differs:
        return
    more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
    session.draw(f'<span class="sl quiet" role="status">Settings changed since the run below: {", ".join(differs[:3])}{more}.</span>',
                 width="content")
    st.button("Take the run's settings", type="tertiary", on_click=controls.fill, args=(jobs.asked_for(shown),),
              key="compare.takeback")


@st.fragment(run_every=POLL)
def running(job_id: str) -> None:
    """The job on its way. It lives in the worker: this only looks."""
    worker = cache.worker()
    job = worker.find(job_id)
    view = job.snapshot() if job else None
    if view is None or not view.active:
        st.rerun()
    session.draw(live_html(view, worker.position(job), worker.seconds_ahead(job)))


def main() -> None:
    jobs.attach()
    asking()
    view = jobs.current_view()
    if view is not None and view.active:
        running(view.id)
        return
    jobs.settle(view)
    if view is not None and view.error:
        session.say(view.error)
    elif view is not None and view.status == "stopped" and view.run_id is None and view.run is None:
        session.say("Stopped before anything was written.", "note")
    _others()
    run, trouble = jobs.shown()
    if trouble:
        session.say(trouble)
    if run is not None:
        result.show(run)
    elif view is None and not trouble:
        session.draw('<p class="sl quiet">Press Run: both sides answer the same prompt, one after the other, and the fate of '
                     'every draft token is shown here.</p>')


def _others() -> None:
    """Runs of other tabs, or of this one before it was reloaded without its address."""
    for view in jobs.others()[:3]:
        with st.container(horizontal=True, vertical_alignment="center"):
            session.draw(f'<span class="sl quiet" role="status">Another run is {"waiting" if view.status == "queued" else "going"}: '
                         f'“{html.escape(view.title)}”.</span>', width="content")
            st.button("Watch it", key=f"compare.watch.{view.id}", type="tertiary", on_click=jobs.watch, args=(view.id,))


main()
session.warm_up()
