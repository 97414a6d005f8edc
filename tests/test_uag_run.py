"""A run of strategies: prompts, order, notes, what is refused and what a stop leaves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from engine.decoding import uag
from engine.errors import RequestError
from engine.request import Asked, Done, Stage, Step, UagRequest
from engine.trace import CORRECTION, Sampling, Settings, from_json, to_json
from engine.trace.uag import STRATEGIES
from tests import toys
from tests.crossing import bytewise, scripted, spm, teller
from tests.scripted import noise

torch.set_num_threads(1)
STORY = "Zażółć gęślą jaźń Za 😀 żółć"


def models(verifier=None, draft=None):
    v, d = spm(), bytewise()
    return {"v": verifier or scripted(teller(v, STORY), v), "d": draft or scripted(teller(d, STORY), d)}


def asked(*texts, **kwargs):
    settings = Settings(max_tokens=kwargs.pop("max_tokens", 8), repeats=kwargs.pop("repeats", 1), sampling=kwargs.pop("sampling", Sampling()))
    return UagRequest(tuple(Asked(t, f"p{i}") for i, t in enumerate(texts)), "v", "d", raw=kwargs.pop("raw", True), settings=settings,
                      ks=kwargs.pop("ks", (2, 4)), **kwargs)


def events_of(request, loaded=None, stop=lambda: False):
    loaded = loaded or models()
    return list(uag.run(request, lambda name, *_: loaded[name], stop))


def run_of(request, loaded=None, **kwargs):
    last = events_of(request, loaded, **kwargs)[-1]
    assert isinstance(last, Done)
    return last.run


def test_every_prompt_is_answered_plainly_and_by_every_strategy_at_every_k():
    run = run_of(asked("Za", "Zaż"))
    assert [i.label for i in run.items] == ["p0", "p1"] and run.status == "done" and run.kind == "uag"
    for item in run.items:
        assert item.plain.ids and [(r.strategy, r.k) for r in item.results] == list(itertools.product(STRATEGIES, (2, 4)))
        assert all(r.answer.ids == item.plain.ids and r.answer.text == item.plain.text for r in item.results)
        assert max(len(r.draft_ids) for result in item.results for r in result.answer.rounds if result.k == 2) == 2
    assert run.models["verifier"].title and run.models["draft"].title and run.prefix == 5


def test_a_run_survives_its_file():
    run = run_of(asked("Za", sampling=Sampling(0.8, seed=3)))
    assert from_json(to_json(run)) == run


def test_every_id_in_a_run_has_its_bytes_on_its_own_side():
    run = run_of(asked("Za"), models(draft=scripted(noise(bytewise().size, 3), bytewise())))
    answers = [r.answer for r in run.items[0].results]
    assert {i for a in answers for r in a.rounds for i in (*r.proposed, *r.emitted)} <= run.tokens.keys()
    drafted = {i for a in answers for r in a.rounds for i in r.draft_ids}
    assert drafted == run.draft_tokens.keys() and all(run.draft_tokens[i] == bytewise().bytes_of(i).hex() for i in drafted)
    assert all(run.tokens[i] == spm().bytes_of(i).hex() for i in run.tokens)


def test_refusals_carry_their_cause():
    run = run_of(asked("Za"))
    for result in run.items[0].results:
        for r in result.answer.rounds:
            assert (r.cause is not None) == (r.closing == CORRECTION) == (r.gap is not None)
    assert any(r.cause for result in run.items[0].results for r in result.answer.rounds)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, top_p=0.8, repetition_penalty=1.3, seed=2)])
def test_a_round_has_its_cause_as_soon_as_it_is_judged(sampling):
    """In the step that says so, and the very one that the finished run keeps; its gap is that of the verifier's raw scores."""
    events = events_of(asked("Za", sampling=sampling), models(draft=scripted(noise(bytewise().size, 3), bytewise())))
    told = {}
    for e in events:
        if isinstance(e, Step):
            told.setdefault(e.side, []).append((e.round.cause, e.round.gap))
    for result in events[-1].run.items[0].results:
        at = 0
        for r, heard in zip(result.answer.rounds, told[f"{result.strategy} k={result.k}"], strict=True):
            assert (r.cause, r.gap) == heard and (r.cause is not None) == (r.closing == CORRECTION)
            if r.cause:
                best = result.answer.top[at + r.accepted]
                assert r.gap == pytest.approx(best[0][1] - best[1][1], abs=1e-6)
            at += len(r.emitted)
    assert {cause for rounds in told.values() for cause, _ in rounds} - {None} and not any(cause for cause, _ in told["plain"])


