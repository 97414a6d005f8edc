"""Card, ribbon, charts and files of a sinks run: they explain themselves, escape everything and hold what the screen shows."""

import csv
import dataclasses
import io
import json
import re
import xml.etree.ElementTree as ElementTree
import zipfile

import numpy as np
import pytest

from engine.attention.view import view
from engine.trace import Prompt, SinkItem, from_json
from tests.sample_sinks import attention_with, sample_item, sample_sinks, sums_of
from tests.test_run_kinds import same_arrays
from ui import scale
from ui.sinks import charts, ribbon
from ui.sinks.card import Chosen, caption, card_html
from ui.sinks.takeaway import takeaway
from ui.takeaway import zip_all

HOSTILE = "<script>alert(1)</script>\"'&$x$ \x00\u202e"


@pytest.fixture(scope="module")
def run():
    made = sample_sinks(sample_item(150), sample_item(80, label="b", seed=4))
    return dataclasses.replace(made, tokens={**made.tokens, 8: HOSTILE.encode().hex(), 9: b"\xc5".hex()}, notes=(HOSTILE,))


def test_the_card_says_what_it_was_made_with(run):
    seen = view(run.items[0], 5.0)
    words = caption(run, run.items[0], seen, Chosen((2,), (0, 1)))
    for part in ("SmolLM2-135M-Instruct @b179c9523d0e", "layer 2, heads 0, 1", "150 tokens", "z′ ≥ 5", "torch 2.13.0", "2026-12-01", "0.42 s",
                 "3 MB"):
        assert part in words
    html = card_html(run, run.items[0], seen)
    assert seen.sentence in html and "published formula" in html and "≤ −2" in html
    assert html.count('tabindex="0" data-d') == 150
    assert "<script" not in html


def test_a_long_ribbon_is_drawn_in_parts_that_say_so():
    item = sample_item(1200, {0: 4.0})
    run = sample_sinks(item)
    seen = view(item)
    html = card_html(run, item, seen, start=1000)
    assert html.count('tabindex="0" data-d') == 200 and "Tokens 1,000 to 1,199 of 1,200" in html
    assert card_html(run, item, seen, count=None).count('tabindex="0" data-d') == 1200


def test_every_token_wears_its_own_z(run):
    item = run.items[0]
    seen = view(item, 5.0)
    for j in range(150):
        look = ribbon.look(seen, j)
        z = seen.score[j]
        assert ("nan" in look) == bool(np.isnan(z)) and (" sk" in look) == bool(seen.sinks[j]) and (" st" in look) == bool(seen.structural[j])
        if not np.isnan(z):
            low = ribbon.LOW + int(re.search(r"q(\d+)", look)[1]) * (ribbon.HIGH - ribbon.LOW) / scale.STEPS
            assert low <= z < low + (ribbon.HIGH - ribbon.LOW) / scale.STEPS or not ribbon.LOW <= z < ribbon.HIGH


def test_the_opening_sink_is_shown_named_and_not_counted():
    """Raw: the first token is the text's own, and drains as it does in any text."""
    item = dataclasses.replace(sample_item(150, structural=0), first="first token")
    run, seen = sample_sinks(item), view(item, 5.0)
    html, svg = card_html(run, item, seen), takeaway(run, 0, seen).svg("card", "light")
    assert seen.sinks[0] and seen.health.opening == (0,) and seen.health.count == 1
    for text in (html, " ".join(" ".join(ElementTree.fromstring(svg).itertext()).split())):
        assert "The first token holds" in text and "opening sink, not counted: " in text and "1 of 150 tokens, and the opening sink" in text
    assert "<td>opening</td>" in html and "opening sink, not counted" in ribbon.details(run, seen, 0) and " sk" in ribbon.look(seen, 0)
    rows = list(csv.DictReader(io.StringIO(takeaway(run, 0, seen).tables["tokens"](), newline="")))
    assert [r["opening_sink"] for r in rows[:2]] == ["1", "0"] and {r["segment"] for r in rows} == {"prompt"} and rows[0]["sink"] == "1"


def test_the_help_beside_z_says_which_median(run):
    html = card_html(run, run.items[0], view(run.items[0], 5.0))
    assert "The median of an even number of values is the midpoint of the two in the middle" in html
    assert "−0.8993, −0.4497, 0.4497, 0.8993" in html  # worked out in test_sink_statistics


