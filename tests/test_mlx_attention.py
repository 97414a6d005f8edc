"""Attention sums in MLX are torch's: scale, mask, grouped heads, soft cap and learned sinks are the model's own."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers

from engine.errors import RequestError
from engine.models import mlx_attention as subject
from engine.models import mlx_session, registry
from engine.trace.sinks import NEAR_SCALE
from tests.mlx_folders import KINDS, WIDTH, gpt_oss, load, save

SHOWN = ("tied", "llama3 rope", "biases", "a scale and soft caps of its own", "two RoPE bases, every second layer slides", "multipliers", "experts")


def ids_of(length: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, WIDTH, length)]


def same(ours, theirs, atol: float = 1e-4) -> None:
    """The mean attention of every key within `atol`, every layer and head alike; and all else the sums hold."""
    queries = np.arange(ours.received.shape[-1], 0, -1)
    assert np.abs((ours.received - theirs.received) / queries).max() < atol
    assert np.allclose(ours.near.astype(float), theirs.near.astype(float), rtol=1e-3, atol=atol * NEAR_SCALE)  # float16 of them
    assert np.abs(ours.near_mean - theirs.near_mean).max() < atol
    for field in ("received", "near", "near_mean"):
        a, b = getattr(ours, field), getattr(theirs, field)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert max(ours.row_error, theirs.row_error) < 1e-5
    assert (ours.learned is None) == (theirs.learned is None)
    assert ours.learned is None or np.abs(np.subtract(ours.learned, theirs.learned)).max() < atol


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(save(tmp_path_factory.mktemp("model") / "mały", *KINDS["tied"][:1], **KINDS["tied"][1]))


@pytest.mark.parametrize("name", SHOWN)
def test_sums_are_torchs_for_every_kind_of_attention(tmp_path, name):
    """Longer than the windows and than the near queries."""
    kind, config = KINDS[name]
    folder = save(tmp_path / "m", kind, **config)
    ours, theirs = load(folder).attention(ids_of(80)), load(folder, "torch").attention(ids_of(80))
    same(ours, theirs)
    assert [w if w and w < 80 else None for w in ours.windows] == [w if w and w < 80 else None for w in theirs.windows]
    assert any(ours.windows) == ("slides" in name)


def test_learned_sinks_take_their_share(tmp_path):
    theirs, ours = gpt_oss(tmp_path)
    a, b = load(ours), load(theirs, "torch")
    ids = ids_of(40)
    got, want = a.attention(ids), b.attention(ids)
    same(got, want)
    assert 0.001 < np.min(got.learned) and got.windows == want.windows == (8, None)
    assert np.abs(np.array(a.session().feed(ids, 40)) - b.session().feed(ids, 40).numpy()).max() < 1e-3


def test_per_layer_weights_are_those_of_eager_attention(tmp_path, monkeypatch):
    """AT-13 (b): 4 heads on 2 key heads, a prompt of 6 tokens; every layer (4, 6, 6), the mean matrix to 1e-4."""
    folder = save(tmp_path / "m", "Llama")
    net = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = ids_of(6)
    with torch.inference_mode():
        want = [layer[0].numpy() for layer in net(torch.tensor([ids]), output_attentions=True).attentions]
    ours, layers = load(folder), []
    add = subject.Layer.add

    def seen(self, weights, start, first, lost):
        layers.append(np.array(weights))
        add(self, weights, start, first, lost)

    monkeypatch.setattr(subject.Layer, "add", seen)
    sums = ours.attention(ids)
    assert [w.shape for w in layers] == [w.shape for w in want] == [(4, 6, 6)] * 2
    assert np.abs(np.stack(layers) - np.stack(want)).max() < 1e-4
    assert np.abs(np.stack(layers).mean((0, 1)) - np.stack(want).mean((0, 1))).max() < 1e-4
    assert np.abs(sums.received - np.stack(want).sum(2)).max() < 1e-4


def test_a_soft_cap_is_that_of_the_definition():
    """AT-13 (a): 50·tanh(60/50) and 50·tanh(50/50), through a network's own softmax."""
    reading = subject.Reading(1, 2)
    with subject.watched(reading):
        scores = mx.array([[[[0.0, -np.inf], [60.0, 50.0]]]])
        capped = mx.where(scores > -1e9, 50 * mx.tanh(scores / 50), scores)
        mx.eval(mx.softmax(capped, axis=-1))
    found = reading.sums()
    assert found.near[0, 0, 0, 1] / NEAR_SCALE == pytest.approx(0.9735, abs=1e-3)
    assert found.received[0, 0, 1] == pytest.approx(0.0265, abs=1e-4)


