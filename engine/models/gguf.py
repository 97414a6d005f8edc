"""GGUF files turned into safetensors, once.

A converted folder lies under `SPECLENS_HOME/converted/<first 16 hex digits of the file's sha256>/`. It is written
beside its place under a temporary name and renamed, so a killed process leaves no half folder, and a file lock keeps two
processes from doing the same work twice.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from engine import interrupt
from engine.errors import RequestError
from engine.machine import memory_available
from engine.models import home, weights
from engine.models.gguf_header import TOKENS, Header, read_header
from engine.models.weights import elements

RECORD = "speclens.json"  # in a converted folder: where it came from


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
        for stale in parent.glob(f".{digest[:16]}.*.part"):  # left by a killed process: we hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        _require_room(file, header, parent)
        temporary = Path(tempfile.mkdtemp(prefix=f".{digest[:16]}.", suffix=".part", dir=parent))
        try:
            with interrupt.unfinished(temporary):
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
            raise RequestError(f"{file} cannot be converted: transformers does not read this {header.architecture} GGUF "
                               f"({type(e).__name__}).") from e
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _require_room(file: Path, header: Header, parent: Path) -> None:
    count = sum(elements(t.shape) for t in header.tensors.values())
    width = 4 if header.storage == "float32" else 2
    home.require_space(parent, count * width + 20_000_000, f"Converting {file.name}")
    needed, free = count * (4 + width), memory_available()
    if needed > free:
        raise RequestError(f"Converting {file.name} needs {needed / 2**30:.1f} GB of memory and {free / 2**30:.1f} GB are free; "
                           "close something first.")


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

    drop_invented_tokens(folder, header.metadata.get(TOKENS))
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


def drop_invented_tokens(folder: Path, size: int | None) -> None:
    """Take out the special tokens that transformers adds by default (`<|endoftext|>`) to a vocabulary that has none such.

    Their ids lie past the file's own `size` tokens, where the model has no embedding.
    """
    pipeline, settings = (json.loads((folder / name).read_text(encoding="utf-8"))
                          for name in ("tokenizer.json", "tokenizer_config.json"))
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
