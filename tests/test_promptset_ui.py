"""The control that gives a page its prompts: typed, pasted, ready-made or from a file, under Streamlit's own test driver."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, strategies as st
from streamlit.testing.v1 import AppTest

from engine import prompt_sets
from engine.prompt_sets import BUILTIN, builtin, openings, read
from ui.preview import letters
from ui.promptset import FILE, ONE, READY, SEVERAL

EXCEL = "id;prompt\r\np1;Ile to jest 2,5 + 2,5?\r\np2;Zażółć gęślą jaźń\r\n".encode("cp1250")
HOSTILE = "<script>alert(1)</script> **b** $x$ [l](http://x)"


def page():
    import streamlit as st

    from engine.prompt_sets import BUILTIN
    from ui import promptset

    if not st.checkbox("elsewhere"):
        st.session_state["found"] = promptset.draw("demo", "Explain tides.", ready=list(BUILTIN), most=5)


def opened(source: str = ONE) -> AppTest:
    at = AppTest.from_function(page, default_timeout=60)
    at.session_state["demo.source"] = source
    return ran(at)


def ran(what) -> AppTest:
    """Run the app, or the app of a widget that was just set; nothing may go wrong."""
    at = what.run()
    assert not at.exception, at.exception
    return at


def with_file(content: bytes, name: str = "p.csv") -> AppTest:
    at = opened(FILE)
    at.file_uploader[0].set_value((name, content, "text/plain"))
    return ran(at)


def texts(at: AppTest) -> list[str] | None:
    found = at.session_state["found"]
    return None if found is None else [p.text for p in found.prompts]


def box(at: AppTest, label: str):
    return next(s for s in at.selectbox if s.label == label)


def press(at: AppTest, label: str) -> AppTest:
    next(b for b in at.button if b.label == label).click()
    return ran(at)


def shown(at: AppTest) -> str:
    return " ".join(h.proto.body for h in at.get("html"))


def away_and_back(at: AppTest) -> AppTest:
    ran(at.checkbox[0].check())
    assert not at.text_area and not at.file_uploader
    return ran(at.checkbox[0].uncheck())


def test_one_prompt_is_taken_letter_by_letter():
    at = opened()
    assert texts(at) == ["Explain tides."]
    assert texts(ran(at.text_area[0].set_value(f"\t{HOSTILE}\n"))) == [f"\t{HOSTILE}\n"]
    assert texts(away_and_back(at)) == [f"\t{HOSTILE}\n"]
    assert texts(ran(at.text_area[0].set_value("  \n "))) is None


def test_several_prompts_are_read_as_they_look_and_as_one_says():
    at = opened(SEVERAL)
    assert texts(at) is None
    ran(at.text_area[0].set_value("Raz\ndwa\n\ntrzy"))
    assert texts(at) == ["Raz\ndwa", "trzy"] and box(at, "Read as").value == "paragraphs"
    ran(box(at, "Read as").set_value("lines"))
    assert texts(at) == ["Raz", "dwa", "trzy"] and "1 blank line skipped" in shown(at)
    assert texts(away_and_back(at)) == ["Raz", "dwa", "trzy"] and at.text_area[0].value == "Raz\ndwa\n\ntrzy"
    assert texts(press(at, "Detect again")) == ["Raz\ndwa", "trzy"]


def test_what_was_detected_in_a_file_stands_there_and_can_be_changed():
    at = with_file(EXCEL)
    assert texts(at) == ["Ile to jest 2,5 + 2,5?", "Zażółć gęślą jaźń"]
    assert [(s.label, s.value) for s in at.selectbox] == [
        ("Read as", "csv"), ("Encoding", "cp1250"), ("Separator", ";"), ("First row", True), ("Prompt column", "prompt"),
        ("Label column", "id"), ("Category column", "")]
    assert "cp1250" in shown(at) and list(at.dataframe[0].value["Prompt"]) == texts(at)
    ran(box(at, "Encoding").set_value("cp1252"))
    assert texts(at)[1] == "Za¿ó³æ gêœl¹ jaŸñ"
    ran(box(at, "Prompt column").set_value("id"))
    assert texts(at) == ["p1", "p2"] and box(at, "Label column").value == ""
    ran(box(at, "Separator").set_value(","))  # the columns chosen before are no longer there
    assert box(at, "Prompt column").value != "id" and box(at, "Encoding").value == "cp1252"
    assert texts(press(at, "Detect again")) == ["Ile to jest 2,5 + 2,5?", "Zażółć gęślą jaźń"]


def test_a_file_and_its_choices_outlive_the_page():
    at = with_file(EXCEL)
    ran(box(at, "Encoding").set_value("iso-8859-2"))
    before = texts(at)
    away_and_back(at)
    assert at.file_uploader[0].value is None and texts(at) == before and box(at, "Encoding").value == "iso-8859-2"
    assert "p.csv" in shown(at)
    assert texts(press(at, "Remove")) is None and not at.selectbox


def test_a_file_is_parsed_once_and_not_at_every_pass(monkeypatch):
    calls, real = [], prompt_sets.read
    monkeypatch.setattr(prompt_sets, "read", lambda *a, **k: calls.append(k) or real(*a, **k))
    at = with_file(EXCEL)
    ran(ran(at))
    away_and_back(at)
    assert calls == [{}]
    ran(box(at, "Encoding").set_value("cp1252"))
    ran(at)
    assert calls == [{}, {"encoding": "cp1252"}]


def test_bad_rows_are_told_by_their_line_and_the_others_are_used():
    at = with_file("id,prompt\n1,Ala\0ma kota\n2,ok\n\n3,a,b\n".encode())
    assert texts(at) == ["ok"]
    for words in ("1 prompt", "1 blank line skipped", "2 rows refused", "✗ Line 2 holds a NUL", "✗ Line 5 has 3 cells"):
        assert words in shown(at)


@pytest.mark.parametrize("name, content, words", [
    ("p.txt", b"", "p.txt is empty."), ("p.csv", b"PK\x03\x04", "Excel"), ("p.parquet", b"PAR1x", "p.parquet cannot be read as Parquet"),
    ("p.txt", b"\0", "There is no prompt to run"), ("<b>.txt", b"", "&lt;b&gt;.txt is empty.")])
def test_a_file_that_gives_nothing_is_one_sentence(name, content, words):
    at = with_file(content, name)
    assert texts(at) is None and words in shown(at)


def test_a_choice_that_cannot_be_is_said_and_can_be_undone():
    at = with_file(EXCEL)
    ran(box(at, "Read as").set_value("parquet"))
    assert texts(at) is None and "p.csv cannot be read as Parquet" in shown(at)
    assert texts(ran(box(at, "Read as").set_value("csv"))) is not None
    ran(box(at, "Encoding").set_value("utf-16"))
    assert texts(at) is None and "UTF-16 mark" in shown(at)
    assert texts(press(at, "Detect again"))[1] == "Zażółć gęślą jaźń"


def test_text_of_a_file_is_data_everywhere():
    at = with_file(f'id,"{HOSTILE}",prompt\n"{HOSTILE}",x,"{HOSTILE}\n"\n1,2,3,"{HOSTILE}"\n'.encode(), "<img src=x>.csv")
    assert texts(at) == [f"{HOSTILE}\n"]
    away_and_back(at)
    assert "<script" not in shown(at) and "<img" not in shown(at) and "&lt;img src=x&gt;.csv" in shown(at)
    assert not at.markdown and list(at.dataframe[0].value["Label"]) == [HOSTILE]
    assert HOSTILE in box(at, "Prompt column").options


def test_columns_that_look_alike_are_told_apart():
    at = with_file(b'[{"prompt":"x","a":"1","a\\u200b":"2","' + b"c" * 70 + b'":"3","' + b"c" * 69 + b'd":"4"}]', "p.json")
    options = box(at, "Prompt column").options
    assert len(set(options)) == len(options) == 5 and "a⟨U+200B⟩" in options
    for column, text in zip(("prompt", "a", "a\u200b", "c" * 70, "c" * 69 + "d"), "x1234"):
        ran(box(at, "Prompt column").set_value(column))
        assert texts(at) == [text]


def test_a_path_reads_a_file_where_it_lies(tmp_path):
    import pandas as pd

    frame, out = pd.DataFrame({"title": ["Łódź", "Żółw"], "text": ["Łódź to miasto w Polsce.", "Żółw to gad."]}), io.BytesIO()
    frame.to_parquet(out)
    (tmp_path / "train.parquet").write_bytes(out.getvalue())
    at = opened(FILE)
    ran(at.text_input[0].set_value(str(tmp_path / "train.parquet")))
    assert texts(at) == ["Łódź to miasto w Polsce.", "Żółw to gad."] and "train.parquet" in shown(at)
    assert [s.label for s in at.selectbox] == ["Read as", "Prompt column", "Label column", "Category column"]
    assert texts(away_and_back(at)) == ["Łódź to miasto w Polsce.", "Żółw to gad."]
    ran(next(n for n in at.number_input if n.label == "Words of each").set_value(3))
    assert texts(at) == ["Łódź to miasto", "Żółw to gad."]
    ran(at.text_input[0].set_value(str(tmp_path / "none.parquet")))
    assert texts(at) is None and "cannot be read" in shown(at)
    assert texts(ran(at.text_input[0].set_value(""))) is None and not at.selectbox


def test_a_file_of_the_system_is_refused_and_nothing_of_it_is_shown(tmp_path, monkeypatch):
    at = opened(FILE)
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    for path in ("/etc/passwd", str(tmp_path / "link.txt"), "/proc/self/status"):
        ran(at.text_input[0].set_value(path))
        assert texts(at) is None and "does not" in shown(at) and "root:" not in shown(at) and not at.dataframe
    monkeypatch.setattr("ui.promptset.here_only", lambda: False)
    assert not ran(at).text_input and texts(at) is None


def test_a_large_set_is_used_in_part_until_one_says_otherwise():
    at = with_file("\n".join(f"Numer {i}" for i in range(10)).encode(), "p.txt")
    assert texts(at) == [f"Numer {i}" for i in range(5)]
    ran(next(c for c in at.checkbox if c.label == "Spread over the set").check())
    assert texts(at) == [f"Numer {i}" for i in (0, 2, 4, 6, 8)]
    ran(next(n for n in at.number_input if n.label.startswith("Use, of 10")).set_value(10))
    assert len(texts(at)) == 10 and len(texts(away_and_back(at))) == 10


def test_ready_made_sets_are_there_by_genre():
    at = opened(READY)
    for name in BUILTIN:
        ran(box(at, "Set").set_value(name))
        assert texts(at) == [p.text for p in builtin(name).prompts][:5]


def test_ready_made_sets_have_what_their_titles_say():
    counts = {name: len(builtin(name).prompts) for name in BUILTIN}
    assert counts == {"english": 20, "polish": 36, "polish.encyclopaedic": 12, "polish.instructions": 12, "polish.questions": 12}
    assert all(f"({counts[name]} prompts)" in title for name, title in BUILTIN.items())
    english = [p.category for p in builtin("english").prompts]
    assert {c: english.count(c) for c in english} == dict.fromkeys(("explain", "code", "list", "story", "data"), 4)
    for name in BUILTIN:
        prompts = builtin(name).prompts
        assert not builtin(name).problems and len({p.label for p in prompts}) == len({p.text for p in prompts}) == len(prompts)
    letters_used = set("".join(p.text for p in builtin("polish").prompts).lower())
    assert set("ąćęłńóśźż") <= letters_used


def test_openings_end_at_a_word_and_are_said():
    found = read("Raz  dwa\ttrzy.\nJeden\n\t Cztery pięć sześć ".encode(), "p.txt")
    cut = openings(found, 2)
    assert [p.text for p in cut.prompts] == ["Raz  dwa", "Jeden", "\t Cztery pięć"] and "2 of 3" in cut.notes[-1]
    assert openings(found, 0) is found and openings(found, 9) is not None
    assert [p.text for p in openings(found, 1).prompts] == ["Raz", "Jeden", "\t Cztery"]


@given(st.text(alphabet=" \t\n·→⏎⟨a\u200b", max_size=8), st.text(alphabet=" \t\n·→⏎⟨a\u200b", max_size=8))
def test_two_prompts_that_differ_look_different_in_the_preview(a, b):
    assert (letters(a) == letters(b)) == (a == b) and "\n" not in letters(a) and "\t" not in letters(a)


def test_single_spaces_between_words_stay_spaces_in_the_preview():
    assert letters(" Ala ma  kota\n") == "·Ala ma··kota⏎" and letters("x" * 400) == "x" * 300 + "…"
