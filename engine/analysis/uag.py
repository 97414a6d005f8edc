"""Figures of a strategy run: a pure function of its trace.

A row is one strategy at one k over all prompts (or those of one category). Every ratio is of sums over prompts and stands
with both of its numbers. What is not defined (nothing proposed, no verifier-only answer) is None. Seconds of decode are made of
medians per pass (`engine.analysis.timing`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence

from engine.analysis.intervals import LEVEL, Interval, student_quantile, wilson
from engine.analysis.metrics import contradiction, judged, top_gap
from engine.analysis.sentence import percent, rounding, times
from engine.analysis.timing import passes_of, spent_by, trouble, typical
from engine.trace import CORRECTION, Generation, Round, UagItem, UagRun
from engine.trace.uag import BOUNDARY, CAUSES, DIACRITIC

SAME = 1.05  # shares closer than this factor are called equal
WILSON, OVER_PROMPTS = "Wilson, candidates of one prompt", "Student's t over {} prompts, of a ratio of sums"
WILSON_ALL = "Wilson, candidates of all prompts, which do not differ"
HIT = 0.25  # of the decode seconds of a row, or of verifier-only beside it: disturbed so long, the row is


@dataclass(frozen=True)
class Ratio:
    """above / below, both summed over prompts, with its 95 % interval and how that was found; None, None and "" where it
    cannot be."""

    above: float
    below: float
    interval: Interval | None = None
    how: str = ""

    @property
    def value(self) -> float | None:
        return self.above / self.below if self.below else None


@dataclass(frozen=True)
class Row:
    """`acceptance`: accepted / proposed candidates. `draft_acceptance`: draft tokens all of whose bytes were accepted / draft
    tokens written. `judged` candidates are the accepted ones and those refused; `refused` = the sum of `causes` (known ones).
    `tokens_per_second` is of decode alone. `speedup`: seconds that the verifier alone took for as many tokens / seconds taken;
    `ceiling`: the same / seconds inside the two models, so no speedup passes it. `translate_share`: seconds between the two
    tokenizers / decode seconds (first repeat). `joules_per_token`: of the whole machine in decode, where energy was counted.
    `disturbed`: why its speed is no result, in a few words; where figures contradict each other it has no speed at all."""

    strategy: str
    k: int
    prompts: int
    rounds: int
    judged: int
    refused: int
    causes: dict[str, int]
    acceptance: Ratio
    draft_acceptance: Ratio
    tokens_per_pass: Ratio
    tokens_per_second: Ratio
    speedup: Ratio
    translate_share: Ratio
    translate_seconds: float
    ids_equal: int | None  # greedy: prompts whose answer is verifier-only's, token for token
    ids_compared: int | None
    ceiling: Ratio = Ratio(0, 0)
    joules_per_token: Ratio = Ratio(0, 0)
    disturbed: str | None = None

    @property
    def boundaries(self) -> int:
        """Refusals that another cut of the same text would have avoided, whatever letter is near."""
        return self.causes[BOUNDARY] + self.causes[DIACRITIC]

    def share(self, cause: str) -> float | None:
        return self.causes[cause] / self.refused if self.refused else None


@dataclass(frozen=True)
class Figures:
    """`plain`: tokens per second of verifier-only, `plain_joules` its joules per token. `by_category` has the same rows for each
    category of prompts, if several. `disturbed`: one sentence where the timing of a row was."""

    plain: Ratio
    rows: tuple[Row, ...]
    by_category: dict[str, tuple[Row, ...]]
    sentences: tuple[str, ...]
    plain_joules: Ratio = Ratio(0, 0)
    disturbed: str | None = None

    def row(self, strategy: str, k: int) -> Row | None:
        return next((r for r in self.rows if (r.strategy, r.k) == (strategy, k)), None)


def figures(run: UagRun) -> Figures:
    ran = [item for item in run.items if item.refused is None]
    categories = list(dict.fromkeys(item.category for item in ran))
    plain = _ratio([_speed(item.plain) for item in ran if item.plain])
    made = _rows(run, ran)
    return Figures(plain, made, {c: _rows(run, [i for i in ran if i.category == c]) for c in categories} if len(categories) > 1 else {},
                   tuple(sentences(run, made)), _ratio([_energy(item.plain) for item in ran if item.plain]), disturbance(made))


def survived(run: UagRun, round_: Round) -> int:
    """Draft tokens of a round all of whose bytes became text by acceptance."""
    kept = b"".join(bytes.fromhex(run.tokens.get(i, "")) for i in round_.proposed[: round_.accepted])
    said, count = b"", 0
    for i in round_.draft_ids:
        said += bytes.fromhex(run.draft_tokens.get(i, ""))
        if not kept.startswith(said) or not said:
            break
        count += 1
    return count


def _rows(run: UagRun, items: Sequence[UagItem]) -> tuple[Row, ...]:
    found: dict[tuple[str, int], list[tuple[UagItem, Generation]]] = {}
    for item in items:
        for result in item.results:
            found.setdefault((result.strategy, result.k), []).append((item, result.answer))
    return tuple(_row(run, strategy, k, answers) for (strategy, k), answers in found.items())


def _row(run: UagRun, strategy: str, k: int, answers: Sequence[tuple[UagItem, Generation]]) -> Row:
    every = [r for _, a in answers for r in a.rounds]
    causes = [r.cause for r in every if r.closing == CORRECTION]

    def over(part: Callable[[Generation], tuple[float, float]], share: bool = False) -> Ratio:
        return _ratio([part(a) for _, a in answers], share)

    compared = [(i.plain.ids, a.ids) for i, a in answers if i.plain and "stopped" not in (i.plain.finish, a.finish)]
    greedy = run.settings.sampling.greedy
    beside = [(i.plain, a) for i, a in answers if i.plain and i.plain.ids]
    per_pass = over(lambda a: (sum(len(r.emitted) for r in a.rounds), len(a.rounds)))
    speedup, ceiling = (_ratio([_against(plain, a, part) for plain, a in beside]) for part in ("decode", "models"))
    against = contradiction(_pass_cost(beside), speedup.value, per_pass.value)
    if against:
        speedup = ceiling = Ratio(0, 0)
    return Row(
        strategy, k, len(answers), len(every), sum(map(judged, every)), sum(c is not None for c in causes), {c: causes.count(c) for c in CAUSES},
        acceptance=over(lambda a: (sum(r.accepted for r in a.rounds), sum(len(r.proposed) for r in a.rounds)), share=True),
        draft_acceptance=over(lambda a: (sum(survived(run, r) for r in a.rounds), sum(len(r.draft_ids) for r in a.rounds)), share=True),
        tokens_per_pass=per_pass, tokens_per_second=over(_speed), speedup=speedup,
        translate_share=over(lambda a: (sum(r.translate_seconds for r in a.rounds), a.timings[0].decode_seconds if a.timings else 0.0), share=True),
        translate_seconds=math.fsum(r.translate_seconds for r in every),
        ids_equal=sum(a == b for a, b in compared) if greedy else None, ids_compared=len(compared) if greedy else None,
        ceiling=ceiling, joules_per_token=over(_energy), disturbed=against or _trouble(run, answers))


def _speed(answer: Generation) -> tuple[float, float]:
    return sum(t.tokens for t in answer.timings), math.fsum(d.decode for d in spent_by(answer))


def _against(plain: Generation, answer: Generation, part: str) -> tuple[float, float]:
    """(seconds verifier-only takes for as many tokens, seconds taken: of `part`, "decode" or "models")."""
    (tokens, _), (alone, took) = _speed(answer), _speed(plain)
    return (took / alone * tokens if alone else 0.0), math.fsum(getattr(d, part) for d in spent_by(answer))


def _energy(answer: Generation) -> tuple[float, float]:
    """(joules, tokens) of the repeats whose energy was counted."""
    counted = [t for t in answer.timings if t.joules is not None]
    return math.fsum(t.joules for t in counted), sum(t.tokens for t in counted)


def _pass_cost(beside: Sequence[tuple[Generation, Generation]]) -> float | None:
    """v: seconds of the verifier's passes over several tokens / of as many one-token passes of the same prompts (first repeats)."""
    took = alone = 0.0
    for plain, answer in beside:
        passes = passes_of(answer.timings[0], answer.rounds) if answer.timings and plain.timings else None
        one = spent_by(plain)[0] if passes else None
        if one and one.passes:
            drafted = passes.drafted()
            took += typical(drafted.fed, drafted.verify)
            alone += len(drafted.fed) * one.verify / one.passes
    return took / alone if alone else None


