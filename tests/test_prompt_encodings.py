"""Which encoding a file of prompts is in: proved, or judged by its bytes and said (IN-02); any text survives the way in."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import assume, given, settings, strategies as st

from engine.errors import RequestError
from engine.prompt_sets import encodings, read, shapes

POLISH = "Zażółć gęślą jaźń"
EXCEL = "id;prompt\r\np1;Ile to jest 2,5 + 2,5?\r\np2;Zażółć gęślą jaźń\r\n"
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), min_size=1, max_size=40).filter(str.strip)
one_line = texts.filter(lambda t: "\n" not in t and not t.startswith("\ufeff"))


def said(found) -> list[str]:
    return [p.text for p in found.prompts]


def refused(found) -> list[int]:
    return [p.line for p in found.problems]


def test_a_polish_excel_export_is_read_as_it_was_written():
    content = EXCEL.encode("cp1250")
    assert len(content) == 60
    found = read(content, "p.csv")
    assert said(found) == ["Ile to jest 2,5 + 2,5?", POLISH] and found.columns == ("id", "prompt")
    assert (found.encoding, found.separator, found.header) == ("cp1250", ";", True)
    assert any("cp1250" in note for note in found.notes)  # a guess is said


def test_a_choice_by_the_person_overrides_the_evidence():
    found = read(EXCEL.encode("cp1250"), "p.csv", encoding="cp1252", separator=";")
    assert said(found)[1] == "Za¿ó³æ gêœl¹ jaŸñ" and found.encoding == "cp1252"
    assert read(EXCEL.encode("cp1250"), "p.csv", kind="lines").prompts[0].text == "id;prompt"


SENTENCES = {
    "Polish": ["Wyjaśnij, dlaczego źródło bije.", "Ścieżka przez las", "ŻÓŁĆ I GĘŚLE", "„Cytat” – tak", "Łódź",
               "Święto kwitnącej jabłoni", "Grüß Gott, powiedział gość z żoną", "Zespół Motörhead gra głośną muzykę"],
    "Western": ["Expliquez la photosynthèse à un élève.",
                "Où êtes-vous née, chère amie ?", "Größe und Maß, überall", "¿Qué pasó mañana, señor?", "señor", "El niño come piñas.",
                "¿Cómo estás? ¡Muy bien!", "A ação não é fácil.", "Perché la città è così bella?", "Les œuvres de Molière",
                "Före lunch åt vi kött.", "Hør her, det er på tide."],
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1250", "iso-8859-2"])
@pytest.mark.parametrize("sentence", SENTENCES["Polish"])
def test_polish_in_every_common_encoding(sentence, encoding):
    try:
        content = f"{sentence}\n".encode(encoding)
    except UnicodeEncodeError:
        content = f"{sentence.replace('„', '').replace('”', '').replace('–', '-')}\n".encode(encoding)
    found = read(content, "p.txt")
    assert said(found) == [content.decode(encoding).strip()]


@pytest.mark.parametrize("sentence", SENTENCES["Western"])
def test_western_text_does_not_become_polish(sentence):
    assert said(read(sentence.encode("cp1252"), "p.txt")) == [sentence]


def test_bytes_that_fit_two_languages_are_called_so():
    found = read("forêt".encode("cp1252"), "p.txt")
    assert any("also fit" in note and "preview" in note for note in found.notes)


def test_bytes_of_no_language_are_read_as_the_last_choice_and_said():
    found = read(bytes([0x81, 0xFF, 0x41, 0xA4, 0x8D]), "p.txt")
    assert found.encoding == "iso-8859-1" and any("no language" in note for note in found.notes)


def test_one_stray_byte_costs_one_row_of_a_utf8_file():
    found = read("gęś\nzażółć\n".encode() + b"z\xb3e\n" + "jaźń\n".encode(), "p.txt")
    assert said(found) == ["gęś", "zażółć", "jaźń"] and refused(found) == [3] and found.encoding == "utf-8"
    assert "byte B3" in found.problems[0].sentence and any("1 byte" in note for note in found.notes)


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_known_by_its_zero_bytes(name):
    found = read("id,prompt\n1,Ala ma kota\n".encode(name), "p.csv")
    assert said(found) == ["Ala ma kota"] and found.encoding == name


def test_only_offered_encodings_are_used():
    for wrong in ("zip", "rot13", "utf-7", "nonsense"):
        with pytest.raises(RequestError, match="not offered"):
            read(b"a", "p.txt", encoding=wrong)


@given(st.lists(texts, min_size=1, max_size=6), st.sampled_from([",", ";", "\t", "|"]),
       st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
@settings(max_examples=150)
def test_any_texts_survive_a_table(prompts, separator, encoding):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator)
    writer.writerow(["id", "prompt"])
    writer.writerows([[f"p{i}", prompt] for i, prompt in enumerate(prompts)])
    found = read(out.getvalue().encode(encoding), "p.csv")
    assert said(found) == prompts and [p.label for p in found.prompts] == [f"p{i}" for i in range(len(prompts))]
    assert found.separator == separator and not found.problems


@given(st.lists(texts, min_size=1, max_size=6), st.booleans(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le"]))
@settings(max_examples=150)
def test_any_texts_survive_json(prompts, ascii_only, encoding):
    rows = [json.dumps({"prompt": p}, ensure_ascii=ascii_only) for p in prompts]
    assume(encoding != "utf-16-le" or ascii_only)
    lines = read("\n".join(rows).encode(encoding), "p.jsonl")
    whole = read(f"[{','.join(rows)}]".encode(encoding), "p.json")
    assert said(lines) == said(whole) == prompts and lines.kind == "jsonl" and whole.kind == "json"


@given(st.lists(one_line, min_size=1, max_size=6), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
@settings(max_examples=150)
def test_any_lines_survive_a_text_file(prompts, encoding):
    assert said(read("\n".join(prompts).encode(encoding), "p.txt", kind="lines")) == prompts


def _is_utf8(content: bytes) -> bool:
    try:
        return content.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False


@given(st.text(alphabet="ąćęłńóśźżĄĆĘŁŃÓŚŹŻ abcdefz,.", min_size=1, max_size=60), st.sampled_from(["cp1250", "iso-8859-2"]))
@settings(max_examples=150)
def test_polish_letters_never_become_others(text, encoding):
    words = " ".join(w.lower() for w in text.split())
    assume(words and (words.isascii() or not _is_utf8(words.encode(encoding))))  # ćłś in cp1250 is one Chinese sign in UTF-8
    assume(not re.search("[ćńśź][aeiouyąęó]", words))  # no Polish word has these
    assert said(read(words.encode(encoding), "p.txt")) == [words]


@given(st.binary(min_size=1, max_size=200), st.sampled_from(["p.txt", "p.csv", "p.jsonl", "p.json", "p.parquet", "p"]))
@settings(max_examples=300)
def test_any_bytes_give_prompts_or_one_sentence(content, name):
    try:
        found = read(content, name)
    except RequestError as e:
        assert str(e).startswith("p") and str(e).endswith((".", ")")) and "\n" not in str(e)
        return
    assert all(shapes.flaw(p.text) is None and p.text.strip() for p in found.prompts) and found.encoding in encodings.ENCODINGS
    assert len({p.label for p in found.prompts}) == len(found.prompts)
