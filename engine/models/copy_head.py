"""A draft's copy head: what followed the last time its text ended in the same tokens gets a share of the probability.

The share λ depends on how many tokens matched; it is learned with the network (`training/distil_draft.py`) and mixed in
at the temperature of that training, so the scores stay those of one ordinary distribution. A cache language model in
the sense of Grave et al. (2017), with n-gram matches in place of hidden states.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class CopyHead(NamedTuple):
    """`share` (longest + 1,) is λ by length of the match, 0 for none; `other` the id that is never copied."""

    share: Tensor
    temperature: float
    other: int


def mixed(head: CopyHead, row: Tensor, read: Tensor) -> Tensor:
    """A row of scores (1, width) with the head's share. `read`: the ids read so far, behind len(share) − 1 ids of −1."""
    longest = len(head.share) - 1
    length = len(read) - longest
    if length < 2:
        return row
    windows = read.unfold(0, longest, 1)  # window j ends before id j
    same = (windows[1:length] == windows[length]).flip(1)
    matched = same.long().cumprod(1).sum(1)
    after = read[longest + 1 :]  # what followed each of them
    matched = matched * (after != head.other)
    best = (matched * length + torch.arange(length - 1, device=row.device)).argmax(0, keepdim=True)  # the latest of the longest
    share = head.share[matched[best]][:, None]
    token = torch.where(after[best] == head.other, 0, after[best])[:, None]
    scores = (row / head.temperature).log_softmax(-1) + torch.log1p(-share)
    copied = torch.logaddexp(scores.gather(1, token), share.log())
    return scores.scatter(1, token, copied) * head.temperature


class CopySession:
    """A session whose scores are mixed with the copy head's. Works on the device without waiting for it."""

    def __init__(self, inner: Any, head: CopyHead, capacity: int):
        self.inner, self.head = inner, head
        self._longest = len(head.share) - 1
        self._read = self._empty(capacity)

    def _empty(self, capacity: int) -> Tensor:
        # The text behind a margin of ids that match nothing, so that every position has a full window before it.
        return torch.full((self._longest + capacity,), -1, dtype=torch.long, device=self.head.share.device)

    @property
    def length(self) -> int:
        return self.inner.length

    def feed(self, ids: Tensor, last: int) -> Tensor | None:
        start = self._longest + self.inner.length
        if start + len(ids) > len(self._read):
            old = self._read
            self._read = self._empty(2 * (start + len(ids)))
            self._read[:start] = old[:start]
        self._read[start : start + len(ids)] = ids
        logits = self.inner.feed(ids, last)
        if logits is None:
            return None
        end = self.inner.length
        return torch.cat([mixed(self.head, row, self._read[: self._longest + end - last + 1 + i]) for i, row in enumerate(logits.split(1))])

    def rewind(self, count: int) -> None:
        self.inner.rewind(count)

    def close(self) -> None:
        self.inner.close()
        self._read = None
