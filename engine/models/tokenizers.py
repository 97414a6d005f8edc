"""From a name to a tokenizer, without a model: `bundled:NAME`, a hub id, a folder, a tokenizer.json or a .gguf file.

Weights are neither needed nor fetched. What a GGUF file carries is turned into a tokenizer.json once, and kept under
`SPECLENS_HOME/tokenizers/<first 16 hex digits of the file's sha256>/`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from engine import interrupt
from engine.errors import RequestError
from engine.models import bundled, gguf, gguf_header, home, hub, source, weights
from engine.tokens import Vocabulary

FILE = "tokenizer.json"
READS = "a tokenizer is bundled:NAME, a hub id, a folder, a tokenizer.json or a .gguf file"


def load(name: str) -> Vocabulary:
    """The tokenizer of that name, fetched from the hub if it is not here. RequestError in one sentence if it cannot be had."""
    name = name.strip() if isinstance(name, str) else ""
    if not name:
        raise RequestError(f"No tokenizer is named; {READS}.")
    place = _find(name)
    title = place.parent.name if place.name == FILE else source.title(name)
    if place.is_dir():
        return _from_folder(place, title)
    if place.suffix.lower() == ".gguf":
        return Vocabulary.load(_from_gguf(place), title)
    return _from_file(place, title)


def _find(name: str, borrowed: bool = False) -> Path:
    """The folder or file to read the tokenizer from."""
    if name.startswith(bundled.PREFIX):
        place = bundled.place(bundled.entry(name))
        return place if place.is_file() else _own_or_lent(place, borrowed)
    path = _existing(name)
    if path is not None and path.is_dir():
        return _own_or_lent(path, borrowed)
    if path is not None:
        if path.suffix.lower() not in (".json", ".gguf"):
            raise RequestError(f"{path} is no tokenizer; {READS}.")
        return path
    if source.looks_like_path(name) or name.lower().endswith(".json"):
        raise RequestError(f"There is no file or folder {source.shown(name)}; {READS}.")
    if not hub.is_id(name) or "/" not in name:
        raise RequestError(f"There is no tokenizer {source.shown(name)}; {READS}.")
    return hub.tokenizer(name)


def _own_or_lent(folder: Path, borrowed: bool) -> Path:
    """The folder itself, or that of the model whose tokenizer this one reads with."""
    if (folder / weights.CONFIG).is_file():
        lender = weights.read_config(folder).get(weights.TOKENIZER_REFERENCE)
        if lender is not None:
            if borrowed or not isinstance(lender, str):
                raise RequestError(f"{folder / weights.CONFIG} names no usable tokenizer ({weights.TOKENIZER_REFERENCE}).")
            return _find(lender, borrowed=True)
    return folder


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path.absolute() if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown ~user
        return None


def _from_folder(folder: Path, title: str) -> Vocabulary:
    """As transformers reads it; where it cannot (no config, a class whose code is not run), its tokenizer.json as it stands."""
    try:
        return Vocabulary.load(folder, title)
    except RequestError as refusal:
        if not (folder / FILE).is_file():
            raise
        try:
            return _from_file(folder / FILE, title)
        except RequestError:
            raise refusal from None


def _from_file(file: Path, title: str) -> Vocabulary:
    """A tokenizer.json alone, exactly as it stands: no class of transformers rebuilds it."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception:  # the library raises bare Exception
        raise RequestError(f"{file} is damaged or is no tokenizer.") from None
    unknown = getattr(backend.model, "unk_token", None)
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, **({"unk_token": unknown} if unknown else {})), title)


def _from_gguf(file: Path) -> Path:
    """The folder with a GGUF's tokenizer. Takes seconds the first time, since transformers has to read the file."""
    size = len(gguf_header.read_tokens(file))
    digest = gguf.sha256(file)
    ready = gguf.converted(digest)
    if ready is not None:
        return ready
    target = home.folder("tokenizers") / digest[:16]
    if (target / FILE).is_file():
        return target
    from transformers import AutoTokenizer

    temporary = Path(tempfile.mkdtemp(prefix=f".{digest[:16]}.", suffix=".part", dir=target.parent))
    try:
        with interrupt.unfinished(temporary):
            AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True).save_pretrained(temporary)
            gguf.drop_invented_tokens(temporary, size)
        try:
            os.replace(temporary, target)
        except OSError:
            if not (target / FILE).is_file():  # else another process was faster
                raise
        return target
    except OSError as e:
        raise RequestError(f"The tokenizer in {file} cannot be kept under {target.parent} ({e.strerror or type(e).__name__}).") from None
    except Exception as e:  # transformers raises many kinds for a file it cannot make sense of
        raise RequestError(f"The tokenizer in {file} cannot be read ({type(e).__name__}).") from e
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
