"""'Take the run's settings': within the limits the controls ask for the very same thing; outside them what is left is named, and only that."""

import dataclasses
import html
import importlib

import pytest
from hypothesis import HealthCheck, given, settings as how, strategies as st
from streamlit.testing.v1 import AppTest

import cache
from engine.limits import LIMITS
from engine.models.device import DEVICES, DTYPES
from engine.models.registry import BACKENDS
from engine.request import REFUSED_SHOWN, Asked, CompareRequest, EntropyRequest, SinksRequest, UagRequest
from engine.trace import Prompt, Sampling, Settings
from engine.trace.uag import STRATEGIES
from tests.sample import sample_run
from tests.screens import app, engine, healthy, labelled, page_html  # noqa: F401
from ui import promptset

MODULES = {"compare": "ui.controls", "sinks": "ui.sinks.controls", "entropy": "ui.entropy.controls", "polish": "ui.polish.controls"}
NAMES = ("bundled:smollm2-135m", "bundled:polish-verifier", "/models/mine", "org/model")


def page():
    """The controls of one page: filled with a request in the first pass, drawn in every one; what they ask for is kept."""
    import importlib

    import streamlit as st

    controls = importlib.import_module(st.session_state["module"])
    if (asked := st.session_state.pop("fill", None)) is not None:
        controls.fill(asked)
    st.session_state["made"] = controls.draw([])


def made_from(name, asked):
    """What the page's controls ask for after they were filled, and drawn twice."""
    at = AppTest.from_function(page, default_timeout=60)
    at.session_state["module"], at.session_state["fill"] = MODULES[name], asked
    at.run()
    first = at.session_state["made"]
    at.run()
    assert not at.exception and at.session_state["made"] == first
    return first


def within(name):
    b = LIMITS[name]
    return st.integers(b.low, b.high) if b.whole else st.floats(b.least, b.high)


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=40).filter(lambda t: t.strip())
labels = texts.map(str.strip).filter(bool)
samplings = st.builds(Sampling, **{f.name: within(f.name) for f in dataclasses.fields(Sampling)})
stops = st.lists(texts, max_size=4, unique=True).map(tuple)
reading = {"system": st.none() | texts, "raw": st.booleans(), "backend": st.sampled_from(BACKENDS), "device": st.sampled_from(DEVICES),
           "dtype": st.sampled_from(DTYPES)}
sets = st.one_of(texts.map(lambda t: (Asked(t),)), st.lists(st.builds(Asked, texts, labels, st.just("") | labels), min_size=1, max_size=4,
                                                            unique_by=lambda a: a.label).map(tuple))
lengths = {"max_tokens": within("max_tokens"), "repeats": within("repeats"), "sampling": samplings, "stop": stops}


@st.composite
def comparisons(draw):
    shortest, longest = sorted((draw(within("lookup_shortest")), draw(within("lookup_ngram"))))
    lookup = draw(st.booleans())
    s = draw(st.builds(Settings, gamma=within("gamma"), drafter=st.just("lookup" if lookup else "model"), lookup_ngram=st.just(longest),
                       entropy_stop=st.none() if lookup else st.none() | within("entropy_stop"), lookup_shortest=st.just(shortest), **lengths))
    return CompareRequest(draw(texts), draw(st.sampled_from(NAMES)), None if lookup else draw(st.sampled_from(NAMES)), settings=s,
                          **{name: draw(values) for name, values in reading.items()})


REQUESTS = {
    "compare": comparisons(),
    "sinks": st.builds(SinksRequest, sets, st.sampled_from(NAMES), **reading),
    "entropy": st.builds(EntropyRequest, sets, st.sampled_from(NAMES), **reading,
                         settings=st.builds(Settings, max_tokens=within("max_tokens"), sampling=samplings, stop=stops)),
    "polish": st.builds(UagRequest, sets, st.sampled_from(NAMES), st.sampled_from(NAMES), **reading, prefix=within("prefix"),
                        strategies=st.sets(st.sampled_from(STRATEGIES), min_size=1).map(lambda s: tuple(n for n in STRATEGIES if n in s)),
                        ks=st.sets(within("k"), min_size=1).map(lambda ks: tuple(sorted(ks))), settings=st.builds(Settings, **lengths)),
}


