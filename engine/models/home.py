"""Where the app keeps its own things, and how it writes them.

`SPECLENS_HOME` says where; without it the operating system's folder for application data does. Everything is written
to a temporary name beside its target and renamed, so that a reader sees the old or the new content, never half of it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Iterable

import platformdirs

from engine import interrupt
from engine.errors import RequestError


def home() -> Path:
    """The app's own folder. It is not made here: see `folder`."""
    asked = os.environ.get("SPECLENS_HOME", "").strip()
    try:
        if asked:
            return Path(asked).expanduser().absolute()
        return Path(platformdirs.user_data_dir("speclens", appauthor=False))
    except RuntimeError:  # ~somebody who does not exist
        raise RequestError(f"SPECLENS_HOME names the folder {asked}, whose owner does not exist here.") from None


def folder(name: str) -> Path:
    """`home()/name`, made if need be. RequestError if it cannot be."""
    path = home() / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"The folder {path} cannot be made ({e.strerror}); "
                           "set SPECLENS_HOME to a folder that can be written.") from None
    return path


def require_space(where: Path, needed: int, purpose: str) -> None:
    """RequestError unless the disk under the existing folder `where` has `needed` bytes free, and 5 % more."""
    free = shutil.disk_usage(where).free
    if free < needed * 1.05:
        raise RequestError(f"{purpose} needs {needed / 1e9:.2f} GB of disk space in {where}, where {free / 1e9:.2f} GB are free; "
                           "free some, or set SPECLENS_HOME to another disk.")


def write_atomic(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write `path` whole or not at all; `content` may come in parts. RequestError if the disk is full or refuses."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(4)}.part")
    try:
        with interrupt.unfinished(temporary):
            with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as f:
                f.writelines([data] if isinstance(data, bytes) else data)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RequestError(f"{path} cannot be written ({e.strerror}).") from None
