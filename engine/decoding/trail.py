"""Works out what the trace keeps of every position, outside the decode clock.

Entropies and best alternatives are for the reader, not for decoding. Raw scores are held for a while and looked at
in blocks; the clock stands still meanwhile, in both modes alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from engine.trace import CORRECTION, Generation, Round

HELD_SCORES = 12_000_000  # float32 scores held at most before they are looked at (48 MB)


class Trail:
    def __init__(self, ops: Any):
        self.ops = ops
        self._held: list[tuple] = []
        self._scores = 0
        self._positions: list[list[float]] = []  # (entropy, probability, best ids…, their probabilities…) a position
        self._sampling: list[float] = []  # entropy a position of the distribution its token was drawn from
        self._proposals: list[tuple] = []  # (p, q, entropy) a round, each over its proposals or None

    def hold(self, logits: Any, made: Round, draft: Any, drawn_from: Any, raw: bool) -> Round:
        """Keep a round's scores and the filtered distributions its tokens were drawn from (`ops.Distribution`).

        `raw`: p and q are those of the raw softmax (greedy). Returns the round, with its gap where a translated candidate was refused.
        """
        scores, columns = (None, None) if draft is None else (draft.logits, draft.columns)
        self._held.append((logits, list(made.emitted), list(made.proposed), scores, columns, drawn_from, raw))
        self._scores += sum(a.shape[0] * a.shape[1] for a in (logits, scores, drawn_from.probabilities) if a is not None)
        gap = self._gap(logits, made) if made.draft_ids and made.closing == CORRECTION else None
        if self._scores > HELD_SCORES:
            self._look()
        return made if gap is None else replace(made, gap=gap)

    def _gap(self, logits: Any, made: Round) -> float | None:
        """How far apart the verifier's two best tokens are, in probability (raw softmax), where it refused: one row of the block."""
        row = self.ops.to_host(self.ops.statistics(logits[made.accepted : made.accepted + 1], made.emitted[made.accepted : made.accepted + 1]))[0]
        best = row[2 + (len(row) - 2) // 2 :]
        return best[0] - best[1] if len(best) > 1 else None

    def _look(self) -> None:
        ops = self.ops
        for logits, emitted, proposed, scores, columns, drawn_from, raw in self._held:
            if emitted:
                self._positions += ops.to_host(ops.statistics(logits[: len(emitted)], emitted))
                self._sampling += ops.to_host(ops.distribution_entropy(drawn_from))[: len(emitted)]
            p = q = bits = None
            if proposed and raw:
                rows = logits[: len(proposed)]
                p = ops.to_host(ops.probability(rows, ops.entropy(rows)[1], ops.ids_on_device(proposed, rows)))
            if proposed and scores is not None:
                rows = scores[: len(proposed)]
                entropy, log_total = ops.entropy(rows)
                bits = ops.to_host(entropy)
                q = ops.to_host(ops.probability(rows, log_total, columns[: len(proposed)])) if raw else None
            self._proposals.append((p, q, bits))
        self._held, self._scores = [], 0

    def complete(self, generation: Generation, usable_bits: float | None = None) -> Generation:
        """The generation with entropy, alternatives and probabilities filled in."""
        self._look()
        best = (len(self._positions[0]) - 2) // 2 if self._positions else 0
        rounds: list[Round] = []
        for r, (p, q, bits) in zip(generation.rounds, self._proposals):
            empty = (None,) * len(r.proposed)
            rounds.append(replace(
                r, p=tuple(p) if p else r.p, q=tuple(q) if q else r.q, draft_entropy=tuple(bits) if bits else empty,
                draft_normalised=tuple(b / usable_bits for b in bits) if bits and usable_bits else empty))
        return replace(
            generation, rounds=tuple(rounds),
            entropy=tuple(row[0] for row in self._positions), probability=tuple(row[1] for row in self._positions),
            sampling_entropy=tuple(self._sampling),
            top=tuple(tuple((int(i), v) for i, v in zip(row[2 : 2 + best], row[2 + best :])) for row in self._positions))
