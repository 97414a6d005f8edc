"""What a reading with attention sums will take, before anything is loaded: bytes from the sizes, seconds from the last reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from engine.trace.sinks import NEAR

NEAR_LIMIT = 2**30  # bytes; where `near` would take more it is left out, and its mean over layers and heads stays
CHUNK_BYTES = 4 * 2**20  # of float32 scores at once: stays in a processor's cache, and bounds the memory of any length


@dataclass(frozen=True)
class Forecast:
    """`extra_bytes` is over the plain prefill: the sums, the attention kept query by query, and one chunk.

    `matrix_bytes`: what keeping every layer's S × S matrix would take, for comparison. `near_kept`: whether the per-head
    attention of near queries is kept (`NEAR_LIMIT`). `seconds` is None while nothing was measured; `sentence` says both.
    """

    tokens: int
    seconds: float | None
    extra_bytes: int
    sums_bytes: int
    near_bytes: int
    chunk_bytes: int
    matrix_bytes: int
    near_kept: bool
    sentence: str


@dataclass(frozen=True)
class Pace:
    """One reading's measured time, from which others are told."""

    tokens: int
    seconds: float


def forecast(facts: Mapping[str, Any], tokens: int, last: Pace | None = None, dtype_bytes: int = 4) -> Forecast:
    """Time and memory of the sums of one prompt of `tokens`.

    facts: `engine.models.source.config(name)`, of which layers, heads, kv_heads, head_dim, width and flops_per_token are read.
    last: the last reading of this model here. `dtype_bytes`: width of the model's numbers, for the comparison only.
    """
    layers, heads, tokens = facts["layers"], facts["heads"], max(int(tokens), 1)
    sums = layers * heads * tokens * 4
    near = near_bytes(layers, heads, tokens)
    kept = near <= NEAR_LIMIT
    n = near_count(tokens)
    # One layer's band in float32 while it is written, the mean band, and the chunk's scores with the keys as float32.
    chunk = chunk_queries(heads, tokens) * heads * (tokens + n) * 4
    working = chunk + heads * (tokens + n) * (n + facts["head_dim"]) * 4 + tokens * n * 4
    extra = sums + (near if kept else 0) + working
    seconds = None
    if last is not None and last.tokens > 0 and last.seconds > 0:
        seconds = last.seconds * work(facts, tokens) / work(facts, last.tokens)
    time = "time not known yet: the first run measures it" if seconds is None else f"about {duration(seconds)}, from the last reading here"
    return Forecast(tokens, seconds, extra, sums, near, chunk, layers * heads * tokens * tokens * dtype_bytes, kept,
                    f"{tokens:,} tokens: {size(extra)} beside the model's own reading; {time}")


def work(facts: Mapping[str, Any], tokens: int) -> float:
    """FLOPs of one reading: the weights' products, and for every pair of a query and a key it sees three products of a
    head's width (scores, values, and the scores once more for the sums)."""
    pairs = tokens * (tokens + 1) / 2
    return tokens * facts["flops_per_token"] + 3 * 2 * pairs * facts["layers"] * facts["heads"] * facts["head_dim"]


def near_count(tokens: int) -> int:
    """How many queries from a key's own on are kept one by one."""
    return min(NEAR, tokens)


def near_bytes(layers: int, heads: int, tokens: int) -> int:
    """Bytes of `Sums.near` (float16)."""
    return layers * heads * tokens * near_count(tokens) * 2


def chunk_queries(heads: int, tokens: int) -> int:
    """How many queries are scored at once: a power of two, 16 to 128, whose scores fit into CHUNK_BYTES where they can."""
    fitting = CHUNK_BYTES // (4 * heads * tokens)
    return min(128, max(16, 1 << max(fitting, 1).bit_length() - 1))


def size(count: int) -> str:
    """Bytes for a sentence, in the units memory is sold in."""
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{max(count / 2**20, 0.1):.{0 if count >= 10 * 2**20 else 1}f} MB"


def duration(seconds: float) -> str:
    """Seconds for a sentence."""
    if seconds < 1:
        return "1 s"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
