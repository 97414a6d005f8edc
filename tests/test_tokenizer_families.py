"""Lanes of real tokenizers: Mistral v0.1, Qwen3, Llama 3.1, SmolLM2. The bytes are the text's, always."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.alignment import align
from engine.diacritics import letters
from engine.lanes import COMPOSED, LEFT_OUT, MARKS, lane
from engine.models.tokenizers import load
from tests.families import FAMILIES, folder, vocabulary

PROSE = ("Wczoraj późnym wieczorem pani Łucja, która od dzieciństwa mieszkała w małym domu nad jeziorem, usłyszała dziwny dźwięk "
         "dobiegający z ogrodu. Wyszła więc na ganek, lecz nie zobaczyła niczego oprócz gęstej mgły. Następnego dnia sąsiedzi "
         "opowiadali, że słyszeli to samo: najpierw ciche pukanie, później śmiech, a wreszcie muzykę. Nikt nie potrafił wyjaśnić, "
         "skąd się wzięła. Mimo to wszyscy przyznali, że była piękna i że chętnie usłyszeliby ją jeszcze raz.")
TEXTS = (
    PROSE, PROSE.upper(), unicodedata.normalize("NFD", "Zażółć gęślą jaźń — ŁÓDŹ"), "Zażółć gęślą jaźń", " zaczyna się od spacji", "  dwie",
    "„Cudzysłów” i «drugi» – półpauza… koniec", "😀 👨\u200d👩\u200d👧 🇵🇱 👍🏽 ż", "https://pl.wikipedia.org/wiki/Żółw_błotny?a=1&b=ą#Źródła",
    "def żółw(x: int) -> str:\n\treturn f\"{x:>4}\"  # źródło\n\n\n", "a\tb\r\nc\rd\n\n  \n e", "\n", " ", "\u00a0ą\u00a0", "x▁y ▁",
    "\ufeffBOM \u202e obrót \u200b", "שלום العربية 漢字 한국어", "\x00\x01\x16\x7f\u0085", "a" * 300, "ą̈́ e\u0328\u0301 \u0328", "ﬁ ½ Ⅻ Å",
    "<s> </s> <unk> <|im_end|> <|endoftext|> <|begin_of_text|> [INST] <think> <0x41>", "1234567890 3,14 10 000 zł", "�",
)
unicode_text = st.text(st.characters(exclude_categories=["Cs"]))
marked = st.lists(st.sampled_from(["<|im_end|>", "</s>", "<unk>", "<|eot_id|>", "<think>", "e\u0328", "z\u0307", "▁", " ", "ż", "kot", "\n", "\x16"])
                  ).map("".join)
polish = st.text("aąbcćeęłnńoósśzźż ZĄĆŁÓŻŹ\n\t▁\u0328\u0301<>s/|„”😀", max_size=60)


def require_exact(text: str, family: str, special: bool = False):
    """The facts every lane keeps; gives the lane."""
    v = vocabulary(family)
    one = lane(v, text, special=special)
    ids = v.encode_parts([(text, special)])
    assert [t.id for t in one.tokens] == ids
    if one.tokens or not text:
        assert b"".join(bytes.fromhex(t.bytes) for t in one.tokens) == text.encode()
    # What was taken off or is read otherwise is said: put back, it is exactly what the ids stand for.
    spelled = [bytes.fromhex(t.bytes if t.spelled is None else t.spelled) for t in one.tokens]
    assert one.prefix.encode() + b"".join(spelled) == b"".join(map(v.bytes_of, ids))
    assert bool(one.changes) == (one.reads is not None) == (b"".join(spelled) != text.encode())
    assert bool(one.notes) == bool(one.prefix or one.changes)
    at = 0
    for t in one.tokens:
        assert t.start_byte == at and t.end_byte == at + len(t.bytes) // 2
        at = t.end_byte
        assert 0 <= t.start <= t.end <= len(text)
        part, whole = bytes.fromhex(t.bytes), text[t.start:t.end].encode()
        assert part in whole and (not part or len(whole) - len(part) < 7 or t.spelled is not None)  # at most a piece off each end
    for cut in one.cuts:
        assert 0 <= cut.start <= cut.end <= len(text) and (cut.within or 0 < cut.byte < len(text.encode()))
        if cut.start == cut.end:
            assert cut.byte == len(text[:cut.start].encode())
    assert len(set(one.cuts)) == len(one.cuts) == max(sum(bool(s) for s in spelled) - 1, 0)
    return one


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_bytes_are_the_texts_own(family, text):
    require_exact(text, family)
    require_exact(text, family, special=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bytes_are_the_texts_own_for_any_unicode(family):
    @settings(max_examples=150)
    @given(unicode_text | polish | marked, st.booleans())
    @example("\u0328", False)
    @example("가\u11a8\u1161", False)
    @example("▁ż▁", False)
    @example("e\u0328<|im_end|>z\u0307</s>\x16", True)
    def holds(text, special):
        require_exact(text, family, special)
    holds()


@pytest.mark.parametrize("family, first", [("mistral", True), ("qwen3", False), ("llama3.1", False), ("smollm2", False)])
def test_the_space_in_front_is_taken_off_and_reported(family, first):
    one = require_exact("Zażółć", family)
    assert one.prefix == (" " if first else "") and ("puts a space in front" in " ".join(one.notes)) == first
    assert one.tokens[0].bytes.startswith("5a") and one.tokens[0].start == 0


def test_a_space_in_front_that_is_a_token_of_its_own_holds_no_character():
    one = require_exact("\nkot", "mistral")
    assert (one.tokens[0].bytes, one.tokens[0].start, one.tokens[0].end) == ("", 0, 0)
    assert [c.byte for c in one.cuts] == [1, 2]  # none before the text


def test_places_of_known_tokens():
    """Mistral's pieces of a well-known line, as its own tokenizer.json gives them."""
    text = "Zażółć gęślą jaźń"
    one = require_exact(text, "mistral")
    assert [text[t.start:t.end] for t in one.tokens] == ["Za", "ż", "ół", "ć", " g", "ę", "ś", "l", "ą", " ja", "ź", "ń"]
    assert [t.id for t in one.tokens] == Tokenizer.from_file(str(folder("mistral") / "tokenizer.json")).encode(
        text, add_special_tokens=False).ids


