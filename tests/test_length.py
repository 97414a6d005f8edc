"""A hopelessly long text is refused from the model's files alone; everything else is left to who can count."""

import subprocess
import sys

import pytest

from engine.errors import RequestError
from engine.models.length import SHORT, refuse_too_long
from tests.browser import ROOT

VERIFIER = "bundled:smollm2-135m"
MILLION = "the cat sat on a mat and " * 170_000


def test_a_shorter_text_is_counted_and_the_count_is_told():
    with pytest.raises(RequestError, match="about 25,001 tokens, limit 8,192"):
        refuse_too_long(VERIFIER, "a" * (SHORT - 1))


def test_a_million_tokens_are_refused_and_the_bound_is_told():
    with pytest.raises(RequestError, match=r"at least [\d,]+ tokens, limit 8,192"):
        refuse_too_long(VERIFIER, MILLION)


@pytest.mark.parametrize("name, text", [(VERIFIER, "the cat " * 4000), (VERIFIER, "a" * SHORT), ("/nowhere/at/all", MILLION), ("no/such-model", MILLION)])
def test_what_may_fit_or_cannot_be_told_is_let_through(name, text):
    refuse_too_long(name, text)


@pytest.mark.parametrize("command", ["sinks", "entropy"])
def test_the_command_says_so_before_it_loads_anything(tmp_path, command):
    file = tmp_path / "long.txt"
    file.write_text(MILLION)
    program = ("import sys; from engine.__main__ import main\n"
               f"print(main(['{command}', '--model', '{VERIFIER}', '--prompt-file', r'{file}']), 'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["2", "False"] and "The prompt is too long: at least" in done.stderr
