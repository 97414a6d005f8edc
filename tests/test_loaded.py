"""Loaded models: once each, freed in time, never while they are in use."""

import dataclasses
import gc
import threading
import time
import weakref

import psutil
import pytest

import cache
import cache.loaded  # noqa: F401  (its import must not take the function's place)
from cache.loaded import Loaded, fingerprint, memory_shortfall
from engine.errors import RequestError
from engine.request import Done
from tests.sample import sample_run

FACTS = sample_run().models["verifier"]


class Model:
    def __init__(self, name, size=100, device="cpu"):
        self.facts = dataclasses.replace(FACTS, name=name, title=name.upper(), bytes=size, device=device)
        self.closed = 0

    def close(self):
        self.closed += 1


class Loader:
    """Counts its loads and remembers its models weakly. Names in `broken` cannot be loaded."""

    def __init__(self, seconds=0.0, size=100, broken=()):
        self.seconds, self.size, self.broken = seconds, size, broken
        self.calls, self.models = [], []

    def __call__(self, name, backend, device, dtype):
        self.calls.append((name, backend, device, dtype))
        time.sleep(self.seconds)
        if name in self.broken:
            raise RequestError(f"There is no model {name}; choose another.")
        model = Model(name, self.size)
        self.models.append(weakref.ref(model))
        return model


def make(loader, **how):
    return Loaded(loader, **{"source": lambda name: (name, 0, 0), "shortfall": lambda *_: 0, **how})


def test_three_reruns_load_once():
    loader = Loader()
    loaded = make(loader)
    first, second, third = (loaded.get("a") for _ in range(3))
    assert first is second is third and loader.calls == [("a", "torch", "auto", "auto")]


def test_two_sessions_at_once_cause_one_load():
    loader = Loader(seconds=0.5)
    loaded, got = make(loader), []
    sessions = [threading.Thread(target=lambda: got.append(loaded.get("a"))) for _ in range(2)]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join(10)
    assert len(loader.calls) == 1 and len(got) == 2 and got[0] is got[1]


def test_a_switch_and_back_frees_the_other_model_where_one_is_the_limit():
    loader = Loader()
    loaded = make(loader, limit=1)
    for name in ("a", "b", "a"):
        assert loaded.get(name).facts.name == name
    gc.collect()
    assert [ref() is None for ref in loader.models] == [True, True, False]
    assert len(loader.calls) == 3 and [row.name for row in loaded.peek()] == ["a"]


@pytest.mark.parametrize("change", [{"dtype": "float32"}, {"device": "cpu"}, {"backend": "mlx"}])
def test_another_dtype_device_or_backend_loads_once_more(change):
    loader = Loader()
    loaded = make(loader)
    loaded.get("a")
    assert loaded.get("a", **change) is loaded.get("a", **change) is not loaded.get("a")
    assert len(loader.calls) == 2


def test_the_least_recently_used_is_closed_first_and_four_stay():
    loader = Loader()
    loaded = make(loader)
    a = loaded.get("a")
    for name in "bcd":
        loaded.get(name)
    loaded.get("a")
    loaded.get("e")
    assert [row.name for row in loaded.peek()] == ["e", "a", "d", "c"] and a.closed == 0
    gc.collect()
    assert loader.models[1]() is None, "b was the one not used for longest"


def test_the_memory_budget_counts_bytes_of_weights():
    loader = Loader(size=40)
    loaded = make(loader, budget=100)
    models = [loaded.get(name) for name in "abc"]
    assert [model.closed for model in models] == [1, 0, 0]
    assert [(row.name, row.title, row.bytes, row.busy) for row in loaded.peek()] == [("c", "C", 40, False), ("b", "B", 40, False)]


