"""How long a decode takes when nothing gets in its way, and whether something did. Pure functions of timings.

Totals add up whatever else the machine did meanwhile: one stalled pass is in them for good. So a decode's seconds are made of
medians: for each part of a round (verifier, draft, the rest) the sum over block lengths m, tokens the verifier's pass was
over, of n(m) × median seconds of the n(m) passes over m tokens. Passes grow with the cache, evenly, and the median of an even
growth is its mean, so that on a quiet machine both sums agree (simulated, 128 passes against 45 that grow by half: no bias,
spread of the ratio 1.5 %). Where something else took a third of one side's passes, medians gave 1.02 of the true ratio, means
of the middle half 1.16, totals 1.43. The median of fewer than `FEW` passes is no protection: it is held between what the nearest length n(m') ≥ `FEW` allows, for a
longer block costs no less, and no more than in proportion: c(m') × min(1, s(m)/s(m')) … c(m') × max(1, s(m)/s(m')), where s is
the block's length, and for the draft its proposals, m − 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Sequence

from engine.trace import Generation, Round, Timing

FEW = 3
CROWDED, FREE = 0.25, 0.25  # of the cores: others took more than the first, and less than the second was left idle
RESTLESS = math.log(1.3)  # half of all passes differ from the one before, of the same length, by more than this factor
STEPS = 12  # such pairs of passes, at least, to judge by


@dataclass(frozen=True)
class Passes:
    """The passes of one decode, a column each (see `Timing`)."""

    fed: Sequence[int]
    verify: Sequence[float]
    draft: Sequence[float]
    rest: Sequence[float]

    def drafted(self) -> Passes:
        """Those over more than one token."""
        rows = [row for row in zip(self.fed, self.verify, self.draft, self.rest) if row[0] > 1]
        return Passes(*zip(*rows)) if rows else Passes((), (), (), ())


@dataclass(frozen=True)
class Spent:
    """Seconds of one decode by medians (see above): inside the verifier, inside the draft, outside both."""

    verify: float
    draft: float
    rest: float
    passes: int
    tokens: int

    @property
    def models(self) -> float:
        return self.verify + self.draft

    @property
    def decode(self) -> float:
        return self.models + self.rest


def passes_of(timing: Timing, rounds: Sequence[Round] = ()) -> Passes | None:
    """A decode's passes: as timed, else from its `rounds`. None where nobody kept them, or where they are not this decode's:
    then they do not add up to its totals."""
    ends = [0.0, *(r.end for r in rounds)]
    for found in (Passes(timing.fed, timing.verify, timing.draft, timing.rest),
                  Passes([len(r.proposed) + 1 for r in rounds], [r.verify_seconds for r in rounds], [r.draft_seconds for r in rounds],
                         [max(r.end - begun - r.verify_seconds - r.draft_seconds, 0.0) for begun, r in zip(ends, rounds)])):
        columns = (found.verify, found.draft, found.rest)
        if timing.passes and all(len(c) == timing.passes for c in (found.fed, *columns)):
            verify, draft, rest = map(sum, columns)
            near = 1e-6 * timing.passes + 0.01 * timing.decode_seconds
            if abs(verify - timing.verify_seconds) <= near and abs(draft - timing.draft_seconds) <= near and \
                    abs(verify + draft + rest - timing.decode_seconds) <= near:
                return found
    return None


def spent(timing: Timing, rounds: Sequence[Round] = ()) -> Spent:
    """What the decode took, by medians where its passes are known (`rounds` are the first repeat's), else by totals."""
    p = passes_of(timing, rounds)
    if p is None:
        verify, draft = timing.verify_seconds, timing.draft_seconds
        return Spent(verify, draft, max(timing.decode_seconds - verify - draft, 0.0), timing.passes, timing.tokens)
    proposals = [m - 1 for m in p.fed]
    return Spent(typical(p.fed, p.verify), typical(p.fed, p.draft, proposals), typical(p.fed, p.rest), timing.passes, timing.tokens)


def spent_by(generation: Generation | None) -> list[Spent]:
    """Each repeat's."""
    return [spent(t, () if i else generation.rounds) for i, t in enumerate(generation.timings)] if generation else []


def typical(fed: Sequence[int], seconds: Sequence[float], sizes: Sequence[int] | None = None) -> float:
    """Σ over lengths of passes × median, as told at the top of this file. `sizes`: s of each pass, its length by default."""
    groups: dict[int, list[float]] = {}
    size = dict(zip(fed, fed if sizes is None else sizes))
    for m, value in zip(fed, seconds):
        groups.setdefault(m, []).append(value)
    middles = {m: median(values) for m, values in groups.items()}
    known = [m for m, values in groups.items() if len(values) >= FEW and size[m]]
    for m in [m for m, values in groups.items() if len(values) < FEW and known]:
        near = min(known, key=lambda other: (abs(other - m), -other))
        ratio = size[m] / size[near]
        middles[m] = min(max(middles[m], middles[near] * min(1.0, ratio)), middles[near] * max(1.0, ratio))
    return math.fsum(len(values) * middles[m] for m, values in groups.items())


def restlessness(p: Passes) -> float | None:
    """Median of |ln(t₂/t₁)| over the verifier's passes t₁ and t₂ that follow each other among those of one length; None if there
    are fewer than `STEPS`. Neighbours are compared, so that passes which grow with the cache are not called restless."""
    last: dict[int, float] = {}
    steps = []
    for m, value in zip(p.fed, p.verify):
        if m in last and value > 0 and last[m] > 0:
            steps.append(abs(math.log(value / last[m])))
        last[m] = value
    return median(steps) if len(steps) >= STEPS else None


def crowd(own: float | None, others: float | None, idle: float | None, cores: int) -> str | None:
    """What other programs did, if they took cores from this process, as the end of a sentence: more than a quarter of them, while
    less than a quarter was idle. Arguments are processor seconds; None is "not counted"."""
    if not cores or own is None or others is None or idle is None:
        return None
    whole = own + others + idle
    if whole > 0 and others > CROWDED * whole and idle < FREE * whole:
        return f"other programs used {others / whole * cores:.1f} of {cores} core{'' if cores == 1 else 's'}"
    return None


def trouble(timing: Timing, cores: int, rounds: Sequence[Round] = ()) -> str | None:
    """What disturbed this decode, as the end of a sentence; None if nothing is known to have.

    Others on its cores; else a spread of equal passes, which shows what no counter does: a busy accelerator, a throttled processor.
    """
    if why := crowd(timing.processor_seconds, timing.others_seconds, timing.idle_seconds, cores):
        return why
    p = passes_of(timing, rounds)
    restless = restlessness(p) if p else None
    if restless is not None and restless > RESTLESS:
        return f"every second pass differed from the one before it, of equal length, by a factor of {math.exp(min(restless, 9.0)):.1f} or more"
    return None


def most(troubles: Sequence[str | None]) -> str | None:
    """The first trouble where at least half of them are one: a median stands as long as more than half of its values do."""
    found = [t for t in troubles if t]
    return found[0] if found and 2 * len(found) >= len(troubles) else None
