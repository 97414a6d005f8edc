"""Attention sums against the matrices that transformers' eager path shows, on tiny random networks and on the bundled model."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface

from engine.errors import RequestError
from engine.models import torch_attention, torch_sums
from engine.models.torch_sums import Reading
from engine.trace.sinks import NEAR, NEAR_SCALE
from tests.networks import LEAN, OTHER, SHAPE, model, network, prompt_of

MIXED = ["sliding_attention", "full_attention"]
KINDS = {
    **LEAN, **OTHER,
    "soft cap": ("Gemma2", dict(sliding_window=8, head_dim=8, attn_logit_softcapping=2.0, query_pre_attn_scalar=8, layer_types=MIXED)),
    "learned sinks": ("GptOss", dict(head_dim=8, sliding_window=8, num_local_experts=2, num_experts_per_tok=1, layer_types=MIXED)),
    "gemma 3": ("Gemma3Text", dict(head_dim=8, sliding_window=8, layer_types=MIXED)),
    "odd heads": ("Llama", dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10)),
    "partly turned": ("Phi", {}),
    "scaled before": ("OPT", dict(ffn_dim=64, word_embed_proj_dim=32)),
    "compressed keys": ("DeepseekV3", dict(num_key_value_heads=4, n_routed_experts=4, q_lora_rank=8, kv_lora_rank=8, num_experts_per_tok=1,
                                           n_group=1, topk_group=1, moe_intermediate_size=16, qk_rope_head_dim=4, qk_nope_head_dim=8,
                                           v_head_dim=6)),
}
REFUSED = {  # what cannot be measured, and a word of the reason
    "biased by distance": ("Bloom", dict(n_head=4, n_layer=2), "its own code"),
    "both ways": ("Bert", {}, "not causal"),
    "recurrent layers": ("Qwen3Next", dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
                                           layer_types=["linear_attention", "full_attention"], num_experts=2, num_experts_per_tok=1,
                                           moe_intermediate_size=16, shared_expert_intermediate_size=16, head_dim=8), "running state"),
    "no attention": ("Mamba", {}, "0 of its 2 layers"),
}


@torch.inference_mode()
def eager(net, ids) -> torch.Tensor:
    """All matrices (L, H, S, S) as transformers shows them."""
    was = net.config._attn_implementation
    net.set_attn_implementation("eager")
    shown = net(torch.tensor([list(ids)]), output_attentions=True, use_cache=False).attentions
    net.set_attn_implementation(was)
    return torch.stack([layer[0] for layer in shown]).double()


def banded(matrices: torch.Tensor) -> np.ndarray:
    """Attention of query k + d on key k, (L, H, S, n), the plain way."""
    size = matrices.shape[-1]
    n = min(NEAR, size)
    near = torch.zeros(*matrices.shape[:2], size, n, dtype=matrices.dtype)
    for d in range(n):
        near[:, :, : size - d, d] = matrices.diagonal(-d, 2, 3)
    return near.numpy()


def assert_same(sums, matrices: torch.Tensor, within: float = 1e-4) -> None:
    near = banded(matrices)
    assert sums.received.dtype == np.float32 and sums.near.dtype == np.float16 and sums.near_mean.dtype == np.float32
    np.testing.assert_allclose(sums.received, matrices.sum(2).numpy(), atol=within)
    np.testing.assert_allclose(sums.near.astype(float) / NEAR_SCALE, near, atol=within, rtol=6e-4)  # float16 keeps eleven bits
    np.testing.assert_allclose(sums.near_mean, near.mean((0, 1)), atol=within)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_the_eager_matrices_while_the_normal_kernel_runs(kind):
    """AT-01, AT-13: grouped queries, windows, soft caps, learned sinks, odd sizes; one token, fewer than a band, more than a window."""
    net = network(KINDS[kind][0], **KINDS[kind][1])
    m = model(net)
    normal = net.config._attn_implementation
    for length in (1, 5, 40, 150):
        ids = prompt_of(length, length)
        sums = m.attention(ids)
        matrices = eager(net, ids)
        assert_same(sums, matrices)
        rows = matrices.sum(3)
        learned = 0 if sums.learned is None else torch.tensor(sums.learned)
        assert (rows.mean(2) + learned - 1).abs().max() < 1e-3 and sums.row_error < 1e-3
    assert net.config._attn_implementation == normal
    seen = (matrices > 0).any(1)[:, -1].sum(-1).tolist()  # keys the last query sees, in each layer
    assert [min(w or length, length) for w in sums.windows] == seen


def test_of_a_model_that_also_sees_the_text_part_is_read():
    text = transformers.Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=8, layer_types=MIXED).to_dict()
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8)
    net = transformers.AutoModelForCausalLM.from_config(transformers.Gemma3Config(text_config=text, vision_config=vision)).float().eval()
    assert any("vision" in name for name, _ in net.named_parameters())
    sums = model(net.requires_grad_(False)).attention(prompt_of(1, 40))
    assert_same(sums, eager(net, prompt_of(1, 40)))
    assert sums.windows == (8, None)


@pytest.mark.parametrize("kind", REFUSED)
def test_attention_that_cannot_be_captured_is_named_with_its_reason(kind):
    name, config, word = REFUSED[kind]
    m = model(network(name, **config))
    for _ in range(2):  # a refusal leaves nothing behind that lets the second reading through
        with pytest.raises(RequestError, match="Tiny cannot be measured: .*" + word) as e:
            m.attention(prompt_of(1, 9))
        assert "\n" not in str(e.value) and str(e.value).endswith(".")


def test_a_network_that_shows_other_attention_than_its_keys_give_is_refused(monkeypatch):
    net = network("Llama", hidden_act="gelu")
    honest = torch_sums.Reading.take

    def careless(self, q, k, *rest, **more):
        return honest(self, q * 1.5, k, *rest, **more)

    monkeypatch.setattr(torch_sums.Reading, "take", careless)
    with pytest.raises(RequestError, match="differs"):
        model(net).attention(prompt_of(1, 9))
    assert net.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", ["soft cap", "learned sinks", "sliding window", "normed keys"])
def test_the_model_reads_on_as_it_would_have(kind, monkeypatch):
    """What a layer gets back while it is watched is what its normal attention gives."""
    net = network(KINDS[kind][0], **KINDS[kind][1])
    ids = torch.tensor(prompt_of(3, 70))
    kept = []
    hook = net.get_output_embeddings().register_forward_hook(lambda module, given, out: kept.append(out))
    with torch.inference_mode():
        net(ids[None], use_cache=False, logits_to_keep=1)
    model(net).attention(ids.tolist())
    hook.remove()
    torch.testing.assert_close(kept[-1], kept[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["grouped queries, tied", "soft cap", "sliding window"])
def test_half_precision_sums_are_float32_and_exact_for_the_keys_they_are_given(kind, dtype):
    """float32 sums of half-precision keys equal float64 sums of the same keys: nothing is rounded on the way."""
    net = network(KINDS[kind][0], **KINDS[kind][1]).to(dtype)
    sums = model(net).attention(prompt_of(5, 100))
    assert sums.received.dtype == np.float32 and np.isfinite(sums.received).all()
    np.testing.assert_allclose(sums.received.sum(-1), 100, rtol=2e-3)
    assert sums.row_error < 1e-2
    gen = torch.Generator().manual_seed(1)
    q, k = (torch.randn(h, 90, 16, generator=gen).to(dtype) for h in (4, 2))
    reading = Reading(1, 90)
    reading.take(q, k)
    assert torch.get_float32_matmul_precision() == "highest"
    np.testing.assert_allclose(reading.sums().received[0], plain(q, k, 16**-0.5).sum(1).numpy(), atol=3e-5)


def plain(q, k, scale, window=None, cap=None, sink=None) -> torch.Tensor:
    """Attention (H, S, S) of queries (H, S, d) on keys (groups, S, d) in float64, the plain way; a learned sink's share is left out."""
    q, k = q.double(), k.double().repeat_interleave(len(q) // len(k), 0)
    scores = q @ k.transpose(1, 2) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    at = torch.arange(q.shape[1])
    hidden = at[None] > at[:, None]
    if window is not None:
        hidden |= at[None] <= at[:, None] - window
    scores = scores.masked_fill(hidden, -torch.inf)
    if sink is None:
        return scores.softmax(-1)
    return torch.cat([scores, sink.double()[:, None, None].expand(-1, q.shape[1], 1)], -1).softmax(-1)[:, :, :-1]


@settings(max_examples=60)
@given(length=st.integers(1, 200), chunk=st.integers(1, 90), groups=st.integers(1, 3), per=st.integers(1, 3), width=st.sampled_from([3, 8, 10]),
       window=st.none() | st.integers(1, 220), cap=st.none() | st.floats(0.5, 5), learned=st.booleans(), seed=st.integers(0, 99))
def test_any_chunk_window_cap_and_sink_add_up_as_the_plain_matrix_does(length, chunk, groups, per, width, window, cap, learned, seed):
    gen = torch.Generator().manual_seed(seed)
    q, k, v = (2 * torch.randn(h, length, width, generator=gen) for h in (groups * per, groups, groups))
    sink = torch.randn(groups * per, generator=gen) if learned else None
    reading = Reading(1, length, chunk=chunk)
    out = reading.take(q, k, v, 0.4, window, cap, sink)
    sums, want = reading.sums(), plain(q, k, 0.4, window, cap, sink)
    assert_same(sums, want[None], 2e-5)
    torch.testing.assert_close(out.double(), (want @ v.double().repeat_interleave(per, 0)).transpose(0, 1), atol=1e-4, rtol=1e-4)
    assert sums.row_error < 1e-5
    if learned:
        np.testing.assert_allclose(sums.learned[0], 1 - want.sum(2).mean(1).numpy(), atol=1e-5)


@settings(max_examples=30)
@given(length=st.integers(1, 700), chunk=st.none() | st.integers(1, 150), groups=st.integers(1, 2), per=st.integers(1, 3),
       scale=st.floats(0.05, 1.5), half=st.booleans(), seed=st.integers(0, 99))
def test_tiles_under_the_kernels_own_totals_add_up_as_the_plain_matrix_does(length, chunk, groups, per, scale, half, seed):
    gen = torch.Generator().manual_seed(seed)
    q, k, v = (2 * torch.randn(h, length, 8, generator=gen).to(torch.bfloat16 if half else torch.float32) for h in (groups * per, groups, groups))
    reading = Reading(1, length, chunk=chunk)
    out, told = reading.attend(q, k, v, scale), torch_sums.fused(q, k, v, scale)[1]
    sums = reading.sums()
    assert told is not None, "torch's flash kernel for processors was expected here"
    # In half precision the kernel's own totals, which the model's weights came from, are off by up to 1e-4; so are the sums.
    if half:
        np.testing.assert_allclose(sums.received[0], plain(q, k, scale).sum(1).numpy(), rtol=2e-4, atol=5e-5)
    else:
        assert_same(sums, plain(q, k, scale)[None], 5e-5)
    assert sums.row_error < (2e-4 if half else 1e-4)
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True)[0])


