"""Figures of entropies: right by their definitions on known input, whole on every kind of run, undefined said as undefined."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.analysis import entropy as e
from engine.analysis.intervals import of_groups, student_quantile, welch, wilson
from engine.analysis.metrics import metrics
from engine.trace import (EntropyItem, EntropyRun, Generation, Prompt, Round, UagItem, UagResult, UagRun, from_json, to_json)
from tests.sample import sample_run


def entropy_run(counts=(12, 7, 9), categories=("a", "b", "a"), refused=(), **more) -> EntropyRun:
    """Answers of the sample run, cut to `counts` tokens, with a sampling entropy of half the model's."""
    items = []
    for n, (count, category) in enumerate(zip(counts, categories)):
        made = sample_run(seed=n, tokens=max(count, 1), speculative=False)
        answer = replace(made.plain, sampling_entropy=tuple(b / 2 for b in made.plain.entropy))
        items.append(EntropyItem(made.prompt, "", category, None, "The prompt is empty; type some text.") if n in refused else
                     EntropyItem(made.prompt, "", category, answer))
    return EntropyRun(id="20261201-120000-e1", created=made.created, items=tuple(items), settings=made.settings,
                      models={"model": made.models["verifier"]}, machine=made.machine, tokens=made.tokens, special=made.special, **more)


def run_of(tokens, bits, sampling=(), prompt=Prompt("x", (), raw=True, template=False), special=(), vocabulary=8, **more) -> EntropyRun:
    """One answer of these tokens (bytes) with these entropies."""
    made = sample_run(tokens=1, speculative=False)
    facts = replace(made.models["verifier"], vocabulary=vocabulary)
    answer = Generation("plain", tuple(range(len(tokens))), entropy=tuple(bits), sampling_entropy=tuple(sampling),
                        rounds=tuple(Round(emitted=(i,)) for i in range(len(tokens))))
    return EntropyRun(id="e", created=made.created, items=(EntropyItem(prompt, answer=answer),), settings=made.settings, models={"model": facts},
                      machine=made.machine, tokens={i: t.hex() for i, t in enumerate(tokens)} | {99: b"Expl".hex(), 98: b"<|end|>".hex()},
                      special=special, **more)


# ------------------------------------------------------------------------------------------------------------------ words


F, C, O = e.FIRST, e.CONTINUATION, e.OTHER


@pytest.mark.parametrize("tokens, kinds", [
    (["Photos", "ynthesis", " is", " the", " pro", "cess", ".", "\n\n", "1", ".", " Light"], [F, C, F, F, F, C, O, O, O, O, F]),
    (["Za", "ż", "ół", "ć", " g", "ę", "ś"], [F, C, C, C, F, C, C]),
    ([" don", "'t", " “", "Yes", "”", "it", "s"], [F, C, O, F, O, F, C]),
    (["a1", "b", "_", "c", "-d", ".e"], [F, F, O, F, F, F]),  # digits, _ and - part words
    (["\n", "The", "\t", "end"], [O, F, O, F]),
    (["rock", "'", " n"], [F, O, F]),  # an apostrophe at a word's end is none of it
    (["प्र", "काश"], [F, C]),  # vowel signs belong to their letters
    ([], []),
])
def test_words_begin_after_what_is_no_letter(tokens, kinds):
    assert e.pieces([t.encode() for t in tokens]) == tuple(kinds)


def test_a_letter_split_into_bytes_is_one_letter():
    """ż is C5 BC: the byte that starts it starts the word, the byte that ends it continues it."""
    assert e.pieces([b" ", b"\xc5", b"\xbc", b"a"]) == (O, F, C, C)
    assert e.pieces([b"a", b"\xc5", b"\xbc"]) == (F, C, C)
    assert e.pieces([b"a", b"\xff", b"b"]) == (F, O, F)  # what is no character parts words
    assert e.pieces([b"\xf0\x9f", b"\x98\x80", b"x"]) == (O, O, F)  # an emoji is no letter