def test_translation_takes_time_that_is_part_of_decode():
    run = run_of(asked("Za"))
    for result in run.items[0].results:
        spent = sum(r.translate_seconds + r.draft_seconds + r.verify_seconds for r in result.answer.rounds)
        assert 0 < spent <= result.answer.timings[0].decode_seconds
        assert all(r.translate_seconds > 0 for r in result.answer.rounds if r.draft_ids)


def test_events_say_what_is_being_done_and_how_far_it_is():
    events = events_of(asked("Za", "Zaż", ks=(2,), strategies=("naive", "context")))
    stages = [e for e in events if isinstance(e, Stage)]
    assert [s.text for s in stages[:2]] == ["Loading v", "Loading d"]
    work = [s for s in stages if s.side]
    assert [s.side for s in work] == ["plain", "naive k=2", "context k=2"] * 2
    assert [s.done for s in work] == [i / 6 for i in range(6)] and work[4].text == "Prompt 2 of 2: naive, k = 2"
    sides = [e.side for e in events if isinstance(e, Step)]
    assert list(dict.fromkeys(sides)) == ["plain", "naive k=2", "context k=2"]
    for e in events:
        if isinstance(e, Step):
            assert {*e.round.proposed, *e.round.emitted} <= e.tokens.keys()


def test_repeats_run_backwards_every_second_time_and_add_their_times():
    events = events_of(asked("Za", repeats=3, ks=(2,), strategies=("naive", "tli")))
    order = [e.side for e in events if isinstance(e, Stage) and e.side]
    assert order == ["plain", "naive k=2", "tli k=2", "tli k=2", "naive k=2", "plain", "plain", "naive k=2", "tli k=2"]
    item = events[-1].run.items[0]
    assert len(item.plain.timings) == 3 and all(len(r.answer.timings) == 3 for r in item.results)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=5)])
def test_the_same_request_gives_the_same_run(sampling):
    noisy = [models(scripted(noise(spm().size, 1), spm()), scripted(noise(bytewise().size, 2), bytewise())) for _ in range(2)]
    a, b = (run_of(asked("Za", sampling=sampling), m) for m in noisy)
    assert [r.answer.ids for r in a.items[0].results] == [r.answer.ids for r in b.items[0].results]
    assert [[x.proposed for x in r.answer.rounds] for r in a.items[0].results] == [[x.proposed for x in r.answer.rounds] for r in b.items[0].results]


# ------------------------------------------------------------------------------------------------------------- refusals


def test_a_refused_prompt_is_kept_with_its_sentence_and_the_others_run():
    run = run_of(asked("Za", "", "Za\0", "Zaż", "a\ud800"))
    assert [bool(i.refused) for i in run.items] == [False, True, True, False, True]
    assert all(i.plain is None and not i.results and i.refused.endswith(".") for i in run.items if i.refused)
    assert from_json(to_json(run_of(asked("Za", "")))).items[1].refused == run.items[1].refused


@pytest.mark.parametrize("texts, said", [(("",), "^The prompt is empty"), (("", "\0"), "^None of the 2 prompts can be run. The first: The prompt is empty")])
def test_prompts_of_which_none_can_run_are_refused(texts, said):
    with pytest.raises(RequestError, match=said):
        run_of(asked(*texts))


def test_each_models_limit_is_checked_with_its_own_count():
    """IN-08: the verifier's refuses or shortens, the draft's only leaves the verifier alone, and says so."""
    v, d = spm(), bytewise()
    long = "Zażółć gęślą jaźń"
    needs = len(v.opening) + len(v.encode(long))
    run = run_of(asked("Za", long), models(scripted(teller(v, STORY), v, context=needs)))
    assert run.items[0].plain and f"{needs:,} tokens, limit {needs:,}" in run.items[1].refused
    run = run_of(asked(long, max_tokens=8), models(scripted(noise(v.size), v, context=needs + 3)))
    assert len(run.items[0].plain.ids) == 3 and any("At most 3 new tokens instead of 8" in n for n in run.notes)
    theirs = len(d.encode(long))
    run = run_of(asked(long), models(draft=scripted(teller(d, STORY), d, context=theirs)))
    assert any(f"reads at most {theirs} tokens, and the prompt is {theirs} of its own" in n for n in run.notes)
    assert all(r.answer.ids == run.items[0].plain.ids and not any(x.proposed for x in r.answer.rounds) for r in run.items[0].results)


