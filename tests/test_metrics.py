"""The figures of a run, from hand-made traces whose answers can be worked out on paper."""

import dataclasses
import json
import math

import pytest

from engine.analysis import ceilings
from engine.analysis.metrics import metrics
from engine.trace import Generation, Machine, ModelFacts, Prompt, Round, Run, Sampling, Settings, Timing, to_json

PROPOSED = (11, 12, 13)


def facts(name, flops, dtype="float32"):
    return ModelFacts(name=name, title=name, path="", revision=None, architecture="llama", layers=1, width=1, parameters=1,
                      flops_per_token=flops, vocabulary=50, context=None, tied_head=True, weights="", backend="torch",
                      backend_version="", device="cpu", asked_device="cpu", dtype=dtype, asked_dtype=dtype, bytes=1)


def plain(ids, seconds=0.1, prefill=1.9, decode=None, repeats=1):
    n = len(ids)
    timing = Timing(prefill, decode or n * seconds, n * seconds, 0.0, n, n)
    rounds = tuple(Round(emitted=(i,), verify_seconds=seconds) for i in ids)
    top = tuple(((i, 0.6), (i + 1, 0.3)) for i in ids)
    return Generation("plain", tuple(ids), entropy=(1.0,) * n, top=top, rounds=rounds, timings=(timing,) * repeats)


def speculative(rounds, prefill=1.9, decode=None):
    ids = tuple(i for r in rounds for i in r.emitted)
    verify, draft = sum(r.verify_seconds for r in rounds), sum(r.draft_seconds for r in rounds)
    timing = Timing(prefill, decode if decode is not None else verify + draft, verify, draft, len(ids), len(rounds))
    return Generation("speculative", ids, entropy=(2.0,) * len(ids), rounds=tuple(rounds), timings=(timing,))


def round_of(accepted, closing, proposed=PROPOSED, verify=0.1, draft=0.03):
    emitted = proposed[:accepted] + ((99,) if closing else ())
    return Round(proposed, accepted, emitted, closing, draft_entropy=(0.5,) * len(proposed), verify_seconds=verify,
                 draft_seconds=draft if proposed else 0.0)


def run_of(plain_side, speculative_side, sampling=Sampling(), status="done", dtype="float32", drafter="model"):
    return Run(id="r", created="2026-01-01T00:00:00Z", prompt=Prompt("x", tuple(range(20))),
               settings=Settings(gamma=3, sampling=sampling, drafter=drafter),
               models={"verifier": facts("v", 100, dtype), **({} if drafter == "lookup" else {"draft": facts("d", 10, dtype)})},
               machine=Machine("", "", 1, 1, "", {}), plain=plain_side, speculative=speculative_side, status=status)


def same_ids(rounds):
    return [i for r in rounds for i in r.emitted]


# The formulas (golden numbers of a published run: gamma 4, c 0.1601, acceptance rate 39.2 %)

def test_published_rate_gives_its_tokens_alpha_and_ceiling():
    assert ceilings.tokens_per_round(0.392, 4) == pytest.approx(2.568, abs=1e-9)
    assert ceilings.ceiling(4, 0.392, 0.1601) == pytest.approx(1.565, abs=5e-4)
    alpha = ceilings.alpha_from_rate(0.392, 4)
    assert alpha == pytest.approx(0.659, abs=5e-4)
    assert ceilings.ceiling_alpha(alpha, 4, 0.1601) == pytest.approx(1.565, abs=5e-4)  # α and r agree on the ceiling


@pytest.mark.parametrize("rate, expected", [(0.864, 1.546), (0.198, 0.547), (0.395, 0.842), (0.301, 0.701)])
def test_second_published_set(rate, expected):
    assert ceilings.ceiling(6, rate, 0.5002) == pytest.approx(expected, abs=1e-3)


def test_no_break_even_is_none_and_perfect_acceptance_is_finite():
    assert ceilings.ceiling_alpha(1, 4, 1.1) == pytest.approx(0.926, abs=5e-4)
    assert ceilings.expected_tokens(1, 4) == 5
    assert ceilings.break_even(1.1, 1, 4) is None
    assert ceilings.best_gamma(1, 1.1, 1) is None


