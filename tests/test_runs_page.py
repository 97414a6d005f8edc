"""The Runs page without a browser."""

from __future__ import annotations

import dataclasses

import cache
from engine.trace import to_json
from tests.sample import sample_run
from tests.screens import AppTest, app, button, engine, healthy, labelled, page_html  # noqa: F401


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
