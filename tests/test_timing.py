"""Figures by medians per pass: what a disturbance cannot move, what it can, and that a run it moved says so."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.quiet import Watch
from engine.analysis.metrics import metrics
from engine.analysis.timing import Passes, most, passes_of, restlessness, spent, trouble, typical
from engine.decoding.clock import Load, LoadMeter
from engine.trace import Generation, Machine, Round, Run, Timing, from_json, to_json
from tests.sample import sample_run

SECONDS = st.floats(1e-6, 10.0)
LENGTHS = st.integers(1, 9)


def timing_of(rows, tokens=None, **more) -> Timing:
    """Of (fed, verify, draft, rest) rows."""
    fed, verify, draft, rest = zip(*rows)
    total = tuple(map(math.fsum, (verify, draft, rest)))
    return Timing(0.1, sum(total), total[0], total[1], tokens or len(rows), len(rows), None, fed, verify, draft, rest, **more)


def steady(n: int, fed: int, verify: float, draft: float = 0.0, rest: float = 0.001, grow: float = 0.0, noise: float = 0.02, seed: int = 0):
    luck = random.Random(seed)
    return [(fed, verify * (1 + grow * i / n) * luck.uniform(1 - noise, 1 + noise), draft * luck.uniform(1 - noise, 1 + noise), rest) for i in range(n)]


def compared(plain, speculative, cores=2, accepted=3) -> Run:
    """A run of these timings, one a repeat; every round of four proposals keeps `accepted`."""
    def side(mode, timings):
        block = (1,) * (max(timings[0].fed) - 1)
        kept = min(accepted, len(block))
        rounds, end = [], 0.0
        for m, v, d, r in zip(timings[0].fed, timings[0].verify, timings[0].draft, timings[0].rest):
            end += v + d + r
            closing = "plain" if m == 1 else "correction" if kept < len(block) else "bonus"
            rounds.append(Round(block if m > 1 else (), kept if m > 1 else 0, (1,) * (kept + 1 if m > 1 else 1), closing, draft_seconds=d,
                                verify_seconds=v, end=end))
        ids = tuple(i for r in rounds for i in r.emitted)
        return Generation(mode, ids, "", rounds=tuple(rounds), timings=tuple(replace(t, tokens=len(ids)) for t in timings))

    run = sample_run()
    return replace(run, plain=side("plain", plain), speculative=side("speculative", speculative), machine=replace(run.machine, cores=cores))


def quiet_run(repeats=1, **more) -> Run:
    return compared([timing_of(steady(120, 1, 0.040, seed=i), **more) for i in range(repeats)],
                    [timing_of(steady(30, 5, 0.048, 0.016, 0.002, seed=9 + i), **more) for i in range(repeats)])


# ---------------------------------------------------------------------------------------------------------------- medians


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(LENGTHS, st.lists(SECONDS, min_size=3, max_size=20), min_size=1, max_size=4), st.floats(1, 1e6))
def test_stalls_in_fewer_than_half_of_a_lengths_passes_stay_within_the_others(lengths, factor):
    fed, stalled, bound = [], [], 0.0
    for m, times in lengths.items():
        hit = (len(times) - 1) // 2
        fed += [m] * len(times)
        stalled += [t * factor for t in times[:hit]] + times[hit:]
        bound += len(times) * max(times[hit:])
    assert typical(fed, stalled) <= bound * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(st.lists(SECONDS, min_size=3, max_size=40), st.integers(2, 9), SECONDS, st.floats(2, 1e6))
def test_one_stalled_pass_of_a_rare_length_costs_at_most_its_share(times, rare, once, factor):
    """Of a length met once the median is the stall itself; the others' length bounds it."""
    fed = [1] * len(times) + [rare]
    clean, stalled = typical(fed, [*times, once]), typical(fed, [*times, once * factor])
    assert stalled - typical([1] * len(times), times) <= rare * sorted(times)[len(times) // 2] * (1 + 1e-9)
    assert clean <= stalled


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(1, 60), SECONDS)
def test_equal_passes_add_up_to_their_total(fed, count, seconds):
    assert typical([fed] * count, [seconds] * count) == pytest.approx(count * seconds)


@pytest.mark.parametrize("grow", [0.0, 0.05, 0.5])
def test_medians_agree_with_totals_on_a_quiet_machine(grow):
    """Even where passes grow by half over the answer."""
    ratios = []
    for seed in range(40):
        run = compared([timing_of(steady(120, 1, 0.04, grow=grow, seed=seed))],
                       [timing_of(steady(30, 5, 0.048, 0.016, 0.002, grow=grow, seed=100 + seed))])
        m = metrics(run)
        ratios.append(m["speedup"] / m["speedup_total"])
        assert abs(math.log(ratios[-1])) < 0.03
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.004)  # no bias


