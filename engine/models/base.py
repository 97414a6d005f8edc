"""The one protocol every model speaks, whatever engine runs it.

A `Model` is loaded weights. A `Session` is one text being read by it: a KV cache with a length. Several sessions may
share a model (self-draft: the same weights, two caches). Scores stay on the device until `ops` brings them to the host.
"""

from __future__ import annotations

from typing import Any, Callable, Protocol, Sequence

from engine.tokens import Vocabulary
from engine.trace import ModelFacts, Sums


class Session(Protocol):
    """One text, read so far. `length` counts the ids whose keys and values the cache holds."""

    length: int

    def feed(self, ids: Sequence[int] | Any, last: int) -> Any:
        """Read `ids` (host integers, or a device array of them, shape (n,)) after what was read before.

        Returns logits of the last `last` positions as a device array of shape (last, width), float32, without waiting
        for the device; None if `last` is 0. `width` is len(model.support) where that is set, else the verifier's own
        padded vocabulary width. Raises RequestError if the text would pass the model's context.
        """

    def rewind(self, count: int) -> None:
        """Forget the last `count` ids, in every layer."""

    def close(self) -> None:
        """Give the cache's memory back."""


class Model(Protocol):
    facts: ModelFacts
    vocabulary: Vocabulary
    ends: tuple[int, ...]  # end-of-text ids; a model may have several
    defaults: dict[str, float]  # sampling defaults hidden in its generation config, e.g. {"top_k": 20}
    support: Any  # device array (width,) of vocabulary ids, for a draft that scores only some ids; None: all
    width: int  # columns of the logits
    anchor: Any  # any array on the device, for those that must make another beside it
    can_rewind: bool  # False for recurrent layers: then it can neither be drafted for nor draft
    asynchronous: bool  # the device works on behind our back: a clock must be read after `synchronise`
    ops: Any  # engine.numerics.<backend>: filtering, drawing and judging on the device

    def session(self, capacity: int | None = None) -> Session:
        """A fresh, empty session; `capacity` is a hint of how many ids it will hold."""

    def attention(self, ids: Sequence[int], progress: Callable[[float], bool] = lambda share: False) -> Sums | None:
        """Read `ids` once, from an empty cache, and add up the attention every key receives (`engine.trace.sinks.Sums`).

        The model runs under its normal attention kernel; no S × S matrix of more than one chunk of queries ever exists.
        `progress(share done, 0–1)` is called at least once a layer; when it returns True the reading is given up and None
        comes back. Raises RequestError that names the reason where the attention of this model cannot be captured.
        """

    def synchronise(self) -> None:
        """Wait until the device has done all it was given."""

    def close(self) -> None:
        """Give the weights' memory back."""
