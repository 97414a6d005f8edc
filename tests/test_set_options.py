"""A set of prompts at the command line: read as the options say, and as much of it used."""

import pytest

from engine.__main__ import _parser, main
from engine.commands import prompts_of
from engine.prompt_sets import builtin

ASK = ["entropy", "--model", "m"]


def prompts(*options):
    return prompts_of(_parser().parse_args([*ASK, *options]))


@pytest.fixture
def table(tmp_path):
    """A table that detection would read otherwise: two columns of text, in a code page, without names."""
    file = tmp_path / "rows.txt"
    file.write_bytes("raz dwa trzy;jęk;a\ncztery pięć;łąka;b\nsześć siedem osiem;żuk;a\n".encode("cp1250"))
    return str(file)


def test_a_table_is_read_as_the_options_say(table):
    how = ["--prompt-set", table, "--set-kind", "csv", "--set-encoding", "cp1250", "--set-separator", "semicolon", "--set-header", "no"]
    from engine.prompt_sets import read_file

    columns = read_file(table, kind="csv", encoding="cp1250", separator=";", header=False).columns
    found = prompts(*how, "--prompt-column", columns[1], "--label-column", columns[0], "--category-column", columns[2])
    assert [(p.text, p.label, p.category) for p in found] == [("jęk", "raz dwa trzy", "a"), ("łąka", "cztery pięć", "b"), ("żuk", "sześć siedem osiem", "a")]
    unnamed = prompts(*how, "--prompt-column", columns[0], "--label-column", "", "--category-column", "")
    assert [(p.text, p.label, p.category) for p in unnamed][:1] == [("raz dwa trzy", "1", "")]


def test_a_part_of_a_ready_set_is_used():
    whole = builtin("polish").prompts
    assert [p.text for p in prompts("--ready-set", "polish", "--first", "3")] == [p.text for p in whole[:3]]
    assert [p.text for p in prompts("--ready-set", "polish", "--first", "3", "--spread")] == [whole[i * len(whole) // 3].text for i in range(3)]
    assert all(len(p.text.split()) <= 2 for p in prompts("--ready-set", "polish", "--words", "2")) and len(prompts("--ready-set", "polish")) == len(whole)


@pytest.mark.parametrize("options, said", [
    (["--prompt", "x", "--first", "2"], "--first is for a set of prompts"), (["--prompt", "x", "--words", "2"], "--words is for a set"),
    (["--prompt", "x", "--label-column", ""], "--label-column is for a set"), (["--ready-set", "polish", "--set-kind", "csv"], "--set-kind says how a file"),
    (["--ready-set", "polish", "--spread"], "say how many with --first"), (["--ready-set", "nothing"], "There is no set of prompts 'nothing'"),
    (["--prompt-set", "TABLE", "--set-separator", "dot"], "--set-separator is 'dot'; it is one of comma, semicolon, tab, pipe, none"),
    (["--prompt-set", "TABLE", "--set-kind", "xml"], "The kind 'xml' is not read"), (["--prompt-set", "TABLE", "--set-encoding", "x"], "The encoding 'x'"),
    (["--prompt-set", "TABLE", "--set-kind", "csv", "--set-encoding", "cp1250", "--prompt-column", "no"], "no column 'no'"),
    (["--ready-set", "polish", "--first", "0"], "--first"), (["--prompt", "x", "--ready-set", "polish"], "--ready-set"),
])
def test_an_option_that_fits_nothing_is_one_sentence(options, said, table, capsys):
    assert main([*ASK, *(table if o == "TABLE" else o for o in options)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_what_the_uag_command_asks_for_is_in_the_order_of_its_table():
    import engine.commands.uag as command

    args = _parser().parse_args(["uag", "--verifier", "v", "--draft", "d", "--prompt", "x", "--gamma", "6,2", "--strategy", "tli,none", "--system", ""])
    asked = command.request(args)
    assert (asked.ks, asked.strategies, asked.system) == ((2, 6), ("none", "tli"), None)


def test_an_entropy_bound_without_a_draft_is_refused(capsys):
    assert main(["compare", "--verifier", "v", "--lookup", "--prompt", "x", "--entropy-stop", "0.5"]) == 2
    assert "prompt lookup copies text and has no entropy" in capsys.readouterr().err
