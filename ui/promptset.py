"""One prompt, several, a ready set or a file: the control that gives a page its prompts.

What was detected in a file (encoding, separator, columns) stands in selectboxes and can be changed there. A file uploader's value dies
with its page, so the bytes are kept in the session; they are parsed again only when they or a choice change.
"""

from __future__ import annotations

import hashlib
import html
import json
from pathlib import Path
from typing import Any, Callable, Sequence

import streamlit as st

from engine import prompt_sets
from engine.errors import RequestError
from engine.limits import LIMITS
from engine.prompt_sets import BUILTIN, ENCODINGS, KINDS, LIMIT_MB, NONE, SEPARATORS, PromptSet, SetPrompt
from engine.request import REFUSED_SHOWN, Asked
from ui.hosts import here_only
from ui.paths import TYPES, refusal
from ui.preview import letters, preview
from ui.session import draw as draw_html, keep, put, remembered, say, showable

ONE, SEVERAL, READY, FILE = "One prompt", "Several prompts", "Ready-made set", "File"
COLUMNS = ("column", "label_column", "category_column")
PASTED = "pasted"  # stands where a file has the mark of its bytes
TAKEN = "prompts of the run.jsonl"
TOLD = 100  # refused rows that are listed
WIDTH = 168  # pixels: six selectboxes make one row at 1280, two at 390


def draw(prefix: str, default: str, *, ready: Sequence[str] = (), most: int = 50, label: str = "Prompt",
         help: str = "Taken letter by letter: nothing in it is interpreted.") -> PromptSet | None:
    """Draw the control and return the prompts as they are chosen now; None if there is none to run (what is wrong is said here).

    `prefix` names the page's controls, `default` is the one prompt it begins with, `ready` are keys of BUILTIN to offer. Of a set
    larger than `most`, that many are used until the person asks for more.
    """
    modes = [ONE, SEVERAL, *([READY] if ready else []), FILE]
    mode = st.segmented_control("Prompts from", modes, key=remembered("source", ONE, prefix), required=True,
                                help="One prompt; several, typed or pasted; or a file: TXT, CSV, TSV, JSONL, JSON or Parquet.")
    keep("source", prefix=prefix)
    if mode == SEVERAL:
        return _several(prefix, most)
    if mode == READY:
        return _ready(prefix, ready, most)
    if mode == FILE:
        return _file(prefix, most)
    text = st.text_area(label, key=remembered("prompt", default, prefix), height=104, help=help)
    keep("prompt", prefix=prefix)
    return PromptSet((SetPrompt("", text),), "whole") if text.strip() else None


def asked(found: PromptSet | None) -> tuple[Asked, ...]:
    """The chosen prompts as a request has them."""
    return tuple(Asked(p.text, p.label, p.category or "") for p in found.prompts) if found else ()


def fill(prefix: str, prompts: Sequence[Asked]) -> None:
    """Set the control to the prompts of a request. Only before it is drawn in this pass, or from another page.

    One prompt is typed into its box; a set, or one with a name, becomes a file of JSON lines, which keeps texts, labels and categories.
    """
    if not prompts or _untold(prompts):
        return
    if len(prompts) == 1 and not (prompts[0].label or prompts[0].category):
        put({"source": ONE, "prompt": showable(prompts[0].text)}, prefix)
        return
    content = _as_file(prompts)
    mark = hashlib.sha256(content).hexdigest()[:12]
    st.session_state[f"{prefix}.held"] = TAKEN, mark, content, None
    put({"source": FILE, "path": "", f"count.{mark}.{len(prompts)}": len(prompts), f"spread.{mark}": False, f"words.{mark}": 0}, prefix)


def left(prompts: Sequence[Asked], items: Sequence[Any] = ()) -> list[str]:
    """In words, what `fill` cannot take of prompts. `items` of the run that they are from tell which were kept only in part."""
    if why := _untold(prompts):
        return [why]
    cut = [n for n, (p, item) in enumerate(zip(prompts, items), 1) if item.refused and len(p.text) == REFUSED_SHOWN and p.text == item.prompt.text]
    found = [f"the end of prompt {n} (it was refused, and of its text the first {REFUSED_SHOWN:,} characters were kept)" for n in cut]
    labels = [p.label for p in prompts]
    if len(prompts) > 1 and (len(set(labels)) < len(labels) or not all(label and label == label.strip() for label in labels)):
        found.append("the prompts’ labels (empty, or not unique)")
    return found


