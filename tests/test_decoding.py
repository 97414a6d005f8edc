"""The decoding loop on scripted models: what the caches hold, what a round emits, and that speculation loses nothing."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine import pair
from engine.analysis.metrics import metrics
from engine.decoding import compare as comparing
from engine.decoding.drafters import LookupDrafter, ModelDrafter
from engine.decoding.loop import DRAFT_STREAM, decode, text_of
from engine.errors import RequestError
from engine.numerics import torch as numerics
from engine.request import CompareRequest, Done
from engine.sampling import Uniforms
from engine.tokens import Vocabulary
from engine.trace import ACCEPTED, BONUS, CORRECTION, PLAIN, Generation, Sampling, Settings, from_json, to_json
from tests.exact import Branching
from tests.scripted import ScriptedModel, always, letters, noise, path
from tests.test_numerics import one_hot_residual
from tests.toys import chat_toy

torch.set_num_threads(1)
WIDTH = 6


def drafter_of(draft, verifier, settings: Settings, prompt):
    if draft == "lookup":
        return LookupDrafter(verifier.ops, verifier.anchor, settings.lookup_ngram)
    return draft and ModelDrafter(draft, verifier.width, settings.sampling, Uniforms(settings.sampling.seed, DRAFT_STREAM), settings.entropy_stop)


def decoded(verifier, draft, prompt, settings: Settings, **kwargs) -> Generation:
    return comparing.drain(decode(verifier, drafter_of(draft, verifier, settings, prompt), prompt, settings, **kwargs))


def audited(verifier, draft, prompt, settings: Settings) -> Generation:
    """Decode, and after every round check both caches, the verifier's forwards and every scored row."""
    rounds = decode(verifier, drafter_of(draft, verifier, settings, prompt), prompt, settings)
    text = list(prompt)
    while True:
        try:
            r = next(rounds)
        except StopIteration as end:
            generation = end.value
            break
        reader = verifier.sessions[-1]
        at, fed, last = reader.log[-1]
        assert at == len(text) - 1 and fed[0] == text[-1] and last == len(fed)  # the last token first, every row scored
        assert fed[1 : 1 + len(r.proposed)] == r.proposed
        assert r.emitted[: r.accepted] == r.proposed[: r.accepted]
        text += r.emitted
        assert list(reader.held) == text[:-1]
        if isinstance(draft, ScriptedModel) and r.proposed and r.closing:  # no closing: an end token was accepted, the run is over
            known = [i if draft.support is not None else min(i, draft.width - 1) for i in text]
            assert list(draft.sessions[-1].held) == (known[:-2] if r.accepted == len(r.proposed) else known[:-1])
    for session in [*verifier.sessions, *(draft.sessions if isinstance(draft, ScriptedModel) else ())]:
        assert session.closed
    assert tuple(text[len(prompt) :]) == generation.ids == tuple(i for r in generation.rounds for i in r.emitted)
    assert len(generation.entropy) == len(generation.top) == len(generation.probability) == len(generation.ids)
    return generation


def states(rounds) -> list[str]:
    return [s for r in rounds for s in [*[ACCEPTED] * min(r.accepted, len(r.emitted)), *([r.closing] if r.closing else [])]]


# ------------------------------------------------------------------------------------------------------------ ends


@pytest.mark.parametrize("ends, answer, want", [((9,), (3, 4, 9, 5, 6, 7, 5, 6), (3, 4, 9)), ((9, 8), (3, 8, 5, 6, 7, 5), (3, 8))])
@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 7])
def test_nothing_follows_the_first_end_token(ends, answer, want, gamma):
    """SD-01, with one end token and with a list of them."""
    script = path((1, 2), answer, 10)
    verifier, draft = ScriptedModel(script, 10, ends), ScriptedModel(script, 10, ends)
    settings = Settings(gamma=gamma, max_tokens=20)
    for generation in (audited(verifier, draft, (1, 2), settings), audited(verifier, None, (1, 2), settings), audited(verifier, "lookup", (1, 2), settings)):
        assert (generation.ids, generation.finish) == (want, "eos")
        assert len(generation.entropy) == len(want) and generation.timings[0].tokens == len(want)
        assert text_of(verifier, generation.ids) == generation.text == "".join(f" t{i}" for i in want)
        for r in generation.rounds:
            assert not set(ends) & set(r.proposed[:-1])  # tokens drafted after an end token are in no count
            assert len(r.proposed) == len(r.p) == len(r.q or r.p) == len(r.draw)


