"""What crosses between two tokenizers: candidates that go on where the committed text ends, and a draft that reads all of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as backends

from engine.decoding import translators
from engine.decoding.cuts import characters, cut, ids_by_bytes, text_ahead
from engine.decoding.reading import LEAD, Reading
from engine.decoding.translators.context import InContext
from engine.decoding.translators.naive import Naive
from engine.decoding.translators.none import Untranslated
from engine.errors import RequestError
from tests import families, toys
from tests.crossing import bytes_of, bytewise, pieces, scripted, spm
from tests.scripted import noise

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=24) | st.text("Zażółć gęślą jaźń\n\t", max_size=30)


def ids(vocabulary, *tokens):
    return [vocabulary.ids_by_token()[t] for t in tokens]


def context(vocabulary, committed, text, p=5, held=b""):
    return InContext(vocabulary, p).candidates(committed, held, (), text)


# ------------------------------------------------------------------------------------------------------- none and naive


def test_without_translation_ids_are_cut_at_the_first_that_the_verifier_lacks():
    """UA-03: verifier 300 ids, draft 500."""
    verifier = toys.vocabulary(toys.fast(Tokenizer(backends.WordLevel({f"t{i}": i for i in range(300)}, unk_token="t0"))))
    found = Untranslated(verifier, 300).candidates([1], b"", [17, 450, 21], "x")
    assert found.ids == [17] and "450" in found.note
    assert Untranslated(verifier, 300).candidates([1], b"", [17, 21], "x") == ([17, 21], None)
    assert Untranslated(verifier, 20).candidates([1], b"", [17, 21], "x").ids == [17]  # known, but not scored
    assert Untranslated(verifier, 320).candidates([1], b"", [310, 17], "x").ids == []  # scored padding, but no token


def test_naive_puts_a_space_into_a_word_and_context_does_not():
    """UA-04."""
    v = spm()
    committed = ids(v, "<s>", "▁Za", "ż")
    assert Naive(v).candidates(committed, b"", (), "ółć").ids == ids(v, "▁", "ółć")
    assert context(v, committed, "ółć") == (ids(v, "ółć"), None)


@pytest.mark.parametrize("strategy", [Naive, lambda v: InContext(v, 5)])
@pytest.mark.parametrize("text", ["</s>", "<s>x", "<unk>", "ż</s>"])
def test_the_text_of_a_control_token_stays_letters(strategy, text):
    v = spm()
    for vocabulary, said in ((v, text), (bytewise(), "<|im_end|>"), (bytewise(), "<think>")):
        found = strategy(vocabulary).candidates(vocabulary.encode("Za"), b"", (), said).ids
        assert not set(found) & vocabulary.control and bytes_of(vocabulary, found).decode().strip() == said


def test_no_translator_adds_a_beginning_of_text():
    """UA-02: <s> is what this tokenizer puts in front of a text, and a candidate is no text of its own."""
    v = spm()
    assert v.opening == tuple(ids(v, "<s>"))
    for found in (Naive(v).candidates(v.encode("Za"), b"", (), "ż"), context(v, v.encode("Za"), "ż"), context(v, [], "ż")):
        assert not set(found.ids) & set(v.opening)


# -------------------------------------------------------------------------------------------------------------- context


def test_the_prefix_is_taken_off_by_bytes_not_by_the_number_of_its_tokens():
    """Committed a|b, draft text "c": together they are ab|c, two tokens. Leaving out the first two would lose the c."""
    v = pieces("a", "b", "c", "ab")
    assert context(v, ids(v, "a", "b"), "c").ids == ids(v, "c")


def test_a_prefix_that_a_token_reaches_across_is_shortened_and_says_so():
    """Committed x|a, draft text "bc". Every cut of "…abc" has ab in one, also behind x: only "bc" alone goes on behind a."""
    v = pieces("a", "b", "c", "x", "ab", "xa")
    found = context(v, ids(v, "x", "a"), "bc")
    assert found.ids == ids(v, "b", "c")
    assert found.note == "No token ends after 2 committed tokens; translated after 0."


def test_the_longest_prefix_that_agrees_is_taken():
    """Committed z|a|b, draft text "cx". Behind "zab" and "ab" it would be abc; behind b alone nothing reaches across."""
    v = pieces("a", "b", "c", "x", "z", "ab", "abc")
    found = context(v, ids(v, "z", "a", "b"), "cx")
    assert found == (ids(v, "c", "x"), "No token ends after 3 committed tokens; translated after 1.")
    assert context(v, ids(v, "z", "a", "b"), "cx", p=1) == (ids(v, "c", "x"), None)


def test_a_start_mark_is_never_part_of_a_candidate():
    """Where no prefix will do, the text alone would start with ▁. That is dropped where it is a token of its own; glued to
    letters (▁Za) it would put a space into a word, so the text is read behind a line break instead."""
    v = spm()
    assert context(v, [], "ółć").ids == ids(v, "ółć")
    assert context(v, [], "Za").ids == ids(v, "<0x5A>", "<0x61>")
    assert context(v, [], " Za").ids == ids(v, "▁Za")
    bare = pieces("a", "b", "ab")  # and where a tokenizer marks nothing, nothing is read behind anything
    assert context(bare, ids(bare, "a"), "b") == (ids(bare, "b"), "No token ends after 1 committed tokens; translated after 0.")


@pytest.mark.parametrize("p", range(7))
def test_a_prefix_never_crosses_a_control_token(p):
    """What stands before </s> has no say in how the text behind it is cut."""
    v = spm()
    with_mark, without = [*ids(v, "<s>", "▁Za", "</s>"), *ids(v, "▁Za", "ż")], ids(v, "▁Za", "ż")
    assert context(v, with_mark, "ółć", p) == context(v, without, "ółć", p)


def test_half_a_letter_is_held_back_and_goes_on_inside_it():
    """UA-01, and its mirror: committed text that ends inside ń (byte fallback) continues with the other byte."""
    v = spm()
    assert text_ahead("ż".encode() + b"\xc3") == "ż"
    assert context(v, ids(v, "<s>", "▁Za"), "ż").ids == ids(v, "ż")
    half = [*ids(v, "<s>", "▁Za"), *ids(v, "<0xC5>")]
    found = context(v, half, "ńx", held=b"\xc5")
    assert bytes_of(v, found.ids) == "ńx".encode()[1:]
    for p in (0, 1, 2):
        assert context(v, half, "ńx", p, held=b"\xc5").ids == found.ids
    assert Naive(v).candidates(half, b"\xc5", (), "ńx").ids == []


def test_nothing_complete_gives_no_candidate():
    for vocabulary in (spm(), bytewise()):
        for strategy in (Naive(vocabulary), InContext(vocabulary, 5)):
            assert strategy.candidates(vocabulary.encode("Za"), b"", (), "").ids == []


def test_a_tokenizer_that_composes_letters_sends_only_what_it_spells_exactly():
    """NFC in front: of the draft's o + acute nothing may cross as ó, which are other bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(backends.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    v = toys.vocabulary(toys.fast(backend))
    assert bytes_of(v, context(v, v.encode("Za"), "żo\u0301x").ids) == "ż".encode()
    assert bytes_of(v, context(v, v.encode("Za"), "żóx").ids) == "żóx".encode()


