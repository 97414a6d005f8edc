"""The pages without a browser: what is shown, and what a click, a changed control or a page switch does to a run.

The runs here come from a scripted task with the worker, the store and the pages as they are; `tests/test_browser.py` uses
real models.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import cache
from engine.errors import RequestError
from engine.request import Done, Stage, Step
from engine.trace import to_json
from tests.sample import sample_run
from ui import controls, jobs, replay

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> a<b i 3 > 2 & koniec </span>"
DOLLARS = "Bilet kosztuje $5, a obiad $12 __razem__ $17."


class SlowTask:
    """Stands in for the engine: counts the runs it was asked for and waits before each round until it is let go on."""

    def __init__(self):
        self.asked, self.gate, self.text = [], threading.Event(), None
        self.gate.set()

    def __call__(self, asked):
        def go(stop):
            self.asked.append(asked)
            whole = sample_run(seed=len(self.asked), tokens=min(asked.settings.max_tokens, 48), gamma=asked.settings.gamma, repeats=1,
                               temperature=asked.settings.sampling.temperature, hostile="<script>" in asked.prompt)
            if asked.prompt.startswith("refuse:"):
                raise RequestError(asked.prompt)
            yield Stage("Warm-up")
            sides = {}
            for side in ("plain", "speculative"):
                yield Stage(side, side)
                rounds = []
                for one in getattr(whole, side).rounds:
                    while not self.gate.wait(0.01) and not stop():
                        pass
                    if stop():
                        break
                    rounds.append(one)
                    yield Step(side, 1, one, {i: whole.tokens[i] for i in {*one.proposed, *one.emitted}})
                kept = tuple(i for r in rounds for i in r.emitted)
                sides[side] = dataclasses.replace(getattr(whole, side), rounds=tuple(rounds), ids=kept, finish="stopped" if stop() else "length")
            models = {role: dataclasses.replace(facts, name=getattr(asked, role), asked_device=asked.device, asked_dtype=asked.dtype)
                      for role, facts in whole.models.items()}
            prompt = dataclasses.replace(whole.prompt, text=asked.prompt, system=asked.system, raw=asked.raw)
            yield Done(dataclasses.replace(whole, id="", prompt=prompt, settings=asked.settings, models=models,
                                           status="stopped" if stop() else "done", **sides))
        return go


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path))
    st.cache_resource.clear()
    task = SlowTask()
    monkeypatch.setattr(jobs, "task", task)
    yield task
    task.gate.set()
    cache.worker().close(20)
    cache.store().close()
    st.cache_resource.clear()


def app(page: str = "compare", **query: str) -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    at.run()
    at.query_params.update(query)
    if page != "start":
        at.switch_page(f"pages/{page}.py")
    return healthy(at.run())


def healthy(at: AppTest) -> AppTest:
    assert not at.exception, at.exception
    return at


def button(at: AppTest, key: str):
    return next(b for b in at.button if b.key == key)


def page_html(at: AppTest) -> str:
    return "\n".join(h.body for h in at.html if not h.body.startswith("<style"))


def finished(at: AppTest) -> AppTest:
    """Wait for the worker to be idle, then draw the page as the poll would."""
    for job in cache.worker().jobs():
        assert job.wait(30)
    return healthy(at.run())


def run(at: AppTest, **values) -> AppTest:
    for key, value in values.items():
        widget(at, key).set_value(value)
    healthy(at.run())
    return healthy(button(at, "compare.run").click().run())


def widget(at: AppTest, name: str):
    kinds = (at.number_input, at.text_area, at.selectbox, at.checkbox, at.button_group)
    return next(w for kind in kinds for w in kind if w.key == f"compare.{name}")


def run_of(at: AppTest) -> str:
    return at.query_params["run"][0] if isinstance(at.query_params["run"], list) else at.query_params["run"]


def test_pages_need_no_torch():
    code = ("import sys; sys.path.insert(0, '.'); import ui.controls, ui.jobs, ui.live, ui.pairline, ui.replay, ui.result, ui.runlist, ui.share;"
            "print([m for m in ('torch', 'transformers', 'altair', 'vl_convert') if m in sys.modules])")
    import subprocess
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_a_run_is_shown_when_it_is_done_and_kept(engine):
    at = finished(run(app()))
    assert len(engine.asked) == 1
    assert 'class="sl card"' in page_html(at)
    assert [s.id for s in cache.store().list()] == [run_of(at)]


def test_while_it_runs_the_page_shows_both_sides_and_how_far_it_is(engine):
    engine.gate.clear()
    at = run(app())
    deadline = time.monotonic() + 10
    while cache.worker().jobs()[-1].snapshot().stage != "plain" and time.monotonic() < deadline:
        time.sleep(0.02)
    healthy(at.run())
    shown = page_html(at)
    assert 'class="sl live"' in shown and "Begins when the other side is done" in shown
    assert button(at, "compare.run").disabled and not button(at, "compare.stop").disabled


def test_changing_a_control_starts_nothing_and_is_marked(engine):
    at = finished(run(app()))
    card = next(h.body for h in at.html if "sl card" in h.body)
    widget(at, "gamma").set_value(6)
    healthy(at.run())
    assert len(engine.asked) == 1
    assert "Settings changed since the run below: γ" in page_html(at)
    assert next(h.body for h in at.html if "sl card" in h.body) == card  # the settings shown are the run's own
    button(at, "compare.takeback").click()
    healthy(at.run())
    assert widget(at, "gamma").value == 4 and "Settings changed" not in page_html(at)


def test_switching_pages_keeps_run_and_settings(engine):
    at = finished(run(app(), gamma=6, temperature=0.3, prompt="Zażółć gęślą jaźń."))
    shown = run_of(at)
    healthy(at.switch_page("pages/runs.py").run())
    healthy(at.switch_page("pages/compare.py").run())
    assert widget(at, "gamma").value == 6 and widget(at, "temperature").value == 0.3 and widget(at, "prompt").value == "Zażółć gęślą jaźń."
    assert run_of(at) == shown and len(engine.asked) == 1 and "sl card" in page_html(at)


def test_switching_pages_in_mid_run_does_not_touch_the_run(engine):
    engine.gate.clear()
    at = run(app())
    healthy(at.switch_page("pages/runs.py").run())
    engine.gate.set()
    healthy(at.switch_page("pages/compare.py").run())
    at = finished(at)
    assert len(engine.asked) == 1 and "sl card" in page_html(at)
    assert cache.store().list()[0].status == "done"


def test_stop_keeps_the_part_marked_stopped_and_the_next_run_works(engine):
    at = finished(run(app()))
    engine.gate.clear()
    at = run(at)
    time.sleep(0.1)
    healthy(button(at, "compare.stop").click().run())
    at = finished(at)
    assert cache.store().list()[0].status == "stopped" and "stopped" in page_html(at)
    engine.gate.set()
    at = finished(run(at))
    assert cache.store().list()[0].status == "done" and len(engine.asked) == 3


def test_a_second_session_queues_and_each_gets_its_own_run(engine):
    engine.gate.clear()
    first, second = run(app(), prompt="first"), run(app(), prompt="second")
    assert "1 run ahead of yours" in page_html(second)
    engine.gate.set()
    first, second = finished(first), finished(second)
    assert run_of(first) != run_of(second)
    assert [cache.store().get(run_of(at)).prompt.text for at in (first, second)] == ["first", "second"]
    assert [a.prompt for a in engine.asked] == ["first", "second"]


def test_a_queued_run_can_be_taken_back(engine):
    engine.gate.clear()
    first, second = run(app(), prompt="first"), run(app(), prompt="second")
    healthy(button(second, "compare.stop").click().run())
    assert "Stopped before anything was written" in page_html(healthy(second.run()))
    engine.gate.set()
    finished(first)
    assert [a.prompt for a in engine.asked] == ["first"]


def test_a_new_session_finds_the_job_in_the_address(engine):
    engine.gate.clear()
    at = run(app())
    again = app(job=at.query_params["job"] if isinstance(at.query_params["job"], str) else at.query_params["job"][0])
    assert 'class="sl live"' in page_html(again)
    engine.gate.set()
    assert "sl card" in page_html(finished(again)) and len(engine.asked) == 1


def test_a_new_session_without_the_address_is_offered_the_job(engine):
    engine.gate.clear()
    run(app(), prompt=HOSTILE)
    other = app()
    assert "Another run is going" in page_html(other) and "<script>" not in page_html(other)
    healthy(next(b for b in other.button if b.label == "Watch it").click().run())
    assert 'class="sl live"' in page_html(other)


def test_a_finished_run_opens_in_a_new_session(engine):
    first = finished(run(app()))
    card = next(h.body for h in first.html if "sl card" in h.body)
    second = app(run=run_of(first))
    assert next(h.body for h in second.html if "sl card" in h.body) == card
    assert len(engine.asked) == 1


def test_an_unknown_run_is_one_sentence(engine):
    for name in ("20200101-000000-abcdef", "../../etc/passwd", HOSTILE):
        shown = page_html(app(run=name))
        assert 'role="alert"' in shown and "<script>" not in shown and "sl card" not in shown


@pytest.mark.parametrize("text", [HOSTILE, DOLLARS, "refuse: " + HOSTILE + DOLLARS])
def test_hostile_text_is_shown_letter_by_letter(engine, text):
    at = finished(run(app(), prompt=text))
    shown = page_html(at)
    assert "<script" not in shown and "<img" not in shown and "onerror=alert(2)>" not in shown
    assert not any(text in m.value for m in at.markdown)
    if text.startswith("refuse"):
        import html
        assert html.escape(text) in shown and not button(at, "compare.run").disabled
    else:
        assert cache.store().list()[0].prompt == " ".join(text.split())


def test_an_error_is_a_sentence_and_the_next_run_works(engine):
    at = finished(run(app(), prompt="refuse: the model is not there; choose another."))
    assert "refuse: the model is not there; choose another." in page_html(at) and "Traceback" not in page_html(at)
    at = finished(run(at, prompt="Now it works."))
    assert "sl card" in page_html(at) and "refuse:" not in page_html(at)


@pytest.mark.parametrize("prompt", ["", "  \n\t "])
def test_an_empty_prompt_is_refused_before_anything_runs(engine, prompt):
    at = run(app(), prompt=prompt)
    assert "The prompt is empty" in page_html(at) and not engine.asked and not cache.worker().jobs()


def test_a_preset_does_not_lose_typed_text(engine):
    at = app()
    widget(at, "prompt").set_value("My own words")
    healthy(at.run())
    assert widget(at, "preset").value == controls.OWN
    widget(at, "preset").set_value("Polish")
    healthy(at.run())
    assert widget(at, "prompt").value == controls.PRESETS["Polish"]
    widget(at, "preset").set_value(controls.OWN)
    healthy(at.run())
    assert widget(at, "prompt").value == "My own words"


def test_every_control_explains_itself(engine):
    at = app()
    unexplained = [w.label for kind in (at.number_input, at.text_area, at.selectbox, at.checkbox) for w in kind if not w.help]
    assert unexplained == []


def test_temperature_zero_is_labelled_greedy(engine):
    at = app()
    assert "greedy" in widget(at, "temperature").label
    widget(at, "temperature").set_value(0.7)
    healthy(at.run())
    assert "greedy" not in widget(at, "temperature").label


def test_the_controls_make_the_request_and_the_request_the_controls(engine):
    at = app()
    widget(at, "stop_on").set_value(True)
    at = finished(run(healthy(at.run()), gamma=7, temperature=0.5, top_k=11, top_p=0.8, min_p=0.1, penalty=1.2, seed=9, tokens=32, repeats=2,
                      device="cpu", dtype="float32", system="Be brief.", raw=True, stop_at=0.25))
    asked = engine.asked[0]
    assert (asked.settings.gamma, asked.settings.max_tokens, asked.settings.repeats, asked.settings.entropy_stop) == (7, 32, 2, 0.25)
    assert dataclasses.astuple(asked.settings.sampling) == (0.5, 11, 0.8, 0.1, 1.2, 9)
    assert (asked.device, asked.dtype, asked.system, asked.raw) == ("cpu", "float32", "Be brief.", True)
    assert controls.request_of(cache.store().get(run_of(at))) == asked


def test_lookup_asks_for_no_draft(engine):
    at = app()
    widget(at, "drafter").set_value([controls.LOOKUP] if isinstance(widget(at, "drafter").value, list) else controls.LOOKUP)
    healthy(at.run())
    assert widget(at, "draft").disabled and "Prompt lookup needs no draft model" in page_html(at)


def test_the_stepper_walks_the_rounds(engine):
    at = finished(run(app()))
    assert "Round 1 of " in page_html(at) and button(at, "result.back").disabled
    healthy(button(at, "result.forward").click().run())
    assert "Round 2 of " in page_html(at)


def test_runs_says_what_to_do_when_there_are_none(engine):
    assert "No runs yet" in page_html(app("runs"))


def test_runs_lists_what_another_process_wrote(engine):
    at = app("runs")
    (cache.store().folder / "20261201-120000-0007.json").write_text(to_json(sample_run(seed=7)), encoding="utf-8")
    healthy(at.run())
    assert len(at.dataframe[0].value) == 1


def test_runs_lists_a_damaged_file_as_damaged(engine):
    cache.store().save(sample_run())
    (cache.store().folder / "broken.json").write_text('{"kind": "compare", ', encoding="utf-8")
    at = app("runs")
    assert list(at.dataframe[0].value["Status"]) == ["done", "damaged"]


def test_runs_filters_by_text_status_and_model(engine):
    for seed, name in ((1, "alpha.*"), (2, "beta")):
        cache.store().save(dataclasses.replace(sample_run(seed=seed, status="stopped" if seed == 2 else "done"), name=name))
    at = app("runs")
    at.text_input[0].set_value(".*")
    assert list(healthy(at.run()).dataframe[0].value["Name"]) == ["alpha.*"]
    at.text_input[0].set_value("")
    next(s for s in at.selectbox if s.key == "runs.status").set_value("stopped")
    assert list(healthy(at.run()).dataframe[0].value["Name"]) == ["beta"]
    at.text_input[0].set_value("nothing like it")
    assert "passes this filter" in page_html(healthy(at.run()))


def ticked(*ids: str) -> AppTest:
    """The Runs page with these rows ticked; AppTest cannot click into a table."""
    at = app("start")
    at.session_state["runs.chosen"] = list(ids)
    return healthy(at.switch_page("pages/runs.py").run())


def labelled(at: AppTest, label: str):
    return next(b for b in at.button if b.label == label)


def test_half_a_surrogate_pair_from_an_imported_file_is_survived(engine):
    import json
    data = json.loads(to_json(sample_run()))
    data["prompt"]["text"], data["name"] = "a\ud800b\x00c", "n\udfff"
    kept = cache.store().import_json(json.dumps(data).encode())
    assert list(app("runs").dataframe[0].value["Name"]) == ["n?"]
    assert "sl card" in page_html(app(run=kept))


def test_delete_can_be_undone(engine):
    kept = cache.store().save(sample_run(seed=1))
    at = ticked(kept)
    healthy(labelled(at, "Delete").click().run())
    assert not cache.store().list() and "1 run deleted" in page_html(at)
    healthy(button(at, "runs.undo").click().run())
    assert [s.id for s in cache.store().list()] == [kept]


def test_ticks_stay_with_their_runs_when_another_appears(engine):
    old = cache.store().save(sample_run(seed=1))
    at = ticked(old)
    cache.store().save(dataclasses.replace(sample_run(seed=2), created="2026-12-02T00:00:00Z"))
    healthy(at.run())
    healthy(labelled(at, "Delete").click().run())
    assert [s.id for s in cache.store().list()] == [sample_run(seed=2).id]


def test_two_runs_are_compared_with_what_differs(engine):
    a, b = (cache.store().save(sample_run(seed=s, gamma=g)) for s, g in ((1, 4), (2, 6)))
    at = ticked(a, b)
    healthy(labelled(at, "Compare two").click().run())
    shown = page_html(at)
    assert shown.count('class="sl card"') == 2 and "<th scope='row'>γ</th><td>4</td><td>6</td>" in shown


def test_start_without_a_recording_says_so_and_works(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(replay, "RECORDED", tmp_path / "none.json")
    at = app("start")
    assert "No recorded run is in this copy" in page_html(at)


def test_start_replays_at_recorded_times_and_runs_live(engine, monkeypatch, tmp_path):
    recorded = sample_run(seed=3, tokens=40, repeats=1)
    path = tmp_path / "compare.json"
    path.write_text(to_json(recorded), encoding="utf-8")
    monkeypatch.setattr(replay, "RECORDED", path)
    at = app("start")
    assert "Recorded on 2026-12-01" in page_html(at) and "2-core x86-64" in page_html(at)
    button(at, "start.play").click()
    healthy(at.run())
    for _ in range(2):
        healthy(button(at, "start.step").click().run())
    assert "Round " in page_html(at)
    healthy(button(at, "start.live").click().run())
    finished(at)
    assert len(engine.asked) == 1 and engine.asked[0] == controls.request_of(recorded)


def test_replay_shows_a_round_when_its_recorded_time_has_come():
    from ui.grow import at, moments
    whole = sample_run(seed=4, tokens=40, repeats=1)
    ends = moments(whole)
    before, after = at(whole, ends[3] - 1e-6), at(whole, ends[3])
    assert len(before.speculative.rounds) == 3 and len(after.speculative.rounds) == 4
    assert after.speculative.ids == whole.speculative.ids[:len(after.speculative.ids)]
    assert len(after.speculative.entropy) == len(after.speculative.ids)
    assert at(whole, 1e9).speculative == whole.speculative


def test_the_tape_moves_with_the_clock_times_its_speed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(replay.time, "monotonic", lambda: now[0])
    tape = replay.Tape(4.0)
    tape.play()
    now[0] += 1.0
    assert tape.seconds == pytest.approx(1.0)
    tape.set_speed(2.0)
    now[0] += 1.0
    assert tape.seconds == pytest.approx(3.0) and tape.playing
    now[0] += 5.0
    assert tape.seconds == 4.0 and not tape.playing
    tape.play()
    assert tape.seconds == 0.0
