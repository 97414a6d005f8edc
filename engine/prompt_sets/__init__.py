"""Sets of prompts: a person's own file or pasted text, read exactly, with everything that was detected said and open to change.

Nothing is repaired in silence and one bad row costs one row. Texts stay as they are: "NA" is a prompt, a leading tab is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Iterator

from engine.errors import RequestError
from engine.prompt_sets import columns, encodings, parquet, plain, records, tables
from engine.prompt_sets.collecting import chosen, collect
from engine.prompt_sets.encodings import ENCODINGS
from engine.prompt_sets.ready import BUILTIN, builtin
from engine.prompt_sets.shapes import KINDS, NONE, TABLES, Problem, PromptSet, SetPrompt
from engine.prompt_sets.tables import SEPARATORS

__all__ = ["BUILTIN", "ENCODINGS", "KINDS", "LIMIT_MB", "NONE", "SEPARATORS", "TABLES", "Problem", "PromptSet", "SetPrompt",
           "builtin", "first", "openings", "pasted", "read", "read_file"]

LIMIT_MB = 50  # of a file that is read whole; a Parquet file on disk may be of any size
LIMIT = LIMIT_MB * 1024 * 1024
_KIND_OF = {"txt": "lines", "csv": "csv", "tsv": "csv", "tab": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "json": "json",
            "parquet": "parquet", "pq": "parquet", "md": "lines"}
_MAGIC = (  # what is often taken for a text file
    (b"PK\x03\x04", "an Excel workbook or another zip archive; save the sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook; save the sheet as CSV"), (b"%PDF", "a PDF; save its text as TXT"),
    (b"\x1f\x8b", "compressed (gzip); unpack it"), (b"\xfd7zXZ\x00", "compressed (xz); unpack it"),
    (b"(\xb5/\xfd", "compressed (zstd); unpack it"), (b"BZh", "compressed (bzip2); unpack it"),
)


def read(content: bytes, name: str, *, encoding: str | None = None, separator: str | None = None, column: str | None = None,
         label_column: str | None = None, category_column: str | None = None, kind: str | None = None,
         header: bool | None = None) -> PromptSet:
    """The prompts of a file's bytes; `name` is the file's name. What is None is detected; NONE for a column means none.

    Raises RequestError, in a sentence that names the file, if there is nothing to read in it or it cannot be read so.
    """
    name = Path(name).name
    if len(content) > LIMIT:
        raise _too_large(name, len(content))
    if not content:
        raise RequestError(f"{name} is empty.")
    for magic, what in _MAGIC:
        if content.startswith(magic):
            raise RequestError(f"{name} is {what}.")
    asked = (column, label_column, category_column)
    with _naming(name):
        if kind == "parquet" or (kind is None and content.startswith(b"PAR1")):
            return _parquet(content, name, *asked)
        decoded = encodings.decode(content, encoding)
        found = _text(decoded.text, kind or _kind_of(name, decoded.text), name, *asked, separator=separator, header=header)
    return dataclasses.replace(found, encoding=decoded.encoding, notes=(*decoded.notes, *found.notes))


def read_file(path: str | Path, **how: Any) -> PromptSet:
    """As `read`, from disk; a Parquet file there may be of any size, since only its first rows are read."""
    path = Path(path).expanduser()
    try:
        with open(path, "rb") as f:
            if how.get("kind") in (None, "parquet") and f.read(4) == b"PAR1":
                with _naming(path.name):
                    return _parquet(path, path.name, how.get("column"), how.get("label_column"), how.get("category_column"))
            f.seek(0)
            content = f.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise _too_large(path.name, path.stat().st_size)
    except (OSError, ValueError) as e:
        raise RequestError(f"The file {path} cannot be read ({getattr(e, 'strerror', None) or e}).") from None
    return read(content, path.name, **how)


def pasted(text: str, kind: str | None = None, **how: Any) -> PromptSet:
    """The prompts of a typed or pasted text: JSON lines or a table with a header if it plainly is one, else lines or paragraphs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _text(text, kind or _kind_of_pasted(text), "", how.get("column"), how.get("label_column"), how.get("category_column"),
                 separator=how.get("separator"), header=how.get("header"))


