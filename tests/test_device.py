"""Device and precision: what is asked for, what is used in its place, and that both are said."""

from __future__ import annotations

import pytest

from engine.errors import RequestError
from engine.models import device, registry
from tests.folders import tiny  # noqa: F401


def test_auto_is_settled_and_both_names_are_kept():
    r = device.resolve("auto", "auto")
    assert r.device in ("cpu", "mps", "cuda") and r.dtype == device.default_dtype(r.device)
    assert (r.asked_device, r.asked_dtype, r.notes) == ("auto", "auto", ())


def test_a_missing_device_falls_back_to_the_cpu_and_says_so(monkeypatch):
    import torch

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    r = device.resolve("mps", "float32")
    assert (r.device, r.asked_device, r.dtype) == ("cpu", "mps", "float32")
    assert r.notes == ("Device mps is not available on this machine; cpu was used.",)


def test_a_precision_the_device_cannot_do_falls_back_and_says_so(monkeypatch):
    import torch

    convert = torch.Tensor.to

    def no_bfloat16(self, *arguments, **named):
        if torch.bfloat16 in arguments:
            raise RuntimeError("bf16 is not supported here")
        return convert(self, *arguments, **named)

    monkeypatch.setattr(torch.Tensor, "to", no_bfloat16)
    r = device.resolve("cpu", "bfloat16")
    assert (r.dtype, r.asked_dtype) == ("float32", "bfloat16")
    assert r.notes == ("Precision bfloat16 is not available on cpu; float32 was used.",)


def test_a_cpu_computes_in_float32_whatever_fits_it(monkeypatch):
    """Exact by default: only a model that half the memory cannot hold in float32 is read in half precision."""
    monkeypatch.setattr(device, "memory_total", lambda: 16 * 10**9)
    assert [device.default_dtype("cpu", n) for n in (0, 135_000_000, 2_000_000_000, 2_000_000_001)] == ["float32"] * 3 + ["bfloat16"]
    assert device.resolve("cpu", "auto", 8_000_000_000).dtype == "bfloat16" and device.resolve("cpu", "float32", 8_000_000_000).dtype == "float32"


def test_a_device_that_can_do_nothing_falls_back_to_the_cpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *a, device="cpu": _broken() if device == "cuda" else ones(*a))
    r = device.resolve("cuda", "float16")
    assert (r.device, r.asked_device, r.dtype) == ("cpu", "cuda", "float16")
    assert "cpu was used" in r.notes[0]


def _broken():
    raise RuntimeError("CUDA driver version is insufficient")


def test_asked_and_used_are_both_on_a_loaded_model_and_pairs_share_a_device(tiny, monkeypatch):
    import torch

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    verifier, draft = (registry.load(str(tiny), "mps", "float32") for _ in range(2))
    for facts in (verifier.facts, draft.facts):
        assert (facts.asked_device, facts.device, facts.asked_dtype, facts.dtype) == ("mps", "cpu", "float32", "float32")
        assert "Device mps is not available on this machine; cpu was used." in facts.notes
    assert len(verifier.facts.revision) == 12


def test_unknown_device_and_precision_names_are_refused():
    with pytest.raises(RequestError, match="no device 'tpu'"):
        device.resolve("tpu")
    with pytest.raises(RequestError, match="no precision 'int4'"):
        device.resolve("cpu", "int4")
