"""Per-key attention sums of one prompt, layer by layer, from queries and keys: exact weights in float32, a chunk of queries at a time."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from engine.attention.forecast import NEAR_LIMIT, chunk_queries, near_bytes, near_count
from engine.trace.sinks import NEAR_SCALE, Sums

PATIENCE = 0.2  # seconds between two calls of `progress`
TILE = (128, 512)  # queries and keys scored at once where each query's total is known: stays in a core's own cache
LOG2E = math.log2(math.e)

Progress = Callable[[float], bool]


class GivenUp(Exception):
    """`progress` said stop."""


class Unreadable(Exception):
    """This attention cannot be added up; the message says why, to follow "cannot be measured:"."""


class Reading:
    """Sums of one prompt of `length` tokens, filled layer by layer.

    `chunk`: queries scored at once, None: as many as suit a processor's cache. `near_limit`: bytes; above it `Sums.near` is None.
    """

    def __init__(self, layers: int, length: int, progress: Progress = lambda share: False, chunk: int | None = None,
                 near_limit: int = NEAR_LIMIT):
        self.layers, self.length, self.progress, self.chunk, self.near_limit = layers, length, progress, chunk, near_limit
        self.taken, self.windows, self.learned = 0, [], []
        self.n = near_count(length)
        self.received = self.near = self.near_mean = self._band = None
        self._told = time.monotonic()
        self._masks: list[tuple[Tensor, int | None]] = []

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """One layer of plain causal attention by torch's fused kernel, added up. q (H, S, d), k and v (groups, S, d) → (H, S, d)."""
        out, level = fused(q, k, v, scale)
        self.take(q, k, scale=scale, level=level)
        return out

    def take(self, q: Tensor, k: Tensor, v: Tensor | None = None, scale: float | None = None, window: int | None = None,
             cap: float | None = None, sink: Tensor | None = None, level: Tensor | None = None) -> Tensor | None:
        """Add one layer. q (H, S, d) and k (groups, S, d) as the model multiplies them, turned and normed; v (groups, S, e).

        Query i sees keys i − window + 1 … i. scale: of the scores, 1/√d by default. cap: the soft cap c of c·tanh(score / c).
        sink (H,): logits of learned sinks. level (H, S): the logarithm of each query's sum of exponentials, where the kernel
        told it (then neither window, cap nor sink). Returns the attention's output (S, H, e) in q's precision where v is given.
        """
        (heads, length, width), groups = q.shape, len(k)
        q, k = q.unflatten(0, (groups, heads // groups)), k.float().transpose(1, 2)
        rest, shift = math.frexp((width**-0.5 if scale is None else scale) / (cap or 1.0))
        rest, shift = 2 * rest, 2.0 ** (shift - 1)  # a power of two scales queries without rounding; the rest scales scores
        rows, tile = (self.chunk or chunk_queries(heads, length), length) if level is None else (self.chunk or TILE[0], TILE[1])
        rows = min(rows, length)
        self._prepare(heads, q.device)
        buffer = torch.empty(heads * rows * min(tile, length), device=q.device)
        out = None if v is None else torch.empty(heads, length, v.shape[-1], device=q.device)
        sums = torch.zeros(heads, length, dtype=self._wide, device=q.device)
        lost = torch.zeros(heads, device=q.device)
        strip = torch.empty(heads, rows, rows + self.n - 1, device=q.device)  # weights on the chunk's last keys
        for start in range(0, length, rows):
            end, first = min(start + rows, length), 0 if window is None else max(0, start - window + 1)
            part = (q[:, :, start:end].float() * shift).flatten(1, 2)
            whole = torch.zeros(heads, end - start, device=q.device)
            strip.zero_()
            for left in range(first, end, tile):
                right = min(left + tile, end)
                weights = buffer[: heads * (end - start) * (right - left)].view(groups, -1, right - left)
                with products_of(q.dtype):
                    torch.bmm(part, k[:, :, left:right], out=weights)
                each = weights.view(heads, end - start, -1)
                if level is None:
                    lost_here = _softmax(each, rest, cap, sink, start, left, window)
                    if lost_here is not None:
                        whole += lost_here
                        lost += lost_here.sum(1)
                else:
                    torch.add(level[:, start:end, None] * -LOG2E, each, alpha=rest * LOG2E, out=each).exp2_()
                    _hide_later(each, start, left, 0.0)
                sums[:, left:right] += each.sum(1)
                whole += each.sum(-1)
                near = max(left, start - self.n + 1)
                if near < right:
                    strip[:, : end - start, near - start + self.n - 1 : right - start + self.n - 1] = each[:, :, near - left :]
                if out is not None:
                    out[:, start:end] = torch.bmm(weights, v[:, left:right].float()).view(heads, end - start, -1)
            self._error = torch.maximum(self._error, (whole - 1).abs().amax())
            self._keep_near(strip, start, end)
            self._tell((self.taken + end / length) / self.layers)
        self._finish(sums, lost / length if sink is not None else None, window)
        return None if out is None else out.transpose(0, 1).to(q.dtype)

    def _prepare(self, heads: int, device: torch.device) -> None:
        """Room for the sums, once the heads and the device are known."""
        if self.received is None:
            length, n = self.length, self.n
            self._wide = torch.float32 if device.type == "mps" else torch.float64  # mps has no wider one
            self.received = torch.empty(self.layers, heads, length, device="cpu")
            if near_bytes(self.layers, heads, length) <= self.near_limit:
                self.near = torch.empty(self.layers, heads, length, n, dtype=torch.float16, device="cpu")
            self.near_mean = torch.zeros(length, n, device=device)
            self._band = torch.zeros(heads, n - 1 + length, n, device=device)
            self._error = torch.zeros((), device=device)
        if self.received.shape[1] != heads:
            raise Unreadable(f"some of its layers have {self.received.shape[1]} heads and some {heads}")
        if self.taken == self.layers:
            raise Unreadable("it looks back more often than once a layer")

    def _keep_near(self, strip: Tensor, start: int, end: int) -> None:
        """Write the strip (H, rows, rows + n − 1), whose first column is key start − n + 1, into the band at [key + n − 1, distance].

        Key and distance n − 1 − j move on with j, the key with the row too, so both sides are one strided view each.
        """
        heads, rows, wide = strip.shape
        source = strip.as_strided((heads, end - start, self.n), (rows * wide, wide + 1, 1))
        place = (self._band.stride(0), self.n, self.n - 1)
        self._band.as_strided((heads, end - start, self.n), place, start * self.n + self.n - 1).copy_(source)

    def _finish(self, sums: Tensor, lost: Tensor | None, window: int | None) -> None:
        self.received[self.taken] = sums.float()
        band = self._band[:, self.n - 1 :]
        self.near_mean.add_(band.sum(0), alpha=1 / (self.layers * len(band)))
        if self.near is not None:
            self.near[self.taken] = band.mul_(NEAR_SCALE)
        self.windows.append(window)
        self.learned.append(lost)
        self.taken += 1
        self._tell(self.taken / self.layers, True)

    def _tell(self, share: float, layer_done: bool = False) -> None:
        now = time.monotonic()
        if layer_done or now - self._told > PATIENCE:
            self._told = now
            if self.progress(share):
                raise GivenUp

    def window_of(self, mask: Tensor | None) -> int | None:
        """How many keys a query sees under a mask (…, S, S) of booleans or of added numbers; None: all before it.

        Unreadable if the mask is neither causal nor a sliding window: then keys are seen by others than we would count.
        """
        if mask is None:
            return None
        for known, window in self._masks:  # layers of one kind share a mask
            if known.data_ptr() == mask.data_ptr() and known.shape == mask.shape:
                return window
        window = band_of(mask[0, 0] if mask.dim() == 4 else mask)
        self._masks.append((mask, window))
        return window

    def sums(self) -> Sums:
        """All layers' sums, on the host."""
        learned = None
        if any(lost is not None for lost in self.learned):
            none = (0.0,) * self.received.shape[1]
            learned = tuple(none if lost is None else tuple(lost.tolist()) for lost in self.learned)
        return Sums(self.received.numpy(), None if self.near is None else self.near.numpy(), self.near_mean.cpu().numpy(),
                    tuple(self.windows), learned, float(self._error))


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor | None]:
    """Causal attention by the kernel torch chooses, (H, S, e), and each query's logarithm of its sum of exponentials (H, S)
    where that is the processor's flash kernel, which tells it."""
    few = len(q) != len(k)
    q, k, v = q[None], k[None], v[None]
    flash = q.device.type == "cpu" and torch._fused_sdp_choice(
        q, k, v, is_causal=True, scale=scale, enable_gqa=few) == int(SDPBackend.FLASH_ATTENTION)
    if not flash:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=few)[0], None
    if few:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    out, level = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    return out[0], level[0]


