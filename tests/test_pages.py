"""The Compare page without a browser: what a click, a changed control or a page switch does to a run.

The runs come from a scripted task; the worker, the store and the pages are as they are. `tests/test_browser.py` has real models.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

import pytest

import cache
from engine.models import registry
from tests.screens import DOLLARS, HOSTILE, ROOT, app, button, engine, finished, healthy, page_html, run, run_of, widget  # noqa: F401
from ui import controls


def test_pages_need_no_torch():
    code = ("import sys; sys.path.insert(0, '.'); "
            "import ui.controls, ui.jobs, ui.live, ui.pairline, ui.replay, ui.result, ui.runlist, ui.share;"
            "print([m for m in ('torch', 'transformers', 'altair', 'vl_convert') if m in sys.modules])")
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
    again = app(run=run_of(at))
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
                      backend="torch", device="cpu", dtype="float32", system="Be brief.", raw=True, stop_at=0.25))
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


@pytest.mark.parametrize("gb, verifier", [(4, None), (16, "7B"), (36, "14B")])
def test_on_an_apple_gpu_a_pair_is_offered_that_fits_the_memory(engine, monkeypatch, gb, verifier):
    monkeypatch.setattr(registry, "settled", lambda backend: "mlx")
    monkeypatch.setattr(controls, "memory_total", lambda: gb * 2**30)
    at = app()
    offers = [b for b in at.button if b.key == "compare.fitting"]
    if verifier is None:
        assert offers == []
        return
    assert offers[0].label.startswith(f"Use the pair for {16 if gb == 16 else 32} GB: Qwen2.5-{verifier}-") and offers[0].help
    widget(at, "drafter").set_value(controls.LOOKUP)
    healthy(at.run())
    healthy(button(at, "compare.fitting").click().run())
    assert f"Qwen2.5-{verifier}-" in widget(at, "verifier").value and widget(at, "draft").value.startswith("mlx-community/Qwen2.5-")
    assert widget(at, "backend").value == "mlx" and not widget(at, "draft").disabled and button(at, "compare.fitting").disabled
    at = finished(run(at))
    assert (engine.asked[0].verifier, engine.asked[0].backend) == (widget(at, "verifier").value, "mlx")


def test_elsewhere_no_pair_is_offered_and_drawing_the_page_starts_no_mlx(tmp_path):
    code = ("import sys; sys.path.insert(0, '.'); from engine.models import metal; metal.possible = lambda: False;"
            "from tests.screens import app; at = app();"
            "print([b.key for b in at.button if b.key == 'compare.fitting'], [m for m in sys.modules if m.startswith('mlx')])")
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
                         env={**os.environ, "SPECLENS_HOME": str(tmp_path)}).stdout
    assert out.strip() == "[] []"


def test_the_stepper_walks_the_rounds(engine):
    at = finished(run(app()))
    assert "Round 1 of " in page_html(at) and button(at, "result.back").disabled
    healthy(button(at, "result.forward").click().run())
    assert "Round 2 of " in page_html(at)


def test_an_address_shows_the_run_it_names_also_that_of_its_job(engine):
    at = finished(run(app(), prompt="first"))
    first = run_of(at)
    at = finished(run(at, prompt="second"))
    assert run_of(at) != first == cache.worker().jobs()[0].id
    for name in ("run", "job"):
        assert cache.store().get(first).prompt.text == "first"
        assert first in button_keys(app(**{name: first}))
    engine.gate.clear()
    at = run(at, prompt="third")
    at.query_params["run"] = first  # back, while the third is on its way
    assert first in button_keys(healthy(at.run())) and "Another run is going" in page_html(at)


def test_back_at_the_bare_address_nothing_is_shown_but_a_page_switch_keeps_the_run(engine):
    at = finished(run(app()))
    shown = run_of(at)
    at.query_params.clear()
    healthy(at.switch_page("pages/runs.py").run())
    assert run_of(healthy(at.switch_page("pages/compare.py").run())) == shown
    at.query_params.clear()
    assert shown not in button_keys(healthy(at.run())) and "run" not in at.query_params


def button_keys(at) -> str:
    """Every place that names a run: the stepper's slider goes by the run's id."""
    return " ".join(s.key for s in at.slider if s.key)
