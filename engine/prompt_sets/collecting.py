"""From rows to a set of prompts: columns chosen, texts checked, labels made unique, everything counted."""

from __future__ import annotations

from typing import Any, Sequence

from engine.prompt_sets import columns
from engine.prompt_sets.shapes import PromptSet, Rows, SetPrompt, flaw


def chosen(rows: Rows, kind: str, name: str, column: str | None, label: str | None, category: str | None) -> PromptSet:
    """Columns chosen, rows collected. Texts without columns (lines, a JSON list of texts) need no choice."""
    if not rows.columns:
        return collect(rows, kind, name, "", None, None)
    offered = columns.choices(rows.columns)
    head = [cells for _, cells in rows.rows[:200]]

    def weight(c: str) -> float:
        return 1 if c == columns.JOINED else sum(len(columns.text_of(cells.get(c))[0] or "") for cells in head) / (len(head) or 1)

    picked = columns.choose(offered, column, label, category, weight)
    return collect(rows, kind, name, *picked, offered=offered)


def collect(rows: Rows, kind: str, name: str, column: str, label: str | None, category: str | None,
            offered: Sequence[str] = ()) -> PromptSet:
    """Prompts from rows: texts checked, labels made unique, everything counted."""
    prompts: list[SetPrompt] = []
    used: dict[str, int] = {}
    hows: dict[str, int] = {}
    unnamed = renamed = edged = 0
    for line, cells in rows.rows:
        text, how = _joined(cells) if column == columns.JOINED else columns.text_of(cells.get(column, cells.get("")))
        if text is None:
            rows.refuse(line, f"has {how} in the column {column!r}." if how else f"has no text in the column {column!r}.")
            continue
        asked, group = (columns.name_of(cells.get(c)) if c else None for c in (label, category))
        why = next(filter(None, map(flaw, filter(None, (text, asked, group)))), None)
        if why or not text.strip():
            rows.refuse(line, why or "has an empty prompt.")
            continue
        if how:
            hows[how] = hows.get(how, 0) + 1
        unnamed += label is not None and asked is None
        wanted = asked or (f"{rows.unit} {line}" if label else str(len(prompts) + 1))
        unique = _unique(wanted, used)
        renamed += unique != wanted
        edged += text != text.strip()
        prompts.append(SetPrompt(unique, text, group, line))
    notes = list(rows.notes)
    notes += [f"Column {column!r} holds more than a text: {how} was taken in {count:,} {_rows(count)}." for how, count in hows.items()]
    if renamed:
        notes.append(f"{renamed:,} {_rows(renamed)} had a label that was taken already and got a number after it.")
    if unnamed:
        notes.append(f"{unnamed:,} {_rows(unnamed)} had no label in {label!r} and are called by their {rows.unit}.")
    if edged:
        notes.append(f"{edged:,} {'prompt begins or ends' if edged == 1 else 'prompts begin or end'} with white space, which is kept.")
    problems = tuple(sorted(rows.problems, key=lambda p: p.line))
    if rows.refused > len(problems):
        notes.append(f"{rows.refused:,} rows were refused; the first {len(problems):,} are listed.")
    return PromptSet(tuple(prompts), kind, None, rows.separator, tuple(offered), column or None, label, category, rows.skipped_blank,
                     problems, tuple(notes), name, rows.header, rows.refused)


def _joined(cells: Any) -> tuple[str | None, str | None]:
    """An instruction and, where there is one, the text it is about, parted by a blank line."""
    text, how = columns.text_of(cells.get("instruction"))
    more = columns.text_of(cells.get("input"))[0]
    return (f"{text}\n\n{more}" if text is not None and more and more.strip() else text), how


def _unique(wanted: str, used: dict[str, int]) -> str:
    """`wanted`, or with the first free number after it. `used` holds the labels given and the number each has come to."""
    label, n = wanted, used.get(wanted, 1)
    while label in used:
        n += 1
        label = f"{wanted} ({n})"
    used[wanted] = n
    used.setdefault(label, 1)
    return label


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"
