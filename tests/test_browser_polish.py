"""Polish as a person meets it: lanes of real tokenizers and a small real run of the bundled pair, in a real browser."""

from __future__ import annotations

import json
import re

import pytest

from tests.browser import PATIENCE, chromium, complaints, fits_the_screen_in, page, press_run, server, unfold  # noqa: F401

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def run(chromium, server) -> str:  # noqa: F811
    """The id of a run made as a person makes it: a short answer of the bundled pair by every strategy, one k."""
    one = chromium.new_page()
    one.set_default_timeout(PATIENCE)
    one.goto(f"{server.url}/polish")
    unfold(one)
    tokens = one.get_by_role("spinbutton", name="Tokens", exact=True)
    tokens.fill("8")
    tokens.press("Enter")
    one.get_by_role("combobox", name="k", exact=True).focus()
    for _ in ("6", "4"):  # the last one chosen goes first
        one.keyboard.press("Backspace")
    one.get_by_text("5 answers of at most 8 tokens").wait_for()
    press_run(one)
    one.locator(".sl.card").wait_for()
    one.wait_for_url("**run=**")
    made = re.search(r"[?&]run=([^&]+)", one.url)[1]
    one.close()
    return made


def text_view(page, server) -> None:  # noqa: F811
    page.goto(f"{server.url}/polish")
    page.get_by_role("radio", name="Text", exact=True).click()
    page.locator(".sl.lanes .flow").wait_for()


@pytest.fixture
def opened(page, server, run):  # noqa: F811
    page.goto(f"{server.url}/polish?run={run}")
    page.locator(".sl.card").wait_for()
    page.locator(".sl.cross").wait_for()
    return page


def test_the_lanes_follow_the_text_and_nothing_in_it_is_obeyed(page, server):  # noqa: F811
    text_view(page, server)
    text = "Zaz\u0307o\u0301łć <script>window.hit=1</script><img src=x onerror='window.hit=1'> 😀\tgęś"
    box = page.locator("textarea")
    box.fill(text)
    box.press("Control+Enter")
    page.locator(".sl.lanes .flow").filter(has_text="onerror").wait_for()
    copied = page.evaluate("() => { const s = getSelection(); s.selectAllChildren(document.querySelector('.flow')); return s.toString(); }")
    assert copied == text
    assert page.evaluate("window.hit") is None and page.locator(".stApp img[src=x]").count() == 0
    assert re.match(r"Mistral v0\.1 and Polish BPE agree on \d+ of \d+ cuts", page.locator(".sl.headline").inner_text())
    assert page.locator(".sl.lanes .brk").count() >= 4  # both split ż and ó in two, the emoji in four
    page.locator(".sl.lanes .t.k").first.focus()
    assert "bytes 5A" in page.evaluate("getComputedStyle(document.activeElement, '::after').content")


def test_an_unknown_tokenizer_is_one_sentence_and_the_others_are_drawn(page, server):  # noqa: F811
    text_view(page, server)
    box = page.get_by_role("combobox", name="Tokenizers")
    box.fill("/tokenizers/there-is-none")
    box.press("Enter")
    page.locator(".sl-say-error").filter(has_text="/tokenizers/there-is-none").wait_for()
    assert page.locator(".sl.lanes .flow").count() == 1 and "Traceback" not in page.inner_text("body")


def test_a_run_says_what_it_found_with_its_counts(opened, server, run):  # noqa: F811
    kept = json.loads((server.log_file.parent / "runs" / f"{run}.json").read_text())
    card = opened.locator(".sl.card")
    assert card.locator(".headline").inner_text().removesuffix(" disturbed").endswith(".")
    assert "All 4 answers are verifier-only's" in card.inner_text() or "answers differ from verifier-only's" in card.inner_text()
    for result in kept["items"][0]["results"]:
        rounds = result["answer"]["rounds"]
        row = card.locator("tr").filter(has=opened.get_by_role("rowheader", name=result["strategy"], exact=True))
        assert f"{sum(r['accepted'] for r in rounds)} of {sum(len(r['proposed']) for r in rounds)} candidates" in row.inner_text()
    assert "Demonstration models" in card.inner_text() and "polish-verifier" in card.locator(".caption").inner_text()
    opened.locator(".stVegaLiteChart canvas, .stVegaLiteChart svg").first.wait_for()


def test_rounds_are_stepped_through_by_keys_and_two_answers_stand_side_by_side(opened):
    assert "Round 1 of" in opened.locator(".sl.cross").inner_text()
    opened.locator("body").press("k")
    opened.locator(".sl.cross").filter(has_text="Round 2 of").wait_for()
    opened.locator("body").press("j")
    opened.locator(".sl.cross").filter(has_text="Round 1 of").wait_for()
    box = opened.get_by_role("combobox", name="Beside it")
    box.scroll_into_view_if_needed()
    opened.wait_for_timeout(1000)  # a list of choices that is open when the page scrolls is closed by it
    box.click()
    opened.get_by_role("option", name="verifier-only").click()
    opened.locator(".sides .side").nth(1).wait_for()
    first, second = opened.locator(".sides .side .ribbon").all_inner_texts()
    assert first and second


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_result_fit_a_phone(chromium, server, run, scheme):  # noqa: F811
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    one = context.new_page()
    one.set_default_timeout(PATIENCE)
    one.goto(f"{server.url}/polish?run={run}")
    one.locator(".stVegaLiteChart canvas, .stVegaLiteChart svg").first.wait_for()
    fits_the_screen_in(one, scheme)
    text_view(one, server)
    fits_the_screen_in(one, scheme)
    context.close()


def test_the_log_is_clean(server):  # noqa: F811
    assert complaints(server) == []
