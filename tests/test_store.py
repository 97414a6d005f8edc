"""Runs on disk: nothing is lost, nothing half written, nothing foreign trips the list."""

import dataclasses
import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cache.store import Store, new_id
from cache.summary import INDEX
from engine.analysis.metrics import metrics
from engine.errors import RequestError
from engine.trace import plain_data, to_json
from tests.sample import sample_run
from tests.stored import run_number, store, until  # noqa: F401

ROOT = Path(__file__).parent.parent


def export(run) -> dict:
    return json.loads(to_json(run))


# --- keeping

def test_a_saved_run_opens_with_the_same_numbers_in_another_process_view(store):
    """ST-10: a second session finds on disk what the first one finished."""
    run = sample_run(3, hostile=True, polish=True)
    assert store.save(run) == run.id
    other = Store(store.folder)
    assert other.get(run.id) == run and metrics(other.get(run.id)) == metrics(run)
    line, = other.list()
    figures = metrics(run)
    assert (line.acceptance, line.speedup) == (figures["acceptance_rate"], figures["speedup"])
    assert (line.id, line.gamma, line.temperature, line.tokens, line.status) == (run.id, 4, 0.7, 64, "done")
    assert (line.verifier, line.draft) == ("SmolLM2-135M-Instruct", "smollm2-draft") and line.damaged is None
    assert line.prompt and line.path == str(store.folder / f"{run.id}.json") and line.bytes == os.path.getsize(line.path)
    assert line == store.list()[0]


def test_one_sided_stopped_and_lookup_runs_are_listed_too(store):
    store.save(run_number(1, speculative=False, status="stopped"))
    store.save(run_number(2, drafter="lookup"))
    lookup, stopped = store.list()
    assert (stopped.status, stopped.acceptance, stopped.speedup, stopped.tokens) == ("stopped", None, None, 12)
    assert lookup.draft == "prompt lookup" and not stopped.damaged and not lookup.damaged


def test_fresh_ids_are_unique_and_sort_by_time():
    ids = {new_id() for _ in range(500)}
    assert len(ids) > 495 and all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", id) for id in ids)


def test_a_run_without_a_usable_id_gets_one(store):
    for bad in ("", "../up", "a/b", "x" * 65, "a\0b", ".hidden"):
        id = store.save(dataclasses.replace(sample_run(), id=bad))
        assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", id) and store.get(id).id == id
    assert not (store.folder.parent / "up.json").exists()


# --- listing

def test_a_thousand_runs_are_listed_fast_again_after_a_restart(store):
    text = to_json(run_number(0))
    store.folder.mkdir()
    for i in range(1_000):
        (store.folder / f"20261201-120000-{i:06x}.json").write_text(text)
    assert len(Store(store.folder).list()) == 1_000
    best = min(_seconds(lambda: Store(store.folder).list()) for _ in range(3))
    assert best < 1.0
    known = Store(store.folder)
    known.list()
    assert min(_seconds(known.list) for _ in range(3)) < 0.5


def _seconds(call):
    """CPU seconds, so that a busy machine does not count."""
    began = time.process_time()
    assert len(call()) == 1_000
    return time.process_time() - began


def test_the_list_reads_only_what_changed(store, monkeypatch):
    for i in range(3):
        store.save(run_number(i))
    store.list()
    monkeypatch.setattr("engine.run_files.from_json", lambda content: pytest.fail("read again"))
    assert len(store.list()) == 3 and len(Store(store.folder).list()) == 3
    monkeypatch.undo()
    Store(store.folder).rename(run_number(1).id, "named elsewhere")
    assert {line.name for line in store.list()} == {"", "named elsewhere"}


