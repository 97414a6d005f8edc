"""Whatever a file holds: it is refused in one sentence, or its page draws and every export can be made; and every run can be deleted."""

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cache
from cache.importing import LIMIT_MB, run_from_bytes
from engine import run_files
from engine.errors import RequestError
from engine.trace import EntropyItem, EntropyRun, from_json, plain_data, to_json
from tests.sample import sample_run
from tests.sample_sinks import sample_item, sample_sinks
from tests.sample_uag import sample_uag
from tests.screens import app, engine, finished, healthy, labelled, page_html  # noqa: F401
from ui import importing, kinds

ROOT = Path(__file__).resolve().parent.parent
BAD = "a\ud800b"
PAGES = {"compare": "compare", "sinks": "sinks", "entropy": "entropy", "uag": "polish"}


def of_kind(kind: str):
    run = sample_run(tokens=12, repeats=1)
    return {"compare": lambda: run, "sinks": lambda: sample_sinks(sample_item(24)), "uag": lambda: sample_uag(1, ("naive", "tli"), (2,)),
            "entropy": lambda: EntropyRun("20261201-120000-00e170", run.created, (EntropyItem(run.prompt, "p1", "story", run.plain),), run.settings,
                                          {"model": run.models["verifier"]}, run.machine, run.tokens)}[kind]()


DOCUMENTS = {kind: json.loads(to_json(of_kind(kind), arrays=True)) for kind in PAGES}


def every(value, change):
    """The same JSON with `change` applied to every leaf."""
    if isinstance(value, dict):
        return {k: every(v, change) for k, v in value.items()}
    return [every(v, change) for v in value] if isinstance(value, list) else change(value)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(sorted(PAGES)), data=st.data())
def test_a_run_of_any_kind_with_anything_changed_is_refused_in_a_sentence_or_everything_can_be_made_of_it(kind, data):
    document = json.loads(json.dumps(DOCUMENTS[kind]))
    for _ in range(data.draw(st.integers(1, 2))):
        at = document
        while True:
            key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, min(len(at), 3) - 1))
            if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
                at = at[key]
                continue
            at[key] = data.draw(st.sampled_from([None, -1, 0, 2, 2**62, 10**30, 0.5, -0.5, 1e308, -1e308, float("nan"), float("inf"), True, "", "x",
                                                 BAD, "=1", [], {}, [1], [[1]], {"a": 1}, [at[key], at[key]]]))
            break
    try:
        run = run_from_bytes(json.dumps(document).encode())
        kinds.check(run)
    except RequestError as e:
        assert "\n" not in str(e) and str(e).endswith(".") and len(str(e)) < 400
        return
    take = kinds.takeaway(run)
    assert take.caption.encode() and json.loads(take.json())["kind"] == kind
    assert from_json(take.json()).items == run.items if kind == "uag" else True


@pytest.mark.parametrize("kind", sorted(PAGES))
def test_numbers_that_overflow_are_refused_at_import_or_all_is_made_of_them(kind):
    for number in (1e308, -1e308, 2**62, 0, -1):
        changed = every({**DOCUMENTS[kind], "arrays": {}}, lambda v: (number if isinstance(v, float) else v) if not isinstance(v, bool) else v)
        try:
            run = run_from_bytes(json.dumps({**changed, "schema": 1}).encode())
            kinds.check(run)
        except RequestError as e:
            assert str(e).endswith(".")
        else:
            kinds.takeaway(run).html()


@pytest.mark.parametrize("kind", sorted(PAGES))
def test_half_a_surrogate_pair_in_any_text_is_refused_or_shown_replaced(engine, kind):
    closed = ("status", "finish", "mode", "kind", "closing", "strategy", "drafter", "cause", "cut", "created", "id")

    def spoilt(value, name=""):
        if isinstance(value, dict):
            return {k: v if k in ("tokens", "draft_tokens", "arrays") else spoilt(v, k) for k, v in value.items()}
        if isinstance(value, list) and name not in ("strategies",):
            return [spoilt(v, name) for v in value]
        return BAD if isinstance(value, str) and name not in closed else value

    (cache.store().folder).mkdir(parents=True, exist_ok=True)
    document = spoilt(DOCUMENTS[kind])
    kept = cache.store().import_json(json.dumps(document).encode(), kinds.check)
    (cache.store().folder / "planted.json").write_text(json.dumps(document))
    for id in (kept, "planted"):
        shown = page_html(app(PAGES[kind], run=id))
        assert "\ud800" not in shown and "a?b" in shown
    assert len(app("runs").dataframe[0].value) == 2


