"""On the bundled models MLX gives torch's answers: ids, logits, entropies; and the certificate compares both engines."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from engine import certify as subject
from engine.analysis.metrics import metrics
from engine.audit import apart
from engine.decoding import compare
from engine.errors import RequestError
from engine.models import metal, mlx_config, registry
from engine.request import CompareRequest
from engine.trace import Run, Sampling, Settings
from tests.mlx_folders import load
from tests.toys import byte_level, tiny_llama

VERIFIER, DRAFT = "bundled:smollm2-135m", "bundled:smollm2-draft"


@pytest.fixture(scope="module")
def models():
    """{(name, backend): model}, each loaded once."""
    return {(name, backend): registry.load(name, "cpu", "float32", backend) for name in (VERIFIER, DRAFT) for backend in ("torch", "mlx")}


def run(models, backend: str, settings: Settings) -> Run:
    request = CompareRequest("One, two, three, four, five,", VERIFIER, DRAFT, raw=True, settings=settings, backend=backend, device="cpu", dtype="float32")
    events = list(compare.run(request, lambda name, engine, device, dtype: models[name, engine]))
    return events[-1].run


def test_a_comparison_is_the_same_in_both_engines(models):
    """Greedy: ids, rounds, verdicts; entropies and probabilities within 1e-3. The models' facts differ in the engine alone."""
    settings = Settings(gamma=4, max_tokens=10)
    ours, theirs = run(models, "mlx", settings), run(models, "torch", settings)
    for side in ("plain", "speculative"):
        a, b = getattr(ours, side), getattr(theirs, side)
        assert (a.ids, a.text, a.finish) == (b.ids, b.text, b.finish)
        assert [(r.proposed, r.accepted, r.emitted, r.closing) for r in a.rounds] == [(r.proposed, r.accepted, r.emitted, r.closing) for r in b.rounds]
        assert np.abs(np.subtract(a.entropy, b.entropy)).max() < 1e-3 and np.abs(np.subtract(a.probability, b.probability)).max() < 1e-3
        assert [[i for i, _ in position] for position in a.top] == [[i for i, _ in position] for position in b.top]
        for r, s in zip(a.rounds, b.rounds):
            assert np.allclose(r.p, s.p, atol=1e-3) and (not r.q or np.allclose(r.q, s.q, atol=1e-3))
            assert r.draft_entropy == pytest.approx(s.draft_entropy, abs=1e-3)
    assert ours.plain.ids == ours.speculative.ids
    assert metrics(ours)["proposed"] == metrics(theirs)["proposed"] and metrics(ours)["orchestration_share"] < 0.15
    for role in ("verifier", "draft"):
        a, b = ours.models[role], theirs.models[role]
        assert (a.backend, b.backend) == ("mlx", "torch") and "mlx-lm" in a.backend_version
        same = dict(backend="", backend_version="", load_seconds=0, notes=())
        assert replace(a, **same) == replace(b, **same)
        assert 0.5 < float(re.search(r"at most ([\d.]+) GB", a.notes[-1]).group(1)) < 4  # the verifier alone takes 0.5


def test_logits_of_both_bundled_models_agree(models):
    text = models[VERIFIER, "torch"].vocabulary.tokenizer("The first three prime numbers are 2, 3 and 5; the next, in order, is").input_ids
    for name in (VERIFIER, DRAFT):
        logits, bits, shift = apart(models[name, "mlx"], models[name, "torch"], text)
        assert logits < 1e-3 and bits < 1e-3 and shift < 1e-4


def test_sampling_with_the_copying_draft_gives_the_same_text(models):
    settings = Settings(gamma=3, max_tokens=8, sampling=Sampling(temperature=0.7, top_p=0.9, seed=4))
    ours, theirs = run(models, "mlx", settings).speculative, run(models, "torch", settings).speculative
    assert ours.ids == theirs.ids and [r.accepted for r in ours.rounds] == [r.accepted for r in theirs.rounds]


# ------------------------------------------------------------------------------------------------------- certificate


SHORT = dict(gamma=3, max_tokens=8, draws=300)


