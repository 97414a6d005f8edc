"""The ground under the app: its own folder, writes that are whole or not at all, the machine it stands on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine import machine as machines
from engine.errors import RequestError
from engine.models import bundled, home


def test_an_atomic_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    home.write_atomic(file, "stary")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RequestError, match="cannot be written .No space left on device."):
        home.write_atomic(file, "nowy")
    assert file.read_text() == "stary" and list(tmp_path.iterdir()) == [file]


def test_home_is_where_speclens_home_says(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "dom"))
    assert home.folder("runs") == tmp_path / "dom" / "runs" and (tmp_path / "dom" / "runs").is_dir()
    monkeypatch.delenv("SPECLENS_HOME")
    assert home.home().name == "speclens" and home.home().is_absolute()


def test_the_machine_is_described_without_importing_torch():
    code = "import sys; from engine.machine import machine; m = machine(); print(m.chip, m.cores); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=bundled.ROOT).returncode == 0
    m = machines.machine()
    assert m.cores >= 1 and m.memory_bytes > 2**28 and m.chip and m.system
    assert m.packages["torch"] and m.python.startswith("3.")
    assert 0 < machines.memory_available() <= m.memory_bytes
