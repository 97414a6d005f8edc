"""Attention sums of one prompt, taken beside the model's own kernel: no S × S matrix, only a chunk of queries at a time.

A transformers network is switched for one reading to an attention function registered here. It hands the work to the
kernel the network normally uses and adds up its own exact weights, chunk by chunk. Soft-capped and learned-sink models have
no fused kernel in transformers (theirs is "eager", which builds the matrix): their output comes from the same chunks.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any, Iterator

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from engine.models.torch_sums import Reading, Unreadable

NAME = "speclens_sums"
PROBE = (1, 5, 3, 2, 7, 4, 6, 9, 8, 5, 2, 6)  # ids every vocabulary has
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
        if attention_mask is None:  # what sdpa_attention_forward would call
            return reading.attend(query[0], key[0], value[0], scaling).transpose(0, 1)[None].contiguous(), None
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