def test_an_end_token_as_correction_or_bonus_ends_the_run_too():
    for wrong, closing in ((5, CORRECTION), (None, BONUS)):
        answer = (3, 4, 9, 6, 6)
        draft = ScriptedModel(path((1, 2), (3, 4, wrong, 6) if wrong else (3, 4, 9), 10), 10)
        generation = audited(ScriptedModel(path((1, 2), answer, 10), 10, (9,)), draft, (1, 2), Settings(gamma=3 if wrong else 2, max_tokens=20))
        assert (generation.ids, generation.finish, generation.rounds[-1].closing) == ((3, 4, 9), "eos", closing)


def test_an_end_token_that_the_verifier_refuses_ends_nothing():
    verifier, draft = ScriptedModel(path((1,), (2, 3, 4, 5), WIDTH), WIDTH, (0,)), ScriptedModel(always([9.0, 0, 0, 0, 0, 0]), WIDTH, (0,))
    generation = audited(verifier, draft, (1,), Settings(gamma=3, max_tokens=4))
    assert (generation.ids, generation.finish) == ((2, 3, 4, 5), "length")


# ---------------------------------------------------------------------------------------------------------- caches


def test_a_rejected_token_leaves_the_verifiers_cache():
    """SD-04: after round 1 the text has 7 tokens and the cache holds tokens 0–5; round 2 feeds the correction at 6."""
    prompt, answer = (1, 2, 3, 4, 5), (2, 4, 3, 1, 5, 2)
    verifier, draft = ScriptedModel(path(prompt, answer, WIDTH), WIDTH), ScriptedModel(path(prompt, (2, 5, 5), WIDTH), WIDTH)
    rounds = decode(verifier, drafter_of(draft, verifier, Settings(gamma=3, max_tokens=20), prompt), prompt, Settings(gamma=3, max_tokens=20))
    first = next(rounds)
    assert (first.accepted, first.emitted, first.closing) == (1, (2, 4), CORRECTION)
    assert verifier.sessions[0].cells == list(enumerate((*prompt, 2)))
    next(rounds)
    assert verifier.sessions[0].log[-1][:2] == (6, (4, *draft_tokens(draft, (*prompt, 2, 4), 3)))
    rounds.close()
    assert verifier.sessions[0].closed and draft.sessions[0].closed


def draft_tokens(draft, text, count):
    made = []
    for _ in range(count):
        made.append(int(np.argmax(draft.script((*text, *made)))))
    return made


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=3), Sampling(0.8, top_k=3, top_p=0.9, seed=5), Sampling(1.2, min_p=0.1, repetition_penalty=1.3)])
@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("drafter", ["model", "lookup", None, "self"])
def test_both_caches_hold_the_text_minus_its_last_token(sampling, gamma, drafter):
    """DESIGN 1: before each round; after a clean sweep the draft's lacks one more. Nothing is fed twice or left out."""
    for prompt in ((1,), (1, 2), (5, 4, 3, 2, 1, 5, 4)):
        verifier = ScriptedModel(noise(WIDTH, 1), WIDTH, (0,))
        draft = ScriptedModel(noise(WIDTH, 2, 1.0), WIDTH) if drafter == "model" else ScriptedModel(noise(WIDTH, 1), WIDTH) if drafter == "self" else drafter
        generation = audited(verifier, draft, prompt, Settings(gamma=gamma, max_tokens=17, sampling=sampling))
        assert verifier.calls == len(generation.rounds) + (len(prompt) > 1)
        assert generation.finish == ("eos" if 0 in generation.ids else "length") and len(generation.ids) <= 17


def test_the_scripted_cache_refuses_gaps_repeats_and_use_after_closing():
    session = ScriptedModel(noise(3), 3).session()
    session.feed([1, 2], 0)
    session.length = 1
    with pytest.raises(AssertionError, match="gap or repeat"):
        session.feed([1], 1)
    session.length = 3
    with pytest.raises(AssertionError, match="gap or repeat"):
        session.feed([1], 1)
    session.close()
    with pytest.raises(AssertionError, match="closing"):
        session.feed([1], 1)


# -------------------------------------------------------------------------------------------------- greedy equality


