"""Time and memory of a reading told before it, and its peak measured while it runs."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention import peak
from engine.attention.forecast import (CHUNK_BYTES, NEAR_LIMIT, Pace, chunk_queries, duration, forecast, near_bytes, size, work)
from engine.models.torch_sums import Reading
from engine.trace.sinks import NEAR

LARGE = dict(layers=36, heads=16, kv_heads=16, head_dim=128, width=2048, flops_per_token=6_171_394_048)
SMOLLM2 = dict(layers=30, heads=9, kv_heads=3, head_dim=64, width=576, flops_per_token=269_000_000)


def test_a_reading_takes_a_sliver_of_what_all_matrices_would():
    """AT-02: 36 layers of 16 heads at 4,096 tokens: 18 GiB as matrices in half precision; here the sums, their band and a chunk."""
    f = forecast(LARGE, 4096, dtype_bytes=2)
    assert f.matrix_bytes == 19_327_352_832
    assert f.sums_bytes == 36 * 16 * 4096 * 4 and f.near_bytes == 36 * 16 * 4096 * NEAR * 2 and f.near_kept
    assert f.extra_bytes < f.matrix_bytes / 40
    twice = forecast(LARGE, 8192, dtype_bytes=2)
    assert twice.matrix_bytes == 4 * f.matrix_bytes and twice.extra_bytes < 2.2 * f.extra_bytes


def test_the_forecast_is_what_the_arrays_are():
    reading = Reading(2, 100)
    for _ in range(2):
        reading.take(torch.randn(3, 100, 8), torch.randn(1, 100, 8))
    sums = reading.sums()
    f = forecast(dict(layers=2, heads=3, kv_heads=1, head_dim=8, width=24, flops_per_token=1000), 100)
    assert (f.sums_bytes, f.near_bytes) == (sums.received.nbytes, sums.near.nbytes)


def test_past_the_limit_near_queries_are_not_counted():
    longest = next(n for n in range(1000, 100_000, 1000) if near_bytes(36, 16, n) > NEAR_LIMIT)
    over, under = forecast(LARGE, longest), forecast(LARGE, longest - 1000)
    assert under.near_kept and not over.near_kept and over.extra_bytes < under.extra_bytes


@given(heads=st.integers(1, 128), tokens=st.integers(1, 10**6))
def test_a_chunk_stays_within_its_bytes_or_is_the_smallest(heads, tokens):
    rows = chunk_queries(heads, tokens)
    assert 16 <= rows <= 128 and rows & (rows - 1) == 0
    assert rows == 16 or rows * heads * tokens * 4 <= CHUNK_BYTES


def test_time_is_told_from_the_last_reading_or_not_at_all():
    unknown = forecast(SMOLLM2, 1000)
    assert unknown.seconds is None and "not known yet: the first run measures it" in unknown.sentence
    told = forecast(SMOLLM2, 2000, Pace(1000, 2.0))
    assert 4.0 < told.seconds < 8.0  # more than twice as long: attention grows with the square
    assert told.sentence.startswith("2,000 tokens: ") and told.sentence.endswith(f"about {told.seconds:.0f} s, from the last reading here")
    assert forecast(SMOLLM2, 1000, Pace(1000, 2.0)).seconds == pytest.approx(2.0)
    assert forecast(SMOLLM2, 1000, Pace(0, 2.0)).seconds is None


@given(tokens=st.integers(1, 10**6), more=st.integers(1, 10**6))
def test_longer_prompts_take_more_work(tokens, more):
    assert work(SMOLLM2, tokens + more) > work(SMOLLM2, tokens)


def test_sizes_and_times_read_well():
    assert [size(b) for b in (1, 1_500_000, 70 * 2**20, 3 * 2**30)] == ["0.1 MB", "1.4 MB", "70 MB", "3.0 GB"]
    assert [duration(s) for s in (0.2, 2.4, 89, 240)] == ["1 s", "2 s", "89 s", "4 min"]


@pytest.mark.parametrize("own_counter", [True, False])
def test_the_peak_is_seen_though_the_memory_is_given_back(own_counter, monkeypatch):
    if not own_counter:  # as on macOS
        monkeypatch.setattr(peak, "_reset", lambda: False)
    with peak.measure_peak() as measured:
        held = np.ones(25_000_000)
        time.sleep(0.1)
        del held
    assert 180e6 < measured.extra_bytes < 300e6
    with peak.measure_peak() as idle:
        pass
    assert idle.extra_bytes < 20e6
    assert not [t for t in threading.enumerate() if t.name == "peak memory"]


@pytest.mark.parametrize("own_counter", [True, False])
def test_an_error_passes_through_the_measurement(own_counter, monkeypatch):
    if not own_counter:
        monkeypatch.setattr(peak, "_reset", lambda: False)
    with pytest.raises(ValueError):
        with peak.measure_peak() as measured:
            raise ValueError
    assert measured.extra_bytes is None and not [t for t in threading.enumerate() if t.name == "peak memory"]
