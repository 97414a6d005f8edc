"""A scripted model: a stub behind `engine.models.base` whose next-token logits are a function of what its cache holds.

The cache is a list of (position, token) pairs. It refuses a gap, a repeated position and any use after closing, counts
forward calls and keeps a log of them, so that a stale or a missing entry either raises or changes the output.
"""

from __future__ import annotations

import zlib
from typing import Callable, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers import models as backends
from torch import Tensor

from engine.numerics import torch as numerics
from engine.tokens import Vocabulary
from engine.trace import ModelFacts
from tests.toys import fast

Script = Callable[[tuple[int, ...]], Sequence[float]]


def letters(count: int) -> Vocabulary:
    """A vocabulary of `count` words t0, t1, … none of them special."""
    return Vocabulary(fast(Tokenizer(backends.WordLevel({f"t{i}": i for i in range(count)}, unk_token="t0"))), "scripted")


def path(prompt: Sequence[int], answer: Sequence[int], width: int) -> Script:
    """Follows `answer` after `prompt` as long as the cache holds just that; anything else leads to token 0."""
    whole = (*prompt, *answer)

    def script(held: tuple[int, ...]) -> list[float]:
        n = len(held)
        token = whole[n] if n < len(whole) and held == whole[:n] else 0
        return [5.0 if i == token else 0.01 * i for i in range(width)]

    return script


def always(logits: Sequence[float]) -> Script:
    return lambda held: logits


def noise(width: int, seed: int = 0, scale: float = 2.0) -> Script:
    """Random logits, another row for every different content of the cache."""
    def script(held: tuple[int, ...]) -> np.ndarray:
        key = zlib.crc32(np.asarray((seed, *held), dtype=np.int64).tobytes())
        return scale * np.random.default_rng(key).standard_normal(width)

    return script


class ScriptedSession:
    def __init__(self, model: "ScriptedModel"):
        self.model = model
        self.cells: list[tuple[int, int]] = []  # (position, token), in the order they were written
        self.length = 0
        self.log: list[tuple[int, tuple[int, ...], int]] = []  # a forward call: (first position, ids, rows scored)
        self.closed = False

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(token for _, token in self.cells)

    def feed(self, ids, last: int) -> Tensor | None:
        assert not self.closed, "fed after closing"
        ids = tuple(int(i) for i in ids)
        assert ids, "fed nothing"
        context = self.model.facts.context
        assert context is None or self.length + len(ids) <= context, "past the context"
        self.model.calls += 1
        self.log.append((self.length, ids, last))
        rows = []
        for i, token in enumerate(ids):
            position = self.length + i
            assert position == (self.cells[-1][0] + 1 if self.cells else 0), f"gap or repeat at position {position}"
            self.cells.append((position, token))
            if i >= len(ids) - last:
                rows.append(torch.tensor(np.asarray(self.model.script(self.held)), dtype=self.model.dtype))
        self.length += len(ids)
        return torch.stack(rows) if last else None

    def rewind(self, count: int) -> None:
        assert not self.closed and 0 <= count <= self.length
        assert self.model.can_rewind or not count, "a state cannot be rolled back"
        self.length -= count
        del self.cells[len(self.cells) - count :]

    def close(self) -> None:
        self.closed = True


class ScriptedModel:
    """`support`: the ids its columns stand for, as in a draft with a stored map."""

    ops = numerics
    asynchronous = False

    def __init__(self, script: Script, width: int, ends: Sequence[int] = (), context: int | None = None,
                 support: Sequence[int] | None = None, real: int | None = None, can_rewind: bool = True,
                 dtype: torch.dtype = torch.float32, vocabulary: Vocabulary | None = None):
        self.script, self.width, self.ends, self.can_rewind, self.dtype = script, width, tuple(ends), can_rewind, dtype
        self.support = None if support is None else torch.tensor(support)
        self.vocabulary = vocabulary or letters(real or width)
        self.defaults: dict[str, float] = {}
        self.anchor = torch.zeros(1)
        self.calls = 0
        self.sessions: list[ScriptedSession] = []
        self.facts = ModelFacts(
            name="scripted", title="Scripted", path="", revision=None, architecture="Scripted", layers=0, width=0, parameters=1,
            flops_per_token=2, vocabulary=real or width, context=context, tied_head=True, weights="", backend="torch",
            backend_version=torch.__version__, device="cpu", asked_device="cpu", dtype="float32", asked_dtype="float32", bytes=0)

    def session(self, capacity: int | None = None) -> ScriptedSession:
        self.sessions.append(ScriptedSession(self))
        return self.sessions[-1]

    def synchronise(self) -> None:
        pass

    def close(self) -> None:
        pass
