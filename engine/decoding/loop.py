"""The decoding loop: one for verifier-only and for speculative decoding.

A round is one verifier pass. Without a drafter, or when it proposes nothing, a round emits one token: that is
verifier-only decoding. Before each round the verifier's cache holds exactly the text minus its last token.
"""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from engine import energy
from engine.decoding.clock import Clock
from engine.decoding.drafters import Draft, Drafter
from engine.decoding.ending import Ending, text_of
from engine.decoding.numbers import require_numbers
from engine.decoding.trail import Trail
from engine.errors import RequestError
from engine.models.base import Model, Session
from engine.sampling import Uniforms
from engine.trace import BONUS, CORRECTION, FAILED, PLAIN, ROOM_CUT, Generation, Round, Settings

VERIFIER_STREAM, DRAFT_STREAM = 0, 1  # streams of uniform draws
FULL = "the draft's context is full"
TIE = "the verifier's two best tokens were too close to be told apart in a block, so the next round asks it alone"


class BrokeOff(Exception):
    """Decoding failed after something was written. `generation` is what there is, `cause` what went wrong."""

    def __init__(self, generation: Generation, cause: Exception):
        super().__init__(str(cause))
        self.generation, self.cause = generation, cause


class Judged(NamedTuple):
    """A round without its times, and what the trail wants of it: scores, and the distributions its tokens were drawn from."""

    round: Round
    logits: Any
    drawn_from: Any
    finish: str | None
    fed: int  # tokens the pass was over


class Penalty:
    """The repetition penalty: one mark for each id that the text has."""

    def __init__(self, ops: Any, strength: float):
        self.ops, self.strength, self._seen = ops, strength, None

    def applied(self, logits: Any, text: Sequence[int], block: Any) -> Any:
        """Scores of a block's rows, each penalised for the text and for the proposals before it."""
        if self.strength == 1:
            return logits
        if self._seen is None:
            self._seen = self.ops.nothing_seen(logits.shape[-1], logits)
            self.mark(text, logits)
        seen = self._seen[None] if block is None else self.ops.seen_rows(self._seen, block.ids)
        return self.ops.penalise(logits, seen, self.strength)

    def mark(self, ids: Sequence[int], like: Any) -> None:
        if self._seen is not None and ids:
            self.ops.mark(self._seen, self.ops.ids_on_device(ids, like))


class Verifying:
    """The verifier's side of decoding one text.

    `slack`: greedy choices of a block whose two best scores are closer than this are left to a pass of one row, as plain
    decoding makes it: a block of rows rounds differently (`engine.decoding.guard`).
    """

    def __init__(self, verifier: Model, session: Session, settings: Settings, slack: float):
        self.verifier, self.ops, self.session, self.sampling = verifier, verifier.ops, session, settings.sampling
        self.slack = slack if settings.sampling.greedy else 0.0
        self.uniforms = Uniforms(settings.sampling.seed, VERIFIER_STREAM)
        self.penalty = Penalty(verifier.ops, settings.sampling.repetition_penalty)
        self.ending = Ending(verifier, settings.stop)
        self.written = 0

    def round(self, text: Sequence[int], draft: Draft | None) -> Judged:
        """One round of speculative decoding (Leviathan et al. 2023, algorithm 1), or of plain decoding where draft is None.

        1. One pass over the text's last token and the k proposals gives the verifier's scores at k + 1 positions.
        2. p are the distributions it draws from there, q those that the proposals were drawn from; proposal i is kept with
           probability min(1, p/q), and the closing token is drawn from the residual at the first that is not, or from the
           last row of p.
        3. The round ends early where a block cannot tell the two best tokens apart, at an end token, or at a stop string.
        4. The cache forgets what did not become text, and the token that was never fed is the next round's first.
        """
        block, ops = None if draft is None else draft.proposal, self.ops
        logits, seconds = self._pass(text, block)
        scores = self.penalty.applied(logits, text, block)
        count = logits.shape[0] - 1
        best = ops.to_host(ops.best_of(scores, min(2, scores.shape[-1]))[0])
        require_numbers(best[:1], self.verifier.facts, self.written)
        numbers = next((i for i, row in enumerate(best) if not math.isfinite(row[0])), count + 1)
        if numbers <= count:  # rows that are no numbers cannot be judged: another stands in, and the round ends before it
            scores = ops.join([scores[:numbers], *[scores[:1]] * (count + 1 - numbers)])
        uniform = self.uniforms.take(count + 1)
        drawn_from = ops.filtered(scores, self.sampling)
        accepted, closing, proposed, p, q = ops.judge_to_host(drawn_from, block, uniform, logits.shape[-1])

        emitted, kind = [*proposed[:accepted], closing], PLAIN if not count else BONUS if accepted == count else CORRECTION
        close = self._undecided(best[: accepted + 1], numbers) if count else None
        if close is not None:
            emitted, accepted, kind = emitted[:close], close, None
        emitted, finish = self.ending.cut(emitted)
        if finish and len(emitted) <= accepted:  # the end is a draft token: nothing after it ever was
            accepted, kind, close = len(emitted), None, None
            proposed, p, q = proposed[:accepted], p[:accepted], q[:accepted]
        self.session.rewind(count + 1 - len(emitted))
        self.penalty.mark(emitted, logits)
        self.written += len(emitted)
        judged = min(accepted + (close is None), len(proposed))
        made = Round(
            proposed=tuple(proposed), accepted=accepted, emitted=tuple(emitted), closing=kind, p=tuple(p),
            q=tuple(None if draft.logits is None else v for v in q) if draft else (),
            draw=tuple(None if self.sampling.greedy or i >= judged else uniform[i] for i in range(len(proposed))),
            verify_seconds=seconds, note=None if close is None else TIE,
            tie=None if close is None else best[close][0] - best[close][-1] if close < numbers else 0.0)
        return Judged(made, logits, drawn_from, finish, count + 1)

    def _undecided(self, best: Sequence[Sequence[float]], numbers: int) -> int | None:
        """The first row of a block that a pass of its own must decide; None where there is none. best: two best scores a row."""
        return next((i for i, row in enumerate(best) if i >= numbers or row[0] - row[-1] < self.slack), None)

    def _pass(self, text: Sequence[int], block: Any) -> tuple[Any, float]:
        """One pass over the text's last token and the block: logits (k + 1, width), and the seconds it took."""
        ops, began = self.ops, perf_counter()
        ids = text[-1:] if block is None else ops.join([ops.ids_on_device(text[-1:], block.ids), block.ids])
        logits = self.session.feed(ids, 1 if block is None else len(block.ids) + 1)
        self.verifier.synchronise()
        return logits, perf_counter() - began