@given(before=TEXTS, said=TEXTS, p=st.integers(0, 7), which=st.sampled_from(["spm", "bytes", "pieces"]))
@example(before="Zaż", said="ółć", p=5, which="spm")
@example(before=" ", said=" Za", p=1, which="spm")
def test_candidates_continue_the_committed_bytes_exactly(before, said, p, which):
    """Whatever the texts: what crosses is a beginning of what the draft wrote, with not a byte before it."""
    v = {"spm": spm, "bytes": bytewise, "pieces": lambda: pieces("a", "ż", "ó", " ", "aż", "ażó")}[which]()
    if which == "pieces":
        before, said = ("".join(c for c in t if c in "ażó ") for t in (before, said))
    committed = [*v.opening, *v.encode(before)]
    found = context(v, committed, text_ahead(said.encode()), p)
    assert said.encode().startswith(bytes_of(v, found.ids)) and not set(found.ids) & v.control
    if which == "bytes" and "\ufffd" not in said:
        assert bytes_of(v, found.ids) == said.encode()


# ------------------------------------------------------------------------------------------------------------------ tli


def marked(*tokens, special=()):
    backend = Tokenizer(backends.Unigram([(t, -1.0) for t in tokens], None))
    backend.decoder = decoders.Metaspace("▁", "never")
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return toys.vocabulary(toys.fast(backend))


