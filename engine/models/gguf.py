"""GGUF files: a quick look at the header, and a conversion to safetensors that happens once.

A converted folder lies under `SPECLENS_HOME/converted/<first 16 hex digits of the file's sha256>/`. It is written
beside its place under a temporary name and renamed, so a killed process leaves no half folder, and a file lock keeps two
processes from doing the same work twice. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import shutil
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.machine import memory_available
from engine.models import home, weights
from engine.models.weights import Tensor, elements

RECORD = "speclens.json"  # in a converted folder: where it came from
SMALL = 300_000_000  # up to this many bytes a converted model may stay in float32
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_SHORT = 1024  # numbers in an array worth keeping: one a layer, not one a token


@dataclass(frozen=True)
class Header:
    """`metadata` holds scalars, strings and short arrays of numbers; of any other array its length. `tensors`: torch's order of dimensions."""

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
            "vocab_size": get("vocab_size") or self.metadata.get(_TOKENS), "max_position_embeddings": get("context_length"),
            "num_experts_per_tok": get("expert_used_count"), "num_experts": get("expert_count"),
        }
        return {k: v for k, v in found.items() if v is not None}

    @property
    def storage(self) -> str:
        """What to store the weights as. Plain floats stay what they are; blocks are exact in float32 only, which a small model gets."""
        kinds = {t.dtype for t in self.tensors.values()}
        if kinds <= set(_FLOATS):
            return next((_FLOATS[k] for k in ("BF16", "F16") if k in kinds), "float32")
        return "float32" if 4 * sum(elements(t.shape) for t in self.tensors.values()) <= SMALL else "bfloat16"

    @property
    def described(self) -> str:
        kind = weights.commonest(self.tensors)
        return self.storage if _FLOATS.get(kind) == self.storage else f"{kind} → {self.storage}"


def read_header(file: Path) -> Header:
    """Architecture, sizes and tensors of a GGUF file, in well under a second. RequestError if it is none, or is cut short."""
    return _read(file)


def read_tokens(file: Path) -> dict[str, int]:
    """The token → id map a GGUF file carries. RequestError if it carries none."""
    tokens = _read(file, keep=_TOKENS).metadata.get(_TOKENS)
    if not isinstance(tokens, tuple):
        raise RequestError(f"{file} carries no tokenizer.")
    return {token: i for i, token in enumerate(tokens)}


def sha256(file: Path) -> str:
    """The file's full sha256, remembered until it changes."""
    stat = file.stat()
    return _sha256(str(file), stat.st_size, stat.st_mtime_ns)


def converted(digest: str) -> Path | None:
    """The folder a GGUF of this sha256 was converted to before, if it is there and whole."""
    folder = home.home() / "converted" / digest[:16]
    try:
        weights.check(folder)
        return folder if record(folder).get("sha256") == digest else None
    except RequestError:
        return None


def record(folder: Path) -> dict[str, Any]:
    """What a converted folder says of its origin: source, sha256, weights. Empty for any other folder."""
    try:
        data = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return data if isinstance(data, dict) else {}
    except (OSError, ValueError):
        return {}


def convert(file: Path, expected: str | None = None) -> Path:
    """The folder of safetensors, config and tokenizer made from a GGUF file, made now if it is not there yet.

    `expected`: the full sha256 the file must have. RequestError for a damaged or unknown file, no memory, or no disk space.
    """
    from filelock import FileLock

    header = read_header(file)
    digest = sha256(file)
    if expected is not None and digest != expected:
        raise RequestError(f"{file} is not the file it should be (sha256 {digest[:12]}…, expected {expected[:12]}…); install it again.")
    ready = converted(digest)
    if ready is not None:
        return ready
    parent = home.folder("converted")
    with FileLock(parent / f".{digest[:16]}.lock"):
        ready = converted(digest)  # another process may have finished it while this one waited
        if ready is not None:
            return ready
        for stale in parent.glob(f".{digest[:16]}.*.part"):  # of a process that was killed: the lock is ours, so nobody writes there
            shutil.rmtree(stale, ignore_errors=True)
        _require_room(file, header, parent)
        temporary = Path(tempfile.mkdtemp(prefix=f".{digest[:16]}.", suffix=".part", dir=parent))
        try:
            _write(file, header, digest, temporary)
            target = parent / digest[:16]
            shutil.rmtree(target, ignore_errors=True)  # only ever a damaged one: a whole one was returned above
            os.replace(temporary, target)
            return target
        except RequestError:
            raise
        except Exception as e:  # transformers raises many kinds for a file it cannot make sense of
            if isinstance(e, OSError) and e.strerror:
                raise RequestError(f"{file} cannot be converted: {e.strerror}, under {parent}.") from None
            raise RequestError(f"{file} cannot be converted: transformers does not read this {header.architecture} GGUF ({type(e).__name__}).") from e
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _require_room(file: Path, header: Header, parent: Path) -> None:
    count = sum(elements(t.shape) for t in header.tensors.values())
    width = 4 if header.storage == "float32" else 2
    home.require_space(parent, count * width + 20_000_000, f"Converting {file.name}")
    needed, free = count * (4 + width), memory_available()
    if needed > free:
        raise RequestError(f"Converting {file.name} needs {needed / 2**30:.1f} GB of memory and {free / 2**30:.1f} GB are free; close something first.")