def _trouble(run: UagRun, answers: Sequence[tuple[UagItem, Generation]]) -> str | None:
    """What disturbed at least `HIT` of the decode seconds of these answers, or of verifier-only's to the same prompts."""
    for of in ([a for _, a in answers], [i.plain for i, _ in answers if i.plain]):
        timed = [(t.decode_seconds, trouble(t, run.machine.cores, () if n else a.rounds)) for a in of for n, t in enumerate(a.timings)]
        hit = [(seconds, why) for seconds, why in timed if why]
        if hit and math.fsum(s for s, _ in hit) >= HIT * math.fsum(s for s, _ in timed):
            return max(hit)[1]
    return None


def _ratio(parts: Sequence[tuple[float, float]], share: bool = False) -> Ratio:
    """Σ a / Σ b over prompts. The prompts are the independent units, so its variance is that of a ratio estimator,
    k/(k−1) Σ (a − R b)² / (Σ b)² (Cochran 1977, 6.4), with k − 1 degrees of freedom. A share of one prompt: Wilson's."""
    above, below, count = math.fsum(a for a, _ in parts), math.fsum(b for _, b in parts), len(parts)
    above, below = (int(total) if all(float(v).is_integer() for v in of) else total for total, *of in zip((above, below), *parts))
    whole = isinstance(above, int) and isinstance(below, int)
    if not below:
        return Ratio(above, below)
    if count < 2:
        return Ratio(above, below, wilson(above, below), WILSON) if share and whole else Ratio(above, below)
    middle = above / below
    error = math.sqrt(count / (count - 1) * math.fsum((a - middle * b) ** 2 for a, b in parts)) / below
    if not error:  # prompts that all gave one rate, 0 of each say, tell nothing of how prompts differ
        return Ratio(above, below, wilson(above, below), WILSON_ALL) if share and whole else Ratio(above, below)
    half = student_quantile((1 + LEVEL) / 2, count - 1) * error
    return Ratio(above, below, (max(middle - half, 0.0), min(middle + half, 1.0) if share else middle + half), OVER_PROMPTS.format(count))


