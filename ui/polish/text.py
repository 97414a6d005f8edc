"""The text view: a text, several tokenizers, one ruler of characters. No model is loaded."""

from __future__ import annotations

import html
import json as json_module
from dataclasses import replace

import streamlit as st

from engine.alignment import Alignment, as_data, compare, sentences
from engine.errors import RequestError
from engine.lanes import lane
from ui import session, sheet
from ui.lanes import CSS, lanes_html, numbers_html, windows
from ui.result import theme
from ui.session import keep, remembered
from ui.share import downloads
from ui.takeaway import Takeaway

PREFIX = "polish.text"
DEFAULT = "Zażółć gęślą jaźń. W Szczebrzeszynie chrząszcz brzmi w trzcinie i Szczebrzeszyn z tego słynie."
KNOWN = {"bundled:polish-verifier": "Mistral v0.1 (bundled)", "bundled:polish-draft": "Polish BPE (bundled)",
         "bundled:polish-draft-general": "General BPE (bundled)", "bundled:smollm2-135m": "SmolLM2 (bundled)"}
OTHERS = ("speakleash/Bielik-11B-v2.3-Instruct", "speakleash/Bielik-1.5B-v3.0-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", "meta-llama/Llama-3.2-1B-Instruct")
LONGEST = 100_000  # characters


def show() -> None:
    """Text, tokenizers, lanes, figures."""
    session.draw(f"<style>{CSS}</style>")
    text = st.text_area("Text", key=remembered("text", DEFAULT, PREFIX), height=104,
                        help=f"Any text up to {LONGEST:,} characters, taken letter by letter. Polish is what this page is for.")
    names = st.multiselect("Tokenizers", [*KNOWN, *OTHERS], key=remembered("names", ["bundled:polish-verifier", "bundled:polish-draft"], PREFIX),
                           accept_new_options=True, max_selections=6, format_func=lambda n: KNOWN.get(n, n),
                           help="Pick some, or type a hub id, a folder, a tokenizer.json or a .gguf file. Of a model only its tokenizer is read; "
                                "one from the hub is fetched once.")
    special = st.checkbox("Special tokens count as themselves", key=remembered("special", False, PREFIX),
                          help="Written in the text, a special token such as <s> is then one token, not letters.")
    keep("text", "names", "special", prefix=PREFIX)
    if len(text) > LONGEST:
        session.say(f"The text has {len(text):,} characters; at most {LONGEST:,} are drawn. Take a part of it.")
        return
    if not names:
        session.say("No tokenizer is chosen; pick at least one, two to compare their cuts.", "note")
        return
    usable = []
    for name in names:
        try:
            vocabulary(name)
            usable.append(name)
        except RequestError as e:
            session.say(str(e))
    if usable:
        result(text, tuple(usable), special)


def result(text: str, names: tuple[str, ...], special: bool) -> None:
    try:
        found = aligned(text, names, special)
    except RequestError as e:
        session.say(str(e))
        return
    parts = windows(text) if text else []
    session.draw(f'<p class="sl headline">{html.escape(headline(found))}</p>')
    with st.container(horizontal=True, vertical_alignment="bottom", key="polish-text-head"):
        start, end = 0, None
        if len(parts) > 1:
            at = st.number_input(f"Part of {len(parts)}", 1, len(parts), key=f"{PREFIX}.part", width=122,
                                 help="A long text is drawn in parts; the figures are of the whole.") - 1
            start, end = parts[min(at, len(parts) - 1)]
        with st.popover("Share", key=f"{PREFIX}.share"):
            downloads(takeaway(found, start, end), theme(), PREFIX)
    session.draw(lanes_html(found, start, end))
    session.draw(numbers_html(found, said=1))


@st.cache_resource(show_spinner=False, max_entries=4)
def aligned(text: str, names: tuple[str, ...], special: bool = False) -> Alignment:
    """The text as each of these tokenizers cuts it; kept, for leafing through a long one must not cut it anew."""
    lanes = [lane(vocabulary(name), text, name, special) for name in names]
    titles = [KNOWN.get(one.tokenizer, one.title).removesuffix(" (bundled)") for one in lanes]
    return compare(text, [replace(one, title=title) for one, title in zip(lanes, titles)])


@st.cache_resource(show_spinner="Reading the tokenizer", max_entries=12)
def vocabulary(name: str):
    """The tokenizer of that name, kept for the process: the first one takes seconds, for it brings its library along."""
    from engine.models import tokenizers
    return tokenizers.load(name)


def headline(found: Alignment) -> str:
    """What is to be seen first: how far the first two agree; of a lone tokenizer, how many tokens it makes."""
    if not found.text:
        return "No text yet."
    if said := sentences(found):
        return said[0]
    one, rate = found.lanes[0], found.tokens_per_word(0)
    count = f"{len(one.tokens):,} token{'s' * (len(one.tokens) != 1)}"
    return f"{one.title} cuts this text into {count}" + (f", {rate:.2f} a word." if rate is not None else ".")


def caption(found: Alignment) -> str:
    return f"tokenizers {', '.join(lane.tokenizer for lane in found.lanes)} · {len(found.text):,} characters · SpecLens, Polish page"


def takeaway(found: Alignment, start: int, end: int | None) -> Takeaway:
    """The lanes as files."""
    def svg(name: str, colours: str) -> str:
        from ui.lanes_picture import lanes_svg
        return lanes_svg(found, colours, start, end, caption(found))

    def page() -> str:
        from ui.document import document
        body = f'<p class="sl headline">{html.escape(headline(found))}</p>{lanes_html(found, 0, len(found.text))}{numbers_html(found, said=1)}'
        return document(headline(found), f'{body}<p class="sl caption">{html.escape(caption(found))}</p>', style=CSS)

    def json() -> str:
        return json_module.dumps({"text": found.text, **as_data(found), "caption": caption(found)}, ensure_ascii=False, allow_nan=False)

    return Takeaway("lanes", "polish", caption(found), {"lanes": "Lanes"}, svg, page, json, {"tokens": lambda: csv(found)})


def csv(found: Alignment) -> str:
    """One row a token of every lane."""
    rows = [(lane.tokenizer, i, token.id, token.bytes, token.start, token.end, found.text[token.start:token.end])
            for lane in found.lanes for i, token in enumerate(lane.tokens)]
    return sheet.text(("tokenizer", "index", "id", "bytes", "start", "end", "text", "caption"),
                      [(*row, "" if n else caption(found)) for n, row in enumerate(rows)])
