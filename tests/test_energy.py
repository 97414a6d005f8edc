"""Energy is measured where zeus finds a counter, and is "not available" with the reason everywhere else."""

from __future__ import annotations

import dataclasses
import sys
import types
from types import SimpleNamespace

import pytest

from engine import energy
from engine.analysis.metrics import NO_ENERGY, metrics
from engine.commands import compare as command
from engine.decoding import compare as comparing
from engine.request import Done
from engine.trace import Prompt, Settings, from_json, to_json
from tests.sample import sample_run
from tests.scripted import ScriptedModel, noise
from ui.card import card_html
from ui.card import joules as words
from ui.difference import difference_html


def measured(gpu=None, cpu=None, dram=None, chip=None):
    return SimpleNamespace(gpu_energy=gpu or {}, cpu_energy=cpu, dram_energy=dram, soc_energy=chip)


@pytest.fixture()
def zeus(monkeypatch):
    """zeus(counted): a stand-in for the package whose windows measured `counted`; an exception is raised by its monitor."""
    def install(counted):
        opened = []

        class Monitor:
            def __init__(self):
                if isinstance(counted, Exception):
                    raise counted

            def begin_window(self, name, sync_execution=True):
                assert name not in opened and sync_execution is False
                opened.append(name)

            def end_window(self, name, sync_execution=True):
                assert name in opened and sync_execution is False
                return counted

        module = types.ModuleType("zeus.monitor")
        module.ZeusMonitor = Monitor
        monkeypatch.setitem(sys.modules, "zeus", types.ModuleType("zeus"))
        monkeypatch.setitem(sys.modules, "zeus.monitor", module)
        return opened

    energy.meter.cache_clear()
    yield install
    energy.meter.cache_clear()


@pytest.mark.parametrize("counted, joules", [
    (measured(gpu={0: 2.5, 1: 1.0}), 3.5), (measured(cpu={0: 4.0}, dram={0: 0.5}), 4.5), (measured(), None),
    (measured(chip=SimpleNamespace(cpu_total_mj=1500, gpu_mj=2500, dram_mj=None, ane_mj=0)), 4.0)])
def test_all_counters_are_added_up_in_joules(counted, joules):
    assert energy.joules(counted) == joules


def test_windows_are_measured_one_inside_the_other(zeus):
    opened = zeus(measured(cpu={0: 4.0}))
    meter = energy.meter()
    assert meter.available and meter.why == "" and energy.meter() is meter
    outer, inner = meter.begin(), meter.begin()
    assert (meter.end(inner), meter.end(outer)) == (4.0, 4.0) and len(set(opened)) == 3  # one was the meter's own trial


@pytest.mark.parametrize("counted, said", [(measured(), "no energy counter that may be read"), (PermissionError("rapl"), "PermissionError")])
def test_a_machine_without_counters_says_so(zeus, counted, said):
    zeus(counted)
    meter = energy.meter()
    assert not meter.available and said in meter.why and meter.why.startswith("Energy is not available: ") and meter.why.endswith(".")
    assert meter.end(meter.begin()) is None


