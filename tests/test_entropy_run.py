"""An entropy run: every prompt answered or refused by name, nothing lost on Stop, numbers equal to a plain forward pass."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.decoding import compare, entropy
from engine.errors import RequestError
from engine.models import registry
from engine.request import REFUSED_SHOWN, Asked, CompareRequest, Done, EntropyRequest, Stage, Step
from engine.trace import Sampling, Settings, from_json, to_json
from tests.networks import fresh, model, network
from tests.scripted import ScriptedModel, noise
from tests.toys import chat_toy, tiny_llama, vocabulary

torch.set_num_threads(1)
PROMPTS = (Asked("Ala ma kota", "first", "cats"), Asked("kota ma Ala", "second", "cats"), Asked("Ala Ala", "third", "dogs"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    loaded = registry.load(str(tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny")), "cpu", "float32")
    loaded.ends = ()  # so that every answer has the length it is asked for
    return loaded


def events(request, loaded, stop=lambda: False) -> list:
    return list(entropy.run(request, lambda *_: loaded, stop))


def asked(prompts=PROMPTS, tokens=6, sampling=Sampling(0.8, seed=3), **more) -> EntropyRequest:
    return EntropyRequest(tuple(prompts), "tiny", settings=Settings(max_tokens=tokens, sampling=sampling), **more)


def result(request, loaded, stop=lambda: False):
    return events(request, loaded, stop)[-1].run


def test_a_set_is_answered_prompt_by_prompt(tiny):
    heard = events(asked(), tiny)
    run = heard[-1].run
    assert [(i.label, i.category, i.prompt.text) for i in run.items] == [(p.label, p.category, p.text) for p in PROMPTS]
    for n, item in enumerate(run.items):
        steps = [e for e in heard if isinstance(e, Step) and e.repeat == n + 1]
        assert tuple(i for s in steps for i in s.round.emitted) == item.answer.ids and {s.side for s in steps} == {"plain"}
        assert set(item.answer.ids) | set(item.prompt.ids) | {i for top in item.answer.top for i, _ in top} <= set(run.tokens)
        assert len(item.answer.entropy) == len(item.answer.sampling_entropy) == len(item.answer.ids) == 6
    shares = [e.done for e in heard if isinstance(e, Stage) and e.done is not None]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1 and len(set(shares)) > 10
    assert run.kind == "entropy" and run.status == "done" and list(run.models) == ["model"] and run.settings.max_tokens == 6
    assert from_json(to_json(run)) == run


def test_an_answer_is_that_of_compares_verifier_only_side(tiny):
    """The same prompt, settings and seed; entropies, alternatives and probabilities included."""
    for sampling in (Sampling(), Sampling(0.9, top_p=0.9, repetition_penalty=1.2, seed=4)):
        own = result(asked(PROMPTS[:1], 12, sampling), tiny).items[0]
        other = list(compare.run(CompareRequest(PROMPTS[0].text, "tiny", "tiny", settings=Settings(max_tokens=12, sampling=sampling)),
                                 lambda *_: tiny))[-1].run
        assert own.prompt == other.prompt
        assert replace(own.answer, timings=(), rounds=()) == replace(other.plain, timings=(), rounds=())


def test_entropies_are_those_of_a_forward_pass_over_the_finished_text():
    """Model entropy, best five and probability of each token, worked out again without a cache, in double precision."""
    net = network("Llama", seed=3)
    loaded = model(net)
    run = result(EntropyRequest((Asked("t1 t2 t3"),), "tiny", raw=True, settings=Settings(max_tokens=20, sampling=Sampling(1.1, seed=2))), loaded)
    item = run.items[0]
    check(item, fresh(net, (*item.prompt.ids, *item.answer.ids)), 1e-4)


def check(item, logits, tolerance):
    rows = logits[len(item.prompt.ids) - 1 : -1].double().softmax(-1)
    answer = item.answer
    assert len(rows) == len(answer.ids) > 0
    want = (torch.special.entr(rows).sum(-1) / math.log(2)).tolist()
    assert answer.entropy == pytest.approx(want, abs=tolerance)
    assert answer.probability == pytest.approx([float(row[i]) for row, i in zip(rows, answer.ids)], abs=tolerance)
    for row, top in zip(rows, answer.top):
        best = row.topk(len(top))
        assert [p for _, p in top] == pytest.approx(best.values.tolist(), abs=tolerance)
        assert {i for i, p in top} == set(best.indices.tolist()) or float(row.topk(6).values[-2:].diff().abs()) < tolerance
    return rows


@pytest.fixture(scope="module")
def real():
    return registry.load("bundled:smollm2-135m", "cpu", "float32")


def test_the_bundled_models_entropies_are_those_of_a_plain_forward_pass(real):
    """On the real model, and sampling entropy by its definition from the same logits."""
    s = Sampling(0.7, top_p=0.9, seed=1)
    run = result(EntropyRequest((Asked("Name three colours."),), "bundled:smollm2-135m", settings=Settings(max_tokens=16, sampling=s)), real)
    item = run.items[0]
    logits = fresh(real.network, (*item.prompt.ids, *item.answer.ids))
    check(item, logits, 2e-3)
    for row, found in zip((logits[len(item.prompt.ids) - 1 : -1].double() / 0.7).softmax(-1), item.answer.sampling_entropy):
        p, _ = row.sort(descending=True)
        kept = p[p.cumsum(0) - p < 0.9]
        kept = kept / kept.sum()
        assert found == pytest.approx(float(torch.special.entr(kept).sum()) / math.log(2), abs=5e-3)
    assert run.items[0].prompt.template and run.tokens[item.answer.ids[0]]


@pytest.mark.parametrize("bad, said", [("Ala \0 kota", "NUL"), ("  ", "empty"), ("Ala " * 600, "too long"), ("Ala \ud800", "surrogate")])
def test_a_prompt_that_cannot_be_read_is_kept_with_its_sentence_and_the_others_run(tiny, bad, said):
    run = result(asked((PROMPTS[0], Asked(bad, "bad", "x"), PROMPTS[2])), tiny)
    assert [i.refused is None for i in run.items] == [True, False, True] and run.status == "done"
    refused = run.items[1]
    assert said in refused.refused and refused.answer is None and refused.prompt.text == bad[:REFUSED_SHOWN] and (refused.label, refused.category) == ("bad", "x")
    again = from_json(to_json(run).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass"))
    assert to_json(again) == to_json(run).encode("utf-8", "replace").decode()  # half a surrogate pair, if any, is read as "?"
    with pytest.raises(RequestError, match=said):  # alone, it is the request that is wrong
        events(asked((Asked(bad),)), tiny)


def test_a_system_text_the_template_refuses_is_said_by_name():
    """CT-01: nothing runs."""
    from tests.toys import NO_SYSTEM

    loaded = ScriptedModel(noise(11, 1), 11)
    loaded.vocabulary = vocabulary(chat_toy(NO_SYSTEM), "toy")
    with pytest.raises(RequestError, match="toy refuses the role system"):
        events(asked(PROMPTS[:1], system="Odpowiadaj krótko."), loaded)
    assert loaded.calls == 0


def test_a_base_model_reads_raw_text_and_the_run_says_so():
    """CT-01 (b)."""
    loaded = ScriptedModel(noise(11, 1), 11)
    loaded.vocabulary = vocabulary(chat_toy(None), "toy")
    run = result(asked(PROMPTS[:1]), loaded)
    assert run.items[0].prompt.ids == (6, 7, 8) and not run.items[0].prompt.template
    assert "no chat template" in " ".join(run.notes)
    assert "no chat template" not in " ".join(result(asked(PROMPTS[:1], raw=True), loaded).notes)


def test_an_answer_that_does_not_fit_is_shorter_and_says_so(tiny):
    long = Asked("Ala " * 500, "long")
    run = result(asked((long, PROMPTS[0]), 40), tiny)
    assert len(run.items[0].answer.ids) < 40 == len(run.items[1].answer.ids)
    assert any("instead of 40" in n for n in run.items[0].answer.notes) and not run.items[1].answer.notes


@pytest.mark.parametrize("after, kept, lengths", [(0, 0, []), (4, 1, [4]), (6, 1, [6]), (9, 2, [6, 3])])
def test_stop_keeps_what_was_written(tiny, after, kept, lengths):
    heard, steps = [], 0
    for event in entropy.run(asked(), lambda *_: tiny, lambda: steps >= after):
        heard.append(event)
        steps += isinstance(event, Step)
    if not kept:
        assert not [e for e in heard if isinstance(e, (Done, Step))]
        return
    run = heard[-1].run
    assert run.status == "stopped" and [len(i.answer.ids) for i in run.items] == lengths
    assert len(run.items[-1].answer.entropy) == len(run.items[-1].answer.sampling_entropy) == lengths[-1]
    assert any(f"{kept} of 3 prompts" in n for n in run.notes)
    assert events(asked(), tiny)[-1].run.status == "done"  # and the next run works


def test_a_device_that_fails_on_one_prompt_is_not_the_end_of_the_set(caplog):
    class Failing(ScriptedModel):
        def session(self, capacity=None):
            if len(self.sessions) == 1:
                self.sessions.append(None)
                raise RuntimeError("out of memory: 3 GiB")
            return super().session(capacity)

    texts = (Asked("t1 t2"), Asked("t3"), Asked("t2 t2"))
    run = result(EntropyRequest(texts, "s", raw=True, settings=Settings(max_tokens=3)), Failing(noise(9, 1), 9))
    assert [i.answer is not None for i in run.items] == [True, False, True] and run.items[1].refused == entropy.BROKE
    assert "3 GiB" in caplog.text and "GiB" not in run.items[1].refused
    broken = Failing(noise(9, 1), 9)
    broken.sessions.append(None)
    with pytest.raises(RuntimeError):
        events(EntropyRequest(texts[:1], "s", raw=True), broken)


def test_a_draft_that_scores_a_part_of_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="scores only 3 of its verifier's tokens"):
        events(asked(), ScriptedModel(noise(3), 3, support=[4, 1, 2]))


@pytest.mark.parametrize("request_, said", [
    (asked(()), "no prompt"), (asked(tokens=0), "Max tokens is 0"), (asked(tokens=40_000), "Max tokens is 40000"),
    (asked(sampling=Sampling(-1.0)), "Temperature"), (replace(asked(), model=""), "No model")])
def test_a_wrong_request_is_refused_before_anything_is_loaded(request_, said):
    with pytest.raises(RequestError, match=said):
        next(entropy.run(request_, lambda *_: pytest.fail("loaded")))
