"""What becomes of a run that is stopped, fails or gives no numbers: what was written is kept with the reason; nothing written is no run."""

from __future__ import annotations

import math

import pytest
import torch

from engine.decoding import compare, entropy, uag
from engine.decoding.frame import merged
from engine.decoding.loop import BrokeOff
from engine.errors import RequestError
from engine.request import Asked, CompareRequest, Done, EntropyRequest, Stage, Step, UagRequest
from engine.trace import Generation, Sampling, Settings, Timing
from tests.decoded import decoded
from tests.networks import model, network
from tests.scripted import ScriptedModel, noise, path

WIDTH = 8
ENDS = {"nan": math.nan, "inf": math.inf}


def broken(after: int, value: float, width: int = WIDTH):
    """A script whose scores are numbers until the cache holds `after` tokens."""
    good = noise(width)
    return lambda held: [value] * width if len(held) >= after else good(held)


@pytest.mark.parametrize("value", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_p=0.9), Sampling(0.7, top_k=3, min_p=0.1)])
@pytest.mark.parametrize("drafter", [None, "lookup", "model"])
def test_scores_that_are_no_numbers_end_the_run_with_the_reason(value, sampling, drafter):
    draft = ScriptedModel(noise(WIDTH), WIDTH) if drafter == "model" else drafter
    settings = Settings(gamma=3, max_tokens=30, sampling=sampling)
    with pytest.raises(BrokeOff) as caught:
        decoded(ScriptedModel(broken(9, value), WIDTH), draft, (1, 2, 1, 2), settings)
    made = caught.value.generation
    assert "The scores of Scripted are not numbers from token" in str(caught.value.cause) and "precision float32" in str(caught.value.cause)
    assert made.finish == "failed" and 0 < len(made.ids) <= 5 and len(made.entropy) == len(made.ids)
    assert f"from token {len(made.ids) + 1} " in str(caught.value.cause)
    assert all(map(math.isfinite, made.entropy)) and made.ids == decoded(ScriptedModel(noise(WIDTH), WIDTH), draft, (1, 2, 1, 2), settings).ids[: len(made.ids)]
    with pytest.raises(RequestError, match="from token 1 of the answer"):  # from the first one on there is nothing to keep
        decoded(ScriptedModel(broken(2, value), WIDTH), draft, (1, 2, 1, 2), settings)


def test_a_draft_without_numbers_is_named():
    with pytest.raises(RequestError, match="not numbers"):
        decoded(ScriptedModel(noise(WIDTH), WIDTH), ScriptedModel(broken(3, math.nan), WIDTH), (1, 2, 3), Settings(gamma=3, max_tokens=8))


def test_one_damaged_weight_is_told_and_the_way_out_depends_on_the_precision():
    damaged = network("Llama")
    damaged.model.norm.weight.data[0] = math.nan
    with pytest.raises(RequestError, match="damaged; fetch the model again"):
        decoded(model(damaged), None, (1, 2, 3), Settings(max_tokens=5))
    half = network("Llama").to(torch.float16)
    half.lm_head.weight.data *= 1e30  # overflows
    loaded = model(half)
    loaded.facts = loaded.facts.__class__(**{**loaded.facts.__dict__, "dtype": "float16"})
    with pytest.raises(RequestError, match="try float32"):
        decoded(loaded, None, (1, 2, 3), Settings(max_tokens=5, sampling=Sampling(1.0)))


REQUESTS = {
    "compare": (compare.run, CompareRequest("t1 t2", "v", "d", raw=True, settings=Settings(gamma=3, max_tokens=12))),
    "lookup": (compare.run, CompareRequest("t1 t2", "v", raw=True, settings=Settings(gamma=3, max_tokens=12, drafter="lookup"))),
    "entropy": (entropy.run, EntropyRequest((Asked("t1 t2"),), "v", raw=True, settings=Settings(max_tokens=12))),
    "uag": (uag.run, UagRequest((Asked("t1 t2"),), "v", "d", ("naive", "tli"), (2,), raw=True, settings=Settings(max_tokens=12))),
}


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    """The scripted models have no files to look over."""
    for module in (compare, entropy, uag):
        monkeypatch.setattr(module.preflight, "check", lambda request: None)


def heard(kind, models, stop=lambda: False):
    run, request = REQUESTS[kind]
    events, error = [], None
    try:
        for event in run(request, lambda name, *_: models[name], stop):
            events.append(event)
    except Exception as e:
        error = e
    return events, error


def both(script=None):
    return {"v": ScriptedModel(script or noise(WIDTH), WIDTH), "d": ScriptedModel(noise(WIDTH, 1), WIDTH)}


