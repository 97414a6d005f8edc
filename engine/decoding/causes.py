"""Why the first refused candidate of a round was refused: the cut, a close call, or another opinion.

In this order; the first that holds is the cause.

1. *boundary*: the verifier's own token goes on with the very text that the draft wrote, only cut elsewhere. Its bytes are
   a beginning of what was left of the draft's text, or that is a beginning of its bytes.
2. *diacritic boundary*: the same, and the end of the candidate or of the verifier's token, where these differ, lies at the
   edge of a letter with a Polish diacritic or inside it.
3. *near tie*: the verifier's two best tokens were less than NEAR_TIE apart.
4. *disagreement*: everything else.

A boundary that touches such a letter is a diacritic boundary and is not counted as a boundary a second time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generator

from engine.diacritics import letters
from engine.tokens import Vocabulary
from engine.trace import CORRECTION, Generation, Round
from engine.trace.uag import BOUNDARY, DIACRITIC, DISAGREEMENT, TIE

NEAR_TIE = 0.05  # of probability (raw softmax), between the verifier's best and second best token
LOOK_BACK = 16  # bytes of the text before a candidate that may belong to a letter at its beginning


class Causes:
    """Gives each round of one answer its cause, in the order in which they were decoded. It needs the round's `gap`."""

    def __init__(self, verifier: Vocabulary, draft: Vocabulary):
        self.verifier, self.draft, self._behind = verifier, draft, b""

    def of(self, r: Round) -> Round:
        """The round with its cause, if a candidate was refused in it."""
        made = replace(r, cause=cause(r, r.gap, self._behind, self.verifier, self.draft)) if r.closing == CORRECTION else r
        self._behind = (self._behind + b"".join(map(self.verifier.bytes_of, r.emitted)))[-LOOK_BACK:]
        return made


def as_judged(rounds: Generator[Round, None, Generation], verifier: Vocabulary, draft: Vocabulary) -> Generator[Round, None, Generation]:
    """Pass rounds on as they are decoded, each with its cause; returns the generation."""
    causes = Causes(verifier, draft)
    while True:
        try:
            r = next(rounds)
        except StopIteration as end:
            return end.value
        yield causes.of(r)


def explained(answer: Generation, verifier: Vocabulary, draft: Vocabulary) -> Generation:
    """The answer with `cause` and `gap` of every round in which a candidate was refused; a round that lacks its gap has it from
    `answer.top`."""
    rounds, at, causes = [], 0, Causes(verifier, draft)
    for r in answer.rounds:
        best = answer.top[at + r.accepted] if at + r.accepted < len(answer.top) else ()
        if r.closing == CORRECTION and r.gap is None and len(best) > 1:
            r = replace(r, gap=best[0][1] - best[1][1])
        rounds.append(causes.of(r))
        at += len(r.emitted)
    return replace(answer, rounds=tuple(rounds))


def cause(r: Round, gap: float | None, behind: bytes, verifier: Vocabulary, draft: Vocabulary) -> str:
    """Of a round that ended in a correction. `behind`: the last bytes of the text before it."""
    kept = b"".join(map(verifier.bytes_of, r.proposed[: r.accepted]))
    said = b"".join(map(draft.bytes_of, r.draft_ids))
    chosen = r.emitted[-1]
    took = b"" if chosen in verifier.control else verifier.bytes_of(chosen)
    left = said[len(kept) :] if said.startswith(kept) else b""  # another text was kept: it has no rest
    if took and left and (left.startswith(took) or took.startswith(left)):
        sent = verifier.bytes_of(r.proposed[r.accepted])
        whole = max(left, took, key=len)
        ends = {len(took), len(sent)} if whole.startswith(sent) else {len(took)}
        return DIACRITIC if _touches(behind + kept, whole, ends) else BOUNDARY
    return TIE if gap is not None and gap < NEAR_TIE else DISAGREEMENT


def _touches(before: bytes, text: bytes, ends: set[int]) -> bool:
    """Whether one of the cuts after `ends` bytes of `text` lies at the edge of a letter with a diacritic or inside it."""
    before = before[-LOOK_BACK:]
    while before and before[0] & 0xC0 == 0x80:
        before = before[1:]
    whole = before + text
    characters = whole.decode(errors="surrogateescape")  # a letter begun at the end is still some bytes
    for letter in letters(characters):
        start = len(characters[: letter.start].encode(errors="surrogateescape"))
        end = start + len(letter.text.encode())
        if any(start <= len(before) + cut <= end for cut in ends):
            return True
    return False