def test_a_wrong_total_shows_in_the_row_error():
    q, k = torch.randn(2, 20, 8), torch.randn(2, 20, 8)
    level = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf).logsumexp(-1)
    right, wrong = Reading(1, 20), Reading(1, 20)
    right.take(q, k, level=level)
    level[1, 7] += 0.01
    wrong.take(q, k, level=level)
    assert right.sums().row_error < 1e-5 and 0.009 < wrong.sums().row_error < 0.011


@pytest.mark.parametrize("dtype, within", [(torch.float32, 1e-4), (torch.float16, 1e-2)])
@pytest.mark.parametrize("kind", ["bias on the way out", "sliding window"])
@torch.inference_mode()
def test_a_row_padded_on_the_left_counts_as_the_prompt_alone(kind, dtype, within):
    """AT-07: the fully masked rows of a padded batch never reach the sums, and position 0 is the first real token."""
    net = network(KINDS[kind][0], **KINDS[kind][1]).to(dtype)
    short, long = prompt_of(1, 3), prompt_of(2, 6)
    ids, mask = torch.tensor([(0, 0, 0) + short, long]), torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])
    caught = []

    def catch(module, query, key, value, attention_mask, scaling=None, **others):
        caught.append((query, key, scaling))
        return torch_attention.sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling)

    AttentionInterface.register("caught", catch)
    torch_attention.AttentionMaskInterface.register("caught", torch_attention.sdpa_mask)
    with torch_attention.switched(net, "caught"):
        net(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False)
    for row, prompt in enumerate((short, long)):
        first = len(long) - len(prompt)
        reading = Reading(2, len(prompt))
        for query, key, scaling in caught:
            reading.take(query[row, :, first:], key[row, :, first:], scale=scaling, window=8 if kind == "sliding window" else None)
        alone = model(net).attention(prompt)
        assert np.isfinite(reading.sums().received).all() and reading.sums().received.shape == alone.received.shape
        np.testing.assert_allclose(reading.sums().received, alone.received, atol=within)


