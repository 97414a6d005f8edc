"""Attention sums of one prompt, taken beside the model's own kernel: no S × S matrix, only a chunk of queries at a time.

A transformers network is switched for one reading to an attention function registered here. It hands the work to the
kernel the network normally uses and adds up its own exact weights, chunk by chunk. Soft-capped and learned-sink models have
no fused kernel in transformers (theirs is "eager", which builds the matrix): their output comes from the same chunks.
"""

from __future__ import annotations

import contextlib
import math
import time
from contextvars import ContextVar
from typing import Any, Callable, Iterator

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from engine.attention.forecast import NEAR_LIMIT, chunk_queries, near_bytes, near_count
from engine.errors import RequestError
from engine.trace.sinks import NEAR_SCALE, Sums

NAME = "speclens_sums"
PROBE = (1, 5, 3, 2, 7, 4, 6, 9, 8, 5, 2, 6)  # ids every vocabulary has
PATIENCE = 0.2  # seconds between two calls of `progress`

Progress = Callable[[float], bool]


class GivenUp(Exception):
    """`progress` said stop. Never leaves this file."""


class Unreadable(Exception):
    """This attention cannot be added up; the message says why. Becomes a RequestError that names the model."""


class Reading:
    """Sums of one prompt of `length` tokens, filled layer by layer. `chunk`: queries at once, None: by the size of a cache."""

    def __init__(self, layers: int, length: int, progress: Progress = lambda share: False, chunk: int | None = None,
                 near_limit: int = NEAR_LIMIT):
        self.layers, self.length, self.progress, self.chunk, self.near_limit = layers, length, progress, chunk, near_limit
        self.taken, self.windows, self.learned = 0, [], []
        self.n = near_count(length)
        self.received = self.near = self.near_mean = self._band = self._scores = None
        self._told = time.monotonic()
        self._masks: list[tuple[Tensor, int | None]] = []

    def take(self, q: Tensor, k: Tensor, v: Tensor | None = None, scale: float | None = None, window: int | None = None,
             cap: float | None = None, sink: Tensor | None = None) -> Tensor | None:
        """Add one layer. q (H, S, d) and k (H or its groups, S, d) as the model multiplies them, turned and normed; v (groups, S, e).

        Query i sees keys i − window + 1 … i. scale: of the scores, 1/√d by default. cap: the soft cap c of c·tanh(score / c). sink
        (H,): logits of learned sinks. Weights are computed in float32, whatever q and k are.
        Returns the attention's output (S, H, e) in v's precision where v is given.
        """
        (heads, length, width), groups = q.shape, len(k)
        per, n, chunk = heads // groups, self.n, min(self.chunk or chunk_queries(heads, length), length)
        self._prepare(heads, q.device, groups * per * chunk * length)
        rest, shift = math.frexp((width**-0.5 if scale is None else scale) / (cap or 1.0))
        rest, shift = 2 * rest, 2.0 ** (shift - 1)  # a power of two scales queries without rounding, the rest scales scores
        q = q.unflatten(0, (groups, per))
        k = k.float().transpose(1, 2)
        v = None if v is None else v.float()
        out = None if v is None else torch.empty(groups, per, length, v.shape[-1], device=q.device)
        sums = torch.zeros(heads, length, dtype=self._wide, device=q.device)
        lost = torch.zeros(heads, device=q.device)
        steps = torch.arange(chunk, device=q.device)
        later = steps[None] > steps[:, None]  # key after the query
        for start in range(0, length, chunk):
            end = min(start + chunk, length)
            rows, first = end - start, 0 if window is None else max(0, start - window + 1)
            seen = end - first
            weights = self._scores[: heads * rows * seen].view(groups, per * rows, seen)
            part = (q[:, :, start:end].float() * shift).reshape(groups, per * rows, width)
            with products_of(q.dtype):
                torch.bmm(part, k[:, :, first:end], out=weights)
            if rest != 1:
                weights.mul_(rest)
            if cap is not None:
                weights.tanh_().mul_(cap)
            each = weights.view(heads, rows, seen)
            each[:, :, seen - rows :].masked_fill_(later[:rows, :rows], -torch.inf)
            if window is not None and end > window:
                edge = min(rows, seen)
                gone = steps[None, :edge] <= steps[:rows, None] + (start - window - first)
                each[:, :, :edge].masked_fill_(gone, -torch.inf)
            taken = None
            if sink is not None:
                taken = torch.sigmoid(sink.float()[:, None] - each.logsumexp(-1))  # share of the learned sink (H, rows)
            torch.softmax(weights, -1, out=weights)
            if taken is not None:
                each.mul_((1 - taken)[:, :, None])
                lost += taken.sum(1)
            sums[:, first:end] += each.sum(1)
            whole = each.sum(-1) if taken is None else each.sum(-1) + taken
            self._error = torch.maximum(self._error, (whole - 1).abs().amax())
            self._keep_near(each, start, n)
            if out is not None:
                out[:, :, start:end] = torch.bmm(weights, v[:, first:end]).view(groups, per, rows, -1)
            self._tell((self.taken + end / length) / self.layers)
        self._finish(sums, lost / length if sink is not None else None, window)
        return None if out is None else out.view(heads, length, -1).transpose(0, 1).to(q.dtype)

    def _prepare(self, heads: int, device: torch.device, scores: int) -> None:
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
            raise Unreadable(f"its layers have {self.received.shape[1]} and {heads} heads")
        if self._scores is None or len(self._scores) < scores:
            self._scores = torch.empty(scores, device=device)

    def _keep_near(self, each: Tensor, start: int, n: int) -> None:
        """Write weights of each query on its last n keys, (H, rows, seen), into the band at [key + n − 1, distance].

        Read along the last columns (padded where there are fewer keys): key and distance n − 1 − j grow with j and with the
        row, so both sides are one strided view and the band is filled by one copy.
        """
        heads, rows, seen = each.shape
        last = each[:, :, max(0, seen - rows - n + 1) :]
        wide = rows + n - 1
        last = torch.nn.functional.pad(last, (wide - last.shape[-1], 0)) if last.shape[-1] < wide else last.contiguous()
        source = last.as_strided((heads, rows, n), (rows * wide, wide + 1, 1))
        self._band.as_strided((heads, rows, n), (self._band.stride(0), n, n - 1), start * n + n - 1).copy_(source)

    def _finish(self, sums: Tensor, lost: Tensor | None, window: int | None) -> None:
        layer = self.taken
        self.received[layer] = sums.float()
        band = self._band[:, self.n - 1 :]
        if self.near is not None:
            torch.mul(band, NEAR_SCALE, out=band)
            self.near[layer] = band
            self.near_mean.add_(band.sum(0), alpha=1 / NEAR_SCALE / (self.layers * len(band)))
        else:
            self.near_mean.add_(band.sum(0), alpha=1 / (self.layers * len(band)))
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
        for known, window in self._masks:
            if known.data_ptr() == mask.data_ptr() and known.shape == mask.shape:
                return window
        window = band_of(mask[0, 0] if mask.dim() == 4 else mask)
        self._masks.append((mask, window))
        return window

    def sums(self) -> Sums:
        """All layers' sums, on the host."""
        learned = None
        if any(lost is not None for lost in self.learned):
            learned = tuple(tuple(lost.tolist()) if lost is not None else (0.0,) * self.received.shape[1] for lost in self.learned)
        return Sums(self.received.numpy(), None if self.near is None else self.near.numpy(), self.near_mean.cpu().numpy(),
                    tuple(self.windows), learned, float(self._error))


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


