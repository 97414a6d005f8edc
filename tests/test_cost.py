"""What a model costs: FLOPs, parameters and memory, from the shapes of its weights alone."""

from __future__ import annotations

import pytest

from engine.errors import RequestError
from engine.models import cost, memory, registry, source
from tests.folders import tiny  # noqa: F401

QWEN = dict(vocab_size=151936, tie_word_embeddings=True)
HALF = dict(QWEN, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864)
THREE = dict(QWEN, hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=2, intermediate_size=11008)


def shapes_of(config) -> dict[str, tuple[int, ...]]:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):  # shapes alone
        return {name: tuple(p.shape) for name, p in AutoModelForCausalLM.from_config(config).named_parameters()}


@pytest.mark.parametrize("settings, flops", [(HALF, 987_922_432), (THREE, 6_171_394_048)])
def test_flops_of_the_published_pair(settings, flops):
    from transformers import Qwen2Config

    assert cost.flops_per_token(shapes_of(Qwen2Config(**settings)), settings) == flops


def test_a_tied_head_counts_once_and_an_untied_embedding_not_at_all():
    from transformers import LlamaConfig

    sizes = dict(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    tied, untied = (dict(sizes, tie_word_embeddings=t) for t in (True, False))
    of_tied, of_untied = shapes_of(LlamaConfig(**tied)), shapes_of(LlamaConfig(**untied))
    assert cost.flops_per_token(of_tied, tied) == cost.flops_per_token(of_untied, untied) == 2 * (4 * 32 * 32 + 3 * 32 * 64 + 100 * 32)
    assert cost.parameters(of_untied, untied) - cost.parameters(of_tied, tied) == 100 * 32
    copied = {**of_untied}  # a file that stores the tied head twice
    assert cost.parameters(copied, tied) == cost.parameters(of_tied, tied)
    assert cost.flops_per_token(copied, tied) == cost.flops_per_token(of_tied, tied)


def test_only_the_experts_a_token_visits_count_and_positions_do_not():
    moe = {"model.layers.0.mlp.experts.0.up_proj.weight": (10, 10), "model.layers.0.mlp.experts.1.up_proj.weight": (10, 10),
           "model.layers.0.mlp.shared_expert.up_proj.weight": (10, 10), "lm_head.weight": (5, 10), "model.embed_tokens.weight": (5, 10)}
    assert cost.flops_per_token(moe, {"num_experts_per_tok": 1, "num_experts": 2}) == 2 * (100 + 100 + 50)
    assert cost.flops_per_token({"transformer.wte.weight": (5, 10), "transformer.wpe.weight": (64, 10)}, {}) == 2 * 50


def test_facts_read_from_headers_equal_the_loaded_models(tiny):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    facts = source.config(str(tiny))
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    assert (facts["layers"], facts["width"], facts["kv_heads"], facts["head_dim"], facts["context"]) == (2, 32, 2, 8, 512)
    assert (facts["family"], facts["architecture"], facts["tied_head"], facts["weights"]) == ("llama", "LlamaForCausalLM", True, "float32")


def test_the_forecast_adds_up_and_counts_a_self_draft_once(tiny):
    one, two = memory.forecast([str(tiny)], "float32", 100), memory.forecast([str(tiny), str(tiny)], "float32", 100)
    part = one.parts[0]
    assert part.weights_bytes == 4 * source.config(str(tiny))["parameters"]
    assert part.kv_cache_bytes == 2 * 2 * 2 * 8 * 100 * 4  # keys and values, layers, heads, width of a head, tokens, bytes
    assert one.total_bytes == part.weights_bytes + part.kv_cache_bytes + part.working_bytes
    assert two.total_bytes == one.total_bytes + part.kv_cache_bytes + part.working_bytes
    assert one.fits and one.machine_bytes >= one.available_bytes > 0
    assert one.sentence == f"0.0 of {one.machine_bytes / 2**30:.0f} GB"
    assert memory.forecast([str(tiny)], "bfloat16", 100).parts[0].weights_bytes * 2 == part.weights_bytes


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(tiny, monkeypatch):
    from engine.models import torch_model

    monkeypatch.setattr(memory, "room", lambda device: (16 * 2**30, 1000))
    monkeypatch.setattr(torch_model, "load", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(RequestError, match=r"needs about 0\.0 GB of memory in float32, and 0\.0 of 16 GB are free"):
        registry.load(str(tiny), "cpu", "float32")
    assert not memory.forecast([str(tiny)]).fits
    assert memory.forecast([str(tiny)], held=2**30).fits  # what a loaded model holds does not count against it
