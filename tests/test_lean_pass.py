"""The lean pass of Llama-shaped networks scores as transformers does, shares its weights, and leaves other networks alone."""

from __future__ import annotations

import pytest
import torch

from engine.models import llama
from tests.networks import LEAN, OTHER, fresh, model, network, prompt_of


@pytest.fixture(scope="module", params=LEAN)
def lean(request):
    """(the same network untouched, the network that was fused, its model)"""
    kind, config = LEAN[request.param]
    untouched, fused = network(kind, **config), network(kind, **config)
    made = model(fused)
    assert made._lean is not None, "not taken"
    return untouched, fused, made


def test_the_lean_pass_scores_blocks_of_any_length_from_any_start(lean):
    untouched, _, made = lean
    ids = prompt_of(1, 14)
    want = fresh(untouched, ids)
    for start in range(13):
        for count in (1, 2, 5):
            block = ids[start : start + count]
            session = made.session(16)
            if start:
                assert session.feed(ids[:start], 0) is None
            assert torch.allclose(session.feed(block, len(block)), want[start : start + len(block)], atol=1e-4)
            assert session.length == start + len(block)


def test_the_lean_cache_grows_and_keeps_what_it_held(lean):
    untouched, _, made = lean
    ids = prompt_of(2, 90)
    want = fresh(untouched, ids)
    session = made.session(1)
    found = [session.feed(ids[:3], 3)]
    found += [session.feed(ids[at : at + 29], min(29, 90 - at)) for at in range(3, 90, 29)]
    assert torch.allclose(torch.cat(found), want, atol=1e-4)


def test_what_was_rewound_leaves_no_trace(lean):
    untouched, _, made = lean
    session, text = made.session(8), []
    steps = [(0, prompt_of(3, 5)), (2, (7, 8, 9, 1)), (3, (4,)), (1, (2,) * 9), (13, (6, 5)), (1, (9,))]
    for step, (back, ids) in enumerate(steps):
        session.rewind(back)
        text = text[: len(text) - back] + list(ids)
        found = session.feed(torch.tensor(ids) if step % 2 else ids, len(ids))
        assert session.length == len(text)
        assert torch.allclose(found, fresh(untouched, text)[len(text) - len(ids) :], atol=1e-4)


def test_no_weight_is_kept_twice(lean):
    _, fused, made = lean
    mine = [t for t in (made._lean.embedding, made._lean.norm, made._lean.head) if t is not None]
    mine += [t for layer in made._lean.layers for t in layer if t is not None]
    stores = {t.untyped_storage().data_ptr() for t in mine}
    assert {p.untyped_storage().data_ptr() for p in fused.parameters()} == stores
    whole = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in [*mine, *fused.parameters()]}.values())
    assert whole == 4 * sum(p.numel() for p in fused.parameters())


def test_a_fused_network_still_runs_in_transformers(lean):
    untouched, fused, _ = lean
    ids = prompt_of(4, 12)
    assert torch.allclose(fresh(fused, ids), fresh(untouched, ids), atol=1e-4)


@pytest.mark.parametrize("name", OTHER)
def test_the_lean_pass_leaves_other_networks_alone(name):
    kind, config = OTHER[name]
    assert llama.fuse(network(kind, **config)) is None


def test_a_lean_pass_that_scores_otherwise_is_not_used(monkeypatch):
    net = network("Llama")
    monkeypatch.setattr(llama, "FAMILIES", ("LlamaForCausalLM", "Qwen3ForCausalLM"))
    assert llama.fuse(net) is not None
    assert llama.fuse(network("Qwen3", head_dim=8)) is None  # it norms its keys, which the lean pass does not


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_taken_too(dtype):
    net = network("Llama").to(dtype)
    made = model(net)
    assert made._lean is not None and made.session().feed((1, 2, 3), 2).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bundled_model_takes_the_lean_pass_in_any_precision_and_a_wrong_one_never(smollm2_folder, monkeypatch, dtype):
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=dtype).eval()
    lean = llama.fuse(network, None)
    assert lean is not None
    right = llama.LlamaSession.feed
    monkeypatch.setattr(llama.LlamaSession, "feed", lambda self, ids, last, *more: right(self, ids.flip(0), last, *more))
    assert not llama._agrees(lean, network)