_reading: ContextVar[Reading] = ContextVar("reading")
_normal: ContextVar[str] = ContextVar("normal")
HARMLESS = ("position_ids", "cache_position")  # tensors that travel along and change no score


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
               softcap: float | None = None, s_aux: Tensor | None = None, sliding_window: int | None = None,
               is_causal: bool | None = None, **others: Any) -> tuple[Tensor, None]:
    """What transformers calls for each layer: query (1, H, S, d), key and value (1, groups, S, d) → (1, S, H, e)."""
    reading = _reading.get()
    odd = [name for name, given in others.items() if isinstance(given, Tensor) and name not in HARMLESS]
    if odd:
        raise Unreadable(f"its scores depend on more than queries and keys ({odd[0]})")
    if attention_mask is None and not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise Unreadable("it is not causal: each token looks at those after it")
    if query.shape[2] != key.shape[2]:
        raise Unreadable("its queries look at keys that are not the prompt's")
    window = reading.window_of(attention_mask)
    if window is None and isinstance(sliding_window, int) and sliding_window >= reading.length:
        window = sliding_window  # as wide as the prompt or wider: nothing is hidden yet
    if softcap is None and s_aux is None and _normal.get() == "sdpa":
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **others)
        reading.take(query[0], key[0], None, scaling, window)
        return out, None
    return reading.take(query[0], key[0], value[0], scaling, window, softcap, s_aux)[None], None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextlib.contextmanager
def switched(network: nn.Module, name: str) -> Iterator[str]:
    """The network with another attention function; gives the name of its normal one, which is put back whatever happens."""
    if not network._can_set_attn_implementation():
        raise Unreadable("its attention is written into its own code, past transformers' interface")
    configs = {id(m.config): m.config for m in network.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    try:
        network.set_attn_implementation(name)
        yield dict((id(config), was) for config, was in before)[id(network.config.get_text_config())]
    finally:
        for config, was in before:  # the whole first, its parts after: setting one sets those below it
            config._attn_implementation = was


def read(network: nn.Module, ids: Tensor, reading: Reading) -> Reading:
    """Read ids (S,) through the transformers network into `reading`. Unreadable if not every layer has attention to add up."""
    with switched(network, NAME) as normal:
        tokens = _reading.set(reading), _normal.set(normal)
        try:
            network(ids[None], use_cache=False, logits_to_keep=1)
        finally:
            _reading.reset(tokens[0])
            _normal.reset(tokens[1])
    if reading.taken != reading.layers:
        raise Unreadable(f"{reading.taken} of its {reading.layers} layers have attention in the usual form")
    return reading


def verify(network: nn.Module) -> None:
    """Compare our sums of a short probe with the network's own attention matrices. Unreadable if they disagree: then its scores
    are made in a way we do not know."""
    embedding = network.get_input_embeddings().weight
    ids = torch.tensor(PROBE, device=embedding.device) % len(embedding)
    with switched(network, "eager"):
        given = getattr(network(ids[None], use_cache=False, output_attentions=True), "attentions", None) or ()
    layers = network.config.get_text_config().num_hidden_layers
    with_attention = sum(layer is not None for layer in given)
    if with_attention != layers:
        raise Unreadable(f"{with_attention} of its {layers} layers have attention, the others keep a running state")
    ours = read(network, ids, Reading(layers, len(ids)))
    queries = torch.arange(len(ids), 0, -1)
    for mine, layer in zip(ours.received, given):
        off = (mine - layer[0].float().sum(1).cpu()).div(queries).abs()
        # In half precision two ways of rounding part from layer to layer, and single values with them.
        if not (off.amax() <= 1e-3 if network.dtype == torch.float32 else off.mean() <= 0.03):
            raise Unreadable("its own attention differs from what its queries and keys give")