def first(prompts: PromptSet, count: int, spread: bool = False) -> PromptSet:
    """The first `count` prompts, or `count` spread evenly over the set, so that a file sorted by category gives some of each."""
    n = len(prompts.prompts)
    if count >= n:
        return prompts
    picked = [i * n // count for i in range(count)] if spread else range(count)
    how = "spread evenly over the set" if spread else "the first ones"
    return dataclasses.replace(prompts, prompts=tuple(prompts.prompts[i] for i in picked),
                               notes=(*prompts.notes, f"{count:,} of {n:,} prompts are used, {how}."))


def openings(prompts: PromptSet, words: int) -> PromptSet:
    """Each prompt cut after its first `words` words, for texts that a model shall go on with; 0 leaves them whole."""
    pattern = re.compile(rf"\s*(?:\S+\s+){{{words - 1}}}\S+") if words else None
    cut = [pattern.match(p.text) for p in prompts.prompts] if pattern else []
    texts = [found.group() if found else p.text for p, found in zip(prompts.prompts, cut)]
    changed = sum(text != p.text for p, text in zip(prompts.prompts, texts))
    if not changed:
        return prompts
    return dataclasses.replace(prompts, prompts=tuple(dataclasses.replace(p, text=t) for p, t in zip(prompts.prompts, texts)),
                               notes=(*prompts.notes, f"{changed:,} of {len(texts):,} prompts are cut after their first {words:,} words."))


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """What is wrong is said of the file by its name."""
    try:
        yield
    except RequestError as e:
        raise RequestError(str(e).replace("The file", name, 1) if str(e).startswith("The file ") else f"{name}: {e}") from None


def _too_large(name: str, size: int) -> RequestError:
    return RequestError(f"{name} is {size / 2**20:,.0f} MB; files of up to {LIMIT_MB} MB are read. Take a part of it.")


def _kind_of(name: str, text: str) -> str:
    kind = _KIND_OF.get(name.rpartition(".")[2].lower(), "lines") if "." in name else "lines"
    if kind == "lines":
        return "jsonl" if _are_json_lines(text) else "lines"
    if kind in ("json", "jsonl"):
        many = _are_json_lines(text, bad=0.5) and "\n" in text.strip()
        return "jsonl" if many or (kind == "jsonl" and text.lstrip()[:1] != "[") else "json"
    return "lines" if kind == "parquet" else kind


def _kind_of_pasted(text: str) -> str:
    if _are_json_lines(text):
        return "jsonl"
    if text.lstrip()[:1] in ("[", "{"):
        try:
            if isinstance(json.loads(text), (list, dict)):
                return "json"
        except (ValueError, RecursionError):
            pass
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1:
        separator = tables.detect_separator(lines)
        names = [c.strip().strip('"') for c in lines[0].split(separator)] if separator else []
        if len(names) > 1 and any(n.lower() in columns.PROMPTS for n in names) and all(len(n) < 40 for n in names):
            return "csv"
    if any("\n" in p for p in re.split(r"\n[^\S\n]*\n\s*", text.strip())) and re.search(r"\n[^\S\n]*\n", text.strip()):
        return "paragraphs"
    return "lines"


def _are_json_lines(text: str, bad: float = 0.0) -> bool:
    """Whether the first lines that are not blank are JSON objects, but for a share `bad` of them."""
    lines = [line for line in text[:200_000].split("\n") if line.strip()][:20]
    if len(text) > 200_000 and len(lines) > 1 and len(lines) < 20:
        lines.pop()  # it may be cut
    sound = 0
    for line in lines:
        try:
            sound += line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            pass
    return sound > 0 and len(lines) - sound <= bad * len(lines)


def _text(text: str, kind: str, name: str, column: str | None, label: str | None, category: str | None, *, separator: str | None,
          header: bool | None) -> PromptSet:
    if kind not in KINDS:
        raise RequestError(f"The kind {kind!r} is not read; choose one of {', '.join(KINDS)}.")
    if kind == "parquet":
        raise RequestError("The file is not Parquet; choose another kind.")
    if separator is not None and separator not in SEPARATORS:
        raise RequestError(f"The separator {separator!r} is not offered; choose comma, semicolon, tab or pipe.")
    if kind == "csv":
        rows = tables.table(text, separator, header)
    else:
        rows = {"lines": plain.lines, "paragraphs": plain.paragraphs, "whole": plain.whole, "jsonl": records.json_lines,
                "json": records.json_file}[kind](text)
    return chosen(rows, kind, name, column, label, category)


def _parquet(source: bytes | Path, name: str, column: str | None, label: str | None, category: str | None) -> PromptSet:
    file = parquet.File(source)
    offered = columns.choices(file.columns)
    picked = columns.choose(offered, column, label, category, lambda c: float(c == columns.JOINED or file.textual(c)))
    wanted = ["instruction", "input"] if picked[0] == columns.JOINED else [picked[0]]
    rows = file.rows(list(dict.fromkeys(wanted + [c for c in picked[1:] if c])))
    return collect(rows, "parquet", name, *picked, offered=offered)