def _write(file: Path, header: Header, digest: str, folder: Path) -> None:
    """Read the file with transformers and save it into `folder`."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "local_files_only": True}
    plain = {}
    if hasattr(transformers, "GgufConfig"):  # newer releases may keep the blocks packed unless told not to
        plain["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**place, **plain, dtype=getattr(torch, header.storage))
    _save(model, AutoTokenizer.from_pretrained(**place), folder)

    _drop_invented_tokens(folder, header.metadata.get(_TOKENS))
    config = json.loads((folder / weights.CONFIG).read_text(encoding="utf-8"))
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:  # mlx-lm reads the older top-level key, and silently takes 10,000 without it
        config["rope_theta"] = rope["rope_theta"]
    config.pop("_model_name_or_path", None)  # the GGUF's free-text name, which is no path
    home.write_atomic(folder / weights.CONFIG, json.dumps(config, indent=2))
    home.write_atomic(folder / RECORD, json.dumps({"source": file.name, "sha256": digest, "weights": header.described,
                                                   "transformers": transformers.__version__}, indent=2))
    weights.check(folder)


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    # The model is plain floats now; with the mark of quantisation on it, save_pretrained refuses.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _drop_invented_tokens(folder: Path, size: int | None) -> None:
    """Take out the special tokens that transformers adds by default (`<|endoftext|>`) to a vocabulary that has none such.

    Their ids lie past the file's own `size` tokens, where the model has no embedding.
    """
    pipeline, settings = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("tokenizer.json", "tokenizer_config.json"))
    invented = {t["content"] for t in pipeline["added_tokens"] if size is not None and t["id"] >= size}
    if not invented:
        return
    pipeline["added_tokens"] = [t for t in pipeline["added_tokens"] if t["content"] not in invented]
    kept = {key: value for key, value in settings.items()
            if not (key.endswith("_token") and (value["content"] if isinstance(value, dict) else value) in invented)}
    home.write_atomic(folder / "tokenizer.json", json.dumps(pipeline, ensure_ascii=False))
    home.write_atomic(folder / "tokenizer_config.json", json.dumps(kept, ensure_ascii=False, indent=2))


@functools.lru_cache(maxsize=64)
def _sha256(path: str, _size: int, _modified: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read(file: Path, keep: str = "") -> Header:
    try:
        with open(file, "rb") as f:
            if f.read(4) != b"GGUF":
                raise RequestError(f"{file} is not a GGUF file, whatever its name says: it does not begin with GGUF.")
            with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as blob:
                return _parse(file, blob, keep)
    except OSError as e:
        raise RequestError(f"{file} cannot be read ({e.strerror}).") from None
    except (struct.error, UnicodeDecodeError, ValueError, KeyError, OverflowError):
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
        raise RequestError(f"{file} is one part of a GGUF split over {metadata['split.count']} files; merge them first (llama-gguf-split --merge).")

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
        raise RequestError(f"{file} is damaged: it should hold at least {start + end:,} bytes and holds {len(blob):,}; fetch it again.")
    return Header(metadata["general.architecture"], metadata, tensors)


def _string(blob: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", blob, position)
    end = position + 8 + length
    if end > len(blob):
        raise ValueError("string past the end")
    return blob[position + 8:end].decode("utf-8", errors="replace"), end


def _value(blob: mmap.mmap, position: int, kind: int, keep: bool = False) -> tuple[Any, int]:
    """One metadata value and where the next one begins. Of a long array only the length is kept unless `keep`, so a vocabulary costs little."""
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
