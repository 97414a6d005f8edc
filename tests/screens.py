"""The pages without a browser: the app under Streamlit's own test driver, and a scripted task in place of the engine."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import cache
from engine.errors import RequestError
from engine.request import Done, Stage, Step
from tests.sample import sample_run
from ui import jobs

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> a<b i 3 > 2 & koniec </span>"
DOLLARS = "Bilet kosztuje $5, a obiad $12 __razem__ $17."


class SlowTask:
    """Stands in for the engine: counts the runs it was asked for and waits before each round until it is let go on."""

    def __init__(self):
        self.asked, self.gate = [], threading.Event()
        self.gate.set()

    def __call__(self, asked):
        def go(stop):
            self.asked.append(asked)
            whole = sample_run(seed=len(self.asked), tokens=min(asked.settings.max_tokens, 48), gamma=asked.settings.gamma, repeats=1,
                               temperature=asked.settings.sampling.temperature, hostile="<script>" in asked.prompt)
            if asked.prompt.startswith("refuse:"):
                raise RequestError(asked.prompt)
            yield Stage("Warm-up")
            sides = {}
            for side in ("plain", "speculative"):
                yield Stage(side, side)
                rounds = []
                for one in getattr(whole, side).rounds:
                    while not self.gate.wait(0.01) and not stop():
                        pass
                    if stop():
                        break
                    rounds.append(one)
                    yield Step(side, 1, one, {i: whole.tokens[i] for i in {*one.proposed, *one.emitted}})
                kept = tuple(i for r in rounds for i in r.emitted)
                sides[side] = dataclasses.replace(getattr(whole, side), rounds=tuple(rounds), ids=kept,
                                                  finish="stopped" if stop() else "length")
            models = {role: dataclasses.replace(facts, name=getattr(asked, role), asked_device=asked.device, asked_dtype=asked.dtype)
                      for role, facts in whole.models.items()}
            prompt = dataclasses.replace(whole.prompt, text=asked.prompt, system=asked.system, raw=asked.raw)
            yield Done(dataclasses.replace(whole, id="", prompt=prompt, settings=asked.settings, models=models,
                                           status="stopped" if stop() else "done", **sides))
        return go


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path))
    st.cache_resource.clear()
    task = SlowTask()
    monkeypatch.setattr(jobs, "task", task)
    yield task
    task.gate.set()
    cache.worker().close(20)
    cache.store().close()
    st.cache_resource.clear()


def app(page: str = "compare", **query: str) -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    at.run()
    at.query_params.update(query)
    if page != "start":
        at.switch_page(f"pages/{page}.py")
    return healthy(at.run())


def healthy(at: AppTest) -> AppTest:
    assert not at.exception, at.exception
    return at


def button(at: AppTest, key: str):
    return next(b for b in at.button if b.key == key)


def page_html(at: AppTest) -> str:
    return "\n".join(h.body for h in at.html if not h.body.startswith("<style"))


def finished(at: AppTest) -> AppTest:
    """Wait for the worker to be idle, then draw the page as the poll would."""
    for job in cache.worker().jobs():
        assert job.wait(30)
    return healthy(at.run())


def run(at: AppTest, **values) -> AppTest:
    for key, value in values.items():
        widget(at, key).set_value(value)
    healthy(at.run())
    return healthy(button(at, "compare.run").click().run())


def widget(at: AppTest, name: str):
    kinds = (at.number_input, at.text_area, at.selectbox, at.checkbox, at.button_group)
    return next(w for kind in kinds for w in kind if w.key == f"compare.{name}")


def run_of(at: AppTest) -> str:
    return at.query_params["run"][0] if isinstance(at.query_params["run"], list) else at.query_params["run"]


def labelled(at: AppTest, label: str):
    return next(b for b in at.button if b.label == label)
