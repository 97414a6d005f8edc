"""How sure a model was, from any run that holds entropies: pure functions of its trace.

Model entropy is of the raw softmax, sampling entropy of the distribution a token was really drawn from (after penalty,
temperature and filters). Both are in bits. Normalised is model entropy / log2(usable vocabulary), by one rule for every model.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from statistics import fmean
from typing import Iterable, Sequence

from engine.analysis.answers import answers, label_of
from engine.analysis.intervals import of_groups, welch, wilson
from engine.trace import ACCEPTED, CORRECTION, PLAIN, AnyRun, Generation, ModelFacts, Prompt

UNSURE = 4.0  # bits; as unsure as between 16 equally likely tokens
FIRST, CONTINUATION, OTHER = "first piece", "continuation", "no letter"
CONTEXT = 8  # prompt tokens looked at to see whether a raw prompt ended inside a word


@dataclass(frozen=True)
class Trail:
    """One answer, token by token; the columns run over `ids`. None is "not recorded".

    `side` says which way of writing it was; answers of one side can be averaged. `states` are those of the trace.
    `pieces`: whether a token begins a word (FIRST), goes on inside one (CONTINUATION) or has no letter (OTHER).
    """

    label: str
    category: str
    side: str
    prompt: Prompt
    answer: Generation
    ids: tuple[int, ...]
    bytes: tuple[bytes, ...]
    special: tuple[bool, ...]
    states: tuple[str, ...]
    bits: tuple[float | None, ...]
    sampling_bits: tuple[float | None, ...]
    normalised: tuple[float | None, ...]
    pieces: tuple[str, ...]


def trails(run: AnyRun) -> tuple[Trail, ...]:
    """Every answer in `run` that holds entropies: both modes of a comparison, all items of an entropy or a strategy run."""
    made = [_trail(run, a.facts, a.label, a.category, a.side, a.prompt, a.generation) for a in answers(run)]
    return tuple(t for t in made if any(b is not None for b in t.bits))


def sides(run: AnyRun) -> dict[str, tuple[Trail, ...]]:
    """The same by side, in the order they come."""
    found: dict[str, tuple[Trail, ...]] = {}
    for trail in trails(run):
        found[trail.side] = (*found.get(trail.side, ()), trail)
    return found


def refused(run: AnyRun) -> tuple[tuple[str, str], ...]:
    """(label, sentence) of the prompts that were not answered."""
    return tuple((label_of(item, n, len(run.items)), item.refused) for n, item in enumerate(getattr(run, "items", ()))
                 if getattr(item, "refused", None))


def _trail(run: AnyRun, facts: ModelFacts | None, label: str, category: str, side: str, prompt: Prompt, answer: Generation) -> Trail:
    ids, special = answer.ids, frozenset(run.special)
    raw = tuple(bytes.fromhex(run.tokens.get(i, "")) for i in ids)
    bits = _column(answer.entropy, len(ids))
    usable = math.log2(facts.vocabulary) if facts is not None and facts.vocabulary > 1 else None
    before = b"" if prompt.template else b"".join(
        b"\0" if i in special else bytes.fromhex(run.tokens.get(i, "")) for i in prompt.ids[-CONTEXT:])
    return Trail(label, category, side, prompt, answer, ids, raw, tuple(i in special for i in ids), _states(answer), bits,
                 _column(answer.sampling_entropy, len(ids)),
                 tuple(None if b is None or usable is None else b / usable for b in bits),
                 pieces([b"\0" if i in special else b for i, b in zip(ids, raw)], before))


def _column(values: Sequence, count: int) -> tuple[float | None, ...]:
    """`count` values, without NaN and without -0.0; what is missing or no number is None."""
    whole = [max(0.0, v) if isinstance(v, (int, float)) and math.isfinite(v) else None for v in values[:count]]
    return (*whole, *[None] * (count - len(whole)))


def _states(answer: Generation) -> tuple[str, ...]:
    """The state of each emitted token, from the rounds; plain where no round tells."""
    found: list[str] = []
    for r in answer.rounds:
        taken = min(r.accepted, len(r.proposed), len(r.emitted))
        found += [ACCEPTED] * taken + [r.closing or PLAIN] * (len(r.emitted) - taken)
    return tuple(found[: len(answer.ids)] + [PLAIN] * (len(answer.ids) - len(found)))


# ----------------------------------------------------------------------------------------------------------------- words


def pieces(tokens: Sequence[bytes], before: bytes = b"") -> tuple[str, ...]:
    """For each token FIRST, CONTINUATION or OTHER, from the bytes alone; `before` is the text in front of the first.

    A word is a run of letters with their marks; an apostrophe between letters belongs to it. A token is judged by the first
    letter in it: FIRST if a word begins there (after a blank, a line break, punctuation, a digit, at the start of the text),
    CONTINUATION if the word began before it. A letter whose bytes are split makes its later tokens continuations.
    """
    starts, inside = _words(before + b"".join(tokens))
    at, found = len(before), []
    for token in tokens:
        letter = next((i for i in range(at, at + len(token)) if inside[i]), None)
        found.append(OTHER if letter is None else FIRST if starts[letter] else CONTINUATION)
        at += len(token)
    return tuple(found)


def _words(data: bytes) -> tuple[list[bool], list[bool]]:
    """For each byte whether a word starts at it, and whether it belongs to a word."""
    characters: list[tuple[int, int, str]] = []
    i = 0
    while i < len(data):
        size = 1 if data[i] < 0xC2 else 2 if data[i] < 0xE0 else 3 if data[i] < 0xF0 else 4
        try:
            c = data[i : i + size].decode()
        except UnicodeDecodeError:
            c, size = "\0", 1  # bytes that are no character part words
        characters.append((i, size, c))
        i += size
    letters = [unicodedata.category(c)[0] in "LM" for _, _, c in characters]
    for n in range(1, len(characters) - 1):
        if characters[n][2] in "'’" and letters[n - 1] and unicodedata.category(characters[n + 1][2])[0] == "L":
            letters[n] = True
    starts, inside = [False] * len(data), [False] * len(data)
    for n, (place, size, _) in enumerate(characters):
        if letters[n]:
            inside[place : place + size] = [True] * size
            starts[place] = n == 0 or not letters[n - 1]
    return starts, inside


# --------------------------------------------------------------------------------------------------------------- figures


def figures(chosen: Sequence[Trail]) -> dict:
    """Everything a card says of answers of one side: means in bits, counts, words, categories, draft entropy against acceptance."""
    bits = [b for t in chosen for b in t.bits if b is not None]
    sampled = [b for t in chosen for b in t.sampling_bits if b is not None]
    normal = [v for t in chosen for v in t.normalised if v is not None]
    pairs = [pair for t in chosen for pair in judged(t)]
    return {
        "answers": len(chosen), "tokens": len(bits),
        "entropy_bits": _mean(bits), "entropy_interval": _between(chosen),
        "entropy_bits_max": max(bits, default=None), "unsure": sum(b > UNSURE for b in bits), "unsure_bits": UNSURE,
        "sampling_entropy_bits": _mean(sampled), "sampling_tokens": len(sampled), "normalised": _mean(normal),
        "words": words(chosen), "categories": categories(chosen),
        "draft": draft(pairs), "acceptance_by_entropy": acceptance_bins(pairs),
    }


def words(chosen: Sequence[Trail]) -> dict:
    """Mean model entropy of first pieces, continuations and tokens without a letter, each with its count; and first −
    continuation with Welch's 95 % interval, which takes tokens as independent of each other."""
    found: dict = {}
    held = {kind: [b for t in chosen for b, p in zip(t.bits, t.pieces) if p == kind and b is not None]
            for kind in (FIRST, CONTINUATION, OTHER)}
    for kind, values in held.items():
        found[kind] = {"bits": _mean(values), "tokens": len(values)}
    a, b = held[FIRST], held[CONTINUATION]
    found["difference"] = fmean(a) - fmean(b) if a and b else None
    found["interval"] = welch(a, b)
    return found