def test_break_even_is_where_the_ceiling_is_one():
    rate = ceilings.break_even(0.12, 1.1, 4)
    assert rate == pytest.approx(0.145)
    assert ceilings.ceiling(4, rate, 0.12, 1.1) == pytest.approx(1)
    assert ceilings.break_even(0.01, 0.9, 2) == 0


@pytest.mark.parametrize("gamma", [1, 2, 5, 16])
@pytest.mark.parametrize("rate", [0, 0.01, 0.3, 0.77, 0.999, 1])
def test_alpha_solves_its_equation(rate, gamma):
    alpha = ceilings.alpha_from_rate(rate, gamma)
    assert 0 <= alpha <= 1 and ceilings.rate_from_alpha(alpha, gamma) == pytest.approx(rate, abs=1e-9)


def test_alpha_refuses_what_is_no_rate():
    for rate, gamma in ((1.2, 4), (-0.1, 4), (0.5, 0)):
        with pytest.raises(ValueError):
            ceilings.alpha_from_rate(rate, gamma)


def test_best_gamma_follows_the_cost_of_longer_passes():
    free = ceilings.best_gamma(0.8, 0.05, 1)
    steep = ceilings.best_gamma(0.8, 0.05, lambda n: 1 + 0.2 * (n - 1))
    values = {g: ceilings.ceiling_alpha(0.8, g, 0.05) for g in range(1, 17)}
    assert free == max(values, key=values.get) and steep < free


# The metrics

def test_counts_of_three_fates_add_up():
    rounds = [round_of(2, "correction"), round_of(3, "bonus"), round_of(0, "correction"), round_of(1, None)]
    m = metrics(run_of(plain(same_ids(rounds)), speculative(rounds)))
    assert (m["proposed"], m["accepted"], m["rejected"], m["discarded"]) == (12, 6, 2, 4)
    assert m["accepted"] + m["rejected"] + m["discarded"] == m["proposed"]
    assert (m["corrections"], m["bonuses"], m["judged"]) == (2, 1, 8)
    assert m["acceptance_rate"] == 0.5 and m["alpha"] == 6 / 8
    assert m["acceptance_by_position"] == [
        {"position": 1, "judged": 4, "accepted": 3, "rate": 0.75},
        {"position": 2, "judged": 2, "accepted": 2, "rate": 1.0},
        {"position": 3, "judged": 2, "accepted": 1, "rate": 0.5}]
    assert m["tokens_per_pass"] == 9 / 4 and m["proposals_per_round"] == 3


def test_a_fake_clock_gives_decode_and_end_to_end_rates():
    ids = list(range(10))
    rounds = [Round((0, 1, 2), 3, (0, 1, 2, 3), "bonus"), Round((4, 5, 6), 3, (4, 5, 6, 7), "bonus"), Round((8,), 1, (8, 9), "bonus")]
    m = metrics(run_of(plain(ids, decode=1.0), speculative(rounds, decode=0.7)))
    assert m["plain_tokens_per_second"] == pytest.approx(10.0)
    assert m["speculative_tokens_per_second"] == pytest.approx(14.3, abs=0.02)
    assert m["speedup"] == pytest.approx(1.43, abs=0.005)
    assert m["plain_end_to_end_tokens_per_second"] == pytest.approx(3.45, abs=0.005)
    assert m["speculative_end_to_end_tokens_per_second"] == pytest.approx(3.85, abs=0.005)
    assert m["end_to_end_speedup"] == pytest.approx(1.12, abs=0.005)
    assert m["plain_prefill_tokens_per_second"] == pytest.approx(19 / 1.9)  # the last prompt token belongs to decode


def test_measured_costs_and_ceiling_are_the_speed_without_orchestration():
    rounds = [round_of(2, "correction", verify=0.12), round_of(3, "bonus", verify=0.12)]  # 0.01 s a draft token
    m = metrics(run_of(plain(same_ids(rounds)), speculative(rounds)))
    assert m["cost_ratio"] == pytest.approx(0.1) and m["cost_ratio_flops"] == pytest.approx(0.1)
    assert m["pass_cost"] == pytest.approx(1.2)
    assert m["ceiling"] == pytest.approx(3.5 / (3 * 0.1 + 1.2))
    assert m["speedup"] == pytest.approx(m["ceiling"]) and m["orchestration_share"] == pytest.approx(0, abs=1e-9)
    assert m["ceiling_flops"] == pytest.approx(3.5 / 1.3)
    assert m["break_even"] == pytest.approx(0.1 + 0.2 / 3) and m["break_even_flops"] == pytest.approx(0.1)


