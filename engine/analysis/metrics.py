"""The figures of a run: a pure function of its trace.

A figure that is not defined (no draft token, one side only, nothing emitted) is None, and `reasons` says why. Rates
are tokens per second, times seconds, entropies bits. Ratios pair the repeats of both sides, so that a drifting
clock speed does not end up in the speedup; the figure is the median over repeats and `…_range` is [lowest, highest].

Decode seconds are made of medians per pass (`engine.analysis.timing`), so that a passing disturbance is in no figure; those of
the plain sums end in `_total`. Where the disturbance lasted, or figures contradict each other, `disturbed` is a sentence that
says so. Repeat by repeat speedup = ceiling × (1 − share of the time outside the models), so no speedup passes its ceiling.
"""

from __future__ import annotations

import math
from statistics import fmean, median

from engine.analysis import ceilings
from engine.analysis.sentence import sentence, times
from engine.analysis.timing import Spent, most, passes_of, spent_by, trouble, typical
from engine.trace import BONUS, CORRECTION, PLAIN, Generation, Round, Run, Timing

NO_SPECULATIVE = "The run has no speculative side."
NO_PLAIN = "The run has no verifier-only side."
NO_PROPOSAL = "No draft token was proposed."
NO_TIME = "No decode time was recorded."
NO_ENERGY = "Energy was not measured."
CHEAPEST_PASS = 0.85  # of a pass over one token: several tokens at once never took less, on any engine measured
MOST_SPEEDUP = 1.05  # of the tokens per pass: passes of several tokens at the price of one, a draft for nothing, and noise
TIMED = ("speedup", "speedup_range", "end_to_end_speedup", "end_to_end_speedup_range", "ceiling", "break_even", "cost_ratio", "pass_cost", "mean_pass_cost")


def metrics(run: Run) -> dict:
    """Every figure of `run`, with `reasons` for the undefined ones and one `sentence`."""
    figures: dict = {"reasons": {}}
    rounds = run.speculative.rounds if run.speculative else ()
    figures.update(_counts(rounds))
    figures.update(_rates(run))
    figures.update(_costs(run, figures))
    figures.update(_ceilings(figures))
    figures.update(_shares(run))
    figures.update(_energy(run))
    figures.update(_divergence(run, figures["reasons"]))
    figures.update(_entropies(run))
    figures["disturbed"] = _disturbed(run, figures)
    _explain(run, figures)
    figures["sentence"] = sentence(run, figures)
    return figures


def judged(round_: Round) -> int:
    """How many proposals of a round were compared with the verifier: the accepted ones, and one that was refused."""
    return round_.accepted + (round_.closing == CORRECTION)


