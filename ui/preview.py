"""The first prompts of a set as a table, letter by letter: what cannot be seen has a sign."""

from __future__ import annotations

import re

import streamlit as st

from engine.prompt_sets import PromptSet
from engine.tokens import visible
from ui.session import showable

SHOWN, LETTERS = 50, 300  # rows, and characters of each prompt


def letters(text: str, limit: int = LETTERS) -> str:
    """`text` with its invisible characters shown, but a single space between two words left as it is; cut with … after `limit`."""
    cut = visible(showable(text[:limit]))
    return re.sub(r"(?<=[^·→⏎])·(?=[^·→⏎])", " ", cut) + ("…" if len(text) > limit else "")


def preview(found: PromptSet, key: str) -> None:
    """Line, text, label and category of the first prompts. Cells are plain text: nothing in them is interpreted."""
    import pandas as pd

    head = found.prompts[:SHOWN]
    data = {"Line": [p.line for p in head], "Prompt": [letters(p.text) for p in head], "Label": [letters(p.label, 60) for p in head]}
    if any(p.category is not None for p in head):
        data["Category"] = [letters(p.category, 60) if p.category else "" for p in head]
    column = st.column_config
    signs = "· space at an end or doubled, → tab, ⏎ line break, ⟨U+…⟩ what is not drawn. A long prompt is cut here, not when it is run."
    st.dataframe(pd.DataFrame(data), hide_index=True, placeholder="", key=key, height="auto" if len(head) <= 6 else 248, column_config={
        "Line": column.NumberColumn("Row" if found.kind == "parquet" else "Line", width=60, help="Where it begins in its source, from 1"),
        "Prompt": column.TextColumn(width="large", help=signs),
        "Label": column.TextColumn(width=120, help="What names it in tables; no two are alike"),
        "Category": column.TextColumn(width=120, help="What sorts prompts into groups")})
