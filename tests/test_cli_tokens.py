"""`python -m engine tokens`, and the names it takes: any tokenizer, and never a model."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import types

import pytest

from engine.__main__ import main
from engine.errors import RequestError
from engine.models import bundled, gguf_header, tokenizers
from engine.tokens import Vocabulary
from tests import toys
from tests.folders import cache, in_cache, tiny  # noqa: F401
from tests.test_gguf import llama, write_gguf  # noqa: F401

TEXT = "Zażółć gęślą jaźń"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two folders with a tokenizer and nothing else."""
    folder = tmp_path_factory.mktemp("tokenizers")
    toys.sentencepiece_like().save_pretrained(folder / "pieces")
    toys.byte_level(toys.CHATML).save_pretrained(folder / "bytes")
    return [str(folder / "pieces"), str(folder / "bytes")]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def ask(pair, *more):
    return ["tokens", *(part for name in pair for part in ("--tokenizer", name)), *more]


def printed(capsys, arguments):
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


# ── the command ──


def test_json_has_lanes_with_ids_bytes_and_characters(pair, capsys):
    data = printed(capsys, ask(pair, "--text", TEXT, "--json", "-"))
    assert [lane["tokenizer"] for lane in data["lanes"]] == pair and [lane["title"] for lane in data["lanes"]] == ["pieces", "bytes"]
    for name, lane in zip(pair, data["lanes"]):
        assert "".join(t["bytes"] for t in lane["tokens"]) == TEXT.encode().hex()
        assert [t["id"] for t in lane["tokens"]] == Vocabulary.load(name).encode(TEXT)
        for t in lane["tokens"]:
            assert bytes.fromhex(t["bytes"]) in TEXT[t["start"]:t["end"]].encode()
        assert not lane["normalised"] and lane["reads"] is None
    first = data["lanes"][0]
    assert [TEXT[t["start"]:t["end"]] for t in first["tokens"]] == ["Za", "ż", "ółć", " gęś", "lą", " jaźń"]
    assert first["prefix"] == " " and "puts a space in front" in first["notes"][0] and first["tokens_per_word"] == 2.0
    # The pieces cut at bytes 2 4 10 17 20 of 26, the bytes everywhere.
    assert {k: data["agreement"][k] for k in ("both", "only_first", "only_second", "recall")} == {
        "both": 5, "only_first": 0, "only_second": 20, "recall": 1.0}
    assert data["agreement"]["precision"] == 5 / 25 and data["agreement"]["f1"] == 10 / 30 == data["agreement"]["pairs"][0]["f1"]
    assert data["diacritics"]["letters"] == 9 and [one["split"] for one in data["diacritics"]["lanes"]] == [0, 9]
    assert data["diacritics"]["places"][0] == {"letter": "ż", "start": 2, "end": 3, "touched_by": [0, 1], "split_by": [1], "lone_cut": True}


def test_one_tokenizer_alone_three_and_the_same_one_twice(pair, capsys):
    assert printed(capsys, ask(pair[:1], "--text", TEXT, "--json", "-"))["agreement"] == {"pairs": [], "sentences": []}
    data = printed(capsys, ask([*pair, pair[0]], "--text", TEXT, "--json", "-"))
    assert len(data["agreement"]["pairs"]) == 3 and "f1" not in data["agreement"]
    assert [p["f1"] for p in data["agreement"]["pairs"]] == [10 / 30, 1.0, 10 / 30]


def test_the_table_shows_lanes_and_numbers_and_neither_space_marks_nor_raw_bytes(pair, capsys):
    assert main(ask(pair, "--text", "Zaż 😀 kot\n")) == 0
    out = capsys.readouterr().out
    assert "│Za│ż│·│byte F0│byte 9F│byte 98│byte 80 ⌊😀│" in out and "│byte C5│byte BC ⌊ż│·│" in out
    assert not {"▁", "Ġ", "\ufffd"} & set(out)
    for words in ("pieces and bytes agree on", "tokens  per word", "precision", "0 of 1 (0 %)", "1 of 1 (100 %)", "mismatched cuts touch"):
        assert words in out


def test_special_tokens_are_letters_unless_asked_otherwise(pair, capsys):
    for more, ids in (([], 10), (["--special"], 1)):
        data = printed(capsys, ask(pair[1:], "--text", "<|im_end|>", "--json", "-", *more))
        assert len(data["lanes"][0]["tokens"]) == ids and data["lanes"][0]["tokens"][0]["special"] == (ids == 1)


