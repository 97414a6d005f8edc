"""A session that foresees its tokens reads ahead, and nobody can tell from what it answers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engine.models import mlx_model, mlx_session
from engine.trace import Sampling, Settings
from tests.decoded import decoded
from tests.mlx_folders import KINDS, SLIDING, WIDTH, load, save
from tests.test_mlx_model import prompt_of, scores


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{(name, seed): model}"""
    root = tmp_path_factory.mktemp("ahead")
    return {(name, seed): load(save(root / f"{i}{seed}", KINDS[name][0], seed, **KINDS[name][1]))
            for i, name in enumerate(("tied", *SLIDING)) for seed in (0, 1)}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Sessions read ahead from the second foreseen token on, also on the CPU, where it would not pay."""
    monkeypatch.setattr(mlx_session, "SURE", 2)
    monkeypatch.setattr(mlx_model, "ahead_pays", lambda: True)


def followed(session, ids, count):
    """Feed `count` tokens one by one, each the best after those before it, the first after `ids`; returns them."""
    made = []
    for _ in range(count):
        ids = [int(np.array(session.feed(ids, 1))[0].argmax())]
        made += ids
    return made


@pytest.mark.parametrize("turn", ["as foreseen", "another", "a block", "on the device", "three back", "one back"])
@pytest.mark.parametrize("name", ["tied", *SLIDING])
def test_a_text_read_ahead_goes_on_as_one_that_is_not(models, name, turn):
    model, prompt = models[name, 0], list(prompt_of(6, 5))
    session = model.session()
    session.feed(prompt[:-1], 0)
    *read, foreseen = prompt + followed(session, prompt[-1:], 6)
    assert session._inner._ahead is not None and session.length == len(read)
    back = {"three back": 3, "one back": 1}.get(turn, 0)
    if back:
        session.rewind(back)
        del read[-back:]
    other = (foreseen + 1) % WIDTH
    new = {"as foreseen": [foreseen], "a block": [foreseen, other, 7]}.get(turn, [other])
    found = session.feed(mx.array(new) if turn == "on the device" else new, len(new))
    assert session.length == len(read + new)
    assert np.abs(np.array(found) - scores(model, read + new, len(new))).max() < 1e-4
    assert np.abs(np.array(session.feed([3], 1)) - scores(model, [*read, *new, 3], 1)).max() < 1e-4  # nothing of it is left


def test_answers_are_torchs_where_all_is_foreseen_and_where_little_is(models):
    theirs = load(models["tied", 0].facts.path, "torch")
    for s in (Sampling(), Sampling(0.3, seed=2), Sampling(1.0, seed=3)):
        settings = Settings(max_tokens=30, sampling=s)
        assert decoded(models["tied", 0], None, prompt_of(7, 5), settings).ids == decoded(theirs, None, prompt_of(7, 5), settings).ids


def test_a_clock_waits_for_what_was_asked_and_no_more(models):
    model = models["tied", 0]
    session = model.session()
    followed(session, [1], 5)
    assert model.pending is not None
    model.synchronise()
    assert model.pending is None and session._inner._ahead is not None
    model.synchronise()  # with nothing handed out: for all there is


def test_a_cpu_reads_nothing_ahead(models, monkeypatch):
    monkeypatch.undo()
    session = models["tied", 0].session()
    followed(session, [1], 20)
    assert not mlx_session.ahead_pays() and session._inner._ahead is None


def test_nothing_is_read_ahead_of_a_draft_or_a_block(models, monkeypatch):
    """A draft's tokens are on the device: to know them would be to wait."""
    counts, go_on = {}, mlx_session.NetworkSession._go_on

    def counted(self, logits):
        logits = go_on(self, logits)
        counts[id(self)] = counts.get(id(self), 0) + (self._ahead is not None)
        return logits

    monkeypatch.setattr(mlx_session.NetworkSession, "_go_on", counted)
    settings = Settings(gamma=3, max_tokens=24)
    answer = decoded(models["tied", 0], models["tied", 1], prompt_of(8, 5), settings)
    assert not any(counts.values())
    assert decoded(models["tied", 0], None, prompt_of(8, 5), settings).ids == answer.ids and max(counts.values()) > 15
