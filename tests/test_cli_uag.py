"""`python -m engine uag`: one line and status 2 for a wrong request, one JSON object with every strategy for a right one."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch

from engine.__main__ import main
from engine.trace import from_json
from engine.trace.uag import CAUSES, STRATEGIES
from tests import toys

torch.set_num_threads(1)
ASK = ["uag", "--verifier", "v", "--draft", "d", "--prompt", "Zażółć gęślą jaźń"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two tiny Llamas with different tokenizers: SentencePiece-like with byte fallback, and one token a byte."""
    at = tmp_path_factory.mktemp("pair")
    return [str(toys.tiny_llama(at / "verifier", toys.sentencepiece_like(), seed=0, eos_token_id=None)),
            str(toys.tiny_llama(at / "draft", toys.byte_level(), seed=1))]


def asked(pair, *more):
    return ["uag", "--verifier", pair[0], "--draft", pair[1], "--prompt", "Zażółć gęślą jaźń", "--raw", "--device", "cpu", "--dtype", "float32",
            "--max-tokens", "10", *more]


def sentence(err: str) -> str:
    """The one line that is said; loading in this very process leaves a progress bar in front of it."""
    lines = [line for line in err.replace("\r", "\n").splitlines() if line and "Loading weights" not in line]
    assert len(lines) == 1 and lines[0].startswith("speclens: "), err
    return lines[0]


def printed(arguments, capfd, status=0):
    assert main(arguments) == status
    out, err = capfd.readouterr()
    return json.loads(out), err


def test_the_check_of_the_issue(pair, capfd, home):
    """Every strategy with its ids and figures; greedy, all of them the verifier's."""
    data, err = printed(asked(pair, "--strategy", "none,naive,context,tli", "--gamma", "4", "--temperature", "0", "--seed", "1", "--json", "-"), capfd)
    assert "Traceback" not in err and list(data["strategies"]) == list(STRATEGIES) and len(data["plain"]["ids"]) == 10
    for name, found in data["strategies"].items():
        assert found["ids"] == data["plain"]["ids"], name
        assert found["accepted"] <= found["proposed"] and set(found["causes"]) == set(CAUSES)
        assert found["acceptance_rate"] == (found["accepted"] / found["proposed"] if found["proposed"] else None)
        assert found["tokens_per_pass"] >= 1 and found["tokens_per_second"] > 0 and found["translation_seconds"] > 0
        assert found["refused"] == sum(found["causes"].values()) and found["k"] == 4
    assert any("token for token" in s for s in data["sentences"])


def test_several_ks_stand_side_by_side(pair, capfd, home):
    data, _ = printed(asked(pair, "--strategy", "naive,tli", "--gamma", "2,6", "--prefix", "3", "--json", "-"), capfd)
    assert list(data["strategies"]) == ["naive@2", "naive@6", "tli@2", "tli@6"]
    assert [(r["strategy"], r["k"]) for r in data["rows"]] == [("naive", 2), ("naive", 6), ("tli", 2), ("tli", 6)]
    run = from_json(json.dumps(data["run"]))
    assert (run.ks, run.prefix, run.strategies) == ((2, 6), 3, ("naive", "tli"))


def test_a_set_of_prompts_is_answered_prompt_by_prompt(pair, capfd, home, tmp_path):
    (tmp_path / "set.csv").write_text("prompt,category\nZażółć,a\ngęślą jaźń,b\n", encoding="utf-8")
    arguments = asked(pair, "--strategy", "context", "--json", "-")
    at = arguments.index("--prompt")
    data, _ = printed(arguments[:at] + ["--prompt-set", str(tmp_path / "set.csv")] + arguments[at + 2 :], capfd)
    assert [i["category"] for i in data["items"]] == ["a", "b"] == list(data["by_category"])
    assert all(i["strategies"]["context"]["ids"] == i["plain"]["ids"] for i in data["items"])