# ── sentences ──


def sentences(run: UagRun, rows: Sequence[Row]) -> list[str]:
    """What the rows mean, in plain words; the worst news as plainly as the best."""
    if run.status == "failed" and not rows:
        return ["The run failed before a strategy had run."]
    pooled = {s: [r for r in rows if r.strategy == s] for s in dict.fromkeys(r.strategy for r in rows)}
    said = [*_kept(pooled), *(_refusals(name, of) for name, of in pooled.items() if name != "none"), disturbance(rows), _fastest(rows),
            _same(run, rows)]
    return [s for s in said if s]


def _pool(rows: Iterable[Row]) -> tuple[int, int]:
    rows = list(rows)
    return sum(r.acceptance.above for r in rows), sum(r.acceptance.below for r in rows)


def _kept(pooled: dict[str, list[Row]]) -> Iterable[str]:
    for name, rows in pooled.items():
        if not _pool(rows)[1]:
            yield f"{name} never had a candidate to send: the verifier went on alone."
    if "context" not in pooled:
        return
    kept, sent = _pool(pooled["context"])
    for other in ("naive", "tli"):
        kept_other, sent_other = _pool(pooled.get(other, []))
        if not sent or not sent_other:
            continue
        ours, theirs = kept / sent, kept_other / sent_other
        counts = f"({percent(ours)} of {sent:,} against {percent(theirs)} of {sent_other:,})"
        if not kept or not kept_other:
            if kept or kept_other:
                yield f"{'context' if kept else other} keeps some of its candidates here, {other if kept else 'context'} none {counts}."
        elif max(ours, theirs) < SAME * min(ours, theirs):
            yield f"context and {other} keep equally many of their candidates here {counts}."
        elif ours > theirs:
            yield f"context keeps {times(ours / theirs)} more candidates than {other} here {counts}."
        else:
            yield f"{other} keeps {times(theirs / ours)} more candidates than context here {counts[:-1].replace('(', '(context ')})."


