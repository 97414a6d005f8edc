"""The Polish page: the text view without any model, the run view with a scripted engine."""

import dataclasses

import pytest

import cache
from engine.errors import RequestError
from engine.request import Done, Stage, UagRequest
from engine.trace import Prompt, UagItem
from tests.sample_uag import sample_uag
from tests.screens import HOSTILE, app, button, engine, finished, healthy, page_html  # noqa: F401
from ui import jobs
from ui.polish import controls, text


class Running:
    def __init__(self):
        self.asked = []

    def __call__(self, asked):
        def go(control):
            self.asked.append(asked)
            if asked.prompts[0].text.startswith("refuse:"):
                raise RequestError(asked.prompts[0].text)
            yield Stage("context, k = 2", done=0.4)
            yield Done(sample_uag(id=""))
        return go


@pytest.fixture
def running(engine, monkeypatch):  # noqa: F811
    task = Running()
    monkeypatch.setattr(jobs, "task", task)
    return task


def text_view():
    at = app("polish")
    return healthy(next(b for b in at.button_group if b.key == "polish.mode").set_value("Text").run())


def test_the_text_view_draws_lanes_of_real_tokenizers(engine):  # noqa: F811
    at = text_view()
    at = healthy(next(m for m in at.multiselect if m.key == "polish.text.names").set_value(["bundled:smollm2-135m"]).run())
    html = page_html(at)
    assert "SmolLM2" in html and "letter with a diacritic" in html and "Letters split" in html


def test_the_text_view_says_what_is_wrong(engine):  # noqa: F811
    at = text_view()
    names = next(m for m in at.multiselect if m.key == "polish.text.names")
    at = healthy(names.set_value([]).run())
    assert "No tokenizer is chosen" in page_html(at)
    at = healthy(next(a for a in at.text_area if a.key == "polish.text.text").set_value("ż" * (text.LONGEST + 1)).run())
    assert "100,001 characters" in page_html(at)


def test_hostile_text_is_shown_letter_by_letter(engine):  # noqa: F811
    at = text_view()
    at = healthy(next(m for m in at.multiselect if m.key == "polish.text.names").set_value(["bundled:smollm2-135m"]).run())
    at = healthy(next(a for a in at.text_area if a.key == "polish.text.text").set_value(HOSTILE).run())
    assert "<script" not in page_html(at) and "<img" not in page_html(at)


def test_run_asks_once_and_shows_the_card(running):
    at = app("polish")
    assert "13 answers" in page_html(at)
    at = finished(healthy(button(at, "polish.run").click().run()))
    assert len(running.asked) == 1 and isinstance(running.asked[0], UagRequest)
    assert running.asked[0].ks == (2, 4, 6) and running.asked[0].raw
    html = page_html(at)
    assert "acceptance of candidates" in html and "draft said" in html and "<script" not in html
    assert cache.store().list()[0].kind == "uag"


def test_stepping_and_choosing_ask_nothing_again(running):
    at = app("polish", run=cache.store().save(sample_uag()))
    assert "Round 1 of" in page_html(at)
    at = healthy(button(at, "polish.forward").click().run())
    assert "Round 2 of" in page_html(at)
    beside = next(s for s in at.selectbox if s.label == "Beside it")
    at = healthy(beside.set_value("verifier-only").run())
    assert "verifier-only</b></h3>" in page_html(at) and not running.asked


def test_from_a_run_one_can_go_to_the_text_view_and_back(running):
    at = app("polish", run=cache.store().save(sample_uag()))
    at = healthy(next(b for b in at.button_group if b.key == "polish.mode").set_value("Text").run())
    assert any(m.key == "polish.text.names" for m in at.multiselect)
    at = healthy(next(b for b in at.button_group if b.key == "polish.mode").set_value("Run").run())
    assert "acceptance of candidates" in page_html(at)


def test_what_is_wrong_is_one_sentence(running):
    at = app("polish")
    at = healthy(next(a for a in at.text_area if a.key == "polish.prompt").set_value("refuse: no such pair").run())
    at = finished(healthy(button(at, "polish.run").click().run()))
    assert "refuse: no such pair" in page_html(at)


def test_a_refused_prompt_is_named(running):
    run = sample_uag(1)
    run = dataclasses.replace(run, items=(*run.items, UagItem(Prompt("x", ()), "p2", refused="The prompt is too long: 9,000 tokens, limit 512.")))
    assert "p2: The prompt is too long" in page_html(app("polish", run=cache.store().save(run)))


def test_a_run_refills_the_controls():
    asked = controls.request_of(sample_uag())
    assert controls.changes(asked, asked) == []
    assert controls.changes(dataclasses.replace(asked, ks=(6,), prefix=2), asked) == ["k", "p"]


@pytest.mark.parametrize("change, said", [(dict(prompts=()), "no prompt"), (dict(strategies=()), "No strategy"), (dict(ks=()), "No k"),
                                          (dict(draft=""), "draft are needed")])
def test_a_request_that_cannot_be_tried_says_why(change, said):
    assert said in controls.trouble(dataclasses.replace(controls.request_of(sample_uag()), **change))
