"""Tokenisations on one ruler: which cuts they share, and what the others do to Polish letters."""

from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.alignment import align, as_data, compare, sentences
from engine.diacritics import POLISH, letters
from engine.errors import RequestError
from engine.lanes import LEFT_OUT, LOWER, OTHER, SPACES, UNKNOWN, Cut, _groups, lane
from tests import toys

unicode_text = st.text(st.characters(exclude_categories=["Cs"]))
polish = st.text("aąbcćeęłnńoósśzźż ZĄĆ\n\u0328\u0301\u0307😀", max_size=40)
BYTES = toys.vocabulary(toys.byte_level(), "bytes")
PIECES = toys.vocabulary(toys.sentencepiece_like(), "pieces")


def characters(**parts):
    """One token a character of a small alphabet, with an unknown token; `parts` replaces parts of the pipeline."""
    alphabet = ["<unk>", *"aąbceęghijklłmnoópsśtuwyzźż AĄ"]
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, [], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    for name, part in parts.items():
        setattr(backend, name, part)
    backend.add_special_tokens([AddedToken("<unk>", special=True, normalized=False)])
    return toys.vocabulary(toys.fast(backend, unk_token="<unk>"), "characters")


def joined(one) -> bytes:
    return b"".join(bytes.fromhex(t.bytes) for t in one.tokens)


# ── cuts, by hand ──


def test_cuts_and_figures_of_a_text_worked_out_by_hand():
    """Za|ż|ó|ł… against bytes: Z a C5 BC C3 B3 C5 82 C4 87. The pieces cut at bytes 2 and 4, the bytes everywhere from 1 to 9."""
    found = align("Zażółć", [PIECES, BYTES])
    assert [c.byte for c in found.lanes[0].cuts] == [2, 4] and [c.byte for c in found.lanes[1].cuts] == [*range(1, 10)]
    assert found.lanes[1].cuts[2] == Cut(3, 2, 3)  # inside ż, which is character 2
    pair = found.pairs[0]
    assert (pair.both, pair.only_first, pair.only_second) == (2, 0, 7)
    assert (pair.precision, pair.recall, pair.f1) == (2 / 9, 1.0, 2 * 2 / (2 + 9))
    # Lone cuts at bytes 1 3 5 6 7 8 9: all but the first touch one of żółć, and each letter is touched.
    assert (pair.lone, pair.lone_touching, pair.letters_touched) == (7, 6, 4)
    assert [t.letter.text for t in found.letters] == [*"żółć"]
    assert [t.split for t in found.letters] == [(1,)] * 4 and [t.touched for t in found.letters] == [(0, 1), (0, 1), (1,), (1,)]
    assert (found.splits(0), found.splits(1), found.words, found.tokens_per_word(0)) == (0, 4, 1, 3.0)
    assert sentences(found) == ["pieces and bytes agree on 2 of 9 cuts (22 %; F1 0.36); 4 of 4 letters with a diacritic are touched by "
                                "a cut that only one of them makes."]


def test_tokens_that_share_a_letter_carry_its_whole_span_and_part_its_bytes():
    one = lane(BYTES, "ż😀")
    assert [(t.start, t.end, t.start_byte, t.end_byte, t.bytes) for t in one.tokens] == [
        (0, 1, 0, 1, "c5"), (0, 1, 1, 2, "bc"), (1, 2, 2, 3, "f0"), (1, 2, 3, 4, "9f"), (1, 2, 4, 5, "98"), (1, 2, 5, 6, "80")]


def test_three_lanes_have_three_pairs_and_a_cut_is_lone_if_any_lacks_it():
    found = align("ża", [BYTES, PIECES, characters()])
    assert [(p.first, p.second) for p in found.pairs] == [(0, 1), (0, 2), (1, 2)]
    assert found.counts == {Cut(1, 0, 1): 1, Cut(2, 1, 1): 3} and found.lone == 1
    assert found.letters_touched == 1 and found.letters[0].touched == (0, 1, 2)
    assert [p.letters_touched for p in found.pairs] == [1, 1, 0]
    assert found.pairs[2].f1 == 1.0
    two_of_three = align("ża", [BYTES, BYTES, characters()])
    assert two_of_three.counts[Cut(1, 0, 1)] == 2 and two_of_three.lone == 1 and two_of_three.letters[0].lone


def test_one_lane_alone_has_figures_but_no_pair():
    found = align("ą", [BYTES])
    assert found.pairs == () and found.lone == 0 and found.splits(0) == 1 and sentences(found) == []
    assert as_data(found)["agreement"] == {"pairs": [], "sentences": []}


