"""Speculative sampling of one block, exactly: judged by bisection on the uniforms, so the real code is measured."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine import sampling
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


def test_the_output_is_distributed_as_the_verifier_says():
    """SD-02: the marginal is p to 1e-9, whatever the draft proposed."""
    assert output(exact([P, [1 / 3] * 3]), exact([Q])) == pytest.approx(P, abs=1e-9)


def test_after_a_rejection_the_whole_vocabulary_shares_the_residual():
    """SD-02: cat is kept with p/q = 1/2, and refused for (0, 2/3, 1/3)."""
    found = {piece.outcome: piece.weight for piece in judged(exact([P, [1, 0, 0]]), proposed(exact([Q]), CAT, 3), 3)}
    assert found == pytest.approx({(0, DOG): 0.5 * 2 / 3, (0, FOX): 0.5 / 3, (1, CAT): 0.5}, abs=1e-9)


def one_hot_residual(p, proposal, uniform, width):
    """Wrong on purpose: takes q away from the drafted token only."""
    alone = torch.zeros_like(proposal.probabilities)
    alone.scatter_(1, proposal.ids[:, None], proposal.q[:, None].to(alone.dtype))
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
    judged = ops.judge_to_host(ops.Distribution(rows, None), ops.point_masses([299_999], rows), [0.1, 0.9], 300_000)
    assert judged[:3] == (1, 262_143, [299_999])
