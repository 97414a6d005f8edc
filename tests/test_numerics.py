"""Filtering, drawing, judging and entropy: exact on small vocabularies, and equal to transformers' processors on any."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
                          TopPLogitsWarper)

from engine import sampling
from engine.errors import RequestError
from engine.numerics import torch as ops
from engine.trace import Sampling
from tests.exact import drawn, judged

torch.set_num_threads(1)
LARGEST = 1 - 2**-24  # the largest float32 below 1
CAT, DOG, FOX = 0, 1, 2
Q, P = [0.6, 0.3, 0.1], [0.3, 0.5, 0.2]


def exact(rows, ids=None):
    return ops.Distribution(torch.tensor(rows, dtype=torch.float64), None if ids is None else torch.tensor(ids))


def proposed(d, token: int, width: int, support=None):
    q = ops.probability_of(d, torch.tensor([token]))
    return ops.proposal([(d, torch.tensor([token]), q)], support, width)


def output(p, q, judge=ops.judge_to_host) -> list[float]:
    """Chance of each first token, summed over all draft draws and all judgements."""
    total = [0.0] * p.probabilities.shape[-1]
    for draft in drawn(q):
        for piece in judged(p, proposed(q, draft.outcome, len(total)), len(total), judge):
            accepted, closing = piece.outcome
            total[draft.outcome if accepted else closing] += draft.weight * piece.weight
    return total


# ------------------------------------------------------------------------------------------------------- judging


def test_the_output_is_distributed_as_the_verifier_says():
    """SD-02: the marginal is p to 1e-9, whatever the draft proposed."""
    assert output(exact([P, [1 / 3] * 3]), exact([Q])) == pytest.approx(P, abs=1e-9)


def test_after_a_rejection_the_whole_vocabulary_shares_the_residual():
    """SD-02: cat is kept with p/q = 1/2, and refused for (0, 2/3, 1/3)."""
    found = {piece.outcome: piece.weight for piece in judged(exact([P, [1, 0, 0]]), proposed(exact([Q]), CAT, 3), 3)}
    assert found == pytest.approx({(0, DOG): 0.5 * 2 / 3, (0, FOX): 0.5 / 3, (1, CAT): 0.5}, abs=1e-9)


def one_hot_residual(p, proposal, uniform, width):
    """Wrong on purpose: takes q away from the drafted token only."""
    alone = torch.zeros_like(proposal.probabilities).scatter_(1, proposal.ids[:, None], proposal.q[:, None].to(proposal.probabilities.dtype))
    return ops.judge_to_host(p, proposal._replace(probabilities=alone), uniform, width)


def test_a_residual_that_knows_one_token_only_is_found_out():
    """SD-02: the slip gives (0.300, 0.514, 0.186)."""
    assert output(exact([P, [1, 0, 0]]), exact([Q]), one_hot_residual) == pytest.approx([0.3, 0.5142857, 0.1857143], abs=1e-6)


@given(st.integers(2, 5), st.integers(0, 10**6), st.booleans())
@settings(max_examples=15)
def test_any_two_distributions_add_up_to_the_verifiers(width, seed, zeros):
    g = torch.Generator().manual_seed(seed)
    rows = torch.rand(3, width, generator=g, dtype=torch.float64)
    if zeros:
        rows = torch.where(torch.rand(3, width, generator=g) < 0.3, 0.0, rows)
        assume(bool((rows.sum(-1) > 0).all()))
    p, q = rows[:2] / rows[:2].sum(-1, keepdim=True), rows[2:] / rows[2:].sum(-1, keepdim=True)
    assert output(ops.Distribution(p, None), ops.Distribution(q, None)) == pytest.approx(p[0].tolist(), abs=1e-9)


def test_a_point_mass_is_kept_with_its_probability_and_replaced_by_the_others():
    for token in range(3):
        found = {piece.outcome: piece.weight for piece in judged(exact([P, [0, 0, 1]]), ops.point_masses([token], torch.zeros(1)), 3)}
        others = {(0, x): P[x] for x in range(3) if x != token}
        assert found == pytest.approx({**others, (1, FOX): P[token]}, abs=1e-9)


def test_a_draft_with_its_own_columns_adds_up_to_the_verifiers_distribution():
    """q is zero outside the support; the support is in no order."""
    support = torch.tensor([3, 0, 2])
    q, p = exact([[0.5, 0.2, 0.3]]), exact([[0.1, 0.4, 0.3, 0.2], [1, 0, 0, 0]])
    total = [0.0] * 4
    for draft in drawn(q):
        column = torch.tensor([draft.outcome])
        made = ops.proposal([(q, support[column], q.probabilities[0, column])], support, 4)
        for piece in judged(p, made, 4):
            accepted, closing = piece.outcome
            total[int(support[draft.outcome]) if accepted else closing] += draft.weight * piece.weight
    assert total == pytest.approx([0.1, 0.4, 0.3, 0.2], abs=1e-9)


def test_filtered_columns_on_both_sides_name_their_ids():
    """Both sides filtered, to different tokens in another order."""
    p, q = exact([[0.7, 0.3], [0.5, 0.5]], [[4, 1], [0, 1]]), exact([[0.6, 0.4]], [[1, 3]])
    total = {}
    for draft in drawn(q):
        for piece in judged(p, proposed(q, draft.outcome, 6), 6):
            token = draft.outcome if piece.outcome[0] else piece.outcome[1]
            total[token] = total.get(token, 0) + draft.weight * piece.weight
    assert total == pytest.approx({4: 0.7, 1: 0.3}, abs=1e-9)


def test_a_narrower_and_a_wider_draft_lose_nothing():
    """SD-09: a draft without the last columns, and one whose padding was cut off."""
    p = exact([[0.1, 0.4, 0.3, 0.2], [1, 0, 0, 0]])
    q = exact([[0.5, 0.5]])
    total = [0.0] * 4
    for draft in drawn(q):
        for piece in judged(p, proposed(q, draft.outcome, 4), 4):
            total[draft.outcome if piece.outcome[0] else piece.outcome[1]] += draft.weight * piece.weight
    assert total == pytest.approx([0.1, 0.4, 0.3, 0.2], abs=1e-9)


def test_rows_that_kept_different_numbers_of_candidates_make_one_proposal():
    a, b = exact([[0.6, 0.4]], [[2, 0]]), exact([[0.5, 0.3, 0.2]], [[1, 3, 0]])
    made = ops.proposal([(a, torch.tensor([2]), torch.tensor([0.6])), (b, torch.tensor([3]), torch.tensor([0.3]))], None, 4)
    assert made.support is None and made.ids.tolist() == [2, 3]
    assert torch.allclose(made.probabilities, torch.tensor([[0.4, 0, 0.6, 0], [0.2, 0.5, 0, 0.3]], dtype=torch.float64))


def test_a_block_is_judged_up_to_its_first_rejection():
    rows = torch.eye(4)[[1, 2, 3, 0]]
    p = ops.Distribution(rows, None)
    for ids, want in [([1, 2, 3], (3, 0)), ([1, 2, 0], (2, 3)), ([1, 0, 3], (1, 2)), ([0, 2, 3], (0, 1))]:
        assert ops.judge_to_host(p, ops.point_masses(ids, rows), [0.5] * 4, 4)[:3] == (*want, ids)


@pytest.mark.parametrize("temperature", [0, 1e-4])
def test_greedy_takes_the_best_token_and_refuses_the_other(temperature, recwarn):
    """SD-10: temperature 0, and one too small to divide by."""
    s = sampling.resolve(Sampling(temperature=temperature, top_k=2, top_p=0.5))
    assert s == Sampling()
    logits = torch.tensor([[0.3, 0.5, 0.2], [0.3, 0.5, 0.2]]).log()
    for seed in range(2):
        uniform = sampling.Uniforms(seed, 0).take(2)
        q = ops.filtered(torch.tensor([[0.2, 0.18, 0.1]]).log(), s)
        token, at = ops.draw(q, uniform[:1])
        accepted, closing, ids, p_of, q_of = ops.judge_to_host(ops.filtered(logits, s), ops.proposal([(q, token, at)], None, 3), uniform, 3)
        assert (accepted, closing, ids, p_of, q_of) == (0, 1, [0], [0.0], [1.0])
    assert not recwarn.list


def test_equal_distributions_refuse_nothing():
    """p = q leaves no residual, and no uniform below 1 refuses."""
    g = torch.Generator().manual_seed(0)
    for _ in range(200):
        row = torch.rand(1, 50, generator=g).softmax(-1)
        token = ops.pick(row, torch.rand(1, generator=g))
        made = ops.proposal([(ops.Distribution(row, None), token, row[0, token])], None, 50)
        accepted, _, _, p, q = ops.judge_to_host(ops.Distribution(row.repeat(2, 1), None), made, [LARGEST, LARGEST], 50)
        assert accepted == 1 and p == q


def test_a_large_id_comes_to_the_host_whole():
    rows = torch.zeros(2, 300_000)
    rows[0, 299_999] = rows[1, 262_143] = 1
    assert ops.judge_to_host(ops.Distribution(rows, None), ops.point_masses([299_999], rows), [0.1, 0.9], 300_000)[:3] == (1, 262_143, [299_999])


# ------------------------------------------------------------------------------------------------------ filtering


def by_transformers(logits, s: Sampling, seen=None):
    """The probabilities that transformers' processors leave, over the whole vocabulary."""
    if seen is not None:
        logits = RepetitionPenaltyLogitsProcessor(s.repetition_penalty)(torch.tensor([seen] * len(logits)), logits)
    logits = TemperatureLogitsWarper(s.temperature)(None, logits)
    if s.top_k:
        logits = TopKLogitsWarper(s.top_k)(None, logits)
    if s.top_p < 1:
        logits = TopPLogitsWarper(s.top_p)(None, logits)
    if s.min_p:
        logits = MinPLogitsWarper(s.min_p)(None, logits)
    return logits.softmax(-1)


