"""`python -m engine`: one line and status 2 for a wrong request, one JSON object for a right one."""

import errno
import io
import json
import os
import signal
import subprocess
import sys

import pytest

import engine.commands.compare as command
from engine import interrupt
from engine.__main__ import main
from engine.analysis.metrics import metrics
from engine.commands import Progress, printable, quiet, read_prompt_file, require_writable, write_json
from engine.errors import RequestError
from engine.trace import from_json
from tests.sample import sample_run
from tests.toys import tiny_llama

ASK = ["compare", "--verifier", "v", "--draft", "d", "--prompt", "Ala ma kota"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Two different tiny Llamas with one tokenizer."""
    folder = tmp_path_factory.mktemp("pair")
    return [str(tiny_llama(folder / name, seed=seed, eos_token_id=None)) for name, seed in (("verifier", 0), ("draft", 1))]


def asked(pair, *more):
    return ["compare", "--verifier", pair[0], "--draft", pair[1], "--prompt", "Ala ma kota", "--device", "cpu", "--dtype", "float32",
            "--max-tokens", "12", "--gamma", "3", *more]


def test_help_answers_without_torch():
    code = ("import sys\nfrom engine.__main__ import main\n"
            "try: main(['compare', '--help'])\nexcept SystemExit: pass\n"
            "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy import'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--repetition-penalty" in done.stdout


@pytest.mark.parametrize("more, word", [
    (["--gamma", "-1"], "--gamma"), (["--gamma", "17"], "--gamma"), (["--gamma", "2.5"], "--gamma"),
    (["--temperature", "-1"], "--temperature"), (["--temperature", "nan"], "--temperature"), (["--temperature", "inf"], "--temperature"),
    (["--top-p", "0"], "--top-p"), (["--top-p", "1.1"], "--top-p"), (["--top-k", "-1"], "--top-k"), (["--min-p", "2"], "--min-p"),
    (["--repetition-penalty", "0"], "--repetition-penalty"), (["--seed", "9" * 400], "--seed"), (["--seed", "x"], "--seed"),
    (["--max-tokens", "0"], "--max-tokens"), (["--repeats", "0"], "--repeats"), (["--entropy-stop", "1.5"], "--entropy-stop"),
    (["--dtype", "int4"], "--dtype"), (["--device", "tpu"], "--device"), (["--lookup"], "--lookup"),
    (["--prompt-file", "x"], "--prompt-file"),
    (["--nonsense"], "--nonsense"), (["--json", "/no/such/folder/run.json"], "/no/such/folder/run.json"),
])
def test_a_wrong_option_is_one_line_and_status_2(more, word, capsys, home):
    assert main([*ASK, *more]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and word in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["compare"], ["nonsense"], ["compare", "--verifier", "v", "--prompt", "x"],
                                       [*ASK[:-1], ""], [*ASK[:-1], " \n"], [*ASK[:-1], "\udcff"]])
def test_a_missing_part_is_one_line_and_status_2(arguments, capsys, home):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_a_missing_model_is_one_line_and_status_2(capfd, home):
    assert main(["compare", "--verifier", "/models/nothing-here", "--lookup", "--prompt", "x", "--json", "-"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "/models/nothing-here" in err


@pytest.mark.parametrize("command", [["compare", "--prompt", "x"], ["certify"]])
def test_no_verifier_is_loaded_for_a_draft_that_does_not_exist(command, pair, capfd, home, monkeypatch):
    monkeypatch.setattr("engine.commands.compare.load", lambda *_: pytest.fail("loaded"))
    assert main([*command, "--verifier", pair[0], "--draft", "/models/nothing-here", "--json", "-"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "/models/nothing-here" in err


def test_the_progress_line_is_gone_before_an_error_is_said():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    with Terminal() as terminal:
        with pytest.raises(RequestError), Progress(terminal) as progress:
            progress.say("Loading Ala", now=True)
            raise RequestError("no")
        assert terminal.getvalue() == "\rLoading Ala\r" + " " * 11 + "\r"


@pytest.mark.parametrize("data", ["Cześć\nAla\n".encode(), b"\xef\xbb\xbf" + "Cześć\r\nAla\r\n".encode(), "Cześć\nAla".encode("utf-16")])
def test_prompt_files_of_every_origin_read_alike(data, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(data)
    assert read_prompt_file(str(tmp_path / "prompt.txt")) == "Cześć\nAla"


@pytest.mark.parametrize("data, words", [("ok\nZażółć".encode("cp1250"), "not UTF-8 (line 2"), (b"a\nb\0c", "NUL byte in line 2"),
                                         (b"\xff\xfe\x00", "not UTF-16")])
def test_a_prompt_file_is_never_repaired_in_silence(data, words, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(data)
    with pytest.raises(RequestError) as e:
        read_prompt_file(str(tmp_path / "prompt.txt"))
    assert words in str(e.value)


@pytest.mark.parametrize("path", ["/dev/zero", "large.txt"])
def test_a_prompt_file_without_an_end_is_refused(path, tmp_path, monkeypatch):
    """A device has no size to ask for: reading it whole would fill the memory."""
    monkeypatch.setattr("engine.commands.PROMPT_FILE_LIMIT", 1_000_000)
    (tmp_path / "large.txt").write_bytes(b"a" * 1_000_001)
    with pytest.raises(RequestError, match="is larger than 1 MB; no model reads that much"):
        read_prompt_file(str(tmp_path / path))


def test_a_prompt_file_keeps_its_leading_tab(tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"\tindented\n\n")
    assert read_prompt_file(str(tmp_path / "prompt.txt")) == "\tindented\n"


def test_a_failure_is_one_line_with_the_log(monkeypatch, capsys, home):
    def fail(*_):
        raise ZeroDivisionError("a slip\nof the pen")

    monkeypatch.setattr(command, "request", fail)
    assert main(ASK) == 1
    out, err = capsys.readouterr()
    log = home / "logs" / "engine.log"
    assert out == "" and err.count("\n") == 1 and str(log) in err and "a slip of the pen" in err
    assert "Traceback" in log.read_text()
    assert main([*ASK, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_what_libraries_print_goes_to_the_log(home):
    code = ("import os, sys\nfrom engine.commands import quiet\n"
            "with quiet() as terminal:\n"
            "    print('from python'), print('a warning', file=sys.stderr)\n"
            "    os.write(1, b'from native code\\n'), terminal.write('progress')\n"
            "print('result')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("result\n", "progress")
    assert set((home / "logs" / "engine.log").read_text().splitlines()) == {"from python", "from native code", "a warning"}


def test_json_goes_through_links_and_pipes_and_replaces_neither(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target.json")
    (tmp_path / "target.json").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link", "pipe", "new.json"):
        require_writable(str(tmp_path / name))
        write_json({"a": "ż"}, str(tmp_path / name))
    assert os.read(reader, 100).decode() == '{"a": "ż"}\n' and (tmp_path / "pipe").is_fifo()
    os.close(reader)
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "target.json").read_text()) == {"a": "ż"}
    assert json.loads((tmp_path / "new.json").read_text()) == {"a": "ż"} and len(list(tmp_path.iterdir())) == 4


def test_a_folder_that_takes_no_file_is_refused_before_the_run(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(RequestError, match=r"^--json .*run.json cannot be written \(Read-only file system\)"):
        require_writable(str(tmp_path / "run.json"))


def test_text_of_a_model_cannot_command_the_terminal():
    assert printable("a\x1b[2Jb\x07\n\tą\u202e") == "a\\x1b[2Jb\\x07\n\tą\\u202e"


@pytest.mark.parametrize("run", [sample_run(), sample_run(speculative=False), sample_run(status="stopped"), sample_run(drafter="lookup"),
                                 sample_run(acceptance=0), sample_run(temperature=0, diverge=5, hostile=True)])
def test_the_report_reads_for_every_kind_of_run(run):
    figures = metrics(run)
    text = command.describe(run, figures)
    assert text.startswith(figures["sentence"]) and printable(run.plain.text) in text and "None" not in text.split("VERIFIER ONLY")[0]
    data = json.loads(json.dumps(command.report(run, figures), allow_nan=False))
    assert data["plain"]["tokens_per_second"] == figures["plain_tokens_per_second"]
    assert from_json(json.dumps(data)) == run  # the figures ride along and do no harm


def test_ctrl_c_stops_when_tokens_come_and_ends_before_that():
    before = signal.getsignal(signal.SIGINT)  # a job started in the background ignores it
    with interrupt.stopping() as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signals.arm()
        assert not signals.asked()
        signal.raise_signal(signal.SIGINT)
        assert signals.asked() and signals.status == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_compare_prints_one_json_object(pair, capfd, home):
    assert main(asked(pair, "--json", "-")) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["kind"] == "compare" and len(data["plain"]["ids"]) == 12
    assert data["plain"]["ids"] == data["speculative"]["ids"] and data["metrics"]["first_divergence"] is None
    rounds = data["speculative"]["rounds"]
    assert sum(len(r["emitted"]) for r in rounds) == 12
    assert data["metrics"]["proposed"] == sum(len(r["proposed"]) for r in rounds)
    assert data["metrics"]["tokens_per_pass"] == pytest.approx(12 / len(rounds))
    assert data["metrics"]["speedup"] > 0 and data["metrics"]["cost_ratio"] > 0 and data["metrics"]["ceiling"] > 0
    assert 0 <= data["metrics"]["orchestration_share"] < 1


def test_compare_writes_json_and_saves_the_run(pair, capfd, home, tmp_path):
    assert main(asked(pair, "--json", str(tmp_path / "out.json"), "--save", "--temperature", "0.7", "--repeats", "2")) == 0
    out, _ = capfd.readouterr()
    run = from_json((tmp_path / "out.json").read_bytes())
    (saved,) = (home / "runs").iterdir()
    assert saved.name == f"{run.id}.json" and from_json(saved.read_bytes()) == run
    assert out.startswith(metrics(run)["sentence"]) and len(run.plain.timings) == 2


def test_ctrl_c_keeps_what_was_decoded(pair, capfd, home, monkeypatch):
    import engine.decoding.compare as decoding
    from engine.request import Step

    whole = decoding.run

    def interrupted(*arguments):
        for n, event in enumerate(whole(*arguments)):
            yield event
            if isinstance(event, Step) and event.round.emitted:
                signal.raise_signal(signal.SIGINT) if not pressed else None
                pressed.append(n)

    pressed = []
    monkeypatch.setattr(decoding, "run", interrupted)
    arguments = asked(pair, "--save")
    arguments[arguments.index("--max-tokens") + 1] = "200"
    assert main(arguments) == 130
    (saved,) = (home / "runs").iterdir()
    run = from_json(saved.read_bytes())
    kept = len(run.plain.ids) if run.plain else len(run.speculative.ids)
    assert run.status == "stopped" and 1 <= kept < 200
    assert capfd.readouterr().out.startswith("Stopped.")


def test_the_bundled_verifier_as_its_own_draft(smollm2_folder):  # prepares it, if that was never done
    """The whole program on the real model: one JSON object, nothing else on either stream, every draft token accepted."""
    done = subprocess.run(
        [sys.executable, "-m", "engine", "compare", "--verifier", "bundled:smollm2-135m", "--draft", "bundled:smollm2-135m", "--prompt",
         "Explain photosynthesis step by step.", "--max-tokens", "20", "--dtype", "float32", "--json", "-"], capture_output=True, text=True,
        timeout=600)
    assert done.returncode == 0 and done.stderr == ""
    data = json.loads(done.stdout)
    assert data["metrics"]["acceptance_rate"] == 1 and data["metrics"]["tokens_per_pass"] == 5
    assert data["plain"]["ids"] == data["speculative"]["ids"] and data["metrics"]["ids_equal"] is True
    assert data["plain"]["tokens_per_second"] > 0
    assert data["metrics"]["disturbed"] or data["metrics"]["cost_ratio"] == pytest.approx(1, abs=0.5)


def test_a_reader_that_leaves_is_no_traceback(home):
    code = ("import os, sys\nimport engine.commands.models as m\nm.table = lambda rows: 'x' * 1_000_000\n"
            "from engine.__main__ import main\nsys.exit(main(['models']))")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    error = process.stderr.read()
    process.wait()
    process.stderr.close()
    assert error == "speclens: The reader of standard output went away before everything was written.\n" and process.returncode == 1
