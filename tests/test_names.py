"""Names to models: what is wrong with a name or a folder is said in one sentence."""

from __future__ import annotations

import json
import struct

import pytest

from engine.errors import RequestError
from engine.models import hub, registry, source
from tests.folders import folder, refused, tiny  # noqa: F401


@pytest.mark.parametrize("name", ["/modele/nie-ma", "./nie-ma", "~/nie-ma", "../nie/ma", "a/b/c", "C:\\modele", "model.gguf",
                                  "nie-ma/model.gguf"])
def test_a_missing_path_is_a_path_error_and_never_goes_to_the_hub(name, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda name: pytest.fail("sent to the hub"))
    monkeypatch.setattr(hub, "cached", lambda name: pytest.fail("looked up as a hub id"))
    said = refused(name)
    assert name in said and "no file or folder" in said
    assert "safetensors" in said and ".gguf" in said  # which formats can be read


def test_a_folder_that_exists_is_never_sent_to_the_hub(folder, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    monkeypatch.setattr(hub, "fetch", lambda name: pytest.fail("sent to the hub"))
    assert source.resolve(f"{folder.parent.name}/model").folder == folder


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "x" * 100_000, "<script>alert(1)</script>", "org/na me", "org/..", "-",
                                  "żółw/x", "\n\n", "org/\x1b[31m"])
def test_a_hostile_name_is_one_sentence(name):
    assert "\0" not in (said := refused(name)) and "\x1b" not in said


def test_a_folder_with_a_config_only(folder):
    (folder / "model.safetensors").unlink()
    assert "no weights" in (said := refused(str(folder))) and str(folder) in said


def test_a_folder_without_a_config(tmp_path):
    assert "has no config.json" in refused(str(tmp_path))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', "\x00\xff"])
def test_a_damaged_config(folder, content):
    (folder / "config.json").write_text(content, encoding="latin-1")
    assert "config.json" in refused(str(folder))


def test_pickled_weights_are_refused_and_named(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin" in (said := refused(str(folder))) and "pickle" in said
    assert "pickle" in refused(str(folder / "pytorch_model.bin"))


def test_weights_without_a_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "no tokenizer" in refused(str(folder))


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, -1])
def test_truncated_weights_are_named_damaged(folder, keep):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    assert "damaged" in (said := refused(str(folder))) and "model.safetensors" in said


@pytest.mark.parametrize("header", [b"[]", b"{}  ", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": []}}',
                                    b"\xff\xff\xff\xff"])
def test_a_nonsense_safetensors_header_is_one_sentence(folder, header):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "safetensors" in refused(str(folder))


def test_a_missing_shard_is_named(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}))
    assert "model-00002-of-00002.safetensors" in refused(str(folder))


@pytest.mark.parametrize("index", ["{", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../../etc/passwd"}}',
                                   '{"weight_map": {"a": 3}}'])
def test_a_damaged_index_is_one_sentence(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    assert "index.json is damaged" in refused(str(folder))


def test_a_file_that_is_no_model(folder):
    assert "name the folder" in refused(str(folder / "model.safetensors"))
    assert "is not a model" in refused(str(folder / "config.json"))


def test_an_unknown_backend_or_bundled_name():
    with pytest.raises(RequestError, match="no backend 'jax'; this version has auto, torch, mlx"):
        registry.load("bundled:smollm2-135m", backend="jax")
    assert "bundled are smollm2-135m, smollm2-draft" in refused("bundled:gpt-5")
    assert "the bundled one is bundled:smollm2-135m" in refused("smollm2-135m")


def test_weights_of_an_unknown_architecture_are_one_sentence(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nieznany", "architectures": ["Nieznany"]}))
    with pytest.raises(RequestError) as e:
        registry.load(str(folder), "cpu", "float32")
    assert "\n" not in str(e.value) and str(folder) in str(e.value)