@pytest.mark.parametrize("kind, at", [(k, at) for k in REQUESTS for at in ("Loading v", "Warm-up", "before the first token")
                                      if (k, at) != ("entropy", "Warm-up")])  # which has none
def test_stopped_before_anything_was_written_there_is_no_run(kind, at):
    events, models = [], both()
    run, request = REQUESTS[kind]
    begun = lambda: any(isinstance(e, Stage) and (e.text == at or at == "before the first token" and e.side) for e in events)
    for event in run(request, lambda name, *_: models[name], begun):
        events.append(event)
    assert not [e for e in events if isinstance(e, (Done, Step))] and all(s.closed for m in models.values() for s in m.sessions)


@pytest.mark.parametrize("kind", REQUESTS)
def test_stopped_in_the_middle_what_was_written_is_a_run(kind):
    models, seen = both(), []
    run, request = REQUESTS[kind]
    for event in run(request, lambda name, *_: models[name], lambda: sum(isinstance(e, Step) for e in seen) >= 2):
        seen.append(event)
    assert seen[-1].run.status == "stopped"


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("failure", [RuntimeError("device lost"), MemoryError(), RequestError("The context is over.")])
def test_a_failure_in_the_middle_of_an_answer_keeps_what_was_written(kind, failure):
    good, live = noise(WIDTH), []

    def script(held):
        if live and len(held) > 6:
            raise failure
        return good(held)

    models = both(script)
    run, request = REQUESTS[kind]
    events, error = [], None
    try:
        for event in run(request, lambda name, *_: models[name]):
            events.append(event)
            live += [event] if isinstance(event, Step) else []
    except type(failure) as e:
        error = e
    assert error is failure and isinstance(events[-1], Done)
    made = events[-1].run
    assert made.status == "failed" and any("broke off" in n for n in made.notes)
    answer = made.plain if hasattr(made, "plain") else made.items[0].plain if hasattr(made.items[0], "plain") else made.items[0].answer
    assert answer.ids and answer.finish == "failed" and len(answer.entropy) == len(answer.ids)
    assert all(s.closed for m in models.values() for s in m.sessions)


def test_repeats_that_gave_other_tokens_are_counted_in_one_note():
    def made(*ids):
        return Generation("plain", ids, timings=(Timing(0, 1, 1, 0, len(ids), len(ids)),))

    g = made(1, 2)
    for again in (made(1, 2), made(1, 3), made(1, 3), made(1, 4)):
        g = merged(g, again)
    assert g.differing == (3, 4, 5) and g.ids == (1, 2) and len(g.timings) == 5
    assert g.notes == ("3 repeats (3, 4 and 5) gave other tokens than the first; their times are kept, their texts are not.",)
    assert merged(made(1), made(2)).notes == ("Repeat 2 gave other tokens than the first; its time is kept, its text is not.",)


def test_nothing_to_draft_is_a_plain_run_with_the_draft_loaded():
    events, error = heard("compare", both())
    run, request = REQUESTS["compare"]
    asked = CompareRequest("t1 t2", "v", "d", raw=True, settings=Settings(gamma=0, max_tokens=12))
    made = list(run(asked, lambda name, *_: both()[name]))[-1].run
    assert made.speculative.ids == made.plain.ids and not any(r.proposed for r in made.speculative.rounds)
    assert error is None and made.models["draft"] and {r.closing for r in made.speculative.rounds} == {"plain"}
    from engine.analysis.metrics import metrics
    assert metrics(made)["acceptance_rate"] is None and metrics(made)["reasons"]["acceptance_rate"]


def test_a_round_says_what_was_asked_for_and_why_it_is_shorter():
    flat = lambda held: [0.0] * WIDTH if len(held) % 3 == 0 else noise(WIDTH, scale=20)(held)
    draft = ScriptedModel(flat, WIDTH)
    made = decoded(ScriptedModel(noise(WIDTH), WIDTH), draft, (1, 2), Settings(gamma=5, max_tokens=30, entropy_stop=0.9))
    assert {r.asked for r in made.rounds} == {5}
    for r in made.rounds:
        assert (r.cut is None) == (len(r.proposed) == 5) and r.cut in (None, "entropy", "room")
    assert {"entropy", "room"} <= {r.cut for r in made.rounds}
    plain = decoded(ScriptedModel(path((1,), (2, 3), WIDTH), WIDTH), None, (1,), Settings(max_tokens=2))
    assert {(r.asked, r.cut) for r in plain.rounds} == {(None, None)}
