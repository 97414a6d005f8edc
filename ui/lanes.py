"""Tokenisations of one text as lanes over one ruler of characters, with the figures beside them.

The text is data: every character is escaped, and stands in a cell of its own where the font's width or the writing
direction could shift the grid. A token's facts appear on hover and keyboard focus, as in the ribbon; the ruler is what a
person selects and copies. Needs `ui.theme.css()` and `CSS` on the page once.
"""

from __future__ import annotations

import unicodedata
from html import escape
from typing import Sequence

from engine.alignment import Alignment, sentences
from engine.tokens import code_name, label, visible
from ui.lane_grid import WINDOW, Block, Cell, blocks, windows
from ui.theme import MONO, SANS

__all__ = ["CSS", "WINDOW", "details", "lanes_html", "legend_html", "numbers_html", "windows"]

EVERY = 10  # characters from one number of the ruler to the next


def lanes_html(a: Alignment, start: int = 0, end: int | None = None) -> str:
    """The characters from `start` up to `end` with their lanes; without `end`, the window (see `windows`) at `start`.

    An empty text gives a sentence that says so.
    """
    if not a.text:
        return '<div class="sl lanes"><p class="quiet">No text yet. Paste some above to see how it is cut.</p></div>'
    if end is None:
        end = start + windows(a.text[start:start + 2 * WINDOW])[0][1]
    laid = blocks(a, start, end)
    marked = {i: t.lone for t in a.letters if start <= t.letter.start < end for i in (t.letter.start,)}
    body = "".join(_block(a, block, marked) for block in laid)
    part = "" if start == 0 and end == len(a.text) else (
        f'<p class="quiet">Characters {start + 1:,} to {end:,} of {len(a.text):,}. The numbers are of the whole text.</p>')
    return (f'<div class="sl lanes" style="--lanes:{len(a.lanes)}">{legend_html(a)}{part}<div class="flow" role="group" '
            f'aria-label="The text, and below it how each tokenizer cuts it">{_gutter(a, laid)}{body}</div></div>')


def _gutter(a: Alignment, laid: Sequence[Block]) -> str:
    """The names of the lanes, once for every line that there could be; those past the last line are clipped."""
    names = "".join(f"<b>{escape(lane.title)}</b>" for lane in a.lanes)
    lines = sum(block.breaks for block in laid) + sum(block.width for block in laid) // 8 + 1
    return f'<i class="gutter" aria-hidden="true">{f"<i>{names}</i>" * min(lines, len(laid))}</i>'


def _block(a: Alignment, block: Block, marked: dict[int, bool]) -> str:
    plain = "".join(_cell(cell) for cell in block.cells)
    ruler = "".join(f'<b class="{"dia hit" if marked[cell.start] else "dia"}">{_cell(cell)}</b>' if cell.start in marked else _cell(cell)
                    for cell in block.cells)
    x, numbers = 0, []
    for cell in block.cells:
        if any(i % EVERY == 0 for i in range(cell.start, cell.end)):
            numbers.append(f'<i class="p" style="left:{x}ch">{-(-cell.start // EVERY) * EVERY}</i>')
        x += cell.width
    lanes = []
    for number, (pieces, brackets) in enumerate(zip(block.lanes, block.brackets)):
        tokens = "".join(
            f'<span class="t k{" z" if piece.token % 2 else ""}{_SIDE[piece.opens]}" tabindex="0" '
            f'style="left:{piece.left:.4g}ch;width:{piece.right - piece.left:.4g}ch" data-d="{_attribute(details(a, number, piece.token))}">'
            "</span>" for piece in pieces)
        split = "".join(f'<i class="brk" style="left:{b.left:.4g}ch;width:{b.right - b.left:.4g}ch"></i>' for b in brackets)
        lanes.append(f'<span class="lane" style="--n:{number}">{tokens}<span class="x">{plain}</span>{split}</span>')
    return (f'<span class="w" style="width:{block.width}ch">{"".join(numbers)}<span class="r">{ruler}</span>{"".join(lanes)}</span>'
            + ("<br>" if block.breaks else "<wbr>"))


_SIDE = {"both": " bar", "lone": " bar lone", "": ""}


def _cell(cell: Cell) -> str:
    if cell.kind == "plain":
        return escape(cell.text)
    if cell.kind == "space":
        return '<i class="s"> </i>'
    if cell.kind == "tab":
        return '<i class="h" data-m="→"><u>&#9;</u></i>'
    if cell.kind == "break":
        return '<i class="h" data-m="⏎"></i>'
    style = f' style="width:{cell.width}ch"' if cell.width > 1 else ""
    if cell.kind == "hidden":
        return f'<i class="h hid"{style} data-m="{code_name(cell.text[0]).removeprefix("U+")}"><u>{"".join(map(_kept, cell.text))}</u></i>'
    return f'<i class="q"{style}>{escape(cell.text)}</i>'


def _kept(c: str) -> str:
    """A character that draws nothing, so that HTML keeps it for whoever copies the text; NUL cannot be written at all."""
    if c == "\0":
        return ""
    return c if unicodedata.category(c) in ("Cc", "Cn") and c != "\r" else f"&#{ord(c)};"


