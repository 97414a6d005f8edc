"""MLX draws, filters and judges as torch does: the same uniforms give the same tokens, up to the rounding of a float."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.numerics import mlx as ops
from engine.numerics import torch as twin
from engine.trace import Sampling
from tests.test_judging import LARGEST
from tests.test_numerics import near_a_limit

torch.set_num_threads(1)
ROOT = Path(__file__).parents[1]


def both(values):
    array = np.asarray(values)
    return mx.array(array), torch.from_numpy(array)


def drawn_logits(rows, width, seed, spread=3.0):
    return both((spread * np.random.default_rng(seed).standard_normal((rows, width))).astype(np.float32))


def dense(d, width):
    """A distribution of either kind over the whole vocabulary."""
    p = np.array(ops.to_host(d.probabilities))
    if d.ids is None:
        return p
    full = np.zeros((len(p), width))
    for row, ids, values in zip(full, np.array(ops.to_host(d.ids)), p):
        np.add.at(row, ids, values)
    return full


def test_both_backends_have_the_same_functions_with_the_same_arguments():
    def public(path):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        return {n.name: [a.arg for a in n.args.args] for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}

    ours, theirs = public("engine/numerics/mlx.py"), public("engine/numerics/torch.py")
    assert theirs and {name: ours.get(name) for name in theirs} == theirs


SAMPLINGS = st.builds(Sampling, st.floats(0.05, 3), st.sampled_from([0, 1, 5, 40, 400]), st.one_of(st.just(1.0), st.floats(0.02, 0.999)),
                      st.one_of(st.just(0.0), st.floats(0.001, 0.9)))


@given(st.sampled_from([2, 3, 50, 300, 1024, 5000]), st.integers(0, 10**6), SAMPLINGS, st.floats(0.2, 8))
@settings(max_examples=80)
def test_the_filters_keep_what_torch_keeps(width, seed, s, spread):
    ours, theirs = drawn_logits(3, width, seed, spread)
    assume(not near_a_limit(theirs, s))
    found = dense(ops.filtered(ours, s), width)
    assert np.allclose(found, dense(twin.filtered(theirs, s), width), atol=1e-5)
    assert np.allclose(found.sum(-1), 1, atol=1e-5)


def test_greedy_is_a_point_mass_on_the_best():
    ours, _ = drawn_logits(4, 1000, 1)
    d = ops.filtered(ours, Sampling())
    assert ops.to_host(d.ids[:, 0]) == ops.to_host(mx.argmax(ours, -1)) and ops.to_host(d.probabilities) == [[1.0]] * 4


def test_a_flat_distribution_passes_the_short_cut_of_the_nucleus():
    for width in (1000, 9000):
        ours, _ = drawn_logits(2, width, 1, 1e-3)
        kept = np.array(ops.to_host((ops.filtered(ours, Sampling(1.0, top_p=0.9)).probabilities > 0).sum(-1)))
        assert np.abs(kept - 0.9 * width).max() < 0.01 * width


@given(st.integers(2, 60), st.integers(0, 10**6), st.floats(0.2, 4), st.lists(st.integers(0, 70), max_size=8),
       st.lists(st.integers(0, 70), min_size=1, max_size=5))
@settings(max_examples=40)
def test_the_repetition_penalty_and_its_marks_are_torchs(width, seed, penalty, text, block):
    ours, theirs = drawn_logits(len(block) + 1, width, seed)
    marks, other = ops.nothing_seen(width, ours), twin.nothing_seen(width, theirs)
    before = ops.copy(marks)
    ops.mark(marks, ops.ids_on_device(text, ours)), twin.mark(other, torch.tensor(text, dtype=torch.long))
    rows, others = ops.seen_rows(marks, ops.ids_on_device(block, ours)), twin.seen_rows(other, torch.tensor(block))
    assert np.array_equal(np.array(rows)[:, :width], others.numpy()[:, :width])
    assert np.array_equal(np.array(marks)[:width], other.numpy()[:width])  # the text's own marks are untouched
    assert not any(ops.to_host(before))  # a copy is another array
    assert np.allclose(ops.to_host(ops.penalise(ours, rows, penalty)), twin.penalise(theirs, others, penalty).tolist(), rtol=1e-5)


@given(st.sampled_from([(3, 2), (50, 50), (2560, 5), (2560, 16), (4096, 256), (8192, 256), (49152, 5), (2561, 5)]),
       st.integers(0, 10**6), st.booleans())
@settings(max_examples=25)
def test_the_best_in_two_stages_are_the_best(shape, seed, ties):
    width, count = shape
    values = np.random.default_rng(seed).standard_normal((3, width)).astype(np.float32)
    values = np.round(2 * values) if ties else values
    best, ids = (np.array(a) for a in ops.best_of(mx.array(values), count))
    assert np.array_equal(best, -np.sort(-values, -1)[:, :count]) and np.array_equal(np.take_along_axis(values, ids, 1), best)
    assert all(len(set(row)) == count for row in ids.tolist())


@given(st.lists(st.one_of(st.just(0.0), st.floats(2.0**-126, 1, width=32)), min_size=1, max_size=40), st.integers(0, 2**24 - 1))
@settings(max_examples=150)
def test_a_column_of_probability_zero_is_never_drawn_and_all_others_are_torchs(row, step):
    assume(sum(row) > 0)
    for u in (step * 2.0**-24, 0.0, LARGEST):
        column = int(ops.pick(mx.array([row]), mx.array([u])).item())
        assert row[column] > 0
        assert column == int(twin.pick(torch.tensor([row]), torch.tensor([u]))) or sum(row) > 1.001  # unnormalised sums may round apart


def test_the_last_uniform_does_not_reach_a_column_behind_the_mass():
    for width in (10, 1000, 49152):
        row = np.array(mx.softmax(mx.array(np.random.default_rng(width).standard_normal((1, width)).astype(np.float32)), -1))
        row[0, width // 2 :] = 0
        assert int(ops.pick(mx.array(row), mx.array([LARGEST])).item()) < width // 2
        assert int(ops.pick(mx.array(row), mx.array([0.0])).item()) == 0


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([(3, None), (50, None), (50, 8), (600, 40), (600, None)]), SAMPLINGS)
@settings(max_examples=80)
def test_rounds_are_judged_as_by_torch(seed, k, shape, s):
    """The same logits and the same uniforms: the same proposals, the same verdict, also with a draft's stored map, and with
    filters that keep another number of candidates at each position."""
    width, mapped = shape
    rng = np.random.default_rng(seed)
    verifier, draft = (3 * rng.standard_normal((k + 1, width))).astype(np.float32), rng.standard_normal((k, mapped or width))
    support = rng.permutation(width)[:mapped] if mapped else None
    draft = (2 * draft + verifier[:k, support if mapped else slice(None)]).astype(np.float32)
    uniform = [float(u) for u in rng.random(2 * k + 1, dtype=np.float32)]
    results = []
    for module, array, whole in ((ops, mx.array, lambda a: mx.array(a.astype(np.int32))), (twin, torch.from_numpy, torch.from_numpy)):
        held = None if support is None else whole(support)
        rows = []
        for i in range(k):
            d = module.filtered(array(draft[i : i + 1]), s)
            column, q = module.draw(d, uniform[i : i + 1])
            rows.append((d, column if held is None else held[column], q))
        p = module.filtered(array(verifier), s)
        results.append(module.judge_to_host(p, module.proposal(rows, held, width), uniform[k:], width))
    ours, theirs = results
    assume(not near_a_limit(torch.from_numpy(draft), s) and not near_a_limit(torch.from_numpy(verifier), s))
    assert ours[:3] == theirs[:3]
    assert np.allclose(ours[3], theirs[3], atol=1e-5) and np.allclose(ours[4], theirs[4], atol=1e-5)


def test_the_ways_that_only_a_gpu_takes_give_the_same(monkeypatch):
    """A nucleus by a whole sort, and a mass that is made to grow: run here on the CPU, whose sums need neither."""
    ours, _ = drawn_logits(3, 5000, 11)
    near = [dense(ops.filtered(ours, s), 5000) for s in (Sampling(0.7, top_p=0.9), Sampling(2.0, top_p=0.99))]
    rows = mx.softmax(ours, -1)
    drawn = [ops.to_host(ops.pick(rows, mx.array([u] * 3))) for u in (0.0, 0.37, LARGEST)]
    monkeypatch.setattr(ops, "_on_cpu", lambda: False)
    far = [dense(ops.filtered(ours, s), 5000) for s in (Sampling(0.7, top_p=0.9), Sampling(2.0, top_p=0.99))]
    assert np.allclose(near, far, atol=1e-6) and drawn == [ops.to_host(ops.pick(rows, mx.array([u] * 3))) for u in (0.0, 0.37, LARGEST)]
    gap = mx.array([[0.5, 0.0, 0.0, 0.5]])
    assert {ops.to_host(ops.pick(gap, mx.array([u])))[0] for u in (0.0, 0.49, 0.5, 0.51, LARGEST)} == {0, 3}


def test_plain_draws_and_point_masses_are_judged_as_by_torch():
    ours, theirs = drawn_logits(3, 40, 5)
    for s in (Sampling(), Sampling(1.0), Sampling(0.8, top_k=5), Sampling(1.0, top_p=0.7)):
        for u in (0.0, 0.3, 0.9, LARGEST):
            assert ops.judge_to_host(ops.filtered(ours[:1], s), None, [u], 40) == twin.judge_to_host(twin.filtered(theirs[:1], s), None, [u], 40)
            best = int(mx.argmax(ours[0]).item())
            for ids in ([best, 3], [7, 3]):
                a = ops.judge_to_host(ops.filtered(ours, s), ops.point_masses(ids, ours), [u, 0.5, u], 40)
                b = twin.judge_to_host(twin.filtered(theirs, s), twin.point_masses(ids, theirs), [u, 0.5, u], 40)
                assert a[:3] == b[:3] and np.allclose(a[3], b[3], atol=1e-6) and a[4] == b[4] == [1.0, 1.0]


@pytest.mark.parametrize("logits, bits", [
    (mx.array([[0.0, -math.inf]]), 0.0), (mx.array([[0.0, 0.0, -math.inf]]), 1.0),
    (mx.array([[65504.0, -65504.0]], dtype=mx.float16), 0.0), (mx.array([[0.0, -math.inf]], dtype=mx.float16), 0.0),
    (mx.array([[65504.0, 65504.0, -math.inf]], dtype=mx.bfloat16), 1.0), (mx.zeros((1, 1)), 0.0), (mx.full((1, 8), 3.5), 3.0),
    (mx.array([[2.0, 1.0, 0.0]]), 1.2009)])
def test_entropy_in_bits(logits, bits):
    """EN-01 on MLX: no NaN and no minus zero, also with probabilities of zero and in half precision."""
    found = float(ops.entropy(logits)[0].item())
    assert found == pytest.approx(bits, abs=1e-4) and math.copysign(1, found) == 1
    point = ops.distribution_entropy(ops.Distribution(mx.array([[1.0, 0.0], [0.5, 0.5]]), None))
    assert ops.to_host(point) == [0.0, 1.0] and math.copysign(1, ops.to_host(point)[0]) == 1


@given(st.integers(1, 60), st.integers(0, 10**6), st.floats(0.01, 30))
@settings(max_examples=40)
def test_what_the_trace_keeps_is_torchs(width, seed, spread):
    ours, theirs = drawn_logits(2, width, seed, spread)
    a, b = np.array(ops.to_host(ops.statistics(ours, [0, width - 1]))), twin.statistics(theirs, [0, width - 1]).numpy()
    assert np.allclose(a, b, atol=2e-4)
    s = Sampling(0.9)
    assert np.allclose(ops.to_host(ops.distribution_entropy(ops.filtered(ours, s))), twin.distribution_entropy(twin.filtered(theirs, s)), atol=2e-4)
