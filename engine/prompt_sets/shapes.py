"""What reading a file of prompts gives: the prompts, what was refused and why, and everything that was detected on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

# kind → what it is called where a person picks one
KINDS = {
    "lines": "One prompt a line", "paragraphs": "Paragraphs", "whole": "One prompt, whole",
    "csv": "Table (CSV, TSV)", "jsonl": "JSON lines", "json": "JSON", "parquet": "Parquet",
}
TABLES = ("csv", "jsonl", "json", "parquet")  # kinds with columns to pick from
PROBLEMS_KEPT = 1000  # a file of a million bad lines is one mistake, not a million sentences
NONE = ""  # given for a column: use none, where None means: detect one


@dataclass(frozen=True)
class SetPrompt:
    """One prompt of a set. `label` is unique in the set; `line` is where it begins in its file, from 1 (Parquet: its row)."""

    label: str
    text: str
    category: str | None = None
    line: int = 1


@dataclass(frozen=True)
class Problem:
    """One row that was refused: where it begins in the file, from 1, and one plain sentence that says why."""

    line: int
    sentence: str


@dataclass(frozen=True)
class PromptSet:
    """Prompts and what is known of their source.

    `encoding` is a key of `encodings.ENCODINGS` (None: the text came without bytes, or Parquet); `separator` is "" for a table of
    one column and None where there is no table. `column`, `label_column` and `category_column` name one of `columns`, or are None.
    `refused` counts rows that are no prompts; `problems` holds the first PROBLEMS_KEPT of them. `notes` are sentences.
    """

    prompts: tuple[SetPrompt, ...]
    kind: str
    encoding: str | None = None
    separator: str | None = None
    columns: tuple[str, ...] = ()
    column: str | None = None
    label_column: str | None = None
    category_column: str | None = None
    skipped_blank: int = 0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""
    header: bool | None = None  # a table's first row names its columns; None where there is no such question
    refused: int = 0


@dataclass
class Rows:
    """A file taken apart, before its columns are chosen. `rows` are (line, cells); cells of a text without columns have the key ""."""

    rows: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    refused: int = 0
    skipped_blank: int = 0
    notes: list[str] = field(default_factory=list)
    separator: str | None = None
    header: bool | None = None
    unit: str = "line"

    def refuse(self, line: int, why: str) -> None:
        """Count a row as refused; `why` continues "Line 5 "."""
        self.refused += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(Problem(line, f"{self.unit.capitalize()} {line:,} {why}"))


def flaw(text: str) -> str | None:
    """Why `text` is not text, as the rest of a sentence; None if it is.

    Undecodable bytes arrive as U+DC80–U+DCFF (PEP 383), halves of surrogate pairs from UTF-16 or from JSON escapes as themselves.
    """
    if "\0" in text:
        return "holds a NUL character, which is not text."
    try:
        text.encode()
    except UnicodeEncodeError as e:
        code = ord(text[e.start])
        if 0xDC80 <= code <= 0xDCFF:
            return f"holds the byte {code - 0xDC00:02X}, which is no character in this encoding."
        return f"holds half of a surrogate pair (U+{code:04X}), which is no character."
    return None
