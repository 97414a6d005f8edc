"""What a decoded run records, under which settings it ran, and which pairs are refused; on scripted models."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine import pair
from engine.analysis.metrics import metrics
from engine.decoding import compare as comparing
from engine.errors import RequestError
from engine.request import CompareRequest, Done
from engine.tokens import Vocabulary
from engine.trace import Generation, Sampling, Settings, from_json, to_json
from tests.decoded import WIDTH, audited, decoded
from tests.scripted import ScriptedModel, always, letters, noise, path
from tests.test_lossless import reference
from tests.toys import chat_toy

torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------------------------- the record


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=1), Sampling(0.7, top_k=4, seed=2),
                                      Sampling(1.0, repetition_penalty=1.8, seed=3)])
def test_the_trace_holds_the_chances_that_were_used(sampling):
    """p and q of every proposal, the draw that judged it, and the raw scores' statistics, all recomputed here."""
    verifier, draft = ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2), WIDTH)
    prompt = (1, 2, 3)
    generation = audited(verifier, draft, prompt, Settings(gamma=3, max_tokens=20, sampling=sampling))
    text = list(prompt)
    for r in generation.rounds:
        judged = min(r.accepted + 1, len(r.proposed))
        for i, token in enumerate(r.proposed):
            before = (*text, *r.proposed[:i])
            raw = replace(sampling, temperature=1.0, top_k=0) if sampling.greedy else sampling
            p, q = (reference(m.script(before), raw, before)[token] for m in (verifier, draft))
            assert (r.p[i], r.q[i]) == pytest.approx((p, q), abs=1e-5)
            bits = entropy_bits(draft.script(before))
            assert r.draft_entropy[i] == pytest.approx(bits, abs=1e-4)
            assert r.draft_normalised[i] == pytest.approx(bits / math.log2(WIDTH), abs=1e-4)
            assert (r.draw[i] is None) == (sampling.greedy or i >= judged)
            if r.draw[i] is not None:
                assert (r.draw[i] * r.q[i] < r.p[i]) == (i < r.accepted)
        text += r.emitted
    for i, token in enumerate(generation.ids):
        row = verifier.script((*prompt, *generation.ids[:i]))
        p = reference(row, Sampling(1.0), ())
        assert generation.entropy[i] == pytest.approx(entropy_bits(row), abs=1e-4)
        assert generation.probability[i] == pytest.approx(p[token], abs=1e-5)
        assert [t for t, _ in generation.top[i]] == list(np.argsort(-p)[:5])


def entropy_bits(logits) -> float:
    p = np.exp(np.asarray(logits, dtype=float) - np.max(logits))
    p /= p.sum()
    return float(-sum(x * math.log2(x) for x in p if x > 0))


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(0.7, top_k=1), Sampling()])
@pytest.mark.parametrize("speculative", [True, False])
def test_model_entropy_does_not_depend_on_the_sampler(sampling, speculative):
    """EN-02: logits 2, 1, 0 have 1.2009 bits under every setting and in both modes."""
    model = ScriptedModel(always([2.0, 1.0, 0.0]), 3)
    generation = decoded(model, model if speculative else None, (0,), Settings(gamma=2, max_tokens=6, sampling=sampling))
    assert generation.entropy == pytest.approx([1.2009] * 6, abs=1e-4)
    assert all(e == pytest.approx(1.2009, abs=1e-4) for r in generation.rounds for e in r.draft_entropy)


def test_normalised_entropy_is_over_the_usable_vocabulary():
    """EN-04 and EN-05: four usable tokens of six columns, all equal: 2 bits, normalised 1."""
    model = ScriptedModel(always([0.0] * 4 + [-math.inf] * 2), 6, real=4)
    generation = decoded(model, model, (0,), Settings(gamma=2, max_tokens=6, sampling=Sampling(1.0)))
    assert {round(e, 5) for r in generation.rounds for e in r.draft_entropy} == {2.0}
    assert {round(e, 5) for r in generation.rounds for e in r.draft_normalised} == {1.0}
    assert max(generation.ids) < 4


