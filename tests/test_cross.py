"""Decoding with a draft of another tokenizer: not a token and not a chance of the verifier's changes, whatever is proposed."""

from __future__ import annotations

import itertools

import pytest
import torch

from engine.decoding import cross
from engine.decoding.frame import drain
from engine.decoding.loop import decode
from engine.decoding.reading import LEAD
from engine.trace import Prompt, Sampling, Settings
from engine.trace.uag import STRATEGIES
from tests import families, toys
from tests.crossing import alone, audited, bytes_of, bytewise, counts, crossed, drafter, pieces, raw, scripted, spm, teller
from tests.networks import model, network
from tests.scripted import always, letters, noise, path

torch.set_num_threads(1)
STORY = "Zażółć gęślą jaźń Za 😀 żółćgęś lą jaźń, Zażółć"
TRANSLATING = ("naive", "context")


def ids(vocabulary, *tokens):
    return [vocabulary.ids_by_token()[t] for t in tokens]


# ------------------------------------------------------------------------------------------------------- greedy equality


PAIRS = {"spm ← bytes": (spm, bytewise), "bytes ← spm": (bytewise, spm), "spm ← spm": (spm, spm)}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pair", PAIRS)
def test_greedy_ids_are_the_verifiers_own(pair, strategy):
    """Over noise: every kind of token is emitted, single bytes of letters and control tokens too."""
    v, d = (make() for make in PAIRS[pair])
    for seed, k, penalty in itertools.product(range(2), (1, 3, 6), (1.0, 1.4)):
        settings = Settings(gamma=k, max_tokens=24, sampling=Sampling(repetition_penalty=penalty))
        verifier = scripted(noise(v.size, seed), v, ends=(ids(v, "</s>") if v is spm() else ()))
        draft = scripted(noise(d.size, seed + 5), d)
        plain = alone(verifier, "Zażółć jaźń", settings)
        got = audited(verifier, draft, strategy, "Zażółć jaźń", settings)
        assert (got.ids, got.finish, got.text) == (plain.ids, plain.finish, plain.text)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pair", PAIRS)
def test_greedy_ids_are_the_verifiers_own_where_both_tell_one_story(pair, strategy):
    v, d = (make() for make in PAIRS[pair])
    for k in (1, 2, 4, 9):
        settings = Settings(gamma=k, max_tokens=40)
        verifier, draft = scripted(teller(v, STORY), v), scripted(teller(d, STORY), d)
        plain, got = alone(verifier, "Za", settings), audited(verifier, draft, strategy, "Za", settings)
        assert got.ids == plain.ids and STORY.startswith("Za" + plain.text[:4])
        if strategy == "context":
            assert counts(got)[0] > 3  # and it helps


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pair", [("mistral", "qwen3"), ("qwen3", "mistral"), ("smollm2", "llama3.1"), ("llama3.1", "smollm2")])
def test_greedy_ids_are_the_verifiers_own_on_real_tokenizers(pair, strategy):
    """Random networks over four families' vocabularies: they say anything, in any script, and no id changes."""
    verifier, draft = (_tiny(name, seed) for seed, name in enumerate(pair))
    settings = Settings(gamma=4, max_tokens=20)
    for text in ("Zażółć gęślą jaźń", "„Cudzysłów” 😀\t\n x"):
        plain = alone(verifier, text, settings, watch=False)
        assert crossed(verifier, draft, strategy, text, settings).ids == plain.ids


_kept: dict = {}


def _tiny(name: str, seed: int):
    if (name, seed) not in _kept:
        v = families.vocabulary(name)
        _kept[name, seed] = model(network("Llama", seed, vocab_size=v.size, hidden_size=16, num_hidden_layers=1), vocabulary=v)
    return _kept[name, seed]


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("other", families.FAMILIES)
def test_a_draft_that_knows_the_text_is_kept_in_every_direction(family, other):
    """Real tokenizers, one story in Polish: what `context` sends is nearly all the verifier's own cut, and the space of a word
    is never lost on the way to the draft."""
    text = " Wczoraj późnym wieczorem pani Łucja usłyszała dziwny dźwięk dobiegający z ogrodu."
    v, d = families.vocabulary(family), families.vocabulary(other)
    prompt, answer = v.encode("Mgła."), v.encode("Mgła." + text)
    assert answer[: len(prompt)] == prompt
    verifier = scripted(path([*v.opening, *prompt], answer[len(prompt):], 1), v, width=v.size)
    verifier.script = _spread(verifier.script, [*v.opening, *answer], v.size)
    story = [*d.opening, *d.encode("Mgła." + text)]
    draft = scripted(_spread(None, story, d.size), d)
    settings = Settings(gamma=4, max_tokens=len(answer) - len(prompt))
    got = crossed(verifier, draft, "context", "Mgła.", settings)
    assert got.text == text
    kept, sent = counts(got)
    assert kept / sent > 0.6 and len(got.rounds) < 0.6 * len(got.ids)


