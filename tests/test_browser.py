"""The app as a person meets it: a real server, a real browser, the bundled pair.

`make test` leaves them out, and says so, where there is no browser; under CI that is a failure.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import PATIENCE, chromium, complaints, fits_the_screen_in, newest, page, press_run, server, unfold  # noqa: F401

pytestmark = pytest.mark.browser


def compare(page, server, tokens: int = 24, **query) -> None:
    page.goto(f"{server.url}/compare" + ("?" + "&".join(f"{k}={v}" for k, v in query.items()) if query else ""))
    unfold(page)
    box = page.get_by_role("spinbutton", name="Tokens", exact=True)
    box.wait_for()
    if not query:
        box.fill(str(tokens))
        box.press("Enter")
        page.wait_for_timeout(500)


def shown_tokens(page) -> int:
    """Tokens of both sides that the live ribbons show now."""
    return page.locator(".sl.live .t").count()


def wait_tokens(page, more_than: int) -> int:
    page.wait_for_function("n => document.querySelectorAll('.sl.live .t').length > n || document.querySelector('.sl.card')",
                           arg=more_than)
    return shown_tokens(page)


def test_first_screen_is_there_soon_and_imports_no_torch(page, server):
    page.goto(server.url)
    page.get_by_role("button", name="Your own prompt").wait_for()
    maps = Path(f"/proc/{server.process.pid}/maps")
    if maps.exists():
        assert "libtorch" not in maps.read_text()


def test_a_deep_link_shows_the_menu_of_the_app(page, server):
    compare(page, server)
    names = page.get_by_test_id("stTopNavLink").all_inner_texts()
    assert [n.strip() for n in names] == ["Start", "Compare", "Sinks", "Polish", "Entropy", "Runs"]


def test_a_run_streams_and_ends_in_a_card(page, server):
    compare(page, server)
    press_run(page)
    page.locator(".sl.live").wait_for()
    first = wait_tokens(page, 0)
    assert first > 0
    wait_tokens(page, first)
    page.locator(".sl.card").wait_for()
    assert "run=" in page.url
    assert page.locator(".sl.card .ribbon .t").count() > 24
    sentence = page.locator(".sl.card .headline").inner_text()
    assert any(word in sentence for word in ("faster", "slower", "No difference", "disturbed"))
    page.reload()
    page.locator(".sl.card").wait_for()
    assert page.locator(".sl.card .headline").inner_text() == sentence


def test_stop_takes_effect_and_the_page_works_on(page, server):
    compare(page, server, tokens=2000)
    press_run(page)
    wait_tokens(page, 3)
    page.get_by_role("button", name="Stop").click()
    page.locator(".sl.card .mark").filter(has_text="stopped").wait_for()
    assert page.locator(".sl.card .ribbon .t").count() < 2000


def test_page_switch_reload_and_a_second_tab_leave_a_run_alone(page, server):
    compare(page, server, tokens=2000)
    press_run(page)
    before = wait_tokens(page, 2)
    address = page.url
    assert "run=" in address
    page.get_by_test_id("stTopNavLink").filter(has_text="Runs").click()
    page.get_by_text("Import runs").wait_for()
    page.get_by_test_id("stTopNavLink").filter(has_text="Compare").click()
    assert wait_tokens(page, before) > before  # it went on meanwhile
    page.reload()
    page.locator(".sl.live").wait_for()
    assert page.url == address
    tab = page.context.new_page()
    tab.goto(f"{server.url}/compare")
    tab.get_by_role("button", name="Watch it").click()
    tab.locator(".sl.live").wait_for()
    tab.close()
    assert wait_tokens(page, before) > before
    page.get_by_role("button", name="Stop").click()
    page.locator(".sl.card .mark").filter(has_text="stopped").wait_for()


def test_one_run_is_one_step_back_and_an_address_shows_the_run_it_names(page, server):
    def ran(prompt: str) -> tuple[str, str, int]:
        before = page.url
        unfold(page)
        page.get_by_label("Prompt", exact=True).fill(prompt)
        press_run(page)
        page.wait_for_function("url => location.href !== url", arg=before)
        page.wait_for_function("document.querySelector('.sl.card') && !document.querySelector('.sl.live')")
        return page.url, answer(), page.evaluate("history.length")

    def answer() -> str:
        return page.locator(".sl.card .ribbon").first.inner_text()

    def shows(address: str, text: str) -> None:
        page.wait_for_url(address)
        page.wait_for_function("text => document.querySelector('.sl.card .ribbon')?.innerText === text", arg=text)

    compare(page, server, tokens=8)
    bare, before = page.url, page.evaluate("history.length")
    first, said, one = ran("Name a river.")
    second, other, two = ran("Count from one to five.")
    assert (one, two) == (before + 1, before + 2) and said != other
    page.go_back()
    shows(first, said)
    page.go_back()
    page.wait_for_url(bare)
    page.wait_for_function("text => document.querySelector('.sl.card .ribbon')?.innerText !== text", arg=said)
    page.go_forward()
    shows(first, said)
    page.go_forward()
    shows(second, other)
    assert page.evaluate("history.length") == two
    named = first.replace("?run=", "?job=")
    page.goto(named)
    shows(named, said)


def test_two_sessions_queue_and_are_not_mixed_up(page, server, chromium):
    compare(page, server, tokens=2000)
    press_run(page)
    page.locator(".sl.live").wait_for()
    other = chromium.new_context().new_page()
    other.set_default_timeout(PATIENCE)
    compare(other, server, tokens=16)
    other.get_by_label("Prompt", exact=True).fill("Count from one to ten.")
    press_run(other)
    other.get_by_text("1 run ahead of yours").wait_for()
    page.locator(".sl.live .t").first.wait_for()  # stopped before a token was written there would be no run
    page.get_by_role("button", name="Stop").click()
    page.locator(".sl.card .mark").filter(has_text="stopped").wait_for()
    other.locator(".sl.card").wait_for()
    assert other.get_by_label("Prompt", exact=True).input_value() == "Count from one to ten."
    assert page.url != other.url
    other.context.close()


def test_hostile_text_is_text(page, server):
    text = "<script>window.hit=1</script><img src=x onerror='window.hit=1'> $5 **x** :smile: </span>"
    compare(page, server, tokens=8)
    page.get_by_label("Prompt", exact=True).fill(text)
    press_run(page)
    page.locator(".sl.card").wait_for()
    page.get_by_test_id("stTopNavLink").filter(has_text="Runs").click()
    page.get_by_text("Import runs").wait_for()
    assert page.evaluate("window.hit") is None
    assert page.locator(".stApp img[src=x]").count() == 0


def test_a_missing_model_is_one_sentence_and_the_page_works_on(page, server):
    compare(page, server, tokens=8)
    box = page.get_by_role("combobox", name="Verifier")
    box.click()
    box.fill("/models/there-is-none")
    box.press("Enter")
    page.locator(".sl.pairline.warn").filter(has_text="/models/there-is-none").wait_for()
    press_run(page)
    page.locator(".sl-say-error").filter(has_text="/models/there-is-none").wait_for()
    assert "Traceback" not in page.inner_text("body")


@pytest.mark.parametrize("where", ["", "compare", "runs"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways_on_a_phone(chromium, server, where, scheme):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    query = newest(server)
    page.goto(f"{server.url}/{where}" + (f"?run={query}" if where == "compare" and query else ""))
    page.locator(".sl").first.wait_for()
    if where == "compare" and query:
        page.locator(".sl.card").wait_for()
    page.wait_for_timeout(1500)
    fits_the_screen_in(page, scheme)
    context.close()


def test_the_log_is_clean(server):
    assert complaints(server) == []
