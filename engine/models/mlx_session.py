"""One text read through an mlx-lm network: its caches, its rollback, and reading ahead."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx import nn

from engine.errors import RequestError
from engine.models.mlx_library import cache as mlx_cache

PREFILL = 512  # positions read at once: the scores of one block of attention must fit
APART = 8  # a block whose last rows alone are scored is cut from this many unscored ones on: the head is a large matrix
SURE = 8  # tokens in a row that were the best by the scores before them, after which a session reads ahead


class WindowCache(mlx_cache.KVCache):
    """Keeps all keys where attention slides: a window that has thrown keys away could not be rolled back. The mask limits
    what a query sees, whether or not the network's own file says how far."""

    def __init__(self, window: int):
        super().__init__()
        self.window = window

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None):
        return mlx_cache.create_attention_mask(N, self.offset, return_array, window_size or self.window)


def caches(network: nn.Module) -> list[Any]:
    """A fresh cache a layer, every rotating one replaced by one that can be rolled back."""
    return [WindowCache(c.max_size) if type(c) is mlx_cache.RotatingKVCache and not c.keep else c for c in mlx_cache.make_prompt_cache(network)]


def rewindable(network: nn.Module) -> bool:
    """False where a layer keeps a running state, or keys that it throws away or packs. Also for kinds of cache we do not know."""
    return all(type(c) in (mlx_cache.KVCache, WindowCache) for c in caches(network))


def ahead_pays() -> bool:
    """Whether a device is worth reading ahead on. MLX's queue for a CPU holds a few steps, so nothing is gained there."""
    return mx.default_device().type != mx.cpu


def width_of(network: nn.Module) -> int:
    """Columns of the logits; only shapes are worked out."""
    return network(mx.zeros((1, 1), mx.int32), cache=caches(network)).shape[-1]


class NetworkSession:
    """One text read through an mlx-lm network.

    A text that is read one token at a time, each the best by the scores before it, is read ahead: the pass over the next best
    token is on its way before anybody asks, on a stream of its own, so that the device is not idle while the token is judged
    and the next pass is put together. It is forgotten if another token comes.
    """

    def __init__(self, network: nn.Module, rows: int | None, aside: Any):
        """aside: the stream on which is read ahead."""
        self.network, self.rows, self.aside, self.length = network, rows, aside, 0
        self.cache = caches(network)
        self._best, self._streak, self._ahead = None, 0, None  # the best next token, how often it came, the scores after it

    def feed(self, ids: mx.array, last: int, token: int | None = None) -> mx.array | None:
        """See `engine.models.base.Session`. `token`: the one id of `ids`, where the host knows it already."""
        best, self._best = self._best, None
        right = token is not None and last == 1 and best is not None and best.item() == token
        self._streak = self._streak + 1 if right else 0
        if self._ahead is not None:
            logits, self._ahead = self._ahead, None
            if right:
                self.length += 1
                return self._go_on(logits)
            self._forget(1)
        logits = self._read(ids, last)
        return self._go_on(logits) if token is not None and last == 1 else logits

    def _go_on(self, logits: mx.array) -> mx.array:
        """The scores of one token, with the pass over the best next one on its way if it is likely to come."""
        with mx.stream(self.aside):
            self._best = mx.argmax(logits[0])
            if self._streak >= SURE:
                self._ahead = self._scores(self._best[None], 1)
            mx.async_eval(self._best if self._ahead is None else self._ahead)
        return logits

    def _read(self, ids: mx.array, last: int) -> mx.array | None:
        scored = len(ids)
        if not last or scored - last >= APART:
            scored = last
        for start in range(0, len(ids) - scored, PREFILL):
            self.network(ids[start : min(start + PREFILL, len(ids) - scored)][None], cache=self.cache)
            mx.async_eval([c.state for c in self.cache])  # the scores themselves are never worked out
        self.length += len(ids)
        if not last:
            return None
        logits = self._scores(ids[len(ids) - scored :], last)
        mx.async_eval(logits)
        return logits

    def _scores(self, ids: mx.array, last: int) -> mx.array:
        return self.network(ids[None], cache=self.cache)[0, -last:, : self.rows].astype(mx.float32)

    def rewind(self, count: int) -> None:
        self._forget(count if self._ahead is None else count + 1)
        self._best, self._streak, self._ahead = None, 0, None
        self.length -= count

    def _forget(self, count: int) -> None:
        # A cache that cannot be trimmed trims nothing and says so only here.
        if any(c.trim(count) != count for c in self.cache):
            raise RequestError("A layer's cache could not take the last tokens back; choose another model.")

    def close(self) -> None:
        self.cache = None
