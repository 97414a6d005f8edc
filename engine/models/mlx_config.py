"""What a model's config says, in the words that mlx-lm's model files understand.

transformers and mlx-lm read the same config.json, and where a key is missing, or goes by a newer name, each takes a
default of its own: a RoPE base of 10,000, a tied head, another soft cap. The text stays fluent and the logits are wrong.
So transformers' reading is the one that counts: every key that mlx-lm knows and the file lacks is handed over from it,
RoPE under all names, and what mlx-lm has no words for is refused or limits how far a text is read.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from engine.errors import RequestError

SWISH = ("silu", "swish")  # what mlx-lm's `swiglu` computes, whatever the config asks for
LONGEST = 1 << 30
OTHER_NAMES = {"n_ctx": "max_position_embeddings", "block_dim": "hidden_size"}  # mlx-lm's on the left


def overrides(raw: Mapping[str, Any], read: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Keys to lay over config.json. `raw`: the file; `read`: transformers' reading of it, under all its names; `known`: the
    fields of mlx-lm's class, with their types.

    RequestError where the two cannot be brought together.
    """
    said = {**read, **{ours: read[theirs] for ours, theirs in OTHER_NAMES.items() if theirs in read}}
    found = {key: said[key] for key in known if key in said and key not in raw and key != "model_type"}
    found.update({key: value for key, value in rope(read).items() if key in known})
    if "sliding_window_pattern" in known and read.get("layer_types"):
        letters = "str" in str(known["sliding_window_pattern"])
        found["sliding_window_pattern"] = _letters(read["layer_types"]) if letters else _pattern(read["layer_types"])
    if "text_config" in known and isinstance(raw.get("text_config"), Mapping) and isinstance(read.get("text_config"), Mapping):
        inner = {key: value for key, value in read["text_config"].items() if key not in raw["text_config"]}
        found["text_config"] = {**raw["text_config"], **inner, **rope(read["text_config"])}
    return found


def rope(read: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' `rope_parameters` under the older names too: rope_theta, rope_scaling, partial_rotary_factor (GPT-NeoX:
    rotary_emb_base, rotary_pct), and for networks whose sliding layers turn otherwise, rope_local_base_freq."""
    parameters = read.get("rope_parameters")
    if not isinstance(parameters, Mapping) or not parameters:
        return {}
    local = parameters.get("sliding_attention")
    full = parameters.get("full_attention", local) if isinstance(local, Mapping) or "full_attention" in parameters else parameters
    said: dict[str, Any] = {"rope_parameters": dict(parameters)}
    if "rope_theta" in full:
        said["rope_theta"] = said["rotary_emb_base"] = full["rope_theta"]
    if isinstance(local, Mapping) and "rope_theta" in local:
        said["rope_local_base_freq"] = local["rope_theta"]
    if full.get("partial_rotary_factor") is not None:
        said["partial_rotary_factor"] = said["rotary_pct"] = full["partial_rotary_factor"]
    kind = full.get("rope_type", "default")
    scaling = {**{k: v for k, v in full.items() if k not in ("rope_theta", "partial_rotary_factor")}, "type": kind, "rope_type": kind}
    if kind == "longrope":
        # mlx-lm turns every key by the long factors. The text is read up to its original length, where the short ones hold.
        scaling["long_factor"] = scaling.get("short_factor")
        if full.get("original_max_position_embeddings"):
            said["original_max_position_embeddings"] = full["original_max_position_embeddings"]
    said["rope_scaling"] = None if kind == "default" else scaling
    return said


def bases(read: Mapping[str, Any]) -> set[float]:
    """Every RoPE base the config names; empty where it names none."""
    parameters = read.get("rope_parameters")
    if not isinstance(parameters, Mapping):
        return set()
    parts = [part for part in parameters.values() if isinstance(part, Mapping)] or [parameters]
    return {float(part["rope_theta"]) for part in parts if part.get("rope_theta") is not None}


def require_same_turn(title: str, wanted: set[float], taken: Sequence[float]) -> None:
    """RequestError if a layer of the loaded network turns its keys by a base that the config does not name."""
    wrong = sorted(base for base in {float(b) for b in taken} if wanted and all(abs(base - w) > 1e-6 * w for w in wanted))
    if wrong:
        raise RequestError(f"mlx-lm reads {title} with the RoPE base {wrong[0]:,.0f} where its config.json says "
                           f"{min(wanted):,.0f}, and its answers would be wrong; choose the torch backend.")


def require_activation(title: str, read: Mapping[str, Any], swiglu: bool) -> None:
    """RequestError if mlx-lm's file computes SwiGLU and the config asks for another activation."""
    asked = read.get("hidden_act") or read.get("hidden_activation")
    if swiglu and isinstance(asked, str) and asked not in SWISH:
        raise RequestError(f"mlx-lm computes silu in every {read.get('model_type')} network, and {title} asks for {asked}; "
                           "choose the torch backend.")


def sliding(read: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """For each layer how many keys a query sees by the config (itself included); None: all before it."""
    window = read.get("sliding_window")
    if not isinstance(window, int) or read.get("use_sliding_window") is False:
        return (None,) * layers
    kinds = read.get("layer_types") or ["sliding_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def context(read: Mapping[str, Any]) -> int | None:
    """How many positions a text may have: the config's limit, under longrope the original length (as in the torch adapter)."""
    limit, parameters = read.get("max_position_embeddings"), read.get("rope_parameters")
    if not isinstance(parameters, Mapping) or parameters.get("rope_type") != "longrope":
        return limit
    original = parameters.get("original_max_position_embeddings") or read.get("original_max_position_embeddings") or limit
    return original if limit is None else min(limit, original)


def limited(context: int | None, wanted: Sequence[int | None], masked: Sequence[int | None]) -> int | None:
    """The context cut to where every layer of the loaded network (`masked`) sees what the config wants (`wanted`): up to
    the smaller window of a layer on which they differ, nothing has yet been hidden from anybody."""
    apart = [min(a or LONGEST, b or LONGEST) for a, b in zip(wanted, masked) if a != b]
    return min([*apart, *([] if context is None else [context])], default=None)


def _letters(kinds: Sequence[str]) -> str:
    """mlx-lm's sliding_window_pattern in letters: L slides, G sees everything."""
    return "".join("L" if kind == "sliding_attention" else "G" for kind in kinds)


def _pattern(kinds: Sequence[str]) -> int:
    """mlx-lm's sliding_window_pattern n: every n-th layer sees everything."""
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    n = full[0] + 1 if full else len(kinds) + 1
    if [i for i in range(len(kinds)) if (i + 1) % n == 0] != full:
        raise RequestError("The layers of this network slide in an order that mlx-lm does not know; choose the torch backend.")
    return n