def over_all(d, width):
    rows = len(d.probabilities)
    return d.probabilities if d.ids is None else torch.zeros(rows, width).scatter_(1, d.ids.expand(rows, -1), d.probabilities)


def near_a_limit(logits, s: Sampling) -> bool:
    """Whether rounding decides which tokens a filter keeps."""
    p = (logits / s.temperature).softmax(-1)
    if s.top_k:
        kept = p.topk(min(s.top_k, p.shape[-1])).values
        p = kept / kept.sum(-1, keepdim=True)
    mass = p.sort(-1, descending=True).values.cumsum(-1)
    ratio = p / p.amax(-1, keepdim=True)
    return bool(((mass - s.top_p).abs() < 1e-5).any() or ((ratio - s.min_p).abs() < 1e-5).any()) if s.top_p < 1 or s.min_p else False


@given(st.sampled_from([2, 3, 17, 50, 300, 1024, 5000]), st.integers(0, 10**6), st.floats(0.05, 3), st.sampled_from([0, 1, 2, 5, 40, 400]),
       st.one_of(st.just(1.0), st.floats(0.02, 0.999)), st.one_of(st.just(0.0), st.floats(0.001, 0.9)), st.floats(0.2, 8))
@settings(max_examples=120)
def test_the_filters_are_those_of_transformers(width, seed, temperature, top_k, top_p, min_p, spread):
    logits = spread * torch.randn(3, width, generator=torch.Generator().manual_seed(seed))
    s = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assume(not near_a_limit(logits, s))
    found = ops.filtered(logits, s)
    assert torch.allclose(found.probabilities.sum(-1), torch.ones(3), atol=1e-5)
    assert torch.allclose(over_all(found, width), by_transformers(logits, s), atol=1e-5)