@given(st.text(max_size=30), st.randoms())
@settings(max_examples=150)
def test_a_token_is_what_its_first_letter_is_however_the_text_is_cut(text, luck):
    data = text.encode("utf-8", "replace")
    cuts = sorted(luck.sample(range(len(data) + 1), luck.randint(0, min(8, len(data))))) if data else []
    tokens = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]
    single = e.pieces([data[i : i + 1] for i in range(len(data))])
    at = 0
    for token, kind in zip(tokens, e.pieces(tokens)):
        inside = [k for k in single[at : at + len(token)] if k != O]
        assert kind == (inside[0] if inside else O)
        at += len(token)


def test_special_tokens_part_words_and_a_raw_prompt_may_end_inside_one():
    end = run_of([b"a", b"<|end|>", b"b"], [1.0] * 3, special=(1,))
    assert e.trails(end)[0].pieces == (F, O, F)
    inside = Prompt("Expl", (99,), raw=True, template=False)
    assert e.trails(run_of([b"ain", b" it"], [1.0] * 2, prompt=inside))[0].pieces == (C, F)
    assert e.trails(run_of([b"ain", b" it"], [1.0] * 2, prompt=replace(inside, ids=(99, 98)), special=(98,)))[0].pieces == (F, F)
    assert e.trails(run_of([b"ain"], [1.0], prompt=replace(inside, template=True)))[0].pieces == (F,)


def test_the_first_piece_and_the_rest_are_averaged_apart_with_their_counts():
    run = run_of([b" pho", b"to", b".", b" is", b"n", b" so"], [3.0, 0.5, 1.0, 2.0, 0.1, 4.7])
    found = e.figures(e.trails(run))["words"]
    assert found[F] == {"bits": pytest.approx(9.7 / 3), "tokens": 3} and found[C] == {"bits": pytest.approx(0.3), "tokens": 2}
    assert found[O] == {"bits": 1.0, "tokens": 1} and found["difference"] == pytest.approx(9.7 / 3 - 0.3)
    assert found["interval"] == pytest.approx(scipy.stats.ttest_ind([3, 2, 4.7], [0.5, 0.1], equal_var=False).confidence_interval(0.95))
    said = e.sentence(run, e.figures(e.trails(run)))
    assert said == ("Mean entropy 1.9 bits over 6 tokens; 1 was above 4 bits. The first piece of a word carries 3.2 bits (3 tokens), "
                    "a continuation 0.3 (2).")


# -------------------------------------------------------------------------------------------------------------- intervals


@given(st.integers(1, 400), st.data())
@settings(max_examples=60)
def test_wilsons_interval_is_that_of_scipy(trials, data):
    hits = data.draw(st.integers(0, trials))
    low, high = wilson(hits, trials)
    want = scipy.stats.binomtest(hits, trials).proportion_ci(0.95, "wilson")
    assert (low, high) == pytest.approx((want.low, want.high), abs=1e-9) and 0 <= low <= hits / trials <= high <= 1


@given(st.floats(0.5, 1000), st.sampled_from([0.75, 0.9, 0.975, 0.995]))
@settings(max_examples=60)
def test_students_quantile_is_that_of_scipy(freedom, probability):
    assert student_quantile(probability, freedom) == pytest.approx(scipy.stats.t.ppf(probability, freedom), rel=1e-7)


ENTROPIES = st.lists(st.integers(0, 12_000).map(lambda v: v / 1000), min_size=2, max_size=40)


@pytest.mark.filterwarnings("ignore:Precision loss")  # scipy says it of samples that hardly vary
@given(ENTROPIES, ENTROPIES)
@settings(max_examples=60)
def test_welchs_interval_is_that_of_scipy(a, b):
    assume(len({*a}) > 1 or len({*b}) > 1)
    found = welch(a, b)
    assert found == pytest.approx(tuple(scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)), rel=1e-6, abs=1e-9)


