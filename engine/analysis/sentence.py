"""One plain sentence that says what happened in a run. Slower is said as plainly as faster."""

from __future__ import annotations

from engine.trace import Run

SAME_WITHIN = 0.03  # of one repeat: less than this cannot be told from noise
HALF = ("float16", "bfloat16")
ROUNDED = 1.0  # logits: two right passes in half precision part by up to 0.7 of the scores' spread, so by no more than this


def sentence(run: Run, figures: dict) -> str:
    """What happened, from the run's own figures (`metrics` without its sentence)."""
    if run.status == "failed":
        return "The run failed; what was finished before is shown."
    lead = "Stopped. So far " if run.status == "stopped" else ""
    if run.speculative is None or run.plain is None:
        return _one_sided(run, figures, lead)
    if not figures["rounds"] or not run.plain.ids:
        return "Stopped before both sides had begun." if lead else "Nothing was generated."
    if figures["disturbed"]:  # then its speed is no news
        text = figures["disturbed"] + " " + _upper(_accepted(run, figures)) + "."
    else:
        text = _speed(figures) + ": " + _why(run, figures) + "."
    text = lead + text[0].lower() + text[1:] if lead else text
    return text + _difference(run, figures)


def _one_sided(run: Run, f: dict, lead: str) -> str:
    side, words = ("plain", "verifier-only") if run.speculative is None else ("speculative", "speculative")
    generation = getattr(run, side)
    if generation is None or not generation.ids:
        return "Stopped before the first token." if lead else "Nothing was generated."
    rate = f[f"{side}_tokens_per_second"]
    speed = f" at {rate:.1f} tok/s" if rate is not None else ""
    tail = "" if side == "plain" else f": {_why(run, f)}"
    return f"{lead}{len(generation.ids)} tokens {words}{speed}{tail}; the other side did not run." + (f" {f['disturbed']}" if f["disturbed"] else "")


def _speed(f: dict) -> str:
    speedup, span = f["speedup"], f["speedup_range"]
    if speedup is None:
        return "The speed was not measured"
    spans = span[0] <= 1 <= span[1] and span[0] < span[1]
    if spans:
        return f"No difference in speed ({times(span[0], 2)}–{times(span[1], 2)} over the repeats)"
    if abs(speedup - 1) < SAME_WITHIN:
        return f"No difference in speed ({times(speedup, 2)})"
    digits = 2 if 1 / 1.1 < speedup < 1.1 else 1  # 1.0× faster would say nothing
    return f"{times(speedup, digits)} faster" if speedup > 1 else f"{times(1 / speedup, digits)} slower"


def _why(run: Run, f: dict) -> str:
    said = _accepted(run, f)
    if not f["proposed"]:
        return said
    if run.settings.drafter == "lookup":
        return said + "; prompt lookup needs no draft model"
    return said if f["cost_ratio"] is None else said + f"; a draft token cost {f['cost_ratio']:.2f} of a verifier pass"


def _accepted(run: Run, f: dict) -> str:
    """What became of the proposals: nothing that a clock has a say in."""
    lookup = run.settings.drafter == "lookup"
    if not f["proposed"]:
        return ("prompt lookup found nothing to propose" if lookup else "the draft proposed nothing") + \
            ", so the verifier went on alone"
    return f"{percent(f['acceptance_rate'])} of {'looked-up' if lookup else 'draft'} tokens accepted"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _difference(run: Run, f: dict) -> str:
    """What to say when two greedy answers are not the same."""
    found = f["first_divergence"]
    if not found:
        return ""
    gap = found["gap"]
    near = f", where the verifier's two best tokens were {gap:.2g} logits apart" if gap is not None else ""
    return f" The two answers differ from token {found['index'] + 1} on{near}{rounding(run, [gap])}."


def rounding(run: Run, gaps: list[float | None]) -> str:
    """Why answers differ that should be equal, in brackets: by rounding, but only where each gap of the verifier's two best tokens (logits)
    was measured and is so small that rounding explains it; where one is not, that it does not."""
    verifier = run.models.get("verifier")
    if verifier is None or verifier.dtype not in HALF or not gaps or None in gaps:
        return ""
    if max(gaps) > ROUNDED:
        return f" (more than the rounding of {verifier.dtype} explains)"
    return f" ({verifier.dtype} rounds differently for one token and for several)"


def times(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}×"


def percent(share: float) -> str:
    """61 %, and never 0 % for something or 100 % for not everything."""
    if 0 < share < 0.005:
        return "under 1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return f"{share * 100:.0f} %"