@given(st.integers(2, 60), st.integers(0, 10**6), st.floats(0.2, 4), st.lists(st.integers(0, 59), max_size=12))
@settings(max_examples=40)
def test_the_repetition_penalty_is_that_of_transformers(width, seed, penalty, seen):
    seen = [i % width for i in seen] or [0]
    logits = 3 * torch.randn(2, width, generator=torch.Generator().manual_seed(seed))
    marks = ops.nothing_seen(width, logits)
    ops.mark(marks, torch.tensor(seen))
    want = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen] * 2), logits)
    assert torch.allclose(ops.penalise(logits, marks, penalty), want)


@given(st.integers(2, 9), st.lists(st.integers(0, 11), min_size=1, max_size=5), st.lists(st.integers(0, 11), max_size=4))
def test_each_position_of_a_block_has_seen_the_proposals_before_it(width, ids, text):
    """Ids outside the width mark nothing."""
    marks = ops.nothing_seen(width, torch.zeros(1))
    ops.mark(marks, torch.tensor(text, dtype=torch.long))
    rows = ops.seen_rows(marks, torch.tensor(ids))
    for i in range(len(ids) + 1):
        assert {c for c in range(width) if rows[i, c]} == {t for t in [*text, *ids[:i]] if t < width}
    assert {c for c in range(width) if marks[c]} == {t for t in text if t < width}  # the text's own marks are untouched


def test_the_best_token_survives_every_filter():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    for s in (Sampling(1.0, top_p=1e-9), Sampling(1.0, min_p=1.0), Sampling(1.0, top_k=1), Sampling(0.002, top_p=0.5)):
        assert over_all(ops.filtered(logits, s), 3)[0, 1] == 1


