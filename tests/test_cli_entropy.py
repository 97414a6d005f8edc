"""`python -m engine entropy`: one line and status 2 for a wrong request, one JSON object and a table for a right one."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys

import pytest
import torch

import engine.commands.entropy as command
from engine.__main__ import main
from engine.analysis.entropy import figures, sentence, trails
from engine.commands import printable
from engine.trace import from_json, plain_data
from tests.test_entropy_figures import entropy_run
from tests.toys import tiny_llama


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return str(tiny_llama(tmp_path_factory.mktemp("entropy") / "tiny", eos_token_id=None))


def asked(tiny, *more):
    return ["entropy", "--model", tiny, "--prompt", "Ala ma kota", "--device", "cpu", "--dtype", "float32", "--max-tokens", "12", *more]


def test_help_answers_without_torch():
    code = ("import sys\nfrom engine.__main__ import main\n"
            "try: main(['entropy', '--help'])\nexcept SystemExit: pass\n"
            "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy import'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--repetition-penalty" in done.stdout, done.stderr


@pytest.mark.parametrize("more, word", [
    (["--max-tokens", "0"], "--max-tokens"), (["--temperature", "nan"], "--temperature"), (["--top-p", "0"], "--top-p"),
    (["--prompt-file", "x"], "--prompt-file"), (["--threshold", "1"], "--threshold"), (["--json", "/no/such/folder/e.json"], "/no/such/folder"),
])
def test_a_wrong_option_is_one_line_and_status_2(more, word, capfd, home):
    assert main(["entropy", "--model", "m", "--prompt", "Ala", *more]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and word in err


@pytest.mark.parametrize("content, said", [(b"", "empty"), (b"  \n", "empty"), (b"a\0b", "NUL"), (b"\xff\xfe\xfd", "UTF-16"), (None, "cannot be read")])
def test_a_prompt_file_that_is_no_prompt_is_refused(content, said, tmp_path, capfd, home):
    path = tmp_path / "p.txt"
    if content is not None:
        path.write_bytes(content)
    assert main(["entropy", "--model", "m", "--prompt-file", str(path)]) == 2
    assert said in capfd.readouterr().err


def test_a_model_that_is_not_there_is_named(capfd, home):
    assert main(["entropy", "--model", "bundled:nothing", "--prompt", "Ala"]) == 2
    assert "nothing" in capfd.readouterr().err


def test_it_prints_one_json_object(tiny, capfd, home):
    assert main(asked(tiny, "--temperature", "0.7", "--seed", "4", "--json", "-")) == 0
    out, err = capfd.readouterr()
    data = json.loads(out)
    run = from_json(json.dumps(data["run"]))
    answer = run.items[0].answer
    assert [t["id"] for t in data["tokens"]] == list(answer.ids) and 0 < len(answer.ids) <= 12
    for i, t in enumerate(data["tokens"]):
        assert (t["index"], t["entropy_bits"], t["sampling_entropy_bits"]) == (i, answer.entropy[i], answer.sampling_entropy[i])
        assert [(b["id"], b["probability"]) for b in t["top"]] == [tuple(b) for b in answer.top[i]] and len(t["top"]) == 5
        assert t["text"].encode() == bytes.fromhex(t["bytes"]) == bytes.fromhex(run.tokens[t["id"]])
        assert t["normalised"] == pytest.approx(t["entropy_bits"] / math.log2(run.models["model"].vocabulary))
        assert t["sampling_entropy_bits"] < t["entropy_bits"]  # colder than the model
    assert data["sentence"] == sentence(run, figures(trails(run))) and data["units"] == "bits"
    assert data["figures"] == plain_data(figures(trails(run)))


def test_it_prints_a_table_saves_the_run_and_writes_json(tiny, capfd, home, tmp_path):
    assert main(asked(tiny, "--save", "--json", str(tmp_path / "e.json"))) == 0
    out, err = capfd.readouterr()
    run = from_json(json.dumps(json.loads((tmp_path / "e.json").read_text())["run"]))
    (saved,) = (home / "runs").glob("*.json")
    assert saved.name == f"{run.id}.json" and from_json(saved.read_bytes()) == run
    assert out.startswith(sentence(run, figures(trails(run)))) and "bits" in out and err.endswith(f"saved {saved}\n")
    assert sum(line.startswith("  ") and line.split()[0].isdigit() for line in out.splitlines()) == len(run.items[0].answer.ids)


def test_a_set_is_answered_and_what_is_wrong_in_it_is_said(tiny, capfd, home, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "Ala ma kota", "category": "cats"}\n{"prompt": "' + "Ala " * 600 + '", "category": "long"}\n'
                    '{"prompt": "Ala", "category": "cats"}\n{"prompt": 7\n')
    arguments = asked(tiny, "--json", "-")
    arguments[3:5] = ["--prompt-set", str(path)]
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    data = json.loads(out)
    assert [i["category"] for i in data["run"]["items"]] == ["cats", "long", "cats"] and "Line 4" in err
    assert len(data["refused"]) == 1 and "too long" in data["refused"][0]["reason"]
    assert {t["answer"] for t in data["tokens"]} == {0, 1} and data["figures"]["categories"][0]["answers"] == 2


@pytest.mark.parametrize("run", [entropy_run(), entropy_run(refused=(0, 1, 2)), entropy_run(counts=(450,), categories=("",), status="stopped"),
                                 entropy_run(counts=(5,), categories=("",), refused=(0,))])
def test_the_report_reads_for_every_kind_of_run(run):
    text = command.describe(run)
    assert text.startswith(sentence(run, figures(trails(run)))) and "None" not in text and "nan" not in text and printable(text) == text
    assert "-0.0" not in text
    json.dumps(command.report(run), allow_nan=False)
    if any(len(t.ids) > command.LISTED for t in trails(run)):
        assert "… 50 more tokens" in text


def test_ctrl_c_keeps_what_was_written(tiny, capfd, home, monkeypatch):
    import engine.decoding.entropy as decoding
    from engine.request import Step

    whole, pressed = decoding.run, []

    def interrupted(*arguments):
        for event in whole(*arguments):
            yield event
            if isinstance(event, Step) and not pressed:
                pressed.append(signal.raise_signal(signal.SIGINT))

    monkeypatch.setattr(decoding, "run", interrupted)
    assert main(asked(tiny, "--json", "-")) == 130
    data = json.loads(capfd.readouterr().out)
    assert data["run"]["status"] == "stopped" and 1 <= len(data["tokens"]) < 12 and data["sentence"].startswith("Stopped")


def test_the_bundled_model_against_transformers_alone(smollm2_folder):
    """The whole program on the real model, and its numbers from transformers' own eager forward over prompt and answer."""
    from transformers import AutoModelForCausalLM

    done = subprocess.run([sys.executable, "-m", "engine", "entropy", "--model", "bundled:smollm2-135m", "--prompt", "Name three colours.",
                           "--max-tokens", "12", "--dtype", "float32", "--temperature", "0.7", "--json", "-"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == ""
    data = json.loads(done.stdout)
    item = data["run"]["items"][0]
    net = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
    ids = torch.tensor([[*item["prompt"]["ids"], *(t["id"] for t in data["tokens"])]])
    with torch.inference_mode():
        logits = net(ids, use_cache=False).logits[0, len(item["prompt"]["ids"]) - 1 : -1].double()
    for column, rows in (("entropy_bits", logits.softmax(-1)), ("sampling_entropy_bits", (logits / 0.7).softmax(-1))):
        want = (torch.special.entr(rows).sum(-1) / math.log(2)).tolist()
        assert [t[column] for t in data["tokens"]] == pytest.approx(want, abs=1e-3)
    best = logits.softmax(-1).topk(5)
    assert [[b["probability"] for b in t["top"]] for t in data["tokens"]] == [pytest.approx(row, abs=1e-3) for row in best.values.tolist()]


def test_a_run_that_cannot_be_saved_is_told_all_the_same(tiny, capfd, home):
    home.mkdir(exist_ok=True)
    (home / "runs").write_text("a file where the folder should be")
    assert main(asked(tiny, "--save")) == 2
    out, err = capfd.readouterr()
    assert out.startswith("Mean entropy") and "cannot be made" in err.splitlines()[-1]
