"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("speclens", deadline=None)  # a shared machine is slow at times
settings.load_profile("speclens")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The bundled verifier's folder: real weights, tokenizer and chat template."""
    from engine.models.registry import resolve

    return Path(resolve("bundled:smollm2-135m").folder)
