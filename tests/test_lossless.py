"""Answers of the speculative loop have exactly the verifier's chances: every way through the real loop, summed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.numerics import torch as numerics
from engine.trace import Sampling, Settings
from tests.decoded import decoded
from tests.exact import Branching
from tests.scripted import ScriptedModel, noise
from tests.test_judging import one_hot_residual

torch.set_num_threads(1)


def reference(logits, s: Sampling, seen) -> np.ndarray:
    """The verifier's own distribution, written down once more in plain numpy."""
    z = np.array(logits, dtype=float)
    for i in set(seen):
        if i < len(z):
            z[i] = z[i] / s.repetition_penalty if z[i] > 0 else z[i] * s.repetition_penalty
    p = np.exp(z / s.temperature - (z / s.temperature).max())
    if s.top_k:
        p[np.argsort(-p)[s.top_k :]] = 0
    p /= p.sum()
    if s.top_p < 1:
        order = np.argsort(-p)
        p[order[np.cumsum(p[order]) - p[order] >= s.top_p]] = 0
    p[p < s.min_p * p.max()] = 0
    return p / p.sum()


def chain(script, prompt, s: Sampling, count: int, ends=()) -> dict[tuple[int, ...], float]:
    """Chances of all answers of `count` tokens, by the chain rule."""
    answers = {(): 1.0}
    for _ in range(count):
        longer = {}
        for made, chance in answers.items():
            if made and made[-1] in ends:
                longer[made] = chance
                continue
            for token, p in enumerate(reference(script((*prompt, *made)), s, (*prompt, *made))):
                if p:
                    longer[(*made, token)] = chance * p
        answers = longer
    return answers


def speculated(verifier, draft, prompt, settings: Settings, ops) -> dict[tuple[int, ...], float]:
    """Chances of all answers of the speculative loop, summed over every way through it."""
    verifier.ops = ops
    if isinstance(draft, ScriptedModel):
        draft.ops = ops
    total: dict[tuple[int, ...], float] = {}
    for generation, chance in ops.every_way(lambda: decoded(verifier, draft, prompt, settings, watch=False)):
        total[generation.ids] = total.get(generation.ids, 0.0) + chance
    return total


def difference(a, b) -> float:
    return max(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in {*a, *b})


def double(script, width, **kwargs):
    return ScriptedModel(script, width, dtype=torch.float64, **kwargs)


LOSSLESS = {
    "plain": (3, None, Settings(sampling=Sampling(1.0)), ()),
    "model": (3, lambda: double(noise(3, 2, 1.0), 3), Settings(gamma=2, sampling=Sampling(1.0)), ()),
    "hot, with an end token": (3, lambda: double(noise(3, 2, 1.0), 3), Settings(gamma=2, sampling=Sampling(1.7)), (2,)),
    "top-k and penalty": (4, lambda: double(noise(4, 2, 1.0), 4),
                          Settings(gamma=2, sampling=Sampling(1.0, top_k=2, repetition_penalty=1.6)), ()),
    "top-p and min-p": (4, lambda: double(noise(4, 2, 1.0), 4), Settings(gamma=2, sampling=Sampling(0.8, top_p=0.8, min_p=0.1)), ()),
    "entropy stop": (3, lambda: double(noise(3, 2, 1.0), 3), Settings(gamma=2, sampling=Sampling(1.0), entropy_stop=0.7), ()),
    "stored map": (4, lambda: double(noise(2, 2, 1.0), 2, support=[3, 1]),
                   Settings(gamma=2, sampling=Sampling(1.0, repetition_penalty=1.6)), ()),
    "prompt lookup": (3, lambda: "lookup", Settings(gamma=2, sampling=Sampling(1.0)), ()),
    "draft context ends": (3, lambda: double(noise(3, 2, 1.0), 3, context=6), Settings(gamma=2, sampling=Sampling(1.0)), ()),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_answers_have_exactly_the_verifiers_chances(name):
    """Invariant 5 over three tokens: every way through the real loop, each with its exact chance, against the chain rule."""
    width, draft, settings, ends = LOSSLESS[name]
    prompt, script = (1, 0, 1, 2, 1), noise(width, 1, 1.0)
    settings = replace(settings, max_tokens=3)
    found = speculated(double(script, width, ends=ends), draft and draft(), prompt, settings, Branching())
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert difference(found, chain(script, prompt, settings.sampling, 3, ends)) < 1e-6


def test_a_wrong_residual_changes_the_answers_chances():
    """The same sum finds the slip of SD-02, so it can fail."""
    def wrong(p, proposal, uniform, width):
        return (one_hot_residual if proposal else numerics.judge_to_host)(p, proposal, uniform, width)
    prompt, settings = (1, 0, 1, 2, 1), Settings(gamma=1, max_tokens=2, sampling=Sampling(1.0))
    script = noise(3, 1, 1.0)
    found = speculated(double(script, 3), double(noise(3, 2, 1.0), 3), prompt, settings, Branching(wrong))
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert difference(found, chain(script, prompt, settings.sampling, 2)) > 1e-3


def test_drawn_answers_have_the_verifiers_chances():
    """With the real streams of uniforms, which the exact sums replace: 400 seeds, three tokens, a chi-square test."""
    script, prompt = noise(3, 1, 1.0), (1, 0)
    want = chain(script, prompt, Sampling(1.0), 3)
    for drafter in ("model", "lookup", None):
        counts: dict[tuple[int, ...], int] = {}
        for seed in range(400):
            verifier = ScriptedModel(script, 3)
            draft = ScriptedModel(noise(3, 2, 1.0), 3) if drafter == "model" else drafter
            ids = decoded(verifier, draft, prompt, Settings(gamma=2, max_tokens=3, sampling=Sampling(1.0, seed=seed)), watch=False).ids
            counts[ids] = counts.get(ids, 0) + 1
        square = sum((counts.get(k, 0) - 400 * p) ** 2 / (400 * p) for k, p in want.items())
        assert square < 26 + 5 * math.sqrt(2 * 26)  # 26 degrees of freedom
