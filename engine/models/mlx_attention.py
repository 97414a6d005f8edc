"""Attention sums of one prompt in MLX, taken where mlx-lm's networks ask for attention: see `engine.models.torch_attention`.

Every network of mlx-lm calls `mx.fast.scaled_dot_product_attention` by attribute, or, where it soft-caps, works out its scores
itself and calls `mx.softmax`. Both are replaced for the length of one reading. The first hands over queries, keys, scale, mask
and learned sinks, from which the weights are worked out again a chunk of queries at a time, in float32; the second hands
over the scores as they are, caps, mask and all. On a CPU MLX has no fused kernel, so there the output comes from the same
chunks, and no S × S matrix is built.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Iterator, Sequence

import mlx.core as mx
import numpy as np

from engine.attention.forecast import NEAR_LIMIT, chunk_queries, near_bytes, near_count
from engine.errors import RequestError
from engine.trace.sinks import NEAR_SCALE, Sums

PATIENCE = 0.2  # seconds between two calls of `progress`

Progress = Callable[[float], bool]
_attention, _softmax = mx.fast.scaled_dot_product_attention, mx.softmax


class GivenUp(Exception):
    """`progress` said stop. Never leaves this file."""


class Unreadable(Exception):
    """This attention cannot be added up; the message says why. Becomes a RequestError that names the model."""


def sums(model: Any, ids: Sequence[int], progress: Progress = lambda share: False) -> Sums | None:
    """What `engine.models.base.Model.attention` promises, of an `MlxModel`."""
    if not len(ids):
        raise RequestError("An empty prompt has no attention to measure.")
    text = model.own_ids(ids)
    reading = Reading(model.facts.layers, len(text), progress)
    try:
        cache = model.caches()
        reading.known = [getattr(c, "window", None) for c in cache]
        if any(hasattr(c, "bits") for c in cache):
            raise Unreadable("its keys are kept in few bits, and weights worked out from them would not be those of the model")
        with watched(reading):
            model.network(text[None], cache=cache)  # each layer is worked out as it hands over; the scores at the end never are
        if reading.taken != reading.layers:
            raise Unreadable(f"{reading.taken} of its {reading.layers} layers have attention in the usual form")
    except GivenUp:
        return None
    except Unreadable as e:
        raise RequestError(f"The attention of {model.facts.title} cannot be measured: {e}.") from None
    finally:
        mx.clear_cache()
    return reading.sums()


@contextlib.contextmanager
def watched(reading: "Reading") -> Iterator[None]:
    """Every layer's attention goes through `reading`; MLX's own functions are put back whatever happens."""

    def attention(q, k, v, *, scale, mask=None, sinks=None, **others):
        return reading.take(q, k, v, scale, mask, sinks)

    def softmax(a, axis=None, **others):
        out = _softmax(a, axis, **others)
        if a.ndim >= 4 and axis in (-1, a.ndim - 1) and a.shape[-2:] == (reading.length, reading.length):
            reading.take_weights(out)
        return out

    mx.fast.scaled_dot_product_attention, mx.softmax = attention, softmax
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention, mx.softmax = _attention, _softmax


class Reading:
    """Sums of one prompt of `length` tokens, filled layer by layer. `chunk`: queries at once, None: by the size of a cache."""

    def __init__(self, layers: int, length: int, progress: Progress = lambda share: False, chunk: int | None = None,
                 near_limit: int = NEAR_LIMIT):
        self.layers, self.length, self.progress, self.chunk, self.near_limit = layers, length, progress, chunk, near_limit
        self.taken, self.windows, self.learned, self.error = 0, [], [], 0.0
        self.known: list[int | None] = []  # windows of the layers' caches, which show in no mask of a short prompt
        self.n = near_count(length)
        self.received = self.near = self.near_mean = None
        self._told = time.monotonic()
        self._fused = mx.default_device().type != mx.cpu

    def take(self, q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any = None, sinks: mx.array | None = None) -> mx.array:
        """Add one layer and return its attention's output. q (1, H, S, d), k (1, groups, S, d), v (1, groups, S, e), as the
        network multiplies them, turned and normed; `sinks` (H,): logits of learned sinks."""
        _, heads, length, width = q.shape
        groups, per = k.shape[1], heads // k.shape[1]
        if length != self.length or k.shape[2] != length or q.shape[0] != 1:
            raise Unreadable("its queries look at keys that are not the prompt's")
        window = self.window_of(mask)
        queries, values = (q[0].astype(mx.float32) * scale).reshape(groups, per, length, width), v[0].astype(mx.float32)
        keys = mx.contiguous(k[0].astype(mx.float32).transpose(0, 2, 1))  # (groups, d, S)
        logits = None if sinks is None else sinks.astype(mx.float32).reshape(groups, per, 1)
        layer, outputs = Layer(self, heads), []
        for start, end in self.chunks(heads):
            rows, first = end - start, 0 if window is None else max(0, start - window + 1)
            scores = (queries[:, :, start:end].reshape(groups, per * rows, width) @ keys[:, :, first:end]).reshape(groups, per, rows, end - first)
            query, key = mx.arange(start, end)[:, None], mx.arange(first, end)[None]
            hidden = key > query if window is None else (key > query) | (key <= query - window)
            scores = mx.where(hidden, -mx.inf, scores)
            weights, lost = _softmax(scores, -1), None
            if logits is not None:
                lost = mx.sigmoid(logits - mx.logsumexp(scores, -1))  # share of the learned sink (groups, per, rows)
                weights = weights * (1 - lost)[..., None]
                lost = lost.reshape(heads, rows)
            layer.add(weights.reshape(heads, rows, end - first), start, first, lost)
            if not self._fused:
                out = (weights.reshape(groups, per * rows, end - first) @ values[:, first:end]).reshape(heads, rows, -1)
                mx.eval(out)
                outputs.append(out)
            self.tell((self.taken + end / length) / self.layers)
        self.finish(layer, window, sinks is not None)
        if self._fused:
            return _attention(q, k, v, scale=scale, mask=mask, **({} if sinks is None else {"sinks": sinks}))
        return mx.concatenate(outputs, 1)[None].astype(q.dtype)

    def take_weights(self, weights: mx.array) -> None:
        """Add one layer whose network worked out its own weights (1, …, S, S)."""
        each = weights.reshape(-1, self.length, self.length).astype(mx.float32)
        mx.eval(each)
        seen = np.array(each[0] > 0)
        window = band_of(seen, exact=False)
        layer = Layer(self, len(each))
        for start, end in self.chunks(len(each)):
            layer.add(each[:, start:end, :end], start, 0, None)
            self.tell((self.taken + end / self.length) / self.layers)
        self.finish(layer, window, False)

    def chunks(self, heads: int) -> Iterator[tuple[int, int]]:
        step = min(self.chunk or chunk_queries(heads, self.length), self.length)
        return ((start, min(start + step, self.length)) for start in range(0, self.length, step))

    def finish(self, layer: "Layer", window: int | None, learned: bool) -> None:
        if self.received is None:
            self.received = np.empty((self.layers, layer.heads, self.length), np.float32)
            self.near_mean = np.zeros((self.length, self.n), np.float32)
            if near_bytes(self.layers, layer.heads, self.length) <= self.near_limit:
                self.near = np.empty((self.layers, layer.heads, self.length, self.n), np.float16)
        if self.received.shape[1] != layer.heads:
            raise Unreadable(f"its layers have {self.received.shape[1]} and {layer.heads} heads")
        if self.taken == self.layers:
            raise Unreadable(f"its {self.layers} layers ask for attention more than once")
        band = layer.band[:, self.n - 1 :]
        self.received[self.taken] = layer.sums
        self.near_mean += band.sum(0) / (self.layers * layer.heads)
        if self.near is not None:
            self.near[self.taken] = band * NEAR_SCALE
        self.error = max(self.error, layer.error)
        self.windows.append(window or (self.known[self.taken] if self.taken < len(self.known) else None))
        self.learned.append(tuple((layer.lost / self.length).tolist()) if learned else None)
        self.taken += 1
        self.tell(self.taken / self.layers, True)

    def tell(self, share: float, layer_done: bool = False) -> None:
        now = time.monotonic()
        if layer_done or now - self._told > PATIENCE:
            self._told = now
            if self.progress(share):
                raise GivenUp

    def window_of(self, mask: Any) -> int | None:
        """How many keys a query sees under what the network gave as a mask; None: all before it."""
        if isinstance(mask, str) and mask == "causal" or mask is None and self.length == 1:
            return None
        if mask is None:
            raise Unreadable("it is not causal: each token looks at those after it")
        if not isinstance(mask, mx.array) or mask.shape[-2:] != (self.length, self.length):
            raise Unreadable("its mask is of a kind we do not know")
        mask = mask.reshape(-1, self.length, self.length)[0]
        if mask.dtype == mx.bool_:
            return band_of(np.array(mask))
        added = np.array(mask.astype(mx.float32))
        seen = added == 0
        if not (seen | (added <= -1e4)).all():
            raise Unreadable("its mask adds numbers of its own to the scores")
        return band_of(seen)

    def sums(self) -> Sums:
        """All layers' sums, on the host."""
        learned = None
        if any(lost is not None for lost in self.learned):
            learned = tuple(lost if lost is not None else (0.0,) * self.received.shape[1] for lost in self.learned)
        return Sums(self.received, self.near, self.near_mean, tuple(self.windows), learned, self.error)


