"""The Start page without a browser: the replay and its clock."""

from __future__ import annotations

import pytest

from cache import recorded
from engine.trace import to_json
from tests.sample import sample_run
from tests.screens import app, button, engine, finished, healthy, page_html  # noqa: F401
from ui import controls, replay


def test_start_without_a_recording_says_so_and_works(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    at = app("start")
    assert "No recorded run is in this copy" in page_html(at)


def test_start_replays_at_recorded_times_and_runs_live(engine, monkeypatch, tmp_path):
    run = sample_run(seed=3, tokens=40, repeats=1)
    (tmp_path / "compare.json").write_text(to_json(run), encoding="utf-8")
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    at = app("start")
    assert "Recorded on 2026-12-01" in page_html(at) and "2-core x86-64" in page_html(at)
    button(at, "start.play").click()
    healthy(at.run())
    for _ in range(2):
        healthy(button(at, "start.step").click().run())
    assert "Round " in page_html(at)
    healthy(button(at, "start.live").click().run())
    finished(at)
    assert len(engine.asked) == 1 and engine.asked[0] == controls.request_of(run)


def test_replay_shows_a_round_when_its_recorded_time_has_come():
    from ui.grow import at, moments
    whole = sample_run(seed=4, tokens=40, repeats=1)
    ends = moments(whole)
    before, after = at(whole, ends[3] - 1e-6), at(whole, ends[3])
    assert len(before.speculative.rounds) == 3 and len(after.speculative.rounds) == 4
    assert after.speculative.ids == whole.speculative.ids[:len(after.speculative.ids)]
    assert len(after.speculative.entropy) == len(after.speculative.ids)
    assert at(whole, 1e9).speculative == whole.speculative


def test_the_tape_moves_with_the_clock_times_its_speed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(replay.time, "monotonic", lambda: now[0])
    tape = replay.Tape(4.0)
    tape.play()
    now[0] += 1.0
    assert tape.seconds == pytest.approx(1.0)
    tape.set_speed(2.0)
    now[0] += 1.0
    assert tape.seconds == pytest.approx(3.0) and tape.playing
    now[0] += 5.0
    assert tape.seconds == 4.0 and not tape.playing
    tape.play()
    assert tape.seconds == 0.0
