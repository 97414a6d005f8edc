"""Tokens on the screen: states, exact text, bytes, numbers, and nothing of the text run as markup."""

import dataclasses
import time
from html.parser import HTMLParser

from hypothesis import given, strategies as st

from engine.tokens import label
from engine.trace import Generation, Round
from tests.sample import sample_run
from ui import ribbon, rounds
from ui.ribbon import ribbon_html, text_of, tokens_from, tokens_of

OURS = {"div", "span", "i", "wbr", "p", "b", "dl", "dt", "dd", "abbr"}


class Reader(HTMLParser):
    """What a browser would keep: tags, attributes, and the text outside elements that cannot be selected."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text, self.open = set(), [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        if tag != "wbr":
            self.open.append(set((dict(attributes).get("class") or "").split()))

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        if not any(classes & {"r", "x", "split"} for classes in self.open):
            self.text.append(data)


def copied(html):
    return "".join(Reader(html).text)


def hexes(*pieces):
    return {i: p.hex() for i, p in enumerate(pieces)}


def test_every_emitted_token_has_one_origin_and_dropped_ones_stand_where_they_fell():
    two = (
        Round(proposed=(0, 1, 9), accepted=2, emitted=(0, 1, 2), closing="correction"),
        Round(proposed=(3, 4, 5), accepted=3, emitted=(3, 4, 5, 6), closing="bonus"),
        Round(proposed=(8, 9, 9), accepted=0, emitted=(7,), closing="correction"),
    )
    names = {i: bytes([97 + i]).hex() for i in range(10)}
    short = {"accepted": "draft", "correction": "correction", "bonus": "bonus"}
    assert [short[t.state] for t in tokens_from(two[:2], names)] == [
        "draft",
        "draft",
        "correction",
        "draft",
        "draft",
        "draft",
        "bonus",
    ]
    whole = tokens_from(two, names, dropped=True)
    assert [t.state for t in whole] == [
        "accepted",
        "accepted",
        "rejected",
        "correction",
        "accepted",
        "accepted",
        "accepted",
        "bonus",
        "rejected",
        "discarded",
        "discarded",
        "correction",
    ]
    assert [t.index for t in whole] == [0, 1, None, 2, 3, 4, 5, 6, None, None, None, 7]
    assert [(t.round, t.place) for t in whole[8:]] == [(2, 0), (2, 1), (2, 2), (2, None)]


def test_emitted_tokens_are_the_answer_for_every_kind_of_run():
    for options in (
        dict(),
        dict(temperature=0.0),
        dict(gamma=0),
        dict(eos=True, acceptance=1.0),
        dict(drafter="lookup"),
        dict(acceptance=0),
        dict(tokens=1),
        dict(tokens=0),
    ):
        run = sample_run(polish=True, **options)
        for side in ("plain", "speculative"):
            shown = [t for t in tokens_of(run, side, dropped=True) if t.index is not None]
            assert tuple(t.id for t in shown) == getattr(run, side).ids
            assert [t.index for t in shown] == list(range(len(shown)))
            assert {t.state for t in shown} <= (
                {"plain"} if side == "plain" else {"accepted", "correction", "bonus", "plain"}
            )
    assert tokens_of(sample_run(speculative=False), "speculative") == []


def test_copied_text_is_the_text_of_the_run():
    run = sample_run(polish=True, hostile=True, eos=True, tokens=90, diverge=40)
    for side in ("plain", "speculative"):
        for dropped in (False, True):
            html = ribbon_html(tokens_of(run, side, dropped), split=40)
            assert copied(html) == getattr(run, side).text
            assert "\n" not in html  # nothing around it can reindent what is not there


def test_hostile_text_is_shown_and_never_markup():
    run = sample_run(hostile=True, polish=True, tokens=60)
    shown = [ribbon_html(tokens_of(run, side, dropped=True)) for side in ("plain", "speculative")]
    shown += [rounds.round_html(run, i) for i in range(rounds.round_count(run))]
    for html in shown:
        reader = Reader(html)
        assert reader.tags <= OURS
        assert {name for name, _ in reader.attributes} <= {
            "class",
            "tabindex",
            "data-d",
            "data-m",
            "role",
            "aria-label",
            "title",
        }
    assert "&lt;script&gt;" in shown[0] and "$5, a obiad $12" in copied(shown[0]) and "__razem__" in copied(shown[0])


def test_white_space_tokens_look_different_and_keep_their_text():
    pieces = ["\n", " variety", "  ", "\t", "", "a\u00a0b", "variety", "a b", "\r", "\u200b", "\x00"]
    assert len({label(p.encode()) for p in pieces}) == len(pieces)
    assert all(label(p.encode()).strip() for p in pieces)
    shown = tokens_from([Round(emitted=(i,)) for i in range(len(pieces))], hexes(*(p.encode() for p in pieces)))
    assert [text_of(t) for t in shown] == pieces
    assert len({ribbon_html([t]).split("data-d")[0] + ribbon_html([t]).split(">", 3)[3] for t in shown}) == len(pieces)
    assert label(b"<|im_end|>", special=True) == "⟨im_end⟩" and label(b"</s>", special=True) == "⟨/s⟩"


def test_direction_marks_and_nul_are_named():
    html = ribbon_html(tokens_from([Round(emitted=(0,))], hexes("a\u202eb\x00".encode())))
    assert "⟨U+202E⟩" in html and "⟨NUL⟩" in html and "\u202e" not in html and "\x00" not in html


def test_single_bytes_are_marked_as_bytes_with_the_character_they_make():
    shown = tokens_from([Round(emitted=(i,)) for i in range(6)], hexes(b" Za", b"\xf0", b"\x9f", b"\x98", b"\x80", b" kot"))
    assert "".join(map(text_of, shown)) == " Za😀 kot"
    assert [t.joined for t in shown] == ["", "😀", "😀", "😀", "😀", ""]
    html = ribbon_html(shown)
    assert copied(html) == " Za😀 kot"
    for byte in ("F0", "9F", "98", "80"):
        assert f"⟨{byte}⟩" in html
    assert html.count("part of 😀") == 4 and "\ufffd" not in html and "Ġ" not in html and "▁" not in html


def test_a_rejected_half_letter_does_not_join_the_answer():
    one = Round(proposed=(0, 1), accepted=1, emitted=(0, 2), closing="correction")
    shown = tokens_from([one], hexes(b"\xc5", b"\xbc", b"\x82"), dropped=True)
    assert [(t.state, t.joined) for t in shown] == [("accepted", "ł"), ("rejected", ""), ("correction", "ł")]
    assert copied(ribbon_html(shown)) == "ł"


@given(st.text(max_size=30), st.lists(st.integers(0, 120), max_size=12))
def test_text_cut_at_any_bytes_comes_back_whole(text, cuts):
    data = text.encode("utf-8", "ignore")
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    pieces = [data[a:b] for a, b in zip(edges, edges[1:])]
    shown = tokens_from([Round(emitted=(i,)) for i in range(len(pieces))], hexes(*pieces))
    assert "".join(map(text_of, shown)) == data.decode()
    assert copied(ribbon_html(shown)) == data.decode().replace("\x00", "")


@given(st.lists(st.binary(max_size=4), max_size=8))
def test_bytes_that_make_no_character_stay_bytes(pieces):
    shown = tokens_from([Round(emitted=(i,)) for i in range(len(pieces))], hexes(*pieces))
    assert "".join(map(text_of, shown)) == b"".join(pieces).decode("utf-8", "ignore")
    assert all(t.pieces for t, raw in zip(shown, pieces) if raw)  # every byte is seen somewhere


def test_details_say_id_bytes_test_entropy_and_the_five_best():
    run = sample_run(seed=1)
    accepted = next(t for t in tokens_of(run, "speculative") if t.state == "accepted")
    said = ribbon.details(accepted)
    for words in (
        f"id {accepted.id}",
        f"bytes {accepted.bytes[:2].upper()}",
        f"p {ribbon.number(accepted.p)}",
        f"q {ribbon.number(accepted.q)}",
        f"draw {ribbon.number(accepted.draw)} <",
        f"entropy {accepted.entropy:.2f} bits",
        "top 5",
        "accepted · round",
    ):
        assert words in said
    assert len(accepted.top) == 5 and all(name in said for name, _ in accepted.top)
    rejected = next(t for t in tokens_of(run, "speculative", dropped=True) if t.state == "rejected")
    assert " ≥ " in ribbon.details(rejected) and rejected.draw >= ribbon.acceptance_bar(rejected)
    html = ribbon_html([accepted])
    assert 'tabindex="0"' in html and f"id {accepted.id}" in dict(Reader(html).attributes)["data-d"]


def test_a_point_mass_is_judged_by_p_alone():
    token = dataclasses.replace(tokens_of(sample_run(), "speculative")[0], q=None, p=0.25)
    assert ribbon.acceptance_bar(token) == 0.25


def test_probabilities_are_not_rounded_to_none_or_all():
    assert [ribbon.number(v) for v in (0.0, 0.0001, 0.0812, 0.41, 0.9999, 1.0)] == [
        ".000",
        "<.001",
        ".081",
        ".410",
        ">.999",
        "1.00",
    ]


def test_the_first_difference_stands_before_its_token():
    run = sample_run(temperature=0.0, diverge=7, tokens=12)
    before = ribbon_html(tokens_of(run, "plain"), split=7).split('class="split"')
    assert len(before) == 2 and before[0].count("tabindex") == 7
    longer = ribbon_html(tokens_of(run, "plain"), split=12)  # one answer is a prefix of the other
    assert longer.index('class="split"') > longer.rindex("tabindex")


def test_a_discarded_line_break_breaks_no_line():
    one = Round(proposed=(1, 0), accepted=0, emitted=(2,), closing="correction")
    html = ribbon_html(tokens_from([one], hexes(b"\n", b"a", b"\n"), dropped=True))
    assert html.count('class="n"') == 2 and html.count("&#10;</i>") == 1


def test_a_growing_run_is_drawn_from_its_rounds_alone():
    run = sample_run(polish=True)
    part = tokens_from(run.speculative.rounds[:5], run.tokens, run.special)
    whole = tokens_of(run, "speculative")
    assert [(t.id, t.state, t.pieces) for t in part] == [(t.id, t.state, t.pieces) for t in whole[: len(part)]]
    assert 'class="caret"' in ribbon_html(part, growing=True)


def test_two_thousand_tokens_are_fast_and_small():
    run = sample_run(tokens=2000, polish=True)
    spent = []
    for _ in range(3):
        start = time.process_time()
        html = ribbon_html(tokens_of(run, "speculative"))
        spent.append(time.process_time() - start)
    assert min(spent) < 0.3
    assert len(html) < 2000 * 400


def test_a_round_says_what_happened_in_words():
    def said(**parts):
        run = sample_run(tokens=3)
        answer = Generation("speculative", ids=(1,), rounds=(Round(**parts),))
        return rounds.sentence(dataclasses.replace(run, speculative=answer), 0)

    assert said(proposed=(1, 2, 3, 4), accepted=1, emitted=(1, 5), closing="correction") == (
        "Round 1 of 1: the draft proposed 4 tokens; the verifier accepted 1, refused the next and put its own token there; 2 were never judged."
    )
    assert said(proposed=(1,), accepted=0, emitted=(5,), closing="correction").endswith(
        "refused the first and put its own token there."
    )
    assert said(proposed=(1, 2), accepted=2, emitted=(1, 2, 3), closing="bonus").endswith(
        "accepted all 2 and added one of its own."
    )
    assert said(proposed=(1, 2), accepted=2, emitted=(1, 2), closing=None).endswith("accepted 2; the answer ended there.")
    assert said(emitted=(1,), note="the draft's context is full").endswith(
        "nothing was proposed (the draft's context is full); the verifier wrote 1 token by itself."
    )


def test_a_round_shows_every_proposal_with_its_numbers():
    run = sample_run(seed=2)
    index = next(
        i for i, r in enumerate(run.speculative.rounds) if r.closing == "correction" and len(r.proposed) - r.accepted > 1
    )
    one, html = run.speculative.rounds[index], rounds.round_html(run, index)
    assert html.count("✓ accepted") == one.accepted and html.count("✗ rejected") == 1
    assert html.count("┄ discarded") == len(one.proposed) - one.accepted - 1 and html.count("↻ verifier put") == 1
    for q, p in zip(one.q, one.p):
        assert f"<dd>{ribbon.number(q)}</dd>".replace("<.", "&lt;.") in html and ribbon.number(p) in html
    assert f"draft {one.draft_seconds * 1000:.1f} ms · verify {one.verify_seconds * 1000:.1f} ms" in html
    assert "No speculative round" in rounds.round_html(sample_run(speculative=False), 0)
    assert rounds.round_html(run, 10_000) == rounds.round_html(run, rounds.round_count(run) - 1)
