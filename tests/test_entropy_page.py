"""The Entropy page: live runs, saved runs of any kind that holds entropies, and that nothing asks the model again."""

from __future__ import annotations

import dataclasses

import pytest

import cache
from cache import recorded
from cache.job import Job
from engine.errors import RequestError
from engine.request import Done, EntropyRequest, Stage, Step
from engine.trace import UagItem, UagResult, UagRun, from_json, to_json
from tests.sample import sample_run
from tests.screens import DOLLARS, HOSTILE, app, button, engine, finished, healthy, labelled, page_html, run_of  # noqa: F401
from tests.test_entropy_figures import entropy_run
from ui import jobs
from ui.entropy import controls, live


class Answering:
    """Stands in for the engine: counts what it was asked for and gives the sample's answers, refusing texts that say so."""

    def __init__(self):
        self.asked = []

    def __call__(self, asked):
        def go(stop):
            self.asked.append(asked)
            if len(asked.prompts) == 1 and asked.prompts[0].text.startswith("refuse:"):
                raise RequestError(asked.prompts[0].text)
            count = len(asked.prompts)
            made = entropy_run((asked.settings.max_tokens,) * count, [p.category for p in asked.prompts])
            items = tuple(dataclasses.replace(item, label=p.label, prompt=dataclasses.replace(
                item.prompt, text=p.text, system=asked.system, raw=asked.raw)) for item, p in zip(made.items, asked.prompts))
            for n, item in enumerate(items):
                yield Stage(f"Answering prompt {n + 1}", "plain", n + 1, count, n / count)
                for r in item.answer.rounds:
                    yield Step("plain", n + 1, r, {i: made.tokens[i] for i in r.emitted})
            models = {"model": dataclasses.replace(made.models["model"], name=asked.model, asked_device=asked.device, asked_dtype=asked.dtype)}
            yield Done(dataclasses.replace(made, id="", items=items, settings=asked.settings, models=models))
        return go


@pytest.fixture
def answering(engine, monkeypatch):  # noqa: F811
    task = Answering()
    monkeypatch.setattr(jobs, "task", task)
    return task


def saved(run) -> str:
    return cache.store().save(run)


def shown_box(at):
    return next(s for s in at.selectbox if s.key == "entropy.saved")


def field(at, name, kinds=("number_input", "text_area", "selectbox", "checkbox")):
    return next(w for kind in kinds for w in getattr(at, kind) if w.key == f"entropy.{name}")


