"""A draft with another tokenizer: it reads the committed text in its own tokens, and what it writes is translated.

The verifier's ids are never cut anew; only candidates cross. A translated candidate has no q: it is a point mass, kept
with probability p(x), whatever made the draft write it. So the draft writes its best token each time, the one most likely
to be kept. Where it draws from the tokens that both vocabularies have (`tli`), q is known for the verifier's ids, and the
draft draws with the same settings as the verifier.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any, Mapping, NamedTuple, Sequence

from engine.decoding.cuts import text_ahead
from engine.decoding.drafters import Draft
from engine.decoding.reading import Reading
from engine.decoding.translators import Candidates, Translator
from engine.models.base import Model
from engine.sampling import Uniforms
from engine.trace import Prompt, Sampling, Settings

WIDEST = 8  # candidates that a draft token may become, on average over a round: judging hundreds pays for nobody
FULL = "the draft's context is full"
_BEST = Sampling()


class Written(NamedTuple):
    """What the draft wrote in a round. `ids`: its own, up to the first control token, which is named in `note` (and is one of
    them only in `tli`, where it ends a text for both). The others run over its draws and stay on the device."""

    ids: list[int]
    drawn: list[tuple]  # distribution, verifier's id (1,), q (1,): tli only
    rows: list[Any]  # raw scores of the shared tokens
    columns: list[Any]
    seconds: float  # inside its forwards
    note: str | None


class CrossDrafter:
    """Its cache holds a beginning of what it reads, and what it last wrote. Before it proposes it forgets everything from
    the first token on that the committed text changed, and is fed the rest."""

    def __init__(self, draft: Model, verifier: Model, translator: Translator, prompts: tuple[Prompt, Prompt], settings: Settings,
                 uniforms: Uniforms, by_bytes: Mapping[tuple[bytes, bool], int]):
        """prompts: the verifier's and the draft's, of one text. by_bytes: `cuts.ids_by_bytes` of the draft's vocabulary."""
        self.model, self.translator, self.settings, self.uniforms = draft, translator, settings, uniforms
        self.limit = len(prompts[0].ids) + settings.max_tokens  # the verifier's text will never be longer
        self.theirs, self.own, self.width, self.by_bytes = verifier.vocabulary, draft.vocabulary, verifier.width, by_bytes
        self.shared, self.usable_bits = None, None
        if translator.shared is not None:
            self.shared = [draft.ops.ids_on_device(ids, draft.anchor) for ids in translator.shared]
            self.usable_bits = math.log2(max(len(translator.shared.verifier), 2))
        floor = len(prompts[1].ids) if prompts[1].template else len(draft.vocabulary.opening)
        self.reading = Reading(draft.vocabulary, prompts[1].ids, floor, by_bytes)
        self.session = draft.session(len(prompts[1].ids) + 2 * settings.max_tokens)
        self._known = len(prompts[0].ids)  # tokens of the verifier's text that the draft has heard of
        self._fed: list[int] = []  # what the session holds
        self._full = False

    def begin(self, text: Sequence[int]) -> None:
        if len(self.reading.ids) > 1 and self.room(len(text)) > 0:
            self._fed = self.reading.ids[:-1]
            self.session.feed(self._fed, 0)

    def room(self, length: int) -> int:
        """In the draft's own count of what it has read, whatever the verifier's `length`."""
        context = self.model.facts.context
        return 0 if self._full else 1_000_000 if context is None else context - len(self.reading.ids)

    def propose(self, text: Sequence[int], count: int) -> Draft | None:
        began = perf_counter()
        self._catch_up(text)
        between = perf_counter() - began
        if self.shared is None:
            count = self.settings.gamma  # of its own tokens; `count` is what the verifier has room for
        if self.model.facts.context is not None:
            count = min(count, self.model.facts.context - len(self.reading.ids))
        if count <= 0:
            self._full = True
            return Draft(None, translate_seconds=between, note=FULL)
        if not self.reading.ids:
            return Draft(None, translate_seconds=between, note="the draft has no token to read yet")
        if self.translator.shared is not None and not self.translator.shared.draft:
            return Draft(None, translate_seconds=between, note="the two vocabularies share no token")
        written = self._write(text, count)
        began = perf_counter()
        found = self._candidates(text, written.ids)
        ids = found.ids[: min(self.limit - len(text) - 1, WIDEST * count)]
        note = " ".join(n for n in (written.note, found.note) if n) or None
        ops, n, proposal, rows, columns = self.model.ops, len(ids), None, None, None
        if n and self.shared is None:
            proposal = ops.point_masses(ids, self.model.anchor)
        elif n:
            proposal = ops.proposal(written.drawn[:n], self.shared[2], self.width)
            rows, columns = ops.join(written.rows[:n]), ops.join(written.columns[:n])
        between += perf_counter() - began
        return Draft(proposal, rows, columns, written.seconds, tuple(written.ids), between, note)

    def _catch_up(self, text: Sequence[int]) -> None:
        """Read what the verifier emitted since, and roll the cache back to where it still agrees with what is read."""
        reading, data = self.reading, b""
        reading.begin()
        for i in text[self._known :]:
            piece = self.theirs.bytes_of(i)
            if i in self.theirs.control:
                reading.text(data)
                data = b""
                reading.control(self.by_bytes.get((piece, True)))
            else:
                data += piece
        reading.text(data)
        self._known = len(text)
        ids, fed = reading.ids, self._fed
        most = min(len(fed), max(len(ids) - 1, 0))  # the last token is fed anew, for its scores
        same = min(reading.agreed, most)
        while same < most and fed[same] == ids[same]:
            same += 1
        if same < len(fed):
            self.session.rewind(len(fed) - same)
            del fed[same:]

    def _write(self, text: Sequence[int], count: int) -> Written:
        """Feed the draft what it has not read, and let it write."""
        ops, s, model, control = self.model.ops, self.settings.sampling, self.model, self.own.control
        named = model.support if self.shared is None else self.shared[2]  # ids that the columns stand for, where not their own
        started, inside = perf_counter(), 0.0
        uniform = None if self.shared is None else ops.uniforms_on_device(self.uniforms.take(count), model.anchor)
        seen = self._seen(text) if s.repetition_penalty != 1 else None
        drawn, rows, columns, tokens, host = [], [], [], [], []
        feed: Any = self.reading.ids[len(self._fed) :]
        for i in range(count):
            before = perf_counter()
            logits = self.session.feed(feed, 1)
            inside += perf_counter() - before
            if self.shared is not None:
                logits = logits[:, self.shared[0]]
            scores = logits if seen is None else ops.penalise(logits, seen if named is None else seen[named], s.repetition_penalty)
            d = ops.filtered(scores, _BEST if self.shared is None else s)
            raw, q = ops.draw(d, [0.0] if uniform is None else uniform[i : i + 1])
            id_there = raw if named is None else named[raw]
            feed = id_there if self.shared is None else self.shared[1][raw]
            tokens.append(feed), rows.append(logits), columns.append(raw), drawn.append((d, id_there, q))
            if seen is not None:
                ops.mark(seen, id_there)
            if not model.asynchronous:  # looking costs nothing, and a draft that stops need not be asked on
                host += ops.to_host(feed)
                if host[-1] in control:
                    break
        if model.asynchronous:  # forwards run on behind our back: the whole phase is their time
            host = ops.to_host(ops.join(tokens))
            inside = perf_counter() - started
        self._fed = self.reading.ids + host[:-1]
        stop = next((n for n, i in enumerate(host) if i in control), len(host))
        note = None if stop == len(host) else f"the draft stopped with {self.own.name(host[stop])}"
        if self.shared is not None:  # an end token that both have is a candidate like any other
            stop += stop < len(host)
        return Written(host[:stop], drawn, rows, columns, inside, note)

    def _seen(self, text: Sequence[int]) -> Any:
        """Marks for the repetition penalty: of the verifier's ids where the draft draws for them, else of its own."""
        ops, model = self.model.ops, self.model
        ids, width = (self.reading.ids, max(self.own.size, model.width)) if self.shared is None else (text, self.width)
        seen = ops.nothing_seen(width, model.anchor)
        ops.mark(seen, ops.ids_on_device(ids, model.anchor))
        return seen

    def _candidates(self, text: Sequence[int], written: list[int]) -> Candidates:
        """What the draft wrote, in the verifier's ids."""
        held, data = self.reading.held, b"".join(map(self.own.bytes_of, written))
        if held and not self.reading.complete:  # then it began to write before the character that it could not read
            whole = data if data.startswith(held) else held
        else:
            whole = held + data
        ahead = text_ahead(whole)
        return self.translator.candidates(text, held, written, ahead if len(ahead.encode()) > len(held) else "")

    def settle(self, accepted: int) -> None:
        """Nothing: the next `propose` compares what it reads with what the cache holds."""

    def close(self) -> None:
        self.session.close()
