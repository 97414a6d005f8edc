"""A result whose timing was disturbed is marked, says why, and can be asked for again; a quiet one offers nothing."""

from __future__ import annotations

from dataclasses import replace

import cache
from engine.analysis.metrics import metrics
from engine.decoding.clock import Load
from engine.request import CompareRequest, Done, Step
from engine.trace import Settings
from tests.sample import sample_run
from tests.screens import app, button, engine, finished, healthy, run, run_of  # noqa: F401 (engine is a fixture)
from ui.grow import growing, so_far

WHY = "The timing was disturbed: other programs used 1.7 of 2 cores."


def crowded(run):
    """`run` as timed beside other programs."""
    def of(answer):
        return replace(answer, timings=tuple(replace(t, processor_seconds=0.6, others_seconds=3.4, idle_seconds=0.0) for t in answer.timings))
    return replace(run, plain=of(run.plain), speculative=of(run.speculative))


def test_a_disturbed_run_is_marked_and_run_again_asks_for_the_same(engine, monkeypatch):
    made = engine.__call__

    def beside_others(asked):
        def go(stop):
            for event in made(asked)(stop):
                yield replace(event, run=crowded(event.run)) if isinstance(event, Done) else event
        return go

    monkeypatch.setattr("ui.jobs.task", beside_others)
    at = finished(run(app(), prompt="Why is the sky blue?"))
    first = run_of(at)
    shown = " ".join(e.proto.body for e in at.get("html"))
    assert WHY in shown and '<span class="mark" title="' + WHY in shown and "faster" not in shown.split("</article>")[0].split("headline")[-1]
    at = finished(healthy(button(at, "compare.again").click().run()))
    assert run_of(at) != first and len(engine.asked) == 2 and engine.asked[0] == engine.asked[1]
    assert cache.store().get(first).prompt.text == "Why is the sky blue?"  # the first stays


def test_a_quiet_run_offers_no_second_one(engine):
    at = finished(run(app()))
    assert not any(b.key == "compare.again" for b in at.button)


def test_the_sentence_of_a_growing_run_says_who_disturbs_it():
    whole, asked = sample_run(), CompareRequest("x", "v", settings=Settings())
    steps = {side: [Step(side, 1, r) for r in getattr(whole, side).rounds] for side in ("plain", "speculative")}
    quiet = growing(asked, steps, whole.tokens, {"plain": Load(1.9, 0.1, 2.0, 2), "speculative": None})
    assert "verifier-only" in so_far(quiet, metrics(quiet)) and "disturbed" not in so_far(quiet, metrics(quiet))
    busy = growing(asked, steps, whole.tokens, {"plain": None, "speculative": Load(0.6, 3.4, 0.0, 2)})
    assert so_far(busy, metrics(busy)).endswith("; the timing was disturbed: other programs used 1.7 of 2 cores.")


def test_the_list_of_runs_has_no_speedup_of_a_disturbed_run_and_a_comparison_of_two_names_it():
    from pathlib import Path

    from cache.summary import summarise
    from ui.difference import difference_html

    quiet = sample_run()
    assert summarise(quiet, Path("x"), 1).speedup == metrics(quiet)["speedup"] and summarise(crowded(quiet), Path("x"), 1).speedup is None
    pair = (quiet, crowded(quiet))
    assert "<td>not disturbed</td><td>disturbed</td>" in difference_html(pair, [metrics(r) for r in pair])
    assert "disturbed" not in difference_html((quiet, quiet), [metrics(quiet)] * 2)
