"""A recorded run, played again at its recorded times."""

from __future__ import annotations

import time
from html import escape

from engine import stamps
from engine.analysis.metrics import metrics
from engine.trace import AnyRun, Run
from ui.card import SIDES
from ui.grow import at, length, moments, so_far
from ui.live import panel_html
from ui.rounds import sentence as round_sentence

SPEEDS = {"½×": 0.5, "1×": 1.0, "2×": 2.0, "4×": 4.0}


class Tape:
    """Where the replay stands. `seconds` is recorded decode time; playing moves it with the clock, times `speed`."""

    def __init__(self, end: float):
        self.end, self.position, self.since, self.speed = end, 0.0, None, 1.0

    @property
    def playing(self) -> bool:
        return self.since is not None and self.seconds < self.end

    @property
    def seconds(self) -> float:
        moved = 0.0 if self.since is None else (time.monotonic() - self.since) * self.speed
        return min(self.position + moved, self.end)

    def play(self) -> None:
        if self.seconds >= self.end:
            self.position = 0.0
        else:
            self.position = self.seconds
        self.since = time.monotonic()

    def pause(self) -> None:
        self.position, self.since = self.seconds, None

    def go(self, seconds: float) -> None:
        self.position, self.since = min(max(seconds, 0.0), self.end), None

    def set_speed(self, speed: float) -> None:
        playing = self.playing
        self.pause()
        self.speed = speed
        if playing:
            self.since = time.monotonic()


def step(run: Run, tape: Tape, by: int) -> None:
    """To the end of the next speculative round, or of the one before."""
    ends, now = moments(run), tape.seconds
    if by > 0:
        tape.go(next((t for t in ends if t > now + 1e-9), tape.end))
    else:
        tape.go(max((t for t in ends if t < now - 1e-9), default=0.0))


def replay_html(run: Run, seconds: float) -> str:
    """Both sides as they stood then, the round that was just judged in words, and the sentence."""
    now, end = at(run, seconds), length(run)
    over = seconds >= end
    whole = metrics(run)
    rounds = len(now.speculative.rounds) if now.speculative else 0
    headline = whole["sentence"] if over else so_far(now, metrics(now)) if seconds > 0 else "Both sides begin."
    explained = round_sentence(run, rounds - 1) if rounds else "The draft proposes, the verifier judges all of it in one pass."
    share = 100 * seconds / end if end else 100
    notes, writing = {}, set()
    for side in SIDES:
        g, all_of_it = getattr(now, side), getattr(run, side)
        if g and all_of_it:
            finished = len(g.rounds) == len(all_of_it.rounds)
            writing |= set() if finished else {side}
            notes[side] = f"{len(g.ids)} of {len(all_of_it.ids)} tokens"
            if finished:
                notes[side] += f", done after {all_of_it.rounds[-1].end:.2f} s"
    panels = "".join(panel_html(now, side, notes.get(side, ""), side in writing) for side in SIDES)
    return (f'<div class="sl live replay"><div class="status"><b>Recorded run</b>'
            f'<span>{seconds:.2f} of {end:.2f} s of decoding</span></div>'
            f'<div class="bar" role="progressbar" aria-label="Replay" aria-valuenow="{share:.0f}">'
            f'<i style="width:{share:.1f}%"></i></div>'
            f'<p class="headline">{escape(headline)}</p><div class="sides">{panels}</div>'
            f'<p class="quiet explained">{escape(explained)}</p></div>')


def provenance(run: Run) -> str:
    """When and on what it was recorded, in one sentence, and what the replay does with it."""
    return (f"Recorded {recorded_words(run)}. The two sides ran one after the other; the replay starts both clocks together and keeps the "
            "recorded times.")


def recorded_words(run: AnyRun) -> str:
    """on 2026-12-07 11:30 UTC with SmolLM2-135M-Instruct and smollm2-draft (bfloat16) on AMD EPYC, Linux 6.18: when and on what it was made."""
    titles = " and ".join(dict.fromkeys(facts.title for facts in run.models.values()))
    kinds = ", ".join(dict.fromkeys(facts.dtype for facts in run.models.values()))
    return f"on {stamps.shown(run.created, seconds=False)} with {titles} ({kinds}) on {run.machine.chip}, {run.machine.system}"