def test_a_file_standard_input_and_a_file_for_the_result(pair, capsys, tmp_path, monkeypatch):
    (tmp_path / "tekst.txt").write_bytes("\ufeffżółw\r\n".encode())
    out = tmp_path / "out.json"
    assert main(ask(pair, "--prompt-file", str(tmp_path / "tekst.txt"), "--json", str(out))) == 0
    assert json.loads(out.read_text())["text"] == "żółw" and "agree on" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO("kot\n".encode())))
    assert printed(capsys, ask(pair, "--prompt-file", "-", "--json", "-"))["text"] == "kot"


@pytest.mark.parametrize("text", ["😀👨\u200d👩\u200d👧", "\u0328\u0301", "שלום العربية", "a\u0000b".replace("\0", "\x01"), "<s></s>", "\t\n \r"])
def test_odd_texts_are_cut_like_any_other(pair, capsys, text):
    data = printed(capsys, ask(pair, "--text", text, "--json", "-"))
    assert all("".join(t["bytes"] for t in lane["tokens"]) == text.encode().hex() for lane in data["lanes"])
    assert main(ask(pair, "--text", text)) == 0 and "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments, word", [
    (["tokens", "--text", "a"], "--tokenizer"), (["tokens", "--tokenizer", "x"], "--text"), (["--text", ""], "empty"),
    (["--text", "a\udcff"], "not valid UTF-8"), (["--prompt-file", "/nie/ma"], "/nie/ma"), (["--text", "a", "--json", "/nie/ma/x"], "/nie/ma/x"),
    (["--text", "a", "--prompt-file", "b"], "--prompt-file"), (["--text", "a", "--tokenizer", "/nie/ma"], "/nie/ma"),
    (["--text", "a", "--tokenizer", "bundled:nic"], "nic"), (["--text", "a", "--tokenizer", ""], "No tokenizer is named"),
])
def test_a_wrong_request_is_one_line_and_status_2(pair, capsys, arguments, word):
    assert main(arguments if arguments[0] == "tokens" else ask(pair, *arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and word in err and "Traceback" not in err


def test_help_answers_without_a_model_library():
    code = ("import sys\nfrom engine.__main__ import main\n"
            "try: main(['tokens', '--help'])\nexcept SystemExit: pass\n"
            "assert not {'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules), 'heavy import'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "no model is loaded" in " ".join(done.stdout.split())


# ── names ──


def test_a_folder_or_file_needs_no_weights(pair, tmp_path):
    folder = tokenizers.load(pair[1])
    alone = tokenizers.load(pair[1] + "/tokenizer.json")
    assert folder.model == alone.model == "bytes" and folder.encode("ż<|im_end|>") == alone.encode("ż<|im_end|>")
    copy = shutil.copy(pair[0] + "/tokenizer.json", tmp_path / "moj.json")
    assert tokenizers.load(str(copy)).encode(TEXT) == tokenizers.load(pair[0]).encode(TEXT)


def test_a_folder_that_transformers_cannot_read_is_read_by_its_file(pair, tmp_path):
    settings = json.loads(open(pair[0] + "/tokenizer_config.json").read())
    for name, made in (("bare", None), ("own", settings | {"tokenizer_class": "TheirTokenizer", "auto_map": {
            "AutoTokenizer": ["theirs.TheirTokenizer", "theirs.TheirTokenizer"]}})):
        (tmp_path / name).mkdir()
        shutil.copy(pair[0] + "/tokenizer.json", tmp_path / name)
        if made:
            (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(made))
            (tmp_path / name / "theirs.py").write_text("raise SystemExit('their code was run')")
        assert tokenizers.load(str(tmp_path / name)).encode(TEXT) == tokenizers.load(pair[0]).encode(TEXT)
    (tmp_path / "bare" / "tokenizer.json").write_text("{broken")
    with pytest.raises(RequestError, match="tokenizer of bare cannot be read"):
        tokenizers.load(str(tmp_path / "bare"))


def test_a_draft_reads_with_the_tokenizer_of_its_verifier(tmp_path, pair):
    for kept, lender in (("draft", pair[1]), ("again", str(tmp_path / "draft"))):
        (tmp_path / kept).mkdir()
        (tmp_path / kept / "config.json").write_text(json.dumps({"model_type": "llama", "speclens_tokenizer": lender}))
    assert tokenizers.load(str(tmp_path / "draft")).encode("ż") == tokenizers.load(pair[1]).encode("ż")
    with pytest.raises(RequestError, match="names no usable tokenizer"):
        tokenizers.load(str(tmp_path / "again"))


def test_the_bundled_draft_and_verifier_cut_alike():
    assert tokenizers.load("bundled:smollm2-draft").encode(TEXT) == tokenizers.load("bundled:smollm2-135m").encode(TEXT)


def test_a_ggufs_tokenizer_is_kept_and_equals_that_of_its_model(llama, tmp_path, home, monkeypatch):  # noqa: F811
    file = write_gguf(llama, tmp_path / "maly.gguf")
    whole = Vocabulary.load(llama)
    first = tokenizers.load(str(file))
    assert first.model == "maly" and first.encode(TEXT) == whole.encode(TEXT)
    assert first.ids_by_token() == gguf_header.read_tokens(file)  # nothing that a library invents
    assert [p.name for p in (home / "tokenizers").iterdir()] == [tokenizers.gguf.sha256(file)[:16]]  # and nothing half-written
    assert not (home / "converted").exists()  # the model was not converted
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", refuse_gguf)
    assert tokenizers.load(str(file)).encode(TEXT) == whole.encode(TEXT)


def refuse_gguf(place, **options):
    from transformers import PreTrainedTokenizerFast

    assert "gguf_file" not in options, "read the file again"
    return PreTrainedTokenizerFast.from_pretrained(place)


def test_a_hub_tokenizer_in_the_local_cache_needs_neither_network_nor_weights(cache, tiny, monkeypatch):  # noqa: F811
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the network"))
    (in_cache(cache, tiny) / "model.safetensors").unlink()
    assert tokenizers.load("org/maly").encode("Ala ma") == toys.vocabulary(toys.chat_toy()).encode("Ala ma")


def test_from_the_hub_only_a_tokenizers_files_are_fetched(cache, tiny, monkeypatch):  # noqa: F811
    asked = {}
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    info = types.SimpleNamespace(siblings=[types.SimpleNamespace(rfilename=n, size=1) for n in names])
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)

    def download(name, **options):
        if options.get("local_files_only"):
            raise OSError("not here")
        asked.update(options)
        return str(tiny)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert tokenizers.load("org/maly").encode("Ala ma") == [6, 7]
    from fnmatch import fnmatch
    fetched = [n for n in names if any(fnmatch(n, p) for p in asked["allow_patterns"])]
    assert fetched == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    info.siblings = info.siblings[:2]
    with pytest.raises(RequestError, match="org/maly has no tokenizer"):
        tokenizers.load("org/maly")


@pytest.mark.parametrize("name, word", [("", "No tokenizer is named"), ("/nie/ma", "no file or folder"), ("x.json", "no file or folder"),
                                        ("slowo", "There is no tokenizer slowo"), ("a\0b", "There is no tokenizer"), ("a b/c", "There is no")])
def test_a_name_of_nothing_is_one_sentence(name, word):
    with pytest.raises(RequestError, match=word) as e:
        tokenizers.load(name)
    assert str(e.value).endswith(".") and "\n" not in str(e.value)


def test_files_that_are_no_tokenizers_are_refused_by_name(tmp_path, tiny):  # noqa: F811
    for name, content, word in (("zly.json", b"{", "damaged or is no tokenizer"), ("inny.json", b'{"a": 1}', "damaged or is no tokenizer"),
                                ("spiece.model", b"x", "is no tokenizer"), ("zly.gguf", b"GGUF", "damaged")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RequestError, match=f"{name} .*{word}"):
            tokenizers.load(str(tmp_path / name))
    with pytest.raises(RequestError, match="has no tokenizer"):
        tokenizers.load(str(tmp_path))


def test_a_bundled_model_whose_package_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(bundled, "place", lambda b: (_ for _ in ()).throw(RequestError(f"The bundled model {b.name} needs a package.")))
    with pytest.raises(RequestError, match="smollm2-135m needs"):
        tokenizers.load("bundled:smollm2-135m")
