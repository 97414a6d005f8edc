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
from engine.models import packed

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
DRAFT_VOCABULARY = "draft_vocabulary.safetensors"  # beside a draft that scores only some of its verifier's ids
TOKENIZER_REFERENCE = "speclens_tokenizer"  # config key: this model reads with the tokenizer of the model named there
_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("spiece.model",), ("vocab.txt",),
               ("tekken.json",))
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
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
    """Look a model folder over. RequestError, in one sentence, names the first thing that is missing or broken."""
    config = read_config(folder)
    files = _weight_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(read_header(file))
    if not tensors:
        raise RequestError(f"{folder} has safetensors files without a single weight in them.")
    if TOKENIZER_REFERENCE not in config and not has_tokenizer(folder):
        raise RequestError(f"{folder} has weights but no tokenizer; add tokenizer.json (or tokenizer.model) from the same model.")
    return Contents(config, tensors, files)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a dict. RequestError if it is not there or is not a model's."""
    if not (folder / CONFIG).is_file():
        raise RequestError(f"{folder} has no {CONFIG}, so it is not a model folder.")
    config = _json_object(folder / CONFIG)
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
        tensors = {name: Tensor(entry["dtype"], tuple(int(n) for n in entry["shape"]))
                   for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except OSError as e:
        raise RequestError(f"{file} cannot be read ({e.strerror}).") from None
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise RequestError(f"{file} is damaged or is no safetensors file; fetch it again.") from None
    if 8 + length + end != size:
        raise RequestError(f"{file} is damaged: it should hold {8 + length + end:,} bytes and holds {size:,}; fetch it again.")
    return tensors


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
        names = _json_object(folder / INDEX).get("weight_map")
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


def _json_object(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_bytes())
    except OSError as e:
        raise RequestError(f"{file} cannot be read ({e.strerror}).") from None
    except (ValueError, RecursionError):
        raise RequestError(f"{file} is damaged: it is not JSON.") from None
    if not isinstance(data, dict):
        raise RequestError(f"{file} is damaged: it holds no JSON object.")
    return data
