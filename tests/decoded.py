"""Decoding on scripted models, audited: what a test of the loop needs to run it and to look into both caches."""

from __future__ import annotations

from engine.decoding.frame import drain
from engine.decoding.drafters import LookupDrafter, ModelDrafter
from engine.decoding.loop import DRAFT_STREAM, decode
from engine.sampling import Uniforms
from engine.trace import Generation, Settings
from tests.scripted import ScriptedModel

WIDTH = 6


def drafter_of(draft, verifier, settings: Settings):
    if draft == "lookup":
        return LookupDrafter(verifier.ops, verifier.anchor, settings.lookup_ngram)
    return draft and ModelDrafter(draft, verifier.width, settings.sampling, Uniforms(settings.sampling.seed, DRAFT_STREAM),
                                  settings.entropy_stop)


def decoded(verifier, draft, prompt, settings: Settings, **kwargs) -> Generation:
    return drain(decode(verifier, drafter_of(draft, verifier, settings), prompt, settings, **kwargs))


def audited(verifier, draft, prompt, settings: Settings) -> Generation:
    """Decode, and after every round check what both caches hold and what the verifier was fed."""
    rounds = decode(verifier, drafter_of(draft, verifier, settings), prompt, settings)
    text = list(prompt)
    while True:
        try:
            r = next(rounds)
        except StopIteration as end:
            generation = end.value
            break
        reader = verifier.sessions[-1]
        at, fed, last = reader.log[-1]
        assert at == len(text) - 1 and fed[0] == text[-1] and last == len(fed)  # the last token first, every row scored
        assert fed[1 : 1 + len(r.proposed)] == r.proposed
        assert r.emitted[: r.accepted] == r.proposed[: r.accepted]
        text += r.emitted
        assert list(reader.held) == text[:-1]
        if isinstance(draft, ScriptedModel) and r.proposed and r.closing:  # no closing: an end token was accepted, the run is over
            known = [i if draft.support is not None else min(i, draft.width - 1) for i in text]
            assert list(draft.sessions[-1].held) == (known[:-2] if r.accepted == len(r.proposed) else known[:-1])
    for session in [*verifier.sessions, *(draft.sessions if isinstance(draft, ScriptedModel) else ())]:
        assert session.closed
    assert tuple(text[len(prompt) :]) == generation.ids == tuple(i for r in generation.rounds for i in r.emitted)
    assert len(generation.entropy) == len(generation.top) == len(generation.probability) == len(generation.ids)
    return generation