def test_a_learned_sink_takes_its_share_and_nothing_is_scaled_up_again():
    """AT-09: logits 0, 0 and a learned sink of 0: a third each."""
    reading = Reading(1, 2)
    reading.take(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), sink=torch.zeros(1))
    sums = reading.sums()
    assert sums.near[0, 0, :, :].astype(float).ravel() / NEAR_SCALE == pytest.approx([1 / 2, 1 / 3, 1 / 3, 0], abs=3e-4)
    assert sums.received[0, 0] == pytest.approx([1 / 2 + 1 / 3, 1 / 3]) and sums.learned[0][0] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert sums.row_error < 1e-6


def test_the_soft_cap_comes_before_the_softmax():
    """AT-13 (a): scores 60 and 50 under a cap of 50 give .9735 and .0265."""
    reading = Reading(1, 2)
    reading.take(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[60.0], [50.0]]]), scale=1.0, cap=50.0)
    received = reading.sums().received[0, 0]
    assert received - [1, 0] == pytest.approx([0.9735, 0.0265], abs=1e-4)


def test_a_float64_sum_of_many_chunks_is_rounded_once():
    gen = torch.Generator().manual_seed(2)
    q, k = torch.randn(1, 3000, 4, generator=gen), torch.randn(1, 3000, 4, generator=gen)
    reading = Reading(1, 3000, chunk=16)
    reading.take(q, k)
    want = plain(q, k, 0.5).sum(1).numpy()
    assert np.abs(reading.sums().received[0] / want - 1).max() < 2e-6