@pytest.mark.parametrize("family", ["qwen3", "llama3.1", "smollm2"])
def test_characters_agree_with_the_librarys_own_offsets(family):
    """Where a tokenizer leaves the text alone, the library's own offsets say the same."""
    v, compared = vocabulary(family), 0
    for text in TEXTS:
        one = lane(v, text)
        if not one.changes:
            assert [(t.id, t.start, t.end) for t in one.tokens] == v.spans(text), text
            compared += 1
    assert compared >= 18


def test_composed_letters_are_reported_and_laid_on_the_letters_as_written():
    text = unicodedata.normalize("NFD", "gęś i żółw")
    qwen, mistral = require_exact(text, "qwen3"), require_exact(text, "mistral")
    assert qwen.reads == "gęś i żółw" and {c.kind for c in qwen.changes} == {COMPOSED} and mistral.reads is None
    assert [text[c.start:c.end] for c in qwen.changes] == ["e\u0328", "s\u0301", "z\u0307", "o\u0301"]
    assert "composed letters (NFC) 4" in qwen.notes[0]
    found = align(text, [vocabulary("qwen3"), vocabulary("mistral")])
    assert [t.letter.text for t in found.letters] == ["e\u0328", "s\u0301", "z\u0307", "o\u0301", "ł"]
    assert found.splits(0) == 0 and found.splits(1) == 4  # Mistral spells the marks in bytes of their own
    assert require_exact("gęś i żółw", "qwen3").reads is None


def test_a_typed_space_mark_is_reported():
    one = require_exact("a▁b", "mistral")
    assert one.reads == "a b" and [(c.start, c.end, c.kind) for c in one.changes] == [(1, 2, MARKS)]
    assert require_exact("a▁b", "llama3.1").reads is None


def test_characters_that_a_vocabulary_lacks_are_reported():
    one = require_exact("ab\x16c", "smollm2")  # it has no token for this byte
    assert one.reads == "abc" and [c.kind for c in one.changes] == [LEFT_OUT] and "left out 1" in one.notes[0]
    alone = lane(vocabulary("smollm2"), "\x16")
    assert alone.tokens == () and alone.reads == "" and alone.changes[0].kind == LEFT_OUT


@pytest.mark.parametrize("family, mark", [("mistral", "</s>"), ("qwen3", "<|im_end|>"), ("llama3.1", "<|eot_id|>"),
                                          ("smollm2", "<|im_end|>")])
def test_special_tokens_in_a_text_are_letters_unless_asked_otherwise(family, mark):
    text = f"kot{mark}ż"
    letters_, special = require_exact(text, family), require_exact(text, family, special=True)
    assert not any(t.special for t in letters_.tokens)
    marks = [t for t in special.tokens if t.special]
    assert [(text[t.start:t.end], bytes.fromhex(t.bytes)) for t in marks] == [(mark, mark.encode())]


def test_tokens_per_word_of_polish_prose_are_those_that_were_measured():
    """FACTS: Mistral 2.9–3.1, Qwen 2.4–2.6, Llama 2.6–2.8, SmolLM2 3.6–3.8, 8 % of whose tokens hold part of a letter."""
    found = align(PROSE, [vocabulary(f) for f in ("qwen3", "llama3.1", "mistral", "smollm2")])
    rates = [found.tokens_per_word(i) for i in range(4)]
    assert rates == sorted(rates) and 2.2 < rates[0] < rates[2] < 3.4 < rates[3] < 4.2
    assert found.words == len(PROSE.split())
    parts = [t for t in found.lanes[3].tokens if bytes.fromhex(t.bytes) != PROSE[t.start:t.end].encode()]
    assert 0.04 < len(parts) / len(found.lanes[3].tokens) < 0.16
    assert found.splits(2) == 0 and found.splits(3) > 0.3 * len(letters(PROSE)) / 2


def test_a_tokenizer_json_alone_gives_the_same_lane_as_its_folder():
    for family in ("qwen3", "mistral"):
        alone = load(str(folder(family) / "tokenizer.json"))
        for text in (PROSE, "żółw <|im_end|>"):
            assert lane(alone, text).tokens == require_exact(text, family).tokens
    # Left to itself Mistral's file marks the start even where the text begins with a space; the bytes are exact all the same.
    one = lane(load(str(folder("mistral") / "tokenizer.json")), " kot")
    assert one.prefix == " " and b"".join(bytes.fromhex(t.bytes) for t in one.tokens) == b" kot"
