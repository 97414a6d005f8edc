"""Start: what this is, a recorded run that plays at once, and one button to run it live."""

import html

import streamlit as st

from cache import recorded
from ui import controls, jobs, replay, result, session
from ui.grow import length

session.setup()

TICK = 0.2  # seconds between two frames
TAPE = "start.tape"


def tape_of(run) -> replay.Tape:
    """This session's replay of `run`; it plays the first time it is seen."""
    kept = st.session_state.get(TAPE)
    if kept is None or kept[0] != run.id:
        kept = st.session_state[TAPE] = (run.id, replay.Tape(length(run)))
        kept[1].play()
    return kept[1]


def player(run) -> None:
    tape = tape_of(run)
    playing = tape.playing
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if st.button("Pause" if playing else "Play", key="start.play", width=104, shortcut="P"):
            tape.pause() if playing else tape.play()
            st.rerun()
        if st.button("Step back", key="start.back", help="To the end of the round before"):
            replay.step(run, tape, -1)
            st.rerun()
        if st.button("Step", key="start.step", help="To the end of the next speculative round"):
            replay.step(run, tape, 1)
            st.rerun()
        speed = st.segmented_control("Speed", list(replay.SPEEDS), key=session.remembered("speed", "1×", "start"), required=True,
                                     label_visibility="collapsed")
        session.keep("speed", prefix="start")
        if replay.SPEEDS[speed] != tape.speed:
            tape.set_speed(replay.SPEEDS[speed])
    st.fragment(frame, run_every=TICK if playing else None)(run)


def frame(run) -> None:
    """One picture of the replay; the last one ends the ticking."""
    tape = tape_of(run)
    session.draw(replay.replay_html(run, tape.seconds))
    if tape.since is not None and not tape.playing:
        tape.pause()
        st.rerun()


def live(run) -> None:
    """Run the recorded request here and now."""
    asked = controls.request_of(run)
    controls.fill(asked)
    trouble = controls.trouble(asked) or jobs.refused(asked)
    if trouble:
        session.say(trouble)
    else:
        desk = jobs.Desk("compare")
        desk.start(asked, asked.prompt)
        st.switch_page("pages/compare.py", query_params={"run": desk.current().id})


def main() -> None:
    if session.query("run") or session.query("job"):
        st.switch_page("pages/compare.py", query_params={k: v for k in ("run", "job") if (v := session.query(k))})
    session.draw('<div class="sl lead"><h1>SpecLens</h1>'
                 "<p>See what a language model does with your prompt: a small draft model guesses a few tokens ahead, the large one checks the "
                 "guesses in a single pass, and this page shows which survived and says plainly whether it paid.</p></div>")
    run, trouble = recorded.recorded("compare")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if run is not None and st.button("Run it live", type="primary", key="start.live",
                                         help="The same prompt and settings, here and now."):
            live(run)
        if st.button("Your own prompt", key="start.own", type="secondary" if run is not None else "primary"):
            st.switch_page("pages/compare.py")
    if run is None:
        session.say(trouble, "note")
        return
    player(run)
    session.draw(f'<p class="sl quiet small">{html.escape(replay.provenance(run))}</p>')
    with st.expander("The whole result"):
        session.draw(result.drawn(run)[1])


main()
session.warm_up()