def categories(chosen: Sequence[Trail]) -> list[dict]:
    """Mean model entropy by prompt category, in the order they come; the interval takes answers as the independent units."""
    groups: dict[str, list[Trail]] = {}
    for t in chosen:
        groups.setdefault(t.category, []).append(t)
    found = []
    for name, held in groups.items():
        bits = [b for t in held for b in _known(t.bits)]
        found.append({"category": name, "bits": _mean(bits), "tokens": len(bits), "answers": len(held), "interval": _between(held)})
    return found


def _between(chosen: Sequence[Trail]) -> tuple[float, float] | None:
    """95 % interval of the mean over all tokens, answers being the independent units. No entropy is below 0."""
    found = of_groups([_known(t.bits) for t in chosen])
    return found and (max(0.0, found[0]), found[1])


def judged(trail: Trail) -> list[tuple[float, bool]]:
    """(draft entropy in bits, accepted or not) of every draft token that was judged."""
    pairs = []
    for r in trail.answer.rounds:
        seen = min(r.accepted + (r.closing == CORRECTION), len(r.proposed))
        pairs += [(h, i < r.accepted) for i, h in enumerate(_column(r.draft_entropy, len(r.proposed))[:seen]) if h is not None]
    return pairs


def draft(pairs: Sequence[tuple[float, bool]]) -> dict:
    """Mean draft entropy of accepted and of rejected draft tokens, with counts."""
    kept, lost = [h for h, good in pairs if good], [h for h, good in pairs if not good]
    return {"judged": len(pairs), "accepted": len(kept), "accepted_bits": _mean(kept), "rejected": len(lost), "rejected_bits": _mean(lost)}


