"""The header of a GGUF file: architecture, sizes, tensors and tokens, read in well under a second.

The gguf package's own reader takes seconds for a large vocabulary, and trusts the file. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.models import causal, config_fields, leftover
from engine.models.weights import Tensor, commonest, elements

SMALL = 300_000_000  # up to this many bytes a converted model may stay in float32
TOKENS = "tokenizer.ggml.tokens"
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_SHORT = 1024  # numbers in an array worth keeping: one a layer, not one a token


@dataclass(frozen=True)
class Header:
    """`metadata` holds scalars, strings and short arrays of numbers; of any other array its length.

    The shapes of `tensors` are in torch's order.
    """

    architecture: str
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def config(self) -> dict[str, Any]:
        """The sizes under the names config.json uses."""
        def get(key: str) -> Any:
            value = self.metadata.get(f"{self.architecture}.{key}")
            return max(value, default=None) if isinstance(value, tuple) else value  # one number a layer: take the largest

        found = {
            "model_type": self.architecture, "num_hidden_layers": get("block_count"), "hidden_size": get("embedding_length"),
            "num_attention_heads": get("attention.head_count"), "num_key_value_heads": get("attention.head_count_kv"),
            "head_dim": get("attention.key_length"), "intermediate_size": get("feed_forward_length"),
            "vocab_size": get("vocab_size") or self.metadata.get(TOKENS), "max_position_embeddings": get("context_length"),
            "num_experts_per_tok": get("expert_used_count"), "num_experts": get("expert_count"),
        }
        return {k: v for k, v in found.items() if v is not None}

    @property
    def storage(self) -> str:
        """What to store the weights as: plain floats as they are; blocks are exact in float32 only, which a small model gets."""
        kinds = {t.dtype for t in self.tensors.values()}
        if kinds <= set(_FLOATS):
            return next((_FLOATS[k] for k in ("BF16", "F16") if k in kinds), "float32")
        return "float32" if 4 * sum(elements(t.shape) for t in self.tensors.values()) <= SMALL else "bfloat16"

    @property
    def described(self) -> str:
        kind = commonest(self.tensors)
        return self.storage if _FLOATS.get(kind) == self.storage else f"{kind} → {self.storage}"


def read_header(file: Path) -> Header:
    """Architecture, sizes and tensors of a GGUF file, in well under a second. RequestError if it is none, or is cut short."""
    return _read(file)


def check(file: Path) -> Header:
    """The header of a file that holds a whole causal language model. RequestError names what it lacks otherwise."""
    header = _read(file)
    config = header.config()
    config_fields.require(config, file)
    unfit = causal.unfit(config)
    if unfit:
        raise RequestError(f"{file} {unfit}; {causal.WAY_OUT}.")
    leftover.require_layers(config, header.tensors, file)
    return header


def read_tokens(file: Path) -> dict[str, int]:
    """The token → id map a GGUF file carries. RequestError if it carries none."""
    tokens = _read(file, keep=TOKENS).metadata.get(TOKENS)
    if not isinstance(tokens, tuple):
        raise RequestError(f"{file} carries no tokenizer.")
    return {token: i for i, token in enumerate(tokens)}


def _read(file: Path, keep: str = "") -> Header:
    try:
        with open(file, "rb") as f:
            if f.read(4) != b"GGUF":
                raise RequestError(f"{file} is not a GGUF file, whatever its name says: it does not begin with GGUF.")
            with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as blob:
                return _parse(file, blob, keep)
    except OSError as e:
        raise RequestError(f"{file} cannot be read ({e.strerror}).") from None
    except (struct.error, ValueError, TypeError, KeyError, OverflowError, ZeroDivisionError):
        raise RequestError(f"{file} is damaged: its GGUF header cannot be read; fetch it again.") from None


def _parse(file: Path, blob: mmap.mmap, keep: str) -> Header:
    """`keep`: the one array of strings to keep whole."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    version, tensor_count, metadata_count = struct.unpack_from("<IQQ", blob, 4)
    if version not in (2, 3):
        raise RequestError(f"{file} is a GGUF of version {version}; versions 2 and 3 can be read.")
    position, metadata = 24, {}
    for _ in range(metadata_count):
        key, position = _string(blob, position)
        (kind,) = struct.unpack_from("<I", blob, position)
        metadata[key], position = _value(blob, position + 4, kind, key == keep)
    if metadata.get("split.count", 1) > 1:
        raise RequestError(f"{file} is one part of a GGUF split over {metadata['split.count']} files; "
                           "merge them first (llama-gguf-split --merge).")

    tensors, end = {}, 0
    for _ in range(tensor_count):
        name, position = _string(blob, position)
        (dimensions,) = struct.unpack_from("<I", blob, position)
        shape = struct.unpack_from(f"<{dimensions}Q", blob, position + 4)
        kind, offset = struct.unpack_from("<IQ", blob, position + 4 + 8 * dimensions)
        position += 16 + 8 * dimensions
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        tensors[name] = Tensor(GGMLQuantizationType(kind).name, tuple(reversed(shape)))
        end = max(end, offset + elements(shape) // block * size)
    if not tensors:
        raise RequestError(f"{file} holds no weights (a vocabulary alone, perhaps).")
    alignment = metadata.get("general.alignment", 32)
    start = -(-position // alignment) * alignment
    if start + end > len(blob):
        raise RequestError(f"{file} is damaged: it should hold at least {start + end:,} bytes and holds {len(blob):,}; "
                           "fetch it again.")
    return Header(metadata["general.architecture"], metadata, tensors)


def _string(blob: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", blob, position)
    end = position + 8 + length
    if end > len(blob):
        raise ValueError("string past the end")
    return blob[position + 8:end].decode("utf-8", errors="replace"), end


def _value(blob: mmap.mmap, position: int, kind: int, keep: bool = False) -> tuple[Any, int]:
    """One metadata value and where the next one begins.

    Of a long array only the length is kept unless `keep`, so a vocabulary costs little.
    """
    if kind == _STRING:
        return _string(blob, position)
    if kind != _ARRAY:
        return struct.unpack_from(_SCALARS[kind], blob, position)[0], position + struct.calcsize(_SCALARS[kind])
    inner, length = struct.unpack_from("<IQ", blob, position)
    position += 12
    if inner in _SCALARS:
        end = position + length * struct.calcsize(_SCALARS[inner])
        return (struct.unpack_from(f"<{length}{_SCALARS[inner][1]}", blob, position) if length <= _SHORT else length), end
    if keep and inner == _STRING:
        kept = []
        for _ in range(length):
            text, position = _string(blob, position)
            kept.append(text)
        return tuple(kept), position
    for _ in range(length):
        if inner == _STRING:
            (size,) = struct.unpack_from("<Q", blob, position)
            position += 8 + size
        else:
            _, position = _value(blob, position, inner)
    return length, position