def _counts(rounds: tuple[Round, ...]) -> dict:
    """Tokens by their fate. Discarded tokens were proposed and never judged; every count is of draft tokens."""
    proposed = sum(len(r.proposed) for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    seen = sum(judged(r) for r in rounds)
    closings = [r.closing for r in rounds]
    return {
        "proposed": proposed,
        "accepted": accepted,
        "judged": seen,
        "rejected": seen - accepted,
        "discarded": proposed - seen,
        "corrections": closings.count(CORRECTION),
        "bonuses": closings.count(BONUS),
        "plain_steps": closings.count(PLAIN),  # rounds in which the verifier went on alone
        "rounds": len(rounds),
        "acceptance_rate": _ratio(accepted, proposed),
        "alpha": _ratio(accepted, seen),
        "acceptance_by_position": _by_position(rounds),
        "proposals_per_round": _ratio(proposed, len(rounds)),
        "tokens_per_pass": _ratio(sum(len(r.emitted) for r in rounds), len(rounds)),
    }


def _by_position(rounds: tuple[Round, ...]) -> list[dict]:
    """α measured at each position of a block; position 1 is the first draft token of a round."""
    rows = []
    for position in range(1, max((len(r.proposed) for r in rounds), default=0) + 1):
        seen = sum(judged(r) >= position for r in rounds)
        accepted = sum(r.accepted >= position for r in rounds)
        rows.append({"position": position, "judged": seen, "accepted": accepted, "rate": _ratio(accepted, seen)})
    return rows


def _rates(run: Run) -> dict:
    """Tokens per second of prefill, decode and both together, and the speedups of speculative over verifier-only."""
    figures = {}
    prefilled = max(len(run.prompt.ids) - 1, 0)  # the last prompt token is fed by the first decode pass
    for side in ("plain", "speculative"):
        timings, decodes = _timings(getattr(run, side)), spent_by(getattr(run, side))
        for name, values in (
            ("tokens_per_second", [_ratio(d.tokens, d.decode) for d in decodes]),
            ("tokens_per_second_total", [_ratio(t.tokens, t.decode_seconds) for t in timings]),
            ("prefill_tokens_per_second", [_ratio(prefilled, t.prefill_seconds) for t in timings]),
            ("end_to_end_tokens_per_second", [_ratio(d.tokens, t.prefill_seconds + d.decode) for t, d in zip(timings, decodes)]),
        ):
            figures[f"{side}_{name}"], figures[f"{side}_{name}_range"] = _middle(values)
    pairs, fast = _pairs(run), _both(run)
    figures["speedup"], figures["speedup_range"] = _middle([_quotient(_ratio(p.decode, p.tokens), _ratio(s.decode, s.tokens)) for p, s in fast])
    figures["speedup_total"], figures["speedup_total_range"] = _middle(
        [_quotient(_ratio(p.decode_seconds, p.tokens), _ratio(s.decode_seconds, s.tokens)) for p, s in pairs])
    figures["end_to_end_speedup"], figures["end_to_end_speedup_range"] = _middle(
        [_quotient(_ratio(p.prefill_seconds + a.decode, p.tokens), _ratio(s.prefill_seconds + b.decode, s.tokens))
         for (p, s), (a, b) in zip(pairs, fast)])
    return figures


def _costs(run: Run, counts: dict) -> dict:
    """c and v in one-token verifier passes, as measured in this run, and c by FLOPs.

    c: seconds in the draft's forwards a proposed token. v: verifier pass of the rounds with proposals. `mean_pass_cost` is the mean
    over all rounds; the ceiling needs that one when the verifier sometimes goes alone. All are divided by the one-token pass
    of the same repeat's verifier-only side.
    """
    draft_costs, pass_costs, drafted_costs = [], [], []
    first = run.speculative.rounds if run.speculative else ()
    for at, (plain, speculative) in enumerate(_both(run)):
        one = _ratio(plain.verify, plain.passes)
        if speculative.passes == counts["rounds"]:  # a repeat that gave other tokens has proposals nobody counted
            draft_costs.append(_quotient(_ratio(speculative.draft, counts["proposed"]), one))
        pass_costs.append(_quotient(_ratio(speculative.verify, speculative.passes), one))
        passes = passes_of(run.speculative.timings[at], () if at else first)
        drafted = passes and passes.drafted()
        drafted_costs.append(_quotient(_ratio(typical(drafted.fed, drafted.verify), len(drafted.fed)), one) if drafted else None)
    verifier, draft = run.models.get("verifier"), run.models.get("draft")
    if run.settings.drafter == "lookup":
        flops = 0.0
    else:
        flops = _ratio(draft.flops_per_token, verifier.flops_per_token) if verifier and draft else None
    return {
        "cost_ratio": _middle(draft_costs)[0],
        "cost_ratio_flops": flops,
        "pass_cost": _middle(drafted_costs)[0],
        "mean_pass_cost": _middle(pass_costs)[0],
        "ceiling": _middle([_quotient(_ratio(p.decode, p.tokens), _ratio(s.models, s.tokens)) for p, s in _both(run)])[0],
    }


def _ceilings(f: dict) -> dict:
    """Ceilings and break-even rates: by this run's own costs, and the textbook's (c by FLOPs, v = 1).

    `ceiling` is here already: the speedup if the speculative side spent no time outside the models. It is the formula's times
    what verifier-only itself spends there, 1 / (1 − its share), and breaks even where that product is 1.
    """
    gamma, r = f["proposals_per_round"], f["acceptance_rate"]
    c, v, flops = f["cost_ratio"], f["mean_pass_cost"], f["cost_ratio_flops"]
    measured = bool(f["ceiling"]) and r is not None and c is not None and v is not None and gamma * c + v > 0
    counted = r is not None and flops is not None
    above = f["ceiling"] / ceilings.ceiling(gamma, r, c, v) if measured else 1.0
    return {
        "ceiling": f["ceiling"] if measured else None,
        "ceiling_flops": ceilings.ceiling(gamma, r, flops) if counted else None,
        "break_even": ceilings.break_even(c / above, v / above, gamma) if measured else None,
        "break_even_flops": ceilings.break_even(flops, 1, gamma) if counted else None,
    }


def _shares(run: Run) -> dict:
    """Where decode time went: mean seconds a repeat, and the share outside the models' forwards (orchestration)."""
    spans, shares = {}, {}
    for side in ("plain", "speculative"):
        decodes = spent_by(getattr(run, side))
        if not decodes:
            spans[side], shares[side] = None, None
            continue
        verify, draft, other = (fmean(getattr(d, part) for d in decodes) for part in ("verify", "draft", "rest"))
        spans[side] = {"verify": verify, "draft": draft, "other": other}
        shares[side] = _ratio(other, verify + draft + other)
    return {"time": spans, "orchestration_share": shares["speculative"], "plain_orchestration_share": shares["plain"]}


def _energy(run: Run) -> dict:
    """Joules a token of each side, of the whole machine in decode: over all repeats whose energy was measured."""
    figures = {}
    for side in ("plain", "speculative"):
        counted = [t for t in _timings(getattr(run, side)) if t.joules is not None]
        figures[f"{side}_joules_per_token"] = _ratio(math.fsum(t.joules for t in counted), sum(t.tokens for t in counted))
    return figures


def _divergence(run: Run, reasons: dict) -> dict:
    """The first index at which the two greedy answers differ, and the verifier's top-2 logit gap there, ln(p1/p2).

    The verifier's probabilities are of the raw softmax, so the gap is that of the raw logits, in nats.
    """
    nothing = {"ids_equal": None, "first_divergence": None}
    if run.plain is None or run.speculative is None:
        reasons["first_divergence"] = NO_PLAIN if run.plain is None else NO_SPECULATIVE
        return nothing
    if not run.settings.sampling.greedy:
        reasons["first_divergence"] = "Sampled answers differ by chance; only greedy ones can be compared token by token."
        return nothing
    plain, other = run.plain.ids, run.speculative.ids
    shared = min(len(plain), len(other))
    index = next((i for i in range(shared) if plain[i] != other[i]), None)
    if index is None and len(plain) == len(other):
        return {"ids_equal": True, "first_divergence": None}
    if index is None and "stopped" in (run.status, run.plain.finish, run.speculative.finish):
        reasons["first_divergence"] = f"The run was stopped; the first {shared} tokens are equal."
        return nothing
    index = shared if index is None else index
    return {"ids_equal": False, "first_divergence": {
        "index": index,
        "plain_id": plain[index] if index < len(plain) else None,
        "speculative_id": other[index] if index < len(other) else None,
        "gap": top_gap(run.plain.top[index]) if index < len(run.plain.top) else None,
    }}


def top_gap(best: tuple[tuple[int, float], ...]) -> float | None:
    """Logit gap of the two best tokens, ln(p1/p2); None where fewer than two have any probability."""
    if len(best) < 2 or best[0][1] <= 0 or best[1][1] <= 0:
        return None
    return math.log(best[0][1] / best[1][1])


def _entropies(run: Run) -> dict:
    """Mean entropies of the raw softmax in bits: the verifier's a token emitted, the draft's a token proposed."""
    rounds = run.speculative.rounds if run.speculative else ()
    return {
        "plain_entropy_mean": _mean(run.plain.entropy if run.plain else ()),
        "speculative_entropy_mean": _mean(run.speculative.entropy if run.speculative else ()),
        "draft_entropy_mean": _mean(h for r in rounds for h in r.draft_entropy),
    }


_NEED_PROPOSALS = {"acceptance_rate", "alpha", "cost_ratio", "pass_cost", "ceiling", "ceiling_flops", "break_even", "break_even_flops"}
_NEED_BOTH_SIDES = {"cost_ratio", "pass_cost", "mean_pass_cost", "ceiling", "break_even", "speedup", "speedup_total", "end_to_end_speedup"}


def _explain(run: Run, f: dict) -> None:
    """Say why each undefined figure is undefined. `ids_equal`, no divergence and no disturbance are answers, not gaps."""
    for key, value in f.items():
        if value is None and key not in f["reasons"] and key not in ("ids_equal", "first_divergence", "disturbed"):
            f["reasons"][key] = _reason(run, f, key.removesuffix("_range"))


def _reason(run: Run, f: dict, name: str) -> str:
    if run.speculative is None and not name.startswith("plain_"):
        return NO_SPECULATIVE
    if run.plain is None and (name.startswith("plain_") or name in _NEED_BOTH_SIDES):
        return NO_PLAIN
    if name.startswith("break_even") and f[name.replace("break_even", "ceiling")] is not None:
        return "No acceptance rate pays: it would have to be above 100 %."
    if name.endswith("_joules_per_token"):
        return run.machine.energy or NO_ENERGY
    if name == "cost_ratio_flops":
        return "The FLOPs of the two models are not known."
    if "entropy" in name:
        return NO_PROPOSAL if name.startswith("draft") and not f["proposed"] else "No entropy was recorded."
    if name in ("tokens_per_pass", "proposals_per_round"):
        return "No round was finished."
    if name in _NEED_PROPOSALS and not f["proposed"]:
        return NO_PROPOSAL
    if name == "alpha":
        return "No draft token was judged."
    if name.endswith("_flops"):
        return "The FLOPs of the two models are not known."
    if "prefill" in name and len(run.prompt.ids) < 2:
        return "A prompt of one token needs no prefill."
    return NO_TIME


def _disturbed(run: Run, f: dict) -> str | None:
    """One sentence if the timing cannot be trusted: something took the machine in half of the repeats or more, or the figures
    contradict each other; those (`TIMED`) are then undefined."""
    sides = [g for g in (run.plain, run.speculative) if g and g.timings]
    repeats = range(max((len(g.timings) for g in sides), default=0))
    found = [next(filter(None, (trouble(g.timings[i], run.machine.cores, () if i else g.rounds) for g in sides if i < len(g.timings))), None)
             for i in repeats]
    against = contradiction(f["pass_cost"], f["speedup"], f["tokens_per_pass"])
    why = against or most(found)
    said = f"The timing was disturbed: {why}." if why else None
    if against:
        f |= dict.fromkeys(TIMED)
        f["reasons"] |= dict.fromkeys(TIMED, said)
    return said


def contradiction(v: float | None, speedup: float | None, tokens_per_pass: float | None) -> str | None:
    """Why these three cannot all be true, as the end of a sentence; None where an undisturbed machine may give them."""
    if v is not None and v < CHEAPEST_PASS:
        return f"a verifier pass over several tokens measured {v:.2f} of a pass over one, which it cannot cost"
    if speedup is not None and tokens_per_pass and speedup > MOST_SPEEDUP * tokens_per_pass:
        return f"it measured {times(speedup, 2)} verifier-only's speed at {tokens_per_pass:.2f} tokens a pass, which cannot be"
    return None


def _both(run: Run) -> list[tuple[Spent, Spent]]:
    """The same pairs as `_pairs`, as seconds by medians."""
    return list(zip(spent_by(run.plain), spent_by(run.speculative)))


def _timings(generation: Generation | None) -> tuple[Timing, ...]:
    return generation.timings if generation else ()


def _pairs(run: Run) -> list[tuple[Timing, Timing]]:
    """Timings of the two sides, repeat by repeat; a repeat that only one side finished is left out."""
    return list(zip(_timings(run.plain), _timings(run.speculative)))


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _product(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _mean(values) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return fmean(known) if known else None


def _middle(values: list[float | None]) -> tuple[float | None, list[float] | None]:
    """Median and [lowest, highest] of the defined values."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return (median(known), [min(known), max(known)]) if known else (None, None)