def details(a: Alignment, number: int, k: int) -> str:
    """What is known of token `k` of a lane, as a few plain lines: name, place, id and bytes, the letter it holds a part of."""
    lane = a.lanes[number]
    token = lane.tokens[k]
    raw = bytes.fromhex(token.bytes)
    lines = [f"{label(raw, token.special) if raw else '⟨no byte of its own⟩'}   {lane.title} · token {k + 1} of {len(lane.tokens)}",
             f"id {token.id} · bytes {_hex(token.bytes)}",
             f"characters {token.start} to {token.end}" + (f" · bytes {token.start_byte} to {token.end_byte}" if raw else "")]
    shared = _shared(lane.tokens, k, a.text)
    if shared:
        lines.append("holds part of " + " and ".join(visible(c) for c in shared))
    if token.spelled is not None:
        lines.append(f"the tokenizer reads it as {label(bytes.fromhex(token.spelled))} · bytes {_hex(token.spelled)}")
    return "\n".join(lines)


def _shared(tokens, k: int, text: str) -> list[str]:
    """The characters of which token `k` holds only a part, at its beginning and at its end."""
    token, found = tokens[k], []
    if k and token.start < tokens[k - 1].end:
        found.append(text[token.start:tokens[k - 1].end])
    if k + 1 < len(tokens) and tokens[k + 1].start < token.end:
        found.append(text[tokens[k + 1].start:token.end])
    return list(dict.fromkeys(found))


def _hex(digits: str) -> str:
    return bytes.fromhex(digits).hex(" ").upper() or "none"


def _attribute(text: str) -> str:
    return escape(text).replace("\n", "&#10;")


def legend_html(a: Alignment) -> str:
    """What every mark means, drawn as it is drawn in the lanes; marks that cannot come up are left out."""
    items = []
    if len(a.lanes) > 1:
        items += ['<span><i class="key bar"></i>every tokenizer cuts here</span>',
                  '<span><i class="key bar lone"></i>only some of them do</span>']
    elif a.lanes:
        items.append('<span><i class="key bar"></i>a token ends and the next begins</span>')
    items.append('<span><b class="dia">ż</b>letter with a diacritic</span>')
    if len(a.lanes) > 1:
        items.append('<span><b class="dia hit">ż</b>touched by a cut that only some make</span>')
    items.append('<span><i class="key"><i class="brk"></i></i>letter split between tokens</span>')
    return f'<div class="legend">{"".join(items)}</div>'


# ── figures ──


def numbers_html(a: Alignment, said: int = 0) -> str:
    """The figures with their denominators under the sentences that say them, and what each tokenizer did to the text.

    The first `said` sentences are left out: they stand elsewhere.
    """
    words = "".join(f"<p>{escape(line)}</p>" for line in sentences(a)[said:])
    rows = [(lane.title, f"{len(lane.tokens):,}", "n/a" if a.tokens_per_word(i) is None else f"{a.tokens_per_word(i):.2f}",
             _of(a.splits(i), len(a.letters))) for i, lane in enumerate(a.lanes)]
    tables = _table(("Tokenizer", ("Tokens", f"of a text of {len(a.text):,} characters"),
                     ("Per word", f"tokens ÷ {a.words:,} words, which are runs of anything but white space"),
                     ("Letters split", "letters with a Polish diacritic that a cut falls inside of: between their bytes, or between "
                                       "the letter and its mark")), rows)
    if a.pairs:
        rows = [(f"{a.lanes[p.first].title} · {a.lanes[p.second].title}", f"{p.both:,} · {p.only_first:,} · {p.only_second:,}",
                 _number(p.precision), _number(p.recall), _number(p.f1), _of(p.lone_touching, p.lone),
                 _of(p.letters_touched, len(a.letters))) for p in a.pairs]
        tables += _table((
            "Pair", ("Cuts", "in both · only in the first · only in the second"),
            ("Precision", "cuts in both ÷ cuts of the second"), ("Recall", "cuts in both ÷ cuts of the first"),
            ("F1", "2 × cuts in both ÷ all cuts of the two"),
            ("Lone cuts at a diacritic", "of the cuts that only one of the two makes, those at the edge of or inside a letter with a diacritic"),
            ("Letters touched", "letters with a diacritic that such a cut touches")), rows)
    notes = "".join(f"<li>{escape(note)}</li>" for lane in a.lanes for note in lane.notes)
    return f'<div class="sl lanes figures-of">{words}{tables}' + (f'<ul class="notes">{notes}</ul>' if notes else "") + "</div>"


