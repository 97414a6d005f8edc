"""A person's own file of prompts: read exactly, in any common encoding, with every refusal and every guess said."""

from __future__ import annotations

import json

import pytest

from engine import prompt_sets
from engine.errors import RequestError
from engine.prompt_sets import KINDS, NONE, first, pasted, read, read_file, shapes


def said(found) -> list[str]:
    return [p.text for p in found.prompts]


def refused(found) -> list[int]:
    return [p.line for p in found.problems]


# BOM, CRLF and blank lines (IN-01)

TWO = "\ufeff" + '{"id":"p1","prompt":"Cześć"}\r\n\r\n   \r\n{"id":"p2","prompt":"Ala"}\r\n'


def test_mark_line_ends_and_blank_lines_leave_no_trace_in_the_prompts():
    found = read((TWO + "{zły").encode(), "p.jsonl")
    assert said(found) == ["Cześć", "Ala"] and [p.label for p in found.prompts] == ["p1", "p2"]
    assert [p.line for p in found.prompts] == [1, 4] and found.skipped_blank == 2
    assert refused(found) == [5] and found.problems[0].sentence.startswith("Line 5 is not JSON") and found.refused == 1
    assert (found.kind, found.encoding, found.column, found.label_column) == ("jsonl", "utf-8-sig", "prompt", "id")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("name, content", [
    ("p.csv", "id,prompt|p1,Cześć||   |p2,Ala|"), ("p.txt", "Cześć||   |Ala|"), ("p.tsv", "id\tprompt|p1\tCześć|| |p2\tAla"),
    ("p.jsonl", '{"prompt":"Cześć"}|| |"Ala"|')])
def test_the_same_prompts_whatever_the_line_ends(name, content, mark, end):
    found = read((mark + content.replace("|", end)).encode(), name)
    assert said(found) == ["Cześć", "Ala"] and found.skipped_blank == 2 and not found.problems
    assert found.prompts[1].line == found.prompts[0].line + 3


def test_line_numbers_are_those_of_the_file_also_after_line_breaks_in_quotes():
    found = read(b'id,prompt\n1,"two\r\nlines"\n2,"a\nb\nc"\n3,x,too,many\n4,last\n', "p.csv")
    assert [(p.text, p.line) for p in found.prompts] == [("two\nlines", 2), ("a\nb\nc", 4), ("last", 8)] and refused(found) == [7]


# NUL and other things that are not text (IN-04)

@pytest.mark.parametrize("encoding, named", [("utf-8", "utf-8"), ("utf-16", "utf-16")])
def test_a_nul_costs_its_row_and_no_other(encoding, named):
    found = read("id,prompt\n1,Ala\0ma kota\n2,ok\n".encode(encoding), "p.csv")
    assert said(found) == ["ok"] and refused(found) == [2] and "NUL" in found.problems[0].sentence and found.encoding == named


@pytest.mark.parametrize("name, content, line", [
    ("p.txt", "a\nb\0\nc", 2), ("p.jsonl", '"a"\n"b\0"\n"c"', 2), ("p.jsonl", '"a"\n"b\\u0000"\n"c"', 2),
    ("p.jsonl", '"a"\n"\\ud83d!"\n"c"', 2),
    ("p.json", '["a",\n"b\\u0000",\n"c"]', 2), ("p.csv", 'prompt\na\n"b\n\0"\nc', 3),
    ("p.jsonl", '"a"\n{"prompt":"x","id":"\\udfff"}\n"c"', 2)])
def test_what_is_no_character_costs_its_row(name, content, line):
    found = read(content.encode(), name)
    assert said(found) == ["a", "c"] and refused(found) == [line] and found.refused == 1


def test_a_whole_surrogate_pair_in_escapes_is_one_character():
    assert said(read(b'"\\ud83d\\ude00"', "p.jsonl")) == ["\U0001f600"]


# bare NaN, and a leading tab (IN-10)

def test_a_result_file_with_bare_nan_and_a_leading_tab():
    found = read('[{"prompt":"\\tJak nazywa się chata?","tagi":NaN}]'.encode(), "p.json")
    assert said(found) == ["\tJak nazywa się chata?"] and not found.problems
    assert any("NaN" in n for n in found.notes) and any("white space" in n for n in found.notes)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "null"])
def test_a_prompt_that_is_missing_is_refused_and_not_the_word_for_it(constant):
    found = read(f'{{"prompt": {constant}}}\n{{"prompt": "{constant}"}}'.encode(), "p.jsonl")
    assert said(found) == [constant] and refused(found) == [1] and "no text" in found.problems[0].sentence


@pytest.mark.parametrize("word", ["NA", "null", "nan", "None", "N/A", "TRUE", "1e5", "007"])
def test_a_prompt_is_the_word_it_is(word):
    for name, content in (("p.csv", f"id,prompt\n{word},{word}\n"), ("p.txt", word), ("p.jsonl", json.dumps({"id": word, "prompt": word}))):
        found = read(content.encode(), name)
        assert said(found) == [word] and (found.prompts[0].label == word or name == "p.txt")


