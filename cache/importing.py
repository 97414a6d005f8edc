"""Runs from other hands: everything in them is checked before the store takes them in."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from datetime import datetime
from pathlib import Path
from typing import Any, Callable

from cache.reading import Reader, Wrong, ascii_text
from cache.summary import summarise
from engine.errors import RequestError
from engine.run_files import MISSING, without_arrays
from engine.trace import AnyRun, Generation, SinkItem, WordError, assembled

LIMIT_MB = 100  # of a run file; .streamlit/config.toml lets as much through. 10,000 tokens a side take about 10 MB
LIMIT = LIMIT_MB * 2**20
NAN_NOTE = "The imported file held NaN or infinity, which JSON does not have; they are read as “not measured”."


def run_from_bytes(content: bytes, told: Callable[[float], None] = lambda share: None) -> AnyRun:
    """The run in an exported file, or in one that a command's --json wrote. RequestError says in one sentence why it is none.

    `told(share)` hears how much was read, 0–1. Beside the file's bytes and the run stands a text as large as the file, no more.
    """
    if len(content) > LIMIT:
        raise RequestError(f"This file has {len(content) / 2**20:.0f} MB; a run to import may have {LIMIT_MB}.")
    if content.lstrip()[:1] == b"<":
        raise RequestError("This is a web page; import the JSON file of a run instead.")
    odd: list[str] = []
    run = _read(content, odd, told)
    try:
        _check_run(run)
        summarise(run, Path(), 0)
    except ValueError as e:
        raise RequestError(f"This run cannot be used: {e}.") from None
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError):
        raise RequestError("This run cannot be used: its figures do not fit together.") from None
    notes = [NAN_NOTE] if odd else []
    notes += [MISSING] if without_arrays(run) and MISSING not in run.notes else []
    return dataclasses.replace(run, notes=(*run.notes, *notes)) if notes else run


def _read(content: bytes, odd: list[str], told: Callable[[float], None]) -> AnyRun:
    """The run as it stands in the file."""
    def check(kind, value, where: str) -> None:
        if _fits(kind)(value):
            return
        try:
            _check(kind, value, where)
        except ValueError as e:
            raise Wrong(str(e)) from None

    try:
        fields, others, kind = Reader(ascii_text(content), check, odd.append, told).run()
    except Wrong as e:
        raise RequestError(f"This run cannot be used: {e}.") from None
    except RecursionError:
        raise RequestError("This file is nested too deeply to be a run.") from None
    except WordError as e:
        raise RequestError(f"This run cannot be used: {e}.") from None
    except (ValueError, IndexError) as e:
        raise RequestError(f"This file is not JSON ({str(e).rstrip('.')}); import the JSON file of a run.") from None
    except (TypeError, KeyError, AttributeError, OverflowError) as e:
        raise RequestError(f"This run file is damaged: {e}.") from None
    try:
        return assembled(kind, fields, others.get("arrays"))
    except ValueError as e:
        raise RequestError(str(e)) from None


@functools.cache
def _fits(kind) -> Callable[[Any], bool]:
    """A quick test that a value is of the annotated type `kind`; only where it fails is `_check` asked, which says what is wrong."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if type(None) in arguments:
        inner = _fits(next(a for a in arguments if a is not type(None)))
        return lambda value: value is None or inner(value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        parts = [(f.name, _fits(hints[f.name])) for f in dataclasses.fields(kind) if not f.metadata.get("array")]
        return lambda value: type(value) is dict and all(fits(value[name]) for name, fits in parts if name in value)
    if origin is tuple and arguments[-1] is Ellipsis:
        if arguments[0] in (float, float | None, int):
            return _whole if arguments[0] is int else _finite
        each = _fits(arguments[0])
        return lambda value: type(value) is list and all(map(each, value))
    if origin is tuple:
        items = [_fits(a) for a in arguments]
        return lambda value: type(value) is list and len(value) == len(items) and all(fits(v) for fits, v in zip(items, value))
    if kind is float:
        return lambda value: type(value) is float and math.isfinite(value)
    if kind is int:
        return lambda value: type(value) is int and abs(value) < 2**63
    return (lambda value: type(value) is kind) if kind in (str, bool) else lambda value: False


def _finite(value: Any) -> bool:
    return type(value) is list and set(map(type, value)) <= {float, type(None)} and all(map(math.isfinite, filter(None, value)))


def _whole(value: Any) -> bool:
    return type(value) is list and set(map(type, value)) <= {int} and (not value or -2**63 < min(value) <= max(value) < 2**63)


def _check(kind, value, where: str) -> None:
    """ValueError unless plain data has the shape of the annotated type `kind`. Inside lists a number may be None."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is not None:
            _check(next(a for a in arguments if a is not type(None)), value, where)
    elif dataclasses.is_dataclass(kind):
        _expect(isinstance(value, dict), where, "an object")
        hints = typing.get_type_hints(kind)
        for f in dataclasses.fields(kind):
            if f.name in value and not f.metadata.get("array"):
                _check(hints[f.name], value[f.name], f"{where}.{f.name}")
    elif origin is tuple:
        _expect(isinstance(value, list), where, "a list")
        if arguments[-1] is not Ellipsis:
            _expect(len(value) == len(arguments), where, f"a list of {len(arguments)}")
        for i, item in enumerate(value):
            inner = arguments[0] if arguments[-1] is Ellipsis else arguments[i]
            if not (inner is float and item is None):
                _check(inner, item, f"{where}[{i}]")
    elif origin is dict:
        _expect(isinstance(value, dict), where, "an object")
        for key, item in value.items():
            if arguments[0] is int:
                _expect(key.lstrip("-").isdecimal() and key.isascii(), where, "an object with whole numbers as keys")
            _check(arguments[1], item, f"{where}.{key[:20]}")
    elif kind is bool:
        _expect(isinstance(value, bool), where, "true or false")
    elif kind is int:
        _expect(isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63, where, "a whole number")
    elif kind is float:
        # json reads digits without a point as a whole number of any size, which no float may hold
        _expect(isinstance(value, float) and math.isfinite(value) or isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63, where, "a number")
    elif kind is str:
        _expect(isinstance(value, str), where, "a text")


def _expect(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"{where} is not {what}")


def _check_run(run: AnyRun) -> None:
    """What every view relies on. ValueError names the first thing that does not hold."""
    needed = ("verifier",) if run.kind in ("compare", "uag") else ("model",)
    for role in needed:
        if role not in run.models:
            raise ValueError(f"it does not say which {role} ran")
    datetime.fromisoformat(run.created.replace("Z", "+00:00"))
    if run.kind == "compare":
        for mode in ("plain", "speculative"):
            _check_answer(getattr(run, mode), run, mode)
        return
    for i, item in enumerate(run.items):
        where = f"items[{i}]"
        if run.kind == "sinks":
            _check_sums(item, run, where)
        elif run.kind == "entropy":
            _check_answer(item.answer, run, f"{where}.answer")
        else:
            _check_answer(item.plain, run, f"{where}.plain")
            for n, result in enumerate(item.results):
                _check_answer(result.answer, run, f"{where}.results[{n}].answer")


def _check_answer(answer: Generation | None, run: AnyRun, where: str) -> None:
    """Columns of one length, and bytes for every id."""
    if answer is None:
        return
    for column in ("entropy", "top", "probability", "sampling_entropy"):
        if len(getattr(answer, column)) not in (0, len(answer.ids)):
            raise ValueError(f"{where}.{column} has {len(getattr(answer, column))} entries for {len(answer.ids)} tokens")
    used, of_draft = set(answer.ids), set()
    for best in answer.top:
        used.update(id for id, _ in best)
    for i, round_ in enumerate(answer.rounds):
        used.update(round_.proposed, round_.emitted)
        of_draft.update(round_.draft_ids)
        for column in ("q", "p", "draw", "draft_entropy", "draft_normalised"):
            if len(getattr(round_, column)) not in (0, len(round_.proposed)):
                raise ValueError(f"{where}.rounds[{i}].{column} has not one entry for each proposed token")
        if not 0 <= round_.accepted <= len(round_.proposed):
            raise ValueError(f"{where}.rounds[{i}] accepts {round_.accepted} of {len(round_.proposed)} proposed tokens")
    _check_bytes(used, run.tokens)
    if run.kind == "uag":
        _check_bytes(of_draft, run.draft_tokens)


def _check_bytes(used: set[int], tokens: dict[int, str]) -> None:
    for id in used:
        try:
            bytes.fromhex(tokens[id])
        except (KeyError, ValueError):
            raise ValueError(f"it does not give the bytes of token {id}") from None


def _check_sums(item: SinkItem, run: AnyRun, where: str) -> None:
    """Flags and arrays that fit the prompt's tokens."""
    _check_bytes(set(item.prompt.ids), run.tokens)
    keys, sums = len(item.prompt.ids), item.sums
    if item.answer_start is not None and not 0 <= item.answer_start <= keys:
        raise ValueError(f"{where}.answer_start is {item.answer_start}, of {keys} tokens")
    if sums is None or (sums.received is None and sums.near is None and sums.near_mean is None):
        return  # a report of the command line, or a stored file by itself: what attention did is said to be missing
    if len(item.structural) != keys:
        raise ValueError(f"{where}.structural has {len(item.structural)} entries for {keys} tokens")
    layers, heads = (sums.received.shape[:2] if getattr(sums.received, "ndim", 0) == 3 else (0, 0))
    near = getattr(sums.near_mean, "shape", (0, 0))[-1]
    expected = {"received": (layers, heads, keys), "near": (layers, heads, keys, near), "near_mean": (keys, near)}
    for name, shape in expected.items():
        array = getattr(sums, name)
        if (array is None and name != "near") or (array is not None and array.shape != shape) or not layers * heads * near:
            raise ValueError(f"{where}.sums.{name} does not fit {keys} tokens")
    if len(sums.windows) != layers:
        raise ValueError(f"{where}.sums.windows has {len(sums.windows)} entries for {layers} layers")
