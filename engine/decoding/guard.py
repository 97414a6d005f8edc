"""How far a block of rows may round from single rows, measured on the model and the text at hand.

Verifier-only decoding scores one row a pass, speculative decoding a block; kernels may add up in another order for one row
and for many, so that two tokens whose scores are closer than the difference can change places. Whatever is closer than
SAFETY times the largest difference measured is decided by a pass of one row. 0 where blocks equal single rows bit for bit.
"""

from __future__ import annotations

from typing import Sequence
from weakref import WeakKeyDictionary

from engine.models.base import Model, Session

SAFETY = 2.0
CONTEXT, NEAR = 96, 8  # positions read before the probe's block; best scores a row that are compared
_known: WeakKeyDictionary[Model, dict[int, float]] = WeakKeyDictionary()


def slack(model: Model, ids: Sequence[int], gamma: int) -> float:
    """The top-2 gap (in logits) under which a greedy choice made in a block of gamma + 1 rows is not trusted.

    ids: a text to measure on, repeated where it is short; a dozen passes, made once a model and gamma. It is a measurement of
    this text on this machine, not a proof for every other.
    """
    found = _known.setdefault(model, {})
    if gamma not in found:
        found[gamma] = SAFETY * measured(model, ids, gamma + 1) if gamma else 0.0
    return found[gamma]


def measured(model: Model, ids: Sequence[int], rows: int) -> float:
    """Largest change of the gap between two of a row's best NEAR scores, from single rows to blocks of `rows` and of fewer."""
    room = model.facts.context or CONTEXT + rows
    text = (list(ids) * (1 + (CONTEXT + rows) // max(len(ids), 1)))[: min(CONTEXT + rows, room)]
    if len(text) <= rows:
        return 0.0
    before, block = text[:-rows], text[-rows:]
    single, together = model.session(len(text)), model.session(len(text))
    try:
        single.feed(before, 0), together.feed(before, 0)
        alone = [row for i in block for row in _best(model, single, [i])]
        worst = 0.0
        for count in sorted({2, (rows + 2) // 2, rows} & set(range(2, rows + 1))):
            worst = max([worst, *(_apart(a, b) for a, b in zip(alone, _best(model, together, block[:count])))])
            together.rewind(count)
        return worst
    finally:
        single.close(), together.close()


def _best(model: Model, session: Session, ids: Sequence[int]) -> list[dict[int, float]]:
    """The best scores of each row, by id."""
    values, columns = model.ops.best_of(session.feed(ids, len(ids)), min(NEAR, model.width))
    return [dict(zip(c, v)) for c, v in zip(model.ops.to_host(columns), model.ops.to_host(values))]


def _apart(a: dict[int, float], b: dict[int, float]) -> float:
    moved = [b[i] - a[i] for i in a.keys() & b.keys()]
    return max(moved) - min(moved) if moved else float("inf")
