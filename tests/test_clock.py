"""A decode keeps the times of its passes and knows who else used the processor."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from engine.decoding import clock
from engine.decoding.clock import Load, LoadMeter
from engine.trace import Settings
from tests.decoded import decoded
from tests.scripted import ScriptedModel, noise

torch.set_num_threads(1)
WIDTH = 12


def slow(script, seconds):
    def slowly(held):
        time.sleep(seconds)
        return script(held)
    return slowly


@pytest.mark.parametrize("gamma", [None, 1, 3])
def test_the_columns_of_a_timing_add_up_to_its_sums(gamma):
    verifier, draft = ScriptedModel(slow(noise(WIDTH), 0.001), WIDTH), ScriptedModel(noise(WIDTH), WIDTH)
    made = decoded(verifier, draft if gamma else None, (1, 2, 3), Settings(gamma=gamma or 4, max_tokens=17))
    t = made.timings[0]
    assert len(t.fed) == len(t.verify) == len(t.draft) == len(t.rest) == t.passes == len(made.rounds)
    assert t.fed == tuple(len(r.proposed) + 1 for r in made.rounds)
    assert sum(t.verify) == pytest.approx(t.verify_seconds, abs=1e-5) and sum(t.draft) == pytest.approx(t.draft_seconds, abs=1e-5)
    assert sum(t.verify) + sum(t.draft) + sum(t.rest) == pytest.approx(t.decode_seconds, abs=3e-5)
    assert t.tokens == len(made.ids) == 17


def test_a_pass_is_kept_at_its_full_length_when_an_end_token_cut_its_block():
    script = noise(WIDTH)
    ends = tuple(range(1, WIDTH))  # nearly any token ends the run, in the middle of a block
    model = ScriptedModel(script, WIDTH, ends)
    made = decoded(model, ScriptedModel(script, WIDTH, ends), (1, 2), Settings(gamma=5, max_tokens=40))
    assert made.finish == "eos" and made.timings[0].fed[-1] == 6 > len(made.rounds[-1].proposed) + 1


def test_what_the_cores_did_is_split_among_this_process_others_and_nobody(monkeypatch):
    """Two cores for ten seconds: 9 s busy, of which this process had 2; a core it may not use does not count; stolen time does."""
    def core(user, idle, steal=0.0):
        return SimpleNamespace(user=user, nice=0.0, system=1.0, irq=0.0, softirq=0.0, steal=steal, guest=user, idle=idle, iowait=1.0)

    counters, own = [[core(1, 5), core(1, 5), core(1, 5)], [core(5, 10), core(5, 10, 1.0), core(99, 5)]], [3.0, 5.0]
    monkeypatch.setattr(clock.psutil, "cpu_times", lambda percpu: counters.pop(0))
    monkeypatch.setattr(clock.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(clock, "process_time", lambda: own.pop(0))
    assert LoadMeter().read() == Load(own=2.0, others=7.0, idle=10.0, cores=2)


def test_a_busy_loop_elsewhere_is_counted_as_others():
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        meter = LoadMeter()
        time.sleep(1.0)
        load = meter.read()
    finally:
        loop.kill()
        loop.wait()
    if load.others is not None:  # else this system does not count by core, which is a case of its own below
        assert load.others > 0.3 and load.own < 0.3  # others beside it leave it less than a core


@pytest.mark.parametrize("counters", [[], [SimpleNamespace(user=0.0, system=0.0, idle=0.0)] * 64])
def test_counters_that_do_not_fit_are_not_used(monkeypatch, counters):
    """A sandbox may count nothing, or nothing but zeros."""
    monkeypatch.setattr(clock.psutil, "cpu_times", lambda percpu: counters)
    meter, began = LoadMeter(), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    load = meter.read()
    assert load == Load(load.own) and load.own >= 0.05
