"""Context health: the published formula as published, and one that goes by the attention drained."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.health import POWER, WORDS, health, health_published, percent, share_drained
from engine.attention.statistics import Scores, Selection, select, z_scores
from tests.attentions import noisy, planted, recency, sums_of

THRESHOLD = 5.0


def of(z, share=None, typical=None, reason=None) -> Scores:
    """Scores with both z alike, as they come."""
    z = np.asarray(z, float)
    n = len(z)
    share = np.full(n, 1 / n) if share is None else np.asarray(share, float)
    typical = np.zeros(n) if typical is None else np.asarray(typical, float)
    why = {int(j): reason or "too few" for j in np.flatnonzero(np.isnan(z))}
    return Scores(np.maximum(share, 1e-9), share, np.arange(n, 0, -1), z, z, typical, typical, -3.0, 0.5, reason, why, why)


def analysed(attention, structural=(0,)):
    flags = np.isin(np.arange(attention.shape[-1]), structural)
    return z_scores(select(sums_of(attention)), flags), flags


def drained_by(keys, strength, length=300, seed=0, threshold=THRESHOLD) -> float:
    return health(*analysed(planted(noisy(recency(length), 0.25, seed), keys, strength)), threshold).drained


def test_the_published_formula_gives_the_published_figure():
    z = np.zeros(279)
    z[:13], z[13:31] = 9, 2.5767
    value, why = health_published(of(z), np.arange(279) < 13, 2.0)
    assert value == pytest.approx(10 - 10 * 18 / 266 - 2.5767) and f"{value:.1f}" == "6.7" and why is None


def test_the_published_formula_saturates_and_ours_does_not():
    """One sink in 266 costs half the scale at threshold 6, whatever it holds; ours asks what it holds."""
    z = np.zeros(266)
    z[7] = 8
    share = np.full(266, 0.99 / 265)
    share[7] = 0.01
    assert health_published(of(z, share), np.zeros(266, bool), 6)[0] == pytest.approx(4.96, abs=0.01)
    assert health(of(z, share), np.zeros(266, bool), 6).value == pytest.approx(10 * 0.99**POWER)
    assert health_published(of(np.full(20, 9.0)), np.zeros(20, bool), 5) == (0.0, None)  # never below 0


def test_nothing_above_the_threshold_is_ten_by_either():
    scores = of([5.0, 1, -2, 0, 3])
    for structural in ([True, False, False, False, False],):
        assert health(scores, np.array(structural), 5).value == 10 and health_published(scores, np.array(structural), 5)[0] == 10


@given(st.lists(st.floats(0, 0.3), min_size=2, max_size=6), st.integers(0, 5), st.floats(0, 0.3))
def test_health_falls_with_every_bit_that_drains(held, which, more):
    z = np.array([0.0] + [9.0] * len(held))
    before = health(of(z, np.array([0, *held]) / 2), np.zeros(len(z), bool), THRESHOLD)
    held[which % len(held)] += more
    after = health(of(z, np.array([0, *held]) / 2), np.zeros(len(z), bool), THRESHOLD)
    assert after.drained >= before.drained and after.value <= before.value and 0 <= after.value <= 10
    assert after.value == pytest.approx(10 * (1 - min(after.drained, 1)) ** POWER)


@settings(max_examples=10)
@given(strengths=st.lists(st.floats(0.05, 0.6), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_a_stronger_sink_never_makes_a_prompt_healthier(strengths, seed):
    drained = [drained_by([40], strength, seed=seed) for strength in sorted(strengths)]
    assert all(b >= a - 1e-9 for a, b in zip(drained, drained[1:]))


@pytest.mark.parametrize("strength", [0.1, 0.3, 0.5])
def test_health_does_not_depend_on_the_length_of_the_prompt(strength):
    """A sink at the same part of the way that takes as much of each query: the same mark at 200, 400 and 800 tokens."""
    values = []
    for length in (200, 400, 800):
        scores, flags = analysed(planted(noisy(recency(length), 0.25), [length // 4], strength))
        values.append(health(scores, flags, THRESHOLD).value)
    assert max(values) - min(values) < 0.05


@settings(max_examples=15)
@given(seed=st.integers(0, 999), threshold=st.floats(0, 8))
def test_health_is_continuous_in_the_threshold(seed, threshold):
    scores, flags = analysed(planted(noisy(recency(160), 0.4, seed), [20, 70, 120], 0.05))
    step = 1e-4
    near, far = (health(scores, flags, t).value for t in (threshold, threshold + step))
    assert 0 <= far - near <= 10 * POWER * step  # weights move by a step at the most, and shares add up to one


@given(st.floats(-3, 12), st.floats(-3, 12))
def test_a_higher_threshold_never_lowers_health(a, b):
    scores = of(np.linspace(-3, 12, 40))
    low, high = sorted((a, b))
    assert health(scores, np.zeros(40, bool), low).value <= health(scores, np.zeros(40, bool), high).value


def test_only_what_is_beyond_a_typical_key_is_drained():
    share = [0.4, 0.2, 0.2, 0.2]
    assert share_drained(of([9, 0, 0, 0], share, [0.1] * 4), np.ones(4, bool), 5) == pytest.approx(0.4 * (1 - 0.1 / 0.4))
    assert share_drained(of([9, 0, 0, 0], share, [0.5] * 4), np.ones(4, bool), 5) == 0
    assert share_drained(of([5.5, 0, 0, 0], share), np.ones(4, bool), 5) == pytest.approx(0.2)
    assert share_drained(of([9, 9, 0, 0], share), np.array([False, True, True, True]), 5) == pytest.approx(0.2)


@pytest.mark.parametrize("attention, structural, words", [
    ([.5, .1, .1, .1, .1, .1], [0], "same attention"), ([.5, .2, .1], [0, 1, 2], "every token belongs to the template"),
    ([1.0], [], "only one")])
@pytest.mark.parametrize("corrected", [True, False])
def test_undefined_health_is_no_ten(attention, structural, words, corrected):
    """AT-05."""
    a = np.array(attention)
    flags = np.isin(np.arange(len(a)), structural)
    scores = z_scores(Selection(a, a / a.sum(), np.arange(len(a), 0, -1), np.tile(a, (63, 1))), flags)
    found = health(scores, flags, 5, corrected)
    assert found.value is None and found.word is None and found.drained is None and found.count == 0
    assert found.reason and found.sentence == f"Context health n/a: {found.reason}."
    value, why = health_published(scores, flags, 5)
    assert value is None and words in why and (corrected or words in found.reason or "sink at the first position" in found.reason)


def test_a_prompt_of_one_content_token_has_no_health():
    """z of one token cannot be; nor is a mark given to what could not be judged."""
    scores, flags = analysed(noisy(recency(40), 0.3), range(39))
    assert health(scores, flags, 5).value is None and health_published(scores, flags, 5)[0] is None


def test_health_is_not_guessed_where_unjudged_tokens_hold_much():
    z = np.array([0, math.nan, 0, 0])
    bad = health(of(z, [0.2, 0.4, 0.2, 0.2]), np.zeros(4, bool), 5)
    assert bad.value is None and "1 of 3 tokens to be judged hold 40 %" in bad.reason and "too few" in bad.reason
    assert health(of(z, [0.45, 0.05, 0.25, 0.25]), np.zeros(4, bool), 5).value == 10
    first = health(of([math.nan, 0, 0, 0], [0.7, 0.1, 0.1, 0.1]), np.zeros(4, bool), 5)  # the opening sink is not judged, scored or not
    assert first.value == 10 and first.opening == (0,)


def test_the_word_follows_the_number():
    assert [w for _, w in WORDS] == ["good", "fair", "poor"]
    for drained, word in ((0, "good"), (0.054, "good"), (0.055, "fair"), (0.159, "fair"), (0.16, "poor"), (1, "poor")):
        assert health(of([0, 9, 0], [0, drained, 1 - drained]), np.zeros(3, bool), 5).word == word


@pytest.mark.parametrize("held, flagged, words", [
    ([0.0, 0.4, 0.4], 0, "Context health 10.0 — good. No sink outside the template."),
    ([0.03, 0.47, 0.5], 1, "Context health 8.9 — good. One sink outside the template holds 3 % of all attention."),
    ([0.01, 0.02, 0.97], 2, "Context health 8.9 — good. Two sinks outside the template hold 3 % of all attention.")])
def test_the_sentence_of_the_card(held, flagged, words):
    z = [0.0] + [9.0] * flagged + [0.0] * (3 - flagged)
    assert health(of(z, [0, *held]), np.zeros(4, bool), 5).sentence == words


def test_the_sink_at_the_first_position_is_named_and_not_counted():
    found = health(of([9, 0, 0, 9], [0.5, 0.2, 0.27, 0.03]), np.zeros(4, bool), 5, first="first token")
    assert found.sentence == ("Context health 8.9 — good. One sink outside the template holds 3 % of all attention. "
                              "The first token holds 50 % as the opening sink that any text has; it is not counted.")
    assert found.opening == (0,) and found.opening_held == 0.5 and found.count == 1
    plain = health(of([0, 0, 0, 9], [0.25, 0.25, 0.47, 0.03]), np.zeros(4, bool), 5)
    assert "opening" not in plain.sentence and plain.value == found.value  # no sink there: nothing to name


@pytest.mark.parametrize("z, structural, opening, words", [
    ([9, 8, 0, 0, 9], [], (0, 1), "The first two tokens hold 40 %"),  # a model that spreads it, or a text that begins with a token doubled
    ([9, 8, 7, 6, 9], [], (0, 1, 2, 3), "The first four tokens hold 80 %"),  # and no further
    ([9, 0, 9, 0, 0], [], (0,), "The first token holds 20 %"),  # the first token again, further on, is the text's own
    ([9, 8, 0, 0, 0], [0], (1,), "Position 1 holds 20 %"),  # behind a begin-of-text token
    ([9, 0, 0, 0, 9], [0], (), None), ([9, 8, 7, 6, 9], [0, 1, 2, 3], (), None), ([9, 0, 0, 0, 0], range(5), (), None)])
def test_how_far_the_opening_sink_reaches(z, structural, opening, words):
    found = health(of(z), np.isin(np.arange(5), structural), 5, first="first token")
    assert found.opening == opening and (words in found.sentence if words else "opening" not in found.sentence)
    counted = sum(1 for j, v in enumerate(z) if v >= 5 and j not in opening and j not in list(structural))
    assert found.count == counted and (found.value is None or (found.value < 10) == bool(counted))


@given(st.lists(st.floats(-3, 12), min_size=5, max_size=9), st.floats(-3, 12), st.floats(-3, 12))
def test_what_the_opening_sink_is_does_not_hang_on_the_threshold(z, a, b):
    low, high = (health(of(z), np.zeros(len(z), bool), t) for t in sorted((a, b)))
    assert low.opening == high.opening and low.value <= high.value


@pytest.mark.parametrize("raw_first", [0.3, 0.5, 0.7])
def test_a_sink_at_the_first_position_costs_a_text_nothing(raw_first):
    """However strong, the health is that of the same text behind a template whose first token drains it."""
    attention = planted(planted(noisy(recency(200), 0.25), [90], 0.05), [0], raw_first)
    raw, framed = (health(*analysed(attention, structural), THRESHOLD) for structural in ((), (0,)))
    assert raw.value == pytest.approx(framed.value, abs=0.05) and raw.value < 10 and raw.opening == (0,) and framed.opening == ()


def test_the_health_of_an_answer_says_how_much_of_it_the_answer_drains():
    scores = of([9, 9, 0, 9, 0], [0.3, 0.02, 0.5, 0.04, 0.14])
    flags = np.array([True, False, False, False, False])
    z = dataclasses.replace(scores, z=np.array([0.0, 9, 0, 9, 0]), z_corrected=np.array([0.0, 9, 0, 9, 0]))
    found = health(z, flags, 5, answer_start=3)
    assert found.drained == pytest.approx(0.06) and found.drained_answer == pytest.approx(0.04)
    assert found.sentence.startswith("Context health of prompt and answer 7.8 — fair. Two sinks") and health(z, flags, 5).drained_answer is None


def test_shares_are_written_with_the_digits_they_deserve():
    assert [percent(v) for v in (0, 0.0004, 0.004, 0.0096, 0.0349, 1)] == ["0 %", "under 0.1 %", "0.4 %", "1 %", "3 %", "100 %"]


def test_every_field_of_health_is_plain_data():
    found = health(of([9, 0, 9]), np.zeros(3, bool), 5)
    assert all(v is None or type(v) in (int, float, str) or v == (0,) and type(v[0]) is int for v in dataclasses.asdict(found).values())