def test_groups_of_one_value_give_students_interval_and_like_tokens_a_wider_one():
    values = [1.0, 2.5, 3.0, 0.5, 2.0]
    error = scipy.stats.sem(values)
    assert of_groups([[v] for v in values]) == pytest.approx(scipy.stats.t.interval(0.95, 4, fmean(values), error))
    assert of_groups([[v] * 50 for v in values]) == pytest.approx(of_groups([[v] for v in values]))  # fifty times the same tells nothing new


def test_an_interval_over_answers_holds_the_truth_in_19_of_20_cases():
    luck, held = random.Random(1), 0
    for _ in range(600):
        groups = []
        for _ in range(12):
            of_answer = luck.gauss(2, 1)  # tokens of one answer resemble each other
            groups.append([of_answer + luck.gauss(0, 0.5) for _ in range(luck.randint(20, 60))])
        low, high = of_groups(groups)
        held += low <= 2 <= high
    assert 0.92 < held / 600 < 0.98


def test_too_little_to_tell_from_gives_no_interval():
    assert wilson(0, 0) is welch([1.0], [1.0, 2.0]) is welch([1.0, 1.0], [2.0, 2.0]) is of_groups([[1.0, 2.0]]) is of_groups([]) is None
    assert of_groups([[1.0, 2.0], []]) is None


# ---------------------------------------------------------------------------------------------------------------- figures


def test_normalised_is_by_the_usable_vocabulary_for_every_model():
    """EN-04: uniform over 8 of 8 is 3 bits and 1.0; EN-05: log2 4 of a vocabulary of 4 is 1.0."""
    assert e.trails(run_of([b"a"], [3.0], vocabulary=8))[0].normalised == (1.0,)
    assert e.trails(run_of([b"a"], [2.0], vocabulary=4))[0].normalised == (1.0,)
    assert e.trails(run_of([b"a"], [0.0], vocabulary=1))[0].normalised == (None,)


def test_what_is_no_number_is_left_out_and_zero_has_no_sign():
    """EN-01, from a file of another hand."""
    run = run_of([b"a", b"b", b"c", b"d"], [math.nan, -0.0, None, 2.0], [math.inf, -0.0])
    trail = e.trails(run)[0]
    assert trail.bits == (None, 0.0, None, 2.0) and trail.sampling_bits == (None, 0.0, None, None)
    assert math.copysign(1, trail.bits[1]) == math.copysign(1, trail.sampling_bits[1]) == 1
    f = e.figures([trail])
    assert (f["tokens"], f["entropy_bits"], f["sampling_tokens"], f["sampling_entropy_bits"]) == (2, 1.0, 1, 0.0)


@pytest.mark.parametrize("run", [sample_run(), sample_run(speculative=False), sample_run(status="stopped", tokens=3), sample_run(tokens=0),
                                 sample_run(drafter="lookup"), sample_run(polish=True, eos=True), entropy_run(), entropy_run(refused=(0, 2))])
def test_every_run_has_figures_and_a_sentence(run):
    for side, chosen in e.sides(run).items():
        f = e.figures(chosen)
        assert f["tokens"] == sum(len(t.ids) for t in chosen)
        assert f["tokens"] == sum(f["words"][kind]["tokens"] for kind in (F, C, O)) == sum(c["tokens"] for c in f["categories"])
        said = e.sentence(run, f)
        assert said.endswith(".") and "None" not in said and "nan" not in said
    assert to_json(from_json(to_json(run))) == to_json(run)


def test_both_modes_of_a_comparison_are_sides():
    run = sample_run(tokens=40)
    found = e.sides(run)
    assert list(found) == ["Verifier only", "Speculative, γ = 4"]
    (plain,), (fast,) = found.values()
    assert plain.states == ("plain",) * 40 and plain.sampling_bits == (None,) * 40  # a run from before it was kept
    assert fast.states.count("accepted") == metrics(run)["accepted"] and fast.states.count("bonus") == metrics(run)["bonuses"]
    assert e.figures([plain])["entropy_bits"] == pytest.approx(metrics(run)["plain_entropy_mean"])
    assert e.figures([fast])["entropy_bits"] == pytest.approx(metrics(run)["speculative_entropy_mean"])


