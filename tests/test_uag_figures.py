"""Figures of a strategy run: every count from its rounds, every share with both numbers, and sentences that say them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.analysis.intervals import wilson
from engine.analysis.uag import WILSON, Ratio, figures, survived
from engine.trace import BONUS, CORRECTION, PLAIN, Generation, Prompt, Round, Sampling, Settings, Timing, UagItem, UagResult, UagRun
from engine.trace.uag import BOUNDARY, CAUSES, DIACRITIC, DISAGREEMENT, TIE
from tests.sample import sample_run

TOKENS = {1: " ko", 2: "t", 3: "ó", 4: "w"}
DRAFTED = {1: " k", 2: "o", 3: "tó", 4: "w"}
COMPARED = sample_run()


def of(rounds, seconds=1.0, mode="speculative", finish="length"):
    ids = tuple(i for r in rounds for i in r.emitted)
    timing = Timing(0.1, seconds, 0.5 * seconds, 0.25 * seconds, len(ids), len(rounds))
    return Generation(mode, ids, "", finish, rounds=tuple(rounds), timings=(timing,))


def run_of(*items, sampling=Sampling(), status="done", dtype=None):
    facts = COMPARED.models
    if dtype:
        facts = {name: replace(m, dtype=dtype) for name, m in facts.items()}
    return UagRun("x", "2026-11-30T10:00:00+00:00", tuple(items), ("naive", "context"), (2,), 5, Settings(sampling=sampling), facts,
                  COMPARED.machine, {i: t.encode().hex() for i, t in TOKENS.items()}, {i: t.encode().hex() for i, t in DRAFTED.items()}, status=status)


def item(*results, plain=None, category="", refused=None):
    return UagItem(Prompt("x", (1,)), "", category, plain, tuple(UagResult(s, k, a) for s, k, a in results), refused)


KEPT = Round((1, 2), 2, (1, 2, 3), BONUS, draft_ids=(1, 2, 3), translate_seconds=0.01)
HALF = Round((1, 2), 1, (1, 4), CORRECTION, draft_ids=(1, 2, 3, 4), translate_seconds=0.02, cause=BOUNDARY, gap=0.3)
LOST = Round((1,), 0, (4,), CORRECTION, draft_ids=(1, 2), translate_seconds=0.02, cause=DISAGREEMENT, gap=0.3)
ALONE = Round(emitted=(4,), closing=PLAIN, draft_ids=(4,))


def test_draft_tokens_survive_when_all_their_bytes_do():
    """" ko" accepted: " k" and "o" of the draft survive; of "tó" only a byte would, so it does not."""
    run = run_of()
    assert [survived(run, r) for r in (KEPT, HALF, LOST, ALONE)] == [2, 2, 0, 0]
    assert survived(run, replace(KEPT, proposed=(1, 2, 3), accepted=3)) == 3
    assert survived(run, replace(KEPT, proposed=(2, 1), accepted=2)) == 0  # another text than the draft wrote


def test_a_row_counts_every_round():
    plain = of([replace(ALONE, draft_ids=())] * 7, 1.5, "plain")
    row = figures(run_of(item(("naive", 2, of([KEPT, HALF, LOST, ALONE], 1.0)), plain=plain))).row("naive", 2)
    assert (row.acceptance.above, row.acceptance.below, row.judged, row.refused, row.rounds) == (3, 5, 5, 2, 4)
    assert (row.draft_acceptance.above, row.draft_acceptance.below) == (4, 10)
    assert row.causes == {BOUNDARY: 1, DIACRITIC: 0, TIE: 0, DISAGREEMENT: 1} and row.share(BOUNDARY) == 0.5
    assert row.tokens_per_pass.value == 7 / 4 and row.tokens_per_second.value == 7.0
    assert row.speedup.value == pytest.approx(1.5)  # seven tokens in one second; alone they took one and a half
    assert row.translate_seconds == pytest.approx(0.05) and row.translate_share.value == pytest.approx(0.05)
    assert (row.ids_equal, row.ids_compared) == (0, 1)


def test_the_interval_of_one_prompt_is_wilsons_and_of_several_over_prompts():
    one = figures(run_of(item(("naive", 2, of([KEPT, HALF]))))).rows[0]
    assert (one.acceptance.interval, one.acceptance.how) == (wilson(3, 4), WILSON)
    assert one.tokens_per_second.interval is None and one.tokens_per_second.how == ""
    several = figures(run_of(*(item(("naive", 2, of([KEPT, LOST] * n + [HALF]))) for n in (1, 2, 3)))).rows[0]
    assert "3 prompts" in several.acceptance.how
    low, high = several.acceptance.interval
    assert 0 <= low < several.acceptance.value < high <= 1
    alike = figures(run_of(*(item(("naive", 2, of([KEPT, LOST]))) for _ in range(3)))).rows[0]
    assert alike.acceptance.interval == wilson(alike.acceptance.above, alike.acceptance.below)  # they say nothing of how prompts differ


def test_what_is_not_defined_is_none():
    silent = figures(run_of(item(("none", 2, of([ALONE] * 3))))).rows[0]
    assert silent.acceptance == Ratio(0, 0) and silent.acceptance.value is None and silent.share(BOUNDARY) is None
    assert silent.speedup.value is None and silent.draft_acceptance.value == 0
    nothing = figures(run_of(item(refused="No.")))
    assert nothing.rows == () and nothing.plain.value is None and nothing.sentences == ()
    assert figures(run_of(status="failed")).sentences == ("The run failed before a strategy had run.",)


def test_categories_are_rows_of_their_own():
    items = [item(("naive", 2, of([KEPT])), category="a"), item(("naive", 2, of([LOST])), category="b"), item(refused="No.", category="c")]
    found = figures(run_of(*items))
    assert {c: rows[0].acceptance.value for c, rows in found.by_category.items()} == {"a": 1.0, "b": 0.0}
    assert found.rows[0].acceptance.below == 3 and figures(run_of(*items[:1])).by_category == {}


rounds = st.builds(
    lambda p, a, cause: Round(tuple([1] * p), min(a, p), tuple([1] * (min(a, p) + 1)), PLAIN if not p else CORRECTION if a < p else BONUS,
                              draft_ids=(1,) * p, cause=cause if a < p else None, translate_seconds=0.001),
    st.integers(0, 5), st.integers(0, 5), st.sampled_from(CAUSES))


@given(st.lists(st.lists(rounds, min_size=1, max_size=6), min_size=1, max_size=4))
def test_figures_add_up_whatever_happened(answers):
    made = figures(run_of(*(item(("context", 2, of(a))) for a in answers))).rows[0]
    every = [r for a in answers for r in a]
    assert made.acceptance.above == sum(r.accepted for r in every) <= made.acceptance.below == sum(len(r.proposed) for r in every)
    assert sum(made.causes.values()) == made.refused == sum(r.closing == CORRECTION for r in every)
    assert made.judged == made.acceptance.above + made.refused and made.boundaries <= made.refused
    assert made.tokens_per_pass.above == made.acceptance.above + made.rounds
    for q in (made.acceptance, made.draft_acceptance, made.tokens_per_pass, made.tokens_per_second, made.translate_share):
        assert q.interval is None or 0 <= q.interval[0] <= q.value + 1e-12 and q.value <= q.interval[1] + 1e-12


# ------------------------------------------------------------------------------------------------------------ sentences


def said(*results, plain=None, **kwargs):
    return " ".join(figures(run_of(item(*results, plain=plain), **kwargs)).sentences)


def test_sentences_compare_strategies_with_their_counts():
    text = said(("naive", 2, of([HALF, LOST, LOST])), ("context", 2, of([KEPT, KEPT, HALF])))
    assert "context keeps 3.3× more candidates than naive here (83 % of 6 against 25 % of 4)." in text
    assert "33 % of naive's refusals are boundaries, not disagreements (1 of 3)." in text
    assert "100 % of context's refusals are boundaries, not disagreements (1 of 1)." in text


@pytest.mark.parametrize("naive, context, words", [
    ([LOST], [KEPT], "context keeps some of its candidates here, naive none"),
    ([KEPT], [LOST], "naive keeps some of its candidates here, context none"),
    ([KEPT], [KEPT], "context and naive keep equally many of their candidates here"),
    ([KEPT, KEPT], [KEPT, LOST], "naive keeps 1.5× more candidates than context here (context 67 % of 3 against 100 % of 4)"),
    ([ALONE], [KEPT], "naive never had a candidate to send"),
])
def test_sentences_say_every_outcome(naive, context, words):
    assert words in said(("naive", 2, of(naive)), ("context", 2, of(context)))


def test_letters_with_diacritics_are_counted_among_the_boundaries():
    text = said(("naive", 2, of([HALF, replace(HALF, cause=DIACRITIC), LOST, replace(LOST, cause=TIE)])))
    assert "50 % of naive's refusals are boundaries, not disagreements (2 of 4, 1 of them at a letter with a diacritic)." in text
    assert "Not even naive's one refusal is a boundary: the verifier wanted another text." in said(("naive", 2, of([LOST])))
    assert "None of naive's 2 refusals is a boundary" in said(("naive", 2, of([LOST, LOST])))


def test_slower_is_said_as_plainly_as_faster():
    plain = of([ALONE] * 3, 0.5, "plain")
    assert "No strategy pays here: the fastest, naive at k = 2, runs at 0.50× verifier-only's speed." in said(("naive", 2, of([KEPT], 1.0)), plain=plain)
    assert "Fastest here is naive at k = 2: 2.00× verifier-only's speed." in said(("naive", 2, of([KEPT], 0.25)), plain=plain)


def test_a_gain_that_the_prompts_cannot_tell_from_none_is_called_that():
    items = [item(("naive", 2, of([KEPT], s)), plain=of([ALONE] * 3, 1.0, "plain")) for s in (0.4, 1.3)]
    assert "cannot tell from no gain" in " ".join(figures(run_of(*items)).sentences)


def test_equal_answers_are_counted_and_only_greedy_ones_compared():
    plain = of([replace(KEPT, emitted=(1, 2, 3))], 1.0, "plain")
    assert "The answer is verifier-only's, token for token." in said(("naive", 2, of([KEPT])), plain=plain)
    near = replace(plain, top=(((1, 0.5), (4, 0.4)),))
    for one, told in ((near, " (bfloat16 rounds differently"), (replace(plain, top=(((1, 0.9), (4, 0.01)),)), " (more than the rounding of bfloat16"),
                      (plain, ".")):  # without a measured gap rounding is not made the cause
        assert "1 of 2 answers differ from verifier-only's" + told in said(
            ("naive", 2, of([KEPT])), ("context", 2, of([LOST])), plain=one, dtype="bfloat16")
    assert "1 of 1 answers differ from verifier-only's." in said(("naive", 2, of([LOST])), plain=plain, dtype="float32")
    assert "verifier-only's, token" not in said(("naive", 2, of([KEPT])), plain=plain, sampling=Sampling(1.0))
    assert "token for token" not in said(("naive", 2, of([KEPT], finish="stopped")), plain=plain)


def test_prompts_that_do_not_differ_still_have_an_interval():
    from engine.analysis.uag import WILSON_ALL, _ratio

    ratio = _ratio([(0, 40), (0, 50)], share=True)
    assert ratio.interval == pytest.approx(wilson(0, 90)) and ratio.interval[1] > 0.01 and ratio.how == WILSON_ALL
    assert _ratio([(1.5, 3.0), (2.5, 5.0)]).interval is None


# ------------------------------------------------------------------------------------------------------ time and energy


def timed(count, fed, verify, draft=0.0, rest=0.001, tokens=1, **more):
    """An answer of `count` equal rounds."""
    proposed = (1,) * (fed - 1)
    closing = PLAIN if fed == 1 else BONUS if tokens == fed else CORRECTION
    rounds = [Round(proposed, tokens - 1, (1,) * tokens, closing, verify_seconds=verify, draft_seconds=draft, end=(i + 1) * (verify + draft + rest))
              for i in range(count)]
    timing = Timing(0.1, count * (verify + draft + rest), count * verify, count * draft, count * tokens, count, None, (fed,) * count, (verify,) * count,
                    (draft,) * count, (rest,) * count)
    return Generation("plain" if fed == 1 else "speculative", (1,) * count * tokens, "", rounds=tuple(rounds), timings=(replace(timing, **more),))


def strategy_run(plain, answer, *others):
    return replace(run_of(item(("context", 2, answer), plain=plain), *others), machine=replace(COMPARED.machine, cores=2))


def test_speed_of_a_row_is_its_ceiling_times_the_share_inside_the_models():
    row = figures(strategy_run(timed(40, 1, 0.04), timed(20, 3, 0.044, 0.01, 0.006, tokens=2))).rows[0]
    assert row.ceiling.value == pytest.approx(0.041 * 2 / 0.054) and row.speedup.value == pytest.approx(row.ceiling.value * 0.9)
    assert row.disturbed is None


def test_a_speed_that_cannot_be_is_no_figure():
    """NB-16: now 5.06× at 2.09 tokens a pass."""
    found = figures(strategy_run(timed(40, 1, 0.24), timed(20, 3, 0.044, 0.01, tokens=2)))
    row = found.rows[0]
    assert row.speedup.value is None and row.ceiling.value is None and "of a pass over one" in row.disturbed
    assert found.disturbed == f"The timing was disturbed: {row.disturbed}." and found.disturbed in found.sentences
    assert not any("Fastest" in s or "faster" in s for s in found.sentences)


def test_others_on_the_cores_disturb_the_rows_they_hit():
    crowd = dict(processor_seconds=1.0, others_seconds=1.9, idle_seconds=0.0)
    plain, quick, hit = timed(40, 1, 0.04), timed(20, 3, 0.044, 0.01, tokens=2), timed(20, 3, 0.044, 0.01, tokens=2, **crowd)
    assert figures(strategy_run(plain, quick)).disturbed is None
    every = figures(strategy_run(plain, hit))
    assert every.disturbed == "The timing was disturbed: other programs used 1.3 of 2 cores." and every.rows[0].speedup.value is not None
    whole = figures(strategy_run(replace(plain, timings=(replace(plain.timings[0], **crowd),)), quick))
    assert whole.rows[0].disturbed  # verifier-only beside it was hit
    one = replace(strategy_run(plain, quick), items=(item(("context", 2, hit), ("naive", 2, quick), plain=plain),))
    found = figures(one)
    assert found.disturbed.startswith("The timing of 1 of 2 combinations was disturbed") and any("Fastest here is naive" in s for s in found.sentences)
    rare = [item(("context", 2, quick), plain=plain)] * 5  # a sixth of the time was hit
    assert figures(strategy_run(plain, hit, *rare)).disturbed is None


@given(st.lists(st.tuples(st.floats(1e-4, 1), st.floats(1e-4, 1), st.floats(0, 1), st.floats(0, 1), st.integers(1, 3)), min_size=1, max_size=6))
def test_no_strategy_passes_its_ceiling_whatever_the_clock_says(prompts):
    items = [item(("context", 2, timed(4, 3, verify, draft, rest, tokens)), plain=timed(4 * tokens, 1, alone)) for alone, verify, draft, rest, tokens in prompts]
    row = figures(replace(run_of(*items), machine=replace(COMPARED.machine, cores=2))).rows[0]
    if row.speedup.value is None:
        assert row.disturbed
    else:
        assert row.speedup.value <= row.ceiling.value and row.speedup.value <= 1.05 * row.tokens_per_pass.value


def test_joules_per_token_are_of_the_answers_that_were_counted():
    plain, answer = timed(40, 1, 0.04, joules=80.0), timed(20, 3, 0.044, 0.01, tokens=2, joules=60.0)
    found = figures(strategy_run(plain, answer, item(("context", 2, replace(answer, timings=(replace(answer.timings[0], joules=None),))), plain=plain)))
    assert (found.plain_joules.value, found.rows[0].joules_per_token.value, found.rows[0].joules_per_token.below) == (2.0, 1.5, 40)
    bare = figures(strategy_run(timed(40, 1, 0.04), timed(20, 3, 0.044, tokens=2)))
    assert bare.plain_joules.value is None and bare.rows[0].joules_per_token.value is None
