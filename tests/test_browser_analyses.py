"""Sinks and Entropy as a person meets them: the bundled model really reads and answers, in a real browser."""

from __future__ import annotations

import re

import pytest

from tests.browser import PATIENCE, chromium, complaints, fits_the_screen_in, page, press_run, server, unfold  # noqa: F401

pytestmark = pytest.mark.browser


def ask(page, server, where: str, prompt: str, tokens: int | None = None) -> None:  # noqa: F811
    page.goto(f"{server.url}/{where}")
    unfold(page)
    box = page.get_by_label("Prompt", exact=True)
    box.wait_for()
    if tokens is not None:
        page.get_by_role("spinbutton", name="Tokens", exact=True).fill(str(tokens))
        page.get_by_role("spinbutton", name="Tokens", exact=True).press("Enter")
    box.fill(prompt)
    press_run(page)


def run_id(page) -> str:  # noqa: F811
    return re.search(r"[?&]run=([^&]+)", page.url)[1]


@pytest.fixture(scope="module")
def runs(chromium, server) -> dict[str, str]:  # noqa: F811
    """One run of each page, made as a person makes it: page → id."""
    made = {}
    for where, prompt, tokens in (("sinks", "The lighthouse keeper counted the ships every evening, and wrote the number in a book.", None),
                                  ("entropy", "Count from one to ten.", 16)):
        one = chromium.new_page()
        one.set_default_timeout(PATIENCE)
        ask(one, server, where, prompt, tokens)
        one.locator(".sl.card").wait_for()
        made[where] = run_id(one)
        one.close()
    return made


def opened(page, server, where: str, runs: dict[str, str]) -> None:  # noqa: F811
    page.goto(f"{server.url}/{where}?run={runs[where]}")
    page.locator(".sl.card").wait_for()


def score(page) -> str:  # noqa: F811
    return page.locator(".sl.card .headline").inner_text()


@pytest.mark.parametrize("where, sentence", [("sinks", r"^Context health (\d+\.\d — (good|fair|poor)|n/a)"),
                                             ("entropy", r"^Mean entropy \d+\.\d bits over (\d+) tokens")])
def test_a_run_ends_in_a_card_that_a_reload_shows_again(page, server, runs, where, sentence):  # noqa: F811
    opened(page, server, where, runs)
    said = score(page)
    assert re.search(sentence, said), said
    assert page.locator(".sl.card .ribbon .t").count() >= 8
    assert "SmolLM2-135M-Instruct" in page.locator(".sl.card .caption").inner_text()
    page.locator(".stVegaLiteChart canvas, .stVegaLiteChart svg").first.wait_for()
    page.reload()
    page.locator(".sl.card").wait_for()
    assert score(page) == said and run_id(page) == runs[where]


def test_the_arrow_keys_move_the_threshold_and_nothing_runs_again(page, server, runs):  # noqa: F811
    opened(page, server, "sinks", runs)
    slider = page.get_by_role("slider", name="Threshold")
    before = float(slider.input_value())
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    wanted = f"≥ {round(before + 0.3, 1):g} is a sink"
    page.locator(".sl.card .caption").filter(has_text=wanted).wait_for()
    slider.focus()
    page.keyboard.press("Home")
    page.locator(".sl.card .caption").filter(has_text="≥ 0 is a sink").wait_for()
    assert page.locator(".sl.card .ribbon .t.sk").count() > 2
    assert run_id(page) == runs["sinks"] and page.locator(".sl.live").count() == 0


@pytest.mark.parametrize("where, told", [("sinks", r"position 0 .*attention .* of each of \d+ queries"), ("entropy", r"bits")])
def test_a_token_says_its_figures_to_the_keyboard(page, server, runs, where, told):  # noqa: F811
    opened(page, server, where, runs)
    page.get_by_role("button", name="Share").focus()  # stands before the card
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.t')"):
            break
    content = page.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert re.search(told, content.replace("\\a", " ")), content


def test_entropy_of_a_run_of_another_page_is_not_asked_of_the_model_again(page, server, runs):  # noqa: F811
    opened(page, server, "entropy", runs)
    page.goto(f"{server.url}/compare?run={runs['entropy']}")
    page.wait_for_url(f"**/entropy?run={runs['entropy']}")
    page.locator(".sl.card").wait_for()
    assert page.locator(".sl.live").count() == 0


def test_a_reading_stopped_at_once_keeps_nothing_and_says_so(page, server, runs):  # noqa: F811
    before = sorted((server.log_file.parent / "runs").glob("*.json"))
    ask(page, server, "sinks", "Ala ma kota, a kot ma Alę i psa, i dom z ogrodem. " * 240)
    page.locator(".sl.live").filter(has_text="Reading").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped before anything was written.").wait_for()
    assert sorted((server.log_file.parent / "runs").glob("*.json")) == before


def test_a_prompt_beyond_the_context_is_one_sentence_and_the_page_works_on(page, server, runs):  # noqa: F811
    ask(page, server, "sinks", "<b>kota</b> $5 " * 4000)
    said = page.locator(".sl-say-error").filter(has_text="limit 8,192")
    said.wait_for()
    assert "Traceback" not in page.inner_text("body") and page.locator(".sl.live").count() == 0


def test_a_finished_answer_is_read_with_sinks(page, server, runs):  # noqa: F811
    opened(page, server, "entropy", runs)
    tokens = page.locator(".sl.card .ribbon .t").count()
    page.get_by_role("button", name="Read with Sinks").click()
    page.get_by_text(f"Answer of run {runs['entropy']}, verifier only").wait_for()
    press_run(page)
    page.locator(".sl.card .headline").filter(has_text="Context health of prompt and answer").wait_for()
    assert page.locator(".sl.card .ribbon .t.an").count() == tokens and run_id(page) != runs["entropy"]
    unfold(page)
    page.get_by_role("button", name="Type a prompt instead").click()
    page.get_by_label("Prompt", exact=True).wait_for()
    assert page.get_by_label("Prompt", exact=True).input_value().startswith("The lighthouse keeper")


@pytest.mark.parametrize("where", ["sinks", "entropy"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_result_fits_a_phone(chromium, server, runs, where, scheme):  # noqa: F811
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    one = context.new_page()
    one.set_default_timeout(PATIENCE)
    opened(one, server, where, runs)
    one.locator(".stVegaLiteChart canvas, .stVegaLiteChart svg").first.wait_for()
    fits_the_screen_in(one, scheme)
    context.close()


def test_the_log_is_clean(server):  # noqa: F811
    assert complaints(server) == []
