"""Near ties in a block: what a block of rows rounds otherwise than single rows is decided by a pass of one row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.decoding import guard
from engine.trace import Sampling, Settings
from tests.decoded import decoded
from tests.scripted import ScriptedModel, ScriptedSession, noise

WIDTH = 12


class RoughSession(ScriptedSession):
    """Rows of a block are off by up to `rough`, each in its own way; a pass of one row is exact."""

    def feed(self, ids, last):
        rows = super().feed(ids, last)
        if last > 1:
            off = np.random.default_rng(self.length).uniform(-1, 1, rows.shape) * self.model.rough
            rows = rows + torch.tensor(off, dtype=rows.dtype)
        return rows


class RoughModel(ScriptedModel):
    def __init__(self, rough, **how):
        super().__init__(noise(WIDTH, 3, scale=1.0), WIDTH, **how)
        self.rough = rough

    def session(self, capacity=None):
        self.sessions.append(RoughSession(self))
        return self.sessions[-1]


def test_guarded_blocks_give_the_verifiers_own_answer_though_they_round():
    rough, settings = 0.1, Settings(gamma=4, max_tokens=120)
    plain = decoded(RoughModel(rough), None, (1, 2), settings)
    draft = ScriptedModel(noise(WIDTH, 3, scale=1.0), WIDTH)
    bare = decoded(RoughModel(rough), draft, (1, 2), settings)
    held = decoded(RoughModel(rough), draft, (1, 2), settings, slack=2 * rough)
    assert bare.ids != plain.ids  # else this test could not fail
    assert held.ids == plain.ids and held.guard == 2 * rough
    ties = [i for i, r in enumerate(held.rounds) if r.tie is not None]
    assert ties and all(0 <= held.rounds[i].tie < 2 * rough for i in ties)
    for i in ties:
        r, alone = held.rounds[i], held.rounds[i + 1]
        assert r.closing is None and r.emitted == r.proposed[: r.accepted] and set(map(r.state, range(r.accepted, len(r.proposed)))) <= {"discarded"}
        assert (alone.proposed, alone.closing, len(alone.emitted)) == ((), "plain", 1)
    assert len(held.rounds) == held.timings[0].passes and len(held.entropy) == len(held.ids) == 120


def test_a_tie_in_the_first_row_emits_nothing_and_both_caches_stay_right():
    settings = Settings(gamma=3, max_tokens=40)
    verifier, draft = ScriptedModel(noise(WIDTH), WIDTH), ScriptedModel(noise(WIDTH), WIDTH)
    made = decoded(verifier, draft, (1, 2), settings, slack=1e9)  # nothing is ever sure: every other round is plain
    assert made.ids == decoded(ScriptedModel(noise(WIDTH), WIDTH), None, (1, 2), settings).ids
    blocks = [r for r in made.rounds if r.proposed]
    assert blocks and all(r.emitted == () and r.accepted == 0 for r in blocks)


@pytest.mark.parametrize("drafter", ["lookup", "model"])
def test_sampling_is_not_guarded(drafter):
    settings = Settings(gamma=3, max_tokens=30, sampling=Sampling(1.0, seed=4))
    draft = "lookup" if drafter == "lookup" else ScriptedModel(noise(WIDTH, 5), WIDTH)
    made = decoded(ScriptedModel(noise(WIDTH), WIDTH), draft, (1, 2, 1, 2), settings, slack=1e9)
    assert made.guard is None and not any(r.tie is not None for r in made.rounds)


def test_the_slack_is_measured_on_the_model():
    exact, rough = RoughModel(0.0), RoughModel(0.05)
    assert guard.slack(exact, (1, 2, 3), 4) == 0
    measured = guard.measured(rough, (1, 2, 3), 5)
    assert 0.05 < measured < 0.2 and guard.slack(rough, (1, 2, 3), 4) == guard.SAFETY * measured
    calls = rough.calls
    assert guard.slack(rough, (9, 9), 4) == guard.SAFETY * measured and rough.calls == calls  # once a model
    assert all(s.closed for s in rough.sessions) and guard.slack(rough, (1,), 0) == 0
    assert guard.measured(RoughModel(0.1, context=4), (1, 2, 3), 5) == 0  # a context without room for a block