def acceptance_bins(pairs: Sequence[tuple[float, bool]]) -> list[dict]:
    """Accepted of those judged in bins of draft entropy (low ≤ bits < high), each with Wilson's 95 % interval."""
    if not pairs:
        return []
    width = next((w for w in (0.25, 0.5, 1.0, 2.0) if max(h for h, _ in pairs) / w < 12), 4.0)
    bins: dict[int, list[bool]] = {}
    for h, good in pairs:
        bins.setdefault(int(h / width), []).append(good)
    return [{"low": b * width, "high": (b + 1) * width, "accepted": sum(g), "judged": len(g), "rate": sum(g) / len(g),
             "interval": wilson(sum(g), len(g))} for b, g in sorted(bins.items())]


def sentence(run: AnyRun, f: dict) -> str:
    """What the entropies say, in plain words."""
    lead = {"stopped": "Stopped. So far: ", "failed": "The run broke off; before that: "}.get(run.status, "")
    gone = len(refused(run))
    tail = f" {gone} {'prompt was' if gone == 1 else 'prompts were'} refused." if gone else ""
    if not f["tokens"]:
        return f"{lead}No entropy was recorded.{tail}"
    unsure = f["unsure"]
    of = f" of {counted(f['answers'], 'answer')}" if f["answers"] > 1 else ""
    text = (f"Mean entropy {shown(f['entropy_bits'], 1)} bits over {counted(f['tokens'])}{of}; "
            f"{f'{unsure:,}' if unsure else 'none'} {'was' if unsure == 1 else 'were'} above {f['unsure_bits']:g} bits.")
    first, rest = f["words"][FIRST], f["words"][CONTINUATION]
    if first["tokens"] and rest["tokens"]:
        text += (f" The first piece of a word carries {shown(first['bits'], 1)} bits ({counted(first['tokens'])}), "
                 f"a continuation {shown(rest['bits'], 1)} ({rest['tokens']:,}).")
    return (lead + text[0].lower() + text[1:] if lead else text) + tail


def shown(value: float | None, digits: int = 2) -> str:
    """A number of bits as text; never -0.00."""
    if value is None:
        return "n/a"
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def counted(n: int, what: str = "token") -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _known(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
