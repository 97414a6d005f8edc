"""Every page as a visitor first sees it: its name, a recorded result on the first screen, controls that unfold and lose nothing."""

from __future__ import annotations

import json

import pytest

from tests.browser import PATIENCE, chromium, complaints, fits_the_screen_in, page, press_run, server, unfold  # noqa: F401

pytestmark = pytest.mark.browser
PAGES = ("compare", "sinks", "polish", "entropy")
LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}


@pytest.fixture(params=["light", "dark"])
def visitor(request, chromium):  # noqa: F811
    """A page of a browser that was never here, light or dark."""
    context = chromium.new_context(viewport=LAPTOP, color_scheme=request.param)
    one = context.new_page()
    one.set_default_timeout(PATIENCE)
    one.scheme = request.param
    yield one
    context.close()


def top(page, what: str) -> float:  # noqa: F811
    return page.locator(what).first.bounding_box()["y"]


@pytest.mark.parametrize("where", PAGES)
def test_the_first_screen_has_name_question_run_and_a_recorded_result(visitor, server, where):  # noqa: F811
    for size, most in ((LAPTOP, 480), (PHONE, 760)):
        visitor.set_viewport_size(size)
        visitor.goto(f"{server.url}/{where}")
        visitor.locator(".sl.card").wait_for()
        assert visitor.locator("h1").all_inner_texts() == [where.capitalize()]
        assert visitor.locator(".sl.head p").inner_text().endswith("?") and visitor.locator(".sl.provenance .mark").inner_text() == "recorded"
        assert top(visitor, ".sl.card .headline") < most and top(visitor, f".st-key-{where}-run") < top(visitor, ".sl.card")
        fits_the_screen_in(visitor, visitor.scheme)


@pytest.mark.parametrize("where", ["", "runs"])
def test_start_and_runs_have_a_name_and_something_to_look_at(visitor, server, where):  # noqa: F811
    for size in (LAPTOP, PHONE):
        visitor.set_viewport_size(size)
        visitor.goto(f"{server.url}/{where}")
        visitor.locator("h1").wait_for()
        visitor.locator(".sl.replay .headline, .sl.provenance, [data-testid=stDataFrame]").first.wait_for()
        assert visitor.locator("h1").count() == 1
        fits_the_screen_in(visitor, visitor.scheme)


@pytest.mark.parametrize("where", PAGES)
def test_controls_unfold_by_click_or_key_and_nothing_typed_is_lost(page, server, where):  # noqa: F811
    page.goto(f"{server.url}/{where}")
    page.locator(".sl.card").wait_for()
    box = page.get_by_label("Prompt", exact=True)
    assert not box.is_visible()
    page.get_by_role("button", name="Settings", exact=True).focus()
    page.keyboard.press("Enter")
    box.wait_for(state="visible")
    box.fill("A sentence of my own.")
    box.press("Control+Enter")
    page.wait_for_timeout(800)
    assert box.is_visible()  # what is typed redraws the controls; they stay as they are
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator(".sl.folded").filter(has_text="A sentence of my own.").wait_for()
    assert not box.is_visible()
    page.get_by_role("button", name="Settings", exact=True).click()
    box.wait_for(state="visible")
    assert box.input_value() == "A sentence of my own."


def test_the_first_run_folds_the_controls_and_replaces_what_was_recorded(page, server):  # noqa: F811
    page.set_viewport_size(LAPTOP)
    page.goto(f"{server.url}/entropy")
    unfold(page)
    tokens = page.get_by_role("spinbutton", name="Tokens", exact=True)
    tokens.fill("8")
    tokens.press("Enter")
    press_run(page)
    page.locator(".sl.card").wait_for()
    assert page.locator(".sl.provenance").count() == 0 and page.locator(".sl.folded").filter(has_text="8 tokens").count() == 1
    assert top(page, ".sl.card") < 400 and "run=" in page.url


def test_empty_cells_of_tables_are_empty(page, server):  # noqa: F811
    """A run of Entropy has neither draft nor speedup; the grid draws on a canvas and keeps its cells' texts beside it."""
    page.goto(f"{server.url}/runs")
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()
    page.wait_for_timeout(1500)
    cells = page.locator("[data-testid=stDataFrame] canvas td").all_text_contents()
    assert "Entropy" in json.dumps(cells) and not {"None", "nan", "NaN", "<NA>", "null"} & {c.strip() for c in cells}


def test_words_above_a_chart_run_across_its_width(page, server):  # noqa: F811
    page.goto(f"{server.url}/compare")
    page.locator(".stVegaLiteChart canvas, .stVegaLiteChart svg").first.wait_for()
    words, charts = page.locator(".sl.chart p"), page.locator(".stVegaLiteChart")
    assert words.count() == charts.count() >= 4
    for i in range(words.count()):
        assert words.nth(i).bounding_box()["width"] == pytest.approx(charts.nth(i).bounding_box()["width"], abs=2)


def test_a_strategy_run_grows_in_every_cell_and_says_causes_at_once(page, server):  # noqa: F811
    page.goto(f"{server.url}/polish")
    unfold(page)
    tokens = page.get_by_role("spinbutton", name="Tokens", exact=True)
    tokens.fill("16")
    tokens.press("Enter")
    page.wait_for_timeout(800)
    press_run(page)
    page.locator(".cell .refused p").filter(has_text="Last:").first.wait_for()
    assert page.locator(".sl.live").count() == 1 and page.locator(".cell.now").count() <= 1
    page.locator(".sl.card").wait_for()
    assert page.locator(".sl.live").count() == 0


def test_the_log_is_clean(server):  # noqa: F811
    assert complaints(server) == []
