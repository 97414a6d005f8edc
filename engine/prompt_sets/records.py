"""JSON and JSON lines: objects or texts, each with its line, as strictly as the standard and no stricter than real exports."""

from __future__ import annotations

import json
import re
from typing import Any, Iterator

from engine.prompt_sets.shapes import Rows, flaw

_SPACE = re.compile(r"[ \t\n]*")
_LISTS = ("prompts", "data", "rows", "items", "examples", "questions")  # keys under which a JSON object keeps its rows


class _Reader:
    """json's own decoder; counts the NaN and infinities that JSON does not have and reads them as missing."""

    def __init__(self) -> None:
        self.constants = 0
        self.decoder = json.JSONDecoder(parse_constant=self._constant, strict=False)

    def _constant(self, name: str) -> None:
        self.constants += 1

    def at(self, text: str, start: int) -> tuple[Any, int]:
        """(value, index after it). Raises ValueError in plain words."""
        try:
            return self.decoder.raw_decode(text, start)
        except json.JSONDecodeError as e:
            column = e.pos - (text.rfind("\n", 0, e.pos) + 1) + 1
            raise ValueError(f"is not JSON ({e.msg[:1].lower()}{e.msg[1:]}, column {column:,}).") from None
        except RecursionError:
            raise ValueError("is nested too deeply.") from None
        except ValueError:  # a whole number of more digits than Python converts
            raise ValueError("holds a number of too many digits.") from None


def json_lines(text: str) -> Rows:
    """One object, or one text, a line. A bad line is refused; the others are used."""
    rows, reader = Rows(), _Reader()
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        if not line.strip():
            rows.skipped_blank += 1
            continue
        why = flaw(line)
        if why:
            rows.refuse(number, why)
            continue
        try:
            start = len(line) - len(line.lstrip())
            value, end = reader.at(line, start)
            if line[end:].strip():
                raise ValueError(f"is not JSON (something follows the value, column {end + 1:,}).")
        except ValueError as e:
            rows.refuse(number, str(e))
            continue
        _take(rows, number, value)
    return _finish(rows, reader)


def json_file(text: str) -> Rows:
    """A list of objects or texts, an object that holds such a list, or an object of label → text.

    After a mistake nothing more can be read: its line is refused, and what stands before it is used.
    """
    rows, reader = Rows(), _Reader()
    line, counted = 1, 0

    def line_of(position: int) -> int:
        nonlocal line, counted
        line, counted = line + text.count("\n", counted, position), position
        return line

    at = _SPACE.match(text, 0).end()
    try:
        if text[at : at + 1] == "[":
            for start, value in _elements(text, at, reader):
                _take(rows, line_of(start), value)
        elif text[at : at + 1] == "{":
            members = list(_members(text, at, reader))
            inner = next((m for name in _LISTS for m in members if m[0] == name and isinstance(m[2], list)), None)
            inner = inner or next((m for m in members if isinstance(m[2], list) and m[2] and isinstance(m[2][0], dict)), None)
            if inner is not None:
                for start, value in _elements(text, inner[1], _Reader()):
                    _take(rows, line_of(start), value)
                rows.notes.append(f"The rows were taken from the list “{inner[0]}”.")
            elif len(members) > 1 and all(isinstance(value, str) for _, _, value in members) and "prompt" not in dict(
                    (name, 0) for name, _, _ in members):
                for name, start, value in members:
                    _take(rows, line_of(start), {"id": name, "prompt": value})
            else:
                _take(rows, line_of(at), {name: value for name, _, value in members})
        else:
            raise ValueError("is not the beginning of a JSON list or object.")
    except _Broken as e:
        rows.refuse(line_of(max(e.position, counted)), f"{e} What follows it cannot be read.")
    except ValueError as e:
        rows.refuse(line_of(at), str(e))
    return _finish(rows, reader)


class _Broken(Exception):
    """A mistake at `position` of a JSON text; the message is the rest of a sentence."""

    def __init__(self, position: int, why: str):
        super().__init__(why)
        self.position = position


def _value(text: str, at: int, reader: _Reader) -> tuple[Any, int]:
    try:
        return reader.at(text, at)
    except ValueError as e:
        raise _Broken(_mistake(text, at), str(e)) from None


def _mistake(text: str, at: int) -> int:
    """Where exactly the value that begins at `at` breaks."""
    try:
        json.JSONDecoder(strict=False).raw_decode(text, at)
    except json.JSONDecodeError as e:
        return e.pos
    except (ValueError, RecursionError):
        pass
    return at


def _elements(text: str, at: int, reader: _Reader) -> Iterator[tuple[int, Any]]:
    """(position, value) of each element of the list that opens at `at`."""
    at = _SPACE.match(text, at + 1).end()
    if text[at : at + 1] == "]":
        return
    while True:
        value, end = _value(text, at, reader)
        yield at, value
        at = _SPACE.match(text, end).end()
        if text[at : at + 1] == "]":
            return
        if text[at : at + 1] != ",":
            raise _Broken(at, "ends before the list is closed." if at >= len(text) else "lacks the comma between two rows.")
        at = _SPACE.match(text, at + 1).end()


def _members(text: str, at: int, reader: _Reader) -> Iterator[tuple[str, int, Any]]:
    """(key, position of its value, value) of each member of the object that opens at `at`."""
    at = _SPACE.match(text, at + 1).end()
    while text[at : at + 1] != "}":
        key, end = _value(text, at, reader)
        at = _SPACE.match(text, end).end()
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise _Broken(at, "is not JSON (a key in quotes and a colon are expected).")
        at = _SPACE.match(text, at + 1).end()
        value, end = _value(text, at, reader)
        yield key, at, value
        at = _SPACE.match(text, end).end()
        if text[at : at + 1] == ",":
            at = _SPACE.match(text, at + 1).end()
        elif text[at : at + 1] != "}":
            raise _Broken(at, "is not JSON (a comma or a closing brace is expected).")


def _take(rows: Rows, line: int, value: Any) -> None:
    if isinstance(value, dict):
        for name in value:
            if name not in rows.columns and len(rows.columns) < 200 and flaw(name) is None:
                rows.columns.append(name)
        rows.rows.append((line, value))
    elif isinstance(value, str):
        rows.rows.append((line, {"": value}))
    else:
        rows.refuse(line, "holds neither an object nor a text.")


def _finish(rows: Rows, reader: _Reader) -> Rows:
    if reader.constants:
        rows.notes.append(f"{reader.constants:,} {'value' if reader.constants == 1 else 'values'} written NaN or Infinity, which JSON does "
                          "not have, read as missing.")
    return rows