class Layer:
    """One layer's sums while its chunks come in. `band` (H, n − 1 + S, n) holds at [key + n − 1, distance] the attention of the
    query that far behind the key."""

    def __init__(self, reading: Reading, heads: int):
        self.heads, self.n, self.error = heads, reading.n, 0.0
        self.sums = np.zeros((heads, reading.length))
        self.lost = np.zeros(heads)
        self.band = np.zeros((heads, reading.n - 1 + reading.length, reading.n), np.float32)

    def add(self, weights: mx.array, start: int, first: int, lost: mx.array | None) -> None:
        """Queries from `start` on, on keys from `first` on: weights (H, rows, keys), and what a learned sink took (H, rows)."""
        _, rows, keys = weights.shape
        n, wide = self.n, rows + self.n - 1
        received, whole = weights.sum(1), weights.sum(-1)
        last = weights[:, :, max(0, keys - wide) :]
        mx.eval(received, whole, last)
        self.sums[:, first : first + keys] += np.array(received)
        whole = np.array(whole)
        if lost is not None:
            lost = np.array(lost)
            self.lost += lost.sum(1)
            whole = whole + lost
        self.error = max(self.error, float(np.abs(whole - 1).max()))
        # Along the last columns (padded where there are fewer keys) the key grows with the row and with the column: the
        # n keys up to each query are a diagonal stripe, and so is their place in the band.
        last = np.ascontiguousarray(np.pad(np.array(last), ((0, 0), (0, 0), (wide - last.shape[-1], 0))))
        a, b, c = last.strides
        stripe = np.lib.stride_tricks.as_strided(last, (self.heads, rows, n), (a, b + c, c))
        a, b, c = self.band.strides
        place = np.lib.stride_tricks.as_strided(self.band[:, start:, n - 1 :], (self.heads, rows, n), (a, b, b - c))
        place[:] = stripe


def band_of(seen: np.ndarray, exact: bool = True) -> int | None:
    """The sliding window of a mask (S, S) of booleans, None if every query sees all keys before it. Unreadable for any other
    pattern; not `exact`: what is seen may also have got no attention at all, so only the reach is looked at."""
    length = len(seen)
    query, key = np.indices(seen.shape, sparse=True)
    if exact:
        window = int(seen[-1].sum())
        if not np.array_equal(seen, (key <= query) & (key > query - window)):
            raise Unreadable("its mask is neither causal nor a sliding window")
    else:
        if (seen & (key > query)).any():
            raise Unreadable("it is not causal: each token looks at those after it")
        window = int((np.where(seen, query - key, 0)).max()) + 1
    return None if window >= length else window
