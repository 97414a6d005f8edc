"""Energy is measured where zeus finds a counter, and is "not available" with the reason everywhere else."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace

import pytest

from engine import energy


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