def test_a_flat_distribution_passes_the_short_cut_of_the_nucleus():
    """More tokens share the nucleus than the first look takes in."""
    for width in (1000, 9000):
        logits = 1e-3 * torch.randn(2, width, generator=torch.Generator().manual_seed(1))
        d = ops.filtered(logits, Sampling(1.0, top_p=0.9))
        assert ((d.probabilities > 0).sum(-1) - 0.9 * width).abs().max() < 0.01 * width


def test_a_vocabulary_of_one_token():
    logits = torch.tensor([[2.0]])
    for s in (Sampling(), Sampling(1.0), Sampling(1.0, top_k=5), Sampling(1.0, top_p=0.5), Sampling(0.7, min_p=0.3)):
        d = ops.filtered(logits, s)
        assert [int(v) for v in ops.draw(d, [LARGEST])[0]] == [0]
        both = ops.filtered(logits.repeat(2, 1), s)
        assert ops.judge_to_host(both, ops.proposal([(d, torch.tensor([0]), torch.ones(1))], None, 1), [LARGEST, LARGEST], 1)[:2] == (1, 0)


@given(st.sampled_from([(3, 2), (50, 50), (2560, 5), (2560, 16), (4096, 256), (8192, 256), (49152, 5), (2561, 5)]), st.integers(0, 10**6), st.booleans())
@settings(max_examples=40)
def test_the_best_in_two_stages_are_the_best(shape, seed, ties):
    width, count = shape
    values = torch.randn(3, width, generator=torch.Generator().manual_seed(seed))
    if ties:
        values = values.mul(2).round()
    best, ids = ops.best_of(values, count)
    want = values.topk(count)
    assert torch.equal(best, want.values) and torch.equal(values.gather(1, ids), best)
    assert all(len(set(row)) == count for row in ids.tolist())
    assert ties or torch.equal(ids, want.indices)


# -------------------------------------------------------------------------------------------------------- drawing


@given(st.lists(st.one_of(st.just(0.0), st.floats(2.0**-126, 1, width=32)), min_size=1, max_size=40), st.integers(0, 2**24 - 1))
@settings(max_examples=300)
def test_a_column_of_probability_zero_is_never_drawn(row, step):
    assume(sum(row) > 0)
    for u in (step * 2.0**-24, 0.0, LARGEST):
        assert row[int(ops.pick(torch.tensor([row]), torch.tensor([u])))] > 0


