"""The Sinks page: what it draws of a run, what its controls do, and that nothing asks the model again."""

import dataclasses
import re

import pytest
import streamlit as st

import cache
from cache import recorded
from engine.errors import RequestError
from engine.request import Done, SinksRequest, Stage
from engine.trace import Prompt, SinkItem
from tests.sample_sinks import sample_item, sample_sinks
from tests.screens import HOSTILE, app, button, engine, finished, healthy, page_html  # noqa: F401
from ui import jobs
from ui.sinks import controls


class Reading:
    """Stands in for the engine: counts what it was asked for and gives a run of real sums."""

    def __init__(self):
        self.asked = []

    def __call__(self, asked):
        def go(control):
            self.asked.append(asked)
            if asked.prompts[0].text.startswith("refuse:"):
                raise RequestError(asked.prompts[0].text)
            yield Stage("Reading", done=0.0)
            control.hear(Stage("Reading", done=0.5))
            items = tuple(dataclasses.replace(sample_item(90 + 10 * i, label=p.label, seed=i), prompt=dataclasses.replace(
                sample_item(90 + 10 * i).prompt, text=p.text)) for i, p in enumerate(asked.prompts))
            yield Done(sample_sinks(*items, id=""))
        return go


@pytest.fixture
def reading(engine, monkeypatch):  # noqa: F811
    task = Reading()
    monkeypatch.setattr(jobs, "task", task)
    return task


def saved(run=None):
    return cache.store().save(run or sample_sinks())


def slider(at):
    return next(s for s in at.slider if s.key == "sinks.view.threshold")


def health(at):
    return re.search(r'class="big">([^<]+)<', page_html(at))[1]


def test_an_empty_page_says_what_to_do(engine, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    at = app("sinks")
    assert "Press Run: the model reads the prompt once" in page_html(at)
    assert "tokens:" in page_html(at) and "first run measures it" in page_html(at)


def test_run_reads_the_prompt_once_and_the_result_is_kept(reading):
    at = app("sinks")
    healthy(button(at, "sinks.run").click().run())
    at = finished(at)
    assert len(reading.asked) == 1 and isinstance(reading.asked[0], SinksRequest)
    assert "Context health" in page_html(at) and len(cache.store().list()) == 1
    assert at.query_params["run"]


def test_moving_the_controls_asks_the_model_nothing_and_moves_the_view(reading):
    at = app("sinks", run=saved())
    before = health(at)
    at = healthy(slider(at).set_value(14.0).run())
    assert "z′ ≥ 14" in page_html(at) and "sinks outside the template: 1 of" not in page_html(at)
    at = healthy(slider(at).set_value(0.0).run())
    assert health(at) != before
    layers = next(m for m in at.multiselect if m.key == "sinks.view.layers")
    at = healthy(layers.set_value([1]).run())
    assert "layer 1, all heads" in page_html(at) and not reading.asked
    at = healthy(next(b for b in at.button if b.key == "sinks.all").click().run())
    assert "all 30 layers, all heads" in page_html(at)


def test_the_correction_can_be_taken_off(engine):  # noqa: F811
    at = app("sinks", run=saved())
    at = healthy(next(c for c in at.checkbox if c.key == "sinks.view.corrected").uncheck().run())
    assert "plain z ≥" in page_html(at)


def test_a_set_has_a_row_a_prompt_and_the_refused_ones_say_why(engine):  # noqa: F811
    run = sample_sinks(sample_item(label="one"), SinkItem(Prompt("long", ()), "two", refused="The prompt is too long: 9,000 tokens, limit 8,192."),
                       sample_item(120, label="three", seed=2))
    at = app("sinks", run=saved(run))
    table = at.dataframe[0].value
    assert list(table["Label"]) == ["one", "two", "three"] and table["Note"][1].startswith("The prompt is too long")
    assert table["Health"].notna().tolist() == [True, False, True]
    assert "2 of 3 prompts were read; 1 was not" in page_html(at)


def test_prompt_text_is_data_everywhere(reading):
    run = sample_sinks(sample_item(), name=HOSTILE, notes=(HOSTILE,))
    tokens = {i: HOSTILE.encode().hex() if n == 0 else raw for n, (i, raw) in enumerate(run.tokens.items())}
    at = app("sinks", run=saved(dataclasses.replace(run, tokens=tokens)))
    assert "<script" not in page_html(at) and "<img" not in page_html(at) and "&lt;script&gt;" in page_html(at)


def test_what_is_wrong_is_one_sentence_and_the_page_lives_on(reading):
    at = app("sinks")
    area = next(a for a in at.text_area if a.key == "sinks.prompt")
    at = healthy(area.set_value("   ").run())
    at = healthy(button(at, "sinks.run").click().run())
    assert "There is no prompt to read" in page_html(at) and not reading.asked
    at = healthy(next(a for a in at.text_area if a.key == "sinks.prompt").set_value("refuse: too long").run())
    at = finished(healthy(button(at, "sinks.run").click().run()))
    assert "refuse: too long" in page_html(at) and not at.exception


def test_a_run_whose_arrays_are_gone_says_so(engine):  # noqa: F811
    run_id = saved()
    (cache.store().folder / f"{run_id}.safetensors").unlink()
    st.cache_resource.clear()
    assert "the file beside the run is missing" in page_html(app("sinks", run=run_id))


def test_a_run_of_another_page_opens_there(engine):  # noqa: F811
    at = app("compare", run=saved())
    assert "Context health" in page_html(at)


def test_a_run_refills_the_controls():
    run = sample_sinks()
    asked = controls.request_of(run)
    assert controls.changes(asked, asked) == []
    other = dataclasses.replace(asked, raw=True, dtype="float16", prompts=asked.prompts + asked.prompts)
    assert controls.changes(other, asked) == ["prompt", "raw", "precision"]