def _spread(_, whole, width):
    """Follows `whole` token by token, as `path` does, but builds its rows once: real vocabularies are wide."""
    def script(held):
        row = torch.zeros(width)
        n = len(held)
        row[whole[n] if n < len(whole) and list(held) == whole[:n] else 0] = 5.0
        return row
    return script


# ------------------------------------------------------------------------------------------------------------------ cases


def test_a_draft_window_that_ends_inside_a_letter():
    """UA-01: three byte tokens are ż and half of ó. The half is held back; U+FFFD is sent in no form."""
    v, d = spm(), bytewise()
    verifier, draft = scripted(teller(v, "Zażółć jaźń"), v), scripted(teller(d, "Zażółć jaźń"), d)
    for strategy in TRANSLATING:
        got = audited(verifier, draft, strategy, "Za", Settings(gamma=3, max_tokens=5))
        first = got.rounds[0]
        assert bytes_of(d, first.draft_ids) == "żó".encode()[:3]
        assert bytes_of(v, first.proposed).decode().strip() == "ż"
        assert not {*ids(v, "<0xEF>", "<0xBF>", "<0xBD>")} & {i for r in got.rounds for i in r.proposed}
        assert "\ufffd" not in got.text and got.ids == alone(verifier, "Za", Settings(max_tokens=5)).ids


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_beginning_of_text_stands_once_on_each_side(strategy):
    """UA-02, both ways round: the tokenizer that puts <s> in front is the verifier's, then the draft's."""
    for v, d in ((spm(), bytewise()), (bytewise(), spm())):
        verifier, draft = scripted(teller(v, STORY), v), scripted(teller(d, STORY), d)
        got = audited(verifier, draft, strategy, "Zażółć", Settings(gamma=3, max_tokens=9))
        assert len(got.rounds) >= 3 or counts(got)[0]
        start = ids(spm(), "<s>")[0]
        side = verifier if v is spm() else draft
        assert [h for h in side.sessions[-1].log if start in h[1]] == side.sessions[-1].log[:1]
        assert sum(h[1].count(start) for h in side.sessions[-1].log) == 1


def test_ids_the_verifier_lacks_are_never_sent():
    """UA-03: verifier 300 ids, draft 500; the draft proposes 17, 450, 21."""
    v, d = letters(300), letters(500)
    prompt = raw(v, "t1 t2").ids
    verifier = scripted(path(prompt, (17, 5, 6, 7, 8, 9), 300), v)
    draft = scripted(path(raw(d, "t1 t2").ids, (17, 450, 21), 500), d)
    for strategy in ("none", *TRANSLATING):
        got = crossed(verifier, draft, strategy, "t1 t2", Settings(gamma=3, max_tokens=6))
        assert got.ids == (17, 5, 6, 7, 8, 9)
        assert all(0 <= i < 300 for r in got.rounds for i in r.proposed)
        if strategy == "none":
            assert got.rounds[0].draft_ids == (17, 450, 21) and got.rounds[0].proposed == (17,) and "450" in got.rounds[0].note


