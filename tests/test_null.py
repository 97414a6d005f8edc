"""The default threshold follows from measured data, and the data say where they come from."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import null as bench
from engine.attention.null import DEFAULT_THRESHOLD, MOST, choose, measured
from tests import toys


def test_the_smallest_threshold_from_which_on_little_is_flagged():
    assert choose((1, 2, 3, 4), (0.5, 0.01, 0.011, 0.002), 0.01) == 4  # 2 would do, but not all above it
    assert choose((1, 2, 3, 4), (0.5, 0.01, 0.005, 0.002), 0.01) == 2
    assert choose((4, 1, 2), (0.0, 0.5, 0.01), 0.01) == 2
    with pytest.raises(ValueError):
        choose((1, 2), (0.5, 0.2), 0.01)


@given(st.lists(st.floats(-3, 9), min_size=1, max_size=300))
def test_no_more_than_the_limit_lies_above_the_choice(scores):
    thresholds = [0.5 * i for i in range(-6, 20)]
    chosen = choose(thresholds, [np.mean(np.array(scores) >= t) for t in thresholds])
    assert np.mean(np.array(scores) >= chosen) <= MOST
    assert chosen == -3 or np.mean(np.array(scores) >= chosen - 0.5) > MOST


def test_the_default_threshold_is_the_choice_its_own_curve_asks_for():
    null = measured()
    thresholds = [p["threshold"] for p in null["curve"]]
    assert DEFAULT_THRESHOLD == null["threshold"] == choose(thresholds, [p["share_corrected"] for p in null["curve"]], null["most"])
    assert null["threshold_plain"] == choose(thresholds, [p["share_plain"] for p in null["curve"]], null["most"])
    at = next(p for p in null["curve"] if p["threshold"] == DEFAULT_THRESHOLD)
    assert at["share_corrected"] == null["share"] <= MOST == 0.01
    assert sum(g["flagged"] for g in null["genres"]) / null["content_tokens"] == pytest.approx(null["share"], abs=1e-6)


def test_the_null_comes_from_enough_text_of_several_kinds():
    null = measured()
    assert null["prompts"] >= 50 and len(null["genres"]) >= 5 and null["shortest"] <= 60 and null["longest"] >= 1900
    assert sum(g["prompts"] for g in null["genres"]) == null["prompts"] and sum(g["tokens"] for g in null["genres"]) == null["content_tokens"]
    assert {g["genre"].split(",")[0] for g in null["genres"]} == {"Polish", "English"}
    assert null["model"] and null["dtype"] and null["made"] and f"{DEFAULT_THRESHOLD:g}" in null["sentence"]
    for name in ("corrected", "plain"):
        shares = [p[f"share_{name}"] for p in null["curve"]]
        assert shares == sorted(shares, reverse=True) and all(len(p[f"prompts_{name}"]) == len(null["quantiles"]) for p in null["curve"])


def test_a_curve_counts_content_tokens_of_all_prompts(tmp_path):
    kept = {}
    for n, (genre, scores) in enumerate((("Polish, a", [0.0, 1.5, 3.0, 99.0]), ("English, b", [2.0] * 196 + [np.nan] * 2 + [8.0] * 2))):
        kept |= {f"{n}.judged": np.array(scores), f"{n}.z": np.array(scores) + 1, f"{n}.genre": np.array(genre),
                 f"{n}.attention": np.full(len(scores), 0.1), f"{n}.share": np.full(len(scores), 1 / len(scores)), f"{n}.typical": np.zeros(len(scores)),
                 f"{n}.structural": np.array([s == 99 for s in scores])}
    np.savez(tmp_path / "kept.npz", **kept)
    made = bench.curve(tmp_path / "kept.npz", {"model": "Toy", "revision": None, "dtype": "float32", "backend": "torch"})
    json.dumps(made, allow_nan=False)
    assert made["content_tokens"] == 203 and made["unscored_tokens"] == 2 and made["prompts"] == 2
    at = {p["threshold"]: p["share_corrected"] for p in made["curve"]}
    assert at[2.0] == pytest.approx((1 + 196 + 2) / 203, abs=1e-6) and at[2.1] == pytest.approx(3 / 203, abs=1e-6)
    assert made["threshold"] == 3.1 and made["threshold_plain"] == 4.1 and made["share"] == pytest.approx(2 / 203, abs=1e-6)
    assert made["health"][0] == pytest.approx(9.6, abs=0.1) and "9.6 to 10.0" in made["health_sentence"]
    assert [g["flagged"] for g in made["genres"]] == [2, 0] and made["prompts_with_a_sink"] == 1


def test_texts_grow_to_the_length_asked_for():
    vocabulary = toys.vocabulary(toys.byte_level())
    text = bench.grown(vocabulary, ["Ala", "ma", "kota"], 1, 20)
    assert text == "ma\nkota\nAla" or len(vocabulary.encode(text)) == 20
    assert bench.grown(vocabulary, ["Ala", "ma", "kota"], 1, 6) == "ma\nkot"
