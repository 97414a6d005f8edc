"""Runs on disk, for tests: a store in a folder of its own, runs to put there, and waiting for what comes by itself."""

import dataclasses
import time

import pytest

from cache.store import Store
from tests.sample import sample_run


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "runs")
    yield store
    store.close()


def run_number(number, **how):
    return dataclasses.replace(sample_run(number, tokens=12, repeats=1, **how), id=f"20261201-120000-{number:06x}")


def until(holds, seconds=10.0):
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, "it did not come about in time"
        time.sleep(0.01)