def test_the_budget_is_half_of_the_machine_unless_given():
    half = psutil.virtual_memory().total // 2
    loader = Loader(size=half // 2 + 1)
    loaded = make(loader)
    assert [loaded.get(name).closed for name in "ab"] == [0, 0] and [row.name for row in loaded.peek()] == ["b"]


def test_models_in_use_are_never_closed_not_even_over_the_limit():
    loader = Loader()
    loaded = make(loader, limit=1)
    with loaded.using() as get:
        verifier, draft = get("a"), get("b")
        assert verifier is get("a") and (verifier.closed, draft.closed) == (0, 0)
        assert [row.busy for row in loaded.peek()] == [True, True]
        loaded.free()
        assert (verifier.closed, draft.closed) == (0, 0)
    assert [row.name for row in loaded.peek()] == ["a"] and (verifier.closed, draft.closed) == (0, 1)


def test_a_broken_job_lets_its_models_go():
    loaded = make(Loader(), limit=1)
    with pytest.raises(ZeroDivisionError), loaded.using() as get:
        get("a")
        1 / 0
    assert [row.busy for row in loaded.peek()] == [False]
    loaded.free()
    assert loaded.peek() == []


def test_a_failed_load_keeps_the_others():
    loader = Loader(broken={"bad"})
    loaded = make(loader, limit=1)
    a = loaded.get("a")
    with pytest.raises(RequestError, match="no model bad"):
        loaded.get("bad")
    assert loaded.get("a") is a and a.closed == 0 and len(loader.calls) == 2
    loader.broken = set()
    assert loaded.get("bad").facts.name == "bad", "a failure is not remembered"


def test_idle_models_make_room_only_where_that_suffices():
    loader, missing = Loader(size=100), {"b": 0, "c": 150, "d": 1_000}
    loaded = make(loader, shortfall=lambda name, device, dtype, backend: missing.get(name, 0))
    a, b = loaded.get("a"), loaded.get("b")
    loader.broken = {"d"}
    with pytest.raises(RequestError):
        loaded.get("d")
    assert (a.closed, b.closed) == (0, 0), "closing both would not have made enough room"
    with loaded.using() as get:
        get("a")
        loaded.get("c")
        assert (a.closed, b.closed) == (0, 0), "of 150 bytes only 100 are idle"
    loaded.free()
    a, b = loaded.get("a"), loaded.get("b")
    loaded.get("c")
    assert (a.closed, b.closed) == (1, 1)


def test_the_memory_a_load_needs_is_asked_of_its_own_engine():
    asked = []
    loaded = make(Loader(), shortfall=lambda *how: asked.append(how) or 0)
    loaded.get("a", "mlx", "cpu", "float32")
    loaded.get("a")
    assert asked == [("a", "cpu", "float32", "mlx"), ("a", "auto", "auto", "torch")]


def test_replaced_weights_load_anew_and_the_old_ones_go():
    stamp = [1]
    loader = Loader()
    loaded = make(loader, source=lambda name: (name, stamp[0], 0))
    old = loaded.get("a")
    stamp[0] = 2
    new = loaded.get("a")
    assert new is not old and old.closed == 1 and loaded.get("a") is new and len(loaded.peek()) == 1


def test_a_download_or_conversion_during_the_load_is_no_change_of_the_weights():
    places = {"hub": [None], "gguf": [("model.gguf", 1, 1)]}

    def load(name, **how):
        places[name] = [("converted/" + name, 5, 5)]
        return Model(name)

    calls = []
    loaded = make(lambda name, **how: calls.append(name) or load(name), source=lambda name: places[name][0])
    assert loaded.get("hub") is loaded.get("hub") and loaded.get("gguf") is loaded.get("gguf") and calls == ["hub", "gguf"]


def test_the_list_does_not_wait_for_a_load():
    started, gate = threading.Event(), threading.Event()

    def load(name, **how):
        if name == "slow":
            started.set()
            assert gate.wait(10)
        return Model(name)

    loaded = make(load)
    loaded.get("a")
    thread = threading.Thread(target=loaded.get, args=("slow",))
    thread.start()
    assert started.wait(10) and [row.name for row in loaded.peek()] == ["a"]
    gate.set()
    thread.join(10)
    assert [row.name for row in loaded.peek()] == ["slow", "a"]


@pytest.mark.parametrize("device, emptied", [("cpu", []), ("cuda:0", ["cuda"]), ("mps", ["mps"])])
def test_the_devices_own_cache_is_emptied_after_a_close(monkeypatch, device, emptied):
    import torch
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: calls.append("mps"))
    loaded = make(lambda name, **how: Model(name, device=device))
    loaded.get("a")
    loaded.free()
    assert calls == emptied


def test_a_model_that_fails_to_close_is_let_go_all_the_same(caplog):
    class Stuck(Model):
        def close(self):
            raise OSError("stuck")

    loaded = make(lambda name, **how: Stuck(name))
    ref = weakref.ref(loaded.get("a"))
    loaded.free()
    gc.collect()
    assert ref() is None and "could not be closed" in caplog.text


def test_the_fingerprint_follows_a_folders_weights(tmp_path):
    assert fingerprint(str(tmp_path / "none")) is None and fingerprint("a\0b") is None and fingerprint("") is None
    (tmp_path / "config.json").write_text("{}")
    assert fingerprint(str(tmp_path)) is None, "a folder without weights is no model"
    assert memory_shortfall(str(tmp_path), "cpu", "auto", "torch") == 0


def test_the_process_has_one_of_each_whoever_asks(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path))
    found, together = [], threading.Barrier(6)

    def ask():
        together.wait(10)
        found.append((cache.worker(), cache.store(), cache.loaded()))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 6 and len({tuple(map(id, three)) for three in found}) == 1
    assert found[0][1].folder == tmp_path / "runs"


def test_the_processes_worker_keeps_its_runs_in_the_processes_store(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path))
    job = cache.worker().submit(None, lambda stop: iter([Done(sample_run(7))]), "Compare")
    assert job.wait(30)
    assert job.snapshot().error is None and [line.id for line in cache.store().list()] == [job.run_id] == [job.id]
    assert "ScriptRunContext" not in caplog.text


def page():
    import streamlit as st

    import cache
    st.session_state.setdefault("models", []).append(cache.loaded().get("counted"))
    st.button("again")


def test_reruns_and_a_second_session_of_a_page_load_once(monkeypatch):
    from streamlit.testing.v1 import AppTest
    loader = Loader()
    kept = make(loader)
    monkeypatch.setattr(cache, "Loaded", lambda: kept)
    import streamlit as st
    st.cache_resource.clear()
    try:
        first = AppTest.from_function(page).run()
        for _ in range(3):
            first.button[0].click().run()
        second = AppTest.from_function(page).run()
        assert not first.exception and not second.exception
        models = [*first.session_state["models"], *second.session_state["models"]]
        assert len(models) == 5 and len(set(map(id, models))) == 1 and len(loader.calls) == 1
    finally:
        st.cache_resource.clear()