def decode(verifier: Model, drafter: Drafter | None, prompt: Sequence[int], settings: Settings, stop: Callable[[], bool] = lambda: False,
           watch: bool = True, slack: float = 0.0) -> Iterator[Round]:
    """Yield rounds as they are made; the generator's return value is the `Generation`.

    Streamed rounds lack what the trail works out later (entropies and, when greedy, p and q); the rounds of the
    returned generation have all. `watch` False keeps no trail (repeats that are only timed, warm-up). `slack`: see `Verifying`.
    `settings.max_tokens` must already respect the verifier's context (`engine.prompts.check_length`).
    Raises BrokeOff where it fails after the first round, and what went wrong itself where it fails before.
    """
    text, rounds, notes = list(prompt), [], []
    trail = Trail(verifier.ops) if watch else None
    most, finish, failure, alone = len(text) + settings.max_tokens, None, None, False
    meter, window, session = energy.meter(), None, None
    try:
        session = verifier.session(most + 1)
        prefill = _read(verifier, session, drafter, text)
        window = meter.begin()  # between the two clocks: in neither
        clock = Clock()
        verifying = Verifying(verifier, session, settings, slack if drafter else 0.0)
        while finish is None and len(text) < most:
            if stop():
                finish = "stopped"
                break
            draft, asked = _proposed(drafter, text, most - len(text), settings.gamma, alone, notes)
            judged = verifying.round(text, draft)
            if draft is not None:
                drafter.settle(judged.round.accepted)
            finish, alone = judged.finish, judged.round.tie is not None
            text += judged.round.emitted
            rounds.append(_whole(judged.round, draft, asked, clock.now()))
            clock.fed.append(judged.fed)
            with clock.standing():  # the trail and the reader's own time are no decoding
                if trail:
                    rounds[-1] = trail.hold(judged.logits, rounds[-1], draft, judged.drawn_from, raw=settings.sampling.greedy)
                yield rounds[-1]
        end = clock.now()
    except (RequestError, RuntimeError, MemoryError) as e:
        if not rounds:
            raise
        failure, finish, end = e, FAILED, rounds[-1].end
    finally:
        joules = meter.end(window)
        for used in (session, drafter):
            if used:
                used.close()
    ids = tuple(text[len(prompt) :])
    finish = finish or ("context" if len(text) == verifier.facts.context else "length")
    timing = clock.timing(prefill, end, rounds, joules)
    made = Generation("speculative" if drafter else "plain", ids, text_of(verifier, ids, settings.stop), finish, rounds=tuple(rounds),
                      timings=(timing,), notes=tuple(notes), guard=slack if drafter and settings.sampling.greedy else None)
    if trail:
        try:
            made = trail.complete(made, drafter and drafter.usable_bits)
        except (RuntimeError, MemoryError):  # of a device that is lost there is no more to be had than the tokens
            if failure is None:
                raise
    if failure is not None:
        raise BrokeOff(made, failure)
    return made


def _read(verifier: Model, session: Session, drafter: Drafter | None, text: list[int]) -> float:
    """Prefill: all but the last token, by both. Returns seconds."""
    begun = perf_counter()
    if len(text) > 1:
        session.feed(text[:-1], 0)
    if drafter:
        drafter.begin(text[:-1])
    verifier.synchronise()
    return perf_counter() - begun


class Asked(NamedTuple):
    """What was wanted of the drafter in a round: `gamma` tokens, None where nobody was asked; and why it could not be that many."""

    gamma: int | None = None
    cut: str | None = None
    note: str | None = None


def _proposed(drafter: Drafter | None, text: list[int], left: int, gamma: int, alone: bool, notes: list[str]) -> tuple[Draft | None, Asked]:
    """The drafter's proposals for a text of which `left` tokens are still to be written."""
    if drafter is None or alone:
        return None, Asked()
    room = drafter.room(len(text))
    if room <= 0:
        if not notes:
            notes.append(f"After token {len(text)} the draft's context is full; the verifier goes on alone.")
        return None, Asked(gamma, ROOM_CUT, FULL)
    count = min(gamma, left - 1, room)
    return drafter.propose(text, count) if count > 0 else None, Asked(gamma, ROOM_CUT if count < gamma else None)


def _whole(made: Round, draft: Draft | None, asked: Asked, end: float) -> Round:
    """The round with what the drafter has to say of it, and its place on the clock."""
    if draft is None:
        return replace(made, asked=asked.gamma, cut=asked.cut, note=made.note or asked.note, end=end)
    return replace(made, asked=asked.gamma, cut=draft.cut or asked.cut, note=". ".join(n for n in (draft.note, made.note) if n) or None, end=end,
                   draft_seconds=draft.seconds, draft_ids=draft.ids, translate_seconds=draft.translate_seconds)
