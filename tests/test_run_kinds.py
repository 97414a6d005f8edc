"""Runs of every kind: JSON both ways, arrays beside it or inside it, the store, the list, import."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from cache.importing import run_from_bytes
from cache.summary import summarise
from engine import run_files
from engine.errors import RequestError
from engine.trace import (EntropyItem, EntropyRun, Prompt, SinkItem, UagItem, UagResult, UagRun, arrays, arrays_of, from_json, to_json,
                          with_arrays)
from tests.sample import sample_run
from tests.sample_sinks import sample_item, sample_sinks
from tests.stored import store  # noqa: F401


def entropy_run():
    run = sample_run(tokens=20)
    items = (EntropyItem(run.prompt, "p1", "story", run.plain), EntropyItem(Prompt("x", ()), "p2", refused="The prompt is too long."))
    return EntropyRun(run.id, run.created, items, run.settings, {"model": run.models["verifier"]}, run.machine, run.tokens, run.special)


def uag_run():
    run = sample_run(tokens=20)
    items = (UagItem(run.prompt, "p1", "story", run.plain, (UagResult("context", 4, run.speculative),)),)
    return UagRun(run.id, run.created, items, ("context",), (4,), 5, run.settings, run.models, run.machine, run.tokens, {}, run.special)


KINDS = {"compare": lambda: sample_run(tokens=20), "sinks": sample_sinks, "entropy": entropy_run, "uag": uag_run}


def same_arrays(a, b):
    a, b = arrays_of(a), arrays_of(b)
    assert a.keys() == b.keys()
    return all(np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_every_kind_is_saved_listed_opened_renamed_deleted_and_brought_back(store, kind):
    run = KINDS[kind]()
    id = store.save(run)
    again = type(store)(store.folder).get(id)
    assert same_arrays(again, run) and to_json(again) == to_json(run)
    store.rename(id, "a name")
    (line,) = store.list()
    assert (line.kind, line.name, line.damaged, line.verifier) == (kind, "a name", None, "SmolLM2-135M-Instruct")
    assert line == dataclasses.replace(summarise(store.get(id), store.folder / f"{id}.json", line.bytes), name="a name")
    assert same_arrays(type(store)(store.folder).get(id), run)
    store.delete(id)
    assert store.list() == [] and list(store.folder.glob("*.safetensors")) == []
    store.undo(id)
    assert same_arrays(store.get(id), run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_every_kind_can_be_exported_and_imported(store, kind):
    run = KINDS[kind]()
    id = store.import_json(to_json(run, arrays=True).encode())
    assert same_arrays(store.get(id), run)
    assert to_json(dataclasses.replace(store.get(id), id=run.id)) == to_json(run)


def test_arrays_that_went_missing_leave_the_run_readable_with_a_note(store):
    id = store.save(sample_sinks())
    (store.folder / f"{id}.safetensors").unlink()
    run = type(store)(store.folder).get(id)
    assert run.items[0].sums.received is None and run.notes[-1] == run_files.MISSING


def test_a_run_of_refused_prompts_misses_no_arrays(store):
    id = store.save(sample_sinks(SinkItem(Prompt("y", ()), "b", refused="The prompt is empty.")))
    assert type(store)(store.folder).get(id).notes == ()


@pytest.mark.parametrize("damage", [b"", b"\x00" * 7, b"\xff" * 400, b"\x10\x00\x00\x00\x00\x00\x00\x00{}              ", "cut"])
def test_damaged_arrays_are_named_in_one_sentence(store, damage):
    id = store.save(sample_sinks())
    path = store.folder / f"{id}.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:len(whole) // 2] if damage == "cut" else damage)
    fresh = type(store)(store.folder)
    if damage.__class__ is bytes and damage.endswith(b" "):  # a sound file that holds nothing
        assert fresh.get(id).items[0].sums.received is None
        return
    with pytest.raises(RequestError, match=r"The arrays in .*\.safetensors cannot be read"):
        fresh.get(id)


def test_a_refused_prompt_of_a_set_keeps_its_place():
    run = sample_sinks(sample_item(label="a"), SinkItem(Prompt("y", ()), "b", refused="The prompt is empty."), sample_item(label="c", seed=3))
    assert list(arrays_of(run)) == [f"items.{i}.sums.{name}" for i in (0, 2) for name in ("received", "near", "near_mean")]
    back = with_arrays(from_json(to_json(run)), arrays_of(run))
    assert [item.label for item in back.items] == ["a", "b", "c"] and same_arrays(back, run)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.sampled_from(["<f4", "<f2"]))
def test_arrays_come_back_from_text_as_they_were(shape, kind):
    array = np.random.default_rng(0).random(shape).astype(kind)
    back = arrays.from_text(json.loads(json.dumps(arrays.to_text({"a": array}))))["a"]
    assert back.dtype == array.dtype and np.array_equal(back, array)


@pytest.mark.parametrize("change, said", [
    (lambda d: d["items"][0].update(structural=[True]), "structural has 1 entries"),
    (lambda d: d["items"][0]["sums"].update(windows=[None]), "windows has 1 entries"),
    (lambda d: d["arrays"]["items.0.sums.near_mean"].update(shape=[1, 1]), "does not have the size"),
    (lambda d: d["arrays"].pop("items.0.sums.received"), "received does not fit"),
    (lambda d: d["models"].clear(), "which model ran"),
    (lambda d: d["tokens"].clear(), "bytes of token"),
    (lambda d: d.update(kind="seance"), "not a SpecLens run"),
    (lambda d: d.update(items=7), "damaged|not a list"),
])
def test_an_impossible_sinks_run_is_refused_in_one_sentence(change, said):
    data = json.loads(to_json(sample_sinks(), arrays=True))
    change(data)
    with pytest.raises(RequestError, match=said) as e:
        run_from_bytes(json.dumps(data).encode())
    assert "\n" not in str(e.value)
