"""Tokens are exact bytes, and text comes out of them whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.errors import RequestError
from engine.tokens import Assembler, Vocabulary, label, visible
from tests import toys

unicode_text = st.text(st.characters(exclude_categories=["Cs"]))
polish = st.text("aąbcćeęłnńoósśzźż ZGĘŚL\n", max_size=60)

BYTES = toys.vocabulary(toys.byte_level(toys.THINKING))
PIECES = toys.vocabulary(toys.sentencepiece_like())


def joined(vocabulary: Vocabulary, ids) -> bytes:
    return b"".join(vocabulary.bytes_of(i) for i in ids)


@pytest.fixture(scope="module")
def smollm2(smollm2_folder) -> Vocabulary:
    return Vocabulary.load(smollm2_folder, "bundled:smollm2-135m")


@given(unicode_text | polish)
@example("a<|im_end|>b</think><|im_start|>")
def test_byte_level_tokens_are_the_bytes_of_the_text(text):
    assert joined(BYTES, BYTES.encode(text)) == text.encode()


@given(unicode_text | polish)
@example("Zażółć gęślą jaźń")
@example("  two  spaces ")
@example("</s><unk>")
def test_sentencepiece_tokens_are_the_text_behind_a_start_mark(text):
    text = text.replace("▁", "")  # the tokenizer itself cannot tell this character from a space
    ids = PIECES.encode(text)
    assert joined(PIECES, ids) == (b" " + text.encode() if text else b"")
    assert PIECES.text_of(ids) == text
    assert PIECES.text_of(ids, first=False) == (" " + text if text else "")
    assert PIECES.text_of(ids) == PIECES.tokenizer.decode(ids)


def test_real_tokenizer_gives_exact_bytes(smollm2):
    @given(unicode_text | polish)
    @example("Zażółć gęślą jaźń 😀\r\n\t<|im_end|><|endoftext|>")
    def holds(text):
        lost = smollm2.unreadable(text)
        ids = smollm2.encode(text)
        assert (joined(smollm2, ids) == text.encode()) == (lost is None)
        if lost is not None:
            assert joined(smollm2, smollm2.encode(text[:lost])) == text[:lost].encode()
            return
        assert smollm2.text_of(ids) == text
        assert not smollm2.control & set(ids)
    holds()
    assert [smollm2.unreadable(t) for t in ("Zażółć", "ab\x16", "\U00050000")] == [None, 2, 0]  # it lacks byte tokens
    assert smollm2.size == 49152 and len(smollm2.special) == 17
    assert smollm2.encode("The quick brown fox") == smollm2.tokenizer("The quick brown fox")["input_ids"]
    assert all(smollm2.bytes_of(i) for i in range(smollm2.size))


@given(st.lists(st.sampled_from(["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<", "s>",
                                 "Za", " ", "ż", "\n"])).map("".join))
@pytest.mark.parametrize("vocabulary", [BYTES, PIECES])
def test_typed_control_tokens_are_letters(vocabulary, text):
    ids = vocabulary.encode(text)
    assert not vocabulary.control & set(ids)
    assert vocabulary.text_of(ids) == text


def test_a_word_level_vocabulary_does_not_find_a_typed_control_word():
    words = toys.vocabulary(toys.chat_toy())
    assert words.encode("Ala </s> kota") == [6, 0, 8]  # unknown, not the end-of-text id 2
    assert words.text_of(words.encode("Ala ma kota")) == "Ala ma kota"


def test_added_marks_without_the_special_flag_are_control_only_if_the_template_writes_them():
    think = BYTES.ids_by_token()["<think>"]
    assert think in BYTES.control and think not in BYTES.special
    without = toys.vocabulary(toys.byte_level(toys.CHATML))
    assert without.encode("<think>") == [think] == without.tokenizer("<think>")["input_ids"]


def test_control_marks_inside_a_template_part_keep_their_ids():
    ids = BYTES.encode_parts([("<|im_start|>a", True), ("<|im_end|>", False), ("<|im_end|>", True)])
    assert [BYTES.name(i) for i in ids] == ["⟨im_start⟩", "a", *"<|im_end|>", "⟨im_end⟩"]


@pytest.mark.parametrize("flags", [{}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"normalized": True},
                                   {"single_word": True}])
def test_control_tokens_take_white_space_as_they_always_do_beside_typed_ones(flags):
    backend = toys.byte_level(marks=(), plain_marks=()).backend_tokenizer
    backend.add_special_tokens([AddedToken("<|end|>", special=True, **{"normalized": False, **flags})])
    vocabulary = toys.vocabulary(toys.fast(backend, eos_token="<|end|>"))
    template, letters = "a  <|end|>  b <|end|>\n.", vocabulary.encode("<|end|>")
    own = vocabulary.tokenizer(template)["input_ids"]
    assert own.count(256) == 2 and 256 not in letters and len(letters) == 7
    assert vocabulary.encode_parts([(template, True), ("<|end|>", False)]) == own + letters


@given(unicode_text)
def test_ids_equal_the_tokenizers_own_where_nothing_is_control(text):
    for vocabulary in (BYTES, PIECES):
        if not vocabulary.control_pattern.search(text):
            assert vocabulary.encode(text) == vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_bytes_of_byte_tokens_specials_and_unknown_ids():
    ids = PIECES.ids_by_token()
    assert PIECES.bytes_of(ids["<0xF0>"]) == b"\xf0" and PIECES.name(ids["<0xF0>"]) == "byte F0"
    assert PIECES.bytes_of(ids["▁Za"]) == b" Za" and PIECES.name(ids["▁Za"]) == "·Za"
    assert PIECES.bytes_of(2) == b"</s>" and PIECES.name(2) == "⟨/s⟩"
    past = PIECES.size
    assert PIECES.bytes_of(past) == b"" and not PIECES.known(past) and PIECES.name(past) == f"⟨id {past}⟩"
    assert PIECES.known(past - 1) and PIECES.size == 266


def test_emoji_from_byte_tokens_and_byte_level_spaces():  # single bytes are not text of their own
    ids = PIECES.ids_by_token()
    emoji = [ids[f"<0x{b:02X}>"] for b in "😀".encode()]
    assert PIECES.text_of([ids["▁Za"], *emoji]) == "Za😀"
    assert BYTES.text_of(BYTES.encode(" kot"), first=False) == " kot"


def test_labels_need_only_a_tokens_bytes():
    assert [label(b"<|im_end|>", special=True), label(b"<|im_end|>"), label(b" a\n"), label(b"\xc5"), label(b"a\xc5")] == [
        "⟨im_end⟩", "<|im_end|>", "·a⏎", "byte C5", "bytes 61 C5"]
    assert label(b"[PAD]", special=True) == "⟨PAD⟩" and label(b"<>", special=True) == "⟨<>⟩"


def test_text_of_leaves_special_tokens_out_unless_asked():
    ids = [1, *PIECES.encode("Za"), 2]
    assert PIECES.text_of(ids) == "Za" == PIECES.tokenizer.decode(ids, skip_special_tokens=True)
    assert PIECES.text_of(ids, first=False, special=True) == "<s> Za</s>"


def test_the_scheme_is_read_off_the_pipeline_not_the_name():
    metaspace = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁Ala", -1.0), ("▁", -2.0), ("ma", -2.0)], unk_id=0))
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    metaspace.decoder = decoders.Metaspace(prepend_scheme="first")
    piece = Tokenizer(models.WordPiece({"[UNK]": 0, "Ala": 1, "ma": 2, "##ma": 3}, unk_token="[UNK]"))
    piece.pre_tokenizer = pre_tokenizers.Whitespace()
    piece.decoder = decoders.WordPiece()
    for backend, scheme in ((metaspace, "sentencepiece"), (piece, "wordpiece")):
        vocabulary = toys.vocabulary(toys.fast(backend))
        ids = vocabulary.encode("Ala ma")
        assert vocabulary.scheme == scheme
        assert vocabulary.text_of(ids) == "Ala ma"
        assert joined(vocabulary, ids) == b" Ala ma"
    assert (BYTES.scheme, PIECES.scheme) == ("byte-level", "sentencepiece")


def test_literal_byte_names_are_letters_where_there_is_no_byte_fallback():
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("<0x41>", -1.0), ("▁", -1.0)], unk_id=0))
    backend.decoder = decoders.Metaspace()
    assert toys.vocabulary(toys.fast(backend)).bytes_of(1) == b"<0x41>"


def test_least_tokens_is_never_above_the_real_count():
    @given(unicode_text | st.text("a\u0301ᾂ", max_size=300))
    def holds(text):
        for vocabulary in vocabularies:
            assert vocabulary.least_tokens(text) <= len(vocabulary.encode(text))
    composing = toys.byte_level().backend_tokenizer
    composing.normalizer = normalizers.NFC()
    vocabularies = [BYTES, PIECES, toys.vocabulary(toys.fast(composing))]
    holds()
    assert BYTES.least_tokens("a" * 1000) == 1000
    assert toys.vocabulary(toys.chat_toy()).least_tokens("a" * 1000) == 0  # one unknown word, whatever its length


def test_half_a_surrogate_pair_is_refused_with_its_place():
    with pytest.raises(RequestError, match=r"Character 3 .*U\+D83D"):
        BYTES.encode("ab\ud83d")


def test_opening_is_what_the_tokenizer_itself_adds():
    assert PIECES.opening == (1,)
    assert toys.vocabulary(toys.sentencepiece_like(bos=False)).opening == ()
    assert BYTES.opening == ()


def test_loading_names_what_is_missing(tmp_path):
    with pytest.raises(RequestError, match="no folder"):
        Vocabulary.load(tmp_path / "nie-ma")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(RequestError, match="tiny has no tokenizer"):
        Vocabulary.load(tmp_path, "tiny")
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(RequestError, match="tokenizer of tiny cannot be read"):
        Vocabulary.load(tmp_path, "tiny")


def test_a_saved_vocabulary_loads_the_same(tmp_path):
    for number, made in enumerate((toys.byte_level(toys.CHATML), toys.sentencepiece_like(), toys.chat_toy())):
        folder = tmp_path / str(number)
        made.save_pretrained(folder)
        loaded, text = Vocabulary.load(folder), "Ala ma gęślą </s>"
        before = toys.vocabulary(made)
        assert loaded.ids_by_token() == before.ids_by_token() and loaded.special == before.special
        assert loaded.encode(text) == before.encode(text) and loaded.template == before.template
        assert [loaded.bytes_of(i) for i in range(loaded.size)] == [before.bytes_of(i) for i in range(before.size)]


@given(unicode_text, st.randoms())
def test_text_comes_out_whole_however_its_bytes_arrive(text, random):
    data, assembler, out, at = text.encode(), Assembler(), "", 0
    while at < len(data):
        step = random.randint(0, 3)
        out += assembler.feed(data[at:at + step])
        assert text.startswith(out)  # nothing wrong, not even for a moment
        at += step
    assert out + assembler.finish() == text and assembler.dropped == 0


@given(st.binary(), st.randoms())
def test_any_bytes_give_the_same_text_in_any_portions_and_no_replacement(data, random):
    assembler, out, at = Assembler(), "", 0
    while at < len(data):
        step = random.randint(1, 4)
        out += assembler.feed(data[at:at + step])
        at += step
    out += assembler.finish()
    assert out == data.decode("utf-8", "ignore")
    assert out.count("\ufffd") <= data.count("\ufffd".encode())
    assert assembler.dropped == len(data) - len(out.encode())


def test_an_incomplete_character_waits():
    assembler = Assembler()
    assert [assembler.feed(bytes([b])) for b in "ż😀".encode()] == ["", "ż", "", "", "", "😀"]
    assert assembler.feed(b"a\xc5") == "a"
    assert assembler.finish() == "" and assembler.dropped == 1


def test_white_space_tokens_look_different_and_never_empty():
    tokens = ["\n", " variety", "  ", "\t", "", "a\u00a0b", "a b", "\r", "\u200b", "\ufeff", "\u202e", "\u0301", "\u2800"]
    shown = [visible(t) for t in tokens]
    assert len(set(shown)) == len(tokens) and all(s.strip() and s.isprintable() for s in shown)
    assert shown[:6] == ["⏎", "·variety", "··", "→", "⟨empty⟩", "a⟨U+00A0⟩b"]


@given(unicode_text | st.text("·→⏎⟨⟩ \t\nU+0A"), unicode_text | st.text("·→⏎⟨⟩ \t\nU+0A"))
@example("·", " ")
@example("⟨U+00A0⟩", "\u00a0")
@example("⟨empty⟩", "")
def test_visible_forms_differ_whenever_the_texts_do(a, b):
    assert (visible(a) == visible(b)) == (a == b)
    assert not set(visible(a)) & set("\n\t \r\0")
