"""'Take the run's settings': within the limits the controls ask for the very same thing; outside them what is left is named, and only that."""

import dataclasses
import importlib

import pytest
from hypothesis import HealthCheck, given, settings as how, strategies as st
from streamlit.testing.v1 import AppTest

from engine.limits import LIMITS
from engine.models.device import DEVICES, DTYPES
from engine.models.registry import BACKENDS
from engine.request import REFUSED_SHOWN, Asked, CompareRequest, EntropyRequest, SinksRequest, UagRequest
from engine.trace import Sampling, Settings
from engine.trace.uag import STRATEGIES
from tests.sample import sample_run

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
