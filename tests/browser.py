"""What the browser tests share: a real server with its own home, a real browser, and looking at what they say."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]
HOW = "There is no browser for these tests; `make test` finds one or says how to get it (SPECLENS_CHROMIUM names one)."
PATIENCE = 120_000  # ms; two cores that others use load torch and decode slowly
STREAMLITS_OWN = "/_stcore/"  # of a deep link it asks for these first in the wrong place
ERRORS = ("Traceback", "ERROR", "Exception", "torch.classes", "missing ScriptRunContext")
PROGRAM = os.environ.get("SPECLENS_CHROMIUM") or shutil.which("chromium")


@pytest.fixture(scope="module")
def chromium():
    assert PROGRAM is not None, HOW
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=ARGUMENTS)
        yield browser
        browser.close()


class Server:
    """The app on a free port, with its own home and its log in a file."""

    def __init__(self, home: Path, *options: str):
        with socket.socket() as s:
            s.bind(("localhost", 0))
            self.port = s.getsockname()[1]
        self.url, self.log_file = f"http://localhost:{self.port}", home / "server.log"
        environment = {**os.environ, "SPECLENS_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        self.started = time.monotonic()
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(self.port),
                                             *options],
                                            cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.wait()

    def wait(self) -> None:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2).read()
                return
            except OSError:
                assert self.process.poll() is None, self.log()
                time.sleep(0.1)
        raise AssertionError(f"the server did not start: {self.log()}")

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def server(tmp_path_factory, smollm2_folder):
    home = tmp_path_factory.mktemp("home")
    converted = smollm2_folder.parent
    if converted.name == "converted":  # made once, by `make setup`; converting again would only cost time
        (home / "converted").symlink_to(converted, target_is_directory=True)
    running = Server(home)
    yield running
    running.close()


@pytest.fixture
def page(chromium, server):
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    one = context.new_page()
    one.set_default_timeout(PATIENCE)
    one.mistakes = []
    one.on("pageerror", lambda e: one.mistakes.append(str(e)))
    one.on("console", lambda m: one.mistakes.append(m.text) if m.type == "error" and STREAMLITS_OWN not in m.location["url"] else None)
    yield one
    assert one.mistakes == []
    context.close()


def unfold(page) -> None:
    """Have the controls on screen: they are folded away while there is a result, be it a recorded one."""
    page.get_by_role("button", name="Settings", exact=True).wait_for()
    page.locator(".sl.folded, .sl.unfolded").first.wait_for(state="attached")
    if page.locator(".sl.folded").count():
        page.get_by_role("button", name="Settings", exact=True).click()
        page.locator(".sl.folded").wait_for(state="detached")


def press_run(page) -> None:
    """Press Run, and wait until the result that was on screen before, if there was one, is gone or an error is said."""
    before = page.evaluate("document.querySelector('.sl.card')?.innerText")
    page.get_by_role("button", name="Run", exact=False).and_(page.locator("[data-testid=stBaseButton-primary]")).click()
    page.wait_for_function("before => document.querySelector('.sl-say-error') || document.querySelector('.sl.card')?.innerText !== before", arg=before)


def fits_the_screen_in(page, scheme: str) -> None:
    """Nothing scrolls sideways, and paper and ink are those of the scheme."""
    wide, inner = page.evaluate("[document.querySelector('.stMain').scrollWidth, innerWidth]")
    assert wide <= inner
    background = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    paper = page.evaluate("getComputedStyle(document.querySelector('.sl')).color")
    dark = scheme == "dark"
    assert (sum(channels(background)) < 200) == dark and (sum(channels(paper)) > 400) == dark


def channels(colour: str) -> list[int]:
    return [int(float(c)) for c in colour.strip("rgba()").split(",")[:3]]


def newest(server) -> str | None:
    runs = sorted((server.log_file.parent / "runs").glob("*.json"))
    return runs[-1].stem if runs else None


def complaints(server) -> list[str]:
    return [line for line in server.log().splitlines() if any(e in line for e in ERRORS)]
