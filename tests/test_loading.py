"""Loading a folder through the torch adapter: whatever its files and its config.json disagree on is said, never made up."""

from __future__ import annotations

import json

import pytest

from engine.errors import RequestError
from engine.models import registry
from tests.folders import folder, tiny  # noqa: F401


@pytest.mark.parametrize("change, said", [
    ({"num_hidden_layers": 4}, "model.layers.2.input_layernorm.weight is missing, and 17 more differ"),
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