def test_rounds_without_proposals_do_not_dilute_the_pass_cost():
    rounds = [round_of(3, "bonus", verify=0.2), Round(emitted=(5,), verify_seconds=0.1)]
    m = metrics(run_of(plain(same_ids(rounds)), speculative(rounds)))
    assert m["pass_cost"] == pytest.approx(2.0) and m["mean_pass_cost"] == pytest.approx(1.5)
    assert m["plain_steps"] == 1 and m["speedup"] == pytest.approx(m["ceiling"])


def test_orchestration_is_what_is_left_of_decode():
    rounds = [round_of(3, "bonus", verify=0.5, draft=0.3)]
    m = metrics(run_of(plain(same_ids(rounds)), speculative(rounds, decode=1.0)))
    assert m["orchestration_share"] == pytest.approx(0.2)
    assert m["time"]["speculative"] == pytest.approx({"verify": 0.5, "draft": 0.3, "other": 0.2})


def test_speedup_pairs_repeats_and_gives_their_range():
    rounds = [round_of(3, "bonus")]
    one, two = plain(same_ids(rounds)), speculative(rounds)
    # the machine is twice as slow in the second repeat: the paired ratio does not move
    first, second = Timing(1, 4, 4, 0, 4, 4), Timing(1, 8, 8, 0, 4, 4)
    quick, slow = Timing(1, 2, 1, 1, 4, 1), Timing(1, 4, 2, 2, 4, 1)
    m = metrics(run_of(dataclasses.replace(one, timings=(first, second)), dataclasses.replace(two, timings=(quick, slow))))
    assert m["speedup"] == 2 and m["speedup_range"] == [2, 2]
    assert m["plain_tokens_per_second"] == 0.75 and m["plain_tokens_per_second_range"] == [0.5, 1.0]


def test_first_difference_and_the_gap_there():
    rounds = [round_of(2, "correction")]
    m = metrics(run_of(plain([11, 12, 98]), speculative(rounds), dtype="bfloat16"))
    assert m["ids_equal"] is False
    assert m["first_divergence"] == {"index": 2, "plain_id": 98, "speculative_id": 99, "gap": pytest.approx(math.log(2))}
    assert "differ from token 3" in m["sentence"] and "bfloat16" in m["sentence"] and "0.69" in m["sentence"]
    assert "rounds differently" not in metrics(run_of(plain([11, 12, 98]), speculative(rounds)))["sentence"]


@pytest.mark.parametrize("top, said", [
    ((), "The two answers differ from token 3 on."), (((98, 1.0),), "The two answers differ from token 3 on."),
    (((98, 0.9), (99, 0.001)), "6.8 logits apart (more than the rounding of bfloat16 explains)."),
    (((98, 0.41), (99, 0.4)), "0.025 logits apart (bfloat16 rounds differently")])
def test_rounding_is_made_the_cause_only_where_the_measured_gap_is_so_small(top, said):
    one = plain([11, 12, 98])
    one = dataclasses.replace(one, top=(*one.top[:2], top) if top else ())
    assert said in metrics(run_of(one, speculative([round_of(2, "correction")]), dtype="bfloat16"))["sentence"]


def test_equal_answers_have_no_difference():
    rounds = [round_of(2, "correction")]
    m = metrics(run_of(plain([11, 12, 99]), speculative(rounds)))
    assert m["ids_equal"] is True and m["first_divergence"] is None and "first_divergence" not in m["reasons"]
    assert "differ" not in m["sentence"]


def test_sampled_answers_are_not_compared():
    rounds = [round_of(2, "correction")]
    m = metrics(run_of(plain([1, 2, 3]), speculative(rounds), sampling=Sampling(temperature=0.7)))
    assert m["first_divergence"] is None and "chance" in m["reasons"]["first_divergence"]
    assert "differ" not in m["sentence"]


