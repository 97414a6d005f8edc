"""Lanes on the screen and in pictures: every character in its cell, every token drawn once, nothing of the text run as markup."""

from __future__ import annotations

import time
import xml.dom.minidom
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from engine.alignment import align
from tests import toys
from tests.screens import DOLLARS, HOSTILE
from ui.lane_grid import LONGEST, WINDOW, blocks, cells, windows
from ui.lanes import CSS, details, lanes_html, legend_html, numbers_html
from ui.lanes_picture import lanes_svg

BYTES = toys.vocabulary(toys.byte_level(), "bytes")
PIECES = toys.vocabulary(toys.sentencepiece_like(), "pieces")
TEXT = "Zażółć gęślą\njaźń  😀 e\u0328 \u202eאב\t<b>漢\u00a0"
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text("aąż \n\t\u0328\u0301😀漢א<&'\"\u200d▁", max_size=60)
OURS = {"div", "span", "i", "b", "u", "p", "br", "wbr", "table", "thead", "tbody", "tr", "th", "td", "abbr", "ul", "li"}


class Reader(HTMLParser):
    """What a browser would keep: tags, attributes, and what a person selects, which is the ruler."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.ruler, self.open = set(), [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        if tag == "br":
            self.ruler.append("\n")
        if tag not in ("br", "wbr"):
            self.open.append((tag, dict(attributes).get("class")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if ("span", "r") in self.open:
            self.ruler.append(data)


def pieces_of(found, number, start=0, end=None):
    """The parts of every token of a lane on the whole line: {token: [(left, right, opens), …]}."""
    drawn = {}
    for block in blocks(found, start, end):
        for piece in block.lanes[number]:
            drawn.setdefault(piece.token, []).append((block.left + piece.left, block.left + piece.right, piece.opens))
    return drawn


# ── the grid ──


@given(any_text)
@example("\u0328a\u0301\u0301")
@example("\r\n\u0301x")
def test_cells_hold_every_character_once_with_its_marks(text):
    row = cells(text, 0, len(text))
    assert "".join(cell.text for cell in row) == text and [c.start for c in row[1:]] == [c.end for c in row[:-1]]
    assert all(1 <= cell.width <= 3 for cell in row)
    laid = blocks(align(text, [BYTES]))
    assert [cell for block in laid for cell in block.cells] == row
    assert all(block.width == sum(c.width for c in block.cells) <= LONGEST for block in laid)
    assert [block.cells[-1].kind == "break" for block in laid] == [block.breaks for block in laid]
    assert all(cell.kind != "break" for block in laid for cell in block.cells[:-1])


@given(any_text)
@example("ą\u0301ż")
@example("😀ż")
def test_every_token_covers_its_stretch_of_the_line_and_no_other(text):
    found = align(text, [BYTES, PIECES])
    row = cells(text, 0, len(text))
    total = sum(cell.width for cell in row)
    for number, one in enumerate(found.lanes):
        drawn = pieces_of(found, number)
        assert set(drawn) == {k for k, t in enumerate(one.tokens) if t.bytes or t.spelled}
        at = 0
        for k in sorted(drawn):
            for left, right, _ in drawn[k]:
                assert left == pytest.approx(at) and right > left  # end to end, none hidden
                at = right
        assert at == pytest.approx(total)
        opened = [opens for k in sorted(drawn) for _, _, opens in drawn[k] if opens]
        assert opened == ["both" if found.counts[cut] == 2 else "lone" for cut in one.cuts]


def test_a_split_letter_is_bracketed_and_parted_evenly():
    found = align("aż😀z\u0307", [BYTES])
    (block,) = blocks(found)
    assert [(b.left, b.right) for b in block.brackets[0]] == [(1, 2), (2, 4), (4, 5)]
    lefts = [piece.left for piece in block.lanes[0]]
    assert lefts == pytest.approx([0, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4 + 1 / 3, 4 + 2 / 3])  # z, then the mark's two bytes
    whole = align("ż", [PIECES])
    assert blocks(whole)[0].brackets == ((),)


def test_a_token_that_reaches_into_the_next_block_opens_only_once():
    backend = Tokenizer(models.Unigram([("<unk>", -20.0), ("a" * 20, -1.0), ("b", -1.0)], unk_id=0))
    backend.decoder = decoders.Fuse()
    found = align("b" + "a" * 20 + "b", [toys.vocabulary(toys.fast(backend))])
    laid = blocks(found)
    assert [block.width for block in laid] == [14, 8]
    assert [(p.left, p.right, p.token, p.opens) for block in laid for p in block.lanes[0]] == [
        (0, 1, 0, ""), (1, 14, 1, "both"), (0, 7, 1, ""), (7, 8, 2, "both")]


def test_marks_wide_and_hidden_characters_have_cells_of_their_own():
    row = cells("e\u0328 漢\u200d\u0301😀\ufe0f\n", 0, 9)
    assert [(c.text, c.width, c.kind) for c in row] == [
        ("e\u0328", 1, "odd"), (" ", 1, "space"), ("漢", 2, "odd"), ("\u200d\u0301", 2, "hidden"), ("😀\ufe0f", 2, "odd"), ("\n", 1, "break")]
    assert cells("\u0328a", 0, 2)[0].kind == "hidden"  # a mark with no letter would land on its neighbour


@given(any_text, st.integers(1, 30))
def test_windows_part_a_text_without_tearing_a_letter_from_its_marks(text, most):
    found = windows(text, most)
    assert "".join(text[a:b] for a, b in found) == text and all(a < b for a, b in found)
    assert [c for a, b in found for c in cells(text, a, b)] == cells(text, 0, len(text))
    result = align(text, [BYTES, PIECES])
    for a, b in found:
        for number in (0, 1):
            drawn = pieces_of(result, number, a, b)
            width = sum(cell.width for cell in cells(text, a, b))
            spans = sorted(span[:2] for parts in drawn.values() for span in parts)
            assert spans[0][0] == 0 and spans[-1][1] == pytest.approx(width)
            assert all(left[1] == pytest.approx(right[0]) for left, right in zip(spans, spans[1:]))


def test_windows_end_at_line_breaks_or_spaces():
    assert windows("ab cde\ng hi", 8) == [(0, 7), (7, 11)] and windows("", 8) == []
    assert windows("abcdefg hijk", 8) == [(0, 7), (7, 12)] and windows("abcdefghijkl", 8) == [(0, 8), (8, 12)]


# ── HTML ──


@given(any_text)
@example(HOSTILE)
@example("&lt;script&gt; \u2028\u0085")
def test_the_ruler_is_the_text_and_nothing_of_it_is_markup(text):
    html = lanes_html(align(text, [BYTES, PIECES]))
    reader = Reader(html)
    assert reader.tags <= OURS
    assert not [name for name, _ in reader.attributes if name not in ("class", "style", "tabindex", "data-d", "data-m", "role",
                                                                       "aria-label", "aria-hidden")]
    if text:
        assert "".join(reader.ruler) == text.replace("\0", "")


@pytest.mark.parametrize("text", [HOSTILE, DOLLARS, "**b** [x](y) `c` :red[d]"])
def test_hostile_text_and_names_appear_only_escaped(text):
    found = align(text, [BYTES, toys.vocabulary(toys.byte_level(), "<img src=x>")])
    for html in (lanes_html(found), numbers_html(found)):
        assert Reader(html).tags <= OURS and "<script" not in html and "<img" not in html
    assert ">&lt;\u0301</i>" in lanes_html(align("<\u0301", [BYTES]))  # a letter with a mark has a cell of its own
    svg = lanes_svg(found)
    assert "<script" not in svg and "<img" not in svg and xml.dom.minidom.parseString(svg.encode())


def test_each_token_can_be_reached_and_says_its_id_bytes_and_characters():
    found = align(TEXT, [BYTES, PIECES])
    html = lanes_html(found)
    shown = [value for name, value in Reader(html).attributes if name == "data-d"]
    assert html.count('tabindex="0"') == len(shown) >= sum(bool(t.bytes) for one in found.lanes for t in one.tokens)
    for number, one in enumerate(found.lanes):
        for k, token in enumerate(one.tokens):
            lines = details(found, number, k).split("\n")
            assert lines[0].endswith(f"{one.title} · token {k + 1} of {len(one.tokens)}")
            assert lines[1] == f"id {token.id} · bytes {bytes.fromhex(token.bytes).hex(' ').upper() or 'none'}"
            assert lines[2].startswith(f"characters {token.start} to {token.end}")


def test_a_byte_token_names_the_character_it_is_part_of_and_no_space_mark_is_shown():
    found = align("aż kot", [BYTES, PIECES])
    assert details(found, 0, 1).split("\n")[0].startswith("byte C5") and "holds part of ż" in details(found, 0, 1)
    assert details(found, 0, 3).startswith("·   bytes") and not {"Ġ", "▁"} & set(lanes_html(found))


def test_what_a_tokenizer_reads_otherwise_is_in_the_tokens_facts_and_in_the_notes():
    found = align("a▁b", [PIECES])
    assert any("the tokenizer reads it as ·" in details(found, 0, k) for k in range(len(found.lanes[0].tokens)))
    assert "▁ as a space 1" in numbers_html(found)


def test_cuts_are_marked_by_who_makes_them_and_letters_by_what_touches_them():
    html = lanes_html(align("aż", [BYTES, PIECES]))  # both cut before ż, only the bytes inside it
    classes = [value for name, value in Reader(html).attributes if name == "class" and value.startswith("t k")]
    assert [c.split()[-1] for c in classes] == ["k", "bar", "lone", "z", "bar"]  # a|Å|¼ and a|ż
    assert '<b class="dia hit">ż</b>' in html and html.count('<i class="brk" style') == 1
    alone = lanes_html(align("aż", [PIECES]))
    assert " lone" not in alone and '<b class="dia">ż</b>' in alone


def test_the_legend_explains_every_mark_that_can_come_up_and_no_other():
    two, one = legend_html(align("ż", [BYTES, PIECES])), legend_html(align("ż", [BYTES]))
    for words in ("every tokenizer cuts here", "only some of them do", "letter with a diacritic", "letter split"):
        assert words in two
    assert "only some" not in one and "a token ends" in one


def test_an_empty_text_has_a_sentence_and_a_long_one_says_which_part_is_drawn():
    assert "No text yet" in lanes_html(align("", [BYTES])) and "0 of 0" in numbers_html(align("", [BYTES]))
    text = "żółw i kot " * 10_000
    found = align(text, [PIECES])
    start = time.process_time()
    html = lanes_html(found)
    assert time.process_time() - start < 3 and len(html) < 2_000_000
    last = windows(text)[0][1]
    assert f"Characters 1 to {last:,} of {len(text):,}" in html and WINDOW * 3 // 4 <= last <= WINDOW
    assert "".join(Reader(html).ruler) == text[:last]
    later = windows(text)[5]
    assert "".join(Reader(lanes_html(found, *later)).ruler) == text[slice(*later)]
    assert lanes_svg(found).count("<text") < 5_000


def test_figures_stand_with_their_denominators():
    html = numbers_html(align("Zażółć", [PIECES, BYTES]))
    for words in ("2 of 9 cuts (22 %; F1 0.36)", "4 of 4 (100 %)", "2 · 0 · 7", "0.22", "1.00", "6 of 7 (86 %)"):
        assert words in html, words


def test_styles_use_the_themes_colours_alone():
    assert "#" not in CSS.replace("#x", "") and "var(--accent)" in CSS


# ── SVG ──


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_holds_text_lanes_legend_and_sentences(theme):
    found = align(TEXT + "\x00\x01\ud7ff\ufffe", [BYTES, PIECES])
    document = xml.dom.minidom.parseString(lanes_svg(found, theme, caption="Podpis").encode())
    words = [node.firstChild.data for node in document.getElementsByTagName("text") if node.firstChild]
    assert {"bytes", "pieces", "Podpis", "letter split between tokens"} <= set(words)
    assert "".join(words).count("gęślą") == 3 and any("F1" in w for w in words)
    assert document.documentElement.getAttribute("width") == "1120"
    xml.dom.minidom.parseString(lanes_svg(align("", [BYTES]), theme).encode())