def test_an_empty_text_and_one_of_one_token_have_no_cuts_and_no_shares():
    for text in ("", "a"):
        found = align(text, [BYTES, PIECES])
        pair = found.pairs[0]
        assert found.counts == {} and (pair.both, pair.precision, pair.recall, pair.f1) == (0, None, None, None)
        assert "Neither bytes nor pieces cuts this text" in sentences(found)[0] and found.letters == ()
    assert align("", [BYTES]).tokens_per_word(0) is None


def test_a_mark_apart_from_its_base_splits_the_letter():
    nfd = "z\u0307e\u0328"
    found = align(nfd, [characters(), BYTES])  # the marks are unknown to the first: one token each
    assert [(t.letter.start, t.letter.end) for t in found.letters] == [(0, 2), (2, 4)]
    assert [t.split for t in found.letters] == [(0, 1), (0, 1)]
    assert Cut(1, 1, 1) in found.counts and found.counts[Cut(1, 1, 1)] == 2


@given(unicode_text | polish)
@example("ąą\u0301")
@example("\u0328ą")
def test_figures_equal_those_counted_the_slow_way(text):
    lanes = [lane(v, text) for v in (BYTES, PIECES)]
    found = compare(text, lanes)
    edges = []
    for v, one in zip((BYTES, PIECES), lanes):
        raw = [v.bytes_of(i) for i in v.encode(text)]
        total, ends = 0, set()
        for piece in raw:
            total += len(piece)
            ends.add(total - len(one.prefix))
        edges.append(ends - {0, len(text.encode())})
    if "▁" not in text:
        assert [{c.byte for c in one.cuts} for one in lanes] == edges
        assert found.pairs[0].both == len(edges[0] & edges[1]) and found.pairs[0].lone == len(edges[0] ^ edges[1])
        for t in found.letters:
            low, high = len(text[:t.letter.start].encode()), len(text[:t.letter.end].encode())
            assert t.split == tuple(i for i in (0, 1) if any(low < e < high for e in edges[i]))
            assert t.touched == tuple(i for i in (0, 1) if any(low <= e <= high for e in edges[i]))
            assert t.lone == any(low <= e <= high for e in edges[0] ^ edges[1])
    assert all(joined(one) == text.encode() for one in lanes)
    assert json.loads(json.dumps(as_data(found), allow_nan=False))["bytes"] == len(text.encode())


@given(polish)
def test_agreement_is_symmetric_and_whole_with_oneself(text):
    there, back = align(text, [BYTES, PIECES]).pairs[0], align(text, [PIECES, BYTES]).pairs[0]
    assert (there.precision, there.recall, there.f1) == (back.recall, back.precision, back.f1)
    same = align(text, [PIECES, PIECES]).pairs[0]
    assert same.lone == 0 and same.f1 in (1.0, None)


# ── letters ──


def test_polish_letters_are_found_composed_or_not_and_no_others():
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, "ąćęłńóśźż ĄĆĘŁŃÓŚŹŻ aeo é ö ç ñ ẅ e\u0301")
        found = letters(text)
        assert [unicodedata.normalize("NFC", letter.text) for letter in found] == [*"ąćęłńóśźżĄĆĘŁŃÓŚŹŻ"]
        assert all(text[letter.start:letter.end] == letter.text for letter in found)
    assert len(POLISH) == 18
    assert [letter.text for letter in letters("ą\u0301 a\u0301\u0328")] == ["ą\u0301", "a\u0301\u0328"]  # marks in any order


# ── rewriting tokenizers: reported, and laid on the text as written ──


def test_lower_case_is_reported_and_keeps_every_place():
    one = lane(characters(normalizer=normalizers.Lowercase()), "Ąa")
    assert one.reads == "ąa" and [(c.start, c.end, c.kind) for c in one.changes] == [(0, 1, LOWER)]
    assert [(t.start, t.end, bytes.fromhex(t.bytes).decode(), t.spelled) for t in one.tokens] == [
        (0, 1, "Ą", "ą".encode().hex()), (1, 2, "a", None)]


def test_unknown_characters_stand_for_what_they_replace():
    one = lane(characters(), "kot Ω ż")
    assert joined(one) == "kot Ω ż".encode() and [c.kind for c in one.changes] == [UNKNOWN]
    token = one.tokens[4]
    assert token.special and bytes.fromhex(token.bytes).decode() == "Ω" and bytes.fromhex(token.spelled) == b"<unk>"


def test_dropped_accents_and_dropped_characters_are_reported():
    plain = characters(normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]))
    one = lane(plain, "gęś")
    assert joined(one) == "gęś".encode() and one.reads == "ges" and [c.kind for c in one.changes] == [OTHER, OTHER]
    gone = lane(characters(normalizer=normalizers.Replace(Regex("[0-9]"), "")), "12kot3")
    assert joined(gone) == b"12kot3" and gone.reads == "kot" and {c.kind for c in gone.changes} == {LEFT_OUT}


