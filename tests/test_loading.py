"""Loading a folder through the torch adapter: whatever its files and its config.json disagree on is said, never made up."""

from __future__ import annotations

import json

import pytest
import transformers

from engine.errors import RequestError
from engine.models import registry
from engine.models.torch_model import readable
from tests.folders import folder, tiny  # noqa: F401


@pytest.mark.parametrize("change, said", [
    ({"num_hidden_layers": 4}, "holds the weights of 2 layers, and its config.json counts 4: those from layer 2 on"),
    ({"tie_word_embeddings": False}, "lm_head.weight is missing; "),
    ({"intermediate_size": 96}, "model.layers.0.mlp.down_proj.weight has the shape (32, 64) instead of (32, 96), and 5 more differ"),
])
def test_weights_that_the_config_does_not_describe_are_refused(folder, change, said):
    """transformers fills missing weights with random numbers and warns; a model of these would be another one."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(RequestError) as e:
        registry.load(str(folder), "cpu", "float32")
    assert said in str(e.value) and str(folder) in str(e.value) and "\n" not in str(e.value)


def test_longrope_is_read_up_to_its_original_length():
    """Past it every key is turned another way: plain, block by block and afresh would be three different answers."""
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4,
            "original_max_position_embeddings": 64, "factor": 8.0}
    config = transformers.Phi3Config(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
                                     original_max_position_embeddings=64, pad_token_id=0, rope_parameters=rope)
    assert readable(config) == 64
    assert readable(transformers.LlamaConfig(max_position_embeddings=512)) == 512
    assert readable(transformers.BloomConfig()) is None