# labels, columns, kinds

def test_labels_are_unique_and_nothing_is_renamed_in_silence():
    found = read(b"id,prompt\np1,a\np1,b\np1 (2),c\n,d\np1,e\n", "p.csv")
    assert [p.label for p in found.prompts] == ["p1", "p1 (2)", "p1 (2) (2)", "line 5", "p1 (3)"] and len(found.notes) == 2
    assert all(len(read(b"id,prompt\n" + b"p,x\n" * n, "p.csv").prompts) == n for n in (1, 2000))


@pytest.mark.parametrize("content, separator", [
    ("prompt\nAla, ma kota\nDwa; trzy", ""), ("pytanie;nr\nAla, ma, kota;1\nOla, nie;2", ";"), ("a b c\td e f\ng h i\tj k l", "\t"),
    ("sep=|\nid|prompt\n1|a;b", "|"), ("id,prompt\n1,\"a;b;c\"\n2,\"d;e;f\"", ",")])
def test_the_separator_is_found_by_what_it_does(content, separator):
    found = read(content.encode(), "p.csv")
    assert found.separator == separator and not found.problems and len(found.prompts) == content.count("\n") + (found.header is False) - (
        content.startswith("sep="))


def test_a_table_without_names_loses_no_row():
    found = read("p1,Ala ma kota\np2,Ola ma psa i kota\n".encode(), "p.csv")
    assert said(found) == ["Ala ma kota", "Ola ma psa i kota"] and found.header is False and found.column == "column 2"
    assert said(read(b"p1,Ala ma kota\np2,bbb\n", "p.csv", header=True)) == ["bbb"]


@pytest.mark.parametrize("content, bad, good", [
    ('id,prompt\n1,"open\n2,b\n3,c\n', [2], ["b", "c"]), ('id,prompt\n1,"a"b\n2,c\n', [2], ["c"]), ("id,prompt\n1,a,b\n2,c\n", [2], ["c"]),
    ("id,prompt\n1\n2,c\n", [2], ["c"]), ('id,prompt\n1,""\n2,c\n', [2], ["c"]), ('id,prompt\n1,"a\n2,"b"\n3,c\n', [2], ["b", "c"])])
def test_a_broken_row_costs_itself_alone(content, bad, good):
    found = read(content.encode(), "p.csv")
    assert refused(found) == bad and said(found) == good


def test_columns_are_found_and_can_be_changed():
    content = '{"nr":7,"pytanie":"Kto?","kategoria":"krótkie","inne":"x"}'.encode()
    found = read(content, "p.jsonl")
    assert (found.column, found.label_column, found.category_column) == ("pytanie", "nr", "kategoria")
    assert found.prompts == (prompt_sets.SetPrompt("7", "Kto?", "krótkie", 1),)
    other = read(content, "p.jsonl", column="inne", label_column=NONE, category_column=NONE)
    assert other.prompts == (prompt_sets.SetPrompt("1", "x", None, 1),) and other.label_column is None
    with pytest.raises(RequestError, match="p.jsonl has no column 'brak'"):
        read(content, "p.jsonl", column="brak")


def test_an_instruction_set_keeps_instruction_and_input_together():
    rows = [{"instruction": "Popraw zdanie.", "input": "Ala ma kot.", "output": "Ala ma kota."},
            {"instruction": "Kto?", "input": "", "output": "Ja"}]
    found = read(json.dumps(rows).encode(), "pl_alpaca.json")
    assert said(found) == ["Popraw zdanie.\n\nAla ma kot.", "Kto?"] and found.column == "instruction + input"
    assert said(read(json.dumps(rows).encode(), "p.json", column="instruction")) == ["Popraw zdanie.", "Kto?"]


@pytest.mark.parametrize("row, text", [
    ({"question_id": 81, "category": "writing", "turns": ["One.", "Two."]}, "One."),
    ({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]}, "U"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "U"}]}]}, "U"),
    ({"conversations": [{"from": "human", "value": "H"}, {"from": "gpt", "value": "G"}]}, "H"),
    ({"prompt": {"text": "T"}}, "T")])
def test_a_chat_gives_its_first_question_and_says_so(row, text):
    found = read(json.dumps(row).encode(), "p.jsonl")
    assert said(found) == [text] and any("was taken" in n for n in found.notes)


@pytest.mark.parametrize("value", [5, True, {}, [], [5], {"messages": [{"role": "system", "content": "S"}]}, [[["x"]]]])
def test_what_holds_no_text_is_refused(value):
    found = read(json.dumps({"prompt": value}).encode() + b'\n{"prompt":"ok"}', "p.jsonl")
    assert said(found) == ["ok"] and refused(found) == [1]


