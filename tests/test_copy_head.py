"""The draft's copy head proposes what its training counted on, and stays one ordinary distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from engine.models.copy_head import CopyHead, CopySession
from training.samples import matches

OTHER = 9
SHARE = torch.linspace(-3, 2, 17).sigmoid()
SHARE[0] = 0


class Flat:
    """Scores every id alike; only counts."""

    length = 0

    def feed(self, ids, last):
        self.length += len(ids)
        return torch.zeros(last, OTHER) if last else None

    def rewind(self, count):
        self.length -= count


def expected(row, at):
    """The distribution after row[:at], by the training's own matches."""
    ids, lengths = matches(np.array(row), at, OTHER) if at < len(row) else matches(np.array([*row, 0]), at, OTHER)
    share = SHARE[lengths[0]]
    q = torch.full((OTHER,), 1 / OTHER) * (1 - share)
    q[ids[0]] += share
    return q


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3) | st.just(OTHER), min_size=2, max_size=40))
def test_every_position_copies_what_training_copied(row):
    session = CopySession(Flat(), CopyHead(SHARE, 0.7, OTHER), 4)
    for at in range(1, len(row) + 1):
        q = (session.feed(torch.tensor(row[at - 1 : at]), 1) / 0.7).softmax(-1)[0]
        torch.testing.assert_close(q, expected(row, at), atol=1e-5, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=6, max_size=30), st.data())
def test_blocks_and_rewinds_change_nothing(row, data):
    session = CopySession(Flat(), CopyHead(SHARE, 0.7, OTHER), 4)
    split = data.draw(st.integers(1, len(row) - 1))
    session.feed(torch.tensor(row[:split]), 0)
    wrong = data.draw(st.lists(st.integers(0, 2), max_size=5))
    if wrong:
        session.feed(torch.tensor(wrong), 1)
        session.rewind(len(wrong))
    rows = (session.feed(torch.tensor(row[split:]), len(row) - split) / 0.7).softmax(-1)
    for i, q in enumerate(rows):
        torch.testing.assert_close(q, expected(row, split + i + 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
def test_scores_are_a_distribution_at_every_temperature(temperature):
    session = CopySession(Flat(), CopyHead(SHARE, 0.7, OTHER), 4)
    scores = session.feed(torch.tensor([1, 2, 3, 1, 2, 3, 1]), 1)
    q = (scores / temperature).softmax(-1)
    assert torch.isfinite(scores).all() and q.argmax() == 2 and torch.isclose(q.sum(), torch.tensor(1.0))
