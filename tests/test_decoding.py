"""The decoding loop on scripted models: what the caches hold, where a run ends, and that greedy speculation changes no id."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.decoding.drafters import LookupDrafter
from engine.decoding.ending import text_of
from engine.decoding.loop import decode
from engine.trace import ACCEPTED, BONUS, CORRECTION, PLAIN, Sampling, Settings
from tests.decoded import WIDTH, audited, decoded, drafter_of
from tests.scripted import ScriptedModel, always, noise, path

torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("ends, answer, want", [((9,), (3, 4, 9, 5, 6, 7, 5, 6), (3, 4, 9)), ((9, 8), (3, 8, 5, 6, 7, 5), (3, 8))])
@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 7])
def test_nothing_follows_the_first_end_token(ends, answer, want, gamma):
    """SD-01, with one end token and with a list of them."""
    script = path((1, 2), answer, 10)
    verifier, draft = ScriptedModel(script, 10, ends), ScriptedModel(script, 10, ends)
    settings = Settings(gamma=gamma, max_tokens=20)
    for generation in (audited(verifier, drafter, (1, 2), settings) for drafter in (draft, None, "lookup")):
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
        settings = Settings(gamma=3 if wrong else 2, max_tokens=20)
        generation = audited(ScriptedModel(path((1, 2), answer, 10), 10, (9,)), draft, (1, 2), settings)
        assert (generation.ids, generation.finish, generation.rounds[-1].closing) == ((3, 4, 9), "eos", closing)


def test_an_end_token_that_the_verifier_refuses_ends_nothing():
    verifier = ScriptedModel(path((1,), (2, 3, 4, 5), WIDTH), WIDTH, (0,))
    draft = ScriptedModel(always([9.0, 0, 0, 0, 0, 0]), WIDTH, (0,))
    generation = audited(verifier, draft, (1,), Settings(gamma=3, max_tokens=4))
    assert (generation.ids, generation.finish) == ((2, 3, 4, 5), "length")


# -------------------------------------------------------------------------------------------------------------- caches


def test_a_rejected_token_leaves_the_verifiers_cache():
    """SD-04: after round 1 the text has 7 tokens and the cache holds tokens 0–5; round 2 feeds the correction at 6."""
    prompt, answer = (1, 2, 3, 4, 5), (2, 4, 3, 1, 5, 2)
    verifier, draft = ScriptedModel(path(prompt, answer, WIDTH), WIDTH), ScriptedModel(path(prompt, (2, 5, 5), WIDTH), WIDTH)
    rounds = decode(verifier, drafter_of(draft, verifier, Settings(gamma=3, max_tokens=20)), prompt, Settings(gamma=3, max_tokens=20))
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


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=3), Sampling(0.8, top_k=3, top_p=0.9, seed=5),
                                      Sampling(1.2, min_p=0.1, repetition_penalty=1.3)])
@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("drafter", ["model", "lookup", None, "self"])
def test_both_caches_hold_the_text_minus_its_last_token(sampling, gamma, drafter):
    """Invariant 1: before each round; after a clean sweep the draft's lacks one more. Nothing is fed twice or left out."""
    for prompt in ((1,), (1, 2), (5, 4, 3, 2, 1, 5, 4)):
        verifier = ScriptedModel(noise(WIDTH, 1), WIDTH, (0,))
        scripts = {"model": noise(WIDTH, 2, 1.0), "self": noise(WIDTH, 1)}
        draft = ScriptedModel(scripts[drafter], WIDTH) if drafter in scripts else drafter
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


# ----------------------------------------------------------------------------------------------------- greedy equality


@pytest.mark.parametrize("drafter", ["model", "lookup", "narrow", "wide", "mapped"])
def test_greedy_speculation_gives_the_verifiers_own_ids(drafter):
    """Invariant 4, over prompts, draft lengths and penalties."""
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
                return (text + text[end:] * count)[end : end + count]  # past the text's end, its last period again and again
    return None


# -------------------------------------------------------------------------------------------------------------- rounds


def states(rounds) -> list[str]:
    return [s for r in rounds for s in [*[ACCEPTED] * min(r.accepted, len(r.emitted)), *([r.closing] if r.closing else [])]]


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
    """Invariant 2, and SD-07's number of rounds."""
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
        draft = ScriptedModel(repeating(0), WIDTH) if drafter == "self" else drafter
        generation = audited(verifier, draft, prompt, Settings(gamma=16, max_tokens=most))
        assert len(generation.ids) == most and generation.finish == "length"
        assert all(len(r.proposed) <= most - 1 for r in generation.rounds)
        assert most > 1 or generation.rounds[0].closing == PLAIN


def test_a_vocabulary_of_one_token_runs_in_every_mode():
    for sampling in (Sampling(), Sampling(1.0), Sampling(1.0, top_p=0.5)):
        for drafter in ("self", None, "lookup"):
            verifier = ScriptedModel(always([1.0]), 1)
            draft = ScriptedModel(always([1.0]), 1) if drafter == "self" else drafter
            generation = audited(verifier, draft, (0,), Settings(gamma=3, max_tokens=6, sampling=sampling))
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
    rounds = decode(verifier, drafter_of(draft, verifier, settings), (1, 2), settings)
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
    runs = [decoded(ScriptedModel(noise(WIDTH, 1), WIDTH), ScriptedModel(noise(WIDTH, 2), WIDTH), (1, 2), settings, watch=w)
            for w in (True, False)]
    assert runs[0].ids == runs[1].ids and runs[1].entropy == ()
    assert [r.emitted for r in runs[0].rounds] == [r.emitted for r in runs[1].rounds]