@pytest.mark.parametrize("change, said", [
    (dict(strategies=("naive", "magic")), "no strategy “magic”"), (dict(strategies=()), "No strategy"), (dict(ks=()), "No k"),
    (dict(ks=(0,)), "K is 0"), (dict(ks=(17,)), "K is 17"), (dict(ks=(2, 2)), "k was chosen twice"), (dict(prefix=-1), "Prefix is -1"),
    (dict(prefix=65), "Prefix is 65"), (dict(prompts=()), "No prompt"), (dict(draft=""), "No draft model"),
    (dict(settings=Settings(max_tokens=0)), "Max tokens is 0"), (dict(settings=Settings(repeats=21)), "Repeats is 21"),
    (dict(settings=Settings(sampling=Sampling(-1.0))), "Temperature"), (dict(system="x"), "no system role"),
])
def test_a_wrong_request_is_one_sentence(change, said):
    with pytest.raises(RequestError, match=said):
        run_of(replace(asked("Za"), **change))


def test_models_that_cannot_be_rolled_back_are_refused():
    with pytest.raises(RequestError, match="cannot be rolled back"):
        run_of(asked("Za"), models(draft=scripted(noise(bytewise().size), bytewise(), can_rewind=False)))


# ---------------------------------------------------------------------------------------------------------------- notes


def test_a_pair_with_one_vocabulary_is_told_that_it_needs_no_translator():
    run = run_of(asked("Za"), models(draft=scripted(teller(spm(), STORY), spm())))
    assert "has the same vocabulary" in run.notes[0]
    assert not any("same vocabulary" in n for n in run_of(asked("Za")).notes)


def test_notes_name_shared_tokens_missing_templates_and_defaults():
    loaded = models()
    loaded["v"].defaults = {"top_k": 20}
    run = run_of(asked("Za", raw=False), loaded)
    said = " ".join(run.notes)
    assert "256 tokens that both vocabularies have" in said and said.count("has no chat template") == 2 and "top k 20" in said
    assert "chat template" not in " ".join(run_of(asked("Za")).notes)
    assert "both vocabularies have" not in " ".join(run_of(asked("Za", strategies=("naive",))).notes)


def test_each_model_reads_the_prompt_in_its_own_template():
    v, d = toys.vocabulary(toys.sentencepiece_like(toys.NO_SYSTEM)), toys.vocabulary(toys.byte_level(toys.CHATML))
    draft = scripted(noise(d.size, 1), d)
    run = run_of(asked("Za", raw=False), models(scripted(noise(v.size, 2), v), draft))
    assert run.items[0].prompt.template and b"[INST]" in b"".join(map(v.bytes_of, run.items[0].prompt.ids))
    assert b"<|im_start|>assistant" in b"".join(map(d.bytes_of, draft.sessions[-1].held))


# ----------------------------------------------------------------------------------------------------------------- stop


def test_a_stop_keeps_what_was_made():
    whole = run_of(asked("Za", "Zaż"))
    for after in range(2, 120, 5):
        calls = itertools.count()
        loaded = models()
        events = events_of(asked("Za", "Zaż"), loaded, stop=lambda: next(calls) >= after)
        if not hasattr(events[-1], "run"):  # nothing was written yet, so there is nothing to keep
            assert not any(isinstance(e, Step) for e in events)
            continue
        run = events[-1].run
        assert run.status == "stopped" or run.items == whole.items
        for item, full in zip(run.items, whole.items):
            assert item.plain is None or item.plain.ids == full.plain.ids[: len(item.plain.ids)]
            for r, f in zip(item.results, full.results):
                assert (r.strategy, r.k) == (f.strategy, f.k) and r.answer.ids == f.answer.ids[: len(r.answer.ids)]
        assert all(s.closed for m in loaded.values() for s in m.sessions)


def test_a_failure_keeps_what_was_made_and_is_raised():
    loaded, made = models(), []
    script = loaded["d"].script

    def breaks(held):
        if made and isinstance(made[-1], Step) and made[-1].side == "naive k=4":
            raise RuntimeError("out of memory")
        return script(held)

    loaded["d"].script = breaks
    with pytest.raises(RuntimeError):
        for event in uag.run(asked("Za", "Zaż"), lambda name, *_: loaded[name]):
            made.append(event)
    run = made[-1].run
    assert run.status == "failed" and run.items[0].plain.ids and "broke off" in run.notes[-1]
    assert [(r.strategy, r.k) for r in run.items[0].results] == [("none", 2), ("none", 4), ("naive", 2), ("naive", 4)] and len(run.items) == 1
    last = run.items[0].results[-1].answer  # what it had written when it broke off
    assert last.finish == "failed" and 0 < len(last.ids) < len(run.items[0].plain.ids)
