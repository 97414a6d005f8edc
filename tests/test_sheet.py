"""Tables that a spreadsheet may open: nothing in them is calculated, numbers are numbers, and every text can be had back."""

import csv
import dataclasses
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import stamps
from engine.trace import EntropyItem, EntropyRun
from tests.sample import sample_run
from tests.sample_sinks import sample_item, sample_sinks
from tests.sample_uag import sample_uag
from ui import kinds, sheet

CELLS = ["=1+1", "+48", "-tak", "@SUM(A1)", "\tx", "\rx", "\n=1", " =1+1", "\u200b=1", "\ufeff+1", "\x00-1", "＝1+1", "−1", "'=1", "'", "-1.06"]


def columns(text: str) -> list[dict]:
    """Rows as a reader has them; numbers stand without quotes and become floats."""
    rows = list(csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONNUMERIC))
    return [dict(zip(rows[0], row)) for row in rows[1:]]


@pytest.mark.parametrize("cell", CELLS)
def test_what_a_spreadsheet_would_calculate_has_a_mark_before_it(cell):
    assert sheet.guarded(cell) == "'" + cell and sheet.exact(sheet.guarded(cell)) == cell


@pytest.mark.parametrize("cell", ["", " ", "1=1", "a\t=1", "tak", " the", "ż", "1-1", "don't"])
def test_other_texts_are_as_they_are(cell):
    assert sheet.guarded(cell) == cell


@given(st.text(st.characters(), max_size=8))
def test_every_text_can_be_had_back(cell):
    assert sheet.exact(sheet.guarded(cell)) == cell


def test_numbers_stay_numbers_and_the_file_says_how_to_read_it():
    row, = columns(sheet.text(("a", "b", "c"), [(-1.06, None, "=1")]))
    assert row == {"a": -1.06, "b": "", "c": "'=1", "how_to_read": sheet.HOW}


def runs():
    """One run of every kind whose every text would be calculated."""
    hex_of = {n: cell.encode().hex() for n, cell in enumerate(CELLS)}
    compare = sample_run(tokens=40)
    compare = dataclasses.replace(compare, tokens={id: hex_of[n % len(CELLS)] for n, id in enumerate(compare.tokens)}, name="=1+1")
    facts = {role: dataclasses.replace(f, title="=cmd()") for role, f in compare.models.items()}
    item = dataclasses.replace(sample_item(), label="+48", category="@SUM(A1)")
    sinks = sample_sinks(item, name="-tak", models={"model": facts["verifier"]})
    uag = sample_uag(name="=1+1")
    return [
        dataclasses.replace(compare, models=facts),
        dataclasses.replace(sinks, tokens={id: hex_of[n % len(CELLS)] for n, id in enumerate(sinks.tokens)}),
        EntropyRun("id", compare.created, (EntropyItem(compare.prompt, "-label", "=category", compare.plain),), compare.settings,
                   {"model": facts["verifier"]}, compare.machine, compare.tokens),
        dataclasses.replace(uag, items=tuple(dataclasses.replace(i, label="+label", category="=category") for i in uag.items),
                            tokens={id: hex_of[n % len(CELLS)] for n, id in enumerate(uag.tokens)}, models=facts,
                            draft_tokens={id: hex_of[n % len(CELLS)] for n, id in enumerate(uag.draft_tokens)}),
    ]


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.kind)
def test_no_cell_of_any_table_of_any_run_is_calculated(run):
    take = kinds.takeaway(run)
    assert take.tables
    seen = set()
    for make in take.tables.values():
        rows = columns(make())
        assert rows[0][sheet.COLUMN] == sheet.HOW
        for row in rows:
            for cell in row.values():
                assert isinstance(cell, float) or not sheet._runs(cell), cell
                seen.add(type(cell) is str and cell.startswith("'"))
    assert seen == {True, False}
    assert json.loads(take.json())["name"] == run.name  # raw: no spreadsheet opens it


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.kind)
def test_times_name_their_zone_wherever_a_run_is_shown(run):
    for created in ("2026-12-01T12:00:00+00:00", "2026-12-01T12:00:00Z", "2026-12-01T14:00:00+02:00", "2026-12-01T12:00:00"):
        take = kinds.takeaway(dataclasses.replace(run, created=created, id="run-" + str(len(created)) + created[-3:-1].replace(":", "")))
        for text in (take.caption, take.html(), *(make() for make in take.tables.values())):
            assert "+00:00" not in text and "+02:00" not in text and created not in text
        assert "2026-12-01 12:00:00 UTC" in take.caption


def test_a_time_is_read_in_any_zone_and_shown_in_one():
    assert stamps.shown("2026-12-01T01:30:05+02:00") == "2026-11-30 23:30:05 UTC"
    assert stamps.shown("2026-12-01T01:30:05+02:00", seconds=False) == "2026-11-30 23:30 UTC"
    assert stamps.shown("yesterday") == "yesterday" and stamps.shown("0001-01-01T00:00:00+12:00") == "0001-01-01T00:00:00+12:00"
