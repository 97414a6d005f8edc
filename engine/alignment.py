"""Two or more tokenisations of one text on one ruler: where they cut alike, where not, and what that does to Polish letters.

A cut is a place inside the text where a token ends and the next begins (`engine.lanes.Cut`); the two ends of the text are
none. A letter is *touched* by a cut at one of its edges or inside it, and *split* by a cut inside it: between its bytes, or
between its base and its combining mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.diacritics import Letter, letters as letters_of
from engine.lanes import Cut, Lane, lane
from engine.tokens import Vocabulary


class Touched(NamedTuple):
    """What the cuts do to one letter with a diacritic. Numbers are places in `Alignment.lanes`."""

    letter: Letter
    touched: tuple[int, ...]  # lanes with a cut at its edge or inside
    split: tuple[int, ...]  # lanes with a cut inside
    lone: bool  # one of these cuts is not made by all lanes


@dataclass(frozen=True)
class Agreement:
    """The cuts of two lanes, the first taken as the reference.

    Precision = both / cuts of the second, recall = both / cuts of the first, F1 = 2 both / (cuts of the first + of the
    second); None where there is nothing to divide by. `lone_touching`: of the cuts that only one of the two makes, those
    that touch a letter with a diacritic. `letters_touched`: letters that such a cut touches.
    """

    first: int
    second: int
    both: int
    only_first: int
    only_second: int
    lone_touching: int
    letters_touched: int

    @property
    def precision(self) -> float | None:
        return _share(self.both, self.both + self.only_second)

    @property
    def recall(self) -> float | None:
        return _share(self.both, self.both + self.only_first)

    @property
    def f1(self) -> float | None:
        return _share(2 * self.both, 2 * self.both + self.lone)

    @property
    def lone(self) -> int:
        """Cuts that only one of the two makes."""
        return self.only_first + self.only_second


@dataclass(frozen=True)
class Alignment:
    """`counts`: every cut that any lane makes, in order, and how many lanes make it. `words`: runs of anything but white space."""

    text: str
    lanes: tuple[Lane, ...]
    counts: dict[Cut, int]
    letters: tuple[Touched, ...]
    pairs: tuple[Agreement, ...]
    words: int

    def tokens_per_word(self, number: int) -> float | None:
        return _share(len(self.lanes[number].tokens), self.words)

    def splits(self, number: int) -> int:
        """Letters with a diacritic that this lane splits."""
        return sum(number in letter.split for letter in self.letters)

    @property
    def lone(self) -> int:
        """Cuts that some lanes make and others do not."""
        return sum(n < len(self.lanes) for n in self.counts.values())

    @property
    def letters_touched(self) -> int:
        """Letters with a diacritic that such a cut touches."""
        return sum(letter.lone for letter in self.letters)


def align(text: str, vocabularies: Sequence[Vocabulary], names: Sequence[str] | None = None, special: bool = False) -> Alignment:
    """Cut `text` with every vocabulary and compare. `special`: the text of control tokens counts as them, not as letters.

    Raises RequestError for half a surrogate pair, and for a tokenizer whose tokens cannot be placed in the text.
    """
    names = names or [v.model for v in vocabularies]
    return compare(text, [lane(v, text, name, special) for v, name in zip(vocabularies, names)])


def compare(text: str, lanes: Sequence[Lane]) -> Alignment:
    """Compare tokenisations of `text` made before."""
    count = Counter(cut for one in lanes for cut in dict.fromkeys(one.cuts))
    counts = dict(sorted(count.items()))
    found = letters_of(text)
    by_letter = _touching(found, counts)
    made = [frozenset(one.cuts) for one in lanes]
    touched = tuple(
        Touched(letter, tuple(i for i, cuts in enumerate(made) if not cuts.isdisjoint(near)),
                tuple(i for i, cuts in enumerate(made) if any(cut in cuts and _inside(cut, letter) for cut in near)),
                any(counts[cut] < len(lanes) for cut in near))
        for letter, near in zip(found, by_letter))
    pairs = tuple(_agreement(i, j, made, by_letter) for i in range(len(lanes)) for j in range(i + 1, len(lanes)))
    return Alignment(text, tuple(lanes), counts, touched, pairs, len(text.split()))


def _touching(found: Sequence[Letter], cuts: dict[Cut, int]) -> list[list[Cut]]:
    """The cuts that touch each letter."""
    at: dict[int, list[Cut]] = {}  # by the characters a cut stands before or inside
    for cut in cuts:
        for character in range(cut.start, max(cut.end, cut.start + 1)):
            at.setdefault(character, []).append(cut)
    result = []
    for letter in found:
        near = [cut for character in range(letter.start, letter.end) for cut in at.get(character, ())]
        near += [cut for cut in at.get(letter.end, ()) if cut.start == cut.end]  # its right edge; not the inside of what follows
        result.append(list(dict.fromkeys(near)))
    return result


def _inside(cut: Cut, letter: Letter) -> bool:
    """Whether a cut that touches the letter falls inside it rather than at its edge."""
    return cut.start < cut.end or letter.start < cut.start < letter.end


def _agreement(i: int, j: int, made: Sequence[frozenset[Cut]], by_letter: Sequence[Sequence[Cut]]) -> Agreement:
    lone = made[i] ^ made[j]
    near = [lone.intersection(cuts) for cuts in by_letter]
    return Agreement(i, j, len(made[i] & made[j]), len(made[i] - made[j]), len(made[j] - made[i]),
                     len(frozenset().union(*near)), sum(map(bool, near)))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# ── as sentences and as JSON ──


def sentences(a: Alignment) -> list[str]:
    """What the alignment says, in plain words: how far each pair agrees, and what that does to Polish letters."""
    said = []
    for pair in a.pairs:
        first, second = a.lanes[pair.first].title, a.lanes[pair.second].title
        total = pair.both + pair.lone
        if not total:
            said.append(f"Neither {first} nor {second} cuts this text anywhere.")
            continue
        words = f"{first} and {second} agree on {pair.both:,} of {total:,} cuts ({100 * pair.both / total:.0f} %; F1 {pair.f1:.2f})"
        if a.letters:
            words += f"; {pair.letters_touched:,} of {_letters(len(a.letters))} touched by a cut that only one of them makes"
        said.append(words + ".")
    return said


def _letters(n: int) -> str:
    return f"{n:,} letter{'s' * (n != 1)} with a diacritic {'is' if n == 1 else 'are'}"


def as_data(a: Alignment) -> dict[str, Any]:
    """The alignment as JSON data. Bytes are hexadecimal, places count characters from 0; shares stand beside their counts."""
    pairs = [{"first": a.lanes[p.first].tokenizer, "second": a.lanes[p.second].tokenizer, "both": p.both, "only_first": p.only_first,
              "only_second": p.only_second, "precision": p.precision, "recall": p.recall, "f1": p.f1, "mismatched": p.lone,
              "mismatched_touching_diacritics": p.lone_touching, "mismatched_touching_share": _share(p.lone_touching, p.lone),
              "letters_touched": p.letters_touched} for p in a.pairs]
    return {
        "text": a.text, "characters": len(a.text), "bytes": len(a.text.encode()), "words": a.words,
        "lanes": [_lane_data(a, number) for number in range(len(a.lanes))],
        # Of exactly two tokenizers the figures stand here too, where a reader looks first.
        "agreement": {**(pairs[0] if len(pairs) == 1 else {}), "pairs": pairs, "sentences": sentences(a)},
        "diacritics": {
            "letters": len(a.letters), "touched_by_lone_cut": a.letters_touched,
            "lanes": [{"tokenizer": one.tokenizer, "split": a.splits(i), "share": _share(a.splits(i), len(a.letters))}
                      for i, one in enumerate(a.lanes)],
            "places": [{"letter": t.letter.text, "start": t.letter.start, "end": t.letter.end, "touched_by": list(t.touched),
                        "split_by": list(t.split), "lone_cut": t.lone} for t in a.letters],
        },
    }


def _lane_data(a: Alignment, number: int) -> dict[str, Any]:
    one = a.lanes[number]
    tokens = []
    for token in one.tokens:
        data = token._asdict()
        if token.spelled is None:
            del data["spelled"]
        tokens.append(data)
    return {"tokenizer": one.tokenizer, "title": one.title, "tokens": tokens, "count": len(tokens),
            "tokens_per_word": a.tokens_per_word(number), "prefix": one.prefix, "normalised": one.reads is not None,
            "reads": one.reads, "changes": dict(Counter(change.kind for change in one.changes)), "notes": list(one.notes)}
