"""Stop strings: where an answer ends, whatever tokens and rounds they begin and end in, alike in every mode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings as budget, strategies as st

from engine import stops
from engine.decoding.ending import text_of
from engine.errors import RequestError
from engine.trace import Settings
from tests.decoded import audited
from tests.scripted import ScriptedModel, path

ANSWER = tuple(range(1, 10)) * 3  # spelled " t1 t2 t3 …" by the scripted vocabulary
TEXT = "".join(f" t{i}" for i in ANSWER)


def answers(stop, gamma, right=27):
    """The verifier's answer alone, with a draft that is right for so many tokens, and by lookup."""
    verifier = ScriptedModel(path((0,), ANSWER, 10), 10)
    draft = ScriptedModel(path((0,), ANSWER[:right], 10), 10)
    s = Settings(gamma=gamma, max_tokens=27, stop=stop)
    return [audited(verifier, drafter, (0,), s) for drafter in (None, draft, "lookup")]


@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("stop, tokens", [
    ((" t3",), 3),  # a token of its own, in the middle of a block
    (("3 t4 t",), 5),  # begins inside a token, spans tokens and rounds, ends inside a token
    (("t9 t1",), 10),  # spans two rounds of gamma 4 and of 8
    (("nothing", "t5", " t4"), 4),  # the first to occur, whatever their order
    (("nothing",), 27),
])
def test_an_answer_ends_with_the_token_that_completes_a_stop_string(stop, tokens, gamma):
    made = answers(stop, gamma)
    for g in made:
        assert g.ids == ANSWER[:tokens] and g.finish == ("length" if tokens == 27 else "stop string")
        assert g.timings[0].tokens == tokens == len(g.entropy) == sum(len(r.emitted) for r in g.rounds)
        last = g.rounds[-1]
        assert len(last.proposed) == len(last.p) == len(last.draw) and last.accepted <= len(last.proposed)
    places = [at for s in stop if (at := TEXT.find(s)) >= 0]
    assert {g.text for g in made} == {TEXT[: min(places, default=len(TEXT))]}


@budget(max_examples=60, deadline=None)
@given(st.lists(st.text("t123456789 ", min_size=1, max_size=7), max_size=4), st.integers(1, 9), st.integers(0, 27))
def test_every_mode_ends_alike(stop, gamma, right):
    plain, *others = answers(tuple(stop), gamma, right)
    for g in others:
        assert (g.ids, g.text, g.finish) == (plain.ids, plain.text, plain.finish)
    assert not [s for s in stop if s in plain.text]  # what is shown holds none of them
    if plain.finish == "stop string":  # and one token less held none either
        assert any(s in TEXT[: len(text_of(ScriptedModel(path((0,), ANSWER, 10), 10), plain.ids))] for s in stop)
        assert not any(s in "".join(f" t{i}" for i in plain.ids[:-1]) for s in stop)


@given(st.text())
def test_what_is_written_on_one_line_is_read_back(text):
    assert stops.read(stops.written(text)) == text


def test_escapes_are_read_and_other_backslashes_stay():
    assert stops.read(r"\n\n") == "\n\n" and stops.read(r"a\\nb\d\t") == "a\\nb\\d\t"


@pytest.mark.parametrize("strings, said", [(("",), "empty"), (("x" * 501,), "501 characters"), (tuple("abcdefghijklmnopq"), "17 stop strings")])
def test_stop_strings_that_cannot_be_are_refused(strings, said):
    with pytest.raises(RequestError, match=said):
        stops.check(strings)