def shared(verifier, draft, ends=((), ()), **kwargs):
    made = translators.make("tli", scripted(noise(verifier.size), verifier, ends=ends[0]), scripted(noise(draft.size), draft, ends=ends[1], **kwargs), 5).shared
    return {(draft.name(d), verifier.name(v)) for d, v in zip(made.draft, made.verifier)}, made


def test_tokens_are_shared_by_their_bytes_however_they_are_spelled():
    """▁ of SentencePiece is the space of a byte-level vocabulary; <0x5A> of one is Z of the other."""
    names, made = shared(bytewise(), spm())
    assert (" ".replace(" ", "·"), "·") in names
    assert len(made.verifier) == len(set(made.verifier)) == len(set(made.draft)) == 256  # single bytes, and ▁ is one of them
    assert all(bytewise().bytes_of(v) == spm().bytes_of(d) for d, v in zip(made.draft, made.verifier))


def test_a_control_token_is_shared_only_where_it_ends_a_text_on_both_sides():
    """A token that is special here and ordinary there is another token; and no draft begins a text in the middle of one."""
    a, b, c = marked("x", "y", special=("</s>", "<s>")), marked("y", "</s>", "x"), marked("<s>", "y", special=("</s>",))
    assert {d for d, _ in shared(a, b, (ids(a, "</s>"), ids(b, "</s>")))[0]} == {"x", "y"}
    assert {d for d, _ in shared(a, c, (ids(a, "</s>"), ids(c, "</s>")))[0]} == {"y", "⟨/s⟩"}
    assert {d for d, _ in shared(a, c, (ids(a, "</s>"), ()))[0]} == {"y"}
    assert {d for d, _ in shared(a, a, (ids(a, "</s>"), ids(a, "</s>")))[0]} == {"x", "y", "⟨/s⟩"}


def test_a_token_twice_in_a_vocabulary_is_shared_once_as_text_becomes_it():
    """A and <0x41> are the same byte; nobody's text becomes <0x41>."""
    v = spm()
    twice = ids_by_bytes(toys.vocabulary(toys.fast(both_spellings())))
    assert twice[b"A", False] == 1
    assert ids_by_bytes(v)[b" ", False] == ids(v, "▁")[0]


def both_spellings():
    backend = Tokenizer(backends.Unigram([("<0x41>", -9.0), ("A", -1.0), ("<0x42>", -1.0)], None))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def test_only_what_both_score_is_shared():
    """A draft with a stored map scores some of its ids; a verifier narrower than its vocabulary lacks the last."""
    a, b = marked("x", "y", "z"), marked("z", "y", "x")
    assert {d for d, _ in shared(a, b, width=2, support=[2, 0])[0]} == {"x", "z"}
    narrow = translators.make("tli", scripted(noise(2), a, width=2), scripted(noise(3), b), 5).shared
    assert sorted(narrow.verifier) == [0, 1]
    mapped = shared(a, b, width=2, support=[2, 0])[1]
    assert [[2, 0][c] for c in mapped.columns] == mapped.draft


def test_an_unknown_strategy_is_named():
    with pytest.raises(RequestError, match="no strategy “magic”; choose among none, naive, context, tli"):
        translators.make("magic", scripted(noise(3), spm()), scripted(noise(3), spm()), 5)


# -------------------------------------------------------------------------------------------------------------- reading


def reading_of(vocabulary, prompt: str, floor=None):
    start = [*vocabulary.opening, *vocabulary.encode(prompt)]
    return Reading(vocabulary, start, len(vocabulary.opening) if floor is None else floor, ids_by_bytes(vocabulary))


def letters_of(vocabulary, prompt):
    """A text's bytes as this tokenizer's tokens spell them: with the mark it may put in front."""
    return bytes_of(vocabulary, vocabulary.encode(prompt))


@given(prompt=TEXTS.filter(str.strip), parts=st.lists(st.binary(max_size=5) | TEXTS.map(str.encode), max_size=8),
       which=st.sampled_from([spm, bytewise]))
@example(prompt="Za", parts=["ż".encode()[:1], "ż".encode()[1:], "ółć".encode()], which=spm)
def test_a_draft_reads_every_committed_byte_that_is_text(prompt, parts, which):
    """Also those of a character that is not complete yet: as byte tokens, which go once the rest comes."""
    v = which()
    r = reading_of(v, prompt)
    start = bytes_of(v, r.ids)
    said = b""
    for part in parts:
        before = list(r.ids)
        r.begin()
        r.text(part)
        said += part
        text, rest = characters(said)
        assert bytes_of(v, r.ids) == start + text.encode() + rest and r.held == rest and r.complete
        assert r.ids[: r.agreed] == before[: r.agreed] and r.agreed <= len(before)