@pytest.mark.parametrize("field", ["status", "finish", "mode", "closing", "drafter"])
def test_a_field_of_a_closed_set_takes_only_its_words(engine, field):
    document = json.loads(json.dumps(DOCUMENTS["compare"]))
    {"status": document, "finish": document["plain"], "mode": document["plain"], "closing": document["plain"]["rounds"][0],
     "drafter": document["settings"]}[field][field] = BAD
    with pytest.raises(RequestError, match=f"{field} is none of"):
        run_from_bytes(json.dumps(document).encode())
    with pytest.raises(ValueError, match=f"{field} is none of"):
        from_json(json.dumps(document))


def test_a_planted_run_whose_figures_overflow_is_said_to_be_damaged_and_can_be_deleted(engine):
    folder = cache.store().folder
    folder.mkdir(parents=True, exist_ok=True)
    for kind in PAGES:
        huge = every({k: v for k, v in DOCUMENTS[kind].items() if k != "arrays"}, lambda v: 1e308 if isinstance(v, float) else v)
        (folder / f"planted-{kind}.json").write_text(json.dumps(huge))
        assert "Traceback" not in page_html(app(PAGES[kind], run=f"planted-{kind}"))
    at = app("start")
    at.session_state["runs.chosen"] = [f"planted-{kind}" for kind in PAGES]
    healthy(at.switch_page("pages/runs.py").run())
    healthy(labelled(at, f"Delete {len(PAGES)}").click().run())
    assert not cache.store().list()


@pytest.mark.parametrize("kind", sorted(PAGES))
def test_what_the_command_line_writes_can_be_imported(kind):
    from engine.analysis.metrics import metrics
    from engine.analysis.uag import figures
    from engine.attention.view import view
    from engine.commands import compare, entropy, sinks, uag

    run = of_kind(kind)
    report = {"compare": lambda: {**plain_data(run), "metrics": plain_data(metrics(run))}, "entropy": lambda: entropy.report(run),
              "uag": lambda: uag.report(run, figures(run)), "sinks": lambda: sinks.report(run, [view(i) for i in run.items], alone=True)}[kind]()
    taken = run_from_bytes(json.dumps(report).encode())
    kinds.check(taken)
    if kind == "sinks":
        assert taken.notes[-1] == run_files.MISSING and taken.items[0].prompt == run.items[0].prompt and taken.items[0].sums.received is None
        again = run_from_bytes(json.dumps(sinks.report(run, [view(i) for i in run.items], alone=False)).encode())
        assert plain_data(again) == plain_data(taken)
    else:
        assert taken == run
    assert compare.report


def test_the_limit_is_said_once():
    server = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["server"]
    assert server["maxUploadSize"] == LIMIT_MB and f"up to {LIMIT_MB} MB" in importing.HELP


def test_files_are_read_by_the_worker_each_said_what_became_of_it(engine):
    good, bad = to_json(sample_run(seed=3)).encode(), b"{"
    at = app("runs")
    at.session_state["runs.said.job"] = None
    job = cache.worker().find(_started([("good.json", good), ("<b>.json", bad)]))
    assert job.wait(60) and job.status == "done" and job.request.files == []
    assert [kind for _, kind in job.request.said] == ["note", "error"]
    at.session_state["runs.said.job"] = job.id
    healthy(at.run())
    assert "good.json is imported." in page_html(at) and "&lt;b&gt;.json: This file is not JSON" in page_html(at)
    assert [s.id for s in cache.store().list()] == [sample_run(seed=3).id]


def _started(files) -> str:
    asked, store = importing.ImportRequest(files), cache.store()
    return cache.worker().submit(asked, lambda control: importing._take_in(asked, store, control), "Import", None).id


def test_a_large_file_takes_less_than_five_times_its_size_in_memory(tmp_path):
    code = f"""
import dataclasses, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.sample import sample_run
from engine.trace import to_json
open({str(tmp_path / "run.json")!r}, "w").write(to_json(sample_run(tokens=12_000, polish=True)))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from cache.store import Store
from ui import kinds
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before, heard = peak(), []
content = open({str(tmp_path / "run.json")!r}, "rb").read()
Store({str(tmp_path / "runs")!r}).import_json(content, kinds.check, heard.append)
assert heard == sorted(heard) and len(heard) > 3, heard
print((peak() - before) / len(content))
"""
    if Path("/proc/self/status").exists():
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
        assert float(out) < 5, out
