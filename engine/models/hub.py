"""Models of the Hugging Face hub: first what lies in its local cache, then the hub itself.

Whatever goes wrong there becomes one sentence of our own. The hub's messages are never repeated, since they may quote
an access token or a signed address.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any, Callable

from engine.errors import RequestError
from engine.models import home, weights

ANSWER_SECONDS = 4.0  # how long the hub has for its first answer
PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
TOKENIZER_PATTERNS = ["config.json", "tokenizer*", "*.model", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
                      "chat_template*"]
_IGNORE = ["*/*", "consolidated*"]
_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}(/[A-Za-z0-9_][\w.\-]{0,95})?")


def is_id(name: str) -> bool:
    """Whether a name could be a hub id: organisation/model, or one of the few old ids without an organisation."""
    return _ID.fullmatch(name) is not None and "--" not in name and ".." not in name


def cached(name: str) -> Path | None:
    """The folder of a hub model in the local cache, or None. Asks no network. A half-downloaded one counts as none."""
    folder = _snapshot(name)
    return folder if folder is not None and _problem(folder) is None else None


def cached_names() -> list[str]:
    """Every model id with a folder in the local cache, whole or not."""
    from huggingface_hub import constants

    try:
        folders = [p.name for p in Path(constants.HF_HUB_CACHE).glob("models--*") if p.is_dir()]
        return sorted(name.removeprefix("models--").replace("--", "/") for name in folders)
    except OSError:
        return []


def fetch(name: str) -> Path:
    """The folder of a hub model, downloaded if the cache has no whole copy.

    RequestError, within 5 seconds, if the hub does not answer or does not give it.
    """
    from huggingface_hub import constants, snapshot_download

    folder = _snapshot(name)
    problem = _problem(folder) if folder is not None else None
    if folder is not None and problem is None:
        return folder
    try:
        info = _info(name)
    except RequestError:
        if problem is not None:
            raise RequestError(f"The local copy of {name} cannot be used, and the hub gives no other: {problem}") from None
        raise
    files = [s for s in info.siblings or [] if "/" not in s.rfilename]
    names = {s.rfilename for s in files}
    if weights.SINGLE not in names and weights.INDEX not in names:
        raise RequestError(f"The hub model {name} has no safetensors weights; other kinds are refused.")
    cache = Path(constants.HF_HUB_CACHE)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"The hub's cache folder {cache} cannot be made ({e.strerror}).") from None
    home.require_space(cache, sum(s.size or 0 for s in files if s.rfilename.endswith(".safetensors")), f"Downloading {name}")
    folder = Path(_explain(name, lambda: snapshot_download(
        name, etag_timeout=ANSWER_SECONDS, allow_patterns=PATTERNS, ignore_patterns=_IGNORE)))
    weights.check(folder)
    return folder


def tokenizer(name: str) -> Path:
    """The folder with a hub model's tokenizer: the local cache's, else its tokenizer files alone, downloaded.

    RequestError, within 5 seconds, if the hub does not answer, does not give it, or has none.
    """
    from huggingface_hub import snapshot_download

    folder = _snapshot(name)
    if folder is not None and weights.has_tokenizer(folder):
        return folder
    if not any(s.rfilename in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt") for s in _info(name).siblings or []):
        raise RequestError(f"The hub model {name} has no tokenizer.")
    return Path(_explain(name, lambda: snapshot_download(
        name, etag_timeout=ANSWER_SECONDS, allow_patterns=TOKENIZER_PATTERNS, ignore_patterns=_IGNORE)))


def _info(name: str) -> Any:
    """What the hub says of a model and its files."""
    from huggingface_hub import HfApi

    return _explain(name, lambda: _within(
        ANSWER_SECONDS, lambda: HfApi().model_info(name, files_metadata=True, timeout=ANSWER_SECONDS)))


def _snapshot(name: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=PATTERNS, ignore_patterns=_IGNORE))
    except Exception:  # anything at all means: not in the cache
        return None


def _problem(folder: Path) -> str | None:
    try:
        weights.check(folder)
        return None
    except RequestError as e:
        return str(e)


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """`ask()`, given up on after `seconds`: looking up a host name obeys no timeout of its own."""
    answer: list[Any] = []
    error: list[BaseException] = []

    def work() -> None:
        try:
            answer.append(ask())
        except BaseException as e:  # handed to the asking thread
            error.append(e)

    thread = threading.Thread(target=work, name="hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if error:
        raise error[0]
    if not answer:
        raise TimeoutError
    return answer[0]


def _explain(name: str, ask: Callable[[], Any]) -> Any:
    """`ask()`, with every failure turned into one sentence."""
    from huggingface_hub import errors

    try:
        return ask()
    except errors.GatedRepoError:
        sentence = f"The hub model {name} is gated: accept its licence on huggingface.co and log in (hf auth login)."
    except errors.RepositoryNotFoundError:
        sentence = f"The hub has no model {name} that you may see; check the spelling, or log in (hf auth login) if it is private."
    except errors.HFValidationError:
        sentence = f"{name} is not a hub id; it should read organisation/model."
    except errors.LocalEntryNotFoundError:
        sentence = _OFFLINE.format(name)
    except errors.HfHubHTTPError as e:
        status = getattr(e.response, "status_code", None)
        sentence = (f"The hub refuses access to {name}; log in there (hf auth login) and accept its licence." if status in (401, 403)
                    else f"The hub answered with an error ({status}) for {name}; try again later.")
    except OSError as e:
        sentence = f"Downloading {name} failed: no disk space is left." if e.errno == 28 else _OFFLINE.format(name)
    except Exception as e:  # the HTTP library's own kinds: no name, no route, refused, too slow
        sentence = _OFFLINE.format(name) if _is_network(e) else f"The hub model {name} could not be fetched ({type(e).__name__})."
    raise RequestError(sentence) from None


_OFFLINE = ("The model {0} is not in the local cache and the hub does not answer; check the network, "
            "or choose a bundled model, a folder or a .gguf file.")


def _is_network(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
