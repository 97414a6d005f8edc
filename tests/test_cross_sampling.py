"""Drawn answers with a draft of another tokenizer have exactly the verifier's chances, by translation and by intersection."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.decoding import cross
from engine.decoding.frame import drain
from engine.decoding.cuts import ids_by_bytes
from engine.decoding.loop import decode
from engine.decoding.translators import make
from engine.sampling import Uniforms
from engine.trace import Sampling, Settings
from engine.trace.uag import STRATEGIES
from tests.crossing import alone, bytes_of, bytewise, counts, crossed, pieces, raw, scripted, spm, teller
from tests.exact import Branching
from tests.networks import model, network
from tests.scripted import noise, path
from tests.test_lossless import chain, difference

torch.set_num_threads(1)
STORY = "Zażółć gęślą jaźń"


AB, BA = pieces("a", "b", "ab"), pieces("b", "a", "ba")
EXACT = {"none": {}, "naive": {}, "context": {}, "tli": {}, "tli, filtered": dict(sampling=Sampling(0.8, top_p=0.8, min_p=0.05)),
         "tli, penalised": dict(sampling=Sampling(1.0, top_k=2, repetition_penalty=1.5)),
         "context, penalised": dict(sampling=Sampling(1.2, repetition_penalty=1.5))}


@pytest.mark.parametrize("name", EXACT)
def test_the_answers_have_exactly_the_verifiers_chances(name):
    """Invariant 5 across tokenizers: every way through the real loop, each with its exact chance, against the chain rule.

    Three tokens a, b, ab for the verifier, b, a, ba for the draft: the same texts in other cuts.
    """
    settings = replace(Settings(gamma=2, max_tokens=3, sampling=Sampling(1.0)), **EXACT[name])
    script, ops = noise(3, 1, 1.0), Branching()
    verifier = scripted(script, AB, dtype=torch.float64)
    draft = scripted(noise(3, 2, 1.0), BA, dtype=torch.float64)
    verifier.ops = draft.ops = ops
    found: dict = {}
    sent = 0
    for answer, chance in ops.every_way(lambda: crossed(verifier, draft, name.split(",")[0], "ab", settings, watch=False)):
        found[answer.ids] = found.get(answer.ids, 0.0) + chance
        sent += counts(answer)[1]
    assert sum(found.values()) == pytest.approx(1, abs=1e-9) and sent
    assert difference(found, chain(script, raw(AB, "ab").ids, settings.sampling, 3)) < 1e-6


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drawn_answers_have_the_verifiers_chances(strategy):
    """With the real streams of uniforms: 300 seeds, two tokens, a chi-square test, on tiny networks."""
    shape = dict(hidden_size=16, num_hidden_layers=1)
    verifier = model(network("Llama", 1, vocab_size=3, **shape), vocabulary=AB)
    draft = model(network("Llama", 2, vocab_size=3, **shape), vocabulary=BA)
    net = verifier.network
    want = chain(lambda held: net(torch.tensor([list(held)])).logits[0, -1].tolist(), raw(AB, "ab").ids, Sampling(1.0), 2)
    seen: dict = {}
    for seed in range(300):
        got = crossed(verifier, draft, strategy, "ab", Settings(gamma=2, max_tokens=2, sampling=Sampling(1.0, seed=seed)), watch=False).ids
        seen[got] = seen.get(got, 0) + 1
    square = sum((seen.get(k, 0) - 300 * p) ** 2 / (300 * p) for k, p in want.items())
    assert square < 8 + 5 * math.sqrt(2 * 8)  # 8 degrees of freedom


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=1), Sampling(0.7, top_p=0.8, seed=2), Sampling(1.0, top_k=3, seed=3),
                                      Sampling(0.9, repetition_penalty=1.3, seed=4)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_draft_equal_to_the_verifier_is_always_accepted_by_intersection(sampling, asynchronous):
    """Invariant 2: nothing is lost on the way, so q is p to the last bit, with every filter."""
    v = pieces("a", "b", "c", "ab", "bc")
    verifier, draft = scripted(_by_text(v), v), scripted(_by_text(v), v)
    draft.asynchronous = asynchronous
    got = crossed(verifier, draft, "tli", "abc", Settings(gamma=3, max_tokens=30, sampling=sampling))
    assert counts(got)[0] == counts(got)[1] > 20
    assert all(q is not None for r in got.rounds for q in r.q)


def _by_text(v, width=None):
    """Scores that depend on the text held, not on how it is cut: both sides read one text in two cuts."""
    rows = noise(width or v.size, 5)
    return lambda held: rows(tuple(bytes_of(v, held)))


def test_a_translated_candidate_is_a_point_mass_and_says_so():
    v, d = spm(), bytewise()
    got = crossed(scripted(teller(v, STORY), v), scripted(teller(d, STORY), d), "context", "Za", Settings(gamma=4, max_tokens=9, sampling=Sampling(1.0)))
    assert all(q is None for r in got.rounds for q in r.q) and any(r.proposed for r in got.rounds)
    assert all(h is None for r in got.rounds for h in r.draft_entropy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_device_that_works_on_behind_our_back_gives_the_same(strategy):
    v, d = spm(), bytewise()
    for sampling in (Sampling(), Sampling(1.0, seed=8)):
        runs = []
        for asynchronous in (False, True):
            draft = scripted(noise(d.size, 3), d)
            draft.asynchronous = asynchronous
            runs.append(crossed(scripted(noise(v.size, 1), v), draft, strategy, "Za", Settings(gamma=4, max_tokens=20, sampling=sampling)))
        assert runs[0].ids == runs[1].ids and [r.proposed for r in runs[0].rounds] == [r.proposed for r in runs[1].rounds]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_draft_with_a_stored_map_crosses_too(strategy):
    """Its columns stand for some ids of its own vocabulary."""
    v, d = spm(), bytewise()
    support = [d.ids_by_token()[t] for t in ("a", "b", "Z", "z", "Ġ")]
    verifier, draft = scripted(noise(v.size, 1), v), scripted(noise(5, 2), d, width=5, support=support)
    settings = Settings(gamma=3, max_tokens=12, sampling=Sampling(repetition_penalty=1.2))
    got = crossed(verifier, draft, strategy, "Za", settings)
    assert got.ids == alone(verifier, "Za", settings).ids
    assert {i for r in got.rounds for i in r.draft_ids} <= set(support) and any(r.draft_ids for r in got.rounds)


def test_two_vocabularies_without_a_common_token_leave_the_verifier_alone():
    v, d = pieces("a", "b"), pieces("c", "d")
    verifier, draft = scripted(noise(2, 1), v), scripted(noise(2, 2), d)
    both = raw(v, "a"), raw(d, "c")
    made = cross.CrossDrafter(draft, verifier, make("tli", verifier, draft, 5), both, Settings(max_tokens=5), Uniforms(0, 1), ids_by_bytes(d))
    got = drain(decode(verifier, made, both[0].ids, Settings(max_tokens=5)))
    assert len(got.ids) == 5 and got.rounds[0].note == "the two vocabularies share no token"


def test_an_end_token_of_both_is_drafted_and_ends_the_run():
    """By intersection: nothing is drafted behind it, and the run ends inside the accepted candidates."""
    v = bytewise()
    end = v.ids_by_token()["<|im_end|>"]
    both = [scripted(path(raw(v, "a").ids, [*v.encode("bc"), end], v.size), v, ends=(end,)) for _ in range(2)]
    got = crossed(*both, "tli", "a", Settings(gamma=6, max_tokens=20))
    assert got.finish == "eos" and got.rounds[0].proposed == (*v.encode("bc"), end) and got.rounds[0].closing is None
    assert both[1].calls == 3  # it wrote three tokens and was not asked on