def test_naive_breaks_words_and_context_keeps_them():
    """UA-04, through the whole loop: 0 of 2 and 1 of 1, and the text is the verifier's in both."""
    v, d = spm(), bytewise()
    verifier = scripted(teller(v, "Zażółć"), v, ends=ids(v, "</s>"))
    draft = scripted(teller(d, "Zażółć"), d)
    kept = {}
    for strategy in TRANSLATING:
        got = audited(verifier, draft, strategy, "Zaż", Settings(gamma=6, max_tokens=2))
        assert got.rounds[0].emitted[:1] == tuple(ids(v, "ółć")) and got.text.startswith("ółć")
        kept[strategy] = (got.rounds[0].accepted, got.rounds[0].proposed)
    assert kept["context"] == (1, tuple(ids(v, "ółć")))
    assert kept["naive"][0] == 0 and kept["naive"][1][:1] == tuple(ids(v, "▁"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_draft_that_stops_at_once_or_says_nothing_stalls_nothing(strategy):
    """UA-06: its end token is no id of the verifier's and is sent neither as an id nor as letters; an empty token is no text."""
    v, d = spm(), bytewise()
    end = ids(d, "<|im_end|>")[0]
    empty = d.size + 3  # scored padding: no token at all
    settings = Settings(gamma=4, max_tokens=5)
    for token, width in ((end, d.size), (empty, d.size + 4)):
        verifier = scripted(teller(v, STORY), v)
        draft = scripted(always([9.0 if i == token else 0.0 for i in range(width)]), d, width=width)
        got = audited(verifier, draft, strategy, "Za", settings)
        assert len(got.ids) == 5 and len(got.rounds) <= 5 and got.finish == "length"
        assert got.ids == alone(verifier, "Za", settings).ids
        if strategy != "tli":  # there the draft chooses among shared tokens alone, and has one to offer
            assert counts(got) == (0, 0) or strategy == "none" and token == empty
        if token == end and strategy != "tli":
            assert all(not r.proposed and not r.draft_ids for r in got.rounds)
            assert "⟨im_end⟩" in got.rounds[0].note


def test_a_draft_that_stopped_is_not_asked_on():
    d = bytewise()
    end = ids(d, "<|im_end|>")[0]
    draft = scripted(always([9.0 if i == end else 0.0 for i in range(d.size)]), d)
    crossed(scripted(teller(spm(), STORY), spm()), draft, "context", "Za", Settings(gamma=8, max_tokens=5))
    assert draft.calls <= 5


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=4)])
def test_the_verifier_goes_on_alone_where_the_drafts_context_ends(strategy, sampling):
    """SD-17, in the draft's own count: its byte tokens fill its positions long before 30 tokens of the verifier."""
    v, d = spm(), bytewise()
    verifier = scripted(noise(v.size, 3), v)
    for context in (4, 12, 20):
        draft = scripted(noise(d.size, 1), d, context=context)
        settings = Settings(gamma=4, max_tokens=30, sampling=sampling)
        got = crossed(verifier, draft, strategy, "Zażółć", settings)
        assert len(got.ids) == 30 and len(got.notes) == 1 and "draft's context is full" in got.notes[0]
        assert not any(r.proposed for r in got.rounds[-5:]) and cross.FULL in (got.rounds[-2].note or "")
        if sampling.greedy:
            assert got.ids == alone(verifier, "Zażółć", settings).ids


def test_a_long_draft_token_becomes_a_bounded_number_of_candidates():
    v, d = bytewise(), pieces("a", *("a" * n for n in range(2, 65)))
    verifier, draft = scripted(teller(v, "a" * 200), v), scripted(teller(d, "a" * 200), d)
    got = crossed(verifier, draft, "context", "a", Settings(gamma=1, max_tokens=40))
    assert got.text == "a" * 40 and max(len(r.proposed) for r in got.rounds) == cross.WIDEST


def test_a_run_never_passes_its_length_however_many_candidates_there_are():
    v, d = bytewise(), pieces(*("a" * n for n in range(1, 9)))
    for most in range(1, 12):
        verifier, draft = scripted(teller(v, "a" * 90), v, context=most + 1), scripted(teller(d, "a" * 90), d)
        got = crossed(verifier, draft, "context", "a", Settings(gamma=4, max_tokens=most))
        assert len(got.ids) == most and got.text == "a" * most


def test_the_cache_is_kept_and_only_what_changed_is_fed_again():
    v, d = bytewise(), spm()
    long = "Zażółć gęślą jaźń " * 12
    verifier, draft = scripted(teller(v, long), v), scripted(teller(d, long), d)
    got = audited(verifier, draft, "context", "Zażółć", Settings(gamma=4, max_tokens=200))
    log = draft.sessions[-1].log
    assert len(got.ids) == 200 and max(len(fed) for _, fed, _ in log[1:]) <= LEAD
    assert sum(len(fed) for _, fed, _ in log) < 3 * len(draft.sessions[-1].held)


def test_a_control_token_of_the_verifier_reaches_the_draft_as_one():
    d = v = bytewise()
    think, end = ids(v, "<think>", "<|im_start|>")
    verifier = scripted(path(raw(v, "a").ids, [think, *v.encode("b"), end, *v.encode("cd")], v.size), v)
    draft = scripted(noise(d.size, 2), d)
    crossed(verifier, draft, "context", "a", Settings(gamma=2, max_tokens=6))
    held = draft.sessions[-1].held
    assert held[:4] == (*d.encode("a"), think, *d.encode("b"), end)


def test_the_prompts_of_a_chat_are_each_models_own():
    """Both templates rendered from one text; the answer is read behind the draft's own."""
    v, d = toys.vocabulary(toys.sentencepiece_like(toys.NO_SYSTEM)), toys.vocabulary(toys.byte_level(toys.CHATML))
    from engine import prompts

    both: tuple[Prompt, Prompt] = prompts.build(v, "Za"), prompts.build(d, "Za")
    verifier, draft = scripted(noise(v.size, 1), v), scripted(noise(d.size, 2), d)
    settings = Settings(gamma=3, max_tokens=12)
    drain(decode(verifier, drafter(verifier, draft, "context", both, settings), both[0].ids, settings))
    assert both[1].template and draft.sessions[-1].held[: len(both[1].ids)] == both[1].ids