# -------------------------------------------------------------------------------------------------------- entropy stop


def test_drafting_stops_at_the_token_the_draft_was_unsure_of():
    prompt, answer = (1, 2), (3, 4, 5, 2, 3, 4, 1, 2)
    certain = path(prompt, answer, WIDTH)

    def wavering(held):
        if len(held) not in (3, 6):
            return certain(held)
        return [0.5 if t == (*prompt, *answer)[len(held)] else 0.0 for t in range(WIDTH)]

    unsure = ScriptedModel(wavering, WIDTH)
    settings = Settings(gamma=4, max_tokens=8, entropy_stop=0.5)
    generation = audited(ScriptedModel(certain, WIDTH), unsure, prompt, settings)
    assert generation.ids == answer
    assert [len(r.proposed) for r in generation.rounds][:2] == [2, 2]  # positions 3 and 6 are the unsure ones
    assert all(e <= 0.5 for r in generation.rounds for e in r.draft_normalised[:-1])


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_entropy_stop_proposes_at_least_one_token_and_changes_no_greedy_id(threshold):
    verifier, draft = ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2), WIDTH)
    settings = Settings(gamma=5, max_tokens=20, entropy_stop=threshold)
    generation = audited(verifier, draft, (1, 2, 3), settings)
    assert generation.ids == decoded(verifier, None, (1, 2, 3), settings).ids
    left = 20
    for r in generation.rounds:
        assert len(r.proposed) >= min(1, left - 1) and all(e <= threshold for e in r.draft_normalised[:-1])
        assert len(r.proposed) == min(5, left - 1) or r.draft_normalised[-1] > threshold
        left -= len(r.emitted)
    assert threshold or all(len(r.proposed) <= 1 for r in generation.rounds)


# ------------------------------------------------------------------------------------------------------------ settings


def test_a_penalty_sees_only_the_tokens_before_it():
    """SD-15: logits A 2, B 1.5, C 1.4, penalty 1.5: A, B, C, A, A, A with and without a draft; off: A six times."""
    for penalty, want in ((1.5, (0, 1, 2, 0, 0, 0)), (1.0, (0,) * 6)):
        settings = Settings(gamma=3, max_tokens=6, sampling=Sampling(repetition_penalty=penalty))
        for draft in (None, ScriptedModel(always([2.0, 1.5, 1.4, -1]), 4), ScriptedModel(noise(4, 2), 4), "lookup",
                      ScriptedModel(always([1.4, 2.0, 1.5]), 3, support=[2, 0, 1])):
            assert audited(ScriptedModel(always([2.0, 1.5, 1.4, -1.0]), 4), draft, (3,), settings).ids == want
    same = audited(ScriptedModel(always([2.0, 1.5, 1.4, -1.0]), 4), ScriptedModel(always([2.0, 1.5, 1.4, -1.0]), 4), (3,),
                   Settings(gamma=3, max_tokens=6, sampling=Sampling(repetition_penalty=1.5)))
    assert all(r.accepted == len(r.proposed) for r in same.rounds)  # the draft was penalised alike


def test_hidden_generation_defaults_are_off_and_listed():
    """SD-15: a model folder that sets repetition_penalty 1.5 and top_k 20."""
    verifier = ScriptedModel(always([0.0] * 6 + [2.0, 1.5, 1.4] + [0.0] * 2), 11, vocabulary=Vocabulary(chat_toy(), "toy"))
    verifier.defaults = {"repetition_penalty": 1.5, "top_k": 20}
    run = compared(verifier, verifier, "Ala", Settings(gamma=3, max_tokens=6))
    assert run.plain.ids == run.speculative.ids == (6,) * 6
    assert any("repetition penalty 1.5, top k 20" in n and "off in both modes" in n for n in run.notes)


