"""Runs from other hands: taken in whole, or refused in one sentence."""

import dataclasses
import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.importing import LIMIT, NAN_NOTE, run_from_bytes
from cache.store import Store
from engine.analysis.metrics import metrics
from engine.errors import RequestError
from engine.trace import Machine, Run, to_json
from tests.sample import sample_run
from tests.stored import run_number, store  # noqa: F401


def export(run) -> dict:
    return json.loads(to_json(run))


texts = st.text(max_size=40)
numbers = st.floats(allow_nan=False, allow_infinity=False)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=6).map(tuple)


@st.composite
def runs(draw) -> Run:
    base = sample_run(draw(st.integers(0, 50)), tokens=draw(st.integers(0, 12)), gamma=draw(st.integers(0, 5)),
                      temperature=draw(st.sampled_from([0.0, 0.7])), hostile=draw(st.booleans()), polish=draw(st.booleans()),
                      eos=draw(st.booleans()), repeats=draw(st.integers(1, 3)), speculative=draw(st.booleans()),
                      drafter=draw(st.sampled_from(["model", "lookup"])),
                      status=draw(st.sampled_from(["done", "stopped", "failed"])))
    return dataclasses.replace(
        base, id=draw(st.text(string.ascii_letters + string.digits, min_size=1, max_size=20)), name=draw(texts),
        prompt=dataclasses.replace(base.prompt, text=draw(st.text(st.characters(exclude_categories=()), max_size=60)),
                                   system=draw(st.none() | texts), raw=draw(st.booleans()), ids=draw(token_ids)),
        machine=Machine(draw(texts), draw(texts), draw(st.integers(1, 512)), draw(st.integers(0, 2**50)), "3.12",
                        draw(st.dictionaries(texts, texts, max_size=3))),
        settings=dataclasses.replace(base.settings, entropy_stop=draw(st.none() | numbers)),
        notes=tuple(draw(st.lists(texts, max_size=3))))


@settings(max_examples=40, deadline=None)
@given(run=runs())
def test_any_run_comes_back_as_it_was_and_can_be_imported_elsewhere(tmp_path_factory, run):
    """Half surrogate pairs, NULs, empty answers and all."""
    folder = tmp_path_factory.mktemp("runs")
    first, second = Store(folder / "a"), Store(folder / "b")
    id = first.save(run)
    assert Store(folder / "a").get(id) == dataclasses.replace(run, id=id)
    line, = Store(folder / "a").list()
    assert line.damaged is None
    imported = second.import_json((folder / "a" / f"{id}.json").read_bytes())
    assert second.get(imported) == dataclasses.replace(run, id=id)


def test_an_exported_run_is_imported_under_a_new_id_where_its_own_is_taken(store):
    run = run_number(1)
    content = to_json(run, metrics=metrics(run)).encode()
    assert store.import_json(content) == run.id
    second = store.import_json(b"\xef\xbb\xbf" + content)
    assert second != run.id and store.get(second) == dataclasses.replace(run, id=second)
    store.delete(run.id)
    third = store.import_json(content)
    assert third not in (run.id, second)
    store.undo(run.id)
    assert len(store.list()) == 3


def test_a_bare_nan_is_read_as_not_measured_and_said_so(store):
    data = export(run_number(1))
    data["plain"]["entropy"][0] = float("nan")
    data["plain"]["probability"][1] = float("-inf")
    run = store.get(store.import_json(json.dumps(data).encode()))
    assert run.plain.entropy[0] is None and run.plain.probability[1] is None and run.notes == (NAN_NOTE,)


def changed(**values):
    return json.dumps({**export(run_number(1)), **values}).encode()


def side(**values):
    return changed(plain={**export(run_number(1))["plain"], **values})


@pytest.mark.parametrize("content, words", [
    (b"", "not JSON"), (b"\xff\xff", "not JSON"), (b"{", "not JSON"), (b"  <!doctype html>", "web page"),
    (b"[" * 200_000, "nested too deeply"), (b"[]", "not a SpecLens run"), (b'{"kind": "compare"}', "not a SpecLens run"),
    (changed(schema=7), "newer SpecLens"), (changed(schema=None), "run.schema is not a whole number"), (changed(prompt=3), "run.prompt is not an object"),
    (changed(models={}), "which verifier"), (changed(models=[]), "run.models is not an object"), (changed(name=["x"]), "run.name is not a text"),
    (changed(created="yesterday"), "isoformat"), (changed(tokens={}), "bytes of token"),
    (changed(tokens={"x": "00"}), "run.tokens is not an object with whole numbers"), (changed(notes=[1]), "run.notes[0] is not a text"),
    (side(ids="abc"), "run.plain.ids is not a list"), (side(ids=[1.5]), "run.plain.ids[0] is not a whole number"),
    (side(ids=[True]), "not a whole number"), (side(entropy=[1.0]), "plain.entropy has 1 entries"),
    (side(entropy=["<script>"] * 12), "run.plain.entropy[0] is not a number"), (side(top=[[[1]]] * 12), "list of 2"),
    (side(timings=[{}]), "damaged"), (side(rounds=[{"accepted": 3}]), "accepts 3 of 0"),
    (side(rounds=[{"proposed": [100], "q": [0.1, 0.2]}]), "rounds[0].q"), (b" " * (LIMIT + 1), "MB"),
], ids=range(27))
def test_what_is_no_run_is_refused_in_one_sentence(store, content, words):
    with pytest.raises(RequestError) as refused:
        store.import_json(content)
    text = str(refused.value)
    assert words in text and text.endswith(".") and "\n" not in text and len(text) < 300
    assert store.list() == []


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_run_with_anything_replaced_by_anything_is_refused_or_can_be_read(tmp_path_factory, data):
    document = export(run_number(data.draw(st.integers(0, 3))))
    at = document
    while True:
        key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = data.draw(st.sampled_from([None, -1, 10**30, 0.5, True, "x", [], {}, [1], [[1]], {"a": 1}]))
        break
    store = Store(tmp_path_factory.mktemp("runs"))
    try:
        id = store.import_json(json.dumps(document).encode())
    except RequestError as e:
        assert "\n" not in str(e)
    else:
        metrics(store.get(id))
        assert store.list()[0].damaged is None


@pytest.mark.parametrize("column, value, said", [
    ("draft_seconds", 10**400, "rounds[0].draft_seconds is not a number"), ("closing", "later", "closing is none of plain, correction and bonus"),
    ("draw", [10**400], "rounds[0].draw[0] is not a number"),
], ids=["seconds", "closing", "draw"])
def test_numbers_past_every_range_and_unknown_closings_are_refused(column, value, said):
    data = export(sample_run())
    data["speculative"]["rounds"][0][column] = value
    with pytest.raises(RequestError) as e:
        run_from_bytes(json.dumps(data).encode())
    assert said in str(e.value)


def test_a_probability_past_every_range_is_refused():
    data = export(sample_run())
    data["plain"]["top"][0][1][1] = 10**400
    with pytest.raises(RequestError, match=r"run.plain.top\[0\]\[1\]\[1\] is not a number"):
        run_from_bytes(json.dumps(data).encode())
