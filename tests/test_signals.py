"""Signals at the command line: no traceback whenever they come, and what was written before is kept and marked stopped."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from engine.trace import from_json
from tests.test_gguf import llama, tiny  # noqa: F401

VERIFIER = "bundled:smollm2-135m"
LONG = ["--raw", "--max-tokens", "3000", "--device", "cpu", "--dtype", "float32"]
PROMPT = ["--prompt", "Explain photosynthesis step by step."]


def line(command, tmp_path):
    """A command line that takes minutes."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"Prompt {n}. {'The lighthouse keeper counted the ships. ' * 60}\n" for n in range(400)))
    return {"compare": ["compare", "--verifier", VERIFIER, "--lookup", *PROMPT, *LONG],
            "entropy": ["entropy", "--model", VERIFIER, *PROMPT, *LONG],
            "uag": ["uag", "--verifier", "bundled:polish-verifier", "--draft", "bundled:polish-draft", "--prompt", "Wisła jest", *LONG],
            "sinks": ["sinks", "--model", VERIFIER, "--prompt-set", str(prompts), "--raw", "--device", "cpu", "--dtype", "float32"],
            "certify": ["certify", "--verifier", VERIFIER, "--lookup", "--max-tokens", "1024", "--device", "cpu", "--dtype", "float32"]}[command]


class Program:
    """The program, with its progress line on a terminal of its own."""

    def __init__(self, arguments, home):
        self.terminal, other = pty.openpty()
        self.process = subprocess.Popen([sys.executable, "-m", "engine", *arguments], stdout=subprocess.PIPE, stderr=other, text=True,
                                        stdin=subprocess.DEVNULL, env=os.environ | {"SPECLENS_HOME": str(home)})
        os.close(other)
        self.heard = ""

    def until(self, pattern, seconds=240):
        """Wait until the progress line says it."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.heard):
            assert time.monotonic() < end and self.read(), self.heard

    def read(self):
        try:
            data = os.read(self.terminal, 4096)
        except OSError:  # the program is gone
            data = b""
        self.heard += data.decode(errors="replace")
        return data

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        """(status, standard output); it may take some seconds, but not minutes."""
        out, _ = self.process.communicate(timeout=60)
        while self.read():
            pass
        os.close(self.terminal)
        assert "Traceback" not in self.heard and "Exception ignored" not in self.heard, self.heard
        return self.process.returncode, out


@pytest.fixture
def home(smollm2_folder, tmp_path):
    """A home of its own, in which the bundled models are ready."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "converted").symlink_to(smollm2_folder.parent)
    return tmp_path / "home"


def halves(*folders):
    """Files under a temporary name."""
    return [file for folder in folders for file in folder.rglob("*.part")]


WORKING = {"sinks": "prompt 3 of", "certify": "prompt 1 of"}


@pytest.mark.parametrize("command, number", [("compare", signal.SIGTERM), ("entropy", signal.SIGHUP), ("uag", signal.SIGTERM),
                                             ("sinks", signal.SIGINT)])
def test_a_signal_keeps_what_was_written_marked_stopped(command, number, home, tmp_path):
    file = tmp_path / "out.json"
    program = Program([*line(command, tmp_path), "--json", str(file), "--save"], home)
    program.until(WORKING.get(command, r": \d+ tokens"))
    program.send(number)
    status, out = program.end()
    (saved,) = (home / "runs").glob("*.json")
    run, data = from_json(saved.read_bytes()), json.loads(file.read_text())
    assert status == 128 + number and out and run.status == "stopped" and run.id in json.dumps(data)
    written = {"compare": lambda: [run.plain, run.speculative], "entropy": lambda: [i.answer for i in run.items],
               "uag": lambda: [i.plain for i in run.items], "sinks": lambda: [i.prompt.ids for i in run.items]}[command]()
    assert any(written) and f"saved {saved}" in program.heard and not halves(home, tmp_path)


def test_a_stopped_certificate_is_none(home, tmp_path):
    program = Program([*line("certify", tmp_path), "--json", str(tmp_path / "out.json")], home)
    program.until(WORKING["certify"])
    program.send(signal.SIGTERM)
    status, out = program.end()
    assert (status, out) == (143, "") and "nothing was certified" in program.heard and not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("pause", [0.02, 0.2])
@pytest.mark.parametrize("first, second", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_it_at_once_and_leaves_no_half(first, second, pause, home, tmp_path):
    file = tmp_path / "out.json"
    program = Program([*line("compare", tmp_path), "--json", str(file), "--save"], home)
    program.until(r": \d+ tokens")
    program.send(first), time.sleep(pause), program.send(second)  # which may find it done, and Python itself on its way out
    status, _ = program.end()
    assert status in (128 + first, 128 + second, -second) and not halves(home, tmp_path)
    for kept in [*file.parent.glob("out.json"), *(home / "runs").glob("*.json")]:
        assert json.loads(kept.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["compare", "sinks"])
def test_an_early_signal_is_one_line(command, number, home, tmp_path):
    """From before the first import until weights are read. A signal that finds Python itself still starting is not ours to hear."""
    heard = 0
    for delay in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.4):
        process = subprocess.Popen([sys.executable, "-m", "engine", *line(command, tmp_path), "--json", "-"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=os.environ | {"SPECLENS_HOME": str(home)})
        time.sleep(delay)
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        if process.returncode == -number or "/engine/" not in error and "Traceback" in error:
            assert delay < 0.4, error  # Python was not yet there
            continue
        heard += 1
        assert process.returncode == 128 + number and "Traceback" not in error and (out or error == "speclens: stopped.\n"), (delay, error)
    assert heard >= 4 and not halves(home, tmp_path)


@pytest.mark.parametrize("name, code", [
    ("a.json", "os.fsync = lambda _: raise_signal(SIGTERM)\nhome.write_atomic(target, 'x' * 1000)"),
    ("a.safetensors", "os.replace = lambda *_: raise_signal(SIGTERM)\narrays.save({'a': numpy.zeros(9)}, target)"),
    ("folder", "target.mkdir()\nwith interrupt.unfinished(target):\n    (target / 'half').write_text('x')\n    raise_signal(SIGTERM)")])
def test_what_is_half_made_when_the_program_is_ended_is_gone(name, code, tmp_path):
    start = ("import os, numpy\nfrom pathlib import Path\nfrom signal import SIGTERM, raise_signal\nfrom engine import interrupt\n"
             f"from engine.models import home\nfrom engine.trace import arrays\ninterrupt.listen()\ntarget = Path({str(tmp_path / name)!r})\n")
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (143, "speclens: stopped.\n") and not list(tmp_path.iterdir())


def test_an_interrupted_conversion_leaves_nothing_and_the_next_one_works(tiny, tmp_path):  # noqa: F811
    """A real conversion, ended when all is written but the name."""
    code = ("import sys\nfrom pathlib import Path\nfrom signal import SIGTERM, raise_signal\nfrom engine import interrupt\n"
            "from engine.models import gguf\ninterrupt.listen()\nwhole = gguf._write\n"
            "gguf._write = lambda *a: (whole(*a), 'stop' in sys.argv and raise_signal(SIGTERM))\n"
            f"print(gguf.convert(Path({str(tiny)!r})))")
    env = os.environ | {"SPECLENS_HOME": str(tmp_path / "home")}
    first = subprocess.run([sys.executable, "-c", code, "stop"], capture_output=True, text=True, timeout=300, env=env)
    assert first.returncode == 143 and "Traceback" not in first.stderr and not halves(tmp_path)
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env)
    assert again.returncode == 0 and os.path.isdir(again.stdout.strip()), again.stderr