def _untold(prompts: Sequence[Asked]) -> str | None:
    """Why these prompts cannot be put into the control at all."""
    if any(not p.text.strip() or "\0" in p.text for p in prompts):
        return "prompts without a text"
    if len(prompts) > 1 and 12 * sum(len(p.text) for p in prompts) > LIMIT_MB * 2**20 < len(_as_file(prompts)):
        return f"the {len(prompts):,} prompts (more than {LIMIT_MB} MB)"
    return None


def _as_file(prompts: Sequence[Asked]) -> bytes:
    rows = ({"prompt": showable(p.text), "label": showable(p.label), "category": showable(p.category)} for p in prompts)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def title(prompts: Sequence[Asked]) -> str:
    """What a job with these prompts goes by in the queue."""
    first = prompts[0].text if prompts else ""
    return f"{len(prompts)} prompts: {first}" if len(prompts) > 1 else first


def _several(prefix: str, most: int) -> PromptSet | None:
    text = st.text_area("Prompts", key=remembered("prompts", "", prefix), height=168,
                        placeholder="One prompt a line, or paragraphs parted by blank lines, or JSON lines, or a table with a header",
                        help="Taken letter by letter. How it was read stands below and can be changed.")
    keep("prompts", prefix=prefix)
    if not text.strip():
        _quiet("No prompts yet.")
        return None
    return _read(prefix, PASTED, text, lambda **how: prompt_sets.pasted(text, **how), [k for k in KINDS if k != "parquet"], most)


def _ready(prefix: str, ready: Sequence[str], most: int) -> PromptSet | None:
    name = st.selectbox("Set", list(ready), key=remembered("ready", ready[0], prefix), format_func=BUILTIN.get, width=440,
                        help="Written for this program; the files lie in engine/prompt_sets/data.")
    keep("ready", prefix=prefix)
    found = prompt_sets.builtin(name)
    preview(found, f"{prefix}.preview.{name}")
    return _part(prefix, name, found, most)


def _file(prefix: str, most: int) -> PromptSet | None:
    held = f"{prefix}.held"  # (name, mark, content or None, path or None), not a widget's key: it outlives the page
    given = st.file_uploader("File of prompts", TYPES, key=f"{prefix}.upload", max_upload_size=LIMIT_MB, on_change=_take, args=(prefix,),
                             help=f"TXT, CSV, TSV, JSONL, JSON or Parquet, up to {LIMIT_MB} MB. It stays on this machine.")
    here = here_only()  # whoever comes from elsewhere has no business in this machine's folders
    if here:
        with st.popover("Or a path on this machine", key=f"{prefix}.by_path"):
            st.text_input("Path", key=remembered("path", "", prefix), on_change=_take_path, args=(prefix,), placeholder="/home/me/train.parquet",
                          help="For a file too large to hand over: of a Parquet file of any size the first rows are read. "
                               f"Its name must end in .{', .'.join(TYPES)}.")
            keep("path", prefix=prefix)
    source = st.session_state.get(held)
    if source is not None and source[3] is not None and not here:
        source = None
    if source is None:
        larger = ", a larger Parquet file by its path" if here else ""
        _quiet(f"No file yet: TXT, CSV, TSV, JSONL, JSON or Parquet of up to {LIMIT_MB} MB{larger}. In a table "
               "the columns for prompt, label and category are found by their names and can be changed.")
        return None
    name, mark, content, path = source
    if given is None or content is None:  # else the uploader itself shows the file, with a cross to remove it
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            size = "" if content is None else f" · {_size(len(content))}"
            draw_html(f'<p class="sl"><b>{html.escape(letters(name, 60))}</b><span class="quiet">{size}</span></p>', width="content")
            st.button("Remove", key=f"{prefix}.remove", on_click=_remove, args=(prefix,), help="Forget this file. The file itself stays.")

    if path is not None and (why := refusal(path)):
        say(why)
        return None

    def go(**how: Any) -> PromptSet:
        return prompt_sets.read_file(path, **how) if content is None else prompt_sets.read(content, name, **how)

    return _read(prefix, mark, mark if path is None else mark + _changed(path), go, list(KINDS), most)


