"""Why a candidate was refused: another cut of the same text, a cut at a Polish letter, a close call, or another opinion."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.decoding.causes import NEAR_TIE, cause, explained
from engine.trace import BONUS, CORRECTION, PLAIN, Generation, Round, Settings
from engine.trace.uag import BOUNDARY, CAUSES, DIACRITIC, DISAGREEMENT, TIE
from tests.crossing import bytewise, crossed, pieces, scripted, spm, teller

FAR = 0.5


def refused(sent, chosen, said, kept=(), gap=FAR, behind=b"", special=()):
    """The cause where the verifier kept `kept`, refused `sent` and took `chosen`, and the draft had written `said`."""
    words = list(dict.fromkeys([*kept, sent, chosen, said]))
    v, d = Words(words, special), Words(words)
    r = Round(proposed=tuple(words.index(w) for w in (*kept, sent)), accepted=len(kept), closing=CORRECTION,
              emitted=tuple(words.index(w) for w in (*kept, chosen)), draft_ids=(words.index(said),))
    return cause(r, gap, behind, v, d)


class Words:
    def __init__(self, words, special=()):
        self.words, self.control = words, frozenset(words.index(w) for w in special)

    def bytes_of(self, i):
        return self.words[i] if isinstance(self.words[i], bytes) else self.words[i].encode()


@pytest.mark.parametrize("sent, chosen, said, kept", [
    ("ko", "k", "kota", ()),  # the verifier cuts earlier
    ("ko", "kot", "kota", ()),  # later, still inside the draft's text
    ("ko", "kotka", "ko", ()),  # past its end
    (" ", "kot", "kot", ()),  # naive's space, which the draft never wrote
    ("t", "ta", "kota", ("ko",)),  # behind a kept candidate
    ("ko", "kot", "kota mam", ()),
])
def test_another_cut_of_the_same_text_is_a_boundary(sent, chosen, said, kept):
    assert refused(sent, chosen, said, kept) == BOUNDARY
    assert refused(sent, chosen, said, kept, gap=0.0) == BOUNDARY  # which comes before a near tie


@pytest.mark.parametrize("letter", "ąćęłńóśźżĄĆĘŁŃÓŚŹŻ")
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_cut_at_a_polish_letter_is_a_diacritic_boundary(letter, form):
    """At its left edge, at its right edge and inside it, of either of the two cuts that differ."""
    x = unicodedata.normalize(form, letter)
    raw = ("k" + x + "ta").encode()
    size = len(x.encode())
    assert refused(raw[:1], raw[: 3 + size], raw) == DIACRITIC  # the candidate ends where the letter begins
    assert refused(raw[: 1 + size], raw[: 3 + size], raw) == DIACRITIC  # behind it
    assert refused(raw[: 3 + size], raw[:1], raw) == DIACRITIC
    assert refused(raw[: 3 + size], raw[: 1 + size], raw) == DIACRITIC
    if size > 1:
        assert refused(raw[:2], raw[: 3 + size], raw) == DIACRITIC  # inside it
    assert refused(raw[: 2 + size], raw[: 3 + size], raw) == BOUNDARY  # both one letter further on


@pytest.mark.parametrize("said", ["kóta", "köta", "ko\u0308ta", "kæta"])
def test_only_polish_letters_count(said):
    assert refused(said[:1], said[:-1], said) == (DIACRITIC if "ó" in said else BOUNDARY)


def test_a_letter_that_began_in_the_text_before_counts():
    """The first byte of ż is committed; the cuts differ behind the second."""
    half = "ż".encode()
    assert refused(half[1:], half[1:] + b"x", half[1:] + b"xyz", behind=b"ko" + half[:1]) == DIACRITIC
    assert refused(b"a", b"ab", b"abc", behind="ż".encode()) == BOUNDARY  # the cut lies a letter further on


def test_the_same_text_must_follow_what_was_kept():
    """naive's space was kept: what the draft wrote is no longer what comes."""
    assert refused("ko", "kot", "kota", kept=(" ",)) == DISAGREEMENT


def test_a_control_token_is_no_text():
    assert refused("ko", "<end>", "<end> of the text", special=("<end>",)) == DISAGREEMENT
    assert refused("ko", "<end>", "<end> of the text") == BOUNDARY


def test_a_close_call_is_a_near_tie_and_the_rest_a_disagreement():
    assert refused("ko", "pies", "kota", gap=NEAR_TIE * 0.99) == TIE
    assert refused("ko", "pies", "kota", gap=NEAR_TIE) == DISAGREEMENT
    assert refused("ko", "pies", "kota", gap=None) == DISAGREEMENT


@given(said=st.binary(max_size=8), sent=st.binary(min_size=1, max_size=4), chosen=st.binary(max_size=6), behind=st.binary(max_size=5),
       gap=st.none() | st.floats(0, 1))
def test_every_refusal_has_one_cause_whatever_the_bytes(said, sent, chosen, behind, gap):
    if sent != chosen:
        found = refused(sent, chosen, said, gap=gap, behind=behind)
        assert found in CAUSES
        same = bool(said and chosen) and (said.startswith(chosen) or chosen.startswith(said))
        assert (found in (BOUNDARY, DIACRITIC)) == same


def test_only_refusals_get_a_cause_and_the_gap_is_the_verifiers():
    v = Words(["a", "b", "c"])
    rounds = (Round(emitted=(0,), closing=PLAIN), Round((0, 1), 1, (0, 2), CORRECTION, draft_ids=(0, 1)), Round((0,), 1, (0, 1), BONUS, draft_ids=(0,)))
    top = (((0, 0.9), (1, 0.1)),) * 2 + (((2, 0.5), (1, 0.48)),) + (((0, 1.0),),) * 2
    found = explained(Generation("speculative", (0, 0, 2, 0, 1), rounds=rounds, top=top), v, v).rounds
    assert [r.cause for r in found] == [None, TIE, None]
    assert found[1].gap == pytest.approx(0.02) and found[0].gap is found[2].gap is None
    unwatched = explained(Generation("speculative", (0, 0, 2, 0, 1), rounds=rounds), v, v).rounds[1]
    assert (unwatched.cause, unwatched.gap) == (DISAGREEMENT, None)


def test_naives_refusals_in_a_real_loop_are_boundaries():
    """Two scripted models tell one story: no refusal can be another opinion."""
    story = "Zażółć gęślą jaźń"
    v, d = spm(), bytewise()
    for strategy in ("naive", "context", "tli"):
        got = crossed(scripted(teller(v, story), v), scripted(teller(d, story), d), strategy, "Za", Settings(gamma=5, max_tokens=5))
        causes = [r.cause for r in got.rounds if r.closing == CORRECTION]
        assert set(causes) <= {BOUNDARY, DIACRITIC} and all(r.gap is not None for r in got.rounds if r.cause)
        assert len(causes) == sum(r.cause is not None for r in got.rounds) and (causes or strategy == "context")


def test_another_story_is_a_disagreement():
    v = pieces("a", "b", "c", "d")
    got = crossed(scripted(teller(v, "abab"), v), scripted(teller(v, "accc"), v), "context", "a", Settings(gamma=2, max_tokens=3))
    assert got.rounds[0].cause == DISAGREEMENT