def test_a_set_is_averaged_by_category_with_counts():
    run = entropy_run()
    trails = e.trails(run)
    assert [t.label for t in trails] == ["prompt 1", "prompt 2", "prompt 3"]
    a, b = e.figures(trails)["categories"]
    assert (a["category"], a["tokens"], a["answers"]) == ("a", 21, 2) and (b["category"], b["tokens"], b["answers"]) == ("b", 7, 1)
    assert a["bits"] == pytest.approx(fmean([*trails[0].bits, *trails[2].bits])) and a["interval"] and b["interval"] is None
    assert "over 28 tokens of 3 answers" in e.sentence(run, e.figures(trails))


def test_refused_prompts_are_named_and_counted():
    run = entropy_run(refused=(1,))
    assert e.refused(run) == (("prompt 2", "The prompt is empty; type some text."),)
    assert e.sentence(run, e.figures(e.trails(run))).endswith("1 prompt was refused.")
    nothing = entropy_run(refused=(0, 1, 2))
    assert e.trails(nothing) == () and e.sentence(nothing, e.figures(())) == "No entropy was recorded. 3 prompts were refused."


def test_a_strategy_run_has_a_side_for_each_strategy_and_k():
    made = sample_run(tokens=10)
    items = (UagItem(made.prompt, "one", "x", made.plain, (UagResult("naive", 2, made.speculative), UagResult("tli", 4, made.speculative))),)
    run = UagRun(id="u", created="", items=items, strategies=("naive", "tli"), ks=(2, 4), prefix=5, settings=made.settings, models=made.models,
                 machine=made.machine, tokens=made.tokens)
    assert list(e.sides(run)) == ["Verifier only", "naive, k = 2", "tli, k = 4"]
    assert e.trails(run)[1].label == "one" and e.trails(run)[1].answer == made.speculative


# --------------------------------------------------------------------------------------------------------- draft entropy


def test_judged_proposals_fall_into_bins_of_draft_entropy():
    run = sample_run(tokens=150)
    (fast,) = e.sides(run)["Speculative, γ = 4"]
    f, m = e.figures([fast]), metrics(run)
    assert (f["draft"]["judged"], f["draft"]["accepted"], f["draft"]["rejected"]) == (m["judged"], m["accepted"], m["rejected"])
    bins = f["acceptance_by_entropy"]
    assert sum(b["judged"] for b in bins) == m["judged"] and sum(b["accepted"] for b in bins) == m["accepted"]
    for b in bins:
        inside = [good for h, good in e.judged(fast) if b["low"] <= h < b["high"]]
        assert (b["judged"], b["accepted"], b["rate"]) == (len(inside), sum(inside), sum(inside) / len(inside))
        assert b["interval"] == wilson(b["accepted"], b["judged"]) and b["interval"][0] <= b["rate"] <= b["interval"][1]


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=60))
@settings(max_examples=60)
def test_no_proposal_is_lost_between_bins(pairs):
    bins = e.acceptance_bins(pairs)
    assert len(bins) <= 12 and sum(b["judged"] for b in bins) == len(pairs)
    assert all(a["high"] <= b["low"] for a, b in zip(bins, bins[1:]))


def test_discarded_and_looked_up_tokens_have_no_part_in_it():
    one = Round(proposed=(1, 2, 3), accepted=1, emitted=(1, 9), closing="correction", draft_entropy=(0.5, 1.5, 9.0))
    made = sample_run(tokens=2)
    run = replace(made, speculative=replace(made.speculative, rounds=(one,), ids=(1, 9)))
    assert e.judged(e.trails(run)[1]) == [(0.5, True), (1.5, False)]
    assert e.figures(e.sides(sample_run(drafter="lookup"))["Speculative, prompt lookup"])["acceptance_by_entropy"] == []
