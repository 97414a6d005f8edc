"""A folder of weights, looked at without loading them: is it whole, and what is in it.

Only headers are read, so a folder of many gigabytes takes milliseconds. Nothing here imports torch or transformers.
The safetensors layout is 8 bytes of little-endian header length, a JSON header, the data
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.models import causal, config_fields, generation, leftover, packed
from engine.models.config_fields import json_object

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
DRAFT_VOCABULARY = "draft_vocabulary.safetensors"  # beside a draft that scores only some of its verifier's ids
TOKENIZER_REFERENCE = "speclens_tokenizer"  # config key: this model reads with the tokenizer of the model named there
_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("spiece.model",), ("vocab.txt",),
               ("tekken.json",))
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4,
           "I64": 8, "U64": 8, "F64": 8}  # bytes of one number
_SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # small ones that the tokenizer is read with
_MAX_HEADER = 100_000_000  # the format's own bound


@dataclass(frozen=True)
class Tensor:
    dtype: str  # as the file says: BF16, F32, Q4_1, …
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Contents:
    """What a whole folder holds: `config` as read, every weight's `Tensor` by name, and the weight files."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: tuple[Path, ...]

    @property
    def bytes(self) -> int:
        return sum(f.stat().st_size for f in self.files)

    @property
    def stored(self) -> str:
        """The precision most weights are stored in, "bfloat16" say, or how MLX packed them."""
        return packed.described(self.config) or _DTYPES.get(commonest(self.tensors), commonest(self.tensors))


def check(folder: Path) -> Contents:
    """Look a model folder over. RequestError, in one sentence, names the first thing that is missing or broken, is at odds with
    another file, or makes it no causal language model."""
    config = read_config(folder)
    config_fields.require(config, folder / CONFIG)
    unfit = causal.unfit(config)
    if unfit:
        raise RequestError(f"{folder} {unfit}; {causal.WAY_OUT}.")
    generation.read(folder, config)
    for name in _SIDE_FILES:
        if (folder / name).is_file():
            said = json_object(folder / name)
            if name != _SIDE_FILES[-1]:  # which lists tokens, by their texts
                config_fields.require_tokenizer(said, folder / name)
    files = _weight_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(read_header(file))
    _require_indexed(folder, tensors)
    if not tensors:
        raise RequestError(f"{folder} has safetensors files without a single weight in them.")
    if TOKENIZER_REFERENCE not in config and not has_tokenizer(folder):
        raise RequestError(f"{folder} has weights but no tokenizer; add tokenizer.json (or tokenizer.model) from the same model.")
    leftover.require_layers(config, tensors, folder)
    return Contents(config, tensors, files)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a dict. RequestError if it is not there or is not a model's."""
    if not (folder / CONFIG).is_file():
        raise RequestError(f"{folder} has no {CONFIG}, so it is not a model folder.")
    config = json_object(folder / CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise RequestError(f"{folder / CONFIG} does not say which kind of model this is (model_type).")
    return config


def has_tokenizer(folder: Path) -> bool:
    return any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS)


def read_header(file: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file. RequestError if the file is cut short or is something else."""
    try:
        size = file.stat().st_size
        with open(file, "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise ValueError
            header = json.loads(f.read(length))
        header.pop("__metadata__", None)
        tensors = {name: Tensor(str(entry["dtype"]), _shape(entry["shape"])) for name, entry in header.items()}
        end = _laid_out({name: _shape(entry["data_offsets"]) for name, entry in header.items()}, tensors)
    except OSError as e:
        raise RequestError(f"{file} cannot be read ({e.strerror}).") from None
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise RequestError(f"{file} is damaged or is no safetensors file; fetch it again.") from None
    if 8 + length + end != size:
        raise RequestError(f"{file} is damaged: it should hold {8 + length + end:,} bytes and holds {size:,}; fetch it again.")
    return tensors


def _shape(numbers: list) -> tuple[int, ...]:
    """Whole numbers from 0, as they are. ValueError for anything else."""
    if not all(config_fields.whole(n) and n >= 0 for n in numbers):
        raise ValueError
    return tuple(numbers)


def _laid_out(spans: dict[str, tuple[int, ...]], tensors: dict[str, Tensor]) -> int:
    """Where the data end. ValueError unless each tensor takes the bytes of its shape, and they lie one behind the other."""
    end = 0
    for name, (begin, after) in sorted(spans.items(), key=lambda item: item[1]):
        width = _WIDTHS.get(tensors[name].dtype)
        if begin != end or after < begin or (width and after - begin != width * elements(tensors[name].shape)):
            raise ValueError
        end = after
    return end


def _require_indexed(folder: Path, tensors: dict[str, Tensor]) -> None:
    """RequestError if the index names a tensor that none of its files holds."""
    if (folder / SINGLE).is_file():
        return
    missing = sorted(set(json_object(folder / INDEX)["weight_map"]) - set(tensors))
    if missing:
        raise RequestError(f"{folder / INDEX} names {missing[0]}, which none of its files holds; fetch the weights again.")


def commonest(tensors: dict[str, Tensor]) -> str:
    """The storage type that most weights have."""
    count: dict[str, int] = {}
    for t in tensors.values():
        count[t.dtype] = count.get(t.dtype, 0) + elements(t.shape)
    return max(count, key=count.__getitem__)


def elements(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _weight_files(folder: Path) -> tuple[Path, ...]:
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if (folder / INDEX).is_file():
        names = json_object(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise RequestError(f"{folder / INDEX} is damaged: it has no usable weight_map.")
        files = tuple(folder / name for name in sorted(set(names.values())))
        missing = [f.name for f in files if not f.is_file()]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise RequestError(f"{folder} lacks {missing[0]}{more}, which its index names; fetch the missing weights.")
        return files
    pickles = sorted(f.name for pattern in _PICKLES for f in folder.glob(pattern))
    if pickles:
        raise RequestError(f"{folder} holds its weights only as {pickles[0]}, a pickle, which can run code when it is opened "
                           "and is refused; save them as safetensors.")
    if any(folder.glob("*.gguf")):
        raise RequestError(f"{folder} has no {SINGLE}, only GGUF files; name the .gguf file itself.")
    raise RequestError(f"{folder} has a {CONFIG} but no weights ({SINGLE}).")
