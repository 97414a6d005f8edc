"""The draft's copy head in MLX scores as in torch, in blocks and after rewinds too."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models import copy_head as twin
from engine.models import mlx_copy_head as subject

OTHER = 9
SHARE = torch.linspace(-3, 2, 17).sigmoid()
SHARE[0] = 0


class Rows:
    """Scores that depend on the position alone, in the words of one engine."""

    def __init__(self, array):
        self.array, self.length = array, 0

    def feed(self, ids, last):
        self.length += len(ids)
        rows = [np.random.default_rng(self.length - last + i).standard_normal(OTHER) for i in range(last)]
        return self.array(np.array(rows, dtype=np.float32)) if last else None

    def rewind(self, count):
        self.length -= count

    def close(self):
        self.length = None


def both(capacity=4):
    return (subject.CopySession(Rows(mx.array), subject.CopyHead(mx.array(SHARE.numpy()), 0.7, OTHER), capacity),
            twin.CopySession(Rows(torch.from_numpy), twin.CopyHead(SHARE, 0.7, OTHER), capacity))


def fed(sessions, ids, last):
    ours, theirs = sessions
    found, want = ours.feed(mx.array(ids, dtype=mx.int32), last), theirs.feed(torch.tensor(ids), last)
    assert ours.length == theirs.length
    if last:
        np.testing.assert_allclose(np.array(found), want.numpy(), atol=1e-5)
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3) | st.just(OTHER), min_size=6, max_size=40), st.data())
def test_blocks_single_tokens_and_rewinds_score_as_in_torch(row, data):
    sessions = both()
    split = data.draw(st.integers(1, len(row) - 1))
    fed(sessions, row[:split], data.draw(st.integers(0, min(split, 3))))
    wrong = data.draw(st.lists(st.integers(0, 2), max_size=5))
    if wrong:
        fed(sessions, wrong, 1)
        for session in sessions:
            session.rewind(len(wrong))
    for i in row[split:-1]:
        fed(sessions, [i], 1)
    fed(sessions, row[-1:], 1)


def test_a_match_gets_its_share_and_the_row_stays_a_distribution():
    sessions = both()
    fed(sessions, [1, 2, 3, 1, 2, 3], 0)
    q = np.array(mx.softmax(fed(sessions, [1], 1) / 0.7, -1))[0]
    assert np.isfinite(q).all() and abs(q.sum() - 1) < 1e-5 and q[2] > float(SHARE[4])  # four tokens match, and 2 followed
    sessions[0].close()
    assert sessions[0].inner.length is None