def test_without_zeus_the_reason_names_the_way_out(zeus, monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.setitem(sys.modules, "zeus.monitor", None)
    assert "pip install zeus" in energy.meter().why and energy.meter().begin() is None


def test_a_counter_that_stops_answering_ends_no_run():
    class Broken:
        def begin_window(self, *_, **how):
            raise OSError("gone")

        end_window = begin_window

    meter = energy.Meter(Broken())
    assert meter.begin() is None and meter.end("an open window") is None


class Counter(energy.Meter):
    """Every window takes `joules`; remembers those that are open."""

    def __init__(self, joules):
        super().__init__()
        self.joules, self.open, self.closed = joules, [], 0

    def begin(self):
        self.open.append(f"window {len(self.open) + self.closed}")
        return self.open[-1]

    def end(self, window):
        self.open.remove(window)
        self.closed += 1
        return self.joules


def compared(repeats=2):
    """A comparison of two scripted models, eight tokens a side."""
    verifier, draft = ScriptedModel(noise(6, 1), 6), ScriptedModel(noise(6, 2), 6)
    settings = Settings(gamma=2, max_tokens=8, repeats=repeats)
    *_, last = comparing.compare(verifier, draft, Prompt("t1 t2", (1, 2)), settings, lambda: False, [])
    assert isinstance(last, Done)
    return last.run


def test_each_repeat_of_each_side_is_measured_and_the_figures_say_it(monkeypatch):
    counter = Counter(16.0)
    monkeypatch.setattr(energy, "meter", lambda: counter)
    run = compared()
    assert [t.joules for side in (run.plain, run.speculative) for t in side.timings] == [16.0] * 4
    assert counter.open == [] and counter.closed == 6  # two of them were the warm-up's
    assert from_json(to_json(run)) == run and run.machine.energy == ""
    figures = metrics(run)
    assert figures["plain_joules_per_token"] == figures["speculative_joules_per_token"] == 2.0
    assert "2.0 J<small>against 2.0 J verifier-only</small>" in card_html(run, figures)
    assert "energy per token  2 J speculative, 2 J verifier-only" in command.describe(run, figures)


def test_a_decode_that_is_left_or_fails_closes_its_window(monkeypatch):
    counter = Counter(1.0)
    monkeypatch.setattr(energy, "meter", lambda: counter)
    verifier = ScriptedModel(noise(6, 1), 6)
    rounds = comparing.decode(verifier, None, (1, 2), Settings(max_tokens=8))
    next(rounds)
    assert len(counter.open) == 1
    rounds.close()
    assert counter.open == []


def test_energy_is_the_sum_over_the_repeats_that_were_measured():
    run = sample_run(tokens=40, repeats=3)
    counted = [dataclasses.replace(t, joules=j) for t, j in zip(run.plain.timings, (20.0, None, 60.0))]
    figures = metrics(dataclasses.replace(run, plain=dataclasses.replace(run.plain, timings=tuple(counted))))
    assert figures["plain_joules_per_token"] == 1.0  # 80 J over the 80 tokens of two repeats
    assert figures["speculative_joules_per_token"] is None and figures["reasons"]["speculative_joules_per_token"] == NO_ENERGY


def test_without_zeus_a_run_has_no_joules_and_the_card_says_why(zeus, monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.setitem(sys.modules, "zeus.monitor", None)
    run = compared(repeats=1)
    figures = metrics(run)
    assert run.plain.timings[0].joules is None and figures["plain_joules_per_token"] is None
    assert figures["reasons"]["speculative_joules_per_token"] == run.machine.energy == energy.meter().why
    assert "the package zeus is not installed" in card_html(run, figures) and "n/a</abbr><small>not measured</small>" in card_html(run, figures)
    assert "n/a. Energy is not available: the package zeus" in command.describe(run, figures)


def test_two_runs_beside_each_other_say_their_energy():
    runs = [sample_run(tokens=40, repeats=1)] * 2
    spent = [dataclasses.replace(runs[0].plain, timings=(dataclasses.replace(runs[0].plain.timings[0], joules=j),)) for j in (40.0, 60.0)]
    runs = [dataclasses.replace(r, plain=g) for r, g in zip(runs, spent)]
    html = difference_html(runs, [metrics(r) for r in runs])
    assert "verifier-only, J/token</th><td>1</td><td>1.5</td><td>+50 %</td>" in html
    assert "speculative, J/token</th><td>n/a</td><td>n/a</td><td></td>" in html


@pytest.mark.parametrize("joules, said", [(1.94, "1.9 J"), (12.0, "12.0 J"), (0.0523, "0.052 J")])
def test_joules_keep_two_digits(joules, said):
    assert words(joules) == said