@pytest.mark.parametrize("length, chunk", [(1, None), (2, 1), (6, 4), (63, 16), (64, 64), (130, 7)])
def test_any_length_in_chunks_of_any_size(model, length, chunk, monkeypatch):
    """Against the plain softmax of the same queries and keys."""
    make = subject.Reading.__init__
    monkeypatch.setattr(subject.Reading, "__init__", lambda self, *a, **n: make(self, *a, **{**n, "chunk": chunk}))
    ids, kept = ids_of(length), []
    take = subject.Reading.take
    monkeypatch.setattr(subject.Reading, "take", lambda self, q, k, v, scale, mask=None, sinks=None: (
        kept.append((np.array(q[0]) * scale, np.array(k[0]))), take(self, q, k, v, scale, mask, sinks))[1])
    sums = model.attention(ids)
    for layer, (q, k) in enumerate(kept):
        scores = np.where(np.tri(length, dtype=bool), q @ np.repeat(k, 2, 0).swapaxes(1, 2), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        assert np.abs(sums.received[layer] - weights.sum(1)).max() < 1e-4
        for d in range(min(63, length)):
            near = sums.near[layer, :, : length - d, d].astype(float) / NEAR_SCALE
            assert np.abs(near - np.diagonal(weights, -d, 1, 2)).max() < 1e-3
        assert not sums.near[layer, :, length - 1, 1:].any()


def test_reading_changes_nothing_and_puts_mlxs_functions_back(model):
    """Also after giving up half-way, after which no more is read, and after an error."""
    before = np.array(model.session().feed(ids_of(20), 20))
    shares = []
    assert model.attention(ids_of(20), lambda share: shares.append(share) or len(shares) == 1) is None and shares == [0.5]
    with pytest.raises(ZeroDivisionError):
        model.attention(ids_of(20), lambda share: 1 / 0)
    assert mx.fast.scaled_dot_product_attention is subject._attention and mx.softmax is subject._softmax
    assert np.array_equal(np.array(model.session().feed(ids_of(20), 20)), before)
    told = []
    assert model.attention(ids_of(20), lambda share: told.append(share)) is not None and told == [0.5, 1.0]


def test_the_output_made_from_the_chunks_is_the_kernels(model):
    """On a CPU the next layer reads what our chunks gave: its logits are the normal ones."""
    ids = ids_of(50)
    want = np.array(model.session().feed(ids, 50))
    with subject.watched(subject.Reading(2, 50)):
        found = np.array(model.network(mx.array([ids]), cache=model.caches())[0])
    assert np.abs(found - want).max() < 1e-4


def test_beside_a_fused_kernel_the_sums_are_the_same(model, monkeypatch):
    """As on an Apple GPU: the output is the kernel's own, and the weights are worked out beside it."""
    ids, make = ids_of(50), subject.Reading.__init__
    want, logits = model.attention(ids), np.array(model.session().feed(ids, 50))
    monkeypatch.setattr(subject.Reading, "__init__", lambda self, *a, **n: (make(self, *a, **n), setattr(self, "_fused", True))[0])
    same(model.attention(ids), want, atol=1e-6)
    with subject.watched(subject.Reading(2, 50)):
        assert np.array_equal(np.array(model.network(mx.array([ids]), cache=model.caches())[0]), logits)


def test_where_near_attention_would_take_too_much_its_mean_stays(model):
    whole, small = subject.Reading(2, 30), subject.Reading(2, 30, near_limit=10)
    for reading in (whole, small):
        with subject.watched(reading):
            model.network(mx.array([ids_of(30)]), cache=model.caches())
    assert small.sums().near is None and np.allclose(small.sums().near_mean, whole.sums().near_mean)
    assert np.array_equal(small.sums().received, whole.sums().received)


# ------------------------------------------------------------------------------------------------------------- refused


def test_quantised_keys_are_refused_with_the_reason(model, monkeypatch):
    from mlx_lm.models.cache import QuantizedKVCache

    monkeypatch.setattr(mlx_session.mlx_cache, "make_prompt_cache", lambda network: [QuantizedKVCache(), QuantizedKVCache()])
    with pytest.raises(RequestError, match=r"^The attention of mały cannot be measured: its keys are kept in few bits, .*\.$"):
        model.attention(ids_of(5))


def test_layers_without_attention_are_refused_with_their_number(tmp_path):
    folder = save(tmp_path / "lfm", "Lfm2", layer_types=["conv", "full_attention"], block_ff_dim=64, block_multiple_of=8)
    with pytest.raises(RequestError, match="lfm cannot be measured: 1 of its 2 layers have attention in the usual form"):
        load(folder).attention(ids_of(5))


@pytest.mark.parametrize("mask, said", [
    (None, "each token looks at those after it"), (mx.array(np.eye(5, dtype=bool)[::-1].copy()), "neither causal nor a sliding window"),
    (mx.array(np.where(np.tri(5) > 0, -0.5, -1e9).astype(np.float32)), "adds numbers of its own"), ("full", "a kind we do not know"),
])
def test_masks_that_are_not_causal_are_refused(mask, said):
    with pytest.raises(subject.Unreadable, match=said):
        subject.Reading(1, 5).window_of(mask)


def test_masks_that_are_causal_or_slide_are_known():
    reading, causal = subject.Reading(1, 5), np.tri(5, dtype=bool)
    sliding = causal & ~np.tri(5, k=-2, dtype=bool)
    assert [reading.window_of(m) for m in ("causal", mx.array(causal), mx.array(np.where(causal, 0, -np.inf).astype(np.float32))[None, None])] == [None] * 3
    assert reading.window_of(mx.array(sliding)) == 2 and subject.Reading(1, 1).window_of(None) is None


def test_an_empty_prompt_and_one_past_the_context_are_refused(model):
    with pytest.raises(RequestError, match="An empty prompt has no attention"):
        model.attention([])
    with pytest.raises(RequestError, match="mały reads at most 512 tokens; 513 were asked for"):
        model.attention(ids_of(513))


# ------------------------------------------------------------------------------------------------------------- bundled


def test_sums_of_the_bundled_models_are_torchs():
    """The verifier on 24 tokens, position 0 drawing the attention that torch gives it; and the draft, which reads ids of its own."""
    for name in ("bundled:smollm2-135m", "bundled:smollm2-draft"):
        ours, theirs = (registry.load(name, "cpu", "float32", backend) for backend in ("mlx", "torch"))
        ids = ours.vocabulary.tokenizer("The cat sat on the mat and looked out of the window. It was raining, and the street").input_ids[:24]
        same(ours.attention(ids), theirs.attention(ids))
        ours.close(), theirs.close()
