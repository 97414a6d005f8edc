"""A run read from the text of a large file piece by piece: no tree of the whole file ever stands beside the run that is built from it."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import json
import re
import typing
from typing import Any, Callable

from engine.trace import KINDS, build, one_of
from engine.trace.closed import WORDS

_SPACE = re.compile(r"[ \t\n\r]*")
_KIND = re.compile(rf'"kind"\s*:\s*"({"|".join(KINDS)})"')  # a quote inside a string would be escaped, so this is a real member

_REPORT = re.compile(r'"run"\s*:\s*\{')


def ascii_text(content: bytes) -> str:
    """The same JSON in ASCII, one byte a character: letters beyond stand as escapes. ValueError if the bytes are no text."""
    encoding = json.detect_encoding(content)
    if encoding not in ("utf-8", "utf-8-sig"):
        content = content.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    return str(memoryview(content).toreadonly(), "ascii", "speclens.escape").removeprefix("\\ufeff")


def _escape(e: UnicodeError) -> tuple[str, int]:
    end = e.start
    while end < len(e.object) and e.object[end] >= 128:
        end += 1
    return json.dumps(bytes(e.object[e.start:end]).decode("utf-8", "surrogatepass"))[1:-1], end


codecs.register_error("speclens.escape", _escape)


class Reader:
    """`check(kind, plain data, where)` is asked of each piece before it is built; `told(share)` hears how far it is, 0–1."""

    def __init__(self, text: str, check: Callable[[Any, Any, str], None], odd: Callable[[str], None], told: Callable[[float], None]):
        self.text, self.check, self.told = text, check, told
        self._scan = json.JSONDecoder(parse_constant=odd, parse_int=_Whole().__getitem__).scan_once

    def run(self) -> tuple[dict[str, Any], dict[str, Any], type | None]:
        """(fields of the run, other members that matter, its class or None where it is not a run)."""
        start = self.space(0)
        if self.text[start:start + 1] == "{" and _REPORT.search(self.text):
            start = self.within(start)
        for kind in dict.fromkeys(_KIND.findall(self.text)) if self.text[start:start + 1] == "{" else ():
            fields, others, end = self.members(KINDS[kind], start, "run", keep=("arrays",))
            if start == self.space(0):
                self.ended(end)
            if fields.get("kind") == kind:
                return fields, {name: self.scan(at)[0] for name, at in others.items() if name == "arrays"}, KINDS[kind]
        self.ended(self.skip(start, 0))
        return {}, {}, None

    def within(self, start: int) -> int:
        """Where the run begins that a command's report holds under `run`, beside its figures; `start` if this is no report."""
        places = {}
        for key, at in self.parts(start, "}"):
            places[key] = at
            self.at = self.skip(at)
        self.ended(self.at)
        whole = "schema" in places and ("items" in places or "plain" in places)
        return places["run"] if "run" in places and not whole else start

    def ended(self, at: int) -> None:
        if self.space(at) != len(self.text):
            raise ValueError("Extra data")

    def members(self, kind: type, at: int, where: str, keep: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, int], int]:
        """The fields of an object of the dataclass `kind`, where the members named in `keep` begin, and where the object ends."""
        self.expect(at, "{", where, "an object")
        hints, words, fields, others = _hints(kind), WORDS.get(kind.__name__, {}), {}, {}
        for key, at in self.parts(at, "}"):
            if key in hints:
                fields[key], self.at = self.value(hints[key], at, f"{where}.{key}")
                if key in words:
                    one_of(words[key], key)(fields[key])
            else:
                if key in keep and self.text[at] == "{":
                    others[key] = at
                self.at = self.skip(at)
        return fields, others, self.at

    def value(self, kind: Any, at: int, where: str) -> tuple[Any, int]:
        """The value of the annotated type `kind` that begins at `at`, and where it ends. Large ones are read part by part."""
        inner = _inner(kind)
        if not _large(inner) or self.text.startswith("null", at):
            plain, end = self.scan(at)
            self.check(kind, plain, where)
            return build(kind, plain), end
        if dataclasses.is_dataclass(inner):
            fields, _, end = self.members(inner, at, where)
            return inner(**fields), end
        self.expect(at, "[", where, "a list")
        each, found = typing.get_args(inner)[0], []
        for _, at in self.parts(at, "]"):
            one, self.at = self.value(each, at, f"{where}[{len(found)}]")
            found.append(one)
            if len(found) % 4096 == 0:
                self.told(self.at / len(self.text))
        return tuple(found), self.at

    def parts(self, at: int, closing: str):
        """(key, where its value begins) of an object or a list; whoever asks sets `self.at` to where each value ended."""
        at = self.space(at + 1)
        while self.text[at:at + 1] != closing:
            key = None
            if closing == "}":
                key, at = self.scan(at)
                at = self.space(at)
                if not isinstance(key, str) or self.text[at:at + 1] != ":":
                    raise ValueError("Expecting a name and a colon")
                at = self.space(at + 1)
            yield key, at
            at = self.space(self.at)
            if self.text[at:at + 1] == ",":
                at = self.space(at + 1)
                if self.text[at:at + 1] == closing:
                    raise ValueError("Illegal trailing comma")
            elif self.text[at:at + 1] != closing:
                raise ValueError("Expecting ',' delimiter")
        self.at = at + 1

    def skip(self, at: int, depth: int = 2) -> int:
        """Where the value at `at` ends; large ones are not held whole."""
        if depth and self.text[at:at + 1] in ("{", "["):
            for _, inner in self.parts(at, "}" if self.text[at] == "{" else "]"):
                self.at = self.skip(inner, depth - 1)
            return self.at
        return self.scan(at)[1]

    def scan(self, at: int) -> tuple[Any, int]:
        try:
            return self._scan(self.text, at)
        except StopIteration:
            raise ValueError(f"Expecting value at character {at}") from None

    def space(self, at: int) -> int:
        return _SPACE.match(self.text, at).end()

    def expect(self, at: int, sign: str, where: str, what: str) -> None:
        if self.text[at:at + 1] != sign:
            self.check_wrong(at, where, what)

    def check_wrong(self, at: int, where: str, what: str) -> None:
        self.scan(at)  # a ValueError of its own if it is no JSON at all
        raise Wrong(f"{where} is not {what}")


class _Whole(dict):
    """Digits → whole number: each token's id is kept once, however often it occurs."""

    def __missing__(self, digits: str) -> int:
        return self.setdefault(digits, int(digits))


class Wrong(Exception):
    """The text is JSON, but not of a run."""


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if not f.metadata.get("array")}


def _inner(kind: Any) -> Any:
    """X of X | None."""
    arguments = typing.get_args(kind)
    return next(a for a in arguments if a is not type(None)) if type(None) in arguments else kind


@functools.cache
def _large(kind: Any) -> bool:
    """Whether a value of this type is read part by part: it holds lists of more than numbers and texts."""
    if dataclasses.is_dataclass(kind):
        return any(_large(_inner(hint)) for hint in _hints(kind).values())
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is Ellipsis:
        each = _inner(typing.get_args(kind)[0])
        return dataclasses.is_dataclass(each) or typing.get_origin(each) is tuple
    return False
