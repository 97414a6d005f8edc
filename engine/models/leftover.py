"""Weights that a config does not describe: layers beyond those it counts, tensors that no part of the network takes.

A model run without some of its layers writes fluent text that is another model's. Left out of account is what many
folders hold with good reason: towers for images or sound, layers that predict several tokens ahead, buffers that are worked out
anew, and a head that is the embedding.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterable, Mapping

from engine.errors import RequestError
from engine.models.config_fields import text_config, whole

_STACK = re.compile(r"(?:^|(.*?)\.)(layers|h|blocks|blk)\.(\d+)\.")
_OTHER_SENSES = re.compile(r"vision|visual|audio|image|speech|projector|multi_modal|(^|\.)mm_")
_AHEAD = re.compile(r"(^|[._])(mtp|nextn|medusa|eagle)([._]|\d|$)")
_BUFFERS = re.compile(r"inv_freq$|rotary_emb\.|masked_bias$|\.attn\.bias$|position_ids$|attention\.bias$|(cos|sin)_cached$")
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
EVERY_LAYER = frozenset("llama mistral qwen2 qwen3 qwen2_moe qwen3_moe gemma gemma2 gemma3_text phi phi3 gpt2 gpt_neox granite olmo olmo2 "
                        "cohere cohere2 stablelm smollm3 mixtral".split())  # no layer of these is without weights
SHOWN = 3  # tensors named


def require_layers(config: Mapping[str, Any], tensors: Iterable[str], place: Path) -> None:
    """RequestError if the weights hold more layers than the config counts, or fewer where each must have some."""
    text = text_config(config)
    said = next((text[key] for key in ("num_hidden_layers", "n_layer", "n_layers") if whole(text.get(key))), None)
    stack = _stack(tensors)
    if said is None or not stack:
        return
    held = max(stack) + 1
    ahead = sum(value for key, value in text.items() if re.search("nextn|mtp", key) and whole(value) and value > 0)
    if held > said + ahead:
        first, more = _first(stack, said)
        raise RequestError(f"{place} holds the weights of {held} layers, and its config.json counts {said}: {first}{more} would not be used, and the "
                           "answers would be another model's; fetch config.json again.")
    if held < said and text.get("model_type", config.get("model_type")) in EVERY_LAYER:
        raise RequestError(f"{place} holds the weights of {held} layers, and its config.json counts {said}: those from layer {held} on, counted from "
                           "0, are missing; fetch the model again.")


def note(unused: Iterable[str], tied: bool) -> str | None:
    """A sentence on weights that the loaded network did not take, naming the first; None if all of them were to be expected."""
    odd = sorted(name for name in unused if not (_OTHER_SENSES.search(name) or _AHEAD.search(name) or _BUFFERS.search(name)
                                                 or (tied and name.endswith(_HEADS))))
    if not odd:
        return None
    more = f" and {len(odd) - SHOWN:,} more" if len(odd) > SHOWN else ""
    many = f"{len(odd):,} tensors" if len(odd) > 1 else "a tensor"
    return (f"The weights hold {many} that the model as its config.json describes it does not use: {', '.join(map(_named, odd[:SHOWN]))}{more}. "
            "Its answers may be those of another model.")


def _stack(tensors: Iterable[str]) -> dict[int, list[str]]:
    """The tensors of the text model's layers, by number: of the one stack that has most."""
    stacks: dict[str, dict[int, list[str]]] = {}
    for name in tensors:
        found = _STACK.match(name)
        if found and not _OTHER_SENSES.search(name) and not _AHEAD.search(name):
            stacks.setdefault(f"{found[1]}.{found[2]}", {}).setdefault(int(found[3]), []).append(name)
    return max(stacks.values(), key=lambda stack: sum(map(len, stack.values())), default={})


def _first(stack: Mapping[int, list[str]], said: int) -> tuple[str, str]:
    beyond = [name for n in sorted(stack) if n >= said for name in sorted(stack[n])]
    return _named(beyond[0]), f" and {len(beyond) - 1:,} more" if len(beyond) > 1 else ""


def _named(tensor: str) -> str:
    """A tensor's name as a sentence may hold it: whoever wrote the file chose it."""
    return "".join(c if c.isprintable() else "�" for c in tensor[:100])
