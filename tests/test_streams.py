"""Standard streams and files that are closed, full, gone or odd: one sentence and a status, from every command, and nothing made is lost."""

import ast
import json
import os
import subprocess
import sys

import pytest

from engine.commands import NAMES
from engine.models.bundled import ROOT
from engine.trace import from_json
from tests.test_cli import pair  # noqa: F401

CPU = ["--device", "cpu", "--dtype", "float32"]
SHORT = ["--max-tokens", "4", *CPU]


def line(command, folders):
    """A whole command line, with models that exist."""
    verifier, draft = folders
    return {"models": ["models"], "tokens": ["tokens", "--tokenizer", verifier, "--text", "Ala ma kota"],
            "sinks": ["sinks", "--model", verifier, "--prompt", "Ala ma kota", *CPU],
            "entropy": ["entropy", "--model", verifier, "--prompt", "Ala ma kota", *SHORT],
            "compare": ["compare", "--verifier", verifier, "--draft", draft, "--prompt", "Ala ma kota", *SHORT],
            "uag": ["uag", "--verifier", verifier, "--draft", draft, "--prompt", "Ala ma kota", "--strategy", "naive", *SHORT],
            "certify": ["certify", "--verifier", verifier, "--draft", draft, *SHORT]}[command]


def ran(arguments, redirected="", home=None):
    """(status, standard output, standard error) of the program under a shell's redirections."""
    done = subprocess.run(["bash", "-c", f'exec "$0" "$@" {redirected}', sys.executable, "-m", "engine", *arguments], capture_output=True,
                          text=True, timeout=300, stdin=subprocess.DEVNULL, env=os.environ | ({"SPECLENS_HOME": str(home)} if home else {}))
    return done.returncode, done.stdout, done.stderr


def said(error):
    """The one sentence on standard error."""
    assert error.count("\n") == 1 and error.startswith("speclens: ") and "Traceback" not in error and "The log is" not in error, error
    return error


def test_every_command_has_a_line_here(pair):  # noqa: F811
    assert [line(name, pair)[0] for name in NAMES] == list(NAMES)


@pytest.mark.parametrize("command", ["tokens", "sinks", "entropy", "compare", "uag"])
def test_a_prompt_from_a_closed_input_is_refused(command, pair, tmp_path):  # noqa: F811
    arguments = [a for a in line(command, pair)]
    at = next(i for i, a in enumerate(arguments) if a in ("--prompt", "--text"))
    arguments[at:at + 2] = ["--prompt-file", "-"]
    status, out, error = ran(arguments, "<&-", tmp_path)
    assert (status, out) == (2, "") and "Standard input is closed" in said(error)


@pytest.mark.parametrize("command", NAMES)
def test_a_closed_output_is_said_before_any_work(command, pair, tmp_path):  # noqa: F811
    status, _, error = ran([*line(command, pair), "--json", "-"], ">&-", tmp_path)
    assert status == 1 and "Standard output is closed" in said(error) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", NAMES)
@pytest.mark.parametrize("name, why", [("x" * 300, "File name too long"), ("é" * 200, "File name too long"), (".", "is a folder"),
                                       ("", "is a folder"), ("no/such/folder.json", "a folder that does not exist"),
                                       ("file/inside.json", "Not a directory"), ("circle", "links")])
def test_a_name_that_no_result_can_have_is_refused_before_any_work(command, name, why, pair, tmp_path, monkeypatch, capsys):  # noqa: F811
    from engine.__main__ import main

    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("engine.models.source.require", lambda *_: pytest.fail("work"))
    (tmp_path / "file").write_text("x"), (tmp_path / "circle").symlink_to(tmp_path / "circle")
    monkeypatch.chdir(tmp_path)
    assert main([*line(command, pair), "--json", name]) == 2
    out, error = capsys.readouterr()
    assert out == "" and why in said(error) and "--json" in error


def test_a_name_as_long_as_the_system_takes_is_written(pair, tmp_path):  # noqa: F811
    file = tmp_path / ("x" * 250 + ".json")
    status, _, error = ran([*line("entropy", pair), "--json", str(file)], home=tmp_path / "home")
    assert status == 0 and not error and json.loads(file.read_text())["tokens"]


@pytest.mark.parametrize("command, more", [("models", []), ("models", ["--json", "-"]), ("models", ["--help"]), ("tokens", []),
                                           ("compare", ["--json", "-", "--save"])])
def test_a_full_output_is_said_and_the_run_is_kept(command, more, pair, tmp_path):  # noqa: F811
    status, _, error = ran([*line(command, pair), *more], ">/dev/full", tmp_path)
    saved = list((tmp_path / "runs").glob("*.json")) if "--save" in more else []
    if saved:
        assert from_json(saved[0].read_bytes()).status == "done"
        first, error = error.split("\n", 1)
        assert first == f"saved {saved[0]}"
    assert status == 1 and "Standard output cannot be written (No space left on device)" in said(error) and bool(saved) == ("--save" in more)


def test_commands_tell_through_the_one_place_that_hears_of_a_full_output():
    for path in [*(ROOT / "engine" / "commands").glob("*.py"), ROOT / "engine" / "driver.py", ROOT / "engine" / "__main__.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")), path


def test_a_reader_that_left_is_said(pair, tmp_path):  # noqa: F811
    code = f"'{sys.executable}' -m engine models --json - | true; exit ${{PIPESTATUS[0]}}"
    for _ in range(5):  # most times the reader is gone before the first byte
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "" or done.returncode == 1 and "reader of standard output went away" in said(done.stderr)
    assert done.returncode == 1


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("command", ["models", "tokens"])
def test_nobody_to_hear_an_error_changes_no_result_and_no_status(command, redirected, pair, tmp_path):  # noqa: F811
    status, out, error = ran([*line(command, pair), "--json", "-"], redirected, tmp_path)
    assert status == 0 and json.loads(out) and not error
    status, out, error = ran([*line(command, pair), "--nonsense"], redirected, tmp_path)
    assert (status, out, error) == (2, "", "")


def test_with_all_three_streams_closed_no_file_is_written_into(pair, tmp_path):  # noqa: F811
    """The first file that is opened gets the number of a closed stream, and a line meant for a terminal would end in it."""
    status, _, _ = ran([*line("entropy", pair), "--json", str(tmp_path / "a.json")], "<&- >/dev/null 2>&-", tmp_path / "home")
    assert status == 0 and json.loads((tmp_path / "a.json").read_text())["tokens"]


@pytest.mark.parametrize("device", ["/dev/full", "/dev/stdout"])
def test_a_device_as_the_result(device, pair, tmp_path):  # noqa: F811
    status, out, error = ran([*line("tokens", pair), "--json", device], home=tmp_path)
    if device == "/dev/full":
        assert status == 2 and "--json /dev/full cannot be written (No space left on device)" in said(error)
    else:
        assert status == 0 and json.loads(out.split("\n")[0])["text"] == "Ala ma kota" and not error
