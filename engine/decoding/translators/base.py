"""What a translator is: one method and one attribute."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Sequence


class Candidates(NamedTuple):
    """Ids for the verifier to judge, and what is worth saying about how they came about."""

    ids: list[int]
    note: str | None = None


class Shared(NamedTuple):
    """Tokens that both vocabularies have, pair by pair."""

    columns: list[int]  # of the draft's logits
    draft: list[int]  # ids
    verifier: list[int]  # ids


class Translator(Protocol):
    """`shared` None: the draft writes freely, and `candidates` translates. Else the draft draws from these tokens alone, its
    probabilities q are known for the verifier's ids, and nothing needs to be translated."""

    shared: Shared | None

    def candidates(self, committed: Sequence[int], held: bytes, written: Sequence[int], text: str) -> Candidates:
        """committed: the verifier's ids so far; they end in the `held` bytes of an incomplete character (mostly b"").
        written: the draft's ids, none of them a control token. text: the complete characters of held and written."""


def usable(ids: Sequence[int], control: frozenset[int]) -> list[int]:
    """`ids` up to the first control token: a tokenizer that lacks a character may put its unknown token."""
    return list(ids[: next((n for n, i in enumerate(ids) if i in control), len(ids))])
