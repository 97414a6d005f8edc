"""The recorded runs: they fit the schema, every view can draw them, pages show them until there is a run of one's own, no list has them."""

import json

import pytest

import cache
from cache import recorded
from cache.importing import run_from_bytes
from engine.stamps import shown
from engine.trace import KINDS
from tests.sample import sample_run
from tests.screens import app, button, engine, finished, healthy, page_html, run, widget  # noqa: F401
from ui import kinds, takeaway
from ui.jobs import PAGES

LARGEST = 500_000  # bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_run_is_whole_and_small_and_names_no_path(kind):
    data = recorded.path(kind).read_bytes()
    one, trouble = recorded.recorded(kind)
    assert trouble is None and one.kind == kind and one.id == f"recorded-{kind}" and one.status == "done"
    assert run_from_bytes(data) is not None  # everything that an import checks
    assert len(data) < LARGEST and all("/" not in facts.path for facts in one.models.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_run_fills_every_export(kind):
    take = kinds.takeaway(recorded.recorded(kind)[0])
    assert one_headline(take.html()) and json.loads(take.json())["kind"] == kind
    assert all(len(make().splitlines()) > 2 for make in take.tables.values())
    drawn = [take.svg(name, "dark") for name in take.figures]
    assert all(drawing.startswith("<svg") for drawing in drawn) and takeaway.zip_all(take)


def one_headline(html):
    return html.count('class="headline"') >= 1 and recorded.FOLDER.name not in html


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_without_runs_shows_the_recorded_one_marked(engine, kind):  # noqa: F811
    html = page_html(app(PAGES[kind]))
    one = recorded.recorded(kind)[0]
    assert html.count('<span class="mark">recorded</span>') == 1 and f"on {shown(one.created, seconds=False)} with" in html and one.machine.chip in html
    assert "sl card" in html and "Settings changed" not in html
    assert cache.store().list() == []


def test_the_first_run_replaces_the_recorded_one(engine):  # noqa: F811
    at = finished(run(app()))
    assert "recorded</span>" not in page_html(at) and "sl card" in page_html(at)
    again = page_html(app())  # another session
    assert "recorded</span>" not in again and "sl card" in again


def test_the_settings_of_the_recorded_run_can_be_taken(engine):  # noqa: F811
    at = app()
    healthy(button(at, "compare.takerecorded").click().run())
    one = recorded.recorded("compare")[0]
    assert widget(at, "prompt").value == one.prompt.text and widget(at, "gamma").value == one.settings.gamma and not engine.asked


def test_the_link_to_a_recorded_run_opens_it(engine):  # noqa: F811
    for kind, page in PAGES.items():
        at = app("compare", run=f"recorded-{kind}")
        assert f'<h1>{page.capitalize()}</h1>' in page_html(at) and "recorded</span>" in page_html(at)


def test_the_runs_page_lists_none_of_them_and_opens_each(engine):  # noqa: F811
    at = app("runs")
    assert "No runs yet" in page_html(at) and page_html(at).count("recorded</span>") == len(KINDS) and not at.dataframe
    healthy(button(at, "runs.recorded.sinks").click().run())
    assert "recorded</span>" in page_html(at) and "Context health" in page_html(at)


def test_an_imported_recorded_run_gets_an_id_of_its_own(engine):  # noqa: F811
    kept = cache.store().import_json(recorded.path("entropy").read_bytes())
    assert not recorded.is_recorded(kept) and [s.id for s in cache.store().list()] == [kept]


def test_a_missing_or_damaged_recording_is_one_sentence_and_the_page_works(engine, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    assert "Press Run" in page_html(app())
    (tmp_path / "compare.json").write_text('{"kind": "compare"')
    assert "Press Run" in page_html(app())
    assert "cannot be shown" in recorded.recorded("compare")[1]


def test_controls_are_folded_while_there_is_a_result_and_open_as_left(engine):  # noqa: F811
    at = app()
    assert 'class="sl folded"' in page_html(at)
    healthy(button(at, "compare.fold").click().run())
    widget(at, "prompt").set_value("kept")
    healthy(at.run())
    healthy(at.run())
    assert 'class="sl folded"' not in page_html(at)
    at = finished(healthy(button(at, "compare.run").click().run()))
    assert 'class="sl folded"><b>“kept”</b>' in page_html(at) and widget(at, "prompt").value == "kept"


def test_what_cannot_be_run_opens_the_controls(engine):  # noqa: F811
    at = run(app(), prompt="   ")
    assert "The prompt is empty" in page_html(at) and 'class="sl folded"' not in page_html(at)


def test_the_line_of_folded_controls_obeys_nothing(engine):  # noqa: F811
    at = app()
    widget(at, "prompt").set_value("<script>alert(1)</script> $5")
    assert "<script" not in page_html(healthy(at.run())) and "&lt;script&gt;" in page_html(at)


def test_the_store_keeps_its_own_runs_apart(engine):  # noqa: F811
    cache.store().save(sample_run(1, tokens=12, repeats=1))
    assert recorded.by_id("recorded-compare").id == "recorded-compare" and recorded.by_id("20261201-120000-000001") is None
