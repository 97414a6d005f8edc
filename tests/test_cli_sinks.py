"""`python -m engine sinks`: one line and status 2 for a wrong request, one strict JSON object for a right one."""

from __future__ import annotations

import argparse
import functools
import json
import math
import subprocess
import sys

import pytest

from engine.__main__ import main
from engine.commands.sinks import indices, load
from engine.run_files import read
from tests.toys import CHATML, byte_level, chat_toy, tiny_llama

TEXT = "Zażółć gęślą jaźń, powiedział Jan. " * 3
KEPT = functools.lru_cache(maxsize=None)(load)
ASKED = ("index", "id", "text", "structural", "queries", "attention", "z", "z_corrected", "sink")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    """What a command loads anew each time is kept from test to test."""
    monkeypatch.setattr("engine.commands.sinks.load", KEPT)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("model") / "tiny", byte_level(CHATML), context=256))


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("base") / "base", chat_toy(None)))


def told(capfd, *arguments: str) -> dict:
    assert main(["sinks", "--device", "cpu", "--dtype", "float32", *arguments, "--json", "-"]) == 0
    out, err = capfd.readouterr()
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_help_answers_without_torch_or_numpy():
    code = ("import sys\nfrom engine.__main__ import main\n"
            "try: main(['sinks', '--help'])\nexcept SystemExit: pass\n"
            "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy import'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--threshold" in done.stdout


def test_every_position_and_every_figure_is_there(model, capfd):
    data = told(capfd, "--model", model, "--prompt", TEXT)
    assert {"threshold", "health", "health_published", "median", "scaled_mad", "seconds", "peak_extra_bytes", "sentence"} <= set(data)
    rows = data["positions"]
    assert all(set(ASKED) <= set(row) for row in rows) and [row["index"] for row in rows] == list(range(data["tokens"]))
    assert b"".join(bytes.fromhex(row["bytes"]) for row in rows if not row["structural"]).decode() == TEXT
    assert [row["queries"] for row in rows] == list(range(len(rows), 0, -1))
    for row in rows:
        assert row["z"] == pytest.approx((math.log(row["attention"]) - data["median"]) / data["scaled_mad"])
        assert row["sink"] == (row["score"] is not None and row["score"] >= data["threshold"])
        assert row["why"] if row["z_corrected"] is None else row["score"] == row["z_corrected"]
    assert data["seconds"] > 0 and 0 <= data["health"] <= 10 and 0 <= data["health_published"] <= 10 and data["status"] == "done"


def test_threshold_layers_and_heads_change_what_is_told(model, capfd):
    whole = told(capfd, "--model", model, "--prompt", TEXT)
    low = told(capfd, "--model", model, "--prompt", TEXT, "--threshold", "0")
    part = told(capfd, "--model", model, "--prompt", TEXT, "--layers", "1", "--heads", "0-1,3")
    plain = told(capfd, "--model", model, "--prompt", TEXT, "--no-edge-correction", "--include-structural")
    sinks = [sum(row["sink"] for row in data["positions"]) for data in (whole, low)]
    assert sinks[0] < sinks[1] and low["threshold"] == 0 and low["health"] < whole["health"]
    attention = [[row["attention"] for row in data["positions"]] for data in (whole, low, part)]
    assert attention[0] == attention[1] != attention[2]
    assert not plain["edge_corrected"] and all(row["score"] == row["z"] for row in plain["positions"]) and plain["median"] != whole["median"]


def test_raw_text_has_no_template(model, base, capfd):
    raw = told(capfd, "--model", model, "--prompt", TEXT, "--raw")
    assert not any(row["structural"] for row in raw["positions"]) and raw["first"] == "first token"
    assert raw["opening_sink"]["positions"][0] == 0 and raw["positions"][0]["opening"] and {row["segment"] for row in raw["positions"]} == {"prompt"}
    assert any("raw text" in note for note in told(capfd, "--model", base, "--prompt", "Ala ma kota")["notes"])


@pytest.mark.parametrize("text", ["Ala", "Ala Ala Ala"])
def test_what_is_undefined_is_null_with_the_reason(base, text, capfd):
    """AT-05: one token and a few; health is no 10."""
    data = told(capfd, "--model", base, "--prompt", text, "--raw")
    assert data["health"] is None and data["health_reason"] and "n/a" in data["sentence"]
    assert all(row["z_corrected"] is None and row["why"] and row["sink"] is False for row in data["positions"])
    if text == "Ala":
        assert data["median"] is None and data["scaled_mad"] is None and data["reason"] and data["health_published"] is None
        assert data["positions"][0]["z"] is None


def test_a_prompt_file_is_one_prompt(model, capfd, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbf" + "Cześć\r\nAla\r\n".encode())
    data = told(capfd, "--model", model, "--prompt-file", str(tmp_path / "p.txt"))
    assert bytes.fromhex("".join(row["bytes"] for row in data["positions"] if not row["structural"])).decode() == "Cześć\nAla"


def test_a_set_has_one_entry_a_prompt_and_a_refused_one_stops_none(model, capfd, tmp_path):
    lines = [{"id": "p1", "prompt": "Cześć"}, {"id": "NA", "prompt": "a" * 300}, {"id": "p3", "prompt": "Ala"}]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    data = told(capfd, "--model", model, "--prompt-set", str(tmp_path / "set.jsonl"))
    assert [p["label"] for p in data["prompts"]] == ["p1", "NA", "p3"]
    assert [bool(p["refused"]) for p in data["prompts"]] == [False, True, False] and "limit 256" in data["prompts"][1]["refused"]


def test_a_saved_run_opens_again_with_its_arrays(model, capfd, home):
    assert main(["sinks", "--model", model, "--prompt", TEXT, "--save", "--device", "cpu"]) == 0
    out, err = capfd.readouterr()
    (path,) = (home / "runs").glob("*.json")
    assert f"saved {path}" in err and out.startswith("Context health")
    kept = read(path).items[0].sums
    assert kept.received.shape[:2] == (2, 4) and kept.near is not None and kept.near_mean.shape[1] == 63


def test_the_table_names_every_token_and_its_flags(model, capfd):
    assert main(["sinks", "--model", model, "--prompt", TEXT, "--device", "cpu", "--threshold", "1"]) == 0
    out = capfd.readouterr().out
    assert "published formula" in out and "threshold         1 on z′" in out and "sink template" in out and "⟨im_start⟩" in out
    assert "position 0        the first token" in out


@pytest.mark.parametrize("more, word", [
    (["--threshold", "nan"], "--threshold"), (["--layers", "3-1"], "runs backwards"), (["--layers", "x"], "not a list"),
    (["--heads", ""], "--heads"), (["--prompt-file", "/no/such"], "--prompt-file"), (["--json", "/no/such/folder/x.json"], "/no/such/folder")])
def test_a_wrong_option_is_one_line_and_status_2(more, word, capfd):
    assert main(["sinks", "--model", "m", "--prompt", "Ala", *more]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and word in err and "Traceback" not in err


@pytest.mark.parametrize("more, word", [
    (["--prompt", " "], "empty"), (["--prompt", "a" * 300], "tokens, limit 256"), (["--prompt", "Ala", "--layers", "2"], "no layer 2"),
    (["--prompt", "Ala", "--heads", "0,4"], "no head 4"), (["--prompt", "a" * 1_000_000], "limit 256")])
def test_a_request_that_cannot_be_done_is_one_line_and_status_2(model, more, word, capfd):
    assert main(["sinks", "--model", model, "--device", "cpu", *more]) == 2
    out, err = capfd.readouterr()
    assert out == "" and word in err.splitlines()[-1] and "Traceback" not in err


def test_a_layer_that_is_not_there_is_refused_before_the_model_is_loaded(model, capfd, monkeypatch):
    monkeypatch.setattr("engine.commands.sinks.load", lambda *_: pytest.fail("loaded"))
    assert main(["sinks", "--model", model, "--prompt", "Ala", "--layers", "0-2"]) == 2
    assert capfd.readouterr().err == "speclens: There is no layer 2; the model has layers 0 to 1.\n"


def test_a_missing_model_is_named(capfd):
    assert main(["sinks", "--model", "/models/nothing-here", "--prompt", "x"]) == 2
    assert "/models/nothing-here" in capfd.readouterr().err


@pytest.mark.parametrize("text, found", [("0-3,7", (0, 1, 2, 3, 7)), ("5", (5,)), (" 1, 0 ", (0, 1)), ("2-2,2", (2,))])
def test_lists_of_layers_are_read(text, found):
    assert indices(text) == found


@pytest.mark.parametrize("text", ["", "-", "1-", "-1", "a", "1;2", "3-1", "²", "1,,2", "9" * 9])
def test_what_is_no_list_of_layers_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        indices(text)


def test_a_run_that_cannot_be_saved_is_told_all_the_same(model, capfd, home):
    home.mkdir()
    (home / "runs").write_text("a file where the folder should be")
    assert main(["sinks", "--model", model, "--prompt", TEXT, "--save", "--device", "cpu"]) == 2
    out, err = capfd.readouterr()
    assert out.startswith("Context health") and "cannot be made" in err.splitlines()[-1]
