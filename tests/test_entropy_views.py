"""What is drawn of entropies: ribbon, card, charts and files, true to the run, legible, self-explaining, and text as text."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zipfile
from dataclasses import replace

import pytest

from engine.analysis import entropy as e
from engine.trace import from_json
from tests.sample import sample_run
from tests.test_entropy_figures import entropy_run, run_of
from ui import sheet
from ui import scale
from ui.charts import ROWS
from ui.entropy import card, ribbon
from ui.entropy.charts import BRUSHED, FIGURES
from ui.entropy.takeaway import COLUMNS, takeaway
from ui.takeaway import zip_all
from ui.theme import colours

SPECULATIVE = "Speculative, γ = 4"
HOSTILE = ("<script>", "alert(2)", "onerror=alert")


def first(run, side=None):
    found = e.sides(run)
    chosen = found[side] if side else next(iter(found.values()))
    return chosen, chosen[0]


def drawn(name, run, side=None, theme="light"):
    chart = FIGURES[name](run, *first(run, side), theme)
    return None if chart is None else chart.to_dict()


def data_of(spec):
    """Rows of every data set in a chart, wherever Altair put them."""
    found = []
    for part in [spec, *spec.get("layer", []), *spec.get("vconcat", [])]:
        found += [part["data"]["values"]] if "values" in part.get("data", {}) else []
        if part is not spec:
            found += data_of({k: v for k, v in part.items() if k != "data"})
    return found


# ----------------------------------------------------------------------------------------------------------------- ribbon


@pytest.mark.parametrize("bits, classes", [
    (0.0, "q0"), (0.99, "q3"), (1.0, "q4 u1"), (2.0, "q8 u2"), (3.99, "q15 u2"), (4.0, "q16 u3"), (7.99, "q31 u3"), (8.0, "q31 u4"),
    (14.2, "q31 u4"), (None, "nan")])
def test_a_tokens_colour_and_line_say_its_entropy_on_a_fixed_scale(bits, classes):
    """EN-01, EN-04: certain is the first colour; one rule everywhere; past 8 bits the last colour."""
    assert ribbon.look(bits) == classes


def test_text_on_every_colour_is_legible():
    """WCAG AA: 4.5 : 1."""
    def light(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    for n in range(scale.STEPS):
        a, b = sorted((light(scale.colour(scale.of_step(n))), light(scale.ink(scale.of_step(n)))))
        assert (b + 0.05) / (a + 0.05) >= 4.5, n


def test_every_token_can_be_focused_and_tells_both_entropies_and_its_alternatives():
    run = entropy_run(counts=(20,), categories=("",))
    chosen, trail = first(run)
    html = ribbon.ribbon_html(run, trail)
    tokens = re.findall(r'<span class="t ([^"]*)" tabindex="0" data-d="([^"]*)">', html)
    assert len(tokens) == 20
    for i, (classes, detail) in enumerate(tokens):
        assert classes.startswith(ribbon.look(trail.bits[i]))
        assert f"model entropy {trail.bits[i]:.2f} bits · sampling entropy {trail.sampling_bits[i]:.2f} bits" in detail
        assert trail.pieces[i] in detail and "top 5" in detail and detail.count("&#10;") == 8


def test_a_run_from_before_sampling_entropy_says_so():
    run = sample_run(tokens=5)
    chosen, trail = first(run)
    html = card.card_html(run, chosen, trail, e.figures(chosen))
    assert "sampling entropy not recorded" in html and "not recorded in this run" in html
    assert "was not recorded in this run" in " ".join(drawn("line", run)["title"]["subtitle"])


def test_a_proposals_draft_entropy_and_fate_stand_beside_its_token():
    run = sample_run(tokens=60)
    chosen, trail = first(run, SPECULATIVE)
    html = ribbon.ribbon_html(run, trail)
    accepted = trail.states.count("accepted")
    assert html.count("draft entropy") == html.count("accepted") == accepted > 0
    assert html.count("correction") == trail.states.count("correction")


def test_the_legend_has_numbers_units_and_counts_what_lies_beyond():
    run = run_of([b"a", b" b", b" c"], [8.5, 12.0, 1.0])
    html = ribbon.legend_html(e.trails(run)[0])
    assert "bits (fixed scale)" in html and "≥ 8" in html and "2 tokens above 8 bits have the last colour" in html and "≥ 1 bit<" in html
    assert "above 8 bits" not in ribbon.legend_html(e.trails(run_of([b"a"], [8.0]))[0])


def test_long_answers_are_drawn_in_parts():
    run = entropy_run(counts=(ribbon.WINDOW + 40,), categories=("",))
    chosen, trail = first(run)
    html = card.card_html(run, chosen, trail, e.figures(chosen), start=ribbon.WINDOW)
    assert html.count('tabindex="0"') == 40 and f"Tokens {ribbon.WINDOW + 1:,} to {ribbon.WINDOW + 40:,} of {ribbon.WINDOW + 40:,}" in html


# ------------------------------------------------------------------------------------------------------------------- card


def test_the_card_explains_itself():
    run = entropy_run(refused=(1,), status="stopped")
    chosen, trail = first(run)
    f = e.figures(chosen)
    html = card.card_html(run, chosen, trail, f)
    words = card.caption(run, chosen, trail)
    for part in ("SmolLM2-135M-Instruct @b179c9523d0e", "bfloat16", "torch 2.13.0", "2-core x86-64, 16 GB", "temperature 0.7, top-p 0.9, seed 2",
                 "2 answers, 21 tokens", "23 prompt tokens", "raw softmax in bits", "0–8 bits", "2026-12-01 12:00:00 UTC", "stopped"):
        assert part in words
    assert words in html and e.sentence(run, f) in html and "Refused, prompt 2: The prompt is empty" in html and "prompt 1" in html
    assert "95 %" in html and "Sampling entropy" in html and "Normalised" in html


@pytest.mark.parametrize("run, side", [(sample_run(hostile=True), None), (sample_run(hostile=True), SPECULATIVE), (sample_run(polish=True), None)])
def test_text_of_a_model_is_never_markup(run, side):
    chosen, trail = first(run, side)
    chosen = (replace(trail, label="<b>x</b>", category="<i>y</i>"),)
    html = card.card_html(run, chosen, chosen[0], e.figures(chosen), prompt=True)
    assert not [bad for bad in ("<script", "<img", "<b>x", "<i>y") if bad in html]
    take = takeaway(run, side)
    for name in take.figures:
        svg = take.svg(name, "light")
        assert "<script" not in svg and "<img" not in svg and "\ufffd" not in svg
    assert "<script>alert" not in take.html()


@pytest.mark.parametrize("run", [sample_run(tokens=1), sample_run(status="stopped", tokens=3), sample_run(drafter="lookup"), entropy_run(),
                                 run_of([b"a", b"b"], [math.nan, -0.0]), sample_run(speculative=False), entropy_run(counts=(0, 3))])
def test_odd_runs_are_drawn_without_nan_or_minus_zero(run):
    for side, chosen in e.sides(run).items():
        for trail in chosen:
            html = card.card_html(run, chosen, trail, e.figures(chosen))
            assert not re.search(r"\bnan\b(?!\")|-0\.0|None|\binf\b", re.sub(r'class="[^"]*"', "", html))
            for name, figure in FIGURES.items():
                chart = figure(run, chosen, trail, "dark")
                if chart is not None:
                    assert "-0.0" not in json.dumps(chart.to_dict(), allow_nan=False)


# ----------------------------------------------------------------------------------------------------------------- charts


CASES = [("line", entropy_run(), None), ("words", entropy_run(), None), ("categories", entropy_run(), None),
         ("acceptance", sample_run(tokens=120), SPECULATIVE), ("judged", sample_run(tokens=120), SPECULATIVE)]


@pytest.mark.parametrize("name, run, side", CASES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_has_title_sentence_units_and_tooltips(name, run, side, theme):
    spec = drawn(name, run, side, theme)
    assert spec["title"]["text"] and " ".join(spec["title"]["subtitle"]).endswith(".")
    assert all(len(line) <= 50 for line in spec["title"]["subtitle"])  # a phone's width
    text = json.dumps(spec, ensure_ascii=False, allow_nan=False)
    assert "bits" in text and "tooltip" in text and spec["config"]["title"]["color"] == colours(theme).ink


def test_charts_are_absent_where_there_is_nothing_to_draw():
    assert [name for name in FIGURES if drawn(name, entropy_run(categories=("a", "a", "a"))) is None] == ["categories", "acceptance", "judged"]
    assert [name for name in FIGURES if drawn(name, sample_run(drafter="lookup"), "Speculative, prompt lookup") is None] == \
        ["categories", "acceptance", "judged"]


def test_the_line_chart_holds_both_entropies_and_a_brush_that_cuts_the_lower_part():
    run = entropy_run(counts=(120,), categories=("",))
    chosen, trail = first(run)
    spec = drawn("line", run)
    (rows, *_) = [rows for rows in data_of(spec) if "model" in rows[0]]
    assert [(r["model"], r["sampling"]) for r in rows] == [(pytest.approx(m, abs=1e-4), pytest.approx(s, abs=1e-4))
                                                           for m, s in zip(trail.bits, trail.sampling_bits)]
    assert len({r["name"] for r in rows}) == 120  # a token that comes again has a place of its own
    (brush,) = [p for p in spec["params"] if p["name"] == "brush"]
    assert brush["select"]["encodings"] == ["x"] and brush["value"] == {"x": [0.5, BRUSHED + 0.5]}
    text = json.dumps(spec)
    assert '"filter": {"param": "brush"}' in text and "model entropy" in text and "sampling entropy" in text
    assert text.count('"model":') == 120  # the data stand once
    short = drawn("line", entropy_run(counts=(10,), categories=("",)))
    assert "value" not in next(p for p in short["params"] if p["name"] == "brush")


def test_no_chart_holds_more_rows_than_a_browser_likes(monkeypatch):
    monkeypatch.setattr("ui.entropy.charts.ROWS", 300), monkeypatch.setattr("ui.entropy.charts.WINDOW", 300)
    run = sample_run(tokens=500, gamma=1, repeats=1)
    for name in FIGURES:
        spec = drawn(name, run, "Speculative, γ = 1")
        if spec is not None:
            assert max(map(len, data_of(spec))) <= 300 < ROWS


def test_the_line_chart_of_a_long_answer_begins_where_the_ribbon_does():
    run = entropy_run(counts=(ribbon.WINDOW + 90,), categories=("",))
    chosen, trail = first(run)
    spec = FIGURES["line"](run, chosen, trail, "light", start=ribbon.WINDOW).to_dict()
    rows = next(rows for rows in data_of(spec) if "model" in rows[0])
    assert [r["at"] for r in rows] == list(range(ribbon.WINDOW + 1, ribbon.WINDOW + 91))
    assert f"tokens {ribbon.WINDOW + 1:,} to {ribbon.WINDOW + 90:,} of {ribbon.WINDOW + 90:,}" in " ".join(spec["title"]["subtitle"])
    assert spec["params"][0]["value"]["x"][0] == ribbon.WINDOW + 0.5


def test_words_and_categories_are_the_figures():
    run = entropy_run()
    chosen, _ = first(run)
    f = e.figures(chosen)
    rows = {r["kind"]: r for r in data_of(drawn("words", run))[0]}
    assert all(rows[kind]["bits"] == f["words"][kind]["bits"] and rows[kind]["tokens"] == f["words"][kind]["tokens"] for kind in rows)
    found = {r["category"]: r for r in data_of(drawn("categories", run))[0]}
    assert {c["category"]: (c["bits"], (c["interval"] or (None,))[0]) for c in f["categories"]} == {
        k: (r["bits"], r["low"]) for k, r in found.items()}


def test_acceptance_bars_carry_counts_and_wilsons_interval():
    run = sample_run(tokens=150)
    (trail,) = e.sides(run)[SPECULATIVE]
    rows = next(rows for rows in data_of(drawn("acceptance", run, SPECULATIVE)) if "least" in rows[0])
    bins = e.acceptance_bins(e.judged(trail))
    assert [(r["low"], r["high"], r["rate"], r["judged"], (r["least"], r["most"])) for r in rows] == \
        [(b["low"], b["high"], b["rate"], b["judged"], b["interval"]) for b in bins]


# ------------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("run, side", [(entropy_run(), None), (sample_run(tokens=40), SPECULATIVE)])
def test_every_picture_carries_the_caption(run, side):
    take = takeaway(run, side)
    for name in take.figures:
        for theme in ("light", "dark"):
            svg = take.svg(name, theme)
            said = " ".join(re.sub(r"<[^>]+>", " ", svg).split())
            assert "SmolLM2-135M-Instruct" in said and f"seed {run.settings.sampling.seed}" in said and "2026-12-01" in said, name
            assert colours(theme).ink in svg
    with pytest.raises(ValueError, match="no figure"):
        take.svg("speedup", "light")


def test_the_csv_has_a_row_a_token_of_every_answer_in_bits():
    run = sample_run(tokens=30, polish=True)
    rows = list(csv.DictReader(io.StringIO(takeaway(run).tables["tokens"]())))
    assert list(rows[0]) == [*COLUMNS, sheet.COLUMN] and len(rows) == 60
    for row, token, bits in zip(rows, run.plain.ids, run.plain.entropy):
        assert int(row["id"]) == token and float(row["entropy_bits"]) == bits and row["sampling_entropy_bits"] == ""
        assert row["bytes"] == run.tokens[token] and (row["text"] == "" or row["text"].encode().hex() == row["bytes"])
    assert rows[0]["caption"] and not rows[1]["caption"] and rows[30]["caption"]
    assert [r["state"] for r in rows[30:]] == list(e.trails(run)[1].states)


def test_the_json_reads_back_and_carries_the_figures():
    run = entropy_run(refused=(0,))
    data = json.loads(takeaway(run).json())
    assert from_json(json.dumps(data)) == run and data["entropy"]["Verifier only"]["tokens"] == 16 and data["refused"][0]["label"] == "prompt 1"


def test_the_html_stands_alone_and_holds_every_answer():
    html = takeaway(entropy_run()).html()
    assert html.count('<article class="sl card"') == 3 and "http://" not in html.replace("http://www.w3.org", "") and "<script" not in html
    assert html.count('tabindex="0"') == 28


def test_a_zip_of_a_run_without_entropies_is_made_without_pictures():
    nothing = entropy_run(refused=(0, 1, 2))
    take = takeaway(nothing)
    with zipfile.ZipFile(io.BytesIO(zip_all(take))) as archive:
        assert {"run.json", "run.html", "tokens.csv", "caption.txt"} == set(archive.namelist())
    with pytest.raises(ValueError, match="no picture"):
        take.svg("card", "light")
