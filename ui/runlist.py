"""The list of runs as a table: filters, columns, and which rows are ticked."""

from __future__ import annotations

import hashlib
from typing import Sequence

import streamlit as st

from cache.summary import Summary
from ui.kinds import NAMES
from ui.session import showable

DAMAGED = "damaged"


def status_of(summary: Summary) -> str:
    return DAMAGED if summary.damaged else summary.status


def statuses(runs: Sequence[Summary]) -> list[str]:
    return sorted({status_of(s) for s in runs})


def models(runs: Sequence[Summary]) -> list[str]:
    return sorted({showable(m) for s in runs for m in (s.verifier, s.draft) if m})


def kind_of(summary: Summary) -> str:
    """The page that made it."""
    return NAMES.get(summary.kind, "")


def kinds(runs: Sequence[Summary]) -> list[str]:
    return sorted({kind_of(s) for s in runs if s.kind})


def chosen(runs: Sequence[Summary], text: str, status: str, model: str, kind: str = "all") -> list[Summary]:
    """The runs that pass all four filters; `text` is looked for letter by letter, not as a pattern."""
    wanted = text.casefold().split()

    def passes(s: Summary) -> bool:
        where = " ".join((s.id, s.name, s.prompt, s.verifier, s.draft, s.status)).casefold()
        models_here = ("all", showable(s.verifier), showable(s.draft))
        return all(w in where for w in wanted) and status in ("all", status_of(s)) and model in models_here and kind in ("all", kind_of(s))

    return [s for s in runs if passes(s)]


def table(runs: Sequence[Summary], ticked: Sequence[str]) -> list[str]:
    """Draw the table; returns the ids of the ticked rows.

    Streamlit remembers ticks by row number, so the widget is another one whenever the rows are others, and the ticks are put
    back by id: a run that appears meanwhile must not move a tick to its neighbour.
    """
    import pandas as pd

    ids = [s.id for s in runs]
    data = pd.DataFrame({
        "When (UTC)": pd.to_datetime([s.created or None for s in runs], utc=True, errors="coerce").tz_localize(None),
        "Page": [kind_of(s) for s in runs],
        "Name": [showable(s.name) for s in runs],
        "Prompt": [showable(s.damaged or s.prompt) for s in runs],
        "Verifier": [showable(s.verifier) for s in runs],
        "Draft": [showable(s.draft) for s in runs],
        "γ": pd.array([s.gamma for s in runs], dtype="Int64"),
        "T": [s.temperature for s in runs],
        "Tokens": [None if s.damaged else s.tokens for s in runs],
        "Accepted": [None if s.acceptance is None else 100 * s.acceptance for s in runs],
        "Speedup": [s.speedup for s in runs],
        "Status": [status_of(s) for s in runs],
    })
    column = st.column_config
    mark = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12]
    state = st.dataframe(
        data, hide_index=True, placeholder="", key=f"runs.table.{mark}", on_select="rerun", selection_mode="multi-row",
        height="auto" if len(runs) <= 12 else 460,
        selection_default={"selection": {"rows": [i for i, run in enumerate(ids) if run in ticked], "columns": [], "cells": []}},
        column_config={
            "When (UTC)": column.DatetimeColumn(format="YYYY-MM-DD HH:mm", width=135),
            "Page": column.TextColumn(width=75), "Prompt": column.TextColumn(width="medium"), "Name": column.TextColumn(width=110),
            "Verifier": column.TextColumn(width=150), "Draft": column.TextColumn(width=110),
            "γ": column.NumberColumn(width=45, help="Draft tokens asked for per round"),
            "T": column.NumberColumn(width=45, help="Temperature; 0 is greedy", format="%.1f"),
            "Tokens": column.NumberColumn(width=65),
            "Accepted": column.NumberColumn(width=80, format="%.0f %%", help="Accepted of the proposed draft tokens"),
            "Speedup": column.NumberColumn(width=80, format="%.2f×", help="Speculative over verifier-only; below 1 it is slower"),
            "Status": column.TextColumn(width=75),
        })
    return [ids[i] for i in state.selection.rows if i < len(ids)]
