"""How long a person waits for a screen: a real server, a real browser.

    python -m bench.screens [--repeats 3] [--tokens 2000]

Prints the median seconds from the server's start to a usable first screen, of a page switch, and of opening a stored run
of 2,000 tokens; then the server's memory. The stored run is a recorded run's tokens repeated: nothing is decoded for it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
from playwright.sync_api import Page, sync_playwright

from cache.store import Store
from engine.trace import Generation, Run, from_json

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "recorded" / "compare.json"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--tokens", type=int, default=2000)
    p.add_argument("--browser", default="/usr/bin/chromium")
    a = p.parse_args()
    starts, switches, openings, memory = [], [], [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=a.browser, args=ARGUMENTS)
        for _ in range(a.repeats):
            with tempfile.TemporaryDirectory() as home:
                run_id = stored(Path(home), a.tokens)
                url, server, began = serve(home)
                try:
                    page = browser.new_page(viewport={"width": 1280, "height": 900})
                    page.goto(url)
                    ready(page)
                    starts.append(time.perf_counter() - began)
                    for name in ("Compare", "Runs", "Compare", "Start"):
                        began = time.perf_counter()
                        page.get_by_role("link", name=name, exact=True).first.click()
                        ready(page)
                        switches.append(time.perf_counter() - began)
                    began = time.perf_counter()
                    page.goto(f"{url}/compare?run={run_id}")
                    page.locator(".sl-card, [class*=card]").first.wait_for()
                    ready(page)
                    openings.append(time.perf_counter() - began)
                    memory.append(psutil.Process(server.pid).memory_info().rss / 1e9)
                    page.close()
                finally:
                    server.terminate()
                    server.wait()
        browser.close()
    for name, values in (("server start to first screen", starts), ("page switch", switches), (f"opening a run of 2 × {a.tokens:,} tokens", openings)):
        print(f"{name}: median {statistics.median(values):.2f} s ({min(values):.2f}–{max(values):.2f}, {len(values)} times)")
    print(f"server memory without models: {statistics.median(memory):.2f} GB")


def stored(home: Path, tokens: int) -> str:
    """A long run in the store of `home`."""
    run = from_json(RECORDED.read_text(encoding="utf-8"))
    store = Store(home / "runs")
    try:
        return store.save(long(run, tokens))
    finally:
        store.close()


def long(run: Run, tokens: int) -> Run:
    return replace(run, id="20260101-000000-abcdef", plain=stretched(run.plain, tokens), speculative=stretched(run.speculative, tokens))


def stretched(g: Generation, tokens: int) -> Generation:
    """Whole rounds over and over until there are at least so many tokens."""
    picked, count = [], 0
    for r in itertools.cycle([r for r in g.rounds if r.closing]):
        if count >= tokens:
            break
        picked.append(replace(r, end=len(picked) * 0.05))
        count += len(r.emitted)
    ids = tuple(i for r in picked for i in r.emitted)
    again = -(-len(ids) // len(g.ids))
    return replace(g, ids=ids, rounds=tuple(picked), finish="length", entropy=(g.entropy * again)[: len(ids)], top=(g.top * again)[: len(ids)],
                   probability=(g.probability * again)[: len(ids)],
                   timings=tuple(replace(t, tokens=len(ids), passes=len(picked)) for t in g.timings))


def serve(home: str) -> tuple[str, subprocess.Popen, float]:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    began = time.perf_counter()
    server = subprocess.Popen([sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), "--server.headless", "true"],
                              cwd=ROOT, env={**os.environ, "SPECLENS_HOME": home}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            urllib.request.urlopen(f"http://localhost:{port}/_stcore/health", timeout=2).read()
            return f"http://localhost:{port}", server, began
        except OSError:
            if server.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.02)


def ready(page: Page) -> None:
    """Drawn, and the script at rest."""
    page.locator("[data-testid=stMain]").wait_for()
    page.wait_for_function("() => document.querySelector('[data-testid=stApp]')?.getAttribute('data-test-script-state') === 'notRunning'")


if __name__ == "__main__":
    main()