@pytest.mark.parametrize("name", REQUESTS)
@how(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_within_the_limits_the_controls_ask_for_the_very_same(name, data):
    asked = data.draw(REQUESTS[name])
    controls = importlib.import_module(MODULES[name])
    made = made_from(name, asked)
    assert made == asked
    assert controls.changes(made, asked) == []


CASE = Sampling(temperature=3.0, top_k=200_000, top_p=0.001, repetition_penalty=3.0, seed=2**40)  # what the command line allows


@pytest.mark.parametrize("name", ["compare", "entropy", "polish"])
def test_a_run_of_the_command_line_is_taken_whole(name):
    settings = Settings(max_tokens=10_000, sampling=CASE)
    asked = {"compare": CompareRequest("Ala", NAMES[0], NAMES[1], settings=settings), "entropy": EntropyRequest((Asked("Ala"),), NAMES[0], settings=settings),
             "polish": UagRequest((Asked("Ala"),), NAMES[0], NAMES[1], ks=(5, 7, 16), settings=settings)}[name]
    assert made_from(name, asked) == asked


OUTSIDE = {"seed": 2**60, "temperature": 11.5, "top_k": 2_000_000, "min_p": -0.5}


@pytest.mark.parametrize("name", ["compare", "entropy", "polish"])
@pytest.mark.parametrize("field", OUTSIDE)
def test_what_no_control_can_show_is_named_and_the_others_are_right(name, field):
    """Runs of older versions and imported ones may hold anything."""
    sampling = dataclasses.replace(CASE, **{field: OUTSIDE[field]})
    settings = Settings(max_tokens=10_000, sampling=sampling)
    asked = {"compare": CompareRequest("Ala", NAMES[0], NAMES[1], settings=settings, device="npu"),
             "entropy": EntropyRequest((Asked("Ala"),), NAMES[0], settings=settings, device="npu"),
             "polish": UagRequest((Asked("Ala"),), NAMES[0], NAMES[1], ks=(2, 99), settings=settings, device="npu")}[name]
    kept = dataclasses.replace(settings, sampling=dataclasses.replace(sampling, **{field: getattr(Sampling(), field)}))
    right = dataclasses.replace(asked, settings=kept, device="auto", **({"ks": (2,)} if name == "polish" else {}))
    assert made_from(name, asked) == right
    bound = LIMITS[field]
    shown = sample_run() if name == "compare" else type("Run", (), {"items": ()})
    words = importlib.import_module(MODULES[name]).left(asked, shown)
    assert [w for w in words if w.startswith(bound.title)] == [f"{bound.title} {OUTSIDE[field]:,} ({bound.span})"]
    assert "device “npu”" in words and ("k 99 (from 1 to 16)" in words) == (name == "polish") and len(words) == 2 + (name == "polish")


def test_the_page_says_what_cannot_be_taken(engine):  # noqa: F811
    run = sample_run()
    beyond = dataclasses.replace(run, settings=dataclasses.replace(run.settings, sampling=dataclasses.replace(CASE, seed=2**60)))
    at = app("compare", run=cache.store().save(beyond))
    said = "Of the run's settings the controls cannot take: seed 1,152,921,504,606,846,976 (from 0 to 9,007,199,254,740,991)."
    assert said in html.unescape(page_html(at))
    at = healthy(labelled(at, "Take the run's settings").click().run())
    value = {w.key: w.value for w in at.number_input}
    assert (value["compare.temperature"], value["compare.top_p"], value["compare.top_k"], value["compare.seed"]) == (3.0, 0.001, 200_000, 0)
    assert "Settings changed since the run below: seed" in page_html(at)


def test_prompts_that_a_run_holds_only_in_part_are_named():
    class Item:
        def __init__(self, text, refused=None):
            self.prompt, self.refused = Prompt(text, ()), refused

    items = [Item("one"), Item("x" * REFUSED_SHOWN, "too long"), Item("y" * REFUSED_SHOWN)]
    prompts = tuple(Asked(item.prompt.text, f"p{n}") for n, item in enumerate(items))
    assert promptset.left(prompts, items) == ["the end of prompt 2 (it was refused, and of its text the first 1,000 characters were kept)"]
    assert promptset.left((prompts[0], Asked(" ", "p1"))) == ["prompts without a text"]
    assert promptset.left((Asked("a"), Asked("b"))) == ["the prompts’ labels (empty, or not unique)"]
    assert promptset.left((Asked("a" * 30_000_000, "1"), Asked("b" * 30_000_000, "2"))) == ["the 2 prompts (more than 50 MB)"]
