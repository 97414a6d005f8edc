"""From a name to a folder of weights: `bundled:NAME`, a hub id, a folder, or a `.gguf` file."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.models import bundled, causal, cost, gguf, gguf_header, hub, packed, weights

READS = "the torch engine reads folders of safetensors weights and .gguf files"


@dataclass(frozen=True)
class Source:
    """A model that lies ready to be loaded. `folder` holds config.json and safetensors, whatever the name was."""

    name: str  # as asked for
    title: str
    folder: Path
    tokenizer_folder: Path  # to read the tokenizer from; another model's for a draft that borrows its verifier's
    revision: str | None  # hub commit, or the first 12 hex digits of the weights' sha256
    weights: str  # how they are stored: "bfloat16", "Q4_1 → bfloat16"
    draft_vocabulary: Path | None = None  # file with the stored map from the draft's ids to the verifier's


def resolve(name: str) -> Source:
    """Make a model ready: download or convert it if that was never done. RequestError in one sentence if it cannot be had."""
    name = _clean(name)
    found = _find(name, network=True)
    folder = gguf.convert(found) if found.is_file() else found
    if name.startswith(bundled.PREFIX):
        folder = bundled.ready(bundled.entry(name))
    contents = weights.check(folder)
    origin = gguf.record(folder)
    if found.parent.name == "snapshots":
        revision = found.name[:40]
    else:
        revision = origin["sha256"][:12] if origin.get("sha256") else _digest(contents.files)
    vocabulary = folder / weights.DRAFT_VOCABULARY
    return Source(name, title(name), folder, _tokenizer(name, folder, contents.config), revision,
                  origin.get("weights") or contents.stored, vocabulary if vocabulary.is_file() else None)


def require(*names: str | None) -> None:
    """RequestError if one of the models cannot be had: all are looked for, and fetched from the hub, before the first is
    loaded, so that nobody waits for a large verifier to hear that the draft does not exist. None is no model."""
    for name in names:
        if name is not None:
            _find(_clean(name), network=True)


def locate(name: str) -> Path:
    """Where a model's weights lie on this machine, a folder or a .gguf file; converts nothing, asks no network.

    RequestError if it is not here, with the way to get it.
    """
    return _find(_clean(name), network=False)


def lies_here(name: str) -> bool:
    """Whether something lies at the name on this machine, whole or not."""
    name = _clean(name)
    return name.startswith(bundled.PREFIX) or _existing(name) is not None


def config(name: str) -> dict[str, Any]:
    """Cheap facts about a model on this machine, read from headers alone, in milliseconds.

    Keys: name, title, path, family, architecture, parameters, flops_per_token, tied_head, weights, bytes, draft (bool: scores only
    some of its verifier's ids), stateful (bool: layers that keep a state instead of keys), packed (bool: into few bits by MLX), and the sizes of `cost.dimensions`. RequestError if it is
    not here or is damaged.
    """
    name = _clean(name)
    place = locate(name)
    if place.is_file():
        header = gguf_header.read_header(place)
        tensors, settings, stored, size = header.tensors, header.config(), header.described, place.stat().st_size
    else:
        contents = weights.check(place)
        tensors, settings, size = contents.tensors, contents.config, contents.bytes
        stored = gguf.record(place).get("weights") or contents.stored
    shapes = packed.shapes(tensors, settings)
    return {
        "name": name, "title": title(name), "path": str(place), "family": str(settings.get("model_type", "")),
        "architecture": str((settings.get("architectures") or [settings.get("model_type", "")])[0]),
        "parameters": cost.parameters(shapes, settings), "flops_per_token": cost.flops_per_token(shapes, settings),
        "tied_head": cost.tied_head(shapes, settings), "weights": stored, "bytes": size,
        "draft": place.is_dir() and (place / weights.DRAFT_VOCABULARY).is_file(),
        "stateful": causal.stateful(settings), "packed": packed.settings(settings) is not None, **cost.dimensions(settings),
    }


def title(name: str) -> str:
    """A short name for a legend."""
    if name.startswith(bundled.PREFIX):
        return bundled.entry(name).title
    last = re.split(r"[\\/]", name.rstrip("\\/"))[-1] or name
    return last[:-5] if last.lower().endswith(".gguf") else last


def ids_by_token(name: str) -> dict[str, int]:
    """The token → id map of a model on this machine, read without converting it, and mostly without transformers. It may be kept:
    it is to be read, not changed."""
    place = reads_with(name)
    if place.is_file():
        return gguf_header.read_tokens(place)
    if (place / "tokenizer.json").is_file():
        return _ids(*_stamp(place / "tokenizer.json"))
    from engine.tokens import Vocabulary

    return Vocabulary.load(place, title(name)).ids_by_token()


def spelled(name: str) -> bool:
    """Whether `ids_by_token` needs no transformers: there is a tokenizer.json, or a .gguf file that carries the tokens."""
    place = reads_with(name)
    return place.is_file() or (place / "tokenizer.json").is_file()


def added_ids(name: str) -> frozenset[int]:
    """Ids that were added to a model's tokenizer beside its own pieces: control tokens, marks. Empty where there is no tokenizer.json."""
    found = tokenizer(name)
    return frozenset() if found is None else frozenset(found.get_added_tokens_decoder())


def tokenizer(name: str) -> Any | None:
    """The `tokenizers.Tokenizer` that a model on this machine reads with, as its tokenizer.json stands, without transformers; None
    where there is no such file. RequestError if it is damaged. Kept until the file changes: to be read, not changed."""
    file = reads_with(name) / "tokenizer.json"
    if not file.is_file():
        return None
    return _tokenizer_file(*_stamp(file))


def _stamp(file: Path) -> tuple[str, int, int]:
    stat = file.stat()
    return str(file), stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=4)