@pytest.fixture()
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders whose RoPE base is not the one mlx-lm takes by default."""
    root = tmp_path_factory.mktemp("pair")
    theta = {"rope_type": "default", "rope_theta": 500.0}
    return [tiny_llama(root / str(seed), byte_level(), seed, eos_token_id=None, rope_parameters=theta) for seed in (0, 1)]


def certified(verifier, draft, twin=registry.twin):
    made = subject.certify(verifier, draft, subject.PROMPTS[:3], **SHORT, twin=twin)
    return made, {c.name: c for c in made.checks}


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_certificate_holds_on_mlx_and_compares_both_engines_whichever_runs(home, folders, backend):
    made, checks = certified(*(load(f, backend) for f in folders))
    assert made.passed and made.backend.startswith(backend), [c.sentence for c in made.checks if not c.passed]
    check = checks["both engines"]
    assert 0 < check.figure < 1e-3 and "between" in check.sentence and f"{check.figure:.2g}" in check.sentence


def test_a_config_that_one_engine_misreads_fails_the_certificate(home, folders, monkeypatch):
    """The text would be fluent and the logits wrong: here mlx-lm takes its own RoPE base."""
    monkeypatch.setattr(mlx_config, "rope", lambda read: {})
    monkeypatch.setattr(mlx_config, "require_same_turn", lambda *_: None)
    made, checks = certified(*(load(f, "torch") for f in folders))
    assert not checks["both engines"].passed and checks["both engines"].figure > 0.01 and not made.passed
    assert all(c.passed for name, c in checks.items() if name != "both engines")  # that is why the other four would not do


def test_a_model_that_only_one_engine_loads_is_certified_without_the_comparison(home, folders):
    def neither(model):
        raise RequestError("It is packed.")

    made, checks = certified(load(folders[0]), None, neither)
    assert made.passed and checks["both engines"].figure is None and "Not compared: It is packed." in checks["both engines"].sentence


# ------------------------------------------------------------------------------------------------------------ backend


def test_backends_are_listed_with_the_reason_where_one_is_missing(monkeypatch):
    assert [(b.name, b.available, b.why) for b in registry.backends()] == [("torch", True, ""), ("mlx", True, "")]
    for platform, where in (("win32", "this is Windows"), ("darwin", "this is an Intel Mac")):
        registry.without_mlx.cache_clear()
        monkeypatch.setattr(sys, "platform", platform)
        mlx = registry.backends()[1]
        assert not mlx.available and where in mlx.why and mlx.why.endswith(".")
        with pytest.raises(RequestError, match="backend mlx is not available: .*" + where):
            registry.load(VERIFIER, backend="mlx")
    monkeypatch.undo()
    for broken, said in ((None, "not installed"), (ImportError("libmlx.so: cannot open"), "does not start .ImportError: libmlx.so: cannot open")):
        registry.without_mlx.cache_clear()
        with monkeypatch.context() as m:
            if broken is None:
                m.setattr(registry.util, "find_spec", lambda name: None)
            else:
                m.setitem(sys.modules, "mlx.core", None)
                m.setattr("builtins.__import__", _failing(broken))
            assert said.split(" .")[0] in registry.without_mlx()
    registry.without_mlx.cache_clear()
    assert registry.without_mlx() == ""


def _failing(error):
    real = __import__

    def fake(name, *arguments, **named):
        if name == "mlx.core":
            raise error
        return real(name, *arguments, **named)

    return fake


def test_auto_is_mlx_where_metal_is_and_torch_elsewhere(monkeypatch):
    assert registry.settled("auto") == "torch" and [registry.settled(b) for b in ("torch", "mlx")] == ["torch", "mlx"]
    monkeypatch.setattr(metal, "available", lambda: True)
    assert registry.settled("auto") == "mlx"
    monkeypatch.setattr(registry, "without_mlx", lambda: "It is not installed.")
    assert registry.settled("auto") == "torch"
    with pytest.raises(RequestError, match="no backend 'jax'"):
        registry.settled("jax")


def test_devices_and_precisions_of_mlx_are_settled_without_torch(monkeypatch):
    from engine.models.device import resolve_mlx

    r = resolve_mlx()
    assert (r.device, r.dtype, r.notes) == ("cpu", "float32", ())
    assert resolve_mlx("mps", "bfloat16").notes == ("Device mps is not available to MLX on this machine; cpu was used.",)
    assert resolve_mlx("cpu", "float16").dtype == "float16"
    with pytest.raises(RequestError, match="no device 'tpu'"):
        resolve_mlx("tpu")
    with pytest.raises(RequestError, match="no precision 'int4'"):
        resolve_mlx("cpu", "int4")
    monkeypatch.setattr(metal, "available", lambda: True)
    for stored, dtype in (("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float16"), ("4-bit in groups of 64", "float16")):
        assert (resolve_mlx("auto", "auto", stored).device, resolve_mlx("mps", "auto", stored).dtype) == ("metal", dtype)
    assert (resolve_mlx("cpu").device, resolve_mlx("cpu").dtype) == ("cpu", "float32")
