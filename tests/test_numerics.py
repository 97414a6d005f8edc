"""Filtering, drawing and entropy: equal to transformers' processors, to the definitions, and never waiting for the device."""

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
from tests.exact import drawn
from tests.test_judging import LARGEST, exact

torch.set_num_threads(1)


# ----------------------------------------------------------------------------------------------------------- filtering


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
        proposal = ops.proposal([(d, torch.tensor([0]), torch.ones(1))], None, 1)
        assert ops.judge_to_host(both, proposal, [LARGEST, LARGEST], 1)[:2] == (1, 0)


@given(st.sampled_from([(3, 2), (50, 50), (2560, 5), (2560, 16), (4096, 256), (8192, 256), (49152, 5), (2561, 5)]),
       st.integers(0, 10**6), st.booleans())
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


# ------------------------------------------------------------------------------------------------------------- drawing


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


# ------------------------------------------------------------------------------------------------------------- entropy


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


# -------------------------------------------------------------------------------------------------------------- device


@pytest.mark.parametrize("s", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=40), Sampling(0.7, top_p=0.9),
                               Sampling(1.0, min_p=0.1, repetition_penalty=1.2)])
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


# ------------------------------------------------------------------------------------------------------------ settings


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


@pytest.mark.parametrize("share", [1e-320, 1e-46, 1e-9])
def test_the_best_token_is_kept_however_small_top_p_is(share):
    """1e-46 is 0 in float32: then no column is below it."""
    for logits in (torch.tensor([[1.0, 3.0, 2.0]]), torch.randn(3, 5000, generator=torch.Generator().manual_seed(0))):
        d = ops.filtered(logits, Sampling(1.0, top_p=share))
        ids, q = ops.draw(d, [LARGEST] * len(logits))
        assert ids.tolist() == logits.argmax(-1).tolist() and q.tolist() == [1.0] * len(logits)
        closing = ops.judge_to_host(ops.Distribution(d.probabilities[:1], d.ids[:1]), None, [LARGEST], logits.shape[-1])[1]
        assert closing == int(logits[0].argmax())