def _take(prefix: str) -> None:
    """The uploader changed by hand. It also turns empty when its page is left: no callback then, and the file is kept."""
    given = st.session_state.get(f"{prefix}.upload")
    if given is None:
        _forget(prefix)
        return
    content = given.getvalue()
    mark = hashlib.sha256(given.name.encode("utf-8", "replace") + b"\0" + content).hexdigest()[:12]
    st.session_state[f"{prefix}.held"] = given.name, mark, content, None
    put({"path": ""}, prefix)


def _take_path(prefix: str) -> None:
    path = st.session_state[f"{prefix}.path"].strip()
    if not path:
        _remove(prefix)
        return
    mark = hashlib.sha256(path.encode("utf-8", "replace")).hexdigest()[:12]
    st.session_state[f"{prefix}.held"] = path.replace("\\", "/").rpartition("/")[2] or path, mark, None, path


def _remove(prefix: str) -> None:
    """Forget the file or path in use; a file that the uploader still shows takes its place."""
    put({"path": ""}, prefix)
    _take(prefix)


def _forget(prefix: str) -> None:
    st.session_state.pop(f"{prefix}.held", None)
    st.session_state.pop(f"{prefix}.parsed", None)
    put({"path": ""}, prefix)


def _changed(path: str) -> str:
    """When the file was written last, so that a changed one is read again."""
    try:
        return f" {Path(path).expanduser().stat().st_mtime_ns}"
    except (OSError, ValueError):
        return ""


def _read(prefix: str, mark: str, state: str, go: Callable[..., PromptSet], kinds: list[str], most: int) -> PromptSet | None:
    """Read with the choices made so far, then draw all of them as they came out. `state` is equal exactly when the text is."""
    how = st.session_state.setdefault(f"{prefix}.choices", {}).setdefault(mark, {})  # only what the person changed
    found = None
    try:
        found = _once(prefix, (mark, state, *sorted(how.items())), go, how)
    except RequestError as e:
        if any(name in how for name in COLUMNS):  # another kind, encoding or separator has other columns: begin anew with those
            for name in COLUMNS:
                how.pop(name, None)
            return _read(prefix, mark, state, go, kinds, most)
        say(str(e))
    _choices(prefix, mark, found, kinds, how)
    if found is None:
        return None
    _told(found)
    if not found.prompts:
        say("There is no prompt to run in this; above stands how it was read.", "note")
        return None
    preview(found, f"{prefix}.preview.{mark}")
    return _part(prefix, mark, found, most)


def _once(prefix: str, key: tuple, go: Callable[..., PromptSet], how: dict[str, Any]) -> PromptSet:
    """The parsed set of the last choices, kept in the session; a refusal is kept like a result."""
    slot = f"{prefix}.parsed"
    if st.session_state.get(slot, (None, None))[0] != key:
        try:
            st.session_state[slot] = key, go(**how)
        except RequestError as e:
            st.session_state[slot] = key, e
    kept = st.session_state[slot][1]
    if isinstance(kept, RequestError):
        raise RequestError(str(kept))
    return kept


def _choices(prefix: str, mark: str, found: PromptSet | None, kinds: list[str], how: dict[str, Any]) -> None:
    """A selectbox for everything that was detected, at what holds now; a change there overrides the detection."""
    def pick(label: str, name: str, options: dict[Any, str], value: Any, help: str) -> None:
        key = f"{prefix}.{name}.{mark}"
        st.session_state[key] = how.get(name, value)
        st.selectbox(label, list(options), key=key, width=WIDTH, format_func=lambda o: options.get(o, ""), placeholder="choose",
                     on_change=_choose, args=(prefix, mark, name), help=help)

    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        pick("Read as", "kind", {k: KINDS[k] for k in kinds}, found and found.kind,
             "How the text is cut into prompts. Paragraphs are parted by blank lines.")
        if mark != PASTED and (found is None or found.encoding):
            pick("Encoding", "encoding", ENCODINGS, found and found.encoding,
                 "Which letters the file's bytes stand for. If letters in the preview are wrong, choose another: cp1250, ISO-8859-2 and "
                 "cp852 are Central European, cp1252 and ISO-8859-1 Western.")
        if found and found.kind == "csv":
            pick("Separator", "separator", {s: t.capitalize() for s, t in SEPARATORS.items()}, found.separator,
                 "What stands between two cells of a row.")
            pick("First row", "header", {True: "Names of columns", False: "A row like the others"}, found.header,
                 "Whether the first row names the columns.")
        if found and found.columns:
            columns = _labels(found.columns)
            pick("Prompt column", "column", columns, found.column, "The column that holds the prompts.")
            pick("Label column", "label_column", {NONE: "none", **columns}, found.label_column or NONE,
                 "The column that names each prompt in tables.")
            pick("Category column", "category_column", {NONE: "none", **columns}, found.category_column or NONE,
                 "The column that sorts prompts into groups.")
        if how:
            st.button("Detect again", key=f"{prefix}.detect.{mark}", on_click=how.clear, help="Undo the choices made here.")