def test_a_file_replaced_with_its_old_time_and_size_is_read_again(store):
    id = store.save(dataclasses.replace(run_number(1), name="one"))
    store.list()
    path = store.folder / f"{id}.json"
    stat = path.stat()
    path.write_text(path.read_text().replace('"one"', '"two"'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns and path.stat().st_size == stat.st_size
    assert store.list()[0].name == store.get(id).name == "two"


def test_saved_runs_are_listed_without_reading_them_again(store, monkeypatch):
    for i in range(3):
        store.save(run_number(i))
    monkeypatch.setattr("engine.run_files.from_json", lambda content: pytest.fail("read again"))
    assert len(store.list()) == 3 and len(Store(store.folder).list()) == 3


def test_damaged_and_foreign_files_are_listed_with_the_reason(store):
    good = store.save(run_number(1))
    half = to_json(run_number(2))
    files = {
        "half.json": half[:len(half) // 2], "empty.json": "", "list.json": "[1, 2]", "text.json": "hello",
        "other.json": '{"kind": "something"}', "newer.json": '{"kind": "compare", "prompt": {}, "schema": 99}',
        "deep.json": "[" * 100_000, "missing.json": '{"kind": "compare", "prompt": {"text": "x"}, "schema": 1}',
        "nonsense.json": json.dumps({**export(run_number(3)), "models": {"verifier": 3}}),
        "odd.json": json.dumps({**export(run_number(3)), "plain": {"mode": "plain", "timings": [{}], "rounds": 3}}),
        "my run (1).json": half,
    }
    for name, content in files.items():
        (store.folder / name).write_text(content)
    (store.folder / "latin.json").write_bytes(b'{"kind": "\xff\xfe"}')
    (store.folder / "folder.json").mkdir()
    (store.folder / "notes.txt").write_text("not listed")
    lines = store.list()
    assert [line.id for line in lines if line.damaged is None] == [good] and lines[0].id == good
    damaged = {line.id: line.damaged for line in lines[1:]}
    assert set(damaged) == {name[:-5] for name in files} | {"latin", "folder"}
    assert all(reason.endswith(".") and "\n" not in reason for reason in damaged.values())
    assert "newer" in damaged["newer"] and "JSON" in damaged["half"] and "not a file" in damaged["folder"]
    assert {line.id: line.damaged for line in Store(store.folder).list()[1:]} == damaged, "the same from the index"
    with pytest.raises(RequestError, match="The run half cannot be opened. This is not JSON"):
        store.get("half")
    store.delete("half")
    assert "half" not in {line.id for line in store.list()}


def test_a_spoilt_or_unwritable_index_is_made_anew(store, monkeypatch):
    id = store.save(run_number(1))
    expected = store.list()
    for spoilt in ("", "[]", '{"version": 1}', '{"version": 1, "runs": {"a": 3}}', '{"version": 0, "runs": {}}',
                   '{"version": 1, "runs": {"a": [1, 2, {"notes": [], "strange": 1}]}}', "[" * 100_000):
        (store.folder / INDEX).write_text(spoilt)
        assert Store(store.folder).list() == expected and expected[0].id == id
    (store.folder / INDEX).unlink()
    (store.folder / INDEX).mkdir()
    assert Store(store.folder).list() == expected


def test_a_store_that_is_not_there_yet_is_empty_and_makes_nothing(tmp_path):
    store = Store(tmp_path / "none")
    assert store.list() == [] and not (tmp_path / "none").exists()


def test_the_store_lies_under_the_apps_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    store = Store()
    store.save(run_number(1))
    assert store.folder == tmp_path / "home" / "runs" and len(Store().list()) == 1


# --- names, trash

def test_rename_delete_undo(store):
    id = store.save(run_number(1))
    store.rename(id, "  a\nname\twith\0 <b>marks</b>  " + "x" * 500)
    name = store.get(id).name
    assert name.startswith("a name with <b>marks</b> x") and len(name) <= 120
    assert store.list()[0].name == name and dataclasses.replace(store.get(id), name="") == run_number(1)
    store.delete(id)
    assert store.list() == []
    with pytest.raises(RequestError, match="it was deleted"):
        store.get(id)
    with pytest.raises(RequestError, match="no run"):
        store.delete(id)
    store.undo(id)
    assert store.get(id).name == name and [line.id for line in store.list()] == [id]
    with pytest.raises(RequestError, match="already"):
        store.undo(id)
    store.delete(id)
    (store.trash / f"{id}.json").unlink()
    with pytest.raises(RequestError, match="not in the trash"):
        store.undo(id)


def test_the_trash_is_emptied_of_what_was_deleted_long_ago(store):
    old, recent, kept = (store.save(run_number(i)) for i in range(3))
    ancient = time.time() - 40 * 86_400
    for id in (old, recent, kept):
        os.utime(store.folder / f"{id}.json", (ancient, ancient))
    store.delete(old), store.delete(recent)
    os.utime(store.trash / f"{old}.json", (time.time() - 31 * 86_400,) * 2)
    again = Store(store.folder)
    again.undo(recent)
    assert {line.id for line in again.list()} == {recent, kept}
    with pytest.raises(RequestError):
        again.undo(old)


@pytest.mark.parametrize("id", ["../secret", "..", "a/../../secret", "/etc/passwd", "secret\0", "a\\b", "", ".", "x" * 65,
                                "%2e%2e%2fsecret", "a.json", "é", "a\n", None, 3])
def test_no_id_leads_out_of_the_folder(store, id):
    (store.folder.parent / "secret.json").write_text(to_json(run_number(1)))
    store.save(run_number(2))
    for act in (store.get, store.delete, store.undo, lambda id: store.rename(id, "x")):
        with pytest.raises(RequestError, match="not the id of a run"):
            act(id)
    assert (store.folder.parent / "secret.json").exists()


# --- the disk

def test_a_full_disk_is_one_sentence_and_leaves_the_old_run(store, monkeypatch):
    run = run_number(1)
    store.save(run)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RequestError, match="No space left on device.*free some space") as refused:
        store.save(dataclasses.replace(run, name="new"))
    assert "\n" not in str(refused.value)
    monkeypatch.undo()
    assert store.get(run.id) == run and [path.name for path in store.folder.iterdir() if path.name.endswith(".part")] == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "runs")
    with pytest.raises(RequestError, match="cannot be made.*SPECLENS_HOME"):
        store.save(run_number(1))
    with pytest.raises(RequestError, match="SPECLENS_HOME"):
        store.list()


WRITER = """
import dataclasses, sys
sys.path.insert(0, {root!r})
from cache.store import Store
from tests.sample import sample_run
store, run = Store({folder!r}), sample_run(1, tokens=400)
print("ready", flush=True)
for i in range(10**9):
    store.save(dataclasses.replace(run, id=f"run-{{i % 5}}", name=str(i)))
    store.list()
"""


def test_a_writer_killed_in_the_middle_leaves_a_readable_store(tmp_path):
    code = WRITER.format(root=str(ROOT), folder=str(tmp_path))
    for wait in (0.05, 0.11, 0.17, 0.23):
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout.readline() == "ready\n"
            until(lambda: any(tmp_path.glob("*.json")))
            time.sleep(wait)
        finally:
            writer.kill()  # -9: it cannot tidy up
            assert writer.wait(10) != 0
            writer.stdout.close()
        store = Store(tmp_path)
        lines = store.list()
        assert lines and not any(line.damaged for line in lines)
        assert all(store.get(line.id).name == line.name and len(store.get(line.id).plain.ids) == 400 for line in lines)
        assert store.save(dataclasses.replace(store.get(lines[0].id), id="run-0"))


def test_what_killed_writers_left_behind_is_swept_up_a_day_later(store):
    store.save(run_number(1))
    old, recent = store.folder / ".a.json.x.part", store.folder / ".b.json.y.part"
    for part in (old, recent):
        part.write_text("half")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    assert len(Store(store.folder).list()) == 1 and not old.exists() and recent.exists()


def test_many_threads_may_save_list_and_open_at_once(store):
    failures, together = [], threading.Barrier(8)

    def work(number):
        try:
            together.wait(10)
            for i in range(6):
                id = store.save(run_number(number * 6 + i))
                assert store.get(id).id == id
                assert id in {line.id for line in store.list()}
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and len(store.list()) == 48
    assert Store(store.folder).list() == store.list()


def test_a_run_is_plain_data_and_nothing_else_is_stored(store):
    run = run_number(1)
    store.save(run)
    assert json.loads((store.folder / f"{run.id}.json").read_text("utf-8")) == plain_data(run)


def test_runs_of_one_second_are_listed_in_the_order_they_were_written(tmp_path):
    store = Store(tmp_path)
    try:
        run = sample_run(seed=1, tokens=8)
        ids = [f"20261130-053012-{mark}" for mark in ("bbbbbb", "aaaaaa", "cccccc")]
        for id in ids:
            store.save(dataclasses.replace(run, id=id))
            time.sleep(0.02)
        assert [s.id for s in store.list()] == ids[::-1]
    finally:
        store.close()
