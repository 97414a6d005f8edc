"""What a model costs, from the shapes of its weights alone: parameters, FLOPs a token, memory of its KV cache.

FLOPs per token = 2 × the elements of every weight *matrix* a token is multiplied by (one multiplication, one addition).
Biases and norms are not matrices. An input embedding is looked up, not multiplied: it does not count, unless the head
is tied to it, then it counts once, as the head. Of a mixture of experts only the experts a token visits count. Attention
over the context (which grows with it) is left out, as is usual. So counted, Qwen2.5-0.5B takes 987,922,432 and
Qwen2.5-3B 6,171,394,048.
"""

from __future__ import annotations

from typing import Any, Mapping

from engine.models.config_fields import text_config
from engine.models.weights import elements

Shapes = Mapping[str, tuple[int, ...]]

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "tok_embeddings.weight",
               "token_embd.weight", "embeddings.weight")
_POSITIONS = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight", "position_embd.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
_OTHER_SENSES = ("vision", "visual", "audio")


def tied_head(shapes: Shapes, config: Mapping[str, Any]) -> bool:
    """Whether the head is the input embedding: there is no head of its own, or the config says its copy is one."""
    text = text_config(config)
    said = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return said is True or not any(_is_head(name) for name in shapes)


def parameters(shapes: Shapes, config: Mapping[str, Any]) -> int:
    """Weights of the text model, biases and norms too; a tied head counts once."""
    tied = tied_head(shapes, config)
    return sum(elements(shape) for name, shape in _text(shapes) if not (tied and _is_head(name)))


def flops_per_token(shapes: Shapes, config: Mapping[str, Any]) -> int:
    """2 × the matrix elements a token passes through; see the top of this file."""
    tied = tied_head(shapes, config)
    share = _experts_visited(text_config(config))
    total = 0.0
    for name, shape in _text(shapes):
        if len(shape) < 2 or _ends(name, _POSITIONS) or (tied and _is_head(name)) or (not tied and _ends(name, _EMBEDDINGS)):
            continue
        routed = (".experts." in name or "_exps." in name) and "shared" not in name
        total += elements(shape) * (share if routed else 1.0)
    return 2 * round(total)


def rows(shapes: Shapes) -> int | None:
    """Rows of the input embedding: how many ids the text model can read; None where it cannot be told."""
    found = [shape[0] for name, shape in _text(shapes) if len(shape) == 2 and _ends(name, _EMBEDDINGS)]
    return max(found, default=None)


def kv_cache_bytes(facts: Mapping[str, Any], tokens: int, dtype_bytes: int) -> int:
    """Keys and values of `tokens` positions in every layer (a sliding window would need less)."""
    return 2 * facts["layers"] * facts["kv_heads"] * facts["head_dim"] * tokens * dtype_bytes


def working_bytes(facts: Mapping[str, Any], tokens: int, dtype_bytes: int) -> int:
    """Rough peak of the activations while `tokens` positions are read at once, and of 16 rows of float32 scores three times over."""
    return tokens * (8 * facts["width"] + 3 * facts["intermediate"]) * dtype_bytes + 3 * 16 * facts["vocabulary"] * 4


def dimensions(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes a forecast needs, under one set of names whatever the family calls them; None or 0 where unstated."""
    c = text_config(config)
    width = _first(c, "hidden_size", "n_embd", "d_model", "dim") or 0
    heads = _first(c, "num_attention_heads", "n_head", "n_heads") or 1
    return {
        "layers": _first(c, "num_hidden_layers", "n_layer", "n_layers") or 0,
        "width": width,
        "heads": heads,
        "kv_heads": _first(c, "num_key_value_heads", "n_head_kv") or heads,
        "head_dim": _first(c, "head_dim") or width // heads,
        "intermediate": _first(c, "intermediate_size", "n_inner", "ffn_dim", "d_ff") or 4 * width,
        "vocabulary": _first(c, "vocab_size") or 0,
        "context": _first(c, "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
    }


def _first(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _experts_visited(config: Mapping[str, Any]) -> float:
    visited = _first(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk")
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts")
    return visited / experts if visited and experts else 1.0


def _text(shapes: Shapes):
    return ((name, shape) for name, shape in shapes.items() if not any(word in name for word in _OTHER_SENSES))


def _is_head(name: str) -> bool:
    return _ends(name, _HEADS) or name == "output.weight"


def _ends(name: str, endings: tuple[str, ...]) -> bool:
    return any(name == e or name.endswith("." + e) for e in endings)
