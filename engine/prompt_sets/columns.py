"""Which column holds the prompts, which names them, which sorts them; and the text of a cell that is a list of turns."""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable

from engine.errors import RequestError
from engine.prompt_sets.shapes import NONE

PROMPTS = ("prompt", "instruction", "question", "query", "turns", "messages", "conversations", "conversation", "polecenie", "instrukcja",
           "pytanie", "zapytanie", "zadanie", "text", "tekst", "treść", "content", "input", "sentence", "zdanie", "article", "body",
           "message", "user")
LABELS = ("id", "label", "question_id", "prompt_id", "name", "title", "key", "nr", "no", "lp", "lp.", "numer", "identyfikator", "nazwa",
          "tytuł", "index", "task_id")
CATEGORIES = ("category", "kategoria", "genre", "gatunek", "topic", "temat", "type", "typ", "group", "grupa", "dział", "subject", "task")
_KNOWN = frozenset(PROMPTS + LABELS + CATEGORIES + ("output", "response", "answer", "url", "odpowiedź"))
JOINED = "instruction + input"  # instruction sets keep the text that is worked on in a second column


def is_known(name: str) -> bool:
    return name.strip().lower() in _KNOWN


def choices(columns: Iterable[str]) -> list[str]:
    """The columns, and the joined one where there are both of its parts."""
    columns = list(columns)
    return [*columns, JOINED] if {"instruction", "input"} <= set(columns) and JOINED not in columns else columns


def choose(columns: list[str], column: str | None, label: str | None, category: str | None,
           weight: Callable[[str], float]) -> tuple[str, str | None, str | None]:
    """(prompt column, label column, category column). None detects, NONE means none; `weight` is a column's mean length of text.

    Raises RequestError for a column the file lacks and for a file without columns.
    """
    if not columns:
        raise RequestError("The file has no columns to take prompts from.")
    for name in (column, label, category):
        if name and name not in columns:
            raise RequestError(f"The file has no column {name!r}; it has {', '.join(columns[:20])}.")
    if not column:
        texts = [c for c in columns if weight(c)] or columns
        others = [c for c in texts if not _among(c, LABELS + CATEGORIES)] or texts
        column = JOINED if JOINED in columns and "prompt" not in columns else _first(texts, PROMPTS) or max(others, key=weight)
    if label is None:
        label = _first([c for c in columns if c != column], LABELS)
    if category is None:
        category = _first([c for c in columns if c not in (column, label)], CATEGORIES)
    return column, label if label != NONE else None, category if category != NONE else None


def _among(name: str, names: tuple[str, ...]) -> bool:
    return name.strip().lower() in names


def _first(columns: Iterable[str], names: tuple[str, ...]) -> str | None:
    by_name = {c.strip().lower(): c for c in reversed(list(columns))}
    return next((by_name[n] for n in names if n in by_name), None)


def text_of(value: Any) -> tuple[str | None, str | None]:
    """(text, how it was found) of a cell: a text itself, the first user message of a chat, the first of a list of turns.

    (None, None) is a missing cell; (None, why) one that holds no text, as the rest of a sentence.
    """
    if isinstance(value, str):
        return value, None
    if missing(value):
        return None, None
    if isinstance(value, dict):
        for inner in ("messages", "conversations", "turns", "content", "value", "text"):
            if inner in value:
                text, how = text_of(value[inner])
                return text, how or f"its {inner}"
        return None, "an object without a text"
    if isinstance(value, (list, tuple)):
        return _of_list(list(value))
    return None, f"{_kind(value)}, not text"


def _of_list(items: list[Any]) -> tuple[str | None, str | None]:
    if not items:
        return None, None
    if isinstance(items[0], str):
        return items[0], "the first turn" if len(items) > 1 else "the only turn"
    if all(isinstance(m, dict) for m in items):
        for message in items:
            role = str(message.get("role", message.get("from", ""))).lower()
            if role in ("user", "human", "prompter"):
                content = message.get("content", message.get("value"))
                if isinstance(content, list):  # parts: texts and pictures
                    content = "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)) or None
                return (content, "the first user message") if isinstance(content, str) else (None, "a user message without a text")
        return None, "a chat without a user message"
    return None, "a list without a text"


def missing(value: Any) -> bool:
    """None, or the NaN that stands for it in exported tables."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def name_of(value: Any) -> str | None:
    """A label or a category as text: numbers as they are written, None where there is nothing."""
    if missing(value) or isinstance(value, (list, dict, tuple, bytes)):
        return None
    return str(value).strip() or None


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    return "a number" if isinstance(value, (int, float)) else "bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"