def test_the_recorded_run_keeps_its_figures_within_three_percent():
    run = from_json(Path(__file__).parents[1].joinpath("recorded", "compare.json").read_text(encoding="utf-8"))
    m = metrics(run)
    assert m["speedup"] == pytest.approx(m["speedup_total"], rel=0.03) and m["disturbed"] is None


def test_a_burst_in_a_third_of_one_side_moves_the_headline_under_a_tenth_and_totals_by_more():
    before = metrics(quiet_run())
    for side, factor in (("plain", 3.0), ("speculative", 3.0)):
        run = quiet_run()
        t = getattr(run, side).timings[0]
        cut = t.passes // 3
        slow = [v * factor if i < cut else v for i, v in enumerate(t.verify)]
        hit = timing_of(list(zip(t.fed, slow, t.draft, t.rest)), t.tokens)
        m = metrics(replace(run, **{side: replace(getattr(run, side), timings=(hit,))}))
        assert m["speedup"] == pytest.approx(before["speedup"], rel=0.1), side
        assert m["speedup_total"] != pytest.approx(before["speedup_total"], rel=0.3), side


# --------------------------------------------------------------------------------------------------------------- ceilings

ROW = st.tuples(LENGTHS, SECONDS, st.floats(0, 5), st.floats(0, 5))
TIMINGS = st.lists(st.lists(ROW, min_size=1, max_size=12).map(timing_of), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(TIMINGS, TIMINGS, st.integers(0, 4))
def test_no_speedup_passes_its_ceiling_whatever_the_clock_says(plain, speculative, accepted):
    m = metrics(compared(plain, speculative, accepted=accepted))
    if m["speedup"] is not None and m["ceiling"] is not None:
        assert m["speedup"] <= m["ceiling"]
    if m["speedup"] is not None:
        assert m["speedup"] <= 1.05 * m["tokens_per_pass"]  # what passes of many tokens at the price of one would give
    else:
        assert m["disturbed"] and m["reasons"]["speedup"] == m["disturbed"]
    for key in ("orchestration_share", "plain_orchestration_share"):
        assert 0 <= m[key] <= 1
    if m["pass_cost"] is not None:
        assert m["pass_cost"] >= 0.85
    json.loads(json.dumps(m, allow_nan=False))


@settings(max_examples=100, deadline=None)
@given(SECONDS, st.floats(0, 5), st.floats(0, 5), st.floats(0, 5), st.integers(3, 20))
def test_speedup_is_ceiling_times_the_share_inside_the_models(verify, draft, rest, alone, count):
    run = compared([timing_of([(1, verify, 0.0, alone)] * count)], [timing_of([(5, verify * 1.2, draft, rest)] * count)])
    m = metrics(run)
    if m["disturbed"] is None:
        assert m["speedup"] == pytest.approx(m["ceiling"] * (1 - m["orchestration_share"]))


# --------------------------------------------------------------------------------------------------------------- disturbed


@pytest.mark.parametrize("own, others, idle, cores, said", [
    (None, None, None, 2, None), (9.0, 11.0, 0.0, 2, "other programs used 1.1 of 2 cores"), (16.0, 2.0, 2.0, 2, None),
    (1.0, 19.0, 0.0, 2, "other programs used 1.9 of 2 cores"), (10.0, 3.0, 87.0, 10, None), (80.0, 12.0, 8.0, 10, None),
    (10.0, 40.0, 50.0, 10, None), (60.0, 36.0, 4.0, 10, "other programs used 3.6 of 10 cores"), (5.0, 5.0, 0.0, 1, "other programs used 0.5 of 1 core"),
])
def test_others_that_crowd_the_cores_are_named_and_background_work_is_not(own, others, idle, cores, said):
    t = timing_of(steady(40, 1, 0.04), processor_seconds=own, others_seconds=others, idle_seconds=idle)
    assert trouble(t, cores) == said


def test_passes_that_grow_are_not_restless_and_passes_that_jump_are():
    assert trouble(timing_of(steady(200, 1, 0.04, grow=2.0)), 2) is None
    luck = random.Random(3)
    jumping = [(1, 0.04 * luck.choice((1, 1, 2.5, 4)), 0.0, 0.001) for _ in range(60)]
    assert "every second pass differed" in trouble(timing_of(jumping), 2)
    assert restlessness(Passes([1] * 5, [1, 9, 1, 9, 1], [0] * 5, [0] * 5)) is None  # too few to tell


def test_a_minority_of_disturbed_repeats_disturbs_no_median():
    assert most([None, None, "x"]) is None and most([None, "x"]) == "x" and most(["x"]) == "x" and most(["x", None, "y"]) == "x" and most([]) is None
    run, hit = quiet_run(3), dict(processor_seconds=1.0, others_seconds=3.0, idle_seconds=0.0)
    for count in range(4):
        timings = tuple(replace(t, **hit) if i < count else t for i, t in enumerate(run.plain.timings))
        m = metrics(replace(run, plain=replace(run.plain, timings=timings)))
        assert bool(m["disturbed"]) == (count >= 2)


def test_a_disturbed_run_says_so_in_place_of_its_speed():
    run = quiet_run()
    m = metrics(run)
    assert m["disturbed"] is None and "faster" in m["sentence"]
    hit = replace(run.speculative.timings[0], processor_seconds=2.0, others_seconds=3.0, idle_seconds=0.1)
    m = metrics(replace(run, speculative=replace(run.speculative, timings=(hit,))))
    assert m["disturbed"] == "The timing was disturbed: other programs used 1.2 of 2 cores."
    assert m["sentence"].startswith(m["disturbed"]) and "faster" not in m["sentence"] and "75 % of draft tokens accepted" in m["sentence"]
    assert m["speedup"] is not None  # by medians, and marked


def test_figures_that_contradict_each_other_are_no_result():
    """NB-16: verifier-only alone was hit, all the time: 5.06× at 2.09 tokens a pass."""
    run = quiet_run()
    slow = timing_of([(m, 6 * v, d, r) for m, v, d, r in zip(*(getattr(run.plain.timings[0], c) for c in ("fed", "verify", "draft", "rest")))],
                     run.plain.timings[0].tokens)
    m = metrics(replace(run, plain=replace(run.plain, timings=(slow,))))
    assert m["disturbed"] and "0.20 of a pass over one" in m["disturbed"]
    assert m["speedup"] is m["speedup_range"] is m["ceiling"] is m["pass_cost"] is None
    assert m["sentence"].startswith("The timing was disturbed") and "×" not in m["sentence"]


@pytest.mark.parametrize("load, said, disturbed", [
    (Load(5.0, 0.4, 4.6, 2), "not disturbed: other programs used 0.1 of 2 cores", False),
    (Load(5.0, 5.0, 0.0, 2), "DISTURBED: other programs used 1.0 of 2 cores. These figures are no result; measure again on an idle machine.", True),
    (Load(5.0), "whether other programs disturbed this is not known: the system does not count processor time by core", False)])
def test_a_benchmark_says_whether_it_had_the_machine_for_itself(monkeypatch, capsys, load, said, disturbed):
    monkeypatch.setattr(LoadMeter, "read", lambda self: load)
    found = Watch().say()
    assert capsys.readouterr().out == said + "\n" and bool(found["disturbed"]) == disturbed and json.dumps(found)


def test_a_disturbed_run_is_not_recorded():
    from bench.record import disturbed
    run = quiet_run()
    assert disturbed(run) is None
    hit = replace(run.plain.timings[0], processor_seconds=1.0, others_seconds=3.0, idle_seconds=0.0)
    assert "other programs used 1.5 of 2 cores" in disturbed(replace(run, plain=replace(run.plain, timings=(hit,))))


# --------------------------------------------------------------------------------------------------------------- old runs


def test_runs_from_before_passes_were_kept_use_the_rounds_of_the_first_repeat_and_totals():
    run = sample_run()
    first, second = run.plain.timings[:2]
    assert first.fed == () and passes_of(first, run.plain.rounds) is not None and passes_of(second) is None
    assert spent(second).decode == pytest.approx(second.decode_seconds)
    m = metrics(run)
    assert m["speedup"] == pytest.approx(m["speedup_total"], rel=0.02) and m["disturbed"] is None
    data = json.loads(to_json(run))
    for side in ("plain", "speculative"):
        for t in data[side]["timings"]:
            for name in ("fed", "verify", "draft", "rest", "processor_seconds", "others_seconds", "idle_seconds"):
                del t[name]
    assert metrics(from_json(json.dumps(data)))["speedup"] == m["speedup"]


def test_columns_that_are_not_this_decodes_are_not_used():
    t = timing_of(steady(30, 1, 0.04))
    for wrong in (replace(t, verify=t.verify[:-1]), replace(t, verify=tuple(2 * v for v in t.verify)), replace(t, fed=())):
        assert passes_of(wrong) is None and spent(wrong).decode == pytest.approx(t.decode_seconds)
    assert passes_of(t).fed == t.fed


def test_a_machine_that_counts_no_cores_is_never_called_crowded():
    t = timing_of(steady(40, 1, 0.04), processor_seconds=1.0, others_seconds=9.0, idle_seconds=0.0)
    assert trouble(t, Machine("", "", 0, 0, "", {}).cores) is None
