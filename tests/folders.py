"""What the tests of models share: a tiny model, a copy to damage, an empty hub cache, and how a name is refused."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from engine.errors import RequestError
from engine.models import source
from tests.toys import tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture()
def folder(tiny, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture()
def cache(tmp_path, monkeypatch) -> Path:
    """An empty hub cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def refused(name: str, within: float = 5.0) -> str:
    start = time.monotonic()
    with pytest.raises(RequestError) as e:
        source.resolve(name)
    assert time.monotonic() - start < within
    said = str(e.value)
    assert "\n" not in said and "Traceback" not in said and said.endswith(".") and len(said) < 400
    return said


def in_cache(cache: Path, tiny: Path, name: str = "org/maly", commit: str = "a" * 40) -> Path:
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    return Path(shutil.copytree(tiny, place / "snapshots" / commit))
