"""Runs from files as a person brings them in: a real server, a real browser."""

from __future__ import annotations

import json

import pytest

from engine.trace import to_json
from tests.browser import chromium, complaints, page, server  # noqa: F401
from tests.sample import sample_run

pytestmark = pytest.mark.browser


def test_a_spoilt_file_is_imported_and_every_page_that_shows_it_draws(page, server, tmp_path):
    data = json.loads(to_json(sample_run(seed=5)))
    data["models"]["verifier"]["title"], data["name"] = "title\ud800", "name\udfff"
    (tmp_path / "spoilt.json").write_text(json.dumps(data))
    (tmp_path / "closed.json").write_text(json.dumps({**data, "status": "\ud800"}))
    page.goto(f"{server.url}/runs")
    page.get_by_text("Import runs").click()
    page.locator("input[type=file]").set_input_files([tmp_path / "spoilt.json", tmp_path / "closed.json"])
    page.get_by_text("spoilt.json is imported.").wait_for()
    page.locator(".sl-say-error").filter(has_text="closed.json: This run cannot be used: status is none of done, stopped and failed.").wait_for()
    table = page.get_by_test_id("stDataFrame")
    table.wait_for()
    table.hover()
    assert page.get_by_role("button", name="Download as CSV").count() == 0  # hidden: it would leave formulas in
    page.goto(f"{server.url}/compare?run={data['id']}")
    page.locator(".sl.card").filter(has_text="title?").first.wait_for()
    page.goto(f"{server.url}/entropy?run={data['id']}")
    page.locator(".sl.card").filter(has_text="title?").first.wait_for()
    assert complaints(server) == []
