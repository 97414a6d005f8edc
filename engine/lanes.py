"""One tokenisation of a text, laid on the text's characters: a lane.

Token bytes in a lane are the text's own: joined they are the text's UTF-8, whatever the tokenizer did to it. What it
did is said: the space it put in front, and every place that it reads otherwise than it is written (composed letters,
lower case, spaces). Where the tokens spell exactly a known rewriting of the text, places come from that; else from the
spans that the tokenizer itself reports.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from engine import spelling
from engine.errors import RequestError
from engine.tokens import Vocabulary, require_characters

COMPOSED, COMPATIBLE, LOWER, MARKS, SPACES, UNKNOWN, LEFT_OUT, OTHER = (
    "composed letters (NFC)", "compatibility forms (NFKC)", "lower case", "▁ as a space", "spaces", "unknown",
    "left out", "rewritten")


class LaneToken(NamedTuple):
    """`bytes` (hex) are those of the text, from byte `start_byte` up to `end_byte`, in the characters from `start` up to `end`.

    Tokens that share a character all carry its whole span. `spelled`: hex of what the token itself stands for, where
    that is something else; None where it is the same.
    """

    id: int
    bytes: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    special: bool = False
    spelled: str | None = None


class Cut(NamedTuple):
    """A place inside the text where a token ends and the next begins: byte `byte`, before character `start`.

    Inside a character `end` is past `start`: it falls in the characters from `start` up to `end`. Inside characters
    that the tokenizer reads otherwise no byte of the text is the place; `within` then says where in its own reading.
    """

    byte: int
    start: int
    end: int
    within: str = ""


class Change(NamedTuple):
    """The characters from `start` up to `end` are read as `read` (hex of bytes), which they are not."""

    start: int
    end: int
    read: str
    kind: str


@dataclass(frozen=True)
class Lane:
    """`prefix` is what the tokenizer put in front of the text, already taken off the tokens ("" or a space)."""

    tokenizer: str
    title: str
    tokens: tuple[LaneToken, ...]
    cuts: tuple[Cut, ...]
    prefix: str = ""
    changes: tuple[Change, ...] = ()
    reads: str | None = None  # the text as the tokens spell it, where that is not the text

    @property
    def notes(self) -> tuple[str, ...]:
        """What the tokenizer did to the text, in sentences; none if its tokens spell exactly the text."""
        notes = []
        if self.prefix:
            notes.append(f"{self.title} puts a space in front of the text; it is taken off here.")
        if self.changes:
            count = Counter(change.kind for change in self.changes)
            kinds = ", ".join(f"{kind} {n}" for kind, n in count.most_common())
            notes.append(f"{self.title} reads {len(self.changes)} place{'s' * (len(self.changes) != 1)} otherwise than written: {kinds}.")
        return tuple(notes)


def lane(vocabulary: Vocabulary, text: str, name: str | None = None, special: bool = False) -> Lane:
    """`text` as `vocabulary` cuts it, nothing added. `special`: the text of control tokens counts as them, not as letters.

    Raises RequestError for half a surrogate pair, and for a tokenizer whose tokens cannot be placed in the text.
    """
    require_characters(text)
    ids = vocabulary.encode_parts([(text, special)])
    raw = [vocabulary.bytes_of(i) for i in ids]
    title, name = vocabulary.model, name or vocabulary.model
    joined = b"".join(raw)
    for reading in _readings(text, joined):
        if joined == reading.bytes or joined == b" " + reading.bytes:
            prefix = joined[:len(joined) - len(reading.bytes)]
            tokens, cuts = _lay(ids, raw, reading, len(prefix), vocabulary.special)
            return Lane(name, title, tokens, cuts, prefix.decode(), reading.changes, _reads(reading))
    return _by_spans(vocabulary, text, ids, raw, name, special)


# ── the text as written, or a rewriting of it known beforehand ──


@dataclass(frozen=True)
class _Reading:
    """The text in segments, each read as some bytes. Lists of one entry a segment, and one more for the end of the text."""

    written: bytes
    bytes: bytes  # as it is read
    first: list[int]  # a segment's first character,
    byte: list[int]  # its first byte in the text,
    read: list[int]  # its first byte in the reading
    changes: tuple[Change, ...]
    changed: frozenset[int]  # segments whose reading is not the text


def _reading(segments: Sequence[str], read: Sequence[bytes], kinds: str | Sequence[str] = "") -> _Reading:
    written = [s.encode() for s in segments]
    first = [0, *accumulate(map(len, segments))]
    changed = [i for i, (w, s) in enumerate(zip(written, read)) if w != s]
    changes = tuple(Change(first[i], first[i + 1], read[i].hex(), kinds if isinstance(kinds, str) else kinds[i]) for i in changed)
    return _Reading(b"".join(written), b"".join(read), first, [0, *accumulate(map(len, written))],
                    [0, *accumulate(map(len, read))], changes, frozenset(changed))


def _readings(text: str, spelled: bytes) -> Iterator[_Reading]:
    """The text as it is, then as the usual normalizers rewrite it, where they do; last without what `spelled` lacks."""
    yield _reading(text, [c.encode() for c in text])
    if "▁" in text:
        yield _reading(text, [c.encode() for c in text.replace("▁", " ")], MARKS)
    for form, kind in (("NFC", COMPOSED), ("NFKC", COMPATIBLE)):
        if not unicodedata.is_normalized(form, text):
            clusters = _clusters(text)
            read = [unicodedata.normalize(form, c) for c in clusters]
            yield _reading(clusters, [r.encode() for r in read], kind)
            if "▁" in text:
                yield _reading(clusters, [r.replace("▁", " ").encode() for r in read], kind)
    if text != text.lower():
        yield _reading(text, [c.lower().encode() for c in text], LOWER)
    # A vocabulary without unknown token leaves out the characters, or the bytes, that it lacks.
    known, bytes_ = frozenset(spelled.decode("utf-8", "ignore")), frozenset(spelled)
    if not known >= set(text):
        kinds = [SPACES if c.isspace() else LEFT_OUT for c in text]
        yield _reading(text, [c.encode() if c in known else b"" for c in text], kinds)
        yield _reading(text, [bytes(b for b in c.encode() if b in bytes_) for c in text], kinds)


def _clusters(text: str) -> list[str]:
    """`text` cut before every character but marks, which compose with what stands before them."""
    starts = [i for i, c in enumerate(text) if i == 0 or unicodedata.category(c)[0] != "M"]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)])]


def _lay(ids: Sequence[int], raw: Sequence[bytes], reading: _Reading, ahead: int, special: frozenset[int]
         ) -> tuple[tuple[LaneToken, ...], tuple[Cut, ...]]:
    """Tokens that spell `reading` with `ahead` bytes in front of it, placed in the text."""
    first, byte, read, changed = reading.first, reading.byte, reading.read, reading.changed
    owner = [i for i, (a, b) in enumerate(zip(read, read[1:])) for _ in range(b - a)]  # the segment of each byte read
    owner.append(len(first) - 1)
    tokens, cuts = [], []
    here = begin = 0  # where the next token begins, in the reading and in the text
    for i, own in zip(ids, raw):
        if ahead:  # may be a token of its own
            own, ahead = own[ahead:], max(ahead - len(own), 0)
        segment, there = owner[here], here + len(own)
        start = first[segment] if here else 0
        if not own:
            tokens.append(LaneToken(i, "", start, start, begin, begin, i in special))
            continue
        if here:
            inside = here - read[segment]
            within = f"{reading.bytes[read[segment]:read[segment + 1]].hex()}+{inside}" if inside and segment in changed else ""
            cuts.append(Cut(byte[segment] + (0 if within else inside), first[segment], first[segment + (inside > 0)], within))
        after = owner[there]
        over = there - read[after]  # bytes of a segment that later tokens go on with; one that is read otherwise is all this token's
        end = byte[after + 1] if over and after in changed else byte[after] + over
        text = reading.written[begin:end]
        tokens.append(LaneToken(i, text.hex(), start, first[after + (over > 0)], begin, end, i in special,
                                None if text == own else own.hex()))
        here, begin = there, end
    if tokens and begin < len(reading.written):  # a text of which nothing is read: the last token stands for it
        tokens[-1] = tokens[-1]._replace(bytes=reading.written.hex(), start=0, end=first[-1], end_byte=len(reading.written), spelled="")
    return tuple(tokens), tuple(cuts)


# ── any other rewriting: by the tokenizer's own account of it ──


def _by_spans(vocabulary: Vocabulary, text: str, ids: list[int], raw: list[bytes], name: str, special: bool) -> Lane:
    """A lane from the character spans that the tokenizer reports. Tokens whose spans overlap share their characters."""
    spans = vocabulary.spans(text, special)
    if [i for i, _, _ in spans] != ids or not all(0 <= start <= end <= len(text) for _, start, end in spans):
        raise RequestError(f"The tokenizer of {vocabulary.model} rewrites this text and does not say where its tokens stand in it; "
                           "it cannot be laid beside others.")
    groups = _groups(text, raw, [(start, end) for _, start, end in spans])
    if not groups:
        changes = (Change(0, len(text), "", LEFT_OUT),) if text else ()
        return Lane(name, vocabulary.model, (), (), "", changes, "" if text else None)
    ahead = raw[0].startswith(b" ") and not text[:1].isspace() and not text.startswith("▁")
    raw = [*raw]
    if vocabulary.marks_end and not text[-1:].isspace():  # a word's end mark is a space only between words
        raw[-1] = raw[-1].removesuffix(b" ")
    segments, read, kinds = [], [], []
    for start, end, a, b in groups:
        spelled, slice_ = b"".join(raw[a:b])[ahead and not a:], text[start:end]
        if spelled == slice_.encode():
            segments += slice_
            read += [c.encode() for c in slice_]
            kinds += [""] * len(slice_)
        else:
            segments.append(slice_)
            read.append(spelled)
            kinds.append(UNKNOWN if vocabulary.tokenizer.unk_token_id in ids[a:b] else _kind(slice_, spelled))
    reading = _reading(segments, read, kinds)
    tokens, cuts = _lay(ids, raw, reading, int(ahead), vocabulary.special)
    put = " " if ahead and vocabulary.scheme in (spelling.SENTENCEPIECE, spelling.BYTE_LEVEL) else ""  # else it is only how we spell
    return Lane(name, vocabulary.model, tokens, cuts, put, reading.changes, _reads(reading))


def _groups(text: str, raw: Sequence[bytes], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """The text parted among runs of tokens: (first character, end, first token, end). Tokens whose spans overlap, or are
    empty, are in one run. Characters that no token claims belong to the run before them; white space before a token
    that spells some, to that."""
    runs: list[list[int]] = []
    for k, (start, end) in enumerate(spans):
        if runs and (start < runs[-1][1] or start == end or runs[-1][0] == runs[-1][1]):
            runs[-1][1], runs[-1][3] = max(runs[-1][1], end), k + 1
        else:
            runs.append([start, end, k, k + 1])
    for before, run in zip(runs, runs[1:]):
        gap = text[before[1]:run[0]]
        if gap.isspace() and raw[run[2]][:1].isspace():
            run[0] = before[1]
        else:
            before[1] = run[0]
    if runs:
        runs[0][0], runs[-1][1] = 0, len(text)
    return [tuple(run) for run in runs]


def _kind(text: str, spelled: bytes) -> str:
    said = spelled.decode("utf-8", "replace")
    if "".join(said.split()) == "".join(text.replace("▁", " ").split()):
        return SPACES
    for kind, form in ((COMPOSED, "NFC"), (COMPATIBLE, "NFKC")):
        if unicodedata.normalize(form, text).strip() == said.strip():
            return kind
    if text.lower().strip() == said.strip():
        return LOWER
    rest = iter(text)
    return LEFT_OUT if all(c in rest for c in said) else OTHER


def _reads(reading: _Reading) -> str | None:
    return reading.bytes.decode("utf-8", "ignore") if reading.changes else None