def _softmax(each: Tensor, rest: float, cap: float | None, sink: Tensor | None, start: int, left: int, window: int | None) -> Tensor | None:
    """Raw scores (H, rows, keys) of all keys the queries can see become weights in place. What learned sinks took (H, rows), or None."""
    if rest != 1:
        each.mul_(rest)
    if cap is not None:
        each.tanh_().mul_(cap)
    _hide_later(each, start, left, -torch.inf)
    rows, keys = each.shape[1:]
    if window is not None and start + rows > window:
        step = torch.arange(max(rows, keys), device=each.device)
        gone = step[None, : min(rows, keys)] <= step[:rows, None] + (start - window - left)  # none further right is out of the window
        each[:, :, : min(rows, keys)].masked_fill_(gone, -torch.inf)
    taken = None if sink is None else torch.sigmoid(sink.float()[:, None] - each.logsumexp(-1))
    torch.softmax(each, -1, out=each)
    if taken is not None:
        each.mul_((1 - taken)[:, :, None])
    return taken


def _hide_later(each: Tensor, start: int, left: int, value: float) -> None:
    """Fill weights of keys after their query; row 0 is query `start`, column 0 key `left`."""
    rows, keys = each.shape[1:]
    if left + keys > start + 1:
        step = torch.arange(max(rows, keys), device=each.device)
        skip = max(0, start - left)
        each[:, :, skip:].masked_fill_(step[None, skip:keys] > step[:rows, None] + (start - left), value)


@contextlib.contextmanager
def products_of(dtype: torch.dtype) -> Iterator[None]:
    """Multiply float32 copies of bfloat16 numbers as what they are: nothing is lost, sums stay float32, and a processor with
    bfloat16 products takes half the time. The switch is the whole process's, so it is thrown for one product only."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if dtype == torch.bfloat16 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def band_of(mask: Tensor) -> int | None:
    """The sliding window of a mask (S, S), None if every query sees all keys before it. Unreadable for any other pattern."""
    length, columns = mask.shape
    if length != columns:
        raise Unreadable("its queries look at keys that are not the prompt's")
    window = int(_visible(mask[-1:]).sum())
    column = torch.arange(length, device=mask.device)
    for start in range(0, length, 1024):
        row = column[start : start + 1024, None]
        if not torch.equal(_visible(mask[start : start + 1024]), (column <= row) & (column > row - window)):
            raise Unreadable("its mask is neither causal nor a sliding window")
    return None if window == length else window


def _visible(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    seen = mask == 0
    if not (seen | (mask <= torch.finfo(mask.dtype).min / 2)).all():
        raise Unreadable("its mask adds numbers of its own to the scores")
    return seen
