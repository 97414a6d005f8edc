"""Parquet files of prompts, as data sets are published: nested columns, more rows than anyone runs, damage."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.errors import RequestError
from engine.prompt_sets import parquet, read, read_file


def file_of(columns: dict) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def test_a_wikipedia_dump_gives_its_texts_by_title():
    found = read(file_of({"id": ["1", "2"], "url": ["u", "v"], "title": ["Łódź", "Żółw"],
                          "text": ["Łódź – miasto\nw Polsce.", "Żółw to gad."]}), "train.parquet")
    assert [(p.label, p.text, p.line) for p in found.prompts] == [("1", "Łódź – miasto\nw Polsce.", 1), ("2", "Żółw to gad.", 2)]
    assert found.column == "text" and found.columns == ("id", "url", "title", "text") and found.kind == "parquet" and found.encoding is None
    assert [p.label for p in read(file_of({"title": ["Łódź"], "text": ["x"]}), "p.parquet").prompts] == ["Łódź"]


def test_an_instruction_set_is_read_as_it_is():
    content = file_of({"instruction": ["Popraw.", "Kto?"], "input": ["Ala", None], "output": ["a", "b"]})
    assert [p.text for p in read(content, "p.parquet").prompts] == ["Popraw.\n\nAla", "Kto?"]
    assert [p.text for p in read(content, "p.parquet", column="output").prompts] == ["a", "b"]


def test_nested_columns_give_the_first_question():
    chat = [[{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]]
    found = read(file_of({"messages": chat, "n": [1]}), "p.parquet")
    assert [p.text for p in found.prompts] == ["U"] and any("first user message" in n for n in found.notes)
    assert [p.text for p in read(file_of({"turns": [["a", "b"]]}), "p.parquet").prompts] == ["a"]
    assert [p.text for p in read(file_of({"prompt": pa.array(["a", "a"]).dictionary_encode()}), "p.parquet").prompts] == ["a", "a"]


def test_a_column_of_numbers_is_not_taken_for_prompts_unless_asked():
    content = file_of({"count": [1, 2], "zdania": ["a", "b"]})
    assert read(content, "p.parquet").column == "zdania"
    found = read(content, "p.parquet", column="count")
    assert not found.prompts and found.problems[0].sentence == "Row 1 has a number, not text in the column 'count'."


def test_only_the_first_rows_of_a_long_file_are_read_and_said(tmp_path):
    content = file_of({"text": [f"zdanie {i}" for i in range(parquet.ROW_LIMIT + 5)]})
    (tmp_path / "p.parquet").write_bytes(content)
    for found in (read(content, "p.parquet"), read_file(tmp_path / "p.parquet")):
        assert len(found.prompts) == parquet.ROW_LIMIT and found.prompts[-1].text == f"zdanie {parquet.ROW_LIMIT - 1}"
        assert any("10,005 rows" in n and "10,000" in n for n in found.notes)


def test_missing_empty_and_unreadable_rows_cost_themselves():
    binary = pa.array([b"ok", b"\xff", None, b" ", b"a\0b"], pa.binary()).view(pa.string())
    found = read(file_of({"text": binary}), "p.parquet")
    assert [p.text for p in found.prompts] == ["ok"] and [p.line for p in found.problems] == [2, 3, 4, 5] and found.refused == 4


def test_a_damaged_file_is_refused_in_one_sentence(tmp_path):
    content = file_of({"text": ["a" * 1000]})
    for damaged in (content[:-20], content[:200], b"PAR1" + bytes(100) + b"PAR1"):
        (tmp_path / "p.parquet").write_bytes(damaged)
        for attempt in (lambda: read(damaged, "p.parquet"), lambda: read_file(tmp_path / "p.parquet")):
            with pytest.raises(RequestError, match="p.parquet cannot be read") as e:
                attempt()
            assert "\n" not in str(e.value)
    with pytest.raises(RequestError, match="no column 'x'"):
        read(content, "p.parquet", column="x")