@pytest.mark.parametrize("which", [spm, bytewise])
def test_a_text_that_grows_is_read_as_its_tokenizer_cuts_it_whole(which):
    v, text = which(), "Zażółć gęślą jaźń Zażółć jaźńZa żółćgęśląZażółć " * 3
    for step in (1, 2, 3, 7):
        r = reading_of(v, text[:5])
        for at in range(5, len(text), step):
            r.text(text[at : at + step].encode())
        assert r.ids == [*v.opening, *v.encode(text[: 5 + step * len(range(5, len(text), step))])]


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_real_tokenizer_reads_growing_polish_text_as_it_cuts_it_whole(family):
    v = families.vocabulary(family)
    text = ("Wczoraj późnym wieczorem pani Łucja, która mieszkała w małym domu nad jeziorem, usłyszała dziwny dźwięk.\n\nZAŻÓŁĆ GĘŚLĄ "
            "JAŹŃ! „Cudzysłów” – 10 000 zł; https://pl.wikipedia.org/wiki/Żółw 😀") * 2
    for step in (1, 3, 8):
        r = reading_of(v, text[:9])
        for at in range(9, len(text), step):
            r.text(text[at : at + step].encode())
        whole = [*v.opening, *v.encode(text)]
        assert bytes_of(v, r.ids) == bytes_of(v, whole)
        assert sum(a != b for a, b in zip(r.ids, whole)) == 0 and len(r.ids) == len(whole)


def test_the_work_of_reading_does_not_grow_with_the_text(monkeypatch):
    v, encoded = spm(), []
    real = type(v).encode
    monkeypatch.setattr(type(v), "encode", lambda self, text: encoded.append(len(text)) or real(self, text))
    r = reading_of(v, "Za")
    for _ in range(300):
        r.text(" gęślą jaźń".encode())
    assert max(encoded[5:]) <= 8 * LEAD and len(r.ids) > 900


def test_a_rendered_template_is_never_cut_anew():
    """Its last token stays though "Zaż" of template and answer would be cut otherwise together."""
    v = pieces("a", "b", "ab", "c")
    r = reading_of(v, "ca", floor=2)
    r.text(b"bab")
    assert r.ids == ids(v, "c", "a", "b", "ab")
    free = reading_of(v, "ca", floor=0)
    free.text(b"bab")
    assert free.ids == ids(v, "c", "ab", "ab")


def test_a_control_token_is_read_as_one_or_not_at_all():
    v = bytewise()
    r = reading_of(v, "a")
    r.text(b"b\xc5")
    assert not set(r.ids) & v.control and r.held
    r.control(ids(v, "<think>")[0])
    r.text(b"c")
    assert r.ids == [*v.encode("ab"), *ids(v, "<think>"), *v.encode("c")] and not r.held
    r.control(None)
    r.text(b"d")
    assert r.ids[-2:] == v.encode("cd")


def test_a_draft_without_byte_tokens_waits_for_the_rest_of_a_letter():
    v = pieces("a", "ż", "b")
    r = reading_of(v, "a")
    r.text("ż".encode()[:1])
    assert r.ids == ids(v, "a") and not r.complete
    r.text("ż".encode()[1:] + b"b")
    assert r.ids == ids(v, "a", "ż", "b") and r.complete


# ----------------------------------------------------------------------------------------------------------------- cuts


def test_a_cut_knows_where_each_token_ends_in_the_text():
    v = spm()
    assert cut(v, "Zażółć") == (ids(v, "▁Za", "ż", "ółć"), [2, 4, 10], 10)
    assert cut(v, " Zaż", begins=True) == (ids(v, "▁Za", "ż"), [3, 5], 5)
    assert cut(v, "ółć").ends == [0, 6]


@pytest.mark.parametrize("data, text", [(b"ab", "ab"), (b"a\xff", "a"), (b"a\xc5", "a"), ("a\ufffdb".encode(), "a"), (b"\xbcb", ""), (b"", "")])
def test_text_ahead_ends_at_the_first_byte_that_is_none(data, text):
    assert text_ahead(data) == text