def test_characters_that_are_left_out_belong_to_the_token_before_them():
    """The library's own offsets run ahead here: they place b on the Ω."""
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    backend.decoder = decoders.Fuse()
    v = toys.vocabulary(toys.fast(backend))
    one = lane(v, "ΩaΩbcΩ")
    assert [(t.start, t.end, bytes.fromhex(t.bytes).decode()) for t in one.tokens] == [(0, 3, "ΩaΩ"), (3, 4, "b"), (4, 6, "cΩ")]
    assert one.reads == "abc" and {c.kind for c in one.changes} == {LEFT_OUT} and [c.byte for c in one.cuts] == [5, 6]
    assert lane(v, "Ω").tokens == () and lane(v, "Ω").reads == ""
    shared = Tokenizer(models.BPE({"a": 0, "Ω": 1, "®": 2}, []))  # have the two bytes of ή between them
    shared.decoder = decoders.Fuse()
    assert [(t.start, t.end) for t in lane(toys.vocabulary(toys.fast(shared)), "aή®Ω").tokens] == [(0, 2), (2, 3), (3, 4)]


def test_a_byte_that_is_left_out_stays_with_its_character():
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"ñ"})  # byte F1
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    one = lane(toys.vocabulary(toys.fast(backend)), "a\U00050000b")
    assert [(t.start, t.end, t.bytes) for t in one.tokens] == [(0, 1, "61"), (1, 2, "f1908080"), (1, 2, ""), (1, 2, ""), (2, 3, "62")]
    assert [(c.start, c.end, c.read) for c in one.changes] == [(1, 2, "908080")]


def test_a_cut_inside_a_rewritten_letter_is_at_no_byte_of_the_text():
    """ę composed is C4 99 and apart 65 CC A8: a cut inside the one is not a cut inside the other."""
    composing = toys.byte_level().backend_tokenizer
    composing.normalizer = normalizers.NFC()
    nfc = toys.vocabulary(toys.fast(composing), "nfc")
    found = align("e\u0328", [nfc, BYTES, nfc])
    assert [(c.start, c.end, c.within) for c in found.lanes[0].cuts] == [(0, 2, "c499+1")]
    assert [(p.both, p.lone) for p in found.pairs] == [(0, 3), (1, 0), (0, 3)]
    assert found.letters[0].split == (0, 1, 2) and [t.bytes for t in found.lanes[0].tokens] == ["65cca8", ""]


def test_a_syllable_composed_of_its_parts_is_one_change():
    composing = toys.byte_level().backend_tokenizer
    composing.normalizer = normalizers.NFC()
    one = lane(toys.vocabulary(toys.fast(composing)), "\u1112\u1161\u11abż")  # 한 in three parts
    assert [(c.start, c.end, c.kind) for c in one.changes] == [(0, 3, "composed letters (NFC)")] and one.reads == "한ż"
    assert [(t.start, t.end) for t in one.tokens] == [(0, 3)] * 3 + [(3, 4)] * 2 and joined(one) == "\u1112\u1161\u11abż".encode()


def test_tokens_without_characters_of_their_own_go_with_those_before_them():
    assert _groups("ab c", [b"a", b"x", b"b", b" c"], [(0, 1), (1, 1), (1, 2), (3, 4)]) == [(0, 1, 0, 2), (1, 2, 2, 3), (2, 4, 3, 4)]
    assert _groups("ab", [b"x", b"a"], [(0, 0), (0, 1)]) == [(0, 2, 0, 2)] and _groups("ab", [], []) == []


def test_a_text_of_which_only_the_space_in_front_is_left_is_that_tokens():
    backend = Tokenizer(models.BPE({"▁": 0, "a": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    one = lane(toys.vocabulary(toys.fast(backend)), "żż")
    assert [(t.start, t.end, t.spelled) for t in one.tokens] == [(0, 2, "")] and joined(one) == "żż".encode() and one.prefix == " "


@pytest.mark.parametrize("level", [False, True])
def test_a_mark_at_the_end_of_a_word_is_the_space_behind_it(level):
    pieces = ["a", "l", "k", "o", "t", "a</w>", "t</w>", "ż" if not level else "Å", "ż</w>" if not level else "¼</w>"]
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), *([pre_tokenizers.ByteLevel(False, False, False)] * level)])
    backend.decoder = decoders.ByteLevel() if level else decoders.BPEDecoder()
    one = lane(toys.vocabulary(toys.fast(backend)), "ala kotaż")
    assert joined(one) == "ala kotaż".encode() and one.changes == () and one.prefix == ""
    assert [bytes.fromhex(t.bytes) for t in one.tokens][:3] == [b"a", b"l", b"a "]