@pytest.mark.parametrize("content, texts_found", [
    ('{"prompts": ["a", "b"]}', ["a", "b"]), ('{"meta": 1, "rows":\n[{"prompt": "a"},\n{"prompt": "b"}]}', ["a", "b"]),
    ('{"p1": "a", "p2": "b"}', ["a", "b"]), ('{"prompt": "a"}', ["a"]),
    ('{"prompt": "a"}\n{"prompt": "b"}', ["a", "b"]), ("[]", []), ("{}", [])])
def test_the_shapes_that_json_files_have(content, texts_found):
    assert said(read(content.encode(), "p.json")) == texts_found


def test_a_mistake_in_a_json_list_has_its_line_and_keeps_what_stands_before():
    found = read(b'[\n{"prompt": "a"},\n{"prompt": "b"},\n{"prompt": }\n]', "p.json")
    assert said(found) == ["a", "b"] and refused(found) == [4] and [p.line for p in found.prompts] == [2, 3]
    assert refused(read(b'["a",\n"b"', "p.json")) == [2] and refused(read(b"[" * 100_000, "p.json")) == [1]


def test_text_can_be_lines_paragraphs_or_one_prompt():
    content = b"a\nb\n\n\nc\n"
    assert said(read(content, "p.txt")) == ["a", "b", "c"] and said(read(content, "p.txt", kind="whole")) == ["a\nb\n\n\nc"]
    found = read(content, "p.txt", kind="paragraphs")
    assert [(p.text, p.line) for p in found.prompts] == [("a\nb", 1), ("c", 5)] and found.skipped_blank == 2


@pytest.mark.parametrize("text, kind", [
    ("Kto?\nCo?", "lines"), ("Raz\ndwa\n\ntrzy", "paragraphs"), ('{"prompt":"a"}\n{"prompt":"b"}', "jsonl"), ('["a",\n"b"]', "json"),
    ("id;prompt\n1;a", "csv"), ("Napisz, proszę, list.\nPowiedz, kto to.", "lines"), ("{broken", "lines"), ("", "lines")])
def test_a_pasted_text_is_taken_for_what_it_plainly_is(text, kind):
    found = pasted(text)
    assert found.kind == kind and found.encoding is None
    assert said(pasted(text, "whole")) == ([text] if text else [])


# limits and refusals

def test_a_file_too_large_is_refused_with_its_size(tmp_path):
    big = bytes(100 * 2**20)
    with pytest.raises(RequestError, match="p.csv is 100 MB; files of up to 50 MB"):
        read(big, "p.csv")
    with open(tmp_path / "p.csv", "wb") as f:
        f.truncate(100 * 2**20)
    with pytest.raises(RequestError, match="p.csv is 100 MB"):
        read_file(tmp_path / "p.csv")


@pytest.mark.parametrize("content, words", [(b"", "is empty"), (b"PK\x03\x04xx", "Excel"), (b"%PDF-1.7", "PDF"), (b"\x1f\x8b\x08", "gzip"),
                                            (b"\xff\xfe\x00\x00a\x00\x00\x00", "UTF-32"), (b"\xff\xfea", "UTF-16"), (b"PAR1junk", "Parquet")])
def test_what_is_no_text_file_is_named(content, words):
    with pytest.raises(RequestError, match=words) as e:
        read(content, "p.txt")
    assert str(e.value).startswith("p.txt")


def test_a_missing_file_is_one_sentence():
    with pytest.raises(RequestError, match="cannot be read"):
        read_file("/nonexistent/p.txt")


def test_a_prompt_of_a_million_tokens_is_kept_whole():
    text = "słowo " * 1_000_000 + "."
    for name, content in (("p.txt", text), ("p.csv", f"prompt\n{text}\n"), ("p.jsonl", json.dumps({"prompt": text}))):
        assert said(read(content.encode(), name)) == [text]


def test_a_million_mistakes_are_counted_and_not_all_told():
    found = read(b"x" + b"\n{" * 30_000, "p.jsonl", kind="jsonl")
    assert found.refused == 30_001 and len(found.problems) == shapes.PROBLEMS_KEPT and any("30,001 rows" in n for n in found.notes)


def test_a_part_of_a_set_can_be_spread_over_it():
    found = read("\n".join(map(str, range(10))).encode(), "p.txt")
    assert said(first(found, 3)) == ["0", "1", "2"] and said(first(found, 3, spread=True)) == ["0", "3", "6"] and first(found, 10) is found
    assert "3 of 10" in first(found, 3).notes[-1]


def test_every_kind_has_a_name_and_an_unknown_one_is_refused():
    assert {read(b"a", "p.txt", kind=k).kind for k in KINDS if k not in ("parquet",)} == set(KINDS) - {"parquet"}
    for wrong in ("xlsx", "parquet"):
        with pytest.raises(RequestError):
            read(b"a", "p.txt", kind=wrong)