def _table(head: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells also carry their heading, for a screen too narrow to set them side by side."""
    names = [one if isinstance(one, str) else one[0] for one in head]
    titles = "".join(f'<th scope="col">{one}</th>' if isinstance(one, str) else
                     f'<th scope="col"><abbr title="{escape(one[1])}">{one[0]}</abbr></th>' for one in head)
    body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>'
                   + "".join(f'<td data-m="{name}">{escape(cell)}</td>' for name, cell in zip(names[1:], row[1:])) + "</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" + (f" ({100 * part / whole:.0f} %)" if whole else "")


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


CSS = """
.sl.lanes{display:grid;gap:12px;--gut:7.5em}
.sl.lanes .flow{position:relative;overflow:hidden;font:400 15px/0 $MONO;padding-left:calc(var(--gut)*.8);
  --high:calc(40px + var(--lanes)*29px + 10px)}
.sl.lanes .flow i,.sl.lanes .legend i{font-style:normal} .sl.lanes .flow b,.sl.lanes .legend b{font-weight:400}
.sl.lanes .w{display:inline-block;position:relative;height:var(--high);vertical-align:top;line-height:24px;direction:ltr}
.sl.lanes .r,.sl.lanes .x{white-space:pre;line-height:24px}
.sl.lanes .r{position:absolute;top:14px;left:0}
.sl.lanes .p{position:absolute;top:0;font:400 10px/14px $SANS;color:var(--quiet);border-left:1px solid var(--faint);
  padding-left:2px;user-select:none;-webkit-user-select:none}
.sl.lanes .lane{position:absolute;left:0;width:100%;height:26px;top:calc(41px + var(--n)*29px);user-select:none;
  -webkit-user-select:none}
.sl.lanes .x{position:absolute;left:0;top:0;pointer-events:none}
.sl.lanes .t.k{position:absolute;top:0;height:24px;padding:0;border-radius:0;box-shadow:none;background:var(--area)}
.sl.lanes .t.k.z{background:var(--line)}
.sl.lanes .t.k.bar{border-left:1.5px solid var(--ink)}
.sl.lanes .t.k.lone{border-left:2px dashed var(--accent);top:-2px;height:28px}
.sl.lanes .t.k:hover,.sl.lanes .t.k:focus{outline-offset:-2px;z-index:1}
.sl.lanes .brk{position:absolute;bottom:-1px;height:6px;border:1.5px solid var(--ink);border-top:0;pointer-events:none}
.sl.lanes .dia{outline:1px solid var(--quiet);outline-offset:-1px;border-radius:3px}
.sl.lanes .dia.hit{background:var(--closing);outline-color:var(--edge)}
.sl.lanes .s{background:radial-gradient(circle at 50% 55%,color-mix(in srgb,currentColor 55%,transparent) .9px,transparent 1.4px)}
.sl.lanes .h,.sl.lanes .q{display:inline-block;width:1ch;height:24px;overflow:hidden;vertical-align:top;unicode-bidi:isolate;
  text-align:center}
.sl.lanes .h u{font-size:0;text-decoration:none} .sl.lanes .h::before{content:attr(data-m);opacity:.55}
.sl.lanes .h.hid::before{font:400 8px/24px $SANS;letter-spacing:-.04em}
.sl.lanes .gutter{position:absolute;left:0;top:0;width:calc(var(--gut)*.8);user-select:none;-webkit-user-select:none}
.sl.lanes .gutter>i{display:block;height:var(--high);padding-top:41px}
.sl.lanes .gutter b{display:block;height:29px;font:400 12px/24px $SANS;color:var(--quiet);white-space:nowrap;overflow:hidden;
  text-overflow:ellipsis;padding-right:8px}
.sl.lanes .legend b{font:400 15px/1.4 $MONO;padding:0 2px;margin-right:6px}
.sl.lanes .legend .key{display:inline-block;position:relative;width:20px;height:16px;margin-right:6px;vertical-align:-3px;
  background:linear-gradient(90deg,var(--area) 50%,var(--line) 50%)}
.sl.lanes .legend .key.bar::before{content:"";position:absolute;left:9px;top:0;bottom:0;border-left:1.5px solid var(--ink)}
.sl.lanes .legend .key.lone::before{border-left:2px dashed var(--accent);top:-2px;bottom:-2px}
.sl.lanes .legend .key .brk{left:5px;width:10px}
.sl.figures-of{font-size:14px}
.sl.figures-of table{border-collapse:collapse;font-variant-numeric:tabular-nums;justify-self:start}
.sl.figures-of :is(th,td){padding:4px 14px 4px 0;border:0;border-bottom:1px solid var(--line);text-align:right;font-weight:400;
  white-space:nowrap}
.sl.figures-of th{color:var(--quiet)} .sl.figures-of th:first-child{text-align:left}
.sl.figures-of tbody th{color:var(--ink);white-space:normal;overflow-wrap:anywhere}
@media (max-width:640px){.sl.lanes{--gut:5em} .sl.figures-of :is(table,tbody,tr,th,td){display:block;justify-self:auto}
  .sl.figures-of thead{display:none} .sl.figures-of td{display:flex;justify-content:space-between;border:0;padding:2px 0}
  .sl.figures-of td::before{content:attr(data-m);color:var(--quiet)} .sl.figures-of tr{padding-bottom:8px}
  .sl.figures-of tbody th{border:0;font-weight:600;padding:2px 0}}
""".replace("$MONO", MONO).replace("$SANS", SANS)
