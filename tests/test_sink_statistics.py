"""Attention received, z and z′: golden values, their definition worked out slowly, and what a sink is and is not."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.null import DEFAULT_THRESHOLD
from engine.attention.statistics import LEAST, W, Selection, by_head, by_layer, queries, select, sinks, slope, without_trend, z_scores
from engine.errors import RequestError
from engine.trace import Sums
from tests.attentions import noisy, normalised, planted, random_attention, recency, slowly, sums_of

PUBLISHED = """\
.3716 7.23
.0359 3.42
.0648 4.38
.1230 5.43
.0018 -1.46"""


def flat(attention, structural=()) -> tuple[Selection, np.ndarray]:
    """Means given as they are, without what the correction needs."""
    a = np.asarray(attention, float)
    return (Selection(a, a / a.sum(), np.arange(len(a), 0, -1), None, "not kept"), np.isin(np.arange(len(a)), structural))


def scored(attention: np.ndarray, structural=(), windows=None, exclude: bool = True, **chosen):
    flags = np.isin(np.arange(attention.shape[-1]), structural)
    return z_scores(select(sums_of(attention, windows), **chosen), flags, exclude)


def same(mine: np.ndarray, slow: list[float | None], within: float = 1e-4) -> None:
    assert [bool(np.isnan(v)) for v in mine] == [v is None for v in slow]
    theirs = np.array([math.nan if v is None else v for v in slow])
    assert np.nanmax(np.abs(mine - theirs) / np.maximum(1, np.abs(theirs)), initial=0) < within


def test_golden_z_of_six_keys():
    scores = z_scores(*flat(0.1 * np.exp([0, -6, -5, -4, -3, -2]), [0]))
    assert np.allclose(scores.z, [2.698, -1.349, -0.6745, 0, 0.6745, 1.349], atol=1e-3)
    assert scores.median == pytest.approx(math.log(0.1) - 4) and scores.scaled_mad == pytest.approx(1.4826)


def test_golden_rows_of_the_published_table():
    """A population with the published median and MAD, the rows of AT-03 (b) and the whole table of the case file beside it."""
    median, scaled = math.log(0.004417), 0.6129
    population = np.exp(median + scaled / 1.4826 * np.array([-3, -2, -1, -1, 0, 1, 1, 2, 3]))
    rows = [tuple(map(float, line.split())) for line in PUBLISHED.splitlines()]
    assert len(rows) == 5
    path = Path(__file__).parents[2] / "shared" / "cases" / "published_sinks.csv"
    if path.exists():
        with open(path, encoding="utf-8", newline="") as f:
            table = [(float(r["mean_attention"]), float(r["z"])) for r in csv.DictReader(f)]
        assert len(table) == 31
        rows += table
    scores = z_scores(*flat([*(a for a, _ in rows), *population], range(len(rows))))
    assert scores.median == pytest.approx(median) and scores.scaled_mad == pytest.approx(scaled)
    for z, (_, expected) in zip(scores.z, rows):
        assert z == pytest.approx(expected, abs=0.04)


def test_each_key_is_averaged_over_the_queries_that_see_it():
    identity, uniform = np.eye(5)[None, None], normalised(np.ones((5, 5)))[None, None]
    assert np.allclose(select(sums_of(identity)).attention, [0.2, 0.25, 0.3333, 0.5, 1], atol=1e-4)
    assert np.allclose(select(sums_of(uniform)).attention, [0.4567, 0.3208, 0.2611, 0.225, 0.2], atol=1e-4)
    assert select(sums_of(identity)).queries.tolist() == [5, 4, 3, 2, 1]
    assert queries(sums_of(identity, [3])).tolist() == [3, 3, 3, 2, 1]


def test_shares_of_all_attention_add_up_to_one():
    attention = random_attention(3, 2, 90, (None, 8, 40))
    assert select(sums_of(attention, (None, 8, 40))).share.sum() == pytest.approx(1, abs=1e-5)
    assert select(sums_of(attention, (None, 8, 40)), layers=[1], heads=[0]).share.sum() == pytest.approx(1, abs=1e-5)


@settings(max_examples=25)
@given(length=st.integers(1, 110), layers=st.integers(1, 3), heads=st.integers(1, 3), seed=st.integers(0, 99), exclude=st.booleans(),
       window=st.sampled_from([None, 1, 3, 8, 63, 64, 80]), more=st.sampled_from([None, 5, 70]), data=st.data())
def test_scores_are_those_of_their_definition(length, layers, heads, seed, exclude, window, more, data):
    windows = (window, more, None)[:layers]
    attention = random_attention(layers, heads, length, windows, seed)
    structural = data.draw(st.sets(st.integers(0, length - 1), max_size=length // 2))
    chosen = data.draw(st.sampled_from([(None, None), (None, [0]), ([layers - 1], None), ([0], [heads - 1])]))
    flags = [i in structural for i in range(length)]
    received, plain, corrected = slowly(attention, flags, windows, *chosen, exclude=exclude)
    scores = z_scores(select(sums_of(attention, windows), *chosen), flags, exclude)
    assert np.allclose(scores.attention, received, rtol=1e-5)
    same(scores.z, plain)
    same(scores.z_corrected, corrected, within=0.05)  # float16 sums beside exact ones, in units of a MAD
    for z, why in ((scores.z, scores.why), (scores.z_corrected, scores.why_corrected)):
        assert set(why) == {int(j) for j in np.flatnonzero(np.isnan(z))} and all(why.values())
        assert not np.isinf(z).any()


def test_the_mean_band_gives_what_all_layers_and_heads_give():
    attention = noisy(recency(150))
    whole = select(sums_of(attention.repeat(2, axis=0)))
    one_by_one = select(Sums(**{**vars(sums_of(attention.repeat(2, axis=0))), "near_mean": None}))
    assert np.allclose(whole.recent[:, :80], one_by_one.recent[:, :80], rtol=2e-3)


def test_without_the_band_only_the_tail_is_undefined():
    attention = noisy(recency(150).repeat(2, axis=0))
    scores = z_scores(select(sums_of(attention, keep_near=False), layers=[1]), np.zeros(150, bool))
    assert np.isnan(scores.z_corrected).sum() == W - 1 and not np.isnan(scores.z_corrected[:150 - W + 1]).any()
    assert "edge correction" in scores.why_corrected[149] and not np.isnan(scores.z).any()
    assert not sinks(scores, -100)[150 - W + 1:].any()  # and z is not put in its place
    assert not np.isnan(z_scores(select(sums_of(attention, keep_near=False)), np.zeros(150, bool)).z_corrected).any()


PATTERNS = st.sampled_from([dict(power=0.5), dict(power=1.0), dict(power=2.0), dict(power=None, reach=5.0), dict(power=None, reach=60.0)])


@settings(max_examples=10)
@given(length=st.integers(150, 500), seed=st.integers(0, 999), amount=st.floats(0.1, 0.6), pattern=PATTERNS)
def test_recency_alone_is_no_sink(length, seed, amount, pattern):
    assert not sinks(scored(noisy(recency(length, **pattern), amount, seed), [0]), 5)[1:].any()
    assert not sinks(scored(recency(length, **pattern), [0]), 3)[1:].any()  # and without any noise


def test_the_plain_mean_calls_the_tail_a_sink_where_the_corrected_does_not():
    scores = scored(noisy(recency(600, 2.0), 0.3), [0])
    assert sinks(scores, 4, corrected=False)[-3:].all() and not sinks(scores, 4)[1:].any()


@settings(max_examples=10)
@given(length=st.integers(150, 500), seed=st.integers(0, 999), data=st.data(), pattern=PATTERNS)
def test_two_planted_sinks_are_found_and_nothing_else_also_near_the_end(length, seed, data, pattern):
    first = data.draw(st.integers(10, length - 20))  # later, a dozen queries cannot always tell it from a token that looks at itself
    second = data.draw(st.integers(length - 60, length - 20).filter(lambda k: k != first))
    attention = planted(noisy(recency(length, **pattern), 0.25, seed), [first, second], 0.4)
    assert set(np.flatnonzero(sinks(scored(attention, [0]), 5))) == {0, first, second}


def test_sink_and_structural_are_independent_flags():
    attention = planted(noisy(recency(300), 0.25), [5, 150], 0.3)
    scores = scored(attention, [0, 5, 6, 7])
    flags = sinks(scores, 5)
    assert flags[5] and flags[150] and not flags[6] and not flags[7]


def test_structural_tokens_count_in_the_median_only_if_asked_to():
    attention = planted(noisy(recency(120), 0.25), range(40), 0.02)
    without, including = scored(attention, range(40)), scored(attention, range(40), exclude=False)
    assert without.median != including.median and np.array_equal(without.attention, including.attention)
    slow = slowly(attention, [i < 40 for i in range(120)], exclude=False)
    same(including.z, slow[1])
    same(including.z_corrected, slow[2])


@pytest.mark.parametrize("attention, structural, words", [
    ([.5, .1, .1, .1, .1, .1], [0], "received the same attention"), ([.5, .2, .1], [0, 1, 2], "no tokens outside the template"),
    ([1.0], [], "only one of the tokens"), ([.5, .2], [0], "only one of the tokens outside"), ([.5, .2], [], "only 2 tokens"), ([.2, 0, 0, 0, 0], [0], "received no attention at all")])
def test_an_undefined_z_says_why(attention, structural, words):
    scores = z_scores(*flat(attention, structural))
    assert np.isnan(scores.z).all() and scores.median is None and scores.scaled_mad is None
    assert words in scores.reason and set(scores.why.values()) == {scores.reason}
    assert not sinks(scores, -100).any() and not sinks(scores, -100, corrected=False).any()


def test_rounding_is_no_spread():
    a = np.full(50, np.float32(0.1), np.float32) + np.arange(50, dtype=np.float32) * np.float32(1e-9)
    assert "same attention" in z_scores(*flat(a)).reason


def test_a_key_without_any_attention_has_no_z_and_spoils_none():
    attention = noisy(recency(100), 0.4)
    attention[..., 30] = 0
    scores = scored(attention, [0])
    assert np.isnan(scores.z[30]) and scores.why[30] == "it received no attention at all" == scores.why_corrected[30]
    assert np.isnan(scores.z).sum() == 1 and np.isfinite(scores.z_corrected[10:30]).all() and np.isfinite(scores.z_corrected[31:]).all()


def test_every_key_of_a_short_text_has_a_z_prime_where_enough_others_are_there():
    """The first keys are compared with later ones too, each pair at the queries both have."""
    attention = planted(noisy(recency(40), 0.3), [0, 6], 0.3)
    scores = scored(attention, [1, 2])
    assert not np.isnan(scores.z_corrected).any() and sinks(scores, 5)[[0, 6]].all() and sinks(scores, 5).sum() == 2
    nine = scored(noisy(recency(LEAST + 1), 0.3))
    assert not np.isnan(nine.z_corrected[:-1]).any()
    eight = scored(noisy(recency(LEAST), 0.3))
    assert np.isnan(eight.z_corrected).all() and f"at least {LEAST}" in eight.why_corrected[0] and not sinks(eight, -100).any()


@pytest.mark.parametrize("length", [700, 2000])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_recency_lifts_no_part_of_a_long_text(length, power):
    """Keys seen by 64 to 100 queries get a mean over near queries only; their typical z′ is that of all others."""
    scores = scored(noisy(recency(length, power), 0.4, seed=3), [0])
    for low, high in ((16, 64), (64, 100), (100, 200), (200, 400), (400, 701)):
        typical = np.median(scores.z_corrected[(scores.queries >= low) & (scores.queries < high)])
        assert abs(typical) < 0.6, (low, high, typical)


def test_the_median_of_an_even_number_is_the_midpoint():
    """What a reader works out by hand from the help beside z: ln a = −6, −5, −3, −2, and 0 left out of median and MAD."""
    scores = z_scores(*flat(0.9 * np.exp([0, -6, -5, -3, -2]), [0]))
    assert np.allclose(scores.z, [1.7986, -0.8993, -0.4497, 0.4497, 0.8993], atol=5e-5)
    assert scores.median == pytest.approx(math.log(0.9) - 4) and scores.scaled_mad == pytest.approx(1.4826 * 1.5)


def test_a_trend_is_not_drawn_on_beyond_the_text():
    """Template tokens before the text are judged at its nearest end: they would get any score by a slope drawn on to position 0."""
    attention = planted(noisy(recency(300), 0.3), [0], 0.4)
    scores = scored(attention, range(40))
    assert scores.z_corrected[0] > 5 and np.abs(scores.z_corrected[1:40]).max() < 4
    x, y = np.log(np.arange(1, 200.0)), -0.5 * np.log(np.arange(1, 200.0))
    flat = without_trend(y, x, np.arange(40, 199))
    assert np.allclose(flat[40:], flat[40], atol=1e-9) and flat[0] == pytest.approx(y[0] + 0.5 * x[40])


@pytest.mark.parametrize("tilt", [-2.0, 0.0, 0.7])
def test_the_trend_is_that_of_a_resistant_line(tilt):
    x = np.log(np.arange(64, 400.0))
    y = tilt * x + 0.1 * np.random.default_rng(1).standard_normal(len(x))
    y[::9] += 30  # sinks do not bend it
    assert slope(x, y) == pytest.approx(tilt, abs=0.05)
    assert slope(x[:10], y[:10]) == 0 and slope(x[:20], y[:20]) == 0  # too few, and too short a way


def test_layers_and_heads_are_chosen_by_number_or_refused():
    sums = sums_of(random_attention(3, 2, 20))
    for chosen, words in (({"layers": [3]}, "no layer 3; the model has layers 0 to 2"), ({"heads": [-1]}, "no head -1"),
                          ({"layers": []}, "No layer is chosen")):
        with pytest.raises(RequestError, match=words):
            select(sums, **chosen)
    means = by_layer(sums)
    assert means.shape == (3, 20) and np.allclose(means.mean(axis=0), select(sums).attention)
    assert np.allclose(by_layer(sums, [1])[2], select(sums, [2], [1]).attention) and np.allclose(by_head(sums, 2)[1], by_layer(sums, [1])[2])


def test_eight_thousand_keys_are_scored_in_the_blink_of_an_eye(tmp_path):
    """Limits leave room for a slow, shared machine: alone it takes a tenth of them."""
    length, rng = 8192, np.random.default_rng(0)
    near = np.memmap(tmp_path / "near", np.float16, "w+", shape=(6, 9, length, W - 1))
    near[:] = rng.random((length, W - 1)) * 300
    left = np.arange(length, 0, -1, dtype=np.float32)
    sums = Sums(rng.random((6, 9, length), np.float32) * left, near, near[0, 0].astype(np.float32) / 32768, (None,) * 6)
    start = time.perf_counter()
    selection = select(sums)
    scores = z_scores(selection, np.arange(length) < 30)
    assert time.perf_counter() - start < 1.5 and np.isfinite(scores.z_corrected).all()
    start = time.perf_counter()
    select(sums, layers=range(5))
    assert time.perf_counter() - start < 1.5


def test_the_default_threshold_is_the_measured_one():
    assert 2 <= DEFAULT_THRESHOLD <= 15