def test_the_last_uniform_does_not_reach_a_column_behind_the_mass():
    for width in (10, 1000, 49152):
        row = torch.rand(1, width, generator=torch.Generator().manual_seed(width)).softmax(-1)
        row[0, width // 2 :] = 0
        assert int(ops.pick(row, torch.tensor([LARGEST]))) < width // 2
        assert int(ops.pick(row, torch.tensor([0.0]))) == 0


def test_draws_have_the_chances_of_the_row():
    row = [0.25, 0.0, 0.5, 0.25]
    assert {piece.outcome: piece.weight for piece in drawn(exact([row]))} == pytest.approx({0: 0.25, 2: 0.5, 3: 0.25}, abs=1e-9)


def test_uniforms_come_again_with_their_seed_and_differ_by_stream():
    take = sampling.Uniforms(7, 0).take(1000)
    again = sampling.Uniforms(7, 0)
    assert take == [u for count in (1, 9, 990) for u in again.take(count)]  # however they are asked for
    assert take != sampling.Uniforms(7, 1).take(1000) != sampling.Uniforms(8, 1).take(1000)
    assert all(0 <= u <= LARGEST for u in take) and sampling.Uniforms(2**63 - 1, 1).take(1)
    assert [round(u, 6) for u in take[:2]] == [0.163727, 0.872073]  # of Philox itself, so the same on every machine


# -------------------------------------------------------------------------------------------------------- entropy


@pytest.mark.parametrize("logits, bits", [
    (torch.tensor([[0.0, -math.inf]]), 0.0),
    (torch.tensor([[0.0, 0.0, -math.inf]]), 1.0),
    (torch.tensor([[65504.0, -65504.0]], dtype=torch.float16), 0.0),
    (torch.tensor([[0.0, -math.inf]], dtype=torch.float16), 0.0),
    (torch.tensor([[65504.0, 65504.0, -math.inf]], dtype=torch.bfloat16), 1.0),
    (torch.zeros(1, 1), 0.0),
    (torch.full((1, 8), 3.5), 3.0),  # EN-04
    (torch.tensor([[2.0, 1.0, 0.0]]), 1.2009),  # EN-02
    (torch.tensor([[0.0, 0.0, 0.0, 0.0, -math.inf, -math.inf]]), 2.0),  # EN-05
])
def test_entropy_in_bits(logits, bits):
    """EN-01: no NaN and no minus zero, also with probabilities of zero and in half precision."""
    found = float(ops.entropy(logits)[0])
    assert found == pytest.approx(bits, abs=1e-4) and math.copysign(1, found) == 1


@given(st.integers(1, 60), st.integers(0, 10**6), st.floats(0.01, 30), st.floats(-100, 100))
@settings(max_examples=60)
def test_entropy_and_probability_are_those_of_the_definition(width, seed, spread, shift):
    logits = spread * torch.randn(2, width, generator=torch.Generator().manual_seed(seed)) + shift
    p = logits.double().softmax(-1)
    bits, log_total = ops.entropy(logits)
    assert torch.allclose(bits.double(), torch.special.entr(p).sum(-1) / math.log(2), atol=2e-4)
    ids = torch.tensor([0, width - 1])
    assert torch.allclose(ops.probability(logits, log_total, ids).double(), p.gather(1, ids[:, None])[:, 0], atol=1e-4)


def test_statistics_hold_entropy_probability_and_the_five_best():
    logits = torch.tensor([[0.0, 3.0, 1.0, -1.0, 2.0, -math.inf, -2.0]])
    row = ops.to_host(ops.statistics(logits, [4]))[0]
    p = logits.softmax(-1)[0]
    assert row[0] == pytest.approx(float(torch.special.entr(p).sum()) / math.log(2), abs=1e-5)
    assert row[1] == pytest.approx(float(p[4]), abs=1e-6)
    assert row[2:7] == [1, 4, 2, 0, 3] and row[7:] == pytest.approx(p[[1, 4, 2, 0, 3]].tolist(), abs=1e-6)
    assert len(ops.to_host(ops.statistics(logits[:, :2], [1]))[0]) == 2 + 2 * 2  # fewer tokens than five


# --------------------------------------------------------------------------------------------------------- device


@pytest.mark.parametrize("s", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=40), Sampling(0.7, top_p=0.9), Sampling(1.0, min_p=0.1, repetition_penalty=1.2)])
def test_a_round_waits_for_the_device_once(s, monkeypatch):
    """On "meta", which takes the way of any device that is not the CPU, tensors have no values: a step that needs one on
    the host raises. Only the verdict may, once."""
    trips, device = [], "meta"
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: trips.append(self.dtype) or [0.0] * len(self))
    like = torch.zeros(1, device=device)
    uniform = ops.uniforms_on_device([0.5] * 3, like)
    marks = ops.nothing_seen(1024, like)
    drawn_now = []
    for i in range(3):
        d = ops.filtered(ops.penalise(torch.zeros(1, 1024, device=device), marks, 1.2), s)
        token, q = ops.draw(d, uniform[i : i + 1])
        ops.mark(marks, token)
        drawn_now.append((d, token, q))
    made = ops.proposal(drawn_now, None, 1024)
    scores = ops.penalise(torch.zeros(4, 1024, device=device), ops.seen_rows(marks, made.ids), 1.2)
    ops.statistics(scores, [1, 2, 3, 4])
    assert not trips
    ops.judge_to_host(ops.filtered(scores, s), made, [0.5] * 4, 1024)
    assert trips == [torch.float32]  # nothing in double precision, which Apple's GPUs lack


# ------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("wrong, named", [
    (dict(temperature=-0.1), "Temperature"), (dict(temperature=math.nan), "Temperature"), (dict(temperature=math.inf), "Temperature"),
    (dict(temperature=11), "Temperature"), (dict(top_k=-1), "Top-k"), (dict(top_p=0), "Top-p"), (dict(top_p=1.1), "Top-p"),
    (dict(min_p=-0.1), "Min-p"), (dict(repetition_penalty=0), "Repetition penalty"), (dict(seed=-1), "Seed"), (dict(seed=2**63), "Seed"),
])
def test_a_setting_out_of_range_is_refused_by_name(wrong, named):
    with pytest.raises(RequestError, match=f"^{named}"):
        sampling.resolve(Sampling(**wrong))


def test_a_setting_in_range_is_kept():
    s = Sampling(0.7, 40, 0.9, 0.05, 1.1, 3)
    assert sampling.resolve(s) == s
    assert sampling.resolve(replace(s, temperature=0.0)) == Sampling(repetition_penalty=1.1, seed=3)