def _refusals(name: str, rows: list[Row]) -> str | None:
    refused, cuts, letters = sum(r.refused for r in rows), sum(r.boundaries for r in rows), sum(r.causes[DIACRITIC] for r in rows)
    if not refused:
        return None
    if not cuts:
        many = f"None of {name}'s {refused:,} refusals" if refused > 1 else f"Not even {name}'s one refusal"
        return f"{many} is a boundary: the verifier wanted another text{' each time' if refused > 1 else ''}."
    near = f", {letters:,} of them at a letter with a diacritic" if letters else ""
    return f"{percent(cuts / refused)} of {name}'s refusals are boundaries, not disagreements ({cuts:,} of {refused:,}{near})."


def disturbance(rows: Sequence[Row]) -> str | None:
    """One sentence where the timing of rows was disturbed: how many, and by what."""
    hit = [r for r in rows if r.disturbed]
    if not hit:
        return None
    of = "" if len(hit) == len(rows) else f" of {len(hit)} of {len(rows)} combinations"
    return f"The timing{of} was disturbed: {hit[0].disturbed}."


def _fastest(rows: Sequence[Row]) -> str | None:
    timed = [r for r in rows if r.speedup.value is not None and not r.disturbed]
    if not timed:
        return None
    best = max(timed, key=lambda r: r.speedup.value)
    speed, span = best.speedup.value, best.speedup.interval
    name = f"{best.strategy} at k = {best.k}"
    between = f" (95 % interval {times(span[0], 2)}–{times(span[1], 2)})" if span else ""
    if speed <= 1:
        return f"No strategy pays here: the fastest, {name}, runs at {times(speed, 2)} verifier-only's speed{between}."
    sure = "" if span is None or span[0] > 1 else ", which these prompts cannot tell from no gain"
    return f"Fastest here is {name}: {times(speed, 2)} verifier-only's speed{between}{sure}."


def _same(run: UagRun, rows: Sequence[Row]) -> str | None:
    compared = sum(r.ids_compared or 0 for r in rows)
    if not run.settings.sampling.greedy or not compared:
        return None
    apart = compared - sum(r.ids_equal for r in rows)
    if not apart:
        return f"All {compared:,} answers are verifier-only's, token for token." if compared > 1 else "The answer is verifier-only's, token for token."
    return f"{apart:,} of {compared:,} answers differ from verifier-only's{rounding(run, _gaps(run))}."


def _gaps(run: UagRun) -> list[float | None]:
    """The verifier's top-2 gap (logits) where each answer first differs from verifier-only's; None where it was not measured."""
    found = []
    for plain, other in ((i.plain, r.answer) for i in run.items if i.plain for r in i.results):
        at = next((n for n, (a, b) in enumerate(zip(plain.ids, other.ids)) if a != b), None)
        if at is not None:
            found.append(top_gap(plain.top[at]) if at < len(plain.top) else None)
    return found