@pytest.mark.parametrize("drafter", ["model", "lookup", "narrow", "wide", "mapped"])
def test_greedy_speculation_gives_the_verifiers_own_ids(drafter):
    """DESIGN 4, over prompts, draft lengths and penalties."""
    drafts = {"model": lambda s: ScriptedModel(noise(WIDTH, s), WIDTH), "lookup": lambda s: "lookup",
              "narrow": lambda s: ScriptedModel(noise(4, s), 4, real=4), "wide": lambda s: ScriptedModel(noise(9, s), 9),
              "mapped": lambda s: ScriptedModel(noise(3, s), 3, support=[4, 1, 2])}
    for seed, gamma, penalty in itertools.product(range(4), (1, 3, 7), (1.0, 1.5)):
        prompt = tuple(np.random.default_rng(seed).integers(0, WIDTH, 1 + seed))
        prompt = tuple(int(i) for i in prompt)
        settings = Settings(gamma=gamma, max_tokens=15, sampling=Sampling(repetition_penalty=penalty))
        verifier = ScriptedModel(repeating(seed) if drafter == "lookup" else noise(WIDTH, seed), WIDTH)
        plain = audited(verifier, None, prompt, settings)
        speculative = audited(verifier, drafts[drafter](seed + seed % 2), prompt, settings)
        assert speculative.ids == plain.ids and plain.finish == speculative.finish == "length"
        assert speculative.entropy == pytest.approx(plain.entropy) and speculative.probability == pytest.approx(plain.probability)
        assert [[i for i, _ in t] for t in speculative.top] == [[i for i, _ in t] for t in plain.top]


def repeating(seed):
    """Mostly the token three before, so that prompt lookup has something to find."""
    def script(held):
        row = noise(WIDTH, seed, 0.5)(held)
        if len(held) > 2 and len(held) % 5:
            row[held[-3]] += 4
        return row
    return script


def test_prompt_lookup_finds_what_followed_before():
    prompt = (1, 2, 3, 4, 5, 1, 2, 3)
    verifier = ScriptedModel(path(prompt, (4, 5, 1, 2, 3, 4), WIDTH), WIDTH)
    generation = audited(verifier, "lookup", prompt, Settings(gamma=4, max_tokens=6, drafter="lookup"))
    assert generation.ids == (4, 5, 1, 2, 3, 4) and generation.rounds[0].proposed == (4, 5, 1, 2)
    assert generation.rounds[0].q == (None,) * 4 and generation.rounds[0].draft_entropy == (None,) * 4
    assert generation.rounds[0].accepted == 4 and generation.rounds[0].closing == BONUS


@pytest.mark.parametrize("longest", [1, 2, 3, 5])
def test_prompt_lookup_takes_the_latest_longest_match(longest):
    g = np.random.default_rng(longest)
    for _ in range(30):
        text = [int(i) for i in g.integers(0, 3, g.integers(1, 30))]
        drafter, grown = LookupDrafter(ScriptedModel(noise(3), 3).ops, torch.zeros(1), longest), text[: len(text) // 2 + 1]
        drafter.begin(grown[:-1])
        while True:
            draft = drafter.propose(grown, 4)
            assert (draft.proposal.ids.tolist() if draft else None) == slowly_looked_up(grown, longest, 4)
            if len(grown) == len(text):
                break
            grown = text[: min(len(text), len(grown) + int(g.integers(1, 4)))]


def slowly_looked_up(text, longest, count):
    for n in range(min(longest, len(text)), 0, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                return text[end : end + count]
    return None


# ---------------------------------------------------------------------------------------------------------- rounds


def test_every_emitted_token_has_one_origin():
    """SD-13: two kept and a correction, then a clean sweep and a bonus."""
    prompt, answer = (1, 2), (3, 4, 5, 2, 3, 4, 1)
    draft = ScriptedModel(lambda held: path(prompt, answer, WIDTH)(held) if len(held) != 4 else always([9, 0, 0, 0, 0, 0])(held), WIDTH)
    generation = audited(ScriptedModel(path(prompt, answer, WIDTH), WIDTH), draft, prompt, Settings(gamma=3, max_tokens=7))
    assert generation.ids == answer
    assert states(generation.rounds) == [ACCEPTED, ACCEPTED, CORRECTION, ACCEPTED, ACCEPTED, ACCEPTED, BONUS]
    assert [r.accepted for r in generation.rounds] == [2, 3] and [r.closing for r in generation.rounds] == [CORRECTION, BONUS]


@pytest.mark.parametrize("gamma", [1, 2, 4, 7])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(0.7, top_p=0.8), Sampling(1.0, top_k=3), Sampling(1.3, min_p=0.2),
                                      Sampling(0.9, repetition_penalty=1.4), Sampling(repetition_penalty=1.4)])
