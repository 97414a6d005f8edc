"""Files of two models in one folder: a tokenizer with other ids than the weights have rows, weights that the config does not count."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file, save_file

from engine import prompts
from engine.errors import RequestError
from engine.models import fit, gguf_header, leftover, registry, source
from engine.trace import Settings
from tests.decoded import decoded
from tests.folders import refused
from tests.scripted import letters
from tests.toys import tiny_llama

ENGINES = pytest.mark.parametrize("backend", ["torch", "mlx"])


def made(folder, words: int, rows: int, **config):
    """A tiny Llama of `rows` rows with a tokenizer of `words` words."""
    place = tiny_llama(folder, letters(rows).tokenizer, vocab_size=rows, **config)
    file = place / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["vocab"] = {f"t{i}": i for i in range(words)}
    file.write_text(json.dumps(data))
    return place


def with_added(place, *ids: int):
    """The folder with added tokens `<extra_ID>`; a tokenizer gives them its next free ids."""
    file = place / "tokenizer.json"
    data = json.loads(file.read_text())
    data["added_tokens"] += [{"id": i, "content": f"<extra_{i}>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                              "special": False} for i in ids]
    file.write_text(json.dumps(data))
    return place


@ENGINES
def test_a_tokenizer_with_500_entries_more_than_rows_is_refused_with_both_sizes(tmp_path, backend):
    place = made(tmp_path / "m", 550, 50)
    with pytest.raises(RequestError) as e:
        registry.load(str(place), "cpu", "float32", backend)
    said = str(e.value)
    assert said == str(pytest.raises(RequestError, fit.check, str(place)).value)
    assert "ids up to 549" in said and "has 50 rows" in said and "tokenizer.json of the same model" in said


@ENGINES
def test_added_tokens_without_a_row_are_told_and_read_as_letters(tmp_path, backend):
    place = with_added(made(tmp_path / "m", 50, 50), *range(50, 550))
    model = registry.load(str(place), "cpu", "float32", backend)
    note = next(n for n in model.facts.notes if "<extra_50>" in n)
    assert "ids up to 549" in note and "has 50 rows" in note and "499 more" in note
    assert max(prompts.build(model.vocabulary, "t3 <extra_60> t4", raw=True).ids) < 50
    with model_session(model) as session, pytest.raises(RequestError, match="has no row for token 60; its embedding has 50"):
        session.feed([3, 60], 1)


@ENGINES
def test_a_template_that_writes_a_token_without_a_row_is_refused(tmp_path, backend):
    place = with_added(made(tmp_path / "m", 50, 50), 50)
    (place / "chat_template.jinja").write_text("{% for m in messages %}<extra_50>{{ m['content'] }}{% endfor %}")
    model = registry.load(str(place), "cpu", "float32", backend)
    with pytest.raises(RequestError, match=r"The token <extra_50> \(50\) in this prompt has no row"):
        prompts.build(model.vocabulary, "t3")


@ENGINES
def test_rows_that_no_token_has_are_common_padding_and_are_never_written(tmp_path, backend):
    """500 rows more than tokens: no word of it, and none of those rows is ever chosen, whatever the weights say."""
    model = registry.load(str(made(tmp_path / "m", 20, 520)), "cpu", "float32", backend)
    assert model.width == model.facts.vocabulary == 20
    assert not [n for n in model.facts.notes if "row" in n or "embedding" in n]
    model.ends = ()
    for draft in (None, model):
        assert max(decoded(model, draft, (1, 2, 3), Settings(max_tokens=24, gamma=3)).ids) < 20


def test_padding_tokens_that_a_converter_wrote_are_no_text():
    words = letters(4).tokenizer
    words.add_tokens(["[PAD4]", "[PAD5]"])
    from engine.tokens import Vocabulary

    assert (Vocabulary(words).size, Vocabulary(words).usable) == (6, 4)


def test_ids_past_the_rows_of_a_gguf_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    header = gguf_header.Header("llama", {"llama.block_count": 1}, {"token_embd.weight": gguf_header.Tensor("F32", (3, 8))})
    monkeypatch.setattr(source, "locate", lambda name: file)
    file.write_bytes(b"")
    monkeypatch.setattr(gguf_header, "read_header", lambda place: header)
    monkeypatch.setattr(gguf_header, "read_tokens", lambda place: {"a": 0, "b": 1, "c": 2, "d": 3})
    with pytest.raises(RequestError, match="ids up to 3, and the embedding of its weights has 3 rows"):
        fit.check(str(file))


def model_session(model):
    from contextlib import closing

    return closing(model.session(8))


def counted(place, layers: int):
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return str(place)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_weights_of_layers_that_the_config_does_not_count_are_refused_and_named(tmp_path, layers):
    said = refused(counted(tiny_llama(tmp_path / "m", num_hidden_layers=6), layers))
    assert f"the weights of 6 layers, and its config.json counts {layers}: model.layers.{layers}.input_layernorm.weight" in said
    assert f"and {9 * (6 - layers) - 1} more would not be used" in said


def with_tensors(place, **tensors):
    import numpy as np

    file = place / "model.safetensors"
    save_file({**load_file(file), **{name.replace("__", "."): np.zeros(shape, np.float32) for name, shape in tensors.items()}}, file, {"format": "pt"})
    return str(place)


def test_a_tensor_that_nothing_uses_stays_on_the_run_as_a_note(tmp_path):
    place = tiny_llama(tmp_path / "m")
    assert not registry.load(str(place), "cpu", "float32").facts.notes
    extra = {f"adapter__{n}__weight": (2, 2) for n in range(5)}
    notes = registry.load(with_tensors(place, **extra), "cpu", "float32").facts.notes
    assert len(notes) == 1 and "hold 5 tensors that the model" in notes[0] and "adapter.0.weight" in notes[0] and "and 2 more" in notes[0]


def test_mlx_refuses_a_tensor_that_nothing_uses_and_names_it(tmp_path):
    with pytest.raises(RequestError, match="adapter.0.weight"):
        registry.load(with_tensors(tiny_llama(tmp_path / "m"), adapter__0__weight=(2, 2)), "cpu", "float32", "mlx")


def test_what_folders_hold_with_good_reason_is_no_leftover(tmp_path):
    place = with_tensors(tiny_llama(tmp_path / "m"), model__layers__0__self_attn__rotary_emb__inv_freq=(4,), lm_head__weight=(50, 32))
    assert not registry.load(place, "cpu", "float32").facts.notes
    assert leftover.note(["vision_tower.a.weight", "model.visual.b", "mtp.fc.weight", "multi_modal_projector.x", "h.0.attn.masked_bias"], False) is None
    assert leftover.note(["lm_head.weight"], True) is None and "lm_head.weight" in leftover.note(["lm_head.weight"], False)


@pytest.mark.parametrize("config, names, fits", [
    ({"num_hidden_layers": 2, "num_nextn_predict_layers": 1}, ["model.layers.0.a", "model.layers.2.eh_proj.weight"], True),
    ({"num_hidden_layers": 2}, ["model.layers.0.a", "model.layers.2.eh_proj.weight"], False),
    ({"num_hidden_layers": 2}, ["model.layers.1.a", "model.layers.1.b", "vision_tower.layers.30.a", "mtp.layers.3.a"], True),
    ({"text_config": {"num_hidden_layers": 1}, "num_hidden_layers": 9}, ["language_model.model.layers.1.a"], False),
    ({"n_layer": 1, "model_type": "gpt2"}, ["h.0.attn.weight", "h.1.attn.weight"], False),
    ({"num_hidden_layers": 3, "model_type": "zamba2"}, ["model.layers.0.a"], True)])
def test_the_layers_counted_are_the_text_models_own(tmp_path, config, names, fits):
    if fits:
        leftover.require_layers(config, names, tmp_path)
    else:
        with pytest.raises(RequestError, match="would not be used"):
            leftover.require_layers(config, names, tmp_path)
