"""Parquet: the columns of a file, and the first rows of those that are wanted. A dump of any size opens as fast as a small one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.prompt_sets.shapes import Rows

ROW_LIMIT = 10_000  # rows that are read; a set is run prompt by prompt, so more would only fill memory
TEXT_LIMIT = 100_000_000  # characters that are read, for files whose rows are books
_BATCH = 256


class File:
    """An open Parquet file: `columns`, how many `total` rows, and `rows(names)`.

    Raises RequestError if it cannot be read as one.
    """

    def __init__(self, source: bytes | Path):
        import pyarrow.parquet as parquet  # brought by streamlit; a third of a second to import

        try:
            self._file = parquet.ParquetFile(io.BytesIO(source) if isinstance(source, bytes) else str(source))
            self.columns = [str(name) for name in self._file.schema_arrow.names]
            self.total = self._file.metadata.num_rows
            self._types = {str(f.name): f.type for f in self._file.schema_arrow}
        except Exception as e:  # arrow raises its own errors, OSError and ValueError for damaged files
            raise RequestError(f"The file cannot be read as Parquet ({_short(e)}).") from None

    def textual(self, name: str) -> bool:
        """Whether the column can hold prompts: texts, lists or objects."""
        import pyarrow.types as types

        t = self._types[name]
        if types.is_dictionary(t):
            t = t.value_type
        return types.is_string(t) or types.is_large_string(t) or types.is_nested(t) or str(t) == "string_view"

    def rows(self, names: list[str], limit: int = ROW_LIMIT) -> Rows:
        """The first `limit` rows of these columns; `line` is the row's number, from 1."""
        taken, size = Rows(columns=self.columns, unit="row"), 0
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=min(_BATCH, limit), columns=names, use_threads=False):
                columns = [_cells(batch.column(name)) for name in names]
                for cells in zip(*columns):
                    number += 1
                    bad = next((c for c in cells if isinstance(c, _Unreadable)), None)
                    if bad:
                        taken.refuse(number, "holds bytes that are not UTF-8.")
                    else:
                        taken.rows.append((number, dict(zip(names, cells))))
                        size += sum(len(c) for c in cells if isinstance(c, str))
                    if number == limit or size > TEXT_LIMIT:
                        break
                if number == limit or size > TEXT_LIMIT:
                    break
        except Exception as e:
            if not number:
                raise RequestError(f"The file cannot be read as Parquet ({_short(e)}).") from None
            taken.refuse(number + 1, f"and what follows it cannot be read ({_short(e)}).")
        if number < self.total:
            taken.notes.append(f"The file has {self.total:,} rows; the first {number:,} were read.")
        return taken


class _Unreadable:
    """Stands for a cell that says it is text and is not."""


def _cells(column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_cell(value) for value in column]


def _cell(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return _Unreadable()


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
