"""Which positions of a prompt the chat template put there, found by rendering it with different contents and comparing.

The person's texts are rendered once with a secret word at either end, which shows where they landed, and twice replaced
by other texts, which shows what stays the same around them. So it holds for any template: one that trims, one with a
system text of its own (the template put it there, not the person), role names of several tokens, an empty thinking block,
and texts that look like the template. A token that holds bytes of both, template and content, counts as content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable

from engine.errors import RequestError
from engine.prompts import new_secret, rendered_parts
from engine.tokens import Vocabulary
from engine.trace import Prompt

BEGIN, FIRST = "begin-of-text token", "first token"


@dataclass(frozen=True)
class Structural:
    """`flags`: for each position whether the template, or the tokenizer's own opening, put it there. `first`: what the
    first token is."""

    flags: tuple[bool, ...]
    first: str


def structural(vocabulary: Vocabulary, prompt: Prompt, template_variables: dict[str, Any] | None = None,
               system_in_user: bool = False) -> Structural:
    """Judge each id of a prompt that `engine.prompts.build` made, given the same `template_variables` and `system_in_user`.

    Of a raw prompt only the tokenizer's own opening is structural.
    """
    if not prompt.template:
        opening = vocabulary.opening
        count = len(opening) if prompt.ids[:len(opening)] == opening else 0
        flags = (True,) * count + (False,) * (len(prompt.ids) - count)
    else:
        asked, role = prompt.text, prompt.system
        if system_in_user and role is not None:
            asked, role = f"{role}\n\n{asked}", None

        def render(change: Callable[[str, str], str] = lambda content, role: content) -> list[tuple[str, bool]]:
            return rendered_parts(vocabulary, asked, role, template_variables or {}, change)

        flags = _flags(vocabulary, prompt.ids, render)
    return Structural(flags, _first(vocabulary, prompt.ids, flags))


def _first(vocabulary: Vocabulary, ids: tuple[int, ...], flags: tuple[bool, ...]) -> str:
    """A begin-of-text token marks the start of a text and nothing else: one that begins every turn, as <|im_start|> does
    where it is also named bos_token, is not."""
    known = {vocabulary.tokenizer.bos_token_id, *vocabulary.opening}
    turns = sum(1 for i, fixed in zip(ids, flags) if fixed and i == ids[0])
    return BEGIN if ids[0] in known and flags[0] and turns == 1 else FIRST


def _flags(vocabulary: Vocabulary, ids: tuple[int, ...], render: Callable) -> tuple[bool, ...]:
    actual = "".join(part for part, _ in render())
    short = {"user": [new_secret()], "system": [new_secret()]}
    long = {role: [new_secret(), "Zażółć gęślą jaźń,\n\nAla ma 2 koty? ", new_secret()] for role in short}
    probes = [render(lambda content, role, words=words: "".join(words[role])) for words in (short, long)]
    texts = ["".join(part for part, _ in probe) for probe in probes]
    fixed = _fixed_spans(actual, render, [_around(text, [(w[0], w[-1]) for w in words.values()])
                                          for text, words in zip(texts, (short, long))])
    if fixed is None:  # the template looks into the text: all that can be said is what stays at either end
        fixed = _ends(actual, *texts)
    content = [True] * len(actual)
    for start, end in fixed:
        content[start:end] = [False] * (end - start)
    spans = _spans(vocabulary, ids, actual)
    if spans is not None:
        return tuple(not any(content[start:max(end, start + 1)]) for start, end in spans)
    others = [tuple(vocabulary.encode_parts(probe)) for probe in probes]
    fixed_ids = {i for start, end in _ends(ids, *others) for i in range(start, end)}
    return tuple(i in fixed_ids for i in range(len(ids)))


def _fixed_spans(actual: str, render: Callable, probes: list[list[str] | None]) -> list[tuple[int, int]] | None:
    """Character spans of `actual` that the template wrote; None where its texts cannot be told apart in this way."""
    marks = {role: (new_secret(), new_secret()) for role in ("user", "system")}

    def mark(content: str, role: str) -> str:
        core = content.strip()  # templates trim white space only, so the marks stay
        start = content.index(core)
        return f"{content[:start]}{marks[role][0]}{core}{marks[role][1]}{content[start + len(core):]}"

    try:
        marked = "".join(part for part, _ in render(mark))
    except RequestError:
        return None
    around = _around(marked, list(marks.values()), keep=True)
    if around is None or any(p is None or len(p) != (len(around) + 1) // 2 for p in probes) or "".join(around) != actual:
        return None
    found, at = [], 0
    for i, piece in enumerate(around):
        if i % 2 == 0:  # between contents: what the template wrote, and white space of theirs that it kept
            found += [(at + a, at + b) for a, b in _written(piece, [p[i // 2] for p in probes], i == 0, i == len(around) - 1)]
        at += len(piece)
    return found


def _around(text: str, marks: list[tuple[str, str]], keep: bool = False) -> list[str] | None:
    """The pieces of `text` outside the contents, which stand between the two words of a pair (or are one word twice).

    `keep`: with the contents in their places, without the words. None if the words are not paired.
    """
    ends = {first: last for first, last in marks}
    pieces = re.split("(" + "|".join(sorted({re.escape(word) for pair in marks for word in pair})) + ")", text)
    found, waiting, inside = [pieces[0]], None, ""
    for word, piece in zip(pieces[1::2], pieces[2::2]):
        if waiting is not None:
            if word != waiting:
                return None
            found += [inside, piece] if keep else [piece]
            waiting = None
        elif word not in ends:
            return None
        elif ends[word] == word:
            found.append(piece)
        else:
            waiting, inside = ends[word], piece
    return found if waiting is None else None


def _written(piece: str, probes: list[str], is_first: bool, is_last: bool) -> list[tuple[int, int]]:
    """Where in `piece`, between two contents, stands what the template writes there, judged by what it wrote in the probes."""
    same = probes[0]
    if all(p == same for p in probes):
        start = 0 if is_first else len(piece) - len(same) if is_last else piece.find(same)
        if start >= 0 and piece.startswith(same, start):
            return [(start, start + len(same))]
    return _ends(piece, *probes)


def _ends(whole, *others) -> list[tuple[int, int]]:
    """Spans at the start and the end of a sequence that it shares with all `others`."""
    most = min(len(whole), *map(len, others))
    start = next((i for i in range(most) if any(o[i] != whole[i] for o in others)), most)
    end = next((i for i in range(most - start) if any(o[-1 - i] != whole[-1 - i] for o in others)), most - start)
    return [(0, start), (len(whole) - end, len(whole))]


def _spans(vocabulary: Vocabulary, ids: tuple[int, ...], text: str) -> list[tuple[int, int]] | None:
    """The characters of `text` each token holds bytes of; None if they cannot be told."""
    spans = _byte_spans([vocabulary.bytes_of(i) for i in ids], text.encode())
    if spans is not None:
        lengths = [len(c.encode()) for c in text]
        owner = [i for i, n in enumerate(lengths) for _ in range(n)] + [len(text)]
        return [(owner[start], owner[end - 1] + 1 if end > start else owner[start]) for start, end in spans]
    encoding = vocabulary.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)  # a tokenizer that rewrites its text
    return encoding.offsets if tuple(encoding.ids) == ids else None


def _byte_spans(tokens: list[bytes], text: bytes) -> list[tuple[int, int]] | None:
    """Lay tokens along the bytes of their text. A token may bring a space that only marks a start, and white space of the
    text may have been swallowed by a control token; nothing else may differ, or None comes back."""
    spans, at = [], 0
    for token in tokens:
        start = _place(token, text, at)
        if start is None and token.startswith(b" "):
            token = token[1:]
            start = _place(token, text, at)
        if start is None:
            return None
        at = start + len(token)
        spans.append((start, at))
    return spans if not text[at:].strip() else None


def _place(token: bytes, text: bytes, at: int) -> int | None:
    if text.startswith(token, at):
        return at
    after = at + len(text[at:at + 64]) - len(text[at:at + 64].lstrip())
    return after if after > at and text.startswith(token, after) else None
