"""The fields of a model's JSON files that are read here or by the engines: whether each holds what it must.

A damaged field is named with its file, before anything is loaded: the libraries would say something else, or nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

from engine.errors import RequestError

LARGEST = 2**40  # no size, length or id of a real model comes near
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "hidden_size", "n_embd", "d_model", "dim", "num_attention_heads", "n_head", "n_heads",
           "vocab_size")  # whole numbers from 1
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "head_dim", "n_inner", "ffn_dim", "d_ff", "sliding_window",
            "num_experts_per_tok", "num_local_experts", "num_experts", "n_routed_experts")  # the same, or null
_BY_LAYER = ("intermediate_size", "num_key_value_heads", "n_head_kv")  # the same, or null, or a list of one a layer
_ABOVE_ZERO = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "rotary_emb_base")
_FLAGS = ("tie_word_embeddings", "is_encoder_decoder", "is_decoder", "attention_bias", "mlp_bias", "use_sliding_window", "is_causal",
          "use_bidirectional_attention")
_OBJECTS = ("text_config", "rope_parameters", "rope_scaling", "quantization", "quantization_config")
_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_MAY_BE_ZERO = {"num_experts_per_tok", "num_local_experts", "num_experts", "n_routed_experts", "sliding_window", "intermediate_size"}
ENDS = "an id (a whole number) or a list of ids"


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language part of a config that also describes images or sound."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def json_object(file: Path) -> dict[str, Any]:
    """A JSON file that holds an object. RequestError names it if it is something else."""
    try:
        data = json.loads(file.read_bytes())
    except OSError as e:
        raise RequestError(f"{file} cannot be read ({e.strerror}).") from None
    except (ValueError, RecursionError):
        raise RequestError(f"{file} is damaged: it is not JSON.") from None
    if not isinstance(data, dict):
        raise RequestError(f"{file} is damaged: it holds no JSON object.")
    return data


def require(config: Mapping[str, Any], file: Path) -> None:
    """RequestError that names the file and the first field of a config.json that cannot be: 0 layers, a negative context, a word
    for a number."""
    for part, inside in ((config, ""), *([(config["text_config"], "text_config.")] if isinstance(config.get("text_config"), Mapping) else [])):
        for names, fits, wanted in (
                (_COUNTS, _count, "a whole number from 1"), (_LENGTHS, _length, "a whole number from 1, or null"),
                (_BY_LAYER, _by_layer, "a whole number from 1"), (_ABOVE_ZERO, _above_zero, "a number above 0"), (_FLAGS, _flag, "true or false"),
                (_OBJECTS, _object, "an object"), (("eos_token_id",), ends_fit, ENDS), (("architectures", "layer_types"), _words, "a list of names"),
                (("bos_token_id", "pad_token_id"), lambda v: v is None or _id(v), "an id (a whole number)"),
                (("dtype", "torch_dtype"), _precision, "the name of a precision"), (("hidden_act", "hidden_activation"), _word, "a name")):
            for name in names:
                if name in part and not fits(part[name]) and not (name in _MAY_BE_ZERO and part[name] == 0):
                    raise RequestError(damaged(file, inside + name, part[name], wanted))
        for name in ("rope_parameters", "rope_scaling"):
            _require_rope(part.get(name) or {}, file, inside + name)
        kinds, layers = part.get("layer_types"), part.get("num_hidden_layers")
        if isinstance(kinds, list) and whole(layers) and len(kinds) != layers:
            raise RequestError(damaged(file, inside + "layer_types", kinds, f"one name for each of the {layers} layers"))
        heads, own = part.get("num_attention_heads"), part.get("num_key_value_heads")
        if _count(heads) and _count(own) and heads % own:
            raise RequestError(damaged(file, inside + "num_key_value_heads", own, f"a divisor of the {heads} num_attention_heads"))


def require_tokenizer(said: Mapping[str, Any], file: Path) -> None:
    """The same for a tokenizer_config.json: its template, its control tokens, its class."""
    for name, fits, wanted in (("chat_template", _template, "a text, or a list of named ones"), ("tokenizer_class", _word, "a name"),
                               ("added_tokens_decoder", _by_id, "an object of tokens by their ids"), *((name, _token, "a token's text") for name in _TOKENS)):
        if name in said and not fits(said[name]):
            raise RequestError(damaged(file, name, said[name], wanted))


def _require_rope(rope: Mapping[str, Any], file: Path, name: str) -> None:
    for key, value in rope.items():
        if isinstance(value, dict):  # one for each kind of layer
            _require_rope(value, file, f"{name}.{key}")
        elif key in ("rope_theta", "factor", "partial_rotary_factor", "original_max_position_embeddings") and not _above_zero(value):
            raise RequestError(damaged(file, f"{name}.{key}", value, "a number above 0"))


def damaged(file: Path, name: str, value: Any, wanted: str) -> str:
    """The sentence for a field that cannot be."""
    told = repr(value) if not isinstance(value, (dict, list)) or len(repr(value)) <= 40 else "a list" if isinstance(value, list) else "an object"
    told = {"True": "true", "False": "false", "None": "null"}.get(told, told if len(told) <= 40 else told[:39] + "…")
    return f"{file} is damaged: {name} is {told} and must be {wanted}; fetch the file again."


def whole(value: Any) -> bool:
    """Whether a JSON value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: Any) -> bool:
    return whole(value) or isinstance(value, float)


def ends_fit(value: Any) -> bool:
    """Whether `eos_token_id` may hold this: nothing, an id, or a list of ids."""
    return value is None or _id(value) or (isinstance(value, list) and all(map(_id, value)))


def _id(value: Any) -> bool:
    return whole(value) and abs(value) <= LARGEST


def _count(value: Any) -> bool:
    return whole(value) and 1 <= value <= LARGEST


def _length(value: Any) -> bool:
    return value is None or _count(value)


def _by_layer(value: Any) -> bool:
    return _length(value) or (isinstance(value, list) and bool(value) and all(_count(v) or v == 0 for v in value))


def _above_zero(value: Any) -> bool:
    return value is None or (number(value) and 0 < value <= LARGEST)


def _flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _object(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _words(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def _word(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _precision(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.removeprefix("torch.") in (
        "auto", "float64", "float32", "float16", "bfloat16", "half", "float", "double", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"))


def _template(value: Any) -> bool:
    return value is None or isinstance(value, (str, dict)) or (isinstance(value, list) and all(isinstance(v, dict) for v in value))


def _token(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))


def _by_id(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(key.isdecimal() and isinstance(token, dict) and _token(token)
                                                             for key, token in value.items()))
