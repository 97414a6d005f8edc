"""Two models with different tokenizers for tests: scripted ones that tell a story, and cross decoding with a look inside."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models

from engine import prompts
from engine.decoding import translators
from engine.decoding.causes import explained
from engine.decoding.frame import drain
from engine.decoding.cross import CrossDrafter
from engine.decoding.cuts import characters, ids_by_bytes
from engine.decoding.loop import DRAFT_STREAM, decode
from engine.sampling import Uniforms
from engine.tokens import Vocabulary
from engine.trace import Generation, Prompt, Settings
from tests import toys
from tests.scripted import ScriptedModel


@cache
def spm() -> Vocabulary:
    """▁Za, ż, ółć, ▁gęś, … and byte fallback; puts <s> and a space mark in front."""
    return toys.vocabulary(toys.sentencepiece_like(), "spm")


@cache
def bytewise() -> Vocabulary:
    """One token a byte; <|im_start|> and <|im_end|> are special, <think> is an added token without the flag."""
    return toys.vocabulary(toys.byte_level(), "bytes")


def pieces(*tokens: str) -> Vocabulary:
    """A BPE without any pre-tokenizer whose tokens are `tokens`; a longer one is merged from its first letters and its last."""
    merges = [(t[:-1], t[-1]) for t in tokens if len(t) > 1]
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    backend.decoder = decoders.Fuse()
    return toys.vocabulary(toys.fast(backend), "pieces")


def teller(vocabulary: Vocabulary, story: str, otherwise: int = 0):
    """A script that writes `story` in the longest tokens there are, wherever in it the text held so far ends. A text that is
    no beginning of the story leads to token `otherwise`. Control tokens and a mark in front of the text are overlooked."""
    ordinary = sorted(((vocabulary.bytes_of(i), i) for i in vocabulary.ids_by_token().values()
                       if i not in vocabulary.control and vocabulary.bytes_of(i)), key=lambda t: -len(t[0]))
    whole = story.encode()

    def script(held):
        text = b"".join(vocabulary.bytes_of(i) for i in held if i not in vocabulary.control)
        if text[:1] == b" " and not whole.startswith(text):
            text = text[1:]
        rest = whole[len(text):] if whole.startswith(text) else b""
        token = next((i for data, i in ordinary if rest and rest.startswith(data)), otherwise)
        return [5.0 if i == token else 0.01 * (i % 7) for i in range(vocabulary.size)]

    return script


def scripted(script, vocabulary: Vocabulary, **kwargs) -> ScriptedModel:
    return ScriptedModel(script, kwargs.pop("width", vocabulary.size), vocabulary=vocabulary, **kwargs)


def raw(vocabulary: Vocabulary, text: str) -> Prompt:
    return prompts.build(vocabulary, text, raw=True)


def drafter(verifier, draft, strategy: str, both: tuple[Prompt, Prompt], settings: Settings, prefix: int = 5) -> CrossDrafter:
    return CrossDrafter(draft, verifier, translators.make(strategy, verifier, draft, prefix), both, settings,
                        Uniforms(settings.sampling.seed, DRAFT_STREAM), ids_by_bytes(draft.vocabulary))


def crossed(verifier, draft, strategy: str, text: str, settings: Settings, prefix: int = 5, **kwargs) -> Generation:
    """An answer to raw `text`, with causes."""
    both = raw(verifier.vocabulary, text), raw(draft.vocabulary, text)
    made = drain(decode(verifier, drafter(verifier, draft, strategy, both, settings, prefix), both[0].ids, settings, **kwargs))
    return explained(made, verifier.vocabulary, draft.vocabulary)


def audited(verifier, draft, strategy: str, text: str, settings: Settings, prefix: int = 5) -> Generation:
    """Decode, and look after every round at what both caches hold, at what the draft has read, and at what was sent."""
    v, d = verifier.vocabulary, draft.vocabulary
    both = raw(v, text), raw(d, text)
    made = drafter(verifier, draft, strategy, both, settings, prefix)
    rounds, committed = decode(verifier, made, both[0].ids, settings), list(both[0].ids)
    opening, start = list(d.opening), bytes_of(d, both[1].ids)
    while True:
        try:
            r = next(rounds)
        except StopIteration as end:
            answer = end.value
            break
        if r.draft_ids or r.proposed:
            held, read = list(draft.sessions[-1].held), made.reading.ids
            assert held[: len(read)] == read[: len(held)] and len(held) >= len(read)  # all it read, then what it wrote
            assert tuple(held[len(read):]) == r.draft_ids[: len(held) - len(read)]
            emitted = committed[len(both[0].ids):]
            assert held[: len(opening)] == opening
            assert sum(held.count(i) for i in opening) <= len(opening) + sum(v.bytes_of(i) == d.bytes_of(o) for i in emitted for o in opening)
            assert bytes_of(d, read) == start + readable(v, emitted)
        sent, wrote = bytes_of(v, r.proposed), bytes_of(d, r.draft_ids)
        if strategy in ("context", "tli"):
            assert wrote.startswith(sent)
        committed += r.emitted
        assert list(verifier.sessions[-1].held) == committed[:-1]
    assert all(s.closed for s in (*draft.sessions, *verifier.sessions)) and len(answer.rounds) <= settings.max_tokens
    return explained(answer, v, d)


def alone(verifier, text: str, settings: Settings, **kwargs) -> Generation:
    return drain(decode(verifier, None, raw(verifier.vocabulary, text).ids, settings, **kwargs))


def counts(answer: Generation) -> tuple[int, int]:
    """(accepted, proposed)"""
    return sum(r.accepted for r in answer.rounds), sum(len(r.proposed) for r in answer.rounds)


def readable(vocabulary: Vocabulary, ids) -> bytes:
    """The bytes of `ids` that are text, and those of a character begun at the end. A control token ends what was begun."""
    text, held = b"", b""
    for i in ids:
        held = b"" if i in vocabulary.control else held + vocabulary.bytes_of(i)
        complete, held = characters(held)
        text += complete.encode()
    return text + held


def bytes_of(vocabulary: Vocabulary, ids) -> bytes:
    return b"".join(vocabulary.bytes_of(i) for i in ids if i not in vocabulary.control)
