"""Token-level intersection (Timor et al. 2025): the draft draws only from tokens that both vocabularies have.

Its distribution over them, renormalised, is a q over the verifier's ids, so the ratio test of speculative sampling applies
and nothing is translated. Tokens are the same if they stand for the same bytes. Of control tokens only one that ends a
text on both sides is shared: no other is ever the draft's to write.
"""

from __future__ import annotations

from typing import Sequence

from engine.decoding.cuts import ids_by_bytes
from engine.decoding.translators.base import Candidates, Shared
from engine.models.base import Model


class Intersection:
    def __init__(self, verifier: Model, draft: Model):
        scored = range(draft.width) if draft.support is None else draft.ops.to_host(draft.support)
        column, width = {i: n for n, i in enumerate(scored)}, verifier.width
        theirs, ends = ids_by_bytes(verifier.vocabulary), (frozenset(draft.ends), frozenset(verifier.ends))
        pairs = [(column[i], i, theirs[key]) for key, i in ids_by_bytes(draft.vocabulary).items()
                 if i in column and theirs.get(key, width) < width and (not key[1] or (i in ends[0] and theirs[key] in ends[1]))]
        self.shared = Shared(*map(list, zip(*sorted(pairs)))) if pairs else Shared([], [], [])
        self._of = dict(zip(self.shared.draft, self.shared.verifier))

    def candidates(self, committed: Sequence[int], held: bytes, written: Sequence[int], text: str) -> Candidates:
        return Candidates([self._of[i] for i in written])