def test_a_report_for_readers(pair, capfd, home):
    assert main(asked(pair, "--save")) == 0
    out, err = capfd.readouterr()
    for words in ("verifier only", "context    4", "tok/s in decode", "token for token", "VERIFIER ONLY (10 tokens, length)", "note: tli"):
        assert words in out, words
    assert from_json(open(re.search(r"saved (.+\.json)", err)[1], "rb").read()).kind == "uag"


def test_sampling_takes_the_seed(pair, capfd, home):
    def ids(seed):
        data, _ = printed(asked(pair, "--temperature", "1", "--seed", seed, "--strategy", "tli", "--json", "-"), capfd)
        return data["strategies"]["tli"]["ids"]
    assert ids("1") == ids("1") != ids("2")


@pytest.mark.parametrize("more, word", [
    (["--gamma", "0"], "--gamma"), (["--gamma", "2,,4"], "--gamma"), (["--gamma", "2,17"], "--gamma"), (["--gamma", ""], "--gamma"),
    (["--prefix", "65"], "--prefix"), (["--prefix", "-1"], "--prefix"), (["--strategy", ""], "--strategy"), (["--lookup"], "--lookup"),
    (["--prompt-file", "x"], "--prompt-file"), (["--repeats", "0"], "--repeats"), (["--json", "/no/such/folder/x"], "/no/such/folder/x"),
])
def test_a_wrong_option_is_one_line_and_status_2(more, word, capfd, home):
    assert main([*ASK, *more]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and word in err and "Traceback" not in err


@pytest.mark.parametrize("more, word", [
    (["--strategy", "naive,magic"], "magic"), (["--strategy", "naive,naive"], "twice"), (["--gamma", "2,2"], "twice"), (["--system", "x"], "system"),
])
def test_a_request_that_cannot_be_done_is_one_line_and_status_2(more, word, pair, capfd, home):
    assert main([*asked(pair), *more]) == 2
    out, err = capfd.readouterr()
    assert out == "" and word in sentence(err)


@pytest.mark.parametrize("text", ["", " \n", "\udcff", "a\0b"])
def test_a_text_that_is_none_is_refused(text, pair, capfd, home):
    arguments = asked(pair)
    arguments[arguments.index("--prompt") + 1] = text
    assert main(arguments) == 2
    assert sentence(capfd.readouterr().err)


TEXTS = {"another language": "The quick brown fox", "emoji only": "😀👩‍👩‍👧🇵🇱", "combining marks": "\u0301\u0328 Zażo\u0301łc\u0301", "right to left": "שלום العربية",
         "line breaks and tabs": "\n\n\tZa \n", "the names of control tokens": "<s></s><|im_end|><unk>", "U+FFFD": "Za\ufffd"}


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_runs_and_changes_no_id(name, pair, capfd, home):
    arguments = asked(pair, "--json", "-")
    arguments[arguments.index("--prompt") + 1] = TEXTS[name]
    data, _ = printed(arguments, capfd)
    assert all(s["ids"] == data["plain"]["ids"] for s in data["strategies"].values())


def test_a_text_of_a_hundred_thousand_characters_is_refused_by_its_length(pair, capfd, home, tmp_path):
    (tmp_path / "long.txt").write_text("Zażółć gęślą jaźń. " * 5_300, encoding="utf-8")
    arguments = asked(pair)
    at = arguments.index("--prompt")
    assert main(arguments[:at] + ["--prompt-file", str(tmp_path / "long.txt")] + arguments[at + 2 :]) == 2
    assert "limit 512" in sentence(capfd.readouterr().err)


def test_a_missing_draft_is_named_before_the_verifier_is_loaded(pair, capfd, home, monkeypatch):
    monkeypatch.setattr("engine.commands.uag.load", lambda *_: pytest.fail("loaded"))
    assert main(["uag", "--verifier", pair[0], "--draft", "/models/nothing-here", "--prompt", "x"]) == 2
    assert "/models/nothing-here" in capfd.readouterr().err


def test_help_answers_without_torch():
    code = ("import sys\nfrom engine.__main__ import main\ntry: main(['uag', '--help'])\nexcept SystemExit: pass\n"
            "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy import'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--prefix" in done.stdout and "none,naive,context,tli" in done.stdout
