"""Charts: true to the run, small, labelled, and absent where there is nothing to draw."""

import json

import pytest

from engine.analysis.metrics import judged, metrics
from tests.sample import sample_run
from ui.charts import BARS, FIGURES, ROWS
from ui.theme import colours


def drawn(name, run, theme="light"):
    chart = FIGURES[name](run, metrics(run), theme)
    return None if chart is None else chart.to_dict()


def layers(spec):
    return spec.get("layer", [spec])


def values(spec):
    """Rows of every data set in a chart, wherever Altair put them."""
    sets = [spec.get("data")] + [layer.get("data") for layer in layers(spec)]
    return [d["values"] for d in sets if d]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_has_title_sentence_units_and_tooltips(name, theme):
    spec = drawn(name, sample_run(), theme)
    assert spec["title"]["text"] and " ".join(spec["title"]["subtitle"]).endswith(".")
    assert all(len(line) <= 50 for line in spec["title"]["subtitle"])  # a phone's width
    titles = {
        layer["encoding"][axis].get("title") for layer in layers(spec) for axis in ("x", "y") if axis in layer["encoding"]
    }
    assert any(t for t in titles)
    assert any("tooltip" in layer["encoding"] for layer in layers(spec))
    assert spec["config"]["title"]["color"] == colours(theme).ink
    json.dumps(spec, allow_nan=False)


@pytest.mark.parametrize("name", FIGURES)
def test_no_chart_holds_more_rows_than_a_browser_likes(name):
    spec = drawn(name, sample_run(tokens=3000, gamma=1, repeats=4))
    assert sum(map(len, values(spec))) <= ROWS


@pytest.mark.parametrize(
    "options",
    [
        dict(gamma=0),
        dict(speculative=False),
        dict(tokens=0),
        dict(tokens=1),
        dict(drafter="lookup"),
        dict(acceptance=0),
        dict(acceptance=1.0, eos=True),
        dict(repeats=1),
        dict(status="stopped", tokens=7),
    ],
)
def test_charts_of_odd_runs_are_drawn_or_absent_and_never_nan(options):
    run = sample_run(**options)
    for name in FIGURES:
        spec = drawn(name, run)
        if spec is not None:
            json.dumps(spec, allow_nan=False)
            assert all(values(spec))


def test_a_run_without_proposals_has_no_draft_charts():
    for options in (dict(gamma=0), dict(speculative=False)):
        run = sample_run(**options)
        assert [name for name in FIGURES if drawn(name, run) is None] == ["speedup", "acceptance", "timeline", "entropy"]


def test_prompt_lookup_has_no_draft_entropy_to_show():
    assert drawn("entropy", sample_run(drafter="lookup")) is None


def test_acceptance_bars_are_the_metrics_counts():
    run = sample_run(seed=4)
    rows = values(drawn("acceptance", run))[0]
    assert [(r["accepted"], r["judged"]) for r in rows] == [
        (r["accepted"], r["judged"]) for r in metrics(run)["acceptance_by_position"]
    ]


def test_time_bars_add_up_to_the_decode_time():
    run = sample_run(repeats=1)
    rows = values(drawn("time", run))[0]
    for side, name in (("plain", "verifier only"), ("speculative", "speculative")):
        answer, m = getattr(run, side), metrics(run)
        shown = sum(r["seconds"] for r in rows if r["side"] == name)
        assert shown == pytest.approx(len(answer.ids) / m[f"{side}_tokens_per_second"])  # by medians: the same as the speed beside it
        assert shown == pytest.approx(answer.timings[0].decode_seconds, rel=0.02)


def test_timeline_holds_every_emitted_token():
    run = sample_run(tokens=150, eos=True)
    rows = values(drawn("timeline", run))[0]
    assert sum(r["tokens"] for r in rows) == 150
    assert sum(r["tokens"] for r in rows if r["kind"] == "accepted") == metrics(run)["accepted"]


def test_long_timelines_are_means_that_still_add_up():
    run = sample_run(tokens=1000, gamma=1, acceptance=0.2)
    rows = values(drawn("timeline", run))[0]
    rounds = len(run.speculative.rounds)
    step = -(-rounds // BARS)
    sizes = {start + 1: min(step, rounds - start) for start in range(0, rounds, step)}
    assert step > 1 and sum(r["tokens"] * sizes[r["round"]] for r in rows) == pytest.approx(1000)


def test_entropy_bins_count_judged_tokens_only():
    run = sample_run(tokens=120)
    rows = max(values(drawn("entropy", run)), key=lambda v: "rate" in v[0] and isinstance(v[0]["judged"], int))
    assert sum(r["judged"] for r in rows) == sum(judged(r) for r in run.speculative.rounds) == metrics(run)["judged"]


def test_the_measured_speedup_stands_under_its_ceiling():
    run = sample_run()
    m, spec = metrics(run), drawn("speedup", run)
    point = next(v for v in values(spec) if "label" in v[0])[0]
    assert (point["acceptance"], point["speedup"]) == (m["acceptance_rate"], m["speedup"])
    assert f"{m['ceiling']:.2f}×" in " ".join(spec["title"]["subtitle"])
    assert point["speedup"] <= m["ceiling"] * 1.001