def compared(verifier, draft, prompt: str, settings: Settings, **request):
    """A whole comparison by its request, with scripted models in place of the registry."""
    models = {"verifier": verifier, "draft": draft}
    asked = CompareRequest(prompt, "verifier", None if draft is None else "draft", raw=True, settings=settings, **request)
    events = list(comparing.run(asked, lambda name, *_: models[name]))
    assert isinstance(events[-1], Done)
    return events[-1].run


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_a_whole_comparison_is_a_run_that_survives_being_stored(drafter):
    verifier = ScriptedModel(noise(11, 1), 11, vocabulary=Vocabulary(chat_toy(), "toy"))
    draft = ScriptedModel(noise(11, 2), 11, vocabulary=verifier.vocabulary) if drafter == "model" else None
    run = compared(verifier, draft, "Ala ma kota", Settings(gamma=3, max_tokens=12, drafter=drafter, repeats=3))
    assert run.plain.ids == run.speculative.ids and len(run.plain.timings) == len(run.speculative.timings) == 3
    assert run.status == "done" and from_json(to_json(run)) == run
    assert metrics(run)["first_divergence"] is None


def test_a_verifier_that_cannot_be_rolled_back_is_refused_before_anything_runs():
    """SD-06: as verifier, as draft, and with prompt lookup; verifier-only decoding works."""
    vocabulary = Vocabulary(chat_toy(), "toy")
    def state():
        return ScriptedModel(noise(11, 1), 11, can_rewind=False, vocabulary=vocabulary)
    def keys():
        return ScriptedModel(noise(11, 1), 11, vocabulary=vocabulary)
    for verifier, draft in ((state(), keys()), (keys(), state()), (state(), None)):
        with pytest.raises(RequestError, match="cannot be rolled back"):
            compared(verifier, draft, "Ala", Settings(max_tokens=4, drafter="model" if draft else "lookup"))
        assert not verifier.calls and (draft is None or not draft.calls)
    assert len(audited(state(), None, (1, 2), Settings(max_tokens=8)).ids) in range(1, 9)


def test_padding_ids_are_handled_alike_in_both_modes():
    """SD-09 (a): draft width 10, verifier width 12, nine real tokens; the verifier even emits padding ids."""
    for sampling in (Sampling(), Sampling(1.0, seed=1), Sampling(1.0, top_k=5), Sampling(repetition_penalty=1.5)):
        for draft in (ScriptedModel(noise(10, 2), 10, real=9), ScriptedModel(noise(14, 2), 14, real=9), "lookup"):
            verifier = ScriptedModel(lambda held: noise(12, 1)(held) + np.repeat([0.0, 2.0], [9, 3]), 12, real=9)
            settings = Settings(gamma=3, max_tokens=25, sampling=sampling)
            speculative, plain = decoded(verifier, draft, (1, 2), settings), decoded(verifier, None, (1, 2), settings)
            assert max(speculative.ids) >= 10 and all(i < 12 for r in speculative.rounds for i in r.proposed)
            assert not sampling.greedy or speculative.ids == plain.ids
            assert isinstance(speculative, Generation) and "t9" not in speculative.text
            if isinstance(draft, ScriptedModel) and draft.width == 10:
                assert max(i for s in draft.sessions for _, ids, _ in s.log for i in ids) <= 9  # the draft has no more rows


def test_vocabularies_that_differ_are_refused():
    """SD-09 (b), and a stored map that names tokens the verifier does not score."""
    with pytest.raises(RequestError, match="vocabularies differ"):
        pair.check_models(ScriptedModel(noise(5), 5), ScriptedModel(noise(6), 6))
    with pytest.raises(RequestError, match="stored map names token 7"):
        pair.check_models(ScriptedModel(noise(5), 5), ScriptedModel(noise(3), 3, support=[0, 7, 1], vocabulary=letters(5)))
    pair.check_models(ScriptedModel(noise(7), 7, real=5), ScriptedModel(noise(6), 6, real=5))