def test_an_empty_page_says_what_to_do(engine, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    html = page_html(app("entropy"))
    assert "Press Run: the model answers" in html and "choose a saved run" in html


def test_run_answers_the_prompt_once_and_the_result_is_kept(answering):
    at = app("entropy")
    field(at, "tokens").set_value(24)
    field(at, "temperature").set_value(0.7)
    healthy(at.run())
    at = finished(healthy(button(at, "entropy.run").click().run()))
    (asked,) = answering.asked
    assert isinstance(asked, EntropyRequest) and asked.settings.max_tokens == 24 and asked.settings.sampling.temperature == 0.7
    assert [(p.text, p.label) for p in asked.prompts] == [(controls.DEFAULT, "")]
    assert "over 24 tokens" in page_html(at) and "sampling entropy" in page_html(at) and 'aria-label="Entropy"' in page_html(at)
    assert shown_box(at).value == run_of(at) == cache.store().list()[0].id
    assert "Settings changed" not in page_html(at)
    at = healthy(field(at, "tokens").set_value(32).run())
    assert "Settings changed since the run below: tokens" in page_html(at) and len(answering.asked) == 1
    at = healthy(labelled(at, "Take the run's settings").click().run())
    assert field(at, "tokens").value == 24 and "Settings changed" not in page_html(at)


def test_the_answer_grows_while_it_is_written():
    run = entropy_run((9,), ("",))
    job = Job(controls.request_of(run), lambda stop: iter(()), "title", None, {})
    assert "Waiting" in live.growing(job.snapshot(), 1)
    job.start()
    job.hear(Stage("Answering", "plain", done=0.0))
    for r in run.items[0].answer.rounds:
        job.hear(Step("plain", 1, r, {i: run.tokens[i] for i in r.emitted}))
    job.hear(Stage("Answering", "plain", done=0.4))
    html = live.growing(job.snapshot())
    assert html.count('tabindex="0"') == 9 and "9 of at most 7 tokens" in html.replace(f"most {run.settings.max_tokens}", "most 7")
    assert 'aria-valuenow="40"' in html and 'class="caret"' in html


def test_several_prompts_are_a_set(answering):
    at = app("entropy")
    next(b for b in at.button_group if b.key == "entropy.source").set_value("Several prompts")
    healthy(at.run())
    at = healthy(field(at, "prompts").set_value("One.\nTwo.\nThree.").run())
    at = finished(healthy(button(at, "entropy.run").click().run()))
    assert [p.text for p in answering.asked[0].prompts] == ["One.", "Two.", "Three."]
    assert "of 3 answers" in page_html(at) and list(at.dataframe[-1].value["Prompt"]) == ["One.", "Two.", "Three."]
    assert "3 answers. The figures are of all of them" in page_html(at)


def test_a_comparison_shows_both_modes_here(engine):  # noqa: F811
    run_id = saved(sample_run(tokens=60))
    at = app("entropy", run=run_id)
    assert 'aria-label="Entropy"' in page_html(at) and "not recorded in this run" in page_html(at)
    mode = next(b for b in at.button_group if b.key == f"entropy.side.{run_id}")
    assert mode.options and "Draft entropy, accepted" not in page_html(at)
    at = healthy(mode.set_value("Speculative, γ = 4").run())
    assert "Draft entropy, accepted" in page_html(at) and "speculative, γ = 4" in page_html(at)


def test_a_strategy_run_shows_here_too(engine):  # noqa: F811
    made = sample_run(tokens=10)
    item = UagItem(made.prompt, "one", "x", made.plain, (UagResult("naive", 2, made.speculative),))
    at = app("entropy", run=saved(UagRun("", made.created, (item,), ("naive",), (2,), 5, made.settings, made.models, made.machine, made.tokens)))
    assert 'aria-label="Entropy"' in page_html(at) and "one (x), mean" in page_html(at)


def test_any_saved_run_can_be_chosen_and_asks_the_model_nothing(answering):
    first, second = saved(sample_run(seed=1, tokens=9)), saved(dataclasses.replace(entropy_run(), created="2026-12-02T12:00:00Z"))
    at = app("entropy")
    assert shown_box(at).value is None and len(shown_box(at).options) == 2
    for run_id, words in ((first, "over 9 tokens"), (second, "over 28 tokens of 3 answers")):
        at = healthy(shown_box(at).set_value(run_id).run())
        assert words in page_html(at) and run_of(at) == run_id and shown_box(at).value == run_id
    assert not answering.asked


def test_runs_without_entropies_are_not_offered_and_say_so_when_opened(engine):  # noqa: F811
    run = sample_run(tokens=4)
    empty = dataclasses.replace(run, plain=dataclasses.replace(run.plain, entropy=()), speculative=None)
    assert "holds no entropies" in page_html(app("entropy", run=saved(empty)))
    assert "The prompt is empty; type some text." in page_html(app("entropy", run=saved(dataclasses.replace(
        entropy_run(refused=(0, 1, 2)), created="2026-12-03T12:00:00Z"))))


def test_text_of_prompts_and_models_is_data(answering):
    run = entropy_run((6,), (HOSTILE,), name=HOSTILE, notes=(HOSTILE, DOLLARS))
    tokens = {i: HOSTILE.encode().hex() if n == 0 else raw for n, (i, raw) in enumerate(run.tokens.items())}
    html = page_html(app("entropy", run=saved(dataclasses.replace(run, tokens=tokens))))
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;" in html and DOLLARS in html


def test_what_is_wrong_is_one_sentence_and_the_page_lives_on(answering):
    at = app("entropy")
    at = healthy(field(at, "prompt").set_value("   ").run())
    at = healthy(button(at, "entropy.run").click().run())
    assert "There is no prompt to answer" in page_html(at) and not answering.asked
    at = healthy(field(at, "prompt").set_value("refuse: too long").run())
    at = finished(healthy(button(at, "entropy.run").click().run()))
    assert "refuse: too long" in page_html(at)
    at = healthy(field(at, "prompt").set_value("Ala").run())
    at = finished(healthy(button(at, "entropy.run").click().run()))
    assert "Mean entropy" in page_html(at)


def test_a_run_refills_the_controls():
    run = from_json(to_json(entropy_run()))
    asked = controls.request_of(run)
    assert controls.changes(asked, asked) == []
    s = dataclasses.replace(asked.settings, max_tokens=7, sampling=dataclasses.replace(asked.settings.sampling, top_k=3, repetition_penalty=1.2))
    other = dataclasses.replace(asked, raw=True, settings=s, prompts=asked.prompts[:1])
    assert controls.changes(other, asked) == ["prompts", "raw", "top-k", "repetition penalty", "tokens"]
    greedy = dataclasses.replace(asked, settings=dataclasses.replace(s, sampling=dataclasses.replace(s.sampling, temperature=0.0)))
    ignored = dataclasses.replace(greedy, settings=dataclasses.replace(greedy.settings, sampling=dataclasses.replace(
        greedy.settings.sampling, top_p=0.5, seed=99)))
    assert controls.changes(ignored, greedy) == []