def _ids(*stamp: Any) -> dict[str, int]:
    return _tokenizer_file(*stamp).get_vocab(with_added_tokens=True)


@lru_cache(maxsize=4)
def _tokenizer_file(file: str, _size: int, _modified: int) -> Any:
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_file(file)
        found.no_truncation()
        found.no_padding()
        return found
    except Exception:  # the library raises bare Exception
        raise RequestError(f"{file} is damaged or is no tokenizer.") from None


def reads_with(name: str) -> Path:
    """The folder or .gguf file that holds a model's tokenizer."""
    place = locate(name)
    return _lender(name, place, weights.read_config(place)) or place if place.is_dir() else place


def shown(name: str) -> str:
    """A name fit for a message: on one line and not endless."""
    clean = "".join(c if c.isprintable() else "�" for c in name)
    return clean if len(clean) <= 80 else clean[:77] + "…"


def looks_like_path(name: str) -> bool:
    """Whether a name can only be meant as a path. Such a name is never sent to the hub."""
    return (name[:1] in "/.~" or "\\" in name or name.count("/") > 1 or name.lower().endswith((".gguf", ".safetensors", ".bin"))
            or re.match(r"[A-Za-z]:", name) is not None)


def _clean(name: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise RequestError("No model is named; give bundled:NAME, a hub id, a folder or a .gguf file.")
    return name.strip()


def _find(name: str, network: bool) -> Path:
    if name.startswith(bundled.PREFIX):
        return bundled.place(bundled.entry(name))
    path = _existing(name)
    if path is not None:
        return _checked_path(path)
    if looks_like_path(name):
        raise RequestError(f"There is no file or folder {shown(name)}; {READS}.")
    if not hub.is_id(name):
        raise RequestError(f"{shown(name)} is no model: give bundled:NAME, a hub id (organisation/model), a folder or a .gguf file.")
    if "/" not in name and name in bundled.TABLE:
        raise RequestError(f"There is no file, folder or hub model {name}; the bundled one is {bundled.PREFIX}{name}.")
    folder = hub.cached(name)
    if folder is None and network:
        if "/" not in name:
            raise RequestError(f"There is no file, folder or downloaded model {shown(name)}; a hub id reads organisation/model.")
        folder = hub.fetch(name)
    if folder is None:
        raise RequestError(f"{shown(name)} is not on this machine yet; it is fetched from the hub when a run first asks for it.")
    return folder


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path.absolute() if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown ~user
        return None


def _checked_path(path: Path) -> Path:
    if path.is_dir():
        weights.check(path)
        return path
    if path.suffix.lower() == ".gguf":
        gguf_header.check(path)
        return path
    if path.suffix.lower() == ".safetensors":
        raise RequestError(f"{path} is a single weights file; name the folder it lies in, with its config.json and tokenizer.")
    if path.suffix.lower() in (".bin", ".pt", ".pth", ".ckpt"):
        raise RequestError(f"{path} is a pickle, which can run code when it is opened, and is refused; {READS}.")
    raise RequestError(f"{path} is not a model; {READS}.")


def _tokenizer(name: str, folder: Path, settings: dict[str, Any]) -> Path:
    lender = _lender(name, folder, settings) or folder
    return resolve(settings[weights.TOKENIZER_REFERENCE]).folder if lender.is_file() else lender


def _lender(name: str, folder: Path, settings: dict[str, Any]) -> Path | None:
    """Where the model lies whose tokenizer this one reads with, a folder or a .gguf file; None if it reads with its own."""
    borrowed = settings.get(weights.TOKENIZER_REFERENCE)
    if borrowed is None:
        return None
    if not isinstance(borrowed, str) or borrowed == name:
        raise RequestError(f"{folder / weights.CONFIG} names no usable tokenizer ({weights.TOKENIZER_REFERENCE}).")
    lender = locate(borrowed)
    if lender.is_dir() and not weights.has_tokenizer(lender):
        raise RequestError(f"{shown(name)} borrows the tokenizer of {shown(borrowed)}, which has none of its own.")
    return lender


def _digest(files: tuple[Path, ...]) -> str:
    """First 12 hex digits of the weights' sha256; of several files, of their digests one after the other."""
    digests = [gguf.sha256(f) for f in files]
    return (digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest())[:12]
