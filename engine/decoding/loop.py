"""The decoding loop: one for verifier-only and for speculative decoding.

A round is one verifier pass. Without a drafter, or when it proposes nothing, a round emits one token: that is
verifier-only decoding. Before each round the verifier's cache holds exactly the text minus its last token.
"""

from __future__ import annotations

from time import perf_counter
from typing import Callable, Iterator, Sequence

from engine import energy
from engine.decoding.clock import Clock
from engine.decoding.drafters import Drafter
from engine.decoding.trail import Trail
from engine.models.base import Model
from engine.sampling import Uniforms
from engine.tokens import Assembler
from engine.trace import BONUS, CORRECTION, PLAIN, Generation, Round, Settings

VERIFIER_STREAM, DRAFT_STREAM = 0, 1  # streams of uniform draws


def decode(verifier: Model, drafter: Drafter | None, prompt: Sequence[int], settings: Settings, stop: Callable[[], bool] = lambda: False,
           watch: bool = True) -> Iterator[Round]:
    """Yield rounds as they are made; the generator's return value is the `Generation`.

    Streamed rounds lack what the trail works out later (entropies and, when greedy, p and q); the rounds of the
    returned generation have all. `watch` False keeps no trail (repeats that are only timed, warm-up).
    `settings.max_tokens` must already respect the verifier's context (`engine.prompts.check_length`).
    """
    s, ops, ends = settings.sampling, verifier.ops, frozenset(verifier.ends)
    text, rounds = list(prompt), []
    trail = Trail(ops) if watch else None
    uniforms = Uniforms(s.seed, VERIFIER_STREAM)
    session = verifier.session(len(text) + settings.max_tokens + 1)
    notes: list[str] = []
    finish, seen, paused = "length", None, 0.0
    meter, window = energy.meter(), None
    try:
        begun = perf_counter()
        if len(text) > 1:
            session.feed(text[:-1], 0)
        if drafter:
            drafter.begin(text[:-1])
        verifier.synchronise()
        ready = perf_counter()
        window, clock = meter.begin(), Clock()  # between the two clocks: in neither
        start = perf_counter()
        while len(text) < len(prompt) + settings.max_tokens:
            if stop():
                finish = "stopped"
                break
            left = len(prompt) + settings.max_tokens - len(text)
            draft, note = None, None
            if drafter:
                room = drafter.room(len(text))
                if room <= 0:
                    note = "the draft's context is full"
                    if not notes:
                        notes.append(f"After token {len(text)} the draft's context is full; the verifier goes on alone.")
                else:
                    draft = drafter.propose(text, min(settings.gamma, left - 1, room)) if left > 1 else None
            block = None if draft is None else draft.proposal
            began = perf_counter()
            logits = session.feed(text[-1:] if block is None else ops.join([ops.ids_on_device(text[-1:], block.ids), block.ids]),
                                  1 if block is None else len(block.ids) + 1)
            verifier.synchronise()
            verify_seconds = perf_counter() - began
            scores = logits
            if s.repetition_penalty != 1:
                if seen is None:
                    seen = ops.nothing_seen(logits.shape[-1], logits)
                    ops.mark(seen, ops.ids_on_device(text, logits))
                scores = ops.penalise(logits, seen[None] if block is None else ops.seen_rows(seen, block.ids), s.repetition_penalty)
            count = logits.shape[0] - 1
            clock.fed.append(count + 1)
            uniform = uniforms.take(count + 1)
            drawn_from = ops.filtered(scores, s)
            accepted, closing, proposed, p, q = ops.judge_to_host(drawn_from, block, uniform, logits.shape[-1])
            emitted, ended = _until_end(proposed[:accepted] + [closing], ends)
            if ended and len(emitted) <= accepted:  # the end token is a draft token: nothing after it ever was
                accepted = len(emitted)
                proposed, p, q, closing_kind = proposed[:accepted], p[:accepted], q[:accepted], None
            else:
                closing_kind = PLAIN if not count else BONUS if accepted == count else CORRECTION
            session.rewind(count + 1 - len(emitted))
            if draft is not None:
                drafter.settle(accepted)
            text += emitted
            if seen is not None:
                ops.mark(seen, ops.ids_on_device(emitted, logits))
            judged = min(accepted + 1, len(proposed))
            rounds.append(Round(
                proposed=tuple(proposed), accepted=accepted, emitted=tuple(emitted), closing=closing_kind,
                q=tuple(None if draft.logits is None else v for v in q) if draft else (), p=tuple(p),
                draw=tuple(None if s.greedy or i >= judged else uniform[i] for i in range(len(proposed))),
                draft_seconds=draft.seconds if draft else 0.0, verify_seconds=verify_seconds, end=perf_counter() - start - paused,
                note=note or (draft.note if draft else None), draft_ids=draft.ids if draft else (),
                translate_seconds=draft.translate_seconds if draft else 0.0))
            if trail:
                paused += trail.hold(logits, emitted, proposed, draft, drawn_from, raw=s.greedy)
            handed = perf_counter()
            yield rounds[-1]
            paused += perf_counter() - handed  # the reader's own time is no decoding
            if ended:
                finish = "eos"
                break
        if finish == "length" and len(text) == verifier.facts.context:
            finish = "context"
        end = perf_counter() - start - paused
    finally:
        joules = meter.end(window)
        session.close()
        if drafter:
            drafter.close()
    ids = tuple(text[len(prompt) :])
    timing = clock.timing(ready - begun, end, rounds, joules)
    generation = Generation("speculative" if drafter else "plain", ids, text_of(verifier, ids), finish, rounds=tuple(rounds),
                            timings=(timing,), notes=tuple(notes))
    return trail.complete(generation, drafter and drafter.usable_bits) if trail else generation


def _until_end(ids: list[int], ends: frozenset[int]) -> tuple[list[int], bool]:
    for at, token in enumerate(ids):
        if token in ends:
            return ids[: at + 1], True
    return ids, False


def text_of(model: Model, ids: Sequence[int]) -> str:
    """Text of an answer, from its tokens' bytes. Special tokens (the end token) are no text."""
    assembler = Assembler()
    parts = [assembler.feed(model.vocabulary.bytes_of(i)) for i in ids if i not in model.vocabulary.special]
    return "".join(parts) + assembler.finish()