@pytest.mark.parametrize("mask, window", [
    (torch.ones(7, 7).tril().bool(), None),
    (torch.ones(7, 7).tril().triu(-2).bool(), 3),
    (torch.zeros(7, 7).masked_fill(torch.ones(7, 7).triu(1).bool(), torch.finfo(torch.float32).min), None),
])
def test_a_mask_is_known_by_its_band(mask, window):
    assert torch_sums.band_of(mask) == window


@pytest.mark.parametrize("mask, word", [
    (torch.ones(6, 6).bool(), "neither causal"),
    (torch.block_diag(torch.ones(3, 3).tril(), torch.ones(3, 3).tril()).bool(), "neither causal"),  # attention in blocks of three
    (torch.ones(3, 6).bool(), "not the prompt's"),
    (torch.arange(36.0).view(6, 6) * -0.1, "numbers of its own"),  # a bias for distance
])
def test_other_masks_are_refused(mask, word):
    with pytest.raises(torch_sums.Unreadable, match=word):
        torch_sums.band_of(mask)


@pytest.mark.parametrize("kind", ["grouped queries, tied", "soft cap"])
def test_progress_moves_through_every_layer_and_stops_the_reading(kind):
    net = network(KINDS[kind][0], **KINDS[kind][1])
    m, ids, shares = model(net), prompt_of(1, 50), []
    assert m.attention(ids, lambda share: bool(shares.append(share))) is not None
    assert shares == sorted(shares) and len(shares) >= 2 and shares[-1] == 1.0
    assert m.attention(ids, lambda share: True) is None
    assert net.config._attn_implementation in ("sdpa", "eager") and m.attention(ids) is not None


def test_near_queries_are_left_out_past_their_limit_but_their_mean_is_kept():
    q, k = torch.randn(2, 30, 8), torch.randn(1, 30, 8)
    whole, small = Reading(1, 30), Reading(1, 30, near_limit=100)
    whole.take(q, k)
    small.take(q, k)
    assert small.sums().near is None
    np.testing.assert_array_equal(small.sums().near_mean, whole.sums().near_mean)


def test_prompts_too_long_and_empty_are_refused():
    m = model(network("Llama"), context=20)
    with pytest.raises(RequestError, match="at most 20 tokens; 21"):
        m.attention(prompt_of(1, 21))
    with pytest.raises(RequestError, match="empty"):
        m.attention(())


def test_the_bundled_model_gives_its_eager_numbers(smollm2_folder):
    """AT-01 on real weights, in float32: sums of 300 tokens, lean pass and flash kernel against eager matrices."""
    net = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval().requires_grad_(False)
    text = "Where attention drains: the first token takes half of all, whatever it says. " * 30
    ids = transformers.AutoTokenizer.from_pretrained(smollm2_folder)(text).input_ids[:300]
    matrices = eager(net, ids)
    m = model(net)
    assert m._lean is not None
    sums = m.attention(ids)
    queries = np.arange(300, 0, -1)
    np.testing.assert_allclose(sums.received / queries, matrices.sum(2).numpy() / queries, atol=1e-4)
    np.testing.assert_allclose(sums.near_mean, banded(matrices).mean((0, 1)), atol=1e-4)
    assert sums.row_error < 1e-3 and sums.windows == (None,) * 30
    assert sums.received.mean((0, 1))[0] / 300 > 0.3  # the literature's sink
