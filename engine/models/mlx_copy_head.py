"""A draft's copy head in MLX; see `engine.models.copy_head`, whose shares and temperature it takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx


class CopyHead(NamedTuple):
    """`share` (longest + 1,) is λ by length of the match, 0 for none; `other` the id that is never copied."""

    share: mx.array
    temperature: float
    other: int


def mixed(head: CopyHead, row: mx.array, read: mx.array) -> mx.array:
    """A row of scores (1, width) with the head's share. `read`: the ids read so far, behind len(share) − 1 ids of −1."""
    longest = len(head.share) - 1
    length = len(read) - longest
    if length < 2:
        return row
    # Window j ends before id j; compared with the last window from its end on.
    windows = mx.as_strided(read, (length, longest), (1, 1), 1)
    same = (windows[: length - 1] == windows[length - 1])[:, ::-1]
    matched = mx.cumprod(same.astype(mx.int32), 1).sum(1)
    after = read[longest + 1 :]  # what followed each of them
    matched = matched * (after != head.other)
    best = mx.argmax(matched * length + mx.arange(length - 1), 0, keepdims=True)  # the latest of the longest
    share = head.share[matched[best]][:, None]
    token = mx.where(after[best] == head.other, 0, after[best])[:, None]
    scores = row / head.temperature
    scores = scores - mx.logsumexp(scores, -1, keepdims=True) + mx.log1p(-share)
    copied = mx.logaddexp(mx.take_along_axis(scores, token, 1), mx.log(share))
    return mx.put_along_axis(scores, token, copied, 1) * head.temperature


class CopySession:
    """A session whose scores are mixed with the copy head's. Works on the device without waiting for it."""

    def __init__(self, inner: Any, head: CopyHead, capacity: int):
        self.inner, self.head = inner, head
        self._longest = len(head.share) - 1
        self._read = self._empty(capacity)

    def _empty(self, capacity: int) -> mx.array:
        # The text behind a margin of ids that match nothing, so that every position has a full window before it.
        return mx.full((self._longest + capacity,), -1, dtype=mx.int32)

    @property
    def length(self) -> int:
        return self.inner.length

    def feed(self, ids: mx.array, last: int) -> mx.array | None:
        start = self._longest + self.inner.length
        if start + len(ids) > len(self._read):
            old = self._read
            self._read = self._empty(2 * (start + len(ids)))
            self._read[:start] = old[:start]
        self._read[start : start + len(ids)] = ids
        logits = self.inner.feed(ids, last)
        if logits is None:
            mx.async_eval(self._read)
            return None
        end = self.inner.length
        rows = [mixed(self.head, logits[i : i + 1], self._read[: self._longest + end - last + 1 + i]) for i in range(last)]
        logits = rows[0] if last == 1 else mx.concatenate(rows)
        mx.async_eval(logits)
        return logits

    def rewind(self, count: int) -> None:
        self.inner.rewind(count)

    def close(self) -> None:
        self.inner.close()
        self._read = None