def test_a_stopped_run_is_not_called_different():
    rounds = [round_of(2, "correction")]
    m = metrics(run_of(plain([11, 12, 99, 7, 8]), speculative(rounds), status="stopped"))
    assert m["first_divergence"] is None and "stopped" in m["reasons"]["first_divergence"]
    assert m["sentence"].startswith("Stopped. So far ")


# Sentences

def said(verify=0.1, draft=0.03, **more):
    rounds = [round_of(2, "correction", verify=verify, draft=draft), round_of(3, "bonus", verify=verify, draft=draft)]
    return metrics(run_of(plain(same_ids(rounds)), speculative(rounds), **more))["sentence"]


def test_faster_and_slower_are_said_alike():
    assert said() == "2.7× faster: 83 % of draft tokens accepted; a draft token cost 0.10 of a verifier pass."
    assert said(verify=0.3, draft=0.12) == "1.2× slower: 83 % of draft tokens accepted; a draft token cost 0.40 of a verifier pass."
    assert said(verify=0.25, draft=0.1).startswith("No difference in speed (1.00×):")


def test_a_range_that_spans_one_is_no_difference():
    rounds = [round_of(3, "bonus")]
    p = dataclasses.replace(plain(same_ids(rounds)), timings=(Timing(1, 4, 4, 0, 4, 4),) * 2)
    s = dataclasses.replace(speculative(rounds), timings=(Timing(1, 3, 1, 1, 4, 1), Timing(1, 5, 1, 1, 4, 1)))
    assert metrics(run_of(p, s))["sentence"].startswith("No difference in speed (0.80×–1.33× over the repeats)")


def test_lookup_has_no_draft_cost():
    text = said(drafter="lookup", draft=0.0)
    assert "looked-up tokens accepted" in text and "a draft token cost" not in text


def test_zero_proposals_and_zero_acceptance_are_said():
    alone = [Round(emitted=(i,), verify_seconds=0.1) for i in range(4)]
    assert "the verifier went on alone" in metrics(run_of(plain([0, 1, 2, 3]), speculative(alone)))["sentence"]
    refused = [round_of(0, "correction")]
    assert "0 % of draft tokens accepted" in metrics(run_of(plain([99]), speculative(refused)))["sentence"]


ODD = {
    "verifier only": run_of(plain([1, 2, 3]), None),
    "speculative only": run_of(None, speculative([round_of(2, "correction")])),
    "neither": run_of(None, None, status="stopped"),
    "nothing emitted": run_of(plain([]), speculative([]), status="stopped"),
    "no timings": run_of(dataclasses.replace(plain([1]), timings=()), Generation("speculative", rounds=(round_of(1, None),))),
    "zero proposals": run_of(plain([1, 2]), speculative([Round(emitted=(1,)), Round(emitted=(2,))])),
    "zero seconds": run_of(plain([1], seconds=0.0), speculative([round_of(0, "correction", verify=0.0, draft=0.0)], decode=0.0)),
    "one prompt token": dataclasses.replace(run_of(plain([1]), speculative([round_of(0, "correction")])), prompt=Prompt("x", (1,))),
    "failed": run_of(None, None, status="failed"),
}


@pytest.mark.parametrize("name", ODD)
def test_every_undefined_figure_has_a_reason_and_nothing_is_nan(name):
    m = metrics(ODD[name])
    json.loads(json.dumps(m, allow_nan=False))  # strict JSON: raises on NaN or infinity
    json.loads(to_json(ODD[name], metrics=m))
    for key, value in m.items():
        if value is None and key not in ("ids_equal", "disturbed") and not (key == "first_divergence" and m["ids_equal"]):
            assert m["reasons"][key].endswith("."), key
        if value is not None:
            assert key not in m["reasons"], key
    assert m["sentence"].endswith(".") and "None" not in m["sentence"]


def test_reasons_name_the_right_cause():
    assert metrics(ODD["verifier only"])["reasons"]["speedup"] == "The run has no speculative side."
    assert metrics(ODD["speculative only"])["reasons"]["speedup"] == "The run has no verifier-only side."
    assert metrics(ODD["zero proposals"])["reasons"]["acceptance_rate"] == "No draft token was proposed."
    never = [round_of(0, "correction", draft=0.9)]
    assert "above 100 %" in metrics(run_of(plain([99]), speculative(never)))["reasons"]["break_even"]