def _choose(prefix: str, mark: str, name: str) -> None:
    value = st.session_state[f"{prefix}.{name}.{mark}"]
    if value is not None:
        st.session_state[f"{prefix}.choices"].setdefault(mark, {})[name] = value


def _labels(columns: Sequence[str]) -> dict[str, str]:
    """Columns with the names a selectbox shows: no two alike, nothing invisible, nothing endless."""
    shown: dict[str, str] = {}
    for column in columns:
        label, n = letters(column, 60), 2
        while label in shown.values():
            label, n = f"{letters(column, 60)} ({n})", n + 1
        shown[column] = label
    return shown


def _told(found: PromptSet) -> None:
    """Counts, notes and refusals, in words."""
    n = len(found.prompts)
    parts = [f"<b>{n:,} {'prompt' if n == 1 else 'prompts'}</b>"]
    if found.skipped_blank:
        parts.append(f"{found.skipped_blank:,} blank {'line' if found.skipped_blank == 1 else 'lines'} skipped")
    if found.refused:
        parts.append(f"{found.refused:,} {'row' if found.refused == 1 else 'rows'} refused")
    body = f'<p>{" · ".join(parts)}</p>'
    wrong = [f"✗ {p.sentence}" for p in found.problems[:TOLD]]
    if found.refused > len(wrong):
        wrong.append(f"✗ and {found.refused - len(wrong):,} more")
    if wrong:
        body += f'<ul class="notes" style="max-height:8em;overflow:auto;color:var(--ink)">{_items(wrong)}</ul>'
    if found.notes:
        body += f'<ul class="notes">{_items(found.notes)}</ul>'
    draw_html(f'<div class="sl">{body}</div>')


def _items(lines: Sequence[str]) -> str:
    return "".join(f"<li>{html.escape(line)}</li>" for line in lines)


def _part(prefix: str, mark: str, found: PromptSet, most: int) -> PromptSet:
    """How much of a set is used: how many prompts, and how much of each."""
    n = len(found.prompts)
    names = f"count.{mark}.{n}", f"spread.{mark}", f"words.{mark}"
    count, spread, words = (remembered(name, value, prefix) for name, value in zip(names, (min(n, most), False, 0)))
    for key in (count, spread, words):
        # Said anew in every pass: a browser that a quick second pass overtakes before it drew the first would begin at the minimum.
        st.session_state[key] = st.session_state[key]
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        use = st.number_input(f"Use, of {n:,}", 1, n, key=count, width=WIDTH, disabled=n == 1,
                              help="How many prompts are run, one after the other.")
        cut = st.number_input("Words of each", LIMITS["words"].low, LIMITS["words"].high, key=words, width=WIDTH,
                              help="0 runs every prompt whole. Otherwise each is cut after that many words, so that a model goes on with it.")
        even = st.checkbox("Spread over the set", key=spread, disabled=use == n,
                           help="Take them evenly from the whole set, not from its beginning: a set sorted by category gives some of each.")
    keep(*names, prefix=prefix)
    return prompt_sets.openings(prompt_sets.first(found, int(use), even), int(cut))


def _quiet(text: str) -> None:
    draw_html(f'<p class="sl quiet">{html.escape(text)}</p>')


def _size(count: int) -> str:
    return f"{count:,} bytes" if count < 10_000 else f"{count / 1000:,.0f} kB" if count < 10_000_000 else f"{count / 1e6:,.0f} MB"
