"""Who proposes tokens. A drafter is four methods: read the prompt, propose, hear what became of it, close."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, Sequence

from engine.decoding.numbers import require_numbers
from engine.models.base import Model
from engine.sampling import Uniforms
from engine.trace import ENTROPY_CUT, Sampling


@dataclass(frozen=True)
class Draft:
    """One round's proposals, still on the device.

    `proposal`: ids, q and the distributions they were drawn from (`ops.Proposal`); None if nothing of what was written can
    be judged. `logits` (k, width) and `columns` (k,) are the raw scores behind them, for the trace; None for a drafter
    without scores.
    """

    proposal: Any
    logits: Any = None
    columns: Any = None
    seconds: float = 0.0  # inside the draft's forwards
    ids: tuple[int, ...] = ()  # what a draft with another tokenizer wrote, in its own ids
    translate_seconds: float = 0.0  # between the two tokenizers
    note: str | None = None
    cut: str | None = None  # why it is fewer tokens than asked for, where the drafter itself chose so (engine.trace.Round.cut)


class Drafter(Protocol):
    usable_bits: float | None  # log2 of the draft's usable vocabulary; None without a model

    def begin(self, text: Sequence[int]) -> None:
        """Read the prompt (all but its last token) before decode starts."""

    def room(self, length: int) -> int:
        """How many tokens it can propose for a text of `length` tokens; 0 or less: none, for good."""

    def propose(self, text: Sequence[int], count: int) -> Draft | None:
        """At most `count` tokens to follow `text`; None if it has no idea."""

    def settle(self, accepted: int) -> None:
        """The first `accepted` proposals of the last round became text; the others never were."""

    def close(self) -> None: ...


class ModelDrafter:
    """A smaller model with the verifier's vocabulary.

    Its cache holds the text minus its last token, or, after a clean sweep, minus its last two: its own last proposal
    was never fed to it. Either way it is fed what is missing when it next proposes.
    """

    def __init__(self, model: Model, width: int, sampling: Sampling, uniforms: Uniforms, entropy_stop: float | None = None,
                 capacity: int | None = None):
        """width: the verifier's columns."""
        self.model, self.width, self.sampling, self.uniforms = model, width, sampling, uniforms
        self.entropy_stop = entropy_stop
        self.session = model.session(capacity)
        self.proposed = self._prompt = 0
        self._seen, self._marked = None, 0  # marks for the repetition penalty, and how much of the text they cover
        self.usable_bits = math.log2(max(model.facts.vocabulary, 2))

    def begin(self, text: Sequence[int]) -> None:
        self._prompt = len(text) + 1
        if text and self.room(len(text) + 1) > 0:
            self.session.feed(self._readable(text), 0)

    def room(self, length: int) -> int:
        context = self.model.facts.context
        return 1_000_000 if context is None else context - length

    def propose(self, text: Sequence[int], count: int) -> Draft | None:
        ops, s, support = self.model.ops, self.sampling, self.model.support
        started = perf_counter()
        inside, cut = 0.0, None
        drawn, rows, columns = [], [], []
        feed: Any = self._readable(text[self.session.length :])
        uniform = ops.uniforms_on_device(self.uniforms.take(count), self.model.anchor)
        seen = self._seen_in(text) if s.repetition_penalty != 1 else None
        for i in range(count):
            before = perf_counter()
            logits = self.session.feed(feed, 1)
            inside += perf_counter() - before
            if support is None:
                logits = logits[:, : self.width]  # rows of padding that the verifier does not even have
            scores = logits
            if seen is not None:
                scores = ops.penalise(logits, seen if support is None else seen[support], s.repetition_penalty)
            d = ops.filtered(scores, s)
            raw, q = ops.draw(d, uniform[i : i + 1])
            token = raw if support is None else support[raw]
            drawn.append((d, token, q)), rows.append(logits), columns.append(raw)
            if seen is not None:
                ops.mark(seen, token)
            feed = token
            # At least one token a round; an unsure draft is left at the token it was unsure of.
            if self.entropy_stop is not None and ops.to_host(ops.entropy(logits)[0])[0] / self.usable_bits > self.entropy_stop:
                cut = ENTROPY_CUT if i + 1 < count else None
                break
        self.proposed = len(drawn)
        if self.model.asynchronous:  # forwards run on behind our back: the whole phase is their time
            self.model.synchronise()
            inside = perf_counter() - started
        scores = ops.join(rows)
        require_numbers(ops.to_host(ops.best_of(scores, 1)[0]), self.model.facts, len(text) - self._prompt)
        return Draft(ops.proposal(drawn, support, self.width), scores, ops.join(columns), inside, cut=cut)

    def _readable(self, ids: Sequence[int]) -> Sequence[int]:
        """A verifier padded wider may emit a padding id that the draft has no row for: its last row is read instead."""
        if self.model.support is not None or self.model.width >= self.width:
            return ids
        return [min(i, self.model.width - 1) for i in ids]

    def _seen_in(self, text: Sequence[int]) -> Any:
        """A copy of the marks of all tokens in `text`, of which only the new ones are marked each round."""
        ops, like = self.model.ops, self.model.anchor
        if self._seen is None:
            self._seen = ops.nothing_seen(self.width, like)
        ops.mark(self._seen, ops.ids_on_device(text[self._marked :], like))
        self._marked = len(text)
        return ops.copy(self._seen)

    def settle(self, accepted: int) -> None:
        fed = self.proposed - 1
        self.session.rewind(max(fed - accepted, 0))
        self.proposed = 0

    def close(self) -> None:
        self.session.close()


class LookupDrafter:
    """Prompt lookup (Saxena 2023): what followed the last time the text ended in the same few tokens.

    Needs no model. Every n-gram's latest end is kept in a dictionary, so a round costs the new tokens only. Where the text
    ends before `count` tokens followed, the copy goes on in what it has copied already: a text of period P < count goes on
    with that period.
    """

    usable_bits = None

    def __init__(self, ops: Any, like: Any, longest: int = 3, shortest: int = 1):
        self.ops, self.like, self.longest, self.shortest = ops, like, longest, shortest
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def begin(self, text: Sequence[int]) -> None:
        self._index(text)

    def room(self, length: int) -> int:
        return 1_000_000

    def propose(self, text: Sequence[int], count: int) -> Draft | None:
        self._index(text)
        for n in range(min(self.longest, len(text)), self.shortest - 1, -1):
            at = self._after.get(tuple(text[-n:]))
            if at is not None:
                copied: list[int] = []
                for i in range(at, at + count):
                    copied.append(text[i] if i < len(text) else copied[i - len(text)])
                return Draft(self.ops.point_masses(copied, self.like))
        return None

    def _index(self, text: Sequence[int]) -> None:
        for end in range(self._indexed + 1, len(text)):  # n-grams that end before the last token: something follows them
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(text[end - n : end])] = end
        self._indexed = max(self._indexed, len(text) - 1)

    def settle(self, accepted: int) -> None:
        pass

    def close(self) -> None:
        pass
