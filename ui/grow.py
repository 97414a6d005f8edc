"""A run that is not finished yet, or is being replayed: as much of it as there is at one moment. Pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Sequence

from engine.decoding.clock import Load
from engine.request import CompareRequest, Step
from engine.trace import Generation, Machine, Prompt, Round, Run, Timing
from ui.card import SIDES

NOWHERE = Machine(system="", chip="", cores=0, memory_bytes=0, python="", packages={})


def generation(side: str, rounds: Sequence[Round], prefill: float = 0.0, tokens: Mapping[int, str] | None = None,
               load: Load | None = None) -> Generation:
    """One side from its finished rounds alone, and whose the processor was meanwhile."""
    ids = tuple(i for r in rounds for i in r.emitted)
    timing = Timing(prefill_seconds=prefill, decode_seconds=rounds[-1].end if rounds else 0.0,
                    verify_seconds=sum(r.verify_seconds for r in rounds), draft_seconds=sum(r.draft_seconds for r in rounds),
                    tokens=len(ids), passes=len(rounds), **(_seconds(load) if load else {}))
    text = b"".join(bytes.fromhex(tokens.get(i, "")) for i in ids).decode("utf-8", "ignore") if tokens else ""
    return Generation(mode=side, ids=ids, text=text, finish="stopped", rounds=tuple(rounds), timings=(timing,) if rounds else ())


def _seconds(load: Load) -> dict:
    return dict(processor_seconds=load.own, others_seconds=load.others, idle_seconds=load.idle)


def growing(asked: CompareRequest, steps: Mapping[str, Sequence[Step]], tokens: Mapping[int, str], loads: Mapping[str, Load | None] = {}) -> Run:
    """What the steps heard so far of each side amount to. It is drawn and thrown away, never kept."""
    sides = {side: generation(side, [step.round for step in steps[side]], tokens=tokens, load=loads.get(side)) if steps.get(side) else None
             for side in SIDES}
    prompt = Prompt(text=asked.prompt, ids=(), system=asked.system, raw=asked.raw)
    machine = replace(NOWHERE, cores=max((load.cores for load in loads.values() if load), default=0))
    return Run(id="", created="", prompt=prompt, settings=asked.settings, models={}, machine=machine, tokens=dict(tokens),
               status="stopped", **sides)


def at(run: Run, seconds: float) -> Run:
    """`run` as it stood `seconds` after both sides began to decode (first repeat, recorded times)."""
    return replace(run, **{side: _until(getattr(run, side), seconds) for side in SIDES})


def _until(whole: Generation | None, seconds: float) -> Generation | None:
    if whole is None:
        return None
    kept = tuple(r for r in whole.rounds if r.end <= seconds)
    if len(kept) == len(whole.rounds):
        return whole
    prefill = whole.timings[0].prefill_seconds if whole.timings else 0.0
    part = generation(whole.mode, kept, prefill)
    n = len(part.ids)
    return replace(part, entropy=whole.entropy[:n], top=whole.top[:n], probability=whole.probability[:n])


def length(run: Run) -> float:
    """Seconds until the slower side has decoded its last round."""
    return max((g.rounds[-1].end for g in (run.plain, run.speculative) if g and g.rounds), default=0.0)


def moments(run: Run) -> list[float]:
    """When a speculative round ended, in order: where a step forward or back lands."""
    return [r.end for r in run.speculative.rounds] if run.speculative else []


def so_far(run: Run, figures: dict) -> str:
    """One sentence about an unfinished run; `figures` are its metrics."""
    plain, fast = figures["plain_tokens_per_second"], figures["speculative_tokens_per_second"]
    parts = []
    if run.speculative and figures["proposed"]:
        parts.append(f"{figures['acceptance_rate'] * 100:.0f} % of {figures['proposed']} draft tokens accepted")
        parts.append(f"{figures['tokens_per_pass']:.1f} tokens per verifier pass")
    elif run.speculative:
        parts.append("nothing was proposed, the verifier goes on alone")
    if figures["disturbed"]:
        parts.append(figures["disturbed"][0].lower() + figures["disturbed"][1:-1])
    elif plain and fast:
        ratio = fast / plain
        parts.append("as fast as verifier-only" if abs(ratio - 1) < 0.02 else
                     f"{ratio:.2f}× faster than verifier-only" if ratio > 1 else f"{1 / ratio:.2f}× slower than verifier-only")
    elif plain or fast:
        parts.append(f"{'verifier-only' if plain else 'speculative'} at {plain or fast:.1f} tok/s")
    return "So far: " + "; ".join(parts) + "." if parts else "So far nothing was written."
