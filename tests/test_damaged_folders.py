"""A folder whose files are damaged, or are another kind of model's, is refused before anything is loaded, with file and field named."""

from __future__ import annotations

import json
import struct

import pytest

from engine.models import registry, source, weights
from tests.folders import folder, refused, tiny  # noqa: F401


def change(file, **fields):
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, **fields}))


@pytest.mark.parametrize("name, value", [
    ("max_position_embeddings", -512), ("max_position_embeddings", 0), ("max_position_embeddings", "512"), ("max_position_embeddings", 512.5),
    ("max_position_embeddings", 10**400), ("num_hidden_layers", 0), ("num_hidden_layers", -1), ("num_hidden_layers", True), ("num_hidden_layers", [2]),
    ("hidden_size", None), ("hidden_size", {}), ("num_attention_heads", 0), ("num_attention_heads", "4"), ("num_key_value_heads", 3),
    ("num_key_value_heads", -2), ("num_key_value_heads", []), ("intermediate_size", "64"), ("vocab_size", 0), ("vocab_size", float("nan")),
    ("head_dim", 0), ("rms_norm_eps", float("nan")), ("rms_norm_eps", "x"), ("rope_theta", -1), ("rope_theta", float("inf")),
    ("rope_parameters", 3), ("tie_word_embeddings", "yes"), ("eos_token_id", "x"), ("eos_token_id", [1, "x"]), ("eos_token_id", 1.5),
    ("architectures", "LlamaForCausalLM"), ("architectures", [1]), ("text_config", []), ("quantization_config", "4 bit"), ("bos_token_id", [1]),
    ("pad_token_id", "x"), ("dtype", "float99"), ("torch_dtype", 16), ("hidden_act", 3), ("layer_types", 3), ("layer_types", ["full_attention"]),
    ("layer_types", [None, None])])
def test_a_field_of_config_json_that_cannot_be_is_named_with_its_file(folder, name, value):
    change(folder / "config.json", **{name: value})
    said = refused(str(folder))
    assert f"{folder / 'config.json'} is damaged: {name} is " in said


def test_a_field_of_the_text_part_is_named_by_its_path(folder):
    change(folder / "config.json", text_config={"num_hidden_layers": -3})
    assert "text_config.num_hidden_layers is -3" in refused(str(folder))


@pytest.mark.parametrize("name, value, said", [
    ("rope_parameters", {"rope_type": "linear", "factor": "x"}, "rope_parameters.factor is 'x'"), ("rope_scaling", {"factor": -1}, "rope_scaling.factor is -1"),
    ("rope_parameters", {"full_attention": {"rope_theta": None}, "sliding_attention": {"rope_theta": 0}}, "rope_parameters.sliding_attention.rope_theta is 0")])
def test_a_damaged_rope_is_named_down_to_its_number(folder, name, value, said):
    change(folder / "config.json", **{name: value})
    assert said in refused(str(folder))


@pytest.mark.parametrize("fields", [{"chat_template": 5}, {"chat_template": [1]}, {"eos_token": 5}, {"bos_token": {"content": 1}}, {"tokenizer_class": 7},
                                    {"added_tokens_decoder": [1]}, {"added_tokens_decoder": {"x": {"content": "a"}}}, {"added_tokens_decoder": {"1": 2}}])
def test_a_field_of_tokenizer_config_that_cannot_be_is_named(folder, fields):
    change(folder / "tokenizer_config.json", **fields)
    assert f"tokenizer_config.json is damaged: {next(iter(fields))} is " in refused(str(folder))


def test_a_tokenizer_that_fails_at_a_text_is_one_sentence(folder):
    from engine import preflight
    from engine.request import Asked, EntropyRequest

    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["vocab"], data["added_tokens"] = {"Ala": 6}, []
    file.write_text(json.dumps(data))
    with pytest.raises(source.RequestError, match="The tokenizer of model cannot read this text .WordLevel error"):
        preflight.texts(EntropyRequest((Asked("kot"),), str(folder), raw=True))


@pytest.mark.parametrize("content, said", [
    ("{", "is damaged: it is not JSON"), ("", "is damaged: it is not JSON"), ("\x00\xff", "is damaged: it is not JSON"), ("[1]", "holds no JSON object"),
    ("null", "holds no JSON object"), ('{"eos_token_id": "x"}', "eos_token_id is 'x'"), ('{"eos_token_id": [2, null]}', "eos_token_id is [2, None]"),
    ('{"eos_token_id": true}', "eos_token_id is true"), ('{"eos_token_id": 2.0}', "eos_token_id is 2.0"),
    ('{"temperature": "warm"}', "temperature is 'warm'"), ('{"top_k": [50]}', "top_k is [50]")])
@pytest.mark.parametrize("backend", ["torch", "mlx"])
def test_a_damaged_generation_config_is_named_with_its_field_whatever_the_engine(folder, backend, content, said):
    (folder / "generation_config.json").write_text(content, encoding="latin-1")
    with pytest.raises(source.RequestError) as e:
        registry.load(str(folder), "cpu", "float32", backend)
    assert said in str(e.value) and "generation_config.json" in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize("backend", ["torch", "mlx"])