def test_a_draft_equal_to_the_verifier_is_always_accepted(gamma, sampling):
    """DESIGN 2, and SD-07's number of rounds."""
    for seed in range(4):
        same = ScriptedModel(noise(WIDTH, 4), WIDTH)
        generation = decoded(same, same, (1, 2, 3), Settings(gamma=gamma, max_tokens=30, sampling=replace(sampling, seed=seed)))
        assert all(r.accepted == len(r.proposed) for r in generation.rounds)
        assert len(generation.rounds) == math.ceil(30 / (gamma + 1))


@pytest.mark.parametrize("drafter", ["self", None, "lookup"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_run_never_passes_its_length(drafter, most):
    """γ may be more than what is left: the last token is the verifier's."""
    verifier = ScriptedModel(repeating(0), WIDTH)
    for prompt in ((2,), (1, 2, 1, 2)):
        generation = audited(verifier, ScriptedModel(repeating(0), WIDTH) if drafter == "self" else drafter, prompt, Settings(gamma=16, max_tokens=most))
        assert len(generation.ids) == most and generation.finish == "length"
        assert all(len(r.proposed) <= most - 1 for r in generation.rounds)
        assert most > 1 or generation.rounds[0].closing == PLAIN


def test_a_vocabulary_of_one_token_runs_in_every_mode():
    for sampling in (Sampling(), Sampling(1.0), Sampling(1.0, top_p=0.5)):
        for drafter in ("self", None, "lookup"):
            verifier = ScriptedModel(always([1.0]), 1)
            generation = audited(verifier, ScriptedModel(always([1.0]), 1) if drafter == "self" else drafter, (0,), Settings(gamma=3, max_tokens=6, sampling=sampling))
            assert generation.ids == (0,) * 6 and set(generation.entropy) == {0.0} and set(generation.probability) == {1.0}
            assert generation.top[0] == ((0, 1.0),)


def test_a_run_that_fills_the_context_says_so():
    verifier = ScriptedModel(noise(WIDTH), WIDTH, context=9)
    for drafter in (None, ScriptedModel(noise(WIDTH, 3), WIDTH, context=9), "lookup"):
        generation = audited(verifier, drafter, (1, 2, 3), Settings(gamma=4, max_tokens=6))
        assert len(generation.ids) == 6 and generation.finish == "context"
        assert audited(verifier, drafter, (1, 2, 3), Settings(gamma=4, max_tokens=5)).finish == "length"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=2)])
def test_the_verifier_goes_on_alone_where_the_drafts_context_ends(sampling):
    """SD-17: draft limit 32, verifier 128, prompt 20, 30 new tokens."""
    prompt = tuple(int(i) for i in np.random.default_rng(0).integers(0, WIDTH, 20))
    verifier, draft = ScriptedModel(noise(WIDTH, 1), WIDTH, context=128), ScriptedModel(noise(WIDTH, 1), WIDTH, context=32)
    generation = audited(verifier, draft, prompt, Settings(gamma=4, max_tokens=30, sampling=sampling))
    assert len(generation.ids) == 30
    length = len(prompt)
    for r in generation.rounds:
        assert bool(r.proposed) == (length < 32) or length == 49  # the last token of all needs no draft
        assert (r.note is not None) == (length >= 32) and (r.proposed or r.closing == PLAIN)
        length += len(r.emitted)
    assert len(generation.notes) == 1 and "draft's context is full" in generation.notes[0]
    if sampling.greedy:
        assert generation.ids == audited(verifier, None, prompt, Settings(max_tokens=30)).ids


def test_a_prompt_beyond_the_drafts_context_is_never_fed_to_it():
    for length in (8, 9, 30):
        draft = ScriptedModel(noise(WIDTH), WIDTH, context=8)
        generation = audited(ScriptedModel(noise(WIDTH), WIDTH), draft, (1,) * length, Settings(gamma=3, max_tokens=4))
        assert draft.calls == 0 and len(generation.ids) == 4 and generation.notes


