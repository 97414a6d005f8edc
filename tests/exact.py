"""Exact chances of everything that real code does with uniform numbers, found by bisection instead of by drawing.

What inverse transform makes of a uniform number is a staircase: the outcomes follow one another and none comes back.
So equal outcomes at both ends of an interval mean the same outcome all through it, and bisection finds every step.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, NamedTuple

from engine.numerics import torch as numerics

LAST = 1 - 2**-40  # the largest uniform looked at, in double precision


class Piece(NamedTuple):
    outcome: Any
    weight: float
    uniform: Any  # one that leads there


def staircase(of: Callable[[float], Any]) -> list[Piece]:
    """The steps of `of` over [0, 1), left to right."""
    steps: list[tuple[Any, float, float]] = []

    def look(low: float, at_low: Any, high: float, at_high: Any) -> None:
        if at_low == at_high or high - low < 2e-12:
            if steps and steps[-1][0] == at_low:
                steps[-1] = (at_low, steps[-1][1], high)
            else:
                steps.append((at_low, low, high))
            return
        middle = (low + high) / 2
        at_middle = of(middle)
        look(low, at_low, middle, at_middle)
        look(middle, at_middle, high, at_high)

    look(0.0, of(0.0), LAST, of(LAST))
    last = of(LAST)
    if steps[-1][0] != last:
        steps.append((last, LAST, 1.0))
    outcomes = [outcome for outcome, _, _ in steps]
    assert len(set(outcomes)) == len(outcomes), f"not a staircase: {outcomes}"
    return [Piece(outcome, high - low, (low + high) / 2) for outcome, low, high in steps]


def drawn(d, draw=numerics.draw) -> list[Piece]:
    """Every id that `draw` can give, its chance, and a uniform that gives it."""
    return staircase(lambda u: int(draw(d, [u])[0]))


def judged(p, proposal, width: int, judge=numerics.judge_to_host) -> list[Piece]:
    """Every (accepted, closing id) that judging can give, its chance, and uniforms that lead to it."""
    k = 0 if proposal is None else len(proposal.ids)
    found: list[Piece] = []
    reached, low = 1.0, []  # chance of coming to position i, and uniforms that do
    for i in range(k + 1):
        if i < k:
            passes = staircase(lambda u: judge(p, proposal, [*low, u, *[LAST] * (k - i - 1), 0.0], width)[0] > i)
            kept = sum(piece.weight for piece in passes if piece.outcome)
            refusing = [piece.uniform for piece in passes if not piece.outcome]
            here, ahead = reached * (1 - kept), [*low, *refusing, *[0.5] * (k - i - 1)]
        else:
            here, kept, refusing, ahead = reached, 0.0, [True], low
        if refusing:
            for piece in staircase(lambda u: judge(p, proposal, [*ahead, u], width)[:2]):
                assert piece.outcome[0] == i
                found.append(Piece(piece.outcome, here * piece.weight, [*ahead, piece.uniform]))
        if i < k:
            if not kept:
                break
            reached *= kept
            low = [*low, next(piece.uniform for piece in passes if piece.outcome)]
    return found


class Branching:
    """The torch numerics, but each draw and each judgement takes every way it can, one way a run of `every_way`.

    `judge` may be another (a wrong one), to show that a wrong one is found out.
    """

    def __init__(self, judge=numerics.judge_to_host):
        self._judge, self._known = judge, {}
        self._path: list[list[int]] = []  # [way taken, ways there are] at each fork

    def __getattr__(self, name: str):
        return getattr(numerics, name)

    def draw(self, d, uniform):
        return numerics.draw(d, [self._take(self._once(("draw", *keys(d)), lambda: drawn(d)))])

    def judge_to_host(self, p, proposal, uniform, width: int):
        asked = ("judge", *keys(p), *(keys(proposal) if proposal else ()))
        return self._judge(p, proposal, self._take(self._once(asked, lambda: judged(p, proposal, width, self._judge))), width)

    def every_way(self, run: Callable[[], Any]) -> Iterator[tuple[Any, float]]:
        """(result, chance) of every way through `run`."""
        self._path = []
        while True:
            self._depth, self._weight = 0, 1.0
            result = run()
            yield result, self._weight
            while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
                self._path.pop()
            if not self._path:
                return
            self._path[-1][0] += 1

    def _once(self, key, make) -> list[Piece]:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _take(self, pieces: list[Piece]):
        if self._depth == len(self._path):
            self._path.append([0, len(pieces)])
        piece = pieces[self._path[self._depth][0]]
        self._depth += 1
        self._weight *= piece.weight
        return piece.uniform


def keys(arrays) -> tuple:
    return tuple(None if a is None else (tuple(a.shape), a.numpy().tobytes()) for a in arrays)