def test_a_default_that_is_no_number_is_ignored_with_a_note(folder, backend):
    (folder / "generation_config.json").write_text('{"temperature": NaN, "top_p": Infinity, "min_p": -1, "top_k": 20, "eos_token_id": [2, 4000, -1]}')
    model = registry.load(str(folder), "cpu", "float32", backend)
    notes = " ".join(model.facts.notes)
    assert model.defaults == {"top_k": 20} and model.ends == (2,)
    for said in ("The default temperature in generation_config.json is nan", "top_p in generation_config.json is inf", "min_p in",
                 "The end token 4,000 has no row in the model, which has 50"):
        assert said in notes


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_side_file_of_the_tokenizer_is_named(folder, name, content):
    (folder / name).write_text(content)
    assert name in refused(str(folder))


def rewritten(folder, edit):
    """model.safetensors with another header over the same data."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    edit(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])


NORM = "model.norm.weight"


@pytest.mark.parametrize("edit", [
    lambda h: h[NORM].update(shape=[31]), lambda h: h[NORM].update(shape=[-32]), lambda h: h[NORM].update(shape=["32"]),
    lambda h: h[NORM].update(shape=[32.0]), lambda h: h[NORM].update(shape=None), lambda h: h[NORM].update(dtype="BF16"), lambda h: h[NORM].pop("dtype"),
    lambda h: h[NORM].update(data_offsets=[0, 128]), lambda h: h[NORM].update(data_offsets=[5, 1]), lambda h: h[NORM].update(data_offsets=[1]),
    lambda h: h.update({NORM: 5}), lambda h: h.pop(NORM)])
def test_a_header_that_lies_about_its_data_is_refused(folder, edit):
    rewritten(folder, edit)
    assert "model.safetensors is damaged" in refused(str(folder))


def test_an_index_that_names_what_no_file_holds_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    names = list(weights.read_header(folder / "part.safetensors"))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys([*names, "model.layers.1.extra.weight"], "part.safetensors")}))
    assert "names model.layers.1.extra.weight, which none of its files holds" in refused(str(folder))
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "part.safetensors")}))
    assert source.resolve(str(folder)).folder == folder


@pytest.mark.parametrize("fields, said", [
    ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "is an encoder, which reads in both directions (bert, BertForMaskedLM)"),
    ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "is an encoder"), ({"model_type": "modernbert"}, "is an encoder"),
    ({"model_type": "t5", "architectures": ["T5WithLMHeadModel"]}, "is an encoder-decoder"), ({"model_type": "bart", "architectures": ["BartModel"]}, "is an encoder-decoder"),
    ({"is_encoder_decoder": True}, "is an encoder-decoder"), ({"architectures": ["LlamaForSequenceClassification"]}, "has another head"),
    ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "reads in both directions"), ({"is_causal": False}, "reads in both directions")])
def test_a_network_that_does_not_write_from_left_to_right_is_refused_by_its_config(folder, fields, said):
    change(folder / "config.json", **fields)
    assert said in refused(str(folder)) and "choose a causal language model" in refused(str(folder))


@pytest.mark.parametrize("kind, said", [("Bert", "is an encoder, which reads in both directions (bert, BertForMaskedLM)"),
                                        ("ModernBert", "is an encoder"), ("T5", "is an encoder-decoder (t5, T5ForConditionalGeneration)")])
def test_a_real_encoder_with_matching_weights_is_refused(folder, kind, said):
    import transformers

    sizes = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0)
    if kind == "T5":
        sizes = dict(vocab_size=50, d_model=32, d_ff=64, num_layers=2, num_heads=4, d_kv=8)
    head = "T5ForConditionalGeneration" if kind == "T5" else f"{kind}ForMaskedLM"
    getattr(transformers, head)(getattr(transformers, f"{kind}Config")(**sizes)).save_pretrained(folder)
    assert said in refused(str(folder))


@pytest.mark.parametrize("fields", [{"architectures": ["LlamaForCausalLM"]}, {"architectures": None}, {"architectures": ["LlamaModel"]},
                                    {"model_type": "bert", "is_decoder": True, "architectures": ["BertLMHeadModel"]}, {"is_causal": True},
                                    {"model_type": "bart", "architectures": ["BartForCausalLM"]}])
def test_a_network_that_may_be_causal_is_let_through(folder, fields):
    change(folder / "config.json", **fields)
    assert source.resolve(str(folder)).folder == folder


def test_a_network_that_calls_itself_causal_and_is_not_is_found_out(tmp_path):
    """A BERT that says it is a decoder reads from left to right in transformers; one that is made to look behind is caught at the load."""
    import torch
    import transformers

    from engine.models.torch_model import require_causal

    made = transformers.BertConfig(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, is_decoder=True)
    torch.manual_seed(0)
    network = transformers.BertLMHeadModel(made).eval()
    require_causal(network, "B")
    network.config.is_decoder = False
    both = transformers.BertLMHeadModel(network.config).eval()
    both.load_state_dict(network.state_dict())
    with pytest.raises(source.RequestError, match="^B is no causal model: a token's scores change with the token behind it"):
        require_causal(both, "B")