@pytest.mark.parametrize("speculative", [True, False])
def test_stopping_after_any_round_keeps_what_was_made(speculative):
    settings = Settings(gamma=3, max_tokens=20, sampling=Sampling(1.0, seed=1))
    def models():
        return ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2, 1.0), WIDTH) if speculative else None
    whole = decoded(*models(), (1, 2, 3), settings)
    for rounds in range(len(whole.rounds)):
        asked = itertools.count()
        verifier, draft = models()
        part = decoded(verifier, draft, (1, 2, 3), settings, stop=lambda: next(asked) >= rounds)
        assert part.finish == "stopped" and len(part.rounds) == rounds
        kept = sum(len(r.emitted) for r in part.rounds)
        assert part.ids == whole.ids[:kept] and part.entropy == whole.entropy[:kept] and part.top == whole.top[:kept]
        assert [r.proposed for r in part.rounds] == [r.proposed for r in whole.rounds[:rounds]]
        assert part.timings[0].tokens == kept and part.timings[0].passes == rounds
        assert all(s.closed for s in verifier.sessions)


def test_walking_away_closes_both_sessions():
    verifier, draft = ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2), WIDTH)
    settings = Settings(gamma=3, max_tokens=20)
    rounds = decode(verifier, drafter_of(draft, verifier, settings, (1, 2)), (1, 2), settings)
    next(rounds)
    rounds.close()
    assert verifier.sessions[0].closed and draft.sessions[0].closed


def test_the_same_seed_gives_the_same_ids_and_another_seed_others():
    def ids(seed, drafter):
        verifier = ScriptedModel(noise(WIDTH, 1, 0.5), WIDTH)
        draft = ScriptedModel(noise(WIDTH, 2, 0.5), WIDTH) if drafter == "model" else drafter
        return decoded(verifier, draft, (1, 2), Settings(gamma=3, max_tokens=25, sampling=Sampling(1.0, seed=seed))).ids
    for drafter in ("model", None, "lookup"):
        assert ids(5, drafter) == ids(5, drafter) != ids(6, drafter)


def test_watching_changes_no_token():
    settings = Settings(gamma=3, max_tokens=25, sampling=Sampling(0.9, top_p=0.9, seed=4))
    runs = [decoded(ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2), WIDTH), (1, 2), settings, watch=w) for w in (True, False)]
    assert runs[0].ids == runs[1].ids and runs[1].entropy == () and [r.emitted for r in runs[0].rounds] == [r.emitted for r in runs[1].rounds]


# ----------------------------------------------------------------------------------------------------- the record


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=1), Sampling(0.7, top_k=4, seed=2)])
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
            assert r.draft_entropy[i] == pytest.approx(bits, abs=1e-4) and r.draft_normalised[i] == pytest.approx(bits / math.log2(WIDTH), abs=1e-4)
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


# --------------------------------------------------------------------------------------------------- entropy stop


def test_drafting_stops_at_the_token_the_draft_was_unsure_of():
    prompt, answer = (1, 2), (3, 4, 5, 2, 3, 4, 1, 2)
    certain = path(prompt, answer, WIDTH)
    unsure = ScriptedModel(lambda held: certain(held) if len(held) not in (3, 6) else [0.5 if t == (*prompt, *answer)[len(held)] else 0.0 for t in range(WIDTH)], WIDTH)
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


# ------------------------------------------------------------------------------------------------------- settings


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


# ------------------------------------------------------------------------------------------------------- lossless


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
    "top-k and penalty": (4, lambda: double(noise(4, 2, 1.0), 4), Settings(gamma=2, sampling=Sampling(1.0, top_k=2, repetition_penalty=1.6)), ()),
    "top-p and min-p": (4, lambda: double(noise(4, 2, 1.0), 4), Settings(gamma=2, sampling=Sampling(0.8, top_p=0.8, min_p=0.1)), ()),
    "entropy stop": (3, lambda: double(noise(3, 2, 1.0), 3), Settings(gamma=2, sampling=Sampling(1.0), entropy_stop=0.7), ()),
    "stored map": (4, lambda: double(noise(2, 2, 1.0), 2, support=[3, 1]), Settings(gamma=2, sampling=Sampling(1.0, repetition_penalty=1.6)), ()),
    "prompt lookup": (3, lambda: "lookup", Settings(gamma=2, sampling=Sampling(1.0)), ()),
    "draft context ends": (3, lambda: double(noise(3, 2, 1.0), 3, context=6), Settings(gamma=2, sampling=Sampling(1.0)), ()),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_answers_have_exactly_the_verifiers_chances(name):
    """DESIGN 5 over three tokens: every way through the real loop, each with its exact chance, against the chain rule."""
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
