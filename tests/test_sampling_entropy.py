"""Sampling entropy: of the very distribution each token was drawn from, beside the model's own entropy, which no setting moves."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.numerics import torch as ops
from engine.trace import Generation, Sampling, Settings, from_json, to_json
from tests.decoded import WIDTH, audited, decoded
from tests.sample import sample_run
from tests.scripted import ScriptedModel, always, noise
from tests.test_numerics import by_transformers, near_a_limit

torch.set_num_threads(1)
NATS = 1 / math.log(2)  # bits a nat
LOGITS = torch.tensor([[2.0, 1.0, 0.0]])


def bits(p) -> float:
    """Entropy by the definition, in double precision."""
    p = np.asarray(p, dtype=np.float64)
    return float(-(p[p > 0] * np.log2(p[p > 0])).sum())


@pytest.mark.parametrize("s, nats", [(Sampling(0.7), 0.6506), (Sampling(1.0, top_k=1), 0.0), (Sampling(), 0.0), (Sampling(1.0), 0.8324),
                                     (Sampling(1.0, top_p=1e-6), 0.0), (Sampling(1.0, min_p=1.0), 0.0)])
def test_it_follows_the_sampler_and_model_entropy_does_not(s, nats):
    """EN-02: 0.8324 nats of the model in all cases."""
    found = float(ops.distribution_entropy(ops.filtered(LOGITS, s))[0])
    assert found == pytest.approx(nats * NATS, abs=1e-4) and math.copysign(1, found) == 1
    model = ScriptedModel(always(LOGITS[0].tolist()), 3)
    generation = decoded(model, None, (0,), Settings(max_tokens=4, sampling=s))
    assert generation.entropy == pytest.approx([1.2009] * 4, abs=1e-4)
    assert generation.sampling_entropy == pytest.approx([nats * NATS] * 4, abs=1e-4)


@pytest.mark.parametrize("logits, expected", [
    ([0.0, -math.inf], 0.0), ([0.0, 0.0, -math.inf], 1.0), ([65504.0, -65504.0], 0.0), ([1.0] * 8, 3.0), ([0.0] * 4 + [-math.inf] * 2, 2.0)])
def test_probabilities_of_zero_are_no_nan_and_certainty_is_no_minus_zero(logits, expected):
    """EN-01, EN-04 and EN-05 in the filtered distribution."""
    found = float(ops.distribution_entropy(ops.filtered(torch.tensor([logits]), Sampling(1.0)))[0])
    assert found == pytest.approx(expected, abs=1e-6) and math.copysign(1, found) == 1


@given(st.sampled_from([2, 5, 50, 300, 4096]), st.integers(0, 10**6), st.floats(0.1, 3), st.sampled_from([0, 1, 3, 40]),
       st.one_of(st.just(1.0), st.floats(0.05, 0.999)), st.one_of(st.just(0.0), st.floats(0.001, 0.9)), st.floats(0.2, 8))
@settings(max_examples=60)
def test_it_is_the_definition_over_what_transformers_leaves(width, seed, temperature, top_k, top_p, min_p, spread):
    logits = spread * torch.randn(2, width, generator=torch.Generator().manual_seed(seed))
    s = Sampling(temperature, top_k, top_p, min_p)
    assume(not near_a_limit(logits, s))
    want = [bits(row) for row in by_transformers(logits.double(), s)]
    assert ops.distribution_entropy(ops.filtered(logits, s)).tolist() == pytest.approx(want, abs=2e-4)


SAMPLINGS = [Sampling(0.7, seed=1), Sampling(1.3, top_k=3, seed=2), Sampling(0.9, top_p=0.8, seed=3), Sampling(1.0, min_p=0.2, seed=4),
             Sampling(1.0, repetition_penalty=1.7, seed=5), Sampling(0.8, top_p=0.9, repetition_penalty=1.4, seed=6),
             Sampling(repetition_penalty=1.5)]


@pytest.mark.parametrize("s", SAMPLINGS)
@pytest.mark.parametrize("drafter", [None, "model", "self", "lookup"])
def test_each_token_has_the_entropy_of_what_it_was_drawn_from(s, drafter):
    """Worked out again, position by position, from the script and transformers' processors: accepted tokens, corrections,
    bonuses and plain ones, the repetition penalty over everything before, runs that end inside a block."""
    drafts = {"model": lambda held: noise(WIDTH, 1)(held) + noise(WIDTH, 2, 1.0)(held), "self": noise(WIDTH, 1)}
    closings = set()
    for prompt, ends in (((1,), (0,)), ((5, 4, 3, 1, 2, 1, 5, 4), ()), ((2, 3), (0,))):
        verifier = ScriptedModel(noise(WIDTH, 1), WIDTH, ends)
        draft = ScriptedModel(drafts[drafter], WIDTH) if drafter in drafts else drafter
        generation = audited(verifier, draft, prompt, Settings(gamma=3, max_tokens=25, sampling=s))
        closings |= {r.closing for r in generation.rounds}
        text = list(prompt)
        want = []
        for token in generation.ids:
            logits = torch.tensor(np.asarray(verifier.script(tuple(text))), dtype=torch.float64)[None]
            want.append(0.0 if s.greedy else bits(by_transformers(logits, s, text)[0]))
            text.append(token)
        assert generation.sampling_entropy == pytest.approx(want, abs=1e-5)
        raw = [bits(torch.tensor(np.asarray(verifier.script((*prompt, *generation.ids[:i])))).softmax(-1)) for i in range(len(want))]
        assert generation.entropy == pytest.approx(raw, abs=1e-5)
    want = {None: {"plain"}, "self": {"bonus"}, "model": {"bonus", "correction"}, "lookup": {"correction"}}[drafter]
    assert want <= closings


def test_scores_held_over_several_blocks_come_out_in_order(monkeypatch):
    monkeypatch.setattr("engine.decoding.trail.HELD_SCORES", 3 * WIDTH)
    s = Settings(gamma=2, max_tokens=20, sampling=Sampling(0.9, top_k=4, seed=8))
    whole = decoded(ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2), WIDTH), (1, 2), s)
    monkeypatch.undo()
    assert whole == replace(decoded(ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2), WIDTH), (1, 2), s),
                            rounds=whole.rounds, timings=whole.timings)


def test_the_decode_clock_does_not_run_while_it_is_worked_out(monkeypatch):
    def slow(d):
        time.sleep(0.02)
        return ops.distribution_entropy(d)

    class Slow:
        distribution_entropy = staticmethod(slow)

        def __getattr__(self, name):
            return getattr(ops, name)

    monkeypatch.setattr("engine.decoding.trail.HELD_SCORES", 0)  # look at every round at once, while decoding
    model = ScriptedModel(noise(WIDTH, 1), WIDTH)
    model.ops = Slow()
    started = time.perf_counter()
    generation = decoded(model, None, (1,), Settings(max_tokens=20, sampling=Sampling(1.0)))
    assert time.perf_counter() - started > 0.4 and generation.timings[0].decode_seconds < 0.2


def test_it_is_kept_in_the_file_and_absent_from_older_ones():
    run = sample_run(tokens=4)
    kept = replace(run, plain=replace(run.plain, sampling_entropy=(0.5, 0.0, 1.25, 3.0)))
    assert from_json(to_json(kept)) == kept
    old = to_json(run).replace('"sampling_entropy": [], ', "").replace(', "sampling_entropy": []', "")
    assert "sampling_entropy" not in old and from_json(old).plain.sampling_entropy == () == Generation("plain").sampling_entropy