def test_text_on_the_scale_can_be_read():
    def luminance(colour):
        parts = [v / 255 for v in scale._rgb(colour)]
        light = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]
    for n in range(scale.STEPS):
        paper, ink = (luminance(f(scale.of_step(n))) for f in (scale.colour, scale.ink))
        assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["card", "ribbon", "histogram", "layers", "heads"])
def test_every_picture_is_well_formed_and_holds_the_caption(run, name, theme):
    take = takeaway(run)
    svg = take.svg(name, theme)
    said = " ".join(" ".join(ElementTree.fromstring(svg).itertext()).split())
    for words in ("SmolLM2-135M-Instruct", "2026-12-01", "is a sink", "torch 2.13.0"):
        assert words in said
    assert "<script" not in svg and not re.search(r"\bnan\b|\bNone\b", said)


def test_an_unknown_figure_is_named(run):
    with pytest.raises(ValueError, match="no figure"):
        takeaway(run).svg("moon", "light")


def test_the_files_hold_every_token_of_every_prompt(run):
    take = takeaway(run)
    rows = list(csv.DictReader(io.StringIO(take.tables["tokens"](), newline="")))
    assert [sum(r["prompt"] == p for r in rows) for p in ("p1", "b")] == [150, 80]
    seen = view(run.items[0])
    for row, z, sink in zip(rows, seen.scores.z, seen.sinks):
        assert (row["z"] == "") == bool(np.isnan(z)) and (row["z"] == "" or float(row["z"]) == pytest.approx(z)) and row["sink"] == str(int(sink))
    data = json.loads(take.json(), parse_constant=lambda name: pytest.fail(name))
    assert [len(p["positions"]) for p in data["scored"]] == [150, 80]
    assert same_arrays(from_json(take.json()), run)
    html = take.html()
    assert html.count('tabindex="0" data-d') == 230 and "<script" not in html and "default-src 'none'" in html


def test_the_zip_holds_everything(run):
    archive = zipfile.ZipFile(io.BytesIO(zip_all(takeaway(run))))
    assert {"run.json", "run.html", "tokens.csv", "caption.txt", "card.svg", "card.png", "histogram.png"} <= set(archive.namelist())
    assert archive.testzip() is None


def test_a_run_of_refused_prompts_has_tables_and_no_picture():
    run = sample_sinks(SinkItem(Prompt("x", ()), "a", refused="The prompt is empty."))
    take = takeaway(run)
    with pytest.raises(ValueError, match="no picture"):
        take.svg("card", "light")
    assert take.html() and len(take.tables["tokens"]().splitlines()) == 1 and zip_all(take)


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_short_and_flat_prompts_are_drawn_with_the_reason(length):
    flat = np.tril(np.ones((1, 1, length, length))) / np.arange(1, length + 1)[:, None]
    item = dataclasses.replace(sample_item(length, structural=0), sums=sums_of(flat))
    run = sample_sinks(item)
    seen = view(item)
    html = card_html(run, item, seen)
    assert "nan" not in re.sub(r'class="[^"]*"', "", html).replace("nan\">&nbsp;", "")
    if seen.health.value is None:
        assert "n/a" in html and "Context health n/a" in html
    for figure in charts.FIGURES.values():
        chart = figure(run, item, seen)
        assert chart is None or json.dumps(chart.to_dict(), allow_nan=False)


def test_the_histogram_counts_every_scored_token(run):
    item = run.items[0]
    seen = view(item)
    data = charts.histogram(run, item, seen).to_dict()["layer"][0]["data"]["values"]
    assert sum(r["tokens"] for r in data) == int((~np.isnan(seen.score)).sum())


def test_the_heat_map_keeps_the_brightest_of_each_column():
    item = dataclasses.replace(sample_item(400), sums=sums_of(attention_with(400, {333: 5.0}, layers=2, heads=1)))
    data = charts.heat_map(sample_sinks(item), item, view(item)).to_dict()["data"]["values"]
    assert len(data) <= 2 * charts.COLUMNS and any(r["position"] == 333 and r["layer"] == 1 for r in data)
