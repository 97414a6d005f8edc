"""Dataclasses to plain JSON data and back. Arrays stand apart: JSON would make them five times as large."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing

from engine.trace.closed import WORDS

ARRAY = {"array": True}  # metadata of a field that holds a numpy array or None


class WordError(ValueError):
    """A field of a closed set holds another word."""


def plain_data(value):
    """Dataclasses, tuples and numbers → dicts, lists and JSON numbers. NaN and infinity become None; arrays are left out."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain_data(getattr(value, f.name)) for f in dataclasses.fields(value) if not f.metadata.get("array")}
    if isinstance(value, dict):
        return {str(k): plain_data(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def pieces(value) -> typing.Iterator[str]:
    """The JSON of `plain_data(value)`, part by part: a large run is written without a second copy of it."""
    if dataclasses.is_dataclass(value):
        opening = "{"
        for f in dataclasses.fields(value):
            if not f.metadata.get("array"):
                yield f"{opening}{json.dumps(f.name)}: "
                yield from pieces(getattr(value, f.name))
                opening = ", "
        yield "}" if opening == ", " else "{}"
    elif isinstance(value, tuple) and value and (dataclasses.is_dataclass(value[0]) or isinstance(value[0], tuple)):
        opening = "["
        for inner in value:
            yield opening + json.dumps(plain_data(inner), ensure_ascii=False, allow_nan=False) if not _nests(inner) else opening
            if _nests(inner):
                yield from pieces(inner)
            opening = ", "
        yield "]"
    else:
        yield json.dumps(plain_data(value), ensure_ascii=False, allow_nan=False)


def _nests(value) -> bool:
    """Whether a dataclass holds other dataclasses, one by one or in a tuple."""
    return dataclasses.is_dataclass(value) and any(
        dataclasses.is_dataclass(inner) or (isinstance(inner, tuple) and inner and dataclasses.is_dataclass(inner[0]))
        for inner in (getattr(value, f.name) for f in dataclasses.fields(value)))


def build(kind, value):
    """Rebuild a value of annotated type `kind` from plain data."""
    return _builder(kind)(value)


def arrays_of(value, name: str = "") -> dict:
    """Every array in a tree of dataclasses and tuples, by where it stands: `items.0.sums.received`."""
    found = {}
    for key, inner, is_array in _children(value):
        where = f"{name}.{key}" if name else str(key)
        if is_array:
            found |= {} if inner is None else {where: inner}
        else:
            found |= arrays_of(inner, where)
    return found


def with_arrays(value, arrays: typing.Mapping, name: str = ""):
    """The same tree with `arrays` (named as `arrays_of` names them) put back; what is not among them stays as it is."""
    changed = {}
    for key, inner, is_array in _children(value):
        where = f"{name}.{key}" if name else str(key)
        new = arrays.get(where, inner) if is_array else with_arrays(inner, arrays, where)
        if new is not inner:
            changed[key] = new
    if not changed:
        return value
    if isinstance(value, tuple):
        return tuple(changed.get(i, inner) for i, inner in enumerate(value))
    return dataclasses.replace(value, **changed)


def _children(value):
    """(name, value, whether it is an array) of what a dataclass or a tuple of dataclasses holds; nothing of the rest."""
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield f.name, getattr(value, f.name), bool(f.metadata.get("array"))
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for i, inner in enumerate(value):
            yield i, inner, False


@functools.cache
def _builder(kind) -> typing.Callable:
    """The function that rebuilds a value of one annotated type. Types are looked into once, not at each of many values."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        words = WORDS.get(kind.__name__, {})
        parts = [(f.name, one_of(words[f.name], f.name) if f.name in words else _builder(hints[f.name]))
                 for f in dataclasses.fields(kind) if not f.metadata.get("array")]
        return lambda value: kind(**{name: build(value[name]) for name, build in parts if name in value})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = _builder(next(a for a in arguments if a is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple and arguments[-1] is Ellipsis:
        if arguments[0] in (int, float, bool):
            return tuple
        each = _builder(arguments[0])
        return lambda value: tuple([each(v) for v in value])
    if origin is tuple:
        if all(a in (int, float) for a in arguments):
            return tuple
        items = [_builder(a) for a in arguments]
        return lambda value: tuple(build(v) for build, v in zip(items, value))
    if origin is dict:
        key, item = (_builder(a) for a in arguments)
        return lambda value: {key(k): item(v) for k, v in value.items()}
    if kind is str:
        return _text
    if kind in (int, float):
        return lambda value: value if value is None else kind(value)
    return lambda value: value


def _text(value):
    """A text that can be shown anywhere: half a surrogate pair, which no encoding of a file has, becomes a question mark."""
    if value is None:
        return None
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def one_of(words: tuple[str, ...], name: str) -> typing.Callable:
    def build(value):
        if value is not None and value not in words:
            raise WordError(f"{name} is none of {', '.join(words[:-1])} and {words[-1]}")
        return value
    return build
