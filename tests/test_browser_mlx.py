"""Compare and Sinks once with MLX chosen by hand: a real server, a real browser, the bundled pair."""

from __future__ import annotations

import pytest

from tests.browser import chromium, complaints, page, press_run, server, unfold  # noqa: F401

pytestmark = pytest.mark.browser


def choose_mlx(page, popover: str) -> None:  # noqa: F811
    page.get_by_role("button", name=popover).click()
    page.get_by_role("combobox", name="Engine").click()
    page.get_by_role("option", name="mlx", exact=True).click()
    page.get_by_role("button", name=f"{popover} (1 set)").wait_for()
    page.keyboard.press("Escape")


def test_a_comparison_on_mlx_ends_in_a_card_that_says_so(page, server):  # noqa: F811
    page.goto(f"{server.url}/compare")
    unfold(page)
    box = page.get_by_role("spinbutton", name="Tokens", exact=True)
    box.fill("16")
    box.press("Enter")
    choose_mlx(page, "More settings")
    page.locator(".sl.pairline").filter(has_text="same vocabulary").wait_for()
    press_run(page)
    card = page.locator(".sl.card")
    card.wait_for()
    caption = card.locator(".caption").inner_text()
    assert " · mlx " in caption and "torch" not in caption and "16 tokens of at most 16" in caption and "greedy" in caption
    plain, speculative = (card.locator(".side").nth(i) for i in range(2))
    assert plain.locator(".ribbon .t").count() == 16 and speculative.locator(".ribbon .t").count() >= 16
    assert "16 tokens, length limit" in plain.inner_text() and "16 tokens, length limit" in speculative.inner_text()
    assert page.get_by_text("Settings changed").count() == 0
    page.reload()
    card.wait_for()
    assert card.locator(".caption").inner_text() == caption


def test_a_reading_on_mlx_ends_in_a_card_that_says_so(page, server):  # noqa: F811
    page.goto(f"{server.url}/sinks")
    unfold(page)
    page.get_by_label("Prompt", exact=True).fill("The lighthouse keeper counted the ships every evening.")
    choose_mlx(page, "System, raw, device")
    press_run(page)
    card = page.locator(".sl.card")
    card.wait_for()
    assert card.locator(".headline").inner_text().startswith("Context health")
    assert " · mlx " in card.locator(".caption").inner_text() and card.locator(".ribbon .t").count() > 8


def test_the_log_is_clean(server):  # noqa: F811
    assert complaints(server) == []