def test_collapsed_spaces_are_reported():
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁Ala", -1.0), ("▁ma", -1.0), ("▁", -4.0)], unk_id=0))
    backend.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    one = lane(toys.vocabulary(toys.fast(backend, unk_token="<unk>")), "Ala   ma ")
    assert joined(one) == b"Ala   ma " and one.prefix == " " and one.reads == "Ala ma"
    assert {c.kind for c in one.changes} == {SPACES} and [(t.start, t.end) for t in one.tokens] == [(0, 3), (3, 9)]


def word_piece(**parts):
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "ala": 1, "ma": 2, "##ko": 3, "##ta": 4, ",": 5}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for name, part in parts.items():
        setattr(backend, name, part)
    return toys.vocabulary(toys.fast(backend, unk_token="[UNK]"))


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), None])
def test_word_piece_gives_the_spaces_to_the_word_behind_them(decoder):
    v = word_piece(**({"decoder": decoder} if decoder else {}))
    one = lane(v, "Ala, makota")
    assert joined(one) == b"Ala, makota" and one.prefix == ""
    assert [bytes.fromhex(t.bytes).decode() for t in one.tokens] == ["Ala", ",", " ma", "ko", "ta"]
    assert {c.kind for c in one.changes} == {LOWER, SPACES}  # it would put a space before the comma
    assert lane(v, "ala ma").changes == ()


@given(unicode_text | polish)
def test_whatever_a_normalizer_does_the_bytes_are_the_texts(text):
    for v in REWRITING:
        one = lane(v, text)
        if one.tokens:
            assert joined(one) == text.encode()
        assert all(a.end_byte == b.start_byte for a, b in zip(one.tokens, one.tokens[1:]))
        assert len(set(one.cuts)) == len(one.cuts)
        compare(text, [one, lane(BYTES, text)])


REWRITING = [
    word_piece(decoder=decoders.WordPiece()), word_piece(), characters(normalizer=normalizers.NFKC()),
    characters(normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])),
    toys.vocabulary(toys.chat_toy()), characters(normalizer=normalizers.Prepend("a")),
]


# ── tokenizers without a decoder ──


def test_without_a_decoder_the_other_parts_say_how_tokens_spell():
    backend = toys.sentencepiece_like().backend_tokenizer
    backend.decoder = None
    for text in ("Zażółć gęślą 😀\n", " dwie"):
        bare, whole = lane(toys.vocabulary(toys.fast(backend, unk_token="<unk>")), text), lane(PIECES, text)
        assert (bare.tokens, bare.prefix, bare.changes) == (whole.tokens, whole.prefix, ())
    level = toys.byte_level().backend_tokenizer
    level.decoder = None
    assert lane(toys.vocabulary(toys.fast(level)), "ż 😀").tokens == lane(BYTES, "ż 😀").tokens
    words = lane(toys.vocabulary(toys.chat_toy()), "Ala ma kota")  # nothing at all: words
    assert [bytes.fromhex(t.bytes).decode() for t in words.tokens] == ["Ala", " ma", " kota"] and words.changes == ()


# ── bad input ──


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(RequestError, match="Character 2 .*U\\+D83D"):
        align("a\ud83d", [BYTES])


def test_a_tokenizer_that_does_not_say_where_its_tokens_stand_is_refused(monkeypatch):
    v = characters(normalizer=normalizers.Lowercase())
    monkeypatch.setattr(type(v), "spans", lambda *_: [(0, 0, 99)])
    with pytest.raises(RequestError, match="rewrites this text and does not say where"):
        lane(v, "Ω")


@pytest.mark.parametrize("text", ["Zażółć gęślą jaźń, " * 5264, "\u0328ą" * 50_000],
                         ids=["prose", "marks"])
def test_100_000_characters_take_a_second_or_two(text):
    start = time.process_time()
    found = align(text[:100_000], [BYTES, PIECES])
    assert time.process_time() - start < 6  # of a slow, shared machine's time
    assert len(found.text) == 100_000 and all(joined(one) == found.text.encode() for one in found.lanes)


def test_typed_special_tokens_are_letters_unless_asked_otherwise():
    v = toys.vocabulary(toys.byte_level(toys.CHATML))
    text = "ż<|im_end|>"
    assert len(lane(v, text).tokens) == 12
    one = lane(v, text, special=True)
    assert [(t.start, t.end, t.special) for t in one.tokens] == [(0, 1, False), (0, 1, False), (1, 11, True)] and joined(one) == text.encode()
