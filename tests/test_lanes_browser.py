"""The lanes in a real browser: the grid holds whatever the script, the ruler copies as the text, tokens answer the keyboard."""

from __future__ import annotations

import pytest
from playwright.sync_api import sync_playwright

from engine.alignment import align
from tests import toys
from tests.browser import ARGUMENTS, HOW, PROGRAM
from ui.lanes import CSS, lanes_html, numbers_html
from ui.theme import css

pytestmark = pytest.mark.browser
TEXT = ("Zażółć gęślą jaźń „cudzysłów” e\u0328 z\u0307\tkot\u00a0ok\nשלום العربية 漢字 😀👨\u200d👩 \u202eabc <b>$x$</b>\n\n"
        "https://pl.wikipedia.org/wiki/Za%C5%BC%C3%B3%C5%82%C4%87_g%C4%99%C5%9Bl%C4%85 " + "zażółć gęślą jaźń " * 12)
CELLS = """() => { const out = [], first = document.querySelector('.w');
  const one = first.getBoundingClientRect().width / parseFloat(first.style.width);
  for (const w of document.querySelectorAll('.w')) {
    const left = w.getBoundingClientRect().left, width = parseFloat(w.style.width);
    const inside = [...w.querySelectorAll('.r, .x')].map(e => { const r = document.createRange(); r.selectNodeContents(e);
      const boxes = [...r.getClientRects()]; return Math.max(...boxes.map(b => b.right)) - left; });
    out.push([width * one, ...inside]); }
  return out; }"""


@pytest.fixture(scope="module")
def browser():
    assert PROGRAM is not None, HOW
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["laptop", "phone"])
def page(browser, request):
    width, scheme = request.param
    found = align(TEXT, [toys.vocabulary(toys.byte_level(), "bytes"), toys.vocabulary(toys.sentencepiece_like(), "a rather long name")])
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_content(f'<!doctype html><meta charset="utf-8"><style>:root{{color-scheme:{scheme}}}body{{margin:12px}}{css()}{CSS}</style>'
                     + lanes_html(found) + numbers_html(found))
    yield page
    page.close()


def test_nothing_runs_out_of_the_screen(page):
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("Math.max(...[...document.querySelectorAll('.w')].map(w => w.getBoundingClientRect().right))") <= width


def test_every_block_is_as_wide_as_its_cells_in_the_ruler_and_in_every_lane(page):
    for width, *drawn in page.evaluate(CELLS):
        assert len(drawn) == 3 and all(abs(one - width) < 1 for one in drawn), (width, drawn)


def test_names_stand_beside_their_lanes_on_every_line(page):
    tops = page.evaluate("""() => [[...document.querySelectorAll('.gutter b')].map(b => b.getBoundingClientRect().top),
        [...document.querySelectorAll('.lane')].map(l => l.getBoundingClientRect().top), document.querySelector('.flow').getBoundingClientRect().bottom]""")
    names, lanes, bottom = tops
    assert {round(t) for t in lanes} == {round(t) for t in names if t < bottom}


def test_the_text_is_copied_as_it_is(page):
    copied = page.evaluate("() => { const s = getSelection(); s.selectAllChildren(document.querySelector('.flow')); return s.toString(); }")
    assert copied == TEXT


def test_a_token_answers_the_keyboard_and_the_mouse_with_its_bytes(page):
    page.keyboard.press("Tab")
    shown = "getComputedStyle(document.activeElement, '::after').content"
    assert "id " in page.evaluate(shown) and "bytes 5A" in page.evaluate(shown)
    page.hover(".t.k >> nth=2")
    content = page.evaluate("getComputedStyle(document.querySelectorAll('.t.k')[2], '::after').content")
    assert "characters 2 to 3" in content and "holds part of ż" in content
